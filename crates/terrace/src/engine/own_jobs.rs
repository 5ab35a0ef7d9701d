//! Own jobs: the jobs of the engine itself.

use std::sync::Arc;

use crate::error::Result;
use crate::events::{Since, event};
use crate::stages::{Completion, Job, JobCounter, JobKind, Spare, SpareSize, Step};

use super::Engine;

/// Makes a spare memtable. It is a job so that it runs in the flush thread.
pub(super) struct MakeSpare(Arc<Engine>);

impl MakeSpare {
    pub(super) fn begin(engine: &Arc<Engine>) -> MakeSpare {
        MakeSpare(Arc::clone(engine))
    }
}

impl Job for MakeSpare {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn counted_as(&self) -> JobCounter {
        JobCounter::Spare
    }

    fn step(&mut self) -> Result<Step> {
        Ok(match self.0.prepare_spare(None, SpareSize::Usual)? {
            // A full pool is no failure: the writer that needs the spare waits or gets an error.
            Spare::Ready | Spare::Underway | Spare::PoolFull => Step::Done(Completion::nothing()),
            Spare::DiskFull(why) => Step::Retry(why),
        })
    }

    fn makes_spare(&self) -> bool {
        true
    }
}

/// Syncs the logs if range deletes in them cover a whole piece of the bottom, or if a disk or the
/// pool is full: the covered data may be removed then, without any other write first.
pub(super) struct SyncRanges(Arc<Engine>);

impl SyncRanges {
    pub(super) fn begin(engine: &Arc<Engine>) -> SyncRanges {
        SyncRanges(Arc::clone(engine))
    }
}

impl Job for SyncRanges {
    fn kind(&self) -> JobKind {
        JobKind::Reclaim
    }

    fn step(&mut self) -> Result<Step> {
        let Engine { shared, stages, .. } = &*self.0;
        let ranges = shared.ranges.set_above(|| None);
        let covers = ranges.is_some_and(|ranges| stages.bottom.is_covered(&ranges));
        let waits = self.0.jobs.state.lock().waits_for_space();
        let is_full = waits || self.0.headroom().pool_is_short();
        if covers || is_full {
            // PERSIST: the range deletes before an edit that forgets what they cover. Reversed, a
            // power loss could lose them, and not bring back what they had hidden.
            let (before, begun) = (shared.ranges.durable(), Since::now());
            shared.ranges.mark_synced(stages.front.sync_logs()?);
            if shared.ranges.durable() > before {
                // Jobs that wait for disk space may hold covered data now: they free it when they
                // try again.
                self.0.look_for_room();
                event!(
                    debug,
                    "terrace::job",
                    shared.db,
                    "logs were synced in {begun} so that their range deletes can free space"
                );
            }
        }
        Ok(Step::Done(Completion::nothing()))
    }
}

/// A finished job whose edit found no room. It keeps the job, and so what the job holds.
pub(super) struct Finish {
    job: Box<dyn Job>,
    completion: Option<Completion>,
}

impl Finish {
    pub(super) fn begin(job: Box<dyn Job>, completion: Completion) -> Finish {
        Finish {
            job,
            completion: Some(completion),
        }
    }
}

impl Job for Finish {
    fn kind(&self) -> JobKind {
        self.job.kind()
    }

    fn counted_as(&self) -> JobCounter {
        self.job.counted_as()
    }

    fn step(&mut self) -> Result<Step> {
        let completion = self.completion.take();
        Ok(Step::Done(completion.unwrap_or_else(Completion::nothing)))
    }
}
