//! Model of gathered records (`parts/log/gather.rs`, `parts/log/pool.rs`).

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use crate::models::{breaks, holds};

/// The number of records, and the lines of each.
const RECORDS: usize = 6;
const RECORD_LINES: usize = 2;
/// The number of lines that are flushed together.
const BLOCK: usize = 4;
/// Stands for a position behind all records.
const LAST: usize = usize::MAX;

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A durable writer does not flush what is gathered.
    Unflushed,
    /// A durable writer stores its position after the flush. A store that waits in the processor,
    /// with no fence behind it, has the same effect.
    RequiredLate,
    /// A gathered writer looks for durable ones before it has stored its record. A missing fence
    /// has the same effect.
    LookedFirst,
    /// A gathered writer does not look for durable ones.
    NeverLooked,
    /// A gathered writer publishes before it flushes its record.
    PublishedFirst,
    /// The flushed position passes records that were not finished before the flush.
    PassedUnfinished,
    /// The flushed position is raised before the fence.
    PassedUnfenced,
    /// A record calls everything settled that is written.
    SettledUnflushed,
    /// The gathered records of a full log stay as they are.
    LeftBehind,
}

/// A log, its lines in working memory and on the medium.
struct World {
    /// The number of reserved records; guarded by the commit lock. `None`: the log is full.
    commit: Mutex<Option<usize>>,
    stored: [AtomicBool; RECORDS * RECORD_LINES],
    durable: [AtomicBool; RECORDS * RECORD_LINES],
    finished: [AtomicBool; RECORDS],
    end: AtomicUsize,
    flushed: AtomicUsize,
    required: AtomicUsize,
    published: AtomicUsize,
    fault: Fault,
}

impl World {
    fn new(fault: Fault) -> World {
        World {
            commit: Mutex::new(Some(0)),
            stored: Default::default(),
            durable: Default::default(),
            finished: Default::default(),
            end: AtomicUsize::new(0),
            flushed: AtomicUsize::new(0),
            required: AtomicUsize::new(0),
            published: AtomicUsize::new(0),
            fault,
        }
    }

    fn written(&self) -> usize {
        let finished = self.finished.iter();
        let finished = finished.take_while(|mark| mark.load(Ordering::Acquire));
        finished.count() * RECORD_LINES
    }

    fn is_pending(&self) -> bool {
        self.end.load(Ordering::Relaxed) > self.flushed.load(Ordering::Acquire)
    }

    fn require(&self, end: usize) -> bool {
        let pending = self.is_pending();
        if pending && self.fault != Fault::RequiredLate {
            self.required.store(end, Ordering::Relaxed);
        }
        pending
    }

    /// Returns the lines of the range that are flushed with all that is stored.
    fn flush(&self, from: usize, to: usize) -> Vec<usize> {
        let stored = |line: &usize| self.stored[*line].load(Ordering::SeqCst);
        (from..to).filter(stored).collect()
    }

    fn fence(&self, lines: Vec<usize>) {
        for line in lines {
            self.durable[line].store(true, Ordering::SeqCst);
        }
    }

    /// Asserts that everything before a position is durable.
    fn check(&self, to: usize, complaint: &str) {
        let is_durable = |line: usize| self.durable[line].load(Ordering::SeqCst);
        assert!((0..to).all(is_durable), "{complaint}");
    }

    /// Flushes what is gathered before `to`, then fences and raises the flushed position.
    fn persist_gathered(&self, to: usize, own: Vec<usize>) {
        let before = self.written().min(to);
        let mut lines = self.flush(self.flushed.load(Ordering::Acquire), to);
        lines.extend(own);
        let upto = match self.fault {
            Fault::PassedUnfinished => to,
            _ => before,
        };
        if self.fault == Fault::PassedUnfenced {
            self.flushed.fetch_max(upto, Ordering::Release);
        }
        self.fence(lines);
        self.flushed.fetch_max(upto, Ordering::Release);
    }

    /// Writes a record, and returns false if the log is full.
    fn write(&self, gathers: bool) -> bool {
        let mut commit = self.commit.lock().unwrap();
        let Some(number) = *commit else { return false };
        *commit = Some(number + 1);
        let (at, end) = (number * RECORD_LINES, (number + 1) * RECORD_LINES);
        let written = self.written();
        let settled = match self.is_pending() && self.fault != Fault::SettledUnflushed {
            true => written.min(self.flushed.load(Ordering::Acquire)),
            false => written,
        };
        self.check(settled, "a record that can be lost counts as settled");
        let mut after_gathered = false;
        if gathers {
            if !self.is_pending() {
                self.flushed.fetch_max(at, Ordering::Release);
            }
            self.end.store(end, Ordering::Relaxed);
        } else {
            after_gathered = self.require(end);
        }
        drop(commit);

        let early = self.fault == Fault::LookedFirst && self.required.load(Ordering::Relaxed) > end;
        for line in at..end {
            self.stored[line].store(true, Ordering::SeqCst);
        }
        match gathers {
            true => self.settle_gathered(number, early),
            false => self.settle(number, after_gathered),
        }
        self.publish(number);
        if !gathers {
            self.check(
                end,
                "a crash takes a write that was acknowledged, or one before it",
            );
        }
        true
    }

    fn settle(&self, number: usize, after_gathered: bool) {
        let (at, end) = (number * RECORD_LINES, (number + 1) * RECORD_LINES);
        let own = self.flush(at, end);
        match after_gathered && self.fault != Fault::Unflushed {
            true => self.persist_gathered(at, own),
            false => self.fence(own),
        }
        if self.fault == Fault::RequiredLate {
            self.required.fetch_max(end, Ordering::Relaxed);
        }
        self.finished[number].store(true, Ordering::Release);
    }

    fn settle_gathered(&self, number: usize, early: bool) {
        let (at, end) = (number * RECORD_LINES, (number + 1) * RECORD_LINES);
        self.finished[number].store(true, Ordering::Release);
        let required = match self.fault {
            Fault::NeverLooked => false,
            Fault::LookedFirst => early,
            _ => self.required.load(Ordering::Relaxed) > end,
        };
        if required {
            if self.fault == Fault::PublishedFirst {
                self.publish(number);
            }
            self.fence(self.flush(at, end));
            return;
        }
        let written = self.written();
        if written.saturating_sub(self.flushed.load(Ordering::Acquire)) >= BLOCK {
            self.persist_gathered(written, Vec::new());
        }
    }

    fn wait_published(&self, count: usize) {
        while self.published.load(Ordering::Acquire) < count {
            thread::yield_now();
        }
    }

    fn publish(&self, number: usize) {
        self.wait_published(number);
        self.published.fetch_max(number + 1, Ordering::Release);
    }

    /// Ends the log, then writes a record to the next one.
    fn rotate(&self) {
        let mut commit = self.commit.lock().unwrap();
        let Some(records) = commit.take() else { return };
        if self.fault != Fault::LeftBehind && self.require(LAST) {
            self.persist_gathered(records * RECORD_LINES, Vec::new());
        }
        drop(commit);
        self.wait_published(records);
        let to = records * RECORD_LINES;
        self.check(to, "a crash takes writes before one of the next log");
    }

    /// Makes durable what was published before.
    fn sync(&self) {
        let published = self.published.load(Ordering::Acquire) * RECORD_LINES;
        if self.is_pending() {
            let reserved = self.commit.lock().unwrap().unwrap_or(RECORDS);
            self.persist_gathered(reserved * RECORD_LINES, Vec::new());
        }
        self.check(published, "a sync leaves a published record behind");
    }
}

/// Runs gathered and durable writers, and one that syncs; `rotates`: the log is ended meanwhile.
fn gathering(fault: Fault, rotates: bool) {
    let world = Arc::new(World::new(fault));
    let writers = [[true, true], [true, false], [false, true]].map(|kinds| {
        let world = Arc::clone(&world);
        thread::spawn(move || kinds.iter().all(|gathers| world.write(*gathers)))
    });
    match rotates {
        true => world.rotate(),
        false => world.sync(),
    }
    for writer in writers {
        assert!(writer.join().unwrap() || rotates);
    }
    world.sync();
    if !rotates {
        world.check(
            RECORDS * RECORD_LINES,
            "the last sync leaves a record behind",
        );
        assert!(!world.is_pending(), "everything is flushed");
    }
}

/// However writers overlap, no acknowledged durable record follows one that can be lost, in this
/// log or the one before it, and no record that can be lost counts as settled.
#[test]
fn durable_records_follow_durable_ones_on_every_schedule() {
    holds(|| gathering(Fault::None, false));
    holds(|| gathering(Fault::None, true));
}

/// Every step of the protocol is necessary.
#[test]
fn wrong_gathering_is_found_out() {
    const LOST: &[&str] = &["a crash takes a write", "counts as settled"];
    breaks(&["a crash takes a write"], || {
        gathering(Fault::Unflushed, false)
    });
    breaks(&["a crash takes a write"], || {
        gathering(Fault::RequiredLate, false)
    });
    breaks(&["a crash takes a write"], || {
        gathering(Fault::LookedFirst, false)
    });
    breaks(&["a crash takes a write"], || {
        gathering(Fault::NeverLooked, false)
    });
    breaks(&["a crash takes a write"], || {
        gathering(Fault::PublishedFirst, false)
    });
    breaks(LOST, || gathering(Fault::PassedUnfinished, false));
    breaks(LOST, || gathering(Fault::PassedUnfenced, false));
    breaks(&["counts as settled"], || {
        gathering(Fault::SettledUnflushed, false)
    });
    breaks(&["one of the next log"], || {
        gathering(Fault::LeftBehind, true)
    });
}
