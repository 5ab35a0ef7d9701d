//! Workers: the threads that run jobs, and the kinds of jobs of each.
//!
//! One thread flushes and makes spare memtables and nothing else, so that a merge never keeps a
//! writer from a free memtable. The others merge, drain and reclaim. If the options ask for threads
//! that only merge, the others merge when they find nothing else. If a buffer drains to files, one
//! of several only compacts, and takes the cores that the rest leave: writers wait for drains,
//! which free space in the buffer, long before they wait for compactions, and a drain spends much
//! of its time waiting for the device.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::stages::JobKind;

use super::{Engine, Stages};

/// How long an idle worker sleeps if nothing wakes it.
const IDLE: Duration = Duration::from_millis(50);
/// How long a writer that wakes may wait for a worker on its core: as short as Linux allows.
const SLICE: Duration = Duration::from_micros(100);
/// The niceness of the threads that merge, drain and reclaim.
const MERGE_NICENESS: i32 = 10;
/// The niceness of the thread that only compacts: as high as Linux allows.
const COMPACTION_NICENESS: i32 = 19;

/// The jobs that a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Flushes,
    /// All jobs but flushes.
    Rest,
    /// Merges in the buffer.
    Merges,
    /// The same as `Rest`, merges last, since other threads only merge.
    Drains,
    /// Jobs that only reorder a bottom in files.
    Compactions,
}

impl Lane {
    /// Returns which lane takes jobs of this kind, whatever threads there are.
    pub(super) fn of(kind: JobKind) -> Lane {
        match kind {
            JobKind::Flush => Lane::Flushes,
            JobKind::Merge | JobKind::Drain | JobKind::Reclaim | JobKind::Compact => Lane::Rest,
        }
    }

    /// Returns whether its jobs take memory while they run, and are many.
    pub(super) fn is_heavy(self) -> bool {
        self != Lane::Flushes
    }

    /// Lets writers, readers and flushes of this process run before the calling thread if cores are
    /// scarce: no thread waits for a merge, and a writer that loses its core to one waits
    /// milliseconds.
    fn yield_to_writers(self) {
        let niceness = match self {
            Lane::Flushes => return,
            Lane::Rest | Lane::Merges | Lane::Drains => MERGE_NICENESS,
            Lane::Compactions => COMPACTION_NICENESS,
        };
        // A refusal by the system affects only speed.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), niceness);
    }
}

/// The workers of one database.
#[derive(Debug, Clone, Copy)]
pub(super) struct ThreadPool {
    /// The number of threads that neither flush nor only merge; `None` without threads.
    others: Option<usize>,
    /// The number of threads that only merge.
    merging: usize,
    /// Whether one of them only compacts.
    compacts_apart: bool,
}

impl ThreadPool {
    pub(super) fn new(options: &Options, stages: &Stages) -> ThreadPool {
        let has_buffer = stages.buffer.is_some();
        let merging = usize::from(has_buffer) * options.merge_thread_count();
        let drains_to_files = has_buffer && stages.bottom.is_outside_pool();
        ThreadPool::of(options.worker_count(), merging, drains_to_files)
    }

    fn of(others: Option<usize>, merging: usize, drains_to_files: bool) -> ThreadPool {
        ThreadPool {
            others,
            merging,
            compacts_apart: drains_to_files && others.is_some_and(|others| others > 1),
        }
    }

    fn lanes(self) -> impl Iterator<Item = Lane> {
        let rest = self
            .others
            .map(|all| all - usize::from(self.compacts_apart));
        let flushes = rest.map(|_| Lane::Flushes);
        let rest_lane = match self.merging {
            0 => Lane::Rest,
            _ => Lane::Drains,
        };
        flushes
            .into_iter()
            .chain(std::iter::repeat_n(rest_lane, rest.unwrap_or(0)))
            .chain(std::iter::repeat_n(Lane::Merges, self.merging))
            .chain(self.compacts_apart.then_some(Lane::Compactions))
    }
}

impl Engine {
    /// Returns whether a thread only compacts.
    pub(super) fn compacts_apart(&self) -> bool {
        self.jobs.thread_pool.compacts_apart
    }

    /// Starts the worker threads.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let mut threads = self.jobs.threads.lock();
        for (number, lane) in self.jobs.thread_pool.lanes().enumerate() {
            let engine = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name(format!("terrace-{number}"))
                .spawn(move || {
                    // A refusal here affects only latency.
                    terrace_media::ask_for_slices(SLICE);
                    lane.yield_to_writers();
                    engine.work(lane);
                })
                .map_err(|e| {
                    Error::new(ErrorKind::Io, format!("cannot start a thread: {e}")).because(e)
                })?;
            threads.push(thread);
        }
        self.read_workers.as_ref().map_or(Ok(()), |it| it.start())
    }

    /// Stops the workers after their current steps, and waits for calls of other threads that may
    /// do their work. Unfinished jobs stay as the pool has them, and resume when the database is
    /// opened again.
    pub(crate) fn stop(&self) {
        {
            let mut state = self.jobs.state.lock();
            state.stopping = true;
            self.jobs.notify_all();
        }
        let threads = std::mem::take(&mut *self.jobs.threads.lock());
        let me = std::thread::current().id();
        for thread in threads {
            // A worker may drop the last handle itself; it ends without a join then.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
        if let Some(read_workers) = &self.read_workers {
            read_workers.stop();
        }
        self.wait_for_calls();
        let mut state = self.jobs.state.lock();
        state.queue.clear();
        state.parts.clear();
    }

    fn work(self: &Arc<Self>, lane: Lane) {
        loop {
            let mut state = self.jobs.state.lock();
            if state.stopping {
                return;
            }
            let found = if self.has_failed() {
                Ok(None)
            } else {
                self.take(&mut state, lane)
            };
            match found {
                Ok(Some(job)) => {
                    state.running += 1;
                    state.untried += usize::from(!job.has_tried());
                    state.heavy += usize::from(lane.is_heavy());
                    drop(state);
                    self.run(job, lane);
                }
                Ok(None) => {
                    if state.rest.begins(self.shared.sequencer.last_taken()) {
                        drop(state);
                        self.stages.front.rest();
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

    /// There is always a thread that flushes and one for drains; only if there are several does one
    /// only compact.
    #[test]
    fn drains_always_have_a_thread() {
        let all = |others, merging, to_files| {
            ThreadPool::of(Some(others), merging, to_files)
                .lanes()
                .collect::<Vec<_>>()
        };
        use Lane::{Compactions, Drains, Flushes, Merges, Rest};
        assert_eq!(all(1, 0, false), [Flushes, Rest]);
        assert_eq!(all(1, 0, true), [Flushes, Rest]);
        assert_eq!(all(2, 0, false), [Flushes, Rest, Rest]);
        assert_eq!(all(2, 0, true), [Flushes, Rest, Compactions]);
        assert_eq!(all(3, 0, true), [Flushes, Rest, Rest, Compactions]);
        assert_eq!(all(1, 2, false), [Flushes, Drains, Merges, Merges]);
        assert_eq!(all(2, 1, true), [Flushes, Drains, Merges, Compactions]);
        let none = ThreadPool::of(None, 0, true);
        assert_eq!(none.lanes().count(), 0, "no threads");
    }
}
