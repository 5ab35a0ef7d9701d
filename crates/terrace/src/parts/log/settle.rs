//! Tracks the prefix of a log that is written without gaps while writers overlap.
//!
//! Records are numbered as their space is reserved. A writer that finishes stores its number in a
//! ring of marks, and a reader walks the marks from the last known number on. An append thus costs
//! one more store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The maximum number of records in flight that are tracked. A record beyond it never counts as
/// settled, which only weakens the detection of damage.
const RING: u64 = 256;

/// Records end at multiples of these bytes.
const UNIT: u64 = 8;
/// A mark holds the low 29 bits of the number and an end of at most 2^35 units.
const END_BITS: u32 = 35;
const END_MASK: u64 = (1 << END_BITS) - 1;
const NUMBER_MASK: u64 = u64::MAX >> END_BITS;

/// The number of a reserved record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    number: u64,
    tracked: bool,
}

/// The written records of one log.
#[derive(Debug)]
pub(crate) struct Settle {
    /// The first number not known to be written, and the offset of its record.
    head: AtomicU64,
    /// The next number to assign.
    next: AtomicU64,
    /// The number and the end of a written record, indexed by the number modulo `RING`.
    marks: Box<[AtomicU64]>,
    /// Whether a record was not tracked; changed and read by `reserve`'s callers.
    overrun: AtomicBool,
}

fn pack(number: u64, end: u64) -> u64 {
    (number << END_BITS) | (end / UNIT)
}

impl Settle {
    /// Tracks a log whose first record starts at `start`.
    pub(crate) fn new(start: u64) -> Settle {
        Settle {
            head: AtomicU64::new(pack(0, start)),
            next: AtomicU64::new(0),
            marks: (0..RING).map(|_| AtomicU64::new(0)).collect(),
            overrun: AtomicBool::new(false),
        }
    }

    fn walk(&self) -> u64 {
        let mut head = self.head.load(Ordering::Acquire);
        // BOUND: each iteration passes a finished record.
        loop {
            let number = head >> END_BITS;
            // Acquire pairs with `finish`: the record's writes happen before.
            let mark = self.marks[(number % RING) as usize].load(Ordering::Acquire);
            if mark & END_MASK == 0 || mark >> END_BITS != number {
                return head;
            }
            head = ((number + 1) << END_BITS) | (mark & END_MASK);
        }
    }

    /// Returns the position before which everything has been written.
    pub(crate) fn written(&self) -> u64 {
        (self.walk() & END_MASK) * UNIT
    }

    /// Numbers the next record and returns the position before which everything has been written.
    /// Calls must not overlap.
    #[inline]
    pub(crate) fn reserve(&self) -> (Ticket, u64) {
        let head = self.walk();
        self.head.store(head, Ordering::Release);
        let number = self.next.load(Ordering::Relaxed);
        self.next.store(number.wrapping_add(1), Ordering::Relaxed);
        let ahead = number.wrapping_sub(head >> END_BITS) & NUMBER_MASK;
        let ticket = Ticket {
            number,
            tracked: ahead < RING,
        };
        if !ticket.tracked {
            self.overrun.store(true, Ordering::Relaxed);
        }
        (ticket, (head & END_MASK) * UNIT)
    }

    /// Returns whether every record so far is tracked, so that `written` gets past all of them.
    /// Calls must not overlap with `reserve`.
    pub(crate) fn tracks_all(&self) -> bool {
        !self.overrun.load(Ordering::Relaxed)
    }

    /// Marks the record of `ticket`, which ends at `end`, as written.
    #[inline]
    pub(crate) fn finish(&self, ticket: Ticket, end: u64) {
        if ticket.tracked {
            let mark = &self.marks[(ticket.number % RING) as usize];
            mark.store(pack(ticket.number, end), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In whatever order writers finish, the result is the end of the longest prefix without a gap.
    #[test]
    fn runs_end_at_the_first_gap() {
        let mut rng = fastrand::Rng::with_seed(11);
        let settle = Settle::new(64);
        let mut open: Vec<(Ticket, u64, u64)> = Vec::new();
        let mut tail = 64;
        for _ in 0..20_000 {
            if open.is_empty() || (rng.bool() && open.len() < RING as usize) {
                let start = tail;
                tail += 64 * rng.u64(1..5);
                open.push((settle.reserve().0, start, tail));
            } else {
                let (ticket, _, end) = open.swap_remove(rng.usize(..open.len()));
                settle.finish(ticket, end);
            }
            let gap = open.iter().map(|o| o.1).min().unwrap_or(tail);
            let oldest = open.iter().map(|o| o.0.number).min();
            let newest = open.iter().map(|o| o.0.number).max();
            if newest.zip(oldest).is_none_or(|(n, o)| n - o < RING) {
                assert!(settle.written() <= gap);
            }
            if open.iter().all(|o| o.0.tracked) && settle.written() != gap {
                // Only a ticket beyond the ring may have been lost.
                assert!(tail - settle.written() > 64 * RING);
            }
        }
    }

    /// Beyond the ring no unwritten record counts as settled, and nothing panics.
    #[test]
    fn overflow_only_forgets() {
        let settle = Settle::new(64);
        let tickets: Vec<Ticket> = (0..2 * RING).map(|_| settle.reserve().0).collect();
        for (i, t) in tickets.iter().enumerate().rev() {
            settle.finish(*t, 64 * (i as u64 + 2));
        }
        assert_eq!(settle.written(), 64 * (RING + 1));
        assert!(!settle.tracks_all());
        let (late, _) = settle.reserve();
        settle.finish(late, 64 * (2 * RING + 2));
        assert_eq!(settle.written(), 64 * (RING + 1));
    }
}
