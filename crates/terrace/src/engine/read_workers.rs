//! Read workers: threads that search older sources while a point read searches newer ones
//! (NoveLSM, section 4.5).
//!
//! A read searches the memtables first, alone; their filters make most misses cheap. Then it asks
//! the filters of the buffer: if one predicts a hit, the read searches the buffer alone as well,
//! and if all predict a miss, it skips the buffer. What is left forms groups, newest first. The
//! read takes the first group, idle workers take the next ones, and the newest group with the key
//! answers. A read that finds no idle worker searches all groups itself.
//!
//! Invariants
//!   W1  The answer of a group counts only if every newer group was searched and lacks the key.
//!   W2  The buffer is one group, searched newest table first: a merge moves entries from a newer
//!       table to an older one, so a search of the older one first would miss what moves in
//!       between. Sources of the bottom may be searched in any order, and before the buffer: a
//!       drain leaves its tables unchanged as long as a view has them.
//!   W3  A read depends on no worker. It takes the groups that no worker has taken, and after
//!       `WAIT_MAX` also one that a worker has not finished.
//!
//! A job holds its view and a copy of the key, so a worker borrows nothing from the read. The mutex
//! of a job guards the states of its groups, that of the queue the idle workers and the jobs; no
//! search runs under either, and none of them is taken under the other. `Job::answered` and
//! `Queue::stopping` only end searches whose results are not needed, so they are Relaxed.
//!
//! Caller: engine/read.rs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::{Error, ErrorKind, Result};
use crate::stages::{Lookup, Prediction, Probe, ReadStats, Source};
use crate::types::SeqNo;

use super::read::search;
use super::view::View;

/// BOUND: how long a read waits for a worker to finish a group before it searches the group itself.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// How long an idle worker sleeps if nothing wakes it.
const IDLE: Duration = Duration::from_secs(1);

/// The read workers of one database.
pub(crate) struct ReadWorkers {
    count: usize,
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    inner: Mutex<QueueInner>,
    work: Condvar,
    stopping: AtomicBool,
}

#[derive(Default)]
struct QueueInner {
    /// The number of workers that no read has reserved.
    idle: usize,
    /// BOUND: an entry for each reserved worker that has not begun.
    jobs: Vec<Arc<Job>>,
}

/// The search for one key in the groups of a view.
struct Job {
    view: Arc<View>,
    groups: Vec<Range<usize>>,
    keyspace: u32,
    key: Box<[u8]>,
    hash: u64,
    at: SeqNo,
    latest: bool,
    /// The newest group that has answered. Older ones need no search.
    answered: AtomicUsize,
    states: Mutex<Vec<State>>,
    ended: Condvar,
}

/// The state of the search of a group.
enum State {
    Waiting,
    Taken,
    Ended(Result<Option<Lookup>>, ReadStats),
}

/// The search of the buffer, by what its filters predict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffer {
    /// No table has the key.
    Skipped,
    /// A table probably has the key, so that a worker would search the bottom in vain.
    Alone,
    /// Nothing is known: workers search the bottom meanwhile.
    Group,
}

impl Buffer {
    fn of(tables: &[Arc<dyn Source>], hash: u64) -> Buffer {
        let mut search = Buffer::Skipped;
        for table in tables {
            match table.predict(hash) {
                Prediction::Miss => {}
                Prediction::Hit => return Buffer::Alone,
                Prediction::Unknown => search = Buffer::Group,
            }
        }
        search
    }
}

/// Returns at most `count` groups: the buffer, if it is one, and sources of the bottom.
fn groups_of(view: &View, buffer: Buffer, count: usize) -> Vec<Range<usize>> {
    let bottom = view.bottom_at;
    let mut groups = Vec::with_capacity(count);
    if buffer == Buffer::Group {
        groups.push(view.buffer_at..bottom);
    }
    let len = view.sources.len() - bottom;
    let pieces = len.min(count - groups.len());
    let place = |piece: usize| bottom + len * piece / pieces;
    groups.extend((0..pieces).map(|piece| place(piece)..place(piece + 1)));
    groups
}

impl ReadWorkers {
    /// Creates `count` workers, which [`start`](ReadWorkers::start) starts; `None` for 0.
    pub(super) fn new(count: usize) -> Option<ReadWorkers> {
        (count > 0).then(|| ReadWorkers {
            count,
            queue: Arc::default(),
            threads: Mutex::default(),
        })
    }

    pub(super) fn start(&self) -> Result<()> {
        let mut threads = self.threads.lock();
        for number in 0..self.count {
            let queue = Arc::clone(&self.queue);
            let thread = std::thread::Builder::new()
                .name(format!("terrace-read-{number}"))
                .spawn(move || queue.work())
                .map_err(|e| {
                    Error::new(ErrorKind::Io, format!("cannot start a thread: {e}")).because(e)
                })?;
            threads.push(thread);
        }
        Ok(())
    }

    /// Stops the workers after the sources that they are searching. Reads continue without them.
    pub(super) fn stop(&self) {
        self.queue.stopping.store(true, Ordering::Relaxed);
        let unbegun = {
            let mut inner = self.queue.inner.lock();
            inner.idle = 0;
            std::mem::take(&mut inner.jobs)
        };
        self.queue.work.notify_all();
        // The last reference to a view may free extents: not under the lock.
        drop(unbegun);
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let _ = thread.join();
        }
    }

    /// Returns the entry of a key in the newest source that contains it.
    pub(super) fn search(
        &self,
        view: &Arc<View>,
        probe: &Probe<'_>,
        stats: &mut ReadStats,
    ) -> Result<Option<Lookup>> {
        if let Some(hit) = search(&view.sources[..view.buffer_at], probe, stats)? {
            return Ok(Some(hit));
        }
        let tables = &view.sources[view.buffer_at..view.bottom_at];
        let buffer = Buffer::of(tables, probe.hash);
        match buffer {
            Buffer::Skipped => stats.filter_saved += tables.len() as u64,
            Buffer::Alone => {
                if let Some(hit) = search(tables, probe, stats)? {
                    return Ok(Some(hit));
                }
            }
            Buffer::Group => {}
        }
        let groups = groups_of(view, buffer, self.count + 1);
        let reserved = self.queue.reserve(groups.len().saturating_sub(1));
        if reserved == 0 {
            // BOUND: there are at most as many as sources.
            for group in groups {
                if let Some(hit) = search(&view.sources[group], probe, stats)? {
                    return Ok(Some(hit));
                }
            }
            return Ok(None);
        }
        stats.parallel += 1;
        let states = groups.iter().map(|_| State::Waiting).collect();
        let job = Arc::new(Job {
            view: Arc::clone(view),
            groups,
            keyspace: probe.keyspace,
            key: probe.key.into(),
            hash: probe.hash,
            at: probe.at,
            latest: probe.latest,
            answered: AtomicUsize::new(usize::MAX),
            states: Mutex::new(states),
            ended: Condvar::new(),
        });
        // Before a worker can: the reader is running already.
        job.states.lock()[0] = State::Taken;
        self.queue.push(&job, reserved);
        job.answer(probe, stats)
    }
}

impl Queue {
    /// Reserves up to `wanted` idle workers, and returns how many.
    fn reserve(&self, wanted: usize) -> usize {
        // A read that has to wait for other reads is better off alone.
        let Some(mut inner) = self.inner.try_lock() else {
            return 0;
        };
        let reserved = wanted.min(inner.idle);
        inner.idle -= reserved;
        reserved
    }

    /// Gives a job to the workers reserved for it.
    fn push(&self, job: &Arc<Job>, reserved: usize) {
        {
            let mut inner = self.inner.lock();
            // Workers that have stopped would leave it in the queue, with its view.
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            inner.jobs.extend((0..reserved).map(|_| Arc::clone(job)));
        }
        for _ in 0..reserved {
            self.work.notify_one();
        }
    }

    /// Runs a worker until it is stopped.
    fn work(&self) {
        let mut inner = self.inner.lock();
        loop {
            inner.idle += 1;
            // BOUND: until a job or the stop arrives; each wait is timed.
            let job = loop {
                if self.stopping.load(Ordering::Relaxed) {
                    return;
                }
                match inner.jobs.pop() {
                    Some(job) => break job,
                    None => self.work.wait_for(&mut inner, IDLE),
                };
            };
            drop(inner);
            job.work(&self.stopping);
            // It may free a view: before the lock, and before the worker is idle again.
            drop(job);
            inner = self.inner.lock();
        }
    }
}

impl Job {
    /// Searches the groups that no other thread has taken, newest first.
    fn work(&self, stopping: &AtomicBool) {
        // BOUND: each iteration takes a group, or is the last.
        while let Some(group) = self.take() {
            let probe = Probe {
                keyspace: self.keyspace,
                key: &self.key,
                hash: self.hash,
                at: self.at,
                latest: self.latest,
            };
            let mut stats = ReadStats::default();
            let ended = self.search(group, &probe, &mut stats, stopping);
            let is_stopped = ended.is_none();
            // If the search was stopped, the reader has its answer, or searches the group itself.
            self.states.lock()[group] = match ended {
                Some(result) => State::Ended(result, stats),
                None => State::Waiting,
            };
            self.ended.notify_one();
            if is_stopped {
                return;
            }
        }
    }

    /// Takes the newest group that waits and is still needed.
    fn take(&self) -> Option<usize> {
        let mut states = self.states.lock();
        let waiting = |state: &State| matches!(state, State::Waiting);
        let group = states.iter().position(waiting)?;
        if self.is_past(group) {
            return None;
        }
        states[group] = State::Taken;
        Some(group)
    }

    /// Returns whether a newer group has answered.
    #[inline]
    fn is_past(&self, group: usize) -> bool {
        self.answered.load(Ordering::Relaxed) < group
    }

    /// Searches a group; `None` if it was stopped, since a newer one has answered or the workers
    /// stop.
    fn search(
        &self,
        group: usize,
        probe: &Probe<'_>,
        stats: &mut ReadStats,
        stopping: &AtomicBool,
    ) -> Option<Result<Option<Lookup>>> {
        for source in &self.view.sources[self.groups[group].clone()] {
            if self.is_past(group) || stopping.load(Ordering::Relaxed) {
                return None;
            }
            match source.get(probe, stats) {
                Ok(None) => {}
                // An error hides older groups as a hit does.
                end => {
                    self.answered.fetch_min(group, Ordering::Relaxed);
                    return Some(end);
                }
            }
        }
        Some(Ok(None))
    }

    /// Searches the first group, which the caller has taken, and returns the answer of the newest
    /// group that has one (W1).
    fn answer(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        for group in 0..self.groups.len() {
            let found = match group {
                0 => None,
                group => self.result_of(group),
            };
            let found = match found {
                Some((found, of_worker)) => {
                    stats.add(&of_worker);
                    found
                }
                None => search(&self.view.sources[self.groups[group].clone()], probe, stats),
            };
            if !matches!(found, Ok(None)) {
                self.answered.fetch_min(group, Ordering::Relaxed);
                return found;
            }
        }
        Ok(None)
    }

    /// Returns the result of a group that a worker has taken; `None` if the caller has to search it
    /// (W3).
    fn result_of(&self, group: usize) -> Option<(Result<Option<Lookup>>, ReadStats)> {
        let mut states = self.states.lock();
        let until = Instant::now() + WAIT_MAX;
        // BOUND: until the time is over.
        while matches!(states[group], State::Taken) {
            if self.ended.wait_until(&mut states, until).timed_out() {
                break;
            }
        }
        match std::mem::replace(&mut states[group], State::Taken) {
            State::Ended(result, stats) => Some((result, stats)),
            State::Waiting | State::Taken => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::{Parts, Views};
    use super::*;
    use crate::parts::iter::Cursor;
    use crate::parts::key::Target;
    use crate::stages::Census;
    use crate::types::key_hash;

    /// A source with one answer for every key, after a delay.
    struct Slow {
        delay: Duration,
        answer: Result<Option<Lookup>>,
        predicted: Prediction,
        asked: AtomicUsize,
    }

    impl Source for Slow {
        fn get(&self, _: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            stats.sources += 1;
            std::thread::sleep(self.delay);
            self.answer.clone()
        }

        fn predict(&self, _: u64) -> Prediction {
            self.predicted
        }

        fn cursor(&self) -> Box<dyn Cursor> {
            unreachable!("point reads use no cursor")
        }

        fn approximate(&self, _: &Target<'_>, _: &Target<'_>) -> Result<(u64, u64)> {
            Ok((0, 0))
        }

        fn verify(&self, _: &mut Census, _: &mut dyn FnMut(u64)) {}

        fn verify_bytes(&self) -> u64 {
            0
        }
    }

    fn value(seq: SeqNo) -> Result<Option<Lookup>> {
        Ok(Some(Lookup::Value {
            value: seq.to_le_bytes().to_vec(),
            seq,
            expiry: 0,
        }))
    }

    /// Returns the parts of a view of one memtable, `tables` tables and the rest in the bottom.
    fn parts(sources: &[Arc<Slow>], tables: usize) -> Parts {
        Parts {
            sources: sources.iter().map(|s| Arc::clone(s) as _).collect(),
            buffer_at: 1,
            bottom_at: 1 + tables,
            ranges: None,
            tokens: Vec::new(),
        }
    }

    fn sources(answers: &[(u64, Result<Option<Lookup>>)]) -> Vec<Arc<Slow>> {
        let source = |(micros, answer): &(u64, Result<Option<Lookup>>)| {
            Arc::new(Slow {
                delay: Duration::from_micros(*micros),
                answer: answer.clone(),
                // As of tables of which some have no filter.
                predicted: match (*micros % 100, answer) {
                    (0, _) => Prediction::Unknown,
                    (_, Ok(None)) => Prediction::Miss,
                    _ => Prediction::Hit,
                },
                asked: AtomicUsize::new(0),
            })
        };
        answers.iter().map(source).collect()
    }

    fn probe() -> Probe<'static> {
        Probe {
            keyspace: 0,
            key: b"key",
            hash: key_hash(0, b"key"),
            at: 9,
            latest: true,
        }
    }

    fn started(count: usize) -> ReadWorkers {
        let workers = ReadWorkers::new(count).unwrap();
        workers.start().unwrap();
        // BOUND: threads start.
        while workers.queue.inner.lock().idle < count {
            std::thread::yield_now();
        }
        workers
    }

    /// Whatever the delays, the newest source that has the key answers, and an error counts only
    /// if no newer source has the key.
    #[test]
    fn the_newest_hit_wins() {
        let mut rng = fastrand::Rng::with_seed(7);
        let workers = [1, 2, 3, 7].map(started);
        let mut parallel = 0;
        for round in 0..600 {
            let count = rng.usize(1..8);
            let answers: Vec<_> = (0..count)
                .map(|at| {
                    let micros = [0, 0, 50, 300, 301, 2000][rng.usize(..6)];
                    let answer = match rng.u32(..9) {
                        0 => value(at as u64),
                        1 => Ok(Some(Lookup::Deleted)),
                        2 => Err(Error::corruption(format!("source {at}"))),
                        _ => Ok(None),
                    };
                    (micros, answer)
                })
                .collect();
            let sources = sources(&answers);
            let view = Views::new(parts(&sources, rng.usize(..count))).hold();
            let expected = answers.iter().map(|(_, answer)| answer);
            let expected = expected.clone().find(|answer| !matches!(answer, Ok(None)));
            let expected = expected.cloned().unwrap_or(Ok(None));
            let mut stats = ReadStats::default();
            let found = workers[round % 4].search(&view, &probe(), &mut stats);
            parallel += stats.parallel;
            let text = |found: &Result<Option<Lookup>>| format!("{found:?}");
            assert_eq!(text(&found), text(&expected), "round {round}: {answers:?}");
        }
        assert!(parallel > 100, "only {parallel} searches in parallel");
        for workers in workers {
            workers.stop();
            assert_eq!(workers.queue.inner.lock().jobs.len(), 0);
        }
    }

    /// A hit in a memtable asks no other source, and one in the buffer ends the search of the
    /// bottom.
    #[test]
    fn a_hit_ends_the_search_of_older_sources() {
        const SOURCES: usize = 2000;
        let workers = started(1);
        let mut answers = vec![(0, value(3)), (0, Ok(None))];
        answers.extend((0..SOURCES).map(|_| (1000, Ok(None))));
        let of_memtable = sources(&answers);
        let view = Views::new(parts(&of_memtable, 1)).hold();
        let mut stats = ReadStats::default();
        workers.search(&view, &probe(), &mut stats).unwrap();
        assert_eq!(stats.parallel, 0);
        assert_eq!(stats.sources, 1);
        answers[0].1 = Ok(None);
        answers[1].1 = value(3);
        let of_buffer = sources(&answers);
        let view = Views::new(parts(&of_buffer, 1)).hold();
        workers.search(&view, &probe(), &mut stats).unwrap();
        assert_eq!(stats.parallel, 1);
        // The hit stops the worker, not the end of all workers. BOUND: it searches all sources.
        while workers.queue.inner.lock().idle == 0 {
            std::thread::yield_now();
        }
        let asked = of_buffer[2..].iter();
        let asked = asked.map(|source| source.asked.load(Ordering::Relaxed));
        assert!(asked.sum::<usize>() < SOURCES, "the worker went on");
        workers.stop();
    }

    /// A read answers without its worker: before it has started, and after it has stopped.
    #[test]
    fn reads_depend_on_no_worker() {
        let sources = sources(&[(0, Ok(None)), (0, Ok(None)), (0, value(1))]);
        let view = Views::new(parts(&sources, 1)).hold();
        let workers = ReadWorkers::new(2).unwrap();
        let found = |workers: &ReadWorkers| {
            let mut stats = ReadStats::default();
            let found = workers.search(&view, &probe(), &mut stats);
            (found.unwrap(), stats.parallel)
        };
        let expected = value(1).unwrap();
        assert_eq!(found(&workers), (expected.clone(), 0));
        // A worker that never runs.
        workers.queue.inner.lock().idle = 1;
        assert_eq!(found(&workers), (expected.clone(), 1));
        assert_eq!(workers.queue.inner.lock().jobs.len(), 1);
        workers.stop();
        assert_eq!(found(&workers), (expected.clone(), 0));
        // One that stopped after a read had reserved it.
        workers.queue.inner.lock().idle = 1;
        assert_eq!(found(&workers), (expected, 1));
        assert_eq!(workers.queue.inner.lock().jobs.len(), 0);
        assert_eq!(Arc::strong_count(&view), 1, "a job is left with its view");
    }
}
