//! Job contract: background work of a stage, and what the engine does when it has ended.
//!
//! A job reports its end as a `Completion`: an edit that becomes durable first, then a change of what the stage shows.
//! Jobs run beside readers and writers, so nothing that they prepare is visible before that.

use std::any::Any;
use std::sync::Arc;

use crate::error::Result;
use crate::metrics::JobKind;
use crate::parts::manifest::Edit;

/// Background work of one stage, in steps of bounded length.
pub(crate) trait Job: Send {
    /// Its kind, for priorities and metrics.
    fn kind(&self) -> JobKind;
    /// Does the next step.
    fn step(&mut self) -> Result<Step>;
    /// Returns whether its next step needs as much room as the one that a disk refused. The engine then waits for more
    /// room; a job that returns false is run again after a while.
    fn needs_as_much(&self) -> bool {
        false
    }
    /// Whether it makes a spare memtable, of which one is enough.
    fn makes_spare(&self) -> bool {
        false
    }
}

/// How a step ended.
pub(crate) enum Step {
    /// There is more to do.
    More,
    /// There is more to do, and these jobs, which the one job has become, may run beside it.
    Split(Vec<Box<dyn Job>>),
    /// Nothing can be done until space comes back; the pool is full.
    Wait,
    /// Nothing can be done for a while: a disk is full, as the error says. The job has undone what
    /// it did and begins again with its next step.
    Retry(crate::error::Error),
    /// The job has done its work; the engine commits the edit, then applies it.
    Done(Completion),
}

/// Something that views of before a change may still read, such as an extent. Its drop gives the space back.
pub(crate) type Garbage = Arc<dyn Any + Send + Sync>;

/// The end of a job, in the order in which the engine carries it out.
pub(crate) struct Completion {
    /// Becomes durable first; may be empty.
    pub(crate) edit: Edit,
    /// Then runs, and a view is built from what it has changed.
    pub(crate) apply: Box<dyn FnOnce() + Send>,
    /// Becomes free when no view older than the change is left.
    pub(crate) garbage: Vec<Garbage>,
    /// How many entries the job moved or copied.
    pub(crate) entries: u64,
}

impl Completion {
    /// The end of a job that changes nothing on media and nothing that readers see.
    pub(crate) fn nothing() -> Completion {
        Completion {
            edit: Edit::default(),
            apply: Box::new(|| {}),
            garbage: Vec::new(),
            entries: 0,
        }
    }
}
