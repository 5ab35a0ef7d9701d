//! Background jobs: one scheduler, steps of bounded length, priorities flush > merge > drain >
//! reclaim while space is not short (choose.rs).
//!
//! The threads are in workers.rs, the choice of the next job in picker.rs. With `Workers::Manual`
//! there are no threads: a caller picks the job and runs one step of it, so a test can try any
//! interleaving from a seed.
//!
//! A finished job is completed here and nowhere else: its edit becomes durable, then its stage
//! applies it, then a new view shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::canary::failpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Count, Since, event};
use crate::metrics::RetryMetrics;
use crate::options::Workers;
use crate::parts::manifest::{Change, ManifestError};
use crate::stages::{Completion, Job, JobKind, Step};

use super::Engine;
use super::admission::{Efforts, RELEASE};
use super::own_jobs::{Finish, MakeSpare};
use super::queue::{Parked, State, Waits};
use super::throttle::Headroom;
use super::workers::{Lane, ThreadPool};

/// The scheduler of one database.
pub(crate) struct Jobs {
    workers: Workers,
    pub(super) thread_pool: ThreadPool,
    pub(super) state: Mutex<State>,
    /// Workers wait on it. Notified when a job may begin, and when the database stops.
    pub(super) work: Condvar,
    /// Callers wait on it. Notified when a job has ended, when there is another memtable, and when
    /// the database stops.
    changed: Condvar,
    /// The number of running jobs other than flushes.
    busy: AtomicUsize,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Jobs {
    pub(super) fn new(workers: Workers, thread_pool: ThreadPool) -> Jobs {
        Jobs {
            workers,
            thread_pool,
            state: Mutex::default(),
            work: Condvar::new(),
            changed: Condvar::new(),
            busy: AtomicUsize::new(0),
            threads: Mutex::default(),
        }
    }

    /// Returns the progress of background work in runs of jobs: a run that freed space counts
    /// `RELEASE` times.
    pub(super) fn turnover(&self) -> u64 {
        self.state.lock().turnover
    }

    /// Returns how many edits jobs have completed, except flushes.
    pub(super) fn edits(&self) -> u64 {
        self.state.lock().edits
    }

    /// Returns the attempts of jobs on a full disk with `room` free bytes, and the last refusal.
    pub(super) fn efforts(&self, room: Option<u64>) -> (Efforts, Option<Error>) {
        let state = self.state.lock();
        let efforts = Efforts {
            tries: state.refusals + state.compactions,
            drains: state.drains,
            room: room.unwrap_or(0),
        };
        (efforts, state.last_refusal.clone())
    }

    /// Returns the metrics of jobs that a disk has refused.
    pub(super) fn retries(&self) -> RetryMetrics {
        let state = self.state.lock();
        let waiting = state.queue.iter().filter(|p| p.waits.room().is_some());
        RetryMetrics {
            count: state.refusals,
            waiting_count: waiting.count() as u64,
            last: state.last_refusal.as_ref().map(Error::to_string),
        }
    }

    /// Returns which workers run jobs.
    pub(crate) fn workers(&self) -> Workers {
        self.workers
    }

    /// Returns whether any job other than a flush runs.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Counts one caller more, or one less, that waits for an empty buffer.
    pub(super) fn want_everything(&self, more: bool) {
        let mut state = self.state.lock();
        state.everything = match more {
            true => state.everything + 1,
            false => state.everything - 1,
        };
    }

    /// Counts one caller more, or one less, that waits for the current contents of the buffer.
    /// Drains and merges take turns then. While writers run there is always another merge, so
    /// drains must not wait for all merges; and without any merge, there are so many tables that
    /// drains are slow to find what hides an entry.
    pub(super) fn want_drained(&self, more: bool) {
        let mut state = self.state.lock();
        state.drained = match more {
            true => state.drained + 1,
            false => state.drained - 1,
        };
    }

    /// Lets every waiting thread look again: a worker for a job, a caller for what it needs.
    pub(crate) fn wake_all(&self) {
        let _state = self.state.lock();
        self.notify_all();
    }

    /// Lets workers look for a job.
    pub(crate) fn wake_workers(&self) {
        let _state = self.state.lock();
        self.work.notify_all();
    }

    /// As `wake_all`, for a caller that holds the state.
    pub(super) fn notify_all(&self) {
        self.work.notify_all();
        self.changed.notify_all();
    }

    /// Runs `f`, which must not wait, while no job can begin.
    pub(super) fn hold_off<T>(&self, f: impl FnOnce() -> T) -> T {
        failpoint!(IngestUnheld => return f());
        // LOCK: taken before those of views and of stages, in the same order as when jobs begin.
        let _nobody = self.state.lock();
        f()
    }

    /// Waits until something changes, for `timeout` at most.
    pub(crate) fn wait_changed(&self, timeout: Duration) {
        let mut state = self.state.lock();
        if !state.stopping {
            self.changed.wait_for(&mut state, timeout);
        }
    }
}

/// The outcome of one step of a job.
enum Advance {
    /// The job has more to do.
    More(Parked),
    /// The job has more to do, and parts of it may run on other threads.
    Split(Parked),
    /// The job waits for something.
    Waits(Parked),
    /// The job has ended.
    Ended,
}

/// One run of a job, as the scheduler's state counts it.
struct Run {
    lane: Lane,
    /// Whether the job may yet find space on a disk.
    untried: bool,
    /// Whether the job may free space in the pool.
    may_free: bool,
}

impl Run {
    fn of(parked: &Parked, lane: Lane) -> Run {
        Run {
            lane,
            untried: !parked.has_tried(),
            may_free: parked.may_free(),
        }
    }
}

impl Engine {
    /// Runs a job until it ends, waits for space, or the database stops.
    pub(super) fn run(self: &Arc<Self>, job: Parked, lane: Lane) {
        let counts = usize::from(lane.is_heavy());
        self.jobs.busy.fetch_add(counts, Ordering::Relaxed);
        self.run_steps(job, lane);
        self.jobs.busy.fetch_sub(counts, Ordering::Relaxed);
    }

    fn run_steps(self: &Arc<Self>, mut parked: Parked, lane: Lane) {
        let run = Run::of(&parked, lane);
        let mut full_at = None;
        let result = loop {
            parked = match self.advance(parked) {
                Ok(Advance::More(next)) => {
                    full_at = None;
                    if self.jobs.state.lock().stopping {
                        break Ok(Some(next));
                    }
                    if let Some(until) = self.rate_limited_until(&*next.job) {
                        let waits = Waits::RateLimiter(until);
                        break Ok(Some(Parked { waits, ..next }));
                    }
                    let turns = matches!(lane, Lane::Rest | Lane::Drains);
                    if turns && self.should_give_way(next.job.kind()) {
                        break Ok(Some(next));
                    }
                    if lane == Lane::Flushes
                        && let Err(e) = self.make_due_spare()
                    {
                        break Err(e);
                    }
                    next
                }
                Ok(Advance::Split(next)) => next,
                // A reader may have released space since the step looked for it. So the job waits
                // only after two steps in a row found none at the same level.
                Ok(Advance::Waits(next)) => match next.waits {
                    Waits::Pool(level) if full_at != Some(level) => {
                        full_at = Some(level);
                        next
                    }
                    _ => break Ok(Some(next)),
                },
                Ok(Advance::Ended) => break Ok(None),
                Err(e) => break Err(e),
            };
        };
        let _ = self.end_run(run, result);
    }

    /// Takes one step of a job and acts on its outcome. All runs of jobs go through here, except
    /// for [`run_apart`](Self::run_apart).
    fn advance(&self, parked: Parked) -> Result<Advance> {
        let vain = self.is_in_vain(&parked);
        let Parked {
            mut job,
            refused,
            begun,
            ..
        } = parked;
        let kind = job.kind();
        let step = match vain {
            Some(why) => Step::Retry(why),
            None => self.step_job(&mut job)?,
        };
        let parked = |job, waits| Parked::new(job, waits, refused, begun);
        Ok(match step {
            Step::More => Advance::More(parked(job, Waits::Nothing)),
            Step::Split(parts) => {
                self.add_parts(parts);
                Advance::Split(parked(job, Waits::Nothing))
            }
            Step::Wait => Advance::Waits(parked(job, Waits::Pool(self.pool_level()))),
            Step::Retry(why) => {
                let waits = self.wait_for_room(kind, why, refused);
                Advance::Waits(parked(job, waits))
            }
            Step::Done(completion) => match self.complete(job, completion, refused, begun)? {
                Some(parked) => Advance::Waits(parked),
                None => Advance::Ended,
            },
        })
    }

    /// Runs a job outside the queue, of a stage that no reader sees yet. No other job can free
    /// space for it.
    pub(super) fn run_apart(
        &self,
        mut job: Box<dyn Job>,
        moved: &mut dyn FnMut(),
    ) -> Result<Completion> {
        // BOUND: each step moves entries, or ends.
        loop {
            match job.step()? {
                Step::More => moved(),
                Step::Split(parts) => self.add_parts(parts),
                Step::Wait => return Err(self.full_error()),
                Step::Retry(why) => return Err(why),
                Step::Done(completion) => return Ok(completion),
            }
        }
    }

    /// Lets other workers take the parts of a job.
    pub(super) fn add_parts(&self, parts: Vec<Box<dyn Job>>) {
        let mut state = self.jobs.state.lock();
        state.parts.extend(parts);
        self.jobs.work.notify_all();
    }

    /// Ends a run and parks what is left of the job. An error of the job ends all writing.
    fn end_run(&self, run: Run, result: Result<Option<Parked>>) -> Result<()> {
        let (parked, failed) = match result {
            Ok(parked) => (parked, None),
            Err(e) => (None, Some(e)),
        };
        let mut state = self.jobs.state.lock();
        state.running -= 1;
        state.heavy -= usize::from(run.lane.is_heavy());
        state.untried -= usize::from(run.untried);
        let ended = parked.as_ref().is_none_or(Parked::found_no_space);
        state.turnover += u64::from(ended && run.may_free);
        let waits = parked.as_ref().is_some_and(Parked::waits_for_space);
        state.queue.extend(parked);
        if waits {
            // Range deletes that are not synced yet may cover the entries that it has to write, or
            // those that take the space. The job is in the queue first: logs are synced only if a
            // job waits there.
            self.shared.ranges.look_again();
        }
        self.jobs.notify_all();
        drop(state);
        match failed {
            Some(e) => {
                self.fail(&e);
                Err(e)
            }
            None => Ok(()),
        }
    }

    fn step_job(&self, job: &mut Box<dyn Job>) -> Result<Step> {
        let started = Instant::now();
        let step = job.step();
        self.shared
            .counters
            .job_time(job.counted_as(), started.elapsed());
        step
    }

    /// Completes a job: makes its result durable first, then visible. Returns the job to park if
    /// the manifest has no room for the edit now; nothing has happened then. Otherwise everything
    /// that the job holds is free when this returns, before any waiter learns that it has ended.
    fn complete(
        &self,
        job: Box<dyn Job>,
        mut completion: Completion,
        refused: u32,
        begun: Since,
    ) -> Result<Option<Parked>> {
        let (kind, counted_as) = (job.kind(), job.counted_as());
        let is_counted = job.is_counted();
        let edits = !completion.edit.is_empty();
        if edits {
            let own = completion.edit.changes.len();
            // Entries removed as expired must stay expired for all later readers.
            completion.edit.changes.extend(self.shared.time_told());
            let totals = Change::Totals(self.shared.totals());
            completion.edit.changes.push(totals);
            // PERSIST: the edit before anything that it frees may be used again. The stages' apply
            // and the view below release it.
            match self.shared.manifest.commit(&completion.edit) {
                Ok(()) => {}
                Err(e @ (ManifestError::Draft(_) | ManifestError::Alloc(_))) => {
                    let why = Error::from(e);
                    if why.kind() != ErrorKind::Full {
                        return Err(why);
                    }
                    completion.edit.changes.truncate(own);
                    let waits = self.wait_for_room(kind, why, refused);
                    let job = Box::new(Finish::begin(job, completion));
                    return Ok(Some(Parked::new(job, waits, refused, begun)));
                }
                Err(e) => return Err(e.into()),
            }
        }
        let retired: Vec<u64> = completion.edit.retired_logs().collect();
        let frees = completion.edit.changes.iter().any(Change::frees);
        (completion.apply)();
        self.views
            .install(|| self.stages.parts(&self.shared), completion.garbage);
        self.stages.front.logs_retired(&retired);
        // Before waiters learn of free space: a job removes the files that it replaced here.
        drop(job);
        if edits {
            self.shared.keep_reserve();
        }
        if frees {
            let mut state = self.jobs.state.lock();
            if kind != JobKind::Compact {
                state.turnover += RELEASE;
            }
            state.look_for_room();
        }
        if edits {
            self.jobs.state.lock().edited(kind);
        }
        if is_counted {
            let counters = &self.shared.counters;
            counters.job_done(counted_as, completion.entries);
        }
        // Jobs that make a spare or sync range deletes, and parts of jobs, have nothing to report.
        if edits || completion.entries > 0 {
            let (moved, edit) = (Count(completion.entries, "entry"), &completion.edit);
            event!(
                debug,
                "terrace::job",
                self.shared.db,
                "a {} job moved {moved} in {begun}{edit}",
                counted_as.name()
            );
        }
        self.headroom();
        Ok(None)
    }

    /// Returns whether the front lacks a spare and may have one.
    pub(super) fn spare_is_due(&self, state: &State, headroom: &Headroom) -> bool {
        let Some(spares) = self.stages.front.spares() else {
            return false;
        };
        // One that waits for space on a disk is enough.
        spares.are_due()
            && !self.is_larger_needed()
            && self.spare_lacks(headroom, spares.bytes(None)).is_none()
            && !state.queue.iter().any(|p| p.job.makes_spare())
    }

    /// Makes a spare that is due, between two steps of a flush: a flush to files takes longer than
    /// writers need to fill the next memtable.
    fn make_due_spare(self: &Arc<Self>) -> Result<()> {
        let headroom = self.headroom();
        if !self.spare_is_due(&self.jobs.state.lock(), &headroom) {
            return Ok(());
        }
        self.run_inline(Box::new(MakeSpare::begin(self)))?;
        self.jobs.wake_all();
        Ok(())
    }

    /// Takes the most wanted job after flushes, for recovery, which runs it inline.
    pub(super) fn take_inline(self: &Arc<Self>) -> Result<Option<Box<dyn Job>>> {
        let taken = self.take(&mut self.jobs.state.lock(), Lane::Rest)?;
        Ok(taken.map(|parked| parked.job))
    }

    /// Runs a job to its end, or until it waits.
    pub(super) fn run_inline(&self, job: Box<dyn Job>) -> Result<()> {
        let mut parked = Parked::ready(job);
        loop {
            parked = match self.advance(parked)? {
                Advance::More(next) | Advance::Split(next) => next,
                Advance::Waits(next) => {
                    self.jobs.state.lock().queue.push(next);
                    return Ok(());
                }
                Advance::Ended => return Ok(()),
            };
        }
    }

    /// Begins every job that may run, for callers that pick one.
    fn refill(self: &Arc<Self>, state: &mut State) -> Result<()> {
        for lane in [Lane::Flushes, Lane::Rest] {
            // BOUND: each turn begins a job, and a stage has a finite number.
            loop {
                // Jobs that wait for space would be found again and again. One that makes a spare
                // stays, because it keeps another from being begun.
                let (spares, mut parked) = std::mem::take(&mut state.queue)
                    .into_iter()
                    .partition(|p| p.job.makes_spare());
                state.queue = spares;
                let heavy = state.heavy;
                state.heavy += parked.iter().filter(|p| p.has_memory()).count();
                let found = self.take(state, lane);
                state.heavy = heavy;
                state.queue.append(&mut parked);
                match found? {
                    Some(parked) => {
                        let spare = parked.job.kind() == JobKind::Flush;
                        state.queue.push(Parked {
                            waits: Waits::Nothing,
                            ..parked
                        });
                        // A spare is wanted until it is made: begin it once.
                        if spare {
                            break;
                        }
                    }
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Begins every job that may run, if `when` holds. A failure to begin one stops the store, as
    /// it does in a worker: an edit may have failed.
    fn refilled(
        self: &Arc<Self>,
        when: impl FnOnce(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>> {
        let mut state = self.jobs.state.lock();
        if when(&state)
            && let Err(e) = self.refill(&mut state)
        {
            drop(state);
            self.fail(&e);
            return Err(e);
        }
        Ok(state)
    }

    /// Returns whether no job runs and none can. If none runs, begins every job that may run, since
    /// a worker that has ended one, or sleeps, may have yet to look. So a caller that waits until
    /// no job runs waits for a fixed set of jobs.
    pub(super) fn rests(self: &Arc<Self>) -> Result<bool> {
        let works =
            |state: &State| state.running > 0 || state.is_paced() || !self.ready(state).is_empty();
        let state = self.refilled(|state| !works(state))?;
        let rests = !works(&state);
        if !rests {
            self.jobs.work.notify_all();
        }
        Ok(rests)
    }

    /// Returns how many jobs could run a step now. For `Workers::Manual`.
    pub(crate) fn step_count(self: &Arc<Self>) -> Result<usize> {
        let state = self.refilled(State::has_no_flush)?;
        Ok(self.ready(&state).len())
    }

    /// Runs one step of the `pick`-th of the jobs that could run. Returns false if there is none.
    pub(crate) fn step(self: &Arc<Self>, pick: usize) -> Result<bool> {
        let _call = self.enter()?;
        self.check_writable()?;
        let (parked, lane) = {
            let mut state = self.refilled(State::has_no_flush)?;
            let ready = self.ready(&state);
            if ready.is_empty() {
                return Ok(false);
            }
            state.running += 1;
            let parked = state.queue.remove(ready[pick % ready.len()]);
            let lane = Lane::of(parked.job.kind());
            state.heavy += usize::from(lane.is_heavy());
            state.untried += usize::from(!parked.has_tried());
            (parked, lane)
        };
        let run = Run::of(&parked, lane);
        let result = self.advance(parked).map(|advance| match advance {
            Advance::More(next) | Advance::Split(next) | Advance::Waits(next) => Some(next),
            Advance::Ended => None,
        });
        self.end_run(run, result).map(|()| true)
    }
}
