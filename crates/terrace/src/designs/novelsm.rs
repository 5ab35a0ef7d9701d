//! NoveLSM: Kannan et al., "Redesigning LSMs for Nonvolatile Memory with NoveLSM", USENIX ATC 2018.
//!
//! Memtables take turns: one in DRAM with its log, then one in the pool that is its own log, so
//! that writers go on while the one in DRAM is flushed (4.3, the flat mode). Both become tables of
//! a buffer of one level, which leave it in the order of their age: to levels of SSTables, or to
//! the repository (NoSST, 5.3). Where this differs from the paper, docs/designs.md says how and
//! why.

use std::sync::Arc;

use super::{Opened, RebuildProgress, Recipe, buffered};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::{leveled, repository};
use crate::stages::buffer::elastic::{self, Drains};
use crate::stages::front::wal_memtable::{self, FlushTo};
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

/// Tables are never merged in the buffer.
fn set_levels(shared: &mut Shared) {
    shared.options.buffer.levels = 1;
}

fn open(
    shared: &Arc<Shared>,
    folder: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Stages, Opened)> {
    let turns = (FlushTo::PoolInTurns, Drains::Early);
    buffered::open(shared, folder, turns, links_lost, progress, |folder, _| {
        let front = wal_memtable::shape(shared);
        let bottom = leveled::recover::recover(shared, folder, front, None)?;
        Ok(Box::new(bottom))
    })
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
