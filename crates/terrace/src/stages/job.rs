//! Job contract: background work of a stage, and the steps of the engine when it has ended.
//!
//! A job reports its end as a `Completion`: an edit that becomes durable first, then a change of
//! the stage's visible state. Jobs run concurrently with readers and writers, so nothing that they
//! prepare is visible before that.

use std::any::Any;
use std::sync::Arc;

use crate::error::Result;
use crate::metrics::{JobCounter, JobKind};
use crate::parts::manifest::Edit;

/// Background work of one stage, in steps of bounded length.
pub(crate) trait Job: Send {
    /// Returns its kind, for priorities.
    fn kind(&self) -> JobKind;
    /// Returns the kind as which metrics count it.
    fn counted_as(&self) -> JobCounter {
        self.kind().into()
    }
    /// Returns whether metrics count its end. They count a drain once, and not the parts of it that
    /// end before the last one.
    fn is_counted(&self) -> bool {
        true
    }
    /// Does the next step. The one after it may run on another thread, so a step fences what it
    /// has flushed or streamed.
    fn step(&mut self) -> Result<Step>;
    /// Returns whether it waits when jobs have written more than the rate limit allows. Flushes do
    /// not, since writers would wait for them.
    fn keeps_to_rate(&self) -> bool {
        matches!(self.kind(), JobKind::Drain | JobKind::Compact)
    }
    /// Returns whether its next step needs as much space as the one that a disk refused. The engine
    /// then waits for more space; a job that returns false is run again after a while.
    fn needs_as_much(&self) -> bool {
        false
    }
    /// Returns whether it makes a spare memtable, of which one is enough.
    fn makes_spare(&self) -> bool {
        false
    }
}

/// The outcome of a step.
pub(crate) enum Step {
    /// There is more to do.
    More,
    /// There is more to do, and the job has become these jobs, which may run concurrently.
    Split(Vec<Box<dyn Job>>),
    /// Nothing can be done until space is freed; the pool is full.
    Wait,
    /// Nothing can be done for a while: a disk is full, and the error has the details. The job has
    /// undone its work and restarts with its next step.
    Retry(crate::error::Error),
    /// The job has done its work; the engine commits the edit, then applies it.
    Done(Completion),
}

/// An object that views from before a change may still read, such as an extent. Dropping it frees
/// the space.
pub(crate) type Garbage = Arc<dyn Any + Send + Sync>;

/// The end of a job, in the order in which the engine carries it out.
pub(crate) struct Completion {
    /// Becomes durable first; may be empty.
    pub(crate) edit: Edit,
    /// Then runs, and a view is built from the changed state.
    pub(crate) apply: Box<dyn FnOnce() + Send>,
    /// Becomes free when no view older than the change is left.
    pub(crate) garbage: Vec<Garbage>,
    /// The number of entries the job moved or copied.
    pub(crate) entries: u64,
}

impl Completion {
    /// Returns the end of a job that changes nothing on media or for readers.
    pub(crate) fn nothing() -> Completion {
        Completion {
            edit: Edit::default(),
            apply: Box::new(|| {}),
            garbage: Vec::new(),
            entries: 0,
        }
    }
}

/// The flush of a table that is complete and only has to be named.
pub(crate) struct Built(Option<Completion>);

impl Built {
    /// Creates the job that ends with this completion.
    pub(crate) fn new(completion: Completion) -> Built {
        Built(Some(completion))
    }
}

impl Job for Built {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn step(&mut self) -> Result<Step> {
        Ok(self.0.take().map_or(Step::More, Step::Done))
    }
}
