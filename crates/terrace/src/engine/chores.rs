//! Chores: the jobs of the engine itself.

use std::sync::Arc;

use crate::error::Result;
use crate::stages::{Completion, Job, JobKind, Spare, Step};

use super::Engine;

/// Makes a spare memtable; a job so that it runs where flushes do.
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

    fn step(&mut self) -> Result<Step> {
        Ok(match self.0.prepare_spare(None)? {
            // A full pool is no failure: the writer that needs the spare waits or is told.
            Spare::Ready | Spare::PoolFull => Step::Done(Completion::nothing()),
            Spare::DiskFull(why) => Step::Retry(why),
        })
    }

    fn makes_spare(&self) -> bool {
        true
    }
}

/// A job whose work is done and whose edit found no room.
pub(super) struct Finish {
    kind: JobKind,
    completion: Option<Completion>,
}

impl Finish {
    pub(super) fn begin(kind: JobKind, completion: Completion) -> Finish {
        Finish {
            kind,
            completion: Some(completion),
        }
    }
}

impl Job for Finish {
    fn kind(&self) -> JobKind {
        self.kind
    }

    fn step(&mut self) -> Result<Step> {
        let completion = self.completion.take();
        Ok(Step::Done(completion.unwrap_or_else(Completion::nothing)))
    }
}
