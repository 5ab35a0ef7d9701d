//! FlatLSM (He et al., ACM TOS 2023): tables in the pool that are their own logs, with an index in
//! memory, drain together into two wide levels of table files, with long values apart.
//!
//! The paper's numbers are the defaults of `Options::buffer.tables`: tables of up to 2 GiB, four of
//! which drain, and at most six. Two sizes follow from them in the paper's proportions (section
//! 5.1), unless they are stated: level 1 has 40/12 of what the tables may have, and values from 257
//! bytes on are apart. Where this differs from the paper, docs/designs.md says how and why.

use std::sync::Arc;

use super::{Opened, Recipe};
use crate::engine::Stages;
use crate::error::Result;
use crate::options::LeveledOptions;
use crate::stages::bottom::leveled::{self, Merging};
use crate::stages::buffer::tables::Tables;
use crate::stages::front::wal_memtable::{self, FlushTo};
use crate::stages::{Folder, Shared};

/// The largest table that follows from the size of a pool (section 4.2.1).
const TABLE_BYTES: u64 = 2 << 30;

/// The size of level 1, in parts of all tables (section 5.1: 40 GiB to 6 tables of 2 GiB).
const LEVEL1: (u64, u64) = (40, 12);

/// Values up to 256 bytes stay with their keys (section 4.4).
const APART_FROM: u64 = 257;

/// No stage needs initial bytes on media, or keeps links in the pool.
pub(super) const RECIPE: Recipe = Recipe {
    fix,
    create: |_| Ok(()),
    links_lost: |_| false,
    open: |shared, folder, _, _| open(shared, folder),
};

fn open(shared: &Arc<Shared>, folder: Folder) -> Result<(Stages, Opened)> {
    let shape = wal_memtable::shape(shared);
    let bottom = leveled::recover::recover(shared, &folder, shape, Some(Merging::Whole))?;
    let front = wal_memtable::recover::recover(shared, folder, FlushTo::Tables)?;
    let buffer = Tables::new(shared, Arc::new(front.apart()));
    let stages = Stages {
        front: Box::new(front),
        buffer: Some(Box::new(buffer)),
        bottom: Box::new(bottom),
    };
    Ok((stages, Opened::default()))
}

fn fix(shared: &mut Shared) {
    let in_pool = shared.pool_outlives();
    let options = &mut shared.options;
    let tables = &options.buffer.tables;
    let bytes = match in_pool {
        true => options.pool.size_bytes,
        false => options.pool.size_bytes.min(options.front.log_bytes_max),
    };
    let most = match options.memory_bytes {
        // The plan of the budget has memtables of this size.
        Some(_) => tables
            .table_bytes_max(bytes)
            .min(options.front.memtable_bytes),
        None => tables.table_bytes_max(bytes),
    };
    let table = tables.table_bytes.unwrap_or(TABLE_BYTES).min(most);
    options.front.memtable_bytes = table.max(4096);
    let all = tables.count_max as u64 * options.front.memtable_bytes;
    let levels = &mut options.bottom.leveled;
    (levels.levels, levels.dynamic_sizes, levels.runs_compact) = (2, false, 1);
    let (stated, default) = (levels.level1_bytes, LeveledOptions::default().level1_bytes);
    if stated == default {
        levels.level1_bytes = (all / LEVEL1.1)
            .saturating_mul(LEVEL1.0)
            .max(levels.table_bytes);
    }
    levels.debt_stop_bytes = levels.debt_stop_bytes.max(levels.level1_bytes);
    levels.values_apart_from.get_or_insert(APART_FROM);
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use terrace_media::{Backing, Machine, Medium};

    use super::*;
    use crate::designs::owners::OWNERS;
    use crate::parts::batch::Batch;
    use crate::stages::{
        Completion, Job, Lookup, Probe, Rotated, SpareSize, Step, Urgency, Written, fixture,
    };
    use crate::types::{Durability, EntryKind, key_hash};

    /// Runs a job to its end.
    fn run(shared: &Shared, mut job: Box<dyn Job>) {
        loop {
            match job.step().unwrap() {
                Step::More => {}
                Step::Done(Completion { edit, apply, .. }) => {
                    if !edit.is_empty() {
                        shared.manifest.commit(edit).unwrap();
                    }
                    return apply();
                }
                Step::Split(_) | Step::Wait | Step::Retry(_) => panic!("it needs nothing"),
            }
        }
    }

    /// A read that took its number before its view may find the version of that number gone from a
    /// log that was rewritten meanwhile. It finds the newer one, which tells it to look again.
    #[test]
    fn a_rewritten_log_answers_reads_that_began_before() {
        let machine = Machine::new(1, Medium::Dax);
        let dir = PathBuf::from("db");
        machine.fs().create_dir_all(&dir).unwrap();
        let mut shared = fixture::shared_in(Backing::Simulated(machine.clone()), OWNERS);
        (RECIPE.fix)(Arc::get_mut(&mut shared).unwrap());
        let fs = machine.fs();
        let (stages, _) = open(&shared, Folder { fs, dir }).unwrap();
        let (front, buffer) = (&stages.front, stages.buffer.as_ref().unwrap());
        for turn in 1..=40 {
            let mut batch = Batch::default();
            batch.push(EntryKind::Put, 0, b"key", &[turn; 100]);
            match front.write(&mut batch, Durability::Buffered, 0).unwrap() {
                Written::Pending(pending) => front.publish(pending, Durability::Buffered).unwrap(),
                _ => panic!("there is room"),
            }
        }
        let spares = front.spares().unwrap();
        spares.prepare(None, SpareSize::Usual).unwrap();
        assert!(matches!(front.rotate(None).unwrap(), Rotated::Sealed(_)));
        let sealed = front.next_sealed().unwrap().unwrap();
        run(&shared, buffer.flush_job(sealed).unwrap());
        let sought = |at, latest| {
            let probe = Probe {
                keyspace: 0,
                key: b"key",
                hash: key_hash(0, b"key"),
                at,
                latest,
            };
            let found = buffer.sources()[0].get(&probe, &mut Default::default());
            match found.unwrap() {
                Some(Lookup::Value { seq, .. }) => seq,
                _ => 0,
            }
        };
        assert_eq!((sought(7, true), sought(7, false)), (7, 7));
        let job = buffer.next_job(Urgency::None).unwrap();
        run(&shared, job.expect("a rewrite"));
        assert_eq!((sought(7, true), sought(7, false)), (40, 0));
        assert!(buffer.next_job(Urgency::None).unwrap().is_none());
    }
}
