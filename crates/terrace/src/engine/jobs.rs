//! Background jobs: one scheduler, steps of bounded length, priorities flush > merge > drain >
//! reclaim.
//!
//! One thread flushes and makes spare memtables and nothing else, so that no merge ever stands
//! between a writer and room. The other threads merge, drain and reclaim. When space is short,
//! draining and reclaiming come before merging. With `Workers::Manual` there is no thread at all:
//! a caller picks the job and runs one step of it, so a test can try any interleaving from a seed.
//!
//! A job that has done its work is completed here and nowhere else: its edit becomes durable, then
//! its stage applies it, then a new view shows it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::options::Workers;
use crate::stages::{Completion, Job, JobKind, Step, Urgency};

use super::Engine;

/// How long an idle worker sleeps when nobody wakes it.
const IDLE: Duration = Duration::from_millis(50);

/// How much the threads that merge, drain and reclaim yield to others.
const MERGE_NICENESS: i32 = 10;

/// The scheduler of one database.
pub(crate) struct Jobs {
    workers: Workers,
    state: Mutex<State>,
    /// Notified when a job ends, when one may begin, and when the database stops.
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    /// Jobs that were begun and that nobody runs at this moment.
    queue: Vec<Parked>,
    running: usize,
    stopping: bool,
    /// How many callers wait for an empty buffer.
    everything: usize,
    /// Counts calls of users that may find room on a disk again.
    turn: u64,
    /// Why a job last had to begin again; cleared when one of its kind has ended.
    disk_full: Option<(JobKind, Error)>,
}

struct Parked {
    job: Box<dyn Job>,
    waits: Waits,
}

/// What a job that was begun waits for.
enum Waits {
    Nothing,
    /// Fewer bytes than this allocated in the pool.
    PoolBelow(u64),
    /// Room on a disk, which nobody announces: a time, or, without threads, another call.
    Room {
        until: Instant,
        turn: u64,
    },
}

/// How long a job for which a disk has no room waits before it tries again.
const RETRY: Duration = Duration::from_millis(100);

/// Which jobs a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Flushes,
    Rest,
}

impl Jobs {
    pub(super) fn new(workers: Workers) -> Jobs {
        Jobs {
            workers,
            state: Mutex::default(),
            changed: Condvar::new(),
            threads: Mutex::default(),
        }
    }

    /// Who runs jobs.
    pub(crate) fn workers(&self) -> Workers {
        self.workers
    }

    /// Whether no job is in a step.
    pub(super) fn nothing_runs(&self) -> bool {
        self.state.lock().running == 0
    }

    /// Counts the callers who wait for an empty buffer: one more, or one less.
    pub(super) fn want_everything(&self, more: bool) {
        let mut state = self.state.lock();
        state.everything = match more {
            true => state.everything + 1,
            false => state.everything - 1,
        };
    }

    /// Lets every waiting thread look again.
    pub(crate) fn wake_all(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Waits until something changes, for `timeout` at most.
    pub(crate) fn wait_changed(&self, timeout: Duration) {
        let mut state = self.state.lock();
        if !state.stopping {
            self.changed.wait_for(&mut state, timeout);
        }
    }
}

/// Lets writers, readers and flushes of this process go before the calling thread where cores are
/// scarce: nobody waits for a merge, and a writer that loses its core for one waits milliseconds.
fn yield_to_writers() {
    // A system that refuses changes nothing but speed.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), MERGE_NICENESS);
}

/// Makes a spare memtable; a job so that it runs where flushes do.
struct MakeSpare(Arc<Engine>);

impl Job for MakeSpare {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn step(&mut self) -> Result<Step> {
        // A full pool is no failure: the writer that needs the spare waits or is told.
        self.0.prepare_spare(None)?;
        Ok(Step::Done(Completion::nothing()))
    }
}

impl Engine {
    /// Starts the worker threads.
    pub(crate) fn start(self: &Arc<Self>) -> Result<()> {
        let others = match self.jobs.workers {
            Workers::Manual => return Ok(()),
            Workers::Threads(n) => n,
            Workers::Auto => {
                let cores = std::thread::available_parallelism().map_or(2, usize::from);
                (cores / 2).max(1)
            }
        };
        let mut threads = self.jobs.threads.lock();
        let classes = std::iter::once(Class::Flushes).chain((0..others).map(|_| Class::Rest));
        for (number, class) in classes.enumerate() {
            let engine = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name(format!("terrace-{number}"))
                .spawn(move || {
                    if class == Class::Rest {
                        yield_to_writers();
                    }
                    engine.work(class);
                })
                .map_err(|e| {
                    Error::new(
                        crate::ErrorKind::Io,
                        format!("a thread cannot be started: {e}"),
                    )
                    .because(e)
                })?;
            threads.push(thread);
        }
        Ok(())
    }

    /// Stops the workers after the step that each is in. Jobs that are not done stay as the pool
    /// has them, and go on when the database is opened again.
    pub(crate) fn stop(&self) {
        {
            let mut state = self.jobs.state.lock();
            state.stopping = true;
            self.jobs.changed.notify_all();
        }
        let threads = std::mem::take(&mut *self.jobs.threads.lock());
        let me = std::thread::current().id();
        for thread in threads {
            // A worker may drop the last handle itself; it ends on its own then.
            if thread.thread().id() != me {
                let _ = thread.join();
            }
        }
        self.jobs.state.lock().queue.clear();
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
                    drop(state);
                    self.run(job);
                }
                Ok(None) => {
                    self.jobs.changed.wait_for(&mut state, IDLE);
                }
                Err(e) => {
                    drop(state);
                    self.fail(&e);
                }
            }
        }
    }

    /// Runs a job until it ends, waits for space, or the database stops.
    fn run(self: &Arc<Self>, mut job: Box<dyn Job>) {
        let mut full_at = None;
        let result = loop {
            match self.step_job(&mut job) {
                Ok(Step::More) => {
                    full_at = None;
                    if self.jobs.state.lock().stopping {
                        break Ok(Waits::Nothing);
                    }
                }
                Ok(Step::Wait) => {
                    // A reader may have let go of space since the step looked for it. So it waits
                    // for less than was in use both before a step that found none and after it.
                    let allocated = self.ground.pool.usage().allocated;
                    if full_at == Some(allocated) {
                        break Ok(Waits::PoolBelow(allocated));
                    }
                    full_at = Some(allocated);
                }
                Ok(Step::Retry(why)) => break Ok(self.wait_for_room(job.kind(), why)),
                Ok(Step::Done(completion)) => {
                    let done = self.complete(job.kind(), completion);
                    // What it holds is free before anybody hears that it has ended.
                    drop(job);
                    self.ended(None);
                    if let Err(e) = done {
                        self.fail(&e);
                    }
                    return;
                }
                Err(e) => break Err(e),
            }
        };
        match result {
            Ok(waits) => self.ended(Some(Parked { job, waits })),
            Err(e) => {
                self.ended(None);
                self.fail(&e);
            }
        }
    }

    fn ended(&self, parked: Option<Parked>) {
        let mut state = self.jobs.state.lock();
        state.running -= 1;
        state.queue.extend(parked);
        self.jobs.changed.notify_all();
    }

    fn step_job(&self, job: &mut Box<dyn Job>) -> Result<Step> {
        let started = Instant::now();
        let step = job.step();
        self.ground
            .counters
            .job_time(job.kind() as usize, started.elapsed());
        step
    }

    /// Makes what a job has done true: durable first, then visible.
    fn complete(&self, kind: JobKind, mut completion: Completion) -> Result<()> {
        if !completion.edit.is_empty() {
            // What was taken out as expired must not have been there for anybody who comes later.
            completion.edit.changes.extend(self.ground.time_told());
            // PERSIST: the edit before anything that it frees may be used again. The stages' apply
            // and the view below are what lets go of it.
            self.ground.manifest.commit(completion.edit)?;
        }
        (completion.apply)();
        self.views
            .install(|| self.pipeline.parts(&self.ground), completion.garbage);
        self.ground
            .counters
            .job_done(kind as usize, completion.entries);
        {
            let mut state = self.jobs.state.lock();
            if state.disk_full.as_ref().is_some_and(|(of, _)| *of == kind) {
                state.disk_full = None;
            }
        }
        self.headroom();
        Ok(())
    }

    /// The most wanted job that may run now.
    fn take(self: &Arc<Self>, state: &mut State, class: Class) -> Result<Option<Box<dyn Job>>> {
        let headroom = self.headroom();
        if class == Class::Flushes {
            let front = &self.pipeline.front;
            if let Some(job) = front.next_job() {
                return Ok(Some(job));
            }
            if front.wants_spare() && headroom.allows(front.spare_bytes(None)) {
                return Ok(Some(Box::new(MakeSpare(Arc::clone(self)))));
            }
            if let Some(at) = self.first_ready(state, |kind| kind == JobKind::Flush) {
                return Ok(Some(state.queue.remove(at).job));
            }
            let held_up = self.pipeline.buffer.is_none() && self.pipeline.bottom.pressure() >= 1.0;
            if held_up {
                return Ok(None);
            }
            return match front.next_sealed()? {
                Some(sealed) => self.pipeline.admit(sealed).map(Some),
                None => Ok(None),
            };
        }
        if let Some(at) = self.first_ready(state, |kind| kind != JobKind::Flush) {
            return Ok(Some(state.queue.remove(at).job));
        }
        let urgency = match state.everything {
            0 => headroom.urgency(),
            _ => Urgency::Everything,
        };
        self.begin(urgency)
    }

    /// The most wanted job of those that merge, drain and reclaim, if space is needed so badly.
    fn begin(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>> {
        let merge = |_| match &self.pipeline.buffer {
            Some(buffer) => buffer.next_job(),
            None => Ok(None),
        };
        let drain = |urgency| {
            let Some(buffer) = &self.pipeline.buffer else {
                return Ok(None);
            };
            if self.pipeline.bottom.pressure() >= 1.0 {
                return Ok(None);
            }
            match buffer.next_drain(urgency)? {
                Some(drain) => self.pipeline.bottom.absorb(drain).map(Some),
                None => Ok(None),
            }
        };
        let reclaim = |urgency| self.pipeline.bottom.next_job(urgency);
        type Find<'a> = &'a dyn Fn(Urgency) -> Result<Option<Box<dyn Job>>>;
        let order: [Find<'_>; 3] = match urgency {
            Urgency::Space => [&drain, &reclaim, &merge],
            Urgency::None | Urgency::Everything => [&merge, &drain, &reclaim],
        };
        for find in order {
            if let Some(job) = find(urgency)? {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    fn first_ready(&self, state: &State, wanted: impl Fn(JobKind) -> bool) -> Option<usize> {
        let ready = self.ready(state);
        ready
            .into_iter()
            .find(|&at| wanted(state.queue[at].job.kind()))
    }

    /// Notes that a job found a disk full, and when it may try again.
    fn wait_for_room(&self, kind: JobKind, why: Error) -> Waits {
        let mut state = self.jobs.state.lock();
        state.disk_full = Some((kind, why));
        Waits::Room {
            until: Instant::now() + RETRY,
            turn: state.turn,
        }
    }

    /// Why a disk has no room for what background work has to write, if so.
    pub(crate) fn disk_full(&self) -> Option<Error> {
        let state = self.jobs.state.lock();
        state.disk_full.as_ref().map(|(_, why)| why.clone())
    }

    /// Lets jobs that wait for room on a disk try once more. For `Workers::Manual`.
    pub(crate) fn look_for_room(&self) {
        self.jobs.state.lock().turn += 1;
    }

    /// The most wanted job after flushes, for recovery, which runs it itself.
    pub(super) fn take_inline(self: &Arc<Self>) -> Result<Option<Box<dyn Job>>> {
        self.take(&mut self.jobs.state.lock(), Class::Rest)
    }

    /// Runs a job to its end, or until it waits for space.
    pub(super) fn run_inline(&self, mut job: Box<dyn Job>) -> Result<()> {
        loop {
            match self.step_job(&mut job)? {
                Step::More => {}
                Step::Wait => {
                    let waits = Waits::PoolBelow(self.ground.pool.usage().allocated);
                    self.jobs.state.lock().queue.push(Parked { job, waits });
                    return Ok(());
                }
                Step::Retry(why) => return Err(why),
                Step::Done(completion) => return self.complete(job.kind(), completion),
            }
        }
    }

    /// Begins every job that may run, for callers who pick among them.
    fn refill(self: &Arc<Self>, state: &mut State) -> Result<()> {
        for class in [Class::Flushes, Class::Rest] {
            // BOUND: each turn begins a job, and a stage has only so many.
            loop {
                // Jobs that wait for space would be found again and again.
                let mut parked = std::mem::take(&mut state.queue);
                let found = self.take(state, class);
                state.queue.append(&mut parked);
                match found? {
                    Some(job) => {
                        let spare = job.kind() == JobKind::Flush;
                        state.queue.push(Parked {
                            job,
                            waits: Waits::Nothing,
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

    fn ready(&self, state: &State) -> Vec<usize> {
        if state.queue.is_empty() {
            return Vec::new();
        }
        let allocated = self.ground.pool.usage().allocated;
        let manual = self.jobs.workers == Workers::Manual;
        let ready = |p: &Parked| match p.waits {
            Waits::Nothing => true,
            Waits::PoolBelow(limit) => allocated < limit,
            Waits::Room { turn, .. } if manual => turn != state.turn,
            Waits::Room { until, .. } => Instant::now() >= until,
        };
        (0..state.queue.len())
            .filter(|&at| ready(&state.queue[at]))
            .collect()
    }

    /// Begins every job that may run. True: there is none, and none runs.
    pub(super) fn rests(self: &Arc<Self>) -> Result<bool> {
        let mut state = self.jobs.state.lock();
        self.refill(&mut state)?;
        let rests = state.running == 0 && self.ready(&state).is_empty();
        if !rests {
            self.jobs.changed.notify_all();
        }
        Ok(rests)
    }

    /// How many jobs could run a step now. For `Workers::Manual`.
    pub(crate) fn step_count(self: &Arc<Self>) -> Result<usize> {
        let mut state = self.jobs.state.lock();
        if state.queue.iter().all(|p| p.job.kind() != JobKind::Flush) {
            self.refill(&mut state)?;
        }
        Ok(self.ready(&state).len())
    }

    /// Runs one step of the `pick`-th of the jobs that could run. False: there is none.
    pub(crate) fn step(self: &Arc<Self>, pick: usize) -> Result<bool> {
        self.check_writable()?;
        let mut job = {
            let mut state = self.jobs.state.lock();
            if state.queue.iter().all(|p| p.job.kind() != JobKind::Flush) {
                self.refill(&mut state)?;
            }
            let ready = self.ready(&state);
            if ready.is_empty() {
                return Ok(false);
            }
            state.running += 1;
            state.queue.remove(ready[pick % ready.len()]).job
        };
        let result = self.step_job(&mut job);
        match result {
            Ok(Step::More) => self.ended(Some(Parked {
                job,
                waits: Waits::Nothing,
            })),
            Ok(Step::Wait) => {
                let waits = Waits::PoolBelow(self.ground.pool.usage().allocated);
                self.ended(Some(Parked { job, waits }));
            }
            Ok(Step::Retry(why)) => {
                let waits = self.wait_for_room(job.kind(), why);
                self.ended(Some(Parked { job, waits }));
            }
            Ok(Step::Done(completion)) => {
                let done = self.complete(job.kind(), completion);
                self.ended(None);
                if let Err(e) = done {
                    self.fail(&e);
                    return Err(e);
                }
            }
            Err(e) => {
                self.ended(None);
                self.fail(&e);
                return Err(e);
            }
        }
        Ok(true)
    }

    /// Whether nothing runs and nothing can that would free space.
    pub(crate) fn is_stuck(&self) -> Result<bool> {
        let mut state = self.jobs.state.lock();
        if state.stopping
            || state.running > 0
            || !self.ready(&state).is_empty()
            || self.pipeline.front.sealed_count() > 0
        {
            return Ok(false);
        }
        // That nothing runs does not say that nothing can: a worker that has ended a job, or sleeps,
        // has yet to look. So look in its place, for whatever frees space.
        match self.begin(Urgency::Space) {
            Ok(None) => Ok(true),
            Ok(Some(job)) => {
                state.queue.push(Parked {
                    job,
                    waits: Waits::Nothing,
                });
                self.jobs.changed.notify_all();
                Ok(false)
            }
            Err(e) => {
                drop(state);
                self.fail(&e);
                Err(e)
            }
        }
    }
}
