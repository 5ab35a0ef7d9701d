//! Model of the writers of a list that is its own log (`parts/log/list.rs`): places are taken in
//! the order of numbers, nodes are written concurrently, and power may fail at any moment.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use crate::models::{breaks, holds};

const WRITERS: usize = 3;
/// The nodes of each batch.
const BATCH: usize = 2;
const NODES: usize = WRITERS * BATCH;

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A batch is visible before its fence.
    PublishedFirst,
    /// A batch is visible before one with an earlier place.
    OutOfOrder,
    /// Places are taken in another order than numbers.
    PlacesApart,
    /// A node is linked before it is written.
    LinkedFirst,
    /// A mark names a place before which a node is not fenced.
    MarkedEarly,
}

struct World {
    /// The next number and the next place, under the commit lock.
    next: Mutex<(usize, usize)>,
    /// The number at each place, plus one, in working memory and on the medium.
    written: [AtomicUsize; NODES],
    durable: [AtomicUsize; NODES],
    linked: [AtomicBool; NODES],
    /// Batches whose writers have fenced, by number.
    finished: [AtomicBool; WRITERS],
    visible: AtomicUsize,
    mark: AtomicUsize,
    fault: Fault,
}

impl World {
    fn new(fault: Fault) -> World {
        World {
            next: Mutex::new((0, 0)),
            written: Default::default(),
            durable: Default::default(),
            linked: Default::default(),
            finished: Default::default(),
            visible: AtomicUsize::new(0),
            mark: AtomicUsize::new(0),
            fault,
        }
    }

    /// Returns the end of the longest prefix of finished batches.
    fn finished(&self) -> usize {
        let finished = self.finished.iter();
        let finished = finished.take_while(|batch| batch.load(Ordering::SeqCst));
        finished.count() * BATCH
    }

    /// Takes a number and a place.
    fn reserve(&self) -> (usize, usize) {
        let apart = self.fault == Fault::PlacesApart;
        let mut next = self.next.lock().unwrap();
        let number = next.0;
        next.0 += BATCH;
        if apart {
            drop(next);
            next = self.next.lock().unwrap();
        }
        let place = next.1;
        next.1 += BATCH;
        let mark = match self.fault {
            Fault::MarkedEarly => place,
            _ => self.finished(),
        };
        self.mark.store(mark, Ordering::SeqCst);
        (number, place)
    }

    fn write(&self) {
        let (number, place) = self.reserve();
        for at in 0..BATCH {
            let node = place + at;
            if self.fault == Fault::LinkedFirst {
                self.linked[node].store(true, Ordering::SeqCst);
            }
            self.written[node].store(number + at + 1, Ordering::SeqCst);
            self.linked[node].store(true, Ordering::SeqCst);
        }
        if self.fault == Fault::PublishedFirst {
            self.visible.fetch_max(number + BATCH, Ordering::SeqCst);
        }
        for at in 0..BATCH {
            self.durable[place + at].store(number + at + 1, Ordering::SeqCst);
        }
        self.finished[number / BATCH].store(true, Ordering::SeqCst);
        let visible = match self.fault {
            Fault::OutOfOrder => number + BATCH,
            _ => self.finished(),
        };
        self.visible.fetch_max(visible, Ordering::SeqCst);
    }

    /// Asserts that a recovery would find all that is acknowledged, if power failed now.
    fn crash(&self) {
        // Both before the medium: it may only have more by then.
        let acknowledged = self.visible.load(Ordering::SeqCst);
        let mark = self.mark.load(Ordering::SeqCst);
        let numbers = self.durable.iter().map(|node| node.load(Ordering::SeqCst));
        let found = (1..).zip(numbers).take_while(|(next, found)| next == found);
        let found = found.count();
        assert!(found >= acknowledged, "an acknowledged batch is lost");
        assert!(found >= mark, "a crash looks like damage");
    }

    fn read(&self) {
        for (written, linked) in self.written.iter().zip(&self.linked) {
            if linked.load(Ordering::SeqCst) {
                assert!(written.load(Ordering::SeqCst) > 0, "a torn node is read");
            }
        }
    }
}

fn run(fault: Fault) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let world = Arc::new(World::new(fault));
        let writers = (0..WRITERS).map(|_| {
            let world = Arc::clone(&world);
            thread::spawn(move || world.write())
        });
        let mut threads: Vec<_> = writers.collect();
        let observed = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            for _ in 0..3 {
                observed.crash();
                observed.read();
            }
        }));
        for thread in threads {
            thread.join().unwrap();
        }
        world.crash();
        assert_eq!(world.visible.load(Ordering::SeqCst), NODES);
    }
}

#[test]
fn acknowledged_nodes_survive() {
    holds(run(Fault::None));
}

#[test]
fn wrong_orders_are_found() {
    let lost = "an acknowledged batch is lost";
    let damage = "a crash looks like damage";
    for (fault, complaints) in [
        (Fault::PublishedFirst, &[lost][..]),
        (Fault::OutOfOrder, &[lost]),
        (Fault::PlacesApart, &[lost, damage]),
        (Fault::LinkedFirst, &["a torn node is read"]),
        (Fault::MarkedEarly, &[damage]),
    ] {
        breaks(complaints, run(fault));
    }
}
