//! Histories of registers, and checks that they are linearizable.
//!
//! Every operation has the times of its call and of its return, from one clock. Writes of one
//! register have distinct values, so a read identifies the write that it saw.
//!
//! A history of reads and writes of distinct values is linearizable exactly if (Gibbons and Korach,
//! 1997) no read returns before its write was called, and, with the *zone* of a write spanning from
//! the first return to the last call among the write and its reads, no two forward zones overlap,
//! and no backward zone is inside a forward one.
//!
//! Deletes are not distinct. Registers with deletes have one writer, whose order is known. Each
//! read must then be assigned a write that is not older than those assigned to reads and writes
//! that returned before it was called.

use std::collections::BTreeMap;

use crate::oracle::Outcome;

/// One read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time of the call.
    pub called: u64,
    /// The time of the return, or the largest number if it never returned.
    pub returned: u64,
    /// The value written or seen. `None` stands for deleted or absent.
    pub value: Option<u64>,
    /// The kind of call, for messages.
    pub how: &'static str,
}

/// The operations on one register.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The writes. With deletes, they are those of one writer, in its order.
    pub writes: Vec<Event>,
    /// The reads.
    pub reads: Vec<Event>,
}

struct Zone {
    first_return: u64,
    last_call: u64,
    write: Event,
}

impl History {
    /// Checks a register that is initially absent and only set, to distinct values.
    pub fn check_unique(&self) -> Outcome {
        let start = Event {
            called: 0,
            returned: 0,
            value: None,
            how: "start",
        };
        let mut zones: BTreeMap<Option<u64>, Zone> = BTreeMap::new();
        for write in self.writes.iter().chain([&start]) {
            let zone = Zone {
                first_return: write.returned,
                last_call: write.called,
                write: *write,
            };
            if zones.insert(write.value, zone).is_some() {
                return Err(format!("the test wrote {:?} twice", write.value));
            }
        }
        for read in &self.reads {
            let Some(zone) = zones.get_mut(&read.value) else {
                return Err(format!(
                    "a read saw {:?}, which was never written",
                    read.value
                ));
            };
            if read.returned < zone.write.called {
                return Err(format!(
                    "{read:?} saw a write of the future: {:?}",
                    zone.write
                ));
            }
            zone.first_return = zone.first_return.min(read.returned);
            zone.last_call = zone.last_call.max(read.called);
        }
        let mut forward: Vec<&Zone> = zones
            .values()
            .filter(|zone| zone.first_return < zone.last_call)
            .collect();
        forward.sort_by_key(|zone| zone.first_return);
        for pair in forward.windows(2) {
            if pair[1].first_return < pair[0].last_call {
                return Err(format!(
                    "{:?} was seen at {} although {:?} had been seen or finished at {}, and again \
                     the other way round at {}",
                    pair[0].write.value,
                    pair[0].last_call,
                    pair[1].write.value,
                    pair[1].first_return,
                    pair[1].last_call,
                ));
            }
        }
        for zone in zones
            .values()
            .filter(|zone| zone.first_return >= zone.last_call)
        {
            let at = forward.partition_point(|other| other.first_return < zone.last_call);
            let around = at.checked_sub(1).map(|at| forward[at]);
            if let Some(around) = around
                && zone.first_return < around.last_call
            {
                return Err(format!(
                    "{:?} lies within {:?}, which was seen before {} and after {}",
                    zone.write, around.write, zone.last_call, zone.first_return
                ));
            }
        }
        Ok(())
    }

    /// Checks a register with one writer, which may delete.
    pub fn check_one_writer(&self) -> Outcome {
        let mut reads = self.reads.clone();
        reads.sort_by_key(|read| read.called);
        // Reads by the time of their return, with the write assigned to them.
        let mut returned: Vec<(u64, usize)> = Vec::new();
        for read in &reads {
            // Write 0 is the initial state. Write i is `writes[i - 1]`.
            let finished = self
                .writes
                .partition_point(|write| write.returned < read.called);
            let seen = returned.iter().filter(|(at, _)| *at < read.called);
            let least = seen.map(|(_, write)| *write).fold(finished, usize::max);
            let begun = self
                .writes
                .partition_point(|write| write.called < read.returned);
            let value = |at: usize| at.checked_sub(1).and_then(|at| self.writes[at].value);
            let Some(given) = (least..=begun).find(|&at| value(at) == read.value) else {
                return Err(format!(
                    "{read:?}: no write of {least} to {begun} explains it; the writer wrote {:?}",
                    &self.writes[least.saturating_sub(2)
                        ..begun.min(least + 3).max(least.saturating_sub(2))]
                ));
            };
            returned.push((read.returned, given));
            // Of the old reads only the one with the newest write matters.
            if returned.len() > 64 {
                let best = returned
                    .iter()
                    .filter(|(at, _)| *at < read.called)
                    .max_by_key(|(_, write)| *write)
                    .copied();
                returned.retain(|(at, _)| *at >= read.called);
                returned.extend(best);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(called: u64, returned: u64, value: u64) -> Event {
        Event {
            called,
            returned,
            value: (value > 0).then_some(value),
            how: "",
        }
    }

    fn history(writes: &[(u64, u64, u64)], reads: &[(u64, u64, u64)]) -> History {
        let all = |events: &[(u64, u64, u64)]| {
            events
                .iter()
                .map(|&(called, returned, value)| event(called, returned, value))
                .collect()
        };
        History {
            writes: all(writes),
            reads: all(reads),
        }
    }

    /// Linearizable histories pass.
    #[test]
    fn explainable_histories_pass() {
        let overlapping = history(
            &[(1, 10, 1), (2, 9, 2), (20, 30, 3)],
            &[
                (3, 4, 2),
                (11, 12, 1),
                (21, 22, 1),
                (23, 24, 3),
                (31, 32, 3),
            ],
        );
        assert_eq!(overlapping.check_unique(), Ok(()));
        let deleted = history(
            &[(1, 2, 1), (3, 4, 0), (5, 9, 2)],
            &[(4, 6, 0), (6, 7, 2), (10, 11, 2)],
        );
        assert_eq!(deleted.check_one_writer(), Ok(()));
    }

    /// A read of a value that had been overwritten before the read began fails.
    #[test]
    fn stale_reads_fail() {
        let stale = history(&[(1, 2, 1), (3, 4, 2)], &[(5, 6, 1)]);
        assert!(stale.check_unique().is_err());
        assert!(stale.check_one_writer().is_err());
    }

    /// Two consecutive reads see two overlapping writes, and a third sees the first again.
    #[test]
    fn reads_that_go_back_fail() {
        let back = history(
            &[(1, 20, 1), (2, 19, 2)],
            &[(3, 4, 1), (5, 6, 2), (7, 8, 1)],
        );
        assert!(back.check_unique().is_err());
        let back = history(&[(1, 2, 1), (3, 20, 2)], &[(4, 5, 2), (6, 7, 1)]);
        assert!(back.check_unique().is_err());
        assert!(back.check_one_writer().is_err());
    }

    /// A read of nothing after a finished write fails, and so does a read of a later write.
    #[test]
    fn lost_and_early_values_fail() {
        let lost = history(&[(1, 2, 1)], &[(3, 4, 0)]);
        assert!(lost.check_unique().is_err());
        assert!(lost.check_one_writer().is_err());
        let early = history(&[(5, 6, 1)], &[(1, 2, 1)]);
        assert!(early.check_unique().is_err());
        assert!(early.check_one_writer().is_err());
    }
}
