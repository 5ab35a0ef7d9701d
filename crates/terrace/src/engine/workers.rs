//! Workers: the threads that run jobs, and which of them each takes.
//!
//! One thread flushes and makes spare memtables and nothing else, so that no merge ever stands
//! between a writer and room. The others merge, drain and reclaim. Where a buffer drains to files, one
//! of several does nothing but compact, and takes what cores the rest leave: writers wait for drains,
//! which make room in the buffer, long before they wait for compactions, and a drain spends
//! much of its time waiting for the device.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::stages::JobKind;

use super::{Engine, Pipeline};

/// How long an idle worker sleeps when nobody wakes it.
const IDLE: Duration = Duration::from_millis(50);
/// How long a writer that wakes may wait for a worker that has its core: as short as Linux allows.
const SLICE: Duration = Duration::from_micros(100);
/// How much the threads that merge, drain and reclaim yield to others.
const MERGE_NICENESS: i32 = 10;
/// How much the thread that only compacts does: as much as Linux allows.
const COMPACTION_NICENESS: i32 = 19;

/// Which jobs a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Flushes,
    Rest,
    /// Of the rest, those of a bottom in files that make nothing but order.
    Compactions,
}

impl Class {
    /// Who takes jobs of this kind, whatever threads there are.
    pub(super) fn of(kind: JobKind) -> Class {
        match kind {
            JobKind::Flush => Class::Flushes,
            JobKind::Merge | JobKind::Drain | JobKind::Reclaim | JobKind::Compact => Class::Rest,
        }
    }

    /// Whether its jobs take memory while they run, and are many.
    pub(super) fn is_heavy(self) -> bool {
        self != Class::Flushes
    }

    /// Lets writers, readers and flushes of this process go before the calling thread where cores are
    /// scarce: nobody waits for a merge, and a writer that loses its core for one waits milliseconds.
    fn yield_to_writers(self) {
        let niceness = match self {
            Class::Flushes => return,
            Class::Rest => MERGE_NICENESS,
            Class::Compactions => COMPACTION_NICENESS,
        };
        // A system that refuses changes nothing but speed.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), niceness);
    }
}

/// The workers of one database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crew {
    /// How many do not flush; `None`: there are no threads.
    others: Option<usize>,
    /// One of them does nothing but compact.
    compacts_apart: bool,
}

impl Crew {
    pub(super) fn new(options: &Options, pipeline: &Pipeline) -> Crew {
        let drains_to_files = pipeline.buffer.is_some() && pipeline.bottom.is_outside_pool();
        Crew::of(options.worker_count(), drains_to_files)
    }

    fn of(others: Option<usize>, drains_to_files: bool) -> Crew {
        Crew {
            others,
            compacts_apart: drains_to_files && others.is_some_and(|others| others > 1),
        }
    }

    fn classes(self) -> impl Iterator<Item = Class> {
        let rest = self
            .others
            .map(|all| all - usize::from(self.compacts_apart));
        let flushes = rest.map(|_| Class::Flushes);
        flushes
            .into_iter()
            .chain(std::iter::repeat_n(Class::Rest, rest.unwrap_or(0)))
            .chain(self.compacts_apart.then_some(Class::Compactions))
    }
}

impl Engine {
    /// Whether a thread does nothing but compact.
    pub(super) fn compacts_apart(&self) -> bool {
        self.jobs.crew.compacts_apart
    }

    /// Starts the worker threads.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let mut threads = self.jobs.threads.lock();
        for (number, class) in self.jobs.crew.classes().enumerate() {
            let engine = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name(format!("terrace-{number}"))
                .spawn(move || {
                    // What is refused here changes nothing but latency.
                    terrace_media::ask_for_slices(SLICE);
                    class.yield_to_writers();
                    engine.work(class);
                })
                .map_err(|e| {
                    Error::new(ErrorKind::Io, format!("a thread cannot be started: {e}")).because(e)
                })?;
            threads.push(thread);
        }
        Ok(())
    }

    /// Stops the workers after the step that each is in, and waits for the calls of others that may work in their
    /// place. Jobs that are not done stay as the pool has them, and go on when the database is opened again.
    pub(crate) fn stop(&self) {
        {
            let mut state = self.jobs.state.lock();
            state.stopping = true;
            self.jobs.notify_all();
        }
        let threads = std::mem::take(&mut *self.jobs.threads.lock());
        let me = std::thread::current().id();
        for thread in threads {
            // A worker may drop the last handle itself; it ends on its own then.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
        self.wait_for_calls();
        let mut state = self.jobs.state.lock();
        state.queue.clear();
        state.parts.clear();
    }

    fn work(self: &Arc<Self>, class: Class) {
        loop {
            let mut state = self.jobs.state.lock();
            if state.stopping {
                return;
            }
            let found = if self.has_failed() {
                Ok(None)
            } else {
                self.take(&mut state, class)
            };
            match found {
                Ok(Some(job)) => {
                    state.running += 1;
                    state.untried += usize::from(!job.has_tried());
                    state.heavy += usize::from(class.is_heavy());
                    drop(state);
                    self.run(job, class);
                }
                Ok(None) => {
                    if state.rest.begins(self.ground.sequencer.last_taken()) {
                        drop(state);
                        self.pipeline.front.rest();
                        continue;
                    }
                    let idle = state.next_turn().map_or(IDLE, |next| next.min(IDLE));
                    self.jobs.work.wait_for(&mut state, idle);
                }
                Err(e) => {
                    drop(state);
                    self.fail(&e);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is always a thread that flushes and one for drains; only of several does one compact alone.
    #[test]
    fn drains_always_have_a_thread() {
        let all = |others, to_files| {
            Crew::of(Some(others), to_files)
                .classes()
                .collect::<Vec<_>>()
        };
        use Class::{Compactions, Flushes, Rest};
        assert_eq!(all(1, false), [Flushes, Rest]);
        assert_eq!(all(1, true), [Flushes, Rest]);
        assert_eq!(all(2, false), [Flushes, Rest, Rest]);
        assert_eq!(all(2, true), [Flushes, Rest, Compactions]);
        assert_eq!(all(3, true), [Flushes, Rest, Rest, Compactions]);
        assert_eq!(Crew::of(None, true).classes().count(), 0, "no threads");
    }
}
