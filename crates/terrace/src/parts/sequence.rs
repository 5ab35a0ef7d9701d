//! Sequence numbers: taken in order, finished in any order, visible in order.
//!
//! A writer takes its numbers under its front's commit lock, then logs and inserts in parallel with
//! other writers, then marks them finished. Numbers become visible when every smaller one is
//! finished. So a read at `visible` sees each batch whole or not at all, and an acknowledged write
//! implies that all writes before it are as durable as they asked to be.
//!
//! A writer that finishes also shows the finished batches of others, so one that is descheduled
//! after it finished delays no other writer. One that is descheduled before it finishes does; the
//! writers that wait for it soon sleep, which gives it a core at once. If they kept spinning, they
//! could hold the core for a whole time slice of some milliseconds.
//!
//! Proof. Batches have tickets in the order of their numbers. `marks[t % RING]` becomes `t + 1`
//! when `t` is finished (M1), and not before `t - RING` has been shown (M2). `head` is the first
//! ticket not shown. A thread that sees its mark may raise `head` by one (M3), and then raises
//! `visible` to the end of that batch. All batches before `head` are finished when `head` is
//! raised, so every value of `visible` is the end of a batch before which all are finished. Each
//! finished ticket is shown: its owner marks it and then reads `head`, and the thread that raises
//! `head` to it reads the mark after that; both are SeqCst, so at least one of the two sees the
//! other's write (M4).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::types::SeqNo;

/// The maximum number of batches that are taken and not yet visible before writers wait for one
/// another.
const RING: u64 = 256;
/// The spins before a waiting writer sleeps: some 20 us, far longer than a write takes.
const SPINS: u32 = 512;
/// The length of a sleep; the system adds some 50 us.
const NAP: Duration = Duration::from_micros(1);

/// The sequence numbers of one database.
pub(crate) struct Sequencer {
    taken: Alone<Taken>,
    shown: Alone<Shown>,
    marks: Box<[Mark]>,
    /// Set when a writer failed after reservation numbers: later numbers can never become visible.
    broken: AtomicBool,
}

/// A value on its own cache lines, since one writer takes numbers while another finishes and
/// readers look.
#[derive(Default)]
#[repr(align(128))]
struct Alone<T>(T);

/// The state that changes only under the front's commit lock.
#[derive(Default)]
struct Taken {
    /// The last number taken.
    last: AtomicU64,
    /// The next ticket.
    ticket: AtomicU64,
}

#[derive(Default)]
struct Shown {
    /// Every number up to this one is inserted.
    visible: AtomicU64,
    /// The first ticket that is not shown.
    head: AtomicU64,
}

#[derive(Default)]
struct Mark {
    /// The finished ticket plus one.
    finished: AtomicU64,
    /// The last number of its batch.
    last: AtomicU64,
}

/// The numbers taken for one batch.
#[derive(Debug)]
#[must_use]
pub(crate) struct Reservation {
    pub(crate) first: SeqNo,
    last: SeqNo,
    ticket: u64,
}

impl Default for Sequencer {
    fn default() -> Sequencer {
        Sequencer {
            taken: Alone::default(),
            shown: Alone::default(),
            marks: (0..RING).map(|_| Mark::default()).collect(),
            broken: AtomicBool::new(false),
        }
    }
}

impl Sequencer {
    /// Takes and shows every number up to `last`, as found by recovery.
    pub(crate) fn start_after(&self, last: SeqNo) {
        self.taken.0.last.fetch_max(last, Ordering::Relaxed);
        self.shown.0.visible.fetch_max(last, Ordering::Release);
    }

    /// Takes `count` numbers. The caller holds the commit lock.
    pub(crate) fn take(&self, count: u64) -> Reservation {
        let Taken { last, ticket } = &self.taken.0;
        let first = last.load(Ordering::Relaxed) + 1;
        last.store(first + count - 1, Ordering::Relaxed);
        let number = ticket.load(Ordering::Relaxed);
        ticket.store(number + 1, Ordering::Relaxed);
        Reservation {
            first,
            last: first + count - 1,
            ticket: number,
        }
    }

    /// Returns the last number taken. The result is exact under the commit lock.
    pub(crate) fn last_taken(&self) -> SeqNo {
        self.taken.0.last.load(Ordering::Relaxed)
    }

    /// Returns the newest number that reads starting now may see.
    #[inline]
    pub(crate) fn visible(&self) -> SeqNo {
        // Acquire pairs with the Release in `show_finished`, so that the entries themselves are
        // seen.
        self.shown.0.visible.load(Ordering::Acquire)
    }

    /// Marks the batch of `reservation` as inserted and waits until it is visible, after all
    /// batches before it. Returns `false` if another writer has failed. The batch may still become
    /// visible, as it may after a reopen: its record is in the log.
    #[must_use]
    pub(crate) fn publish(&self, reservation: &Reservation) -> bool {
        let Reservation { last, ticket, .. } = *reservation;
        let Shown { visible, head } = &self.shown.0;
        if head.load(Ordering::Acquire) == ticket {
            // No other thread raises `head` from here, since there is no mark. `visible` is stored
            // first, so that no later batch is shown before this one.
            visible.store(last, Ordering::Release);
            // M4: SeqCst, and the next mark is read after it.
            head.swap(ticket + 1, Ordering::SeqCst);
            self.show_finished(ticket + 1);
            return true;
        }
        // M2. BOUND: as for the wait below.
        if !self.wait(|| head.load(Ordering::Acquire) + RING > ticket) {
            return false;
        }
        let mark = &self.marks[(ticket % RING) as usize];
        mark.last.store(last, Ordering::Relaxed);
        // Release: the thread that shows the batch sees the inserted entries.
        mark.finished.store(ticket + 1, Ordering::Release);
        // M4: orders the mark before the read of `head`.
        fence(Ordering::SeqCst);
        self.show_finished(head.load(Ordering::Acquire));
        // BOUND: earlier writers hold their numbers only while they copy and insert.
        let shown = self.wait(|| head.load(Ordering::Acquire) > ticket);
        if shown {
            // The thread that raised `head` may have been descheduled before it raised `visible`.
            visible.fetch_max(last, Ordering::Release);
        }
        shown
    }

    /// Shows finished batches from `ticket` on, which is `head` or was a moment ago.
    #[inline]
    fn show_finished(&self, mut ticket: u64) {
        let Shown { visible, head } = &self.shown.0;
        // BOUND: each iteration passes a finished ticket.
        loop {
            let mark = &self.marks[(ticket % RING) as usize];
            // SeqCst for M4; its Acquire pairs with the Release of the mark.
            if mark.finished.load(Ordering::SeqCst) != ticket + 1 {
                return;
            }
            let last = mark.last.load(Ordering::Relaxed);
            // M3. On failure another thread has shown this ticket, and `last` may belong to a later
            // one.
            match head.compare_exchange(ticket, ticket + 1, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => {
                    // Not a store: the thread that showed the next ticket may have been faster.
                    visible.fetch_max(last, Ordering::Release);
                    ticket += 1;
                }
                Err(now) => ticket = now,
            }
        }
    }

    /// Waits until `seq` is visible. Returns `false` if it never will be.
    #[must_use]
    pub(crate) fn wait_visible(&self, seq: SeqNo) -> bool {
        // BOUND: writers hold their numbers only while they copy and insert.
        self.wait(|| self.visible() >= seq)
    }

    #[inline]
    fn wait(&self, done: impl Fn() -> bool) -> bool {
        let mut spins = 0u32;
        while !done() {
            if self.broken.load(Ordering::Acquire) {
                return done();
            }
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(NAP);
            }
        }
        true
    }

    /// Records that a writer failed between reservation its numbers and publishing them.
    pub(crate) fn break_off(&self) {
        self.broken.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// A time that is exceeded only by a hang.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// In whatever order writers finish, numbers become visible in order, a batch at a time, and
    /// only after they are inserted.
    #[test]
    fn batches_become_visible_in_order() {
        const WRITERS: u64 = 4;
        const BATCHES: u64 = 1500;
        let sequencer = Sequencer::default();
        sequencer.start_after(100);
        let commit = Mutex::new(());
        // The last number of each number's batch, 0 until it is inserted.
        let inserted: Vec<AtomicU64> = (0..100 + WRITERS * BATCHES * 4)
            .map(|_| AtomicU64::new(0))
            .collect();
        let all_done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (sequencer, commit, inserted) = (&sequencer, &commit, &inserted);
                let all_done = &all_done;
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(writer);
                    for _ in 0..BATCHES {
                        let count = rng.u64(1..4);
                        let reservation = {
                            let _guard = commit.lock().unwrap();
                            let reservation = sequencer.take(count);
                            assert_eq!(sequencer.last_taken(), reservation.last);
                            reservation
                        };
                        let last = reservation.last;
                        let first = last + 1 - count;
                        if rng.u32(..50) == 0 {
                            std::thread::yield_now();
                        }
                        for seq in first..first + count {
                            inserted[seq as usize].store(last, Ordering::Relaxed);
                        }
                        assert!(sequencer.publish(&reservation));
                        assert!(sequencer.visible() >= last);
                    }
                    all_done.fetch_add(1, Ordering::Release);
                });
            }
            let mut seen = 100;
            while all_done.load(Ordering::Acquire) < WRITERS {
                let visible = sequencer.visible();
                assert!(visible >= seen, "visible entries stay visible");
                for seq in seen + 1..=visible {
                    let last = inserted[seq as usize].load(Ordering::Relaxed);
                    assert_ne!(last, 0, "number {seq} is visible before it is inserted");
                    assert!(last <= visible, "half a batch is visible at {visible}");
                }
                seen = visible;
            }
        });
        assert_eq!(sequencer.visible(), sequencer.last_taken());
        assert!(sequencer.wait_visible(sequencer.last_taken()));
    }

    /// After a writer has failed, earlier ones publish or learn of the failure, later ones learn
    /// that they cannot publish, and no thread waits forever.
    #[test]
    fn a_broken_sequencer_blocks_no_thread() {
        for round in 0..50 {
            let sequencer = Sequencer::default();
            let reservations: Vec<Reservation> = (0..6).map(|_| sequencer.take(2)).collect();
            let (send, results) = channel();
            std::thread::scope(|scope| {
                for (writer, reservation) in reservations.iter().enumerate() {
                    let (sequencer, send) = (&sequencer, send.clone());
                    scope.spawn(move || {
                        let published = if writer == 3 {
                            if round % 2 == 0 {
                                std::thread::sleep(Duration::from_micros(200));
                            }
                            sequencer.break_off();
                            false
                        } else {
                            // Earlier writers may see the failure as well, if it happens while they
                            // wait for one another.
                            sequencer.publish(reservation)
                        };
                        send.send((writer, published)).unwrap();
                    });
                }
                let waiter = send.clone();
                let sequencer = &sequencer;
                scope.spawn(move || {
                    waiter.send((9, sequencer.wait_visible(12))).unwrap();
                });
                let mut published = [false; 10];
                for _ in 0..7 {
                    let (writer, done) = results.recv_timeout(PATIENCE).expect("no thread hangs");
                    published[writer] = done;
                }
                assert!(published[0], "nothing before the first can fail");
                assert!(!published[4] && !published[5] && !published[9]);
                let acknowledged = 2 * published[..3].iter().filter(|done| **done).count() as u64;
                let visible = sequencer.visible();
                // A batch whose writer saw the failure may have become visible after that.
                assert!((acknowledged..=6).contains(&visible) && visible.is_multiple_of(2));
            });
        }
    }

    /// Recovery only raises numbers.
    #[test]
    fn recovered_numbers_are_not_taken_again() {
        let sequencer = Sequencer::default();
        sequencer.start_after(40);
        sequencer.start_after(12);
        assert_eq!((sequencer.visible(), sequencer.last_taken()), (40, 40));
        let (three, one) = (sequencer.take(3), sequencer.take(1));
        assert_eq!((three.last, one.last), (43, 44));
        assert!(sequencer.publish(&three));
        assert_eq!(sequencer.visible(), 43);
        assert!(sequencer.publish(&one));
        sequencer.break_off();
        assert!(sequencer.wait_visible(44), "visible entries need no wait");
        assert!(!sequencer.wait_visible(45));
    }
}
