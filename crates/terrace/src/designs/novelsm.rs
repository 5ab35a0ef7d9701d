//! NoveLSM: Kannan et al., "Redesigning LSMs for Nonvolatile Memory with NoveLSM", USENIX ATC 2018.
//!
//! In the flat mode memtables take turns: one in DRAM with its log, then one in the pool that is
//! its own log, so that writers go on while the one in DRAM is flushed (4.3). Both become tables of
//! a buffer of one level, which leave it in the order of their age: to levels of SSTables, or to
//! the repository (NoSST, 5.3). In the hierarchical mode the memtable in the pool is below those in
//! DRAM, which are copied into it (4.2). Where this differs from the paper, docs/designs.md says
//! how and why.

use std::sync::Arc;

use super::{Opened, RebuildProgress, Recipe, buffered};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::repository;
use crate::stages::buffer::elastic::{self, Drains};
use crate::stages::front::wal_memtable::FlushTo;
use crate::stages::{Folder, Shared};

/// No stage needs initial bytes on media.
pub(super) const RECIPE: Recipe = Recipe {
    fix: set_levels,
    create: |_| Ok(()),
    links_lost: elastic::recover::links_lost,
    open,
};

/// NoSST: all data stays in the pool.
pub(super) const NO_SST: Recipe = Recipe {
    create: repository::recover::create,
    open: open_without_files,
    ..RECIPE
};

/// The hierarchical mode.
pub(super) const HIERARCHICAL: Recipe = Recipe {
    fix: set_growth,
    open: open_hierarchical,
    ..RECIPE
};

/// Tables are never merged in the buffer.
fn set_levels(shared: &mut Shared) {
    let options = &mut shared.options;
    options.buffer.levels = 1;
    options.front.pm_memtable_bytes = Some(options.pm_memtable_bytes());
}

/// Tables are merged into one, which is the memtable in the pool, and then leave.
fn set_growth(shared: &mut Shared) {
    let options = &mut shared.options;
    options.buffer.levels = 2;
    let bytes = Some(options.pm_memtable_bytes());
    (
        options.front.pm_memtable_bytes,
        options.buffer.table_bytes_max,
    ) = (bytes, bytes);
}

fn open(
    shared: &Arc<Shared>,
    folder: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Stages, Opened)> {
    let turns = (FlushTo::PoolInTurns, Drains::Early);
    buffered::open_over_files(shared, folder, turns, links_lost, progress)
}

fn open_hierarchical(
    shared: &Arc<Shared>,
    folder: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Stages, Opened)> {
    let grown = (FlushTo::Pool, Drains::Grown);
    buffered::open_over_files(shared, folder, grown, links_lost, progress)
}

fn open_without_files(
    shared: &Arc<Shared>,
    folder: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Stages, Opened)> {
    let turns = (FlushTo::PoolInTurns, Drains::Early);
    buffered::open(
        shared,
        folder,
        turns,
        links_lost,
        progress,
        |_, progress| {
            let rebuilding = &mut |done, total| progress("rebuilding the repository", done, total);
            let bottom = repository::recover::recover(shared, links_lost, rebuilding)?;
            Ok(Box::new(bottom))
        },
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use terrace_media::{Backing, Machine, Medium};

    use super::*;
    use crate::designs::owners::OWNERS;
    use crate::parts::batch::Batch;
    use crate::stages::{Front, SpareSize, Written, fixture};
    use crate::types::{Durability, EntryKind};

    fn write(front: &dyn Front, durability: Durability) {
        let mut batch = Batch::default();
        for key in [b"one", b"two"] {
            batch.push(EntryKind::Put, 0, key, b"value");
        }
        match front.write(&mut batch, durability, 0).unwrap() {
            Written::Pending(pending) => front.publish(pending, durability).unwrap(),
            _ => panic!("there is room"),
        }
    }

    /// Copies of `Volatile` entries that a close gives up may be in the pool. Their numbers are
    /// recorded, so that no list takes the copies for its own. Others are found again.
    #[test]
    fn a_close_records_the_numbers_that_it_gives_up() {
        for volatile in [false, true] {
            let machine = Machine::new(1, Medium::Dax);
            let dir = PathBuf::from("db");
            machine.fs().create_dir_all(&dir).unwrap();
            let mut shared = fixture::shared_in(Backing::Simulated(machine.clone()), OWNERS);
            (RECIPE.fix)(Arc::get_mut(&mut shared).unwrap());
            let fs = machine.fs();
            let (stages, _) = open(&shared, Folder { fs, dir }, false, &mut |_, _, _| {}).unwrap();
            let front = &*stages.front;
            write(front, Durability::Buffered);
            if volatile {
                write(front, Durability::Volatile);
            }
            front
                .spares()
                .unwrap()
                .prepare(None, SpareSize::Usual)
                .unwrap();
            front.rotate(None).unwrap();
            // A list has a node of each entry, whatever its durability.
            write(front, Durability::Volatile);
            front.close().unwrap();
            let last = shared.manifest.with_state(|state| state.last_seq);
            let expected = if volatile { 6 } else { 0 };
            assert_eq!(last, expected, "volatile entries: {volatile}");
        }
    }
}
