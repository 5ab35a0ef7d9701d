//! Model of the write path (`stages/front/wal_memtable`, `parts/sequence.rs`, `engine/commit.rs`):
//! numbers, log places and memtable places are taken under the commit lock; records are written
//! and entries inserted beside other writers; batches become visible in the order of their numbers;
//! full memtables are replaced under the commit lock, and flushed.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use super::{breaks, holds};

/// Entries that a memtable takes.
const MEMTABLE_ENTRIES: usize = 3;
/// More than all numbers.
const NUMBERS: usize = 10;

/// What is wrong with the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A batch becomes visible without waiting for those before it.
    PublishedUnordered,
    /// A batch becomes visible before it is inserted.
    PublishedFirst,
    /// The view of a new memtable is installed after the commit lock was given back.
    InstalledLate,
    /// A write is acknowledged when its own record is written.
    AcknowledgedAlone,
    /// A memtable is flushed without waiting for the writers that have places in it.
    FlushedEarly,
    /// A writer does not look again whether the memtable is still the full one.
    RotatedTwice,
    /// A writer that fails tells nobody.
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

/// What the commit lock guards.
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
    visible: AtomicUsize,
    broken: AtomicBool,
    logged: [AtomicBool; NUMBERS],
    acknowledged: [AtomicBool; NUMBERS],
    /// First numbers and sizes of the batches, in their order.
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
            visible: AtomicUsize::new(0),
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

    /// Writes a batch; true when it was acknowledged. `fails`: its record cannot be written.
    fn write(&self, count: usize, fails: bool) -> bool {
        let (memtable, first) = loop {
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
            break (Arc::clone(&commit.memtable), first);
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
        if self.fault == Fault::PublishedFirst && !self.publish(first, count) {
            return false;
        }
        for number in numbers.clone() {
            memtable.inserted[number].store(true, Ordering::Release);
        }
        if self.fault != Fault::AcknowledgedAlone
            && self.fault != Fault::PublishedFirst
            && !self.publish(first, count)
        {
            return false;
        }
        for number in numbers {
            self.acknowledged[number].store(true, Ordering::Release);
        }
        self.fault != Fault::AcknowledgedAlone || self.publish(first, count)
    }

    fn publish(&self, first: usize, count: usize) -> bool {
        let last = first + count - 1;
        if self.fault == Fault::PublishedUnordered {
            self.visible.fetch_max(last, Ordering::Release);
            return true;
        }
        if !self.wait_visible(first - 1) {
            return false;
        }
        self.visible.store(last, Ordering::Release);
        true
    }

    fn wait_visible(&self, number: usize) -> bool {
        while self.visible.load(Ordering::Acquire) < number {
            if self.broken.load(Ordering::Acquire) {
                return false;
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

    /// A reader: what was visible before it began, it finds, and of each batch all or nothing.
    fn read(&self) {
        let before = self.visible.load(Ordering::Acquire);
        let view = Arc::clone(&self.view.lock().unwrap());
        let at = self.visible.load(Ordering::Acquire);
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

    /// A crash at this moment: a replay takes records up to the first that is missing.
    fn crash(&self) {
        // First what was acknowledged, then the log: a record written between the two is in both.
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

/// Two writers of two batches each, a job that flushes, readers and a crash at any moment.
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

/// Three writers, of which one fails between taking its numbers and publishing them.
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
    assert_eq!(visible, count, "what is visible was acknowledged");
    assert!(!acknowledged[1]);
}

/// Whatever writers, flushes and readers do, a visible entry is found, a batch is seen whole or not
/// at all, and a crash keeps what was acknowledged.
#[test]
fn what_is_visible_is_found() {
    holds(|| writing(Fault::None));
}

/// After a writer has failed, what is visible is what was acknowledged, and nobody hangs.
#[test]
fn a_failed_writer_hangs_nobody() {
    holds(|| failing(Fault::None));
}

/// Each step of the protocol is needed.
#[test]
fn wrong_commits_are_found_out() {
    breaks(&["a visible entry is missed"], || {
        writing(Fault::PublishedUnordered)
    });
    breaks(&["is missed", "half a batch"], || {
        writing(Fault::PublishedFirst)
    });
    breaks(&["a visible entry is missed"], || {
        writing(Fault::InstalledLate)
    });
    breaks(&["a crash loses"], || writing(Fault::AcknowledgedAlone));
    breaks(&["a visible entry is missed"], || {
        writing(Fault::FlushedEarly)
    });
    breaks(&["an empty memtable is sealed"], || {
        writing(Fault::RotatedTwice)
    });
    breaks(&["steps"], || failing(Fault::FailedSilently));
}
