//! The YCSB records in one database: their numbers, keys and versions.
//!
//! Records are numbered. Threads take numbers for new records from one counter and report when they
//! were acknowledged; all below `end` are, so a reader never requests a record that does not exist
//! yet.
//!
//! Invariants
//!   R1  Every record from `first` up to `end` was acknowledged.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::step::Step;
use crate::versions::Versions;
use crate::ycsb::Workload;
use crate::ycsb::distribution::{Requests, scramble};

/// The records of a database.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) versions: Versions,
    first: u64,
    /// The number of the next new record.
    next: AtomicU64,
    end: AtomicU64,
    /// Acknowledged records above `end`.
    ahead: Mutex<BTreeSet<u64>>,
    /// The next record of a sequential workload.
    pub(crate) turn: AtomicU64,
}

impl Records {
    /// Returns an empty set of records whose first one will be number `first`.
    pub(crate) fn none_from(first: u64) -> Records {
        Records {
            first,
            next: AtomicU64::new(first),
            end: AtomicU64::new(first),
            ..Records::default()
        }
    }

    /// Returns the records of a database that another run made; their versions are unknown.
    fn there(first: u64, count: u64) -> Records {
        Records {
            first,
            next: AtomicU64::new(first + count),
            end: AtomicU64::new(first + count),
            ..Records::default()
        }
    }

    /// Returns the records that `step` works on, prepared for it: the existing ones, else the first
    /// ones of a load, or those of a database that another run made.
    pub(crate) fn of_step<'a>(
        there: &'a mut Option<Records>,
        step: Step,
        workload: &Workload,
    ) -> &'a Records {
        let records = there.get_or_insert_with(|| match step {
            Step::YcsbLoad => Records::none_from(workload.first),
            _ => Records::there(workload.first, workload.loaded),
        });
        records.prepare(match step {
            Step::YcsbLoad => workload.loaded,
            _ => workload.inserts_to_come(),
        });
        records
    }

    /// Returns the requests for these records that `workload` makes.
    pub(crate) fn requests(&self, workload: &Workload) -> Requests {
        let to_come = workload.inserts_to_come();
        Requests::new(workload.requests, self.first, self.count().max(1), to_come)
    }

    /// Makes space to track `more` new records, and restarts sequential requests.
    pub(crate) fn prepare(&mut self, more: u64) {
        self.versions
            .grow(self.next.load(Ordering::Relaxed).saturating_add(more));
        self.turn = AtomicU64::new(0);
    }

    /// Returns the number after the last record that every reader may request.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns the number of records.
    pub(crate) fn count(&self) -> u64 {
        self.end() - self.first
    }

    /// Takes the number of a new record.
    #[inline]
    pub(crate) fn take(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes the number of a new record below `limit`; returns `None` if all are taken.
    #[inline]
    pub(crate) fn take_below(&self, limit: u64) -> Option<u64> {
        let number = self.take();
        (number < limit).then_some(number)
    }

    /// Continues the numbering after the last acknowledged record: numbers taken beyond it are
    /// freed.
    pub(crate) fn settle(&mut self) {
        let end = self.end();
        let ahead = self.ahead.get_mut().unwrap_or_else(PoisonError::into_inner);
        let next = ahead.last().map_or(end, |last| last + 1);
        self.next = AtomicU64::new(next);
    }

    /// Records that the new record `number` was acknowledged.
    #[inline]
    pub(crate) fn acknowledge(&self, number: u64) {
        let after = number + 1;
        // With one thread, or in order, no lock is needed.
        let in_order =
            self.end
                .compare_exchange(number, after, Ordering::AcqRel, Ordering::Relaxed);
        let mut ahead = match (in_order, self.ahead.lock()) {
            (Ok(_), Ok(ahead)) if ahead.is_empty() => return,
            (_, ahead) => ahead.unwrap_or_else(PoisonError::into_inner),
        };
        if in_order.is_err() {
            ahead.insert(number);
        }
        // Only the thread at the end moves it, and a thread that inserts a number ahead checks it
        // again afterwards.
        let mut end = self.end.load(Ordering::Acquire);
        while ahead.remove(&end) {
            end += 1;
            self.end.store(end, Ordering::Release);
        }
    }
}

/// Writes YCSB's keys into one buffer: `user` and a number, padded with zeros to a width.
#[derive(Debug, Clone)]
pub(crate) struct RecordKeys {
    ordered: bool,
    padding: usize,
    buffer: Vec<u8>,
}

const PREFIX: &[u8; 4] = b"user";

impl RecordKeys {
    pub(crate) fn new(ordered: bool, padding: usize) -> RecordKeys {
        RecordKeys {
            ordered,
            padding,
            buffer: PREFIX.to_vec(),
        }
    }

    /// Returns the number in the key of record `number`.
    #[inline]
    pub(crate) fn name(&self, number: u64) -> u64 {
        if self.ordered {
            number
        } else {
            scramble(number)
        }
    }

    /// Returns the key with `name` in it.
    #[inline]
    pub(crate) fn key(&mut self, name: u64) -> &[u8] {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        let mut rest = name;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[at..];
        self.buffer.truncate(PREFIX.len());
        let zeros = self.padding.saturating_sub(digits.len());
        self.buffer.resize(PREFIX.len() + zeros, b'0');
        self.buffer.extend_from_slice(digits);
        &self.buffer
    }

    /// Returns the length of the longest key.
    pub(crate) fn bytes_max(padding: usize) -> usize {
        PREFIX.len() + padding.max(20)
    }
}

/// Returns the number in `key`; `None` if it is no key of a record.
#[inline]
pub(crate) fn name_in(key: &[u8]) -> Option<u64> {
    let digits = key
        .strip_prefix(PREFIX)
        .filter(|digits| !digits.is_empty())?;
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys are YCSB's, hashed or ordered, padded or not, and contain their number.
    #[test]
    fn keys_are_ycsbs() {
        let mut ordered = RecordKeys::new(true, 8);
        assert_eq!(ordered.key(5), b"user00000005");
        assert_eq!(ordered.key(123_456_789), b"user123456789");
        let mut plain = RecordKeys::new(true, 1);
        assert_eq!(plain.key(0), b"user0");
        assert_eq!(plain.key(u64::MAX), b"user18446744073709551615");
        let mut hashed = RecordKeys::new(false, 1);
        let name = hashed.name(0);
        assert_eq!(hashed.key(name), b"user6284781860667377211");
        assert_eq!(name_in(b"user6284781860667377211"), Some(name));
        assert_eq!(name_in(b"user00000005"), Some(5));
        for foreign in [&b"user"[..], b"0000", b"userx", b"user99999999999999999999"] {
            assert_eq!(name_in(foreign), None, "{}", foreign.escape_ascii());
        }
    }

    /// A record may be requested once all before it are acknowledged, in any order of
    /// acknowledgement.
    #[test]
    fn the_end_has_no_holes() {
        let records = Records::none_from(10);
        let taken: Vec<u64> = (0..7).map(|_| records.take()).collect();
        assert_eq!(taken, [10, 11, 12, 13, 14, 15, 16]);
        for (number, end) in [
            (12, 10),
            (11, 10),
            (14, 10),
            (10, 13),
            (13, 15),
            (15, 16),
            (16, 17),
        ] {
            records.acknowledge(number);
            assert_eq!(records.end(), end, "after {number}");
        }
        assert_eq!(records.count(), 7);
    }

    /// Many threads leave no hole, and numbers beyond a limit are freed.
    #[test]
    fn threads_leave_no_holes() {
        let mut records = Records::none_from(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = 0;
                    while let Some(number) = records.take_below(20_000) {
                        records.acknowledge(number);
                        let end = records.end();
                        assert!(end >= last);
                        last = end;
                    }
                });
            }
        });
        assert_eq!(records.end(), 20_000);
        records.settle();
        assert_eq!(records.take(), 20_000);
    }
}
