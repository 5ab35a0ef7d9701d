//! Model of the write path (`stages/front/wal_memtable`, `parts/sequence.rs`, `engine/commit.rs`).
//! Sequence numbers and places in the log and the memtable are reserved under the commit lock.
//! Records are written and entries inserted concurrently. Batches become visible in the order of
//! their sequence numbers. Full memtables are replaced under the commit lock, and flushed.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use super::{breaks, holds};

/// The capacity of a memtable in entries.
const MEMTABLE_ENTRIES: usize = 3;
/// A bound above all sequence numbers.
const NUMBERS: usize = 10;
/// The number of marks of finished batches.
const RING: usize = 2;

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A batch becomes visible without waiting for those before it.
    PublishedUnordered,
    /// A batch becomes visible before it is inserted.
    PublishedFirst,
    /// After publishing a batch, a writer does not check whether the next one is finished.
    NextForgotten,
    /// A writer that publishes the batch of another sets the visible number instead of only raising
    /// it.
    ShownBackwards,
    /// A mark is reused before its last batch is published.
    MarkOverrun,
    /// The view of a new memtable is installed after the commit lock is released.
    InstalledLate,
    /// A write is acknowledged once its own record is written.
    AcknowledgedAlone,
    /// A memtable is flushed without waiting for writers that have places in it.
    FlushedEarly,
    /// A writer does not recheck whether the memtable is still the full one.
    RotatedTwice,
    /// A writer that fails notifies no other thread.
    FailedSilently,
}

/// A memtable, or the table that it becomes.
#[derive(Default)]
struct Memtable {
    inserted: [AtomicBool; NUMBERS],
}

impl Memtable {
    fn has(&self, number: usize) -> bool {
        self.inserted[number].load(Ordering::Acquire)
    }
}

/// The state that the commit lock guards.
struct Active {
    memtable: Arc<Memtable>,
    used: usize,
    last: usize,
}

#[derive(Clone)]
struct Shown {
    active: Arc<Memtable>,
    sealed: Vec<(Arc<Memtable>, usize)>,
    tables: Vec<Arc<Memtable>>,
}

type View = Arc<Vec<Arc<Memtable>>>;

struct World {
    commit: Mutex<Active>,
    shown: Mutex<Shown>,
    view: Mutex<View>,
    install: Mutex<()>,
    taken: AtomicUsize,
    tickets: AtomicUsize,
    visible: AtomicUsize,
    head: AtomicUsize,
    /// The finished tickets plus one, with the last sequence number of each.
    marks: [(AtomicUsize, AtomicUsize); RING],
    broken: AtomicBool,
    logged: [AtomicBool; NUMBERS],
    acknowledged: [AtomicBool; NUMBERS],
    /// The first sequence numbers and sizes of the batches, in order.
    batches: Mutex<Vec<(usize, usize)>>,
    fault: Fault,
}

impl World {
    fn new(fault: Fault) -> World {
        let memtable: Arc<Memtable> = Arc::default();
        World {
            commit: Mutex::new(Active {
                memtable: Arc::clone(&memtable),
                used: 0,
                last: 0,
            }),
            shown: Mutex::new(Shown {
                active: Arc::clone(&memtable),
                sealed: Vec::new(),
                tables: Vec::new(),
            }),
            view: Mutex::new(Arc::new(vec![memtable])),
            install: Mutex::new(()),
            taken: AtomicUsize::new(0),
            tickets: AtomicUsize::new(0),
            visible: AtomicUsize::new(0),
            head: AtomicUsize::new(0),
            marks: Default::default(),
            broken: AtomicBool::new(false),
            logged: Default::default(),
            acknowledged: Default::default(),
            batches: Mutex::new(Vec::new()),
            fault,
        }
    }

    fn install_view(&self) {
        let _one = self.install.lock().unwrap();
        let shown = self.shown.lock().unwrap().clone();
        let mut view = vec![shown.active];
        view.extend(shown.sealed.into_iter().map(|(memtable, _)| memtable));
        view.extend(shown.tables);
        *self.view.lock().unwrap() = Arc::new(view);
    }

    /// Writes a batch and returns true once it is acknowledged. If `fails`, its record cannot be
    /// written.
    fn write(&self, count: usize, fails: bool) -> bool {
        let (memtable, first, ticket) = loop {
            let mut commit = self.commit.lock().unwrap();
            if commit.used + count > MEMTABLE_ENTRIES {
                drop(commit);
                self.rotate(count);
                continue;
            }
            let first = self.taken.load(Ordering::Relaxed) + 1;
            self.taken.store(first + count - 1, Ordering::Relaxed);
            commit.used += count;
            commit.last = first + count - 1;
            self.batches.lock().unwrap().push((first, count));
            let ticket = self.tickets.load(Ordering::Relaxed);
            self.tickets.store(ticket + 1, Ordering::Relaxed);
            break (Arc::clone(&commit.memtable), first, ticket);
        };
        let numbers = first..first + count;
        if fails {
            if self.fault != Fault::FailedSilently {
                self.broken.store(true, Ordering::Release);
            }
            return false;
        }
        for number in numbers.clone() {
            self.logged[number].store(true, Ordering::Release);
        }
        if self.fault == Fault::PublishedFirst && !self.publish(first + count - 1, ticket) {
            return false;
        }
        for number in numbers.clone() {
            memtable.inserted[number].store(true, Ordering::Release);
        }
        if self.fault != Fault::AcknowledgedAlone
            && self.fault != Fault::PublishedFirst
            && !self.publish(first + count - 1, ticket)
        {
            return false;
        }
        for number in numbers {
            self.acknowledged[number].store(true, Ordering::Release);
        }
        self.fault != Fault::AcknowledgedAlone || self.publish(first + count - 1, ticket)
    }

    fn publish(&self, last: usize, ticket: usize) -> bool {
        if self.fault == Fault::PublishedUnordered {
            self.visible.fetch_max(last, Ordering::Release);
            return true;
        }
        if self.head.load(Ordering::Acquire) == ticket {
            self.visible.store(last, Ordering::Release);
            self.head.swap(ticket + 1, Ordering::SeqCst);
            if self.fault != Fault::NextForgotten {
                self.show_finished(ticket + 1);
            }
            return true;
        }
        let free = || self.head.load(Ordering::Acquire) + RING > ticket;
        if self.fault != Fault::MarkOverrun && !self.wait(free) {
            return false;
        }
        let mark = &self.marks[ticket % RING];
        mark.1.store(last, Ordering::Relaxed);
        mark.0.store(ticket + 1, Ordering::Release);
        self.show_finished(self.head.load(Ordering::Acquire));
        let shown = self.wait(|| self.head.load(Ordering::Acquire) > ticket);
        if shown {
            self.visible.fetch_max(last, Ordering::Release);
        }
        shown
    }

    fn show_finished(&self, mut ticket: usize) {
        loop {
            let mark = &self.marks[ticket % RING];
            if mark.0.load(Ordering::SeqCst) != ticket + 1 {
                return;
            }
            let last = mark.1.load(Ordering::Relaxed);
            let (seqcst, acquire) = (Ordering::SeqCst, Ordering::Acquire);
            match self
                .head
                .compare_exchange(ticket, ticket + 1, seqcst, acquire)
            {
                Ok(_) if self.fault == Fault::ShownBackwards => {
                    self.visible.store(last, Ordering::Release);
                    ticket += 1;
                }
                Ok(_) => {
                    self.visible.fetch_max(last, Ordering::Release);
                    ticket += 1;
                }
                Err(now) => ticket = now,
            }
        }
    }

    fn wait_visible(&self, number: usize) -> bool {
        self.wait(|| self.visible.load(Ordering::Acquire) >= number)
    }

    fn wait(&self, done: impl Fn() -> bool) -> bool {
        while !done() {
            if self.broken.load(Ordering::Acquire) {
                return done();
            }
            thread::yield_now();
        }
        true
    }

    fn rotate(&self, count: usize) {
        let mut commit = self.commit.lock().unwrap();
        let fits = commit.used + count <= MEMTABLE_ENTRIES;
        if fits && self.fault != Fault::RotatedTwice {
            return;
        }
        assert_ne!(commit.used, 0, "an empty memtable is sealed");
        let last = commit.last;
        *commit = Active {
            memtable: Arc::default(),
            used: 0,
            last,
        };
        {
            let mut shown = self.shown.lock().unwrap();
            let sealed = std::mem::replace(&mut shown.active, Arc::clone(&commit.memtable));
            shown.sealed.insert(0, (sealed, last));
        }
        if self.fault == Fault::InstalledLate {
            drop(commit);
        }
        self.install_view();
    }

    /// Flushes the oldest sealed memtable, if there is one.
    fn flush(&self) {
        let sealed = self.shown.lock().unwrap().sealed.last().cloned();
        let Some((memtable, last)) = sealed else {
            return;
        };
        if self.fault != Fault::FlushedEarly && !self.wait_visible(last) {
            return;
        }
        let copy = Memtable::default();
        for number in 0..NUMBERS {
            let inserted = memtable.has(number);
            copy.inserted[number].store(inserted, Ordering::Relaxed);
        }
        self.shown.lock().unwrap().tables.insert(0, Arc::new(copy));
        self.shown.lock().unwrap().sealed.pop();
        self.install_view();
    }

    /// Reads as a reader does: it finds everything that was visible before it began, and all or
    /// nothing of each batch.
    fn read(&self) {
        let before = self.visible.load(Ordering::Acquire);
        let view = Arc::clone(&self.view.lock().unwrap());
        let at = self.visible.load(Ordering::Acquire);
        assert!(before <= at, "a visible entry is not visible any more");
        let finds = |number| view.iter().any(|memtable| memtable.has(number));
        for number in 1..=before {
            assert!(finds(number), "a visible entry is missed");
        }
        let batches = self.batches.lock().unwrap().clone();
        for (first, count) in batches {
            let found = (first..first + count).filter(|n| *n <= at && finds(*n));
            let found = found.count();
            assert!(found == 0 || found == count, "half a batch is visible");
        }
    }

    /// Simulates a crash: a replay applies records up to the first missing one.
    fn crash(&self) {
        // Acknowledgements first, then the log: a record written in between is in both.
        let acknowledged = self.acknowledged.iter();
        let acknowledged: Vec<bool> = acknowledged.map(|a| a.load(Ordering::Acquire)).collect();
        let mut replayed = true;
        for (logged, acknowledged) in self.logged.iter().zip(acknowledged).skip(1) {
            replayed &= logged.load(Ordering::Acquire);
            assert!(
                replayed || !acknowledged,
                "a crash loses an acknowledged write"
            );
        }
    }
}

/// Runs two writers of two batches each, a flush job, readers and a crash at any moment.
fn writing(fault: Fault) {
    let world = Arc::new(World::new(fault));
    let mut threads = Vec::new();
    for counts in [[1, 2], [2, 1]] {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            for count in counts {
                assert!(world.write(count, false));
                world.read();
            }
        }));
    }
    {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            for _ in 0..3 {
                world.flush();
                thread::yield_now();
            }
        }));
    }
    for _ in 0..3 {
        world.read();
        world.crash();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    world.read();
    world.crash();
    assert_eq!(world.visible.load(Ordering::Acquire), 6);
}

/// Runs three writers, one of which fails between reservation its sequence numbers and publishing
/// them.
fn failing(fault: Fault) {
    let world = Arc::new(World::new(fault));
    let writers: Vec<_> = [false, true, false]
        .into_iter()
        .map(|fails| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write(1, fails))
        })
        .collect();
    world.read();
    world.crash();
    let acknowledged: Vec<bool> = writers.into_iter().map(|w| w.join().unwrap()).collect();
    world.crash();
    let visible = world.visible.load(Ordering::Acquire);
    let count = acknowledged.iter().filter(|done| **done).count();
    // A batch whose writer was notified of the failure may have become visible afterwards.
    assert!(
        (count..=2).contains(&visible),
        "acknowledged entries are visible"
    );
    assert!(!acknowledged[1]);
}

/// Runs more writers than there are marks.
fn crowded(fault: Fault) {
    let world = Arc::new(World::new(fault));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let world = Arc::clone(&world);
            thread::spawn(move || assert!(world.write(1, false)))
        })
        .collect();
    world.read();
    for writer in writers {
        writer.join().unwrap();
    }
    world.read();
    let visible = world.visible.load(Ordering::Acquire);
    assert_eq!(visible, 4, "not everything is visible");
}

/// During any writes, flushes and reads, a visible entry is found, a batch is seen completely or
/// not at all, and a crash keeps acknowledged writes.
#[test]
fn what_is_visible_is_found() {
    holds(|| writing(Fault::None));
    holds(|| crowded(Fault::None));
}

/// After a writer has failed, acknowledged writes are visible and no thread hangs.
#[test]
fn a_failed_writer_blocks_no_thread() {
    holds(|| failing(Fault::None));
}

/// Every step of the protocol is necessary for readers: the orders of publishing and installing.
#[test]
fn wrong_publishing_is_found_out() {
    breaks(&["a visible entry is missed"], || {
        writing(Fault::PublishedUnordered)
    });
    breaks(&["is missed", "half a batch"], || {
        writing(Fault::PublishedFirst)
    });
    breaks(&["steps"], || crowded(Fault::NextForgotten));
    breaks(&["not visible any more", "not everything"], || {
        crowded(Fault::ShownBackwards)
    });
    breaks(&["steps"], || crowded(Fault::MarkOverrun));
    breaks(&["a visible entry is missed"], || {
        writing(Fault::InstalledLate)
    });
}

/// Every step of the protocol is necessary for durability, rotation and failures.
#[test]
fn wrong_commits_are_found_out() {
    breaks(&["a crash loses"], || writing(Fault::AcknowledgedAlone));
    breaks(&["a visible entry is missed"], || {
        writing(Fault::FlushedEarly)
    });
    breaks(&["an empty memtable is sealed"], || {
        writing(Fault::RotatedTwice)
    });
    breaks(&["steps"], || failing(Fault::FailedSilently));
}
