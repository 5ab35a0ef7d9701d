//! Sequence numbers: taken in order, finished in any order, visible in order.
//!
//! A writer takes its numbers under its front's commit lock, then logs and inserts beside other
//! writers, then publishes. Publishing waits until every smaller number is visible, so a read at
//! `visible` sees each batch whole or not at all, and an acknowledged write implies that all
//! writes before it are as durable as they asked to be.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::types::SeqNo;

/// The numbers of one database.
#[derive(Default)]
pub(crate) struct Sequencer {
    /// The last number taken; changed only under the front's commit lock.
    taken: AtomicU64,
    /// Every number up to this one is inserted.
    visible: AtomicU64,
    /// Set when a writer failed after taking numbers: nobody after it can become visible.
    broken: AtomicBool,
}

impl Sequencer {
    /// Takes and shows every number up to `last`, which recovery has found in use.
    pub(crate) fn start_after(&self, last: SeqNo) {
        self.taken.fetch_max(last, Ordering::Relaxed);
        self.visible.fetch_max(last, Ordering::Release);
    }

    /// Takes `count` numbers and returns the first. The caller holds the commit lock.
    pub(crate) fn take(&self, count: u64) -> SeqNo {
        let first = self.taken.load(Ordering::Relaxed) + 1;
        self.taken.store(first + count - 1, Ordering::Relaxed);
        first
    }

    /// The last number taken. Exact under the commit lock.
    pub(crate) fn last_taken(&self) -> SeqNo {
        self.taken.load(Ordering::Relaxed)
    }

    /// What reads that begin now may see.
    #[inline]
    pub(crate) fn visible(&self) -> SeqNo {
        // Acquire: pairs with the Release in `publish`, so that the entries themselves are seen.
        self.visible.load(Ordering::Acquire)
    }

    /// Makes `first` and the `count - 1` numbers after it visible, after all before them. False:
    /// an earlier writer failed and this one can never become visible.
    #[must_use]
    pub(crate) fn publish(&self, first: SeqNo, count: u64) -> bool {
        // BOUND: the writers before this one hold their numbers only while they copy and insert.
        if !self.wait_visible(first - 1) {
            return false;
        }
        self.visible.store(first + count - 1, Ordering::Release);
        true
    }

    /// Waits until `seq` is visible. False: it never will be.
    #[must_use]
    pub(crate) fn wait_visible(&self, seq: SeqNo) -> bool {
        let mut spins = 0u32;
        while self.visible.load(Ordering::Acquire) < seq {
            if self.broken.load(Ordering::Acquire) {
                return false;
            }
            spins += 1;
            if spins < 128 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        true
    }

    /// Declares that a writer has failed between taking its numbers and publishing them.
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

    /// Longer than anything here takes unless it hangs.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Whatever the order in which writers finish, numbers become visible in order, a batch at a
    /// time, and only after they were inserted.
    #[test]
    fn batches_become_visible_in_order() {
        const WRITERS: u64 = 4;
        const BATCHES: u64 = 1500;
        let sequencer = Sequencer::default();
        sequencer.start_after(100);
        let commit = Mutex::new(());
        // For each number: the last number of its batch, 0 until it is inserted.
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
                        let first = {
                            let _guard = commit.lock().unwrap();
                            let first = sequencer.take(count);
                            assert_eq!(sequencer.last_taken(), first + count - 1);
                            first
                        };
                        if rng.u32(..50) == 0 {
                            std::thread::yield_now();
                        }
                        for seq in first..first + count {
                            let last = first + count - 1;
                            inserted[seq as usize].store(last, Ordering::Relaxed);
                        }
                        assert!(sequencer.publish(first, count));
                        assert!(sequencer.visible() >= first + count - 1);
                    }
                    all_done.fetch_add(1, Ordering::Release);
                });
            }
            let mut seen = 100;
            while all_done.load(Ordering::Acquire) < WRITERS {
                let visible = sequencer.visible();
                assert!(visible >= seen, "what is visible stays visible");
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

    /// After a writer has failed, those before it publish or are told of the failure, those after it
    /// are told that they cannot publish, and nobody waits for ever.
    #[test]
    fn a_broken_sequencer_hangs_nobody() {
        for round in 0..50 {
            let sequencer = Sequencer::default();
            let firsts: Vec<SeqNo> = (0..6).map(|_| sequencer.take(2)).collect();
            let (send, results) = channel();
            std::thread::scope(|scope| {
                for (writer, &first) in firsts.iter().enumerate() {
                    let (sequencer, send) = (&sequencer, send.clone());
                    scope.spawn(move || {
                        let published = if writer == 3 {
                            if round % 2 == 0 {
                                std::thread::sleep(Duration::from_micros(200));
                            }
                            sequencer.break_off();
                            false
                        } else {
                            // Those before the one that fails may be told of it as well, when it
                            // fails while they wait for one another.
                            sequencer.publish(first, 2)
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
                    let (writer, done) = results.recv_timeout(PATIENCE).expect("nobody hangs");
                    published[writer] = done;
                }
                assert!(published[0], "nothing before the first can fail");
                assert!(!published[4] && !published[5] && !published[9]);
                let visible = 2 * published[..3].iter().filter(|done| **done).count() as u64;
                assert_eq!(sequencer.visible(), visible);
            });
        }
    }

    /// Recovery only ever moves numbers up.
    #[test]
    fn recovered_numbers_are_not_taken_again() {
        let sequencer = Sequencer::default();
        sequencer.start_after(40);
        sequencer.start_after(12);
        assert_eq!((sequencer.visible(), sequencer.last_taken()), (40, 40));
        assert_eq!(sequencer.take(3), 41);
        assert_eq!(sequencer.take(1), 44);
        assert!(sequencer.publish(41, 3));
        assert_eq!(sequencer.visible(), 43);
        assert!(sequencer.publish(44, 1));
        sequencer.break_off();
        assert!(
            sequencer.wait_visible(44),
            "what is visible needs no waiting"
        );
        assert!(!sequencer.wait_visible(45));
    }
}
