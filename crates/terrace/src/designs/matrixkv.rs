//! MatrixKV (Yao et al., USENIX ATC 2020): level 0 is a matrix container in the pool, which leaves
//! in columns that are merged with level 1.
//!
//! The paper's numbers are the defaults of `Options`: memtables and SSTables of 64 MiB, a factor of
//! 10 between levels. Level 1 is as large as the container (section 3.3), whatever
//! `bottom.leveled.level1_bytes` says, unless flattening is off. Where this differs from the paper,
//! docs/designs.md says how and why.

use std::sync::Arc;

use super::{Opened, Recipe};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::leveled::{self, ColumnBytes, Merging};
use crate::stages::buffer::matrix;
use crate::stages::front::wal_memtable::{self, FlushTo};
use crate::stages::{Folder, Shared};

/// No stage needs initial bytes on media, or keeps links in the pool.
pub(super) const RECIPE: Recipe = Recipe {
    fix,
    create: |_| Ok(()),
    links_lost: |_| false,
    open: |shared, folder, _, _| open(shared, folder),
};

/// Opens the stages; the front comes last, since it allocates space.
fn open(shared: &Arc<Shared>, folder: Folder) -> Result<(Stages, Opened)> {
    let buffer = matrix::recover(shared)?;
    let (front, levels) = (wal_memtable::shape(shared), &shared.options.bottom.leveled);
    // If the pool is memory, the compactor leaves at once, as a run of level 0.
    let merging = shared
        .pool_outlives()
        .then(|| match shared.options.buffer.matrix.columns {
            true => ColumnBytes::of(
                levels.growth,
                levels.table_bytes,
                matrix::container_bytes(shared),
            ),
            false => ColumnBytes::unbounded(),
        })
        .map(Merging::Columns);
    let bottom = leveled::recover::recover(shared, &folder, front, merging)?;
    let front = wal_memtable::recover::recover(shared, folder, FlushTo::Buffer)?;
    let stages = Stages {
        front: Box::new(front),
        buffer: Some(Box::new(buffer)),
        bottom: Box::new(bottom),
    };
    Ok((stages, Opened::default()))
}

/// Sets the options of the levels: columns have a fixed level to be merged with, and level 0 has
/// only what ingests bring, which columns cannot pass.
fn fix(shared: &mut Shared) {
    if !shared.pool_outlives() {
        return;
    }
    let container = matrix::container_bytes(shared);
    let options = &mut shared.options;
    let levels = &mut options.bottom.leveled;
    levels.dynamic_sizes = false;
    levels.runs_compact = 1;
    if options.buffer.matrix.flattened {
        levels.level1_bytes = container;
    }
}

#[cfg(test)]
mod tests {
    use terrace_media::{Machine, Medium};

    use super::super::OWNERS;
    use super::*;
    use crate::parts::batch::Batch;
    use crate::parts::key::Target;
    use crate::stages::bottom::leveled::Leveled;
    use crate::stages::buffer::matrix::Matrix;
    use crate::stages::{Bottom as _, Buffer as _, Completion, Drain, Job, Step, Urgency, fixture};
    use crate::types::{EntryKind, SeqNo};

    /// A buffer over a bottom that merges drains as a whole.
    struct Whole {
        shared: Arc<Shared>,
        matrix: Matrix,
        bottom: Leveled,
        seq: SeqNo,
    }

    impl Whole {
        fn new() -> Whole {
            let mut shared = fixture::shared(OWNERS);
            let options = &mut Arc::get_mut(&mut shared).unwrap().options;
            options.buffer.matrix.columns = false;
            let levels = &mut options.bottom.leveled;
            (levels.table_bytes, levels.level1_bytes) = (4 << 10, 8 << 10);
            (levels.levels, levels.dynamic_sizes) = (3, false);
            levels.subcompactions_max = 4;
            let machine = Machine::new(1, Medium::Mapped);
            let dir = std::path::PathBuf::from("db");
            machine.fs().create_dir_all(&dir).unwrap();
            let fs = machine.fs();
            let folder = Folder { fs, dir };
            let front = wal_memtable::shape(&shared);
            let merging = Some(Merging::Whole);
            Whole {
                matrix: matrix::recover(&shared).unwrap(),
                bottom: leveled::recover::recover(&shared, &folder, front, merging).unwrap(),
                shared,
                seq: 0,
            }
        }

        /// Adds a row with every `step`-th key.
        fn add_row(&mut self, step: usize) {
            let mut batch = Batch::default();
            for n in (0..200u32).step_by(step) {
                batch.push(EntryKind::Put, 0, &n.to_be_bytes(), &[step as u8; 200]);
            }
            self.seq += 1;
            let job = self.matrix.build(&batch, self.seq).unwrap();
            self.run(job);
            self.shared.sequencer.start_after(self.seq);
        }

        fn next_drain(&self) -> Option<Drain> {
            let columns = self.bottom.columns();
            let drain = self.matrix.next_drain(Urgency::Space, u64::MAX, columns);
            drain.unwrap()
        }

        fn next_job(&self) -> Option<Box<dyn Job>> {
            self.bottom.next_job(Urgency::None).unwrap()
        }

        /// Runs a job to its end, and its parts in turns. Returns the number of parts.
        fn run(&self, job: Box<dyn Job>) -> usize {
            let (mut jobs, mut parts) = (vec![job], 1);
            // BOUND: each step moves entries, or ends.
            while !jobs.is_empty() {
                let mut left = Vec::new();
                for mut job in jobs {
                    match job.step().unwrap() {
                        Step::More => left.push(job),
                        Step::Split(others) => {
                            parts += others.len();
                            left.push(job);
                            left.extend(others);
                        }
                        Step::Done(Completion { edit, apply, .. }) => {
                            self.shared.manifest.commit(edit).unwrap();
                            apply();
                        }
                        Step::Wait | Step::Retry(_) => panic!("there is space"),
                    }
                }
                jobs = left;
            }
            parts
        }

        fn drain(&self) -> usize {
            let drain = self.next_drain().expect("a drain is due");
            self.run(self.bottom.drain_job(drain).unwrap())
        }

        /// Checks that each key has its newest version, once.
        fn check(&self) {
            let mut count = 0;
            for source in self.bottom.sources() {
                let mut cursor = source.cursor();
                cursor.seek(&Target::first_of(0, &[])).unwrap();
                while let Some(entry) = cursor.entry().unwrap() {
                    let n = u32::from_be_bytes(entry.key.try_into().unwrap());
                    let newest = (1..=self.seq).rev().find(|seq| n % steps(*seq) == 0);
                    count += usize::from(Some(entry.seq) == newest);
                    cursor.advance().unwrap();
                }
            }
            assert_eq!(count, 200);
            assert_eq!(self.matrix.table_count(), 0);
        }
    }

    /// Returns the distance of the keys of the row with this number.
    fn steps(seq: SeqNo) -> u32 {
        [1, 7][usize::from(seq > 1)]
    }

    /// A drain of everything waits for each job that has a table of the level, while no other one
    /// begins there. It ends, in parts, and into an empty level too.
    #[test]
    fn a_whole_drain_waits_for_busy_tables_and_ends() {
        let mut stages = Whole::new();
        stages.add_row(1);
        assert_eq!(stages.drain(), 4, "into an empty level");
        stages.check();
        // The level is far larger than its target: three compactions may run.
        let mut jobs = [0; 3]
            .map(|_| stages.next_job().expect("a compaction"))
            .into_iter();
        drop(jobs.next_back());
        stages.add_row(7);
        assert!(stages.next_drain().is_none(), "two tables are busy");
        assert!(stages.next_job().is_none(), "no other compaction begins");
        stages.run(jobs.next().unwrap());
        // The thread that has ended one looks for the next before the drain is looked for.
        assert!(stages.next_job().is_none());
        assert!(stages.next_drain().is_none(), "another one is busy");
        stages.run(jobs.next().unwrap());
        assert!(stages.next_job().is_none());
        let drain = stages.next_drain().expect("nothing is busy");
        let job = stages.bottom.drain_job(drain).unwrap();
        assert!(stages.next_job().is_none(), "the drain has all tables");
        assert!(stages.next_drain().is_none());
        assert_eq!(stages.run(job), 4);
        stages.check();
        assert!(stages.next_job().is_some(), "compactions go on");
        // A drain that is dropped frees the tables and loses nothing.
        stages.add_row(7);
        let drain = stages.next_drain().expect("nothing is busy");
        let mut job = stages.bottom.drain_job(drain).unwrap();
        let Step::Split(mut others) = job.step().unwrap() else {
            panic!("a drain in parts")
        };
        assert!(matches!(
            others[1].step().unwrap(),
            Step::More | Step::Done(_)
        ));
        drop((job, others));
        assert!(stages.next_job().is_some());
        assert_eq!(stages.matrix.table_count(), 1);
    }

    /// On a full disk a drain of everything becomes a run of level 0, whatever is busy below.
    #[test]
    fn a_whole_drain_passes_the_level_on_a_full_disk() {
        let mut stages = Whole::new();
        stages.add_row(1);
        stages.drain();
        let _job = stages.next_job().expect("a compaction");
        stages.add_row(7);
        assert!(stages.next_drain().is_none());
        stages.shared.reserve.note(true);
        assert_eq!(stages.drain(), 1);
        assert!(!stages.bottom.is_drained(), "a run of level 0");
        stages.check();
    }

    /// Compactions of the level go on if the drain that waited for it is not looked for again.
    #[test]
    fn a_whole_drain_that_does_not_come_holds_nothing_up() {
        let mut stages = Whole::new();
        stages.add_row(1);
        stages.drain();
        let job = stages.next_job().expect("a compaction");
        stages.add_row(7);
        assert!(stages.next_drain().is_none());
        stages.run(job);
        let looks = (0..1000)
            .take_while(|_| stages.next_job().is_none())
            .count();
        assert!((1..1000).contains(&looks), "{looks}");
    }
}
