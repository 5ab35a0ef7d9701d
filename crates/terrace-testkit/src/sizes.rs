//! Sizes near limits: sizes of values and keys at which the behavior of a store changes, and the
//! expected results for sizes beyond the limits.
//!
//! | limit | what changes there |
//! |---|---|
//! | the remaining space of a memtable, as estimated | the write that seals it |
//! | an eighth of a memtable | a spare is made ahead; a close flushes |
//! | a whole memtable, and half of it | a separate memtable |
//! | the cap of logs, and half of it | a log larger than all may be |
//! | an eighth of the pool | the largest batch |
//! | the pool | entries that never fit |
//! | 64 KiB | the longest key |

use terrace::{Durability, Options};
use terrace_media::Medium;

use crate::script::{Entry, Key, Op, Range};
use crate::value::Value;

/// The maximum length of a key.
pub(crate) const KEY_MAX: usize = 64 << 10;
/// An upper limit of the overhead of an entry, in addition to key and value, in any log, memtable
/// or table.
const OVERHEAD_MAX: u64 = 256;

/// The limits of a store.
#[derive(Clone, Debug)]
pub struct Edges {
    memtable: u64,
    limits: Vec<u64>,
    /// The number of bytes that a script may spend on large values.
    budget: u64,
}

impl Edges {
    /// Returns the limits of a store with these options.
    pub fn of(options: &Options, medium: Medium) -> Edges {
        let (memtable, pool) = (options.front.memtable_bytes, options.pool.size_bytes);
        let often = [memtable, memtable, memtable / 8, memtable / 8, memtable / 2];
        let mut limits = often.to_vec();
        limits.extend([batch_bytes_max(options), pool]);
        if medium == Medium::Dram {
            let logs = options.front.log_bytes_max;
            limits.extend([logs, logs / 2]);
        }
        Edges {
            memtable,
            limits,
            budget: (4 * memtable).max(32 << 20),
        }
    }

    /// Returns the limits of several stores that must never be full, with memtables of these sizes.
    pub fn of_memtables(sizes: &[u64]) -> Edges {
        let each = |bytes: &u64| [*bytes, *bytes / 8, *bytes / 2];
        Edges {
            memtable: sizes.iter().copied().max().unwrap_or(0),
            limits: sizes.iter().flat_map(each).collect(),
            budget: 4 << 20,
        }
    }

    /// Draws a size just below, at or just above a limit.
    fn draw(&self, rng: &mut fastrand::Rng, filled: u64) -> u64 {
        let edge = match rng.u8(..4) {
            0 => self.memtable.saturating_sub(filled % self.memtable.max(1)),
            _ => self.limits[rng.usize(..self.limits.len())],
        };
        let off = match rng.bool() {
            true => rng.u64(..OVERHEAD_MAX),
            false => rng.u64(..16),
        };
        match rng.u8(..4) {
            0 => edge + off,
            _ => edge.saturating_sub(off),
        }
    }

    /// Returns the script with some sizes drawn near these limits, from the seed.
    #[must_use]
    pub fn widen(&self, mut script: Vec<Op>, seed: u64) -> Vec<Op> {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x0073_697a_6573);
        let share = [0, 10, 30, 150][rng.usize(..4)];
        let mut long: Vec<Key> = Vec::new();
        let (mut filled, mut spent) = (0, 0);
        for op in &mut script {
            match op {
                Op::Write(entries, _) => {
                    for entry in entries {
                        if rng.u32(..1000) < share {
                            let len = self.draw(&mut rng, filled);
                            if let Some(value) = &mut entry.value
                                && spent + len < self.budget
                            {
                                spent += len;
                                *value = of_len(*value, len);
                            }
                        } else if rng.u32(..2000) < share {
                            lengthen(entry, &mut long, &mut rng);
                        }
                        filled += bytes(entry);
                    }
                }
                Op::Ingest(_, pairs) if rng.u32(..300) < share => {
                    *pairs = self.pairs(&mut rng, filled);
                    spent += pairs
                        .iter()
                        .map(|(_, value)| u64::from(value.len))
                        .sum::<u64>();
                    if spent > self.budget {
                        pairs.truncate(1);
                    }
                    filled = 0;
                }
                Op::Get(_, key) | Op::Scan(_, Range::Prefix(key), _) | Op::GetIn(_, _, key)
                    if !long.is_empty() && rng.u8(..8) == 0 =>
                {
                    *key = long[rng.usize(..long.len())].clone();
                }
                Op::Flush | Op::Drain | Op::Reopen(..) => filled = 0,
                _ => {}
            }
        }
        script
    }
}

impl Edges {
    /// Returns pairs of an ingest: one of a size near a limit, a few of such sizes, or many with a
    /// total near one.
    fn pairs(&self, rng: &mut fastrand::Rng, filled: u64) -> Vec<(Key, Value)> {
        let count = [1, 1, 3, rng.u64(2..60)][rng.usize(..4)];
        let size = self.draw(rng, filled);
        let together = rng.bool();
        let mut pairs = Vec::new();
        for n in 0..count {
            let len = match (together, count) {
                (true, _) => size / count,
                (false, 1) => size,
                (false, _) => self.draw(rng, filled).min(self.memtable + OVERHEAD_MAX),
            };
            let mut key = Key(vec![b'a' + rng.u8(..8), n as u8]);
            if rng.u8(..40) == 0 {
                key.0.resize(KEY_MAX + 1 - rng.usize(..3), b'k');
            }
            let tag = 1 << 50 | rng.u64(..1 << 40);
            pairs.push((key, of_len(Value { tag, len: 0 }, len)));
        }
        pairs.sort_by(|(one, _), (two, _)| one.0.cmp(&two.0));
        pairs.dedup_by(|(one, _), (two, _)| one == two);
        pairs
    }
}

fn of_len(value: Value, len: u64) -> Value {
    Value {
        len: u32::try_from(len).unwrap_or(u32::MAX),
        ..value
    }
}

/// Gives an entry a key of the maximum length, or one slightly shorter or longer.
fn lengthen(entry: &mut Entry, long: &mut Vec<Key>, rng: &mut fastrand::Rng) {
    let len = KEY_MAX + 1 - rng.usize(..3);
    let key = Key(vec![b"abc\x00\xff"[rng.usize(..5)]; len]);
    match &mut entry.until {
        Some(end) if rng.bool() => *end = key,
        _ => {
            long.push(key.clone());
            entry.key = key;
        }
    }
}

fn bytes(entry: &Entry) -> u64 {
    let end = entry.until.as_ref().map_or(0, |end| end.0.len());
    let value = entry.value.map_or(0, |value| u64::from(value.len));
    (entry.key.0.len() + end) as u64 + value
}

/// Returns the maximum size of a batch of a store.
fn batch_bytes_max(options: &Options) -> u64 {
    let eighth = options.pool.size_bytes / 8;
    eighth.max(options.front.memtable_bytes / 2).min(1 << 30)
}

/// Returns whether a write must be `Invalid`, or `None` if it is too close to the limit to predict.
pub(crate) fn is_invalid(entries: &[Entry], options: &Options) -> Option<bool> {
    let too_long = |key: &Key| key.0.len() > KEY_MAX;
    if entries
        .iter()
        .any(|entry| too_long(&entry.key) || entry.until.as_ref().is_some_and(too_long))
    {
        return Some(true);
    }
    let least: u64 = entries.iter().map(bytes).sum();
    let most = batch_bytes_max(options);
    match least > most {
        true => Some(true),
        false if least + entries.len() as u64 * OVERHEAD_MAX < most => Some(false),
        false => None,
    }
}

/// As [`is_invalid`], for a pair of an ingest. If it goes into files, only its key may be too long.
pub(crate) fn is_invalid_in_bulk(
    entry: &Entry,
    options: &Options,
    into_files: bool,
) -> Option<bool> {
    match into_files {
        true => Some(entry.key.0.len() > KEY_MAX),
        false => is_invalid(std::slice::from_ref(entry), options),
    }
}

/// Generates ingests of sizes near these limits, before and after small puts, and for odd seeds in
/// a pool that is nearly full.
pub fn of_ingests(edges: &Edges, pool_bytes: u64, len: usize, seed: u64) -> Vec<Op> {
    const FILLER: u32 = 3000;
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6275_6c6b);
    let put = |key: Vec<u8>, tag: u64, len: u32| {
        let entry = Entry {
            space: 0,
            key: Key(key),
            value: Some(Value { tag, len }),
            until: None,
            ttl: None,
        };
        Op::Write(vec![entry], Durability::Buffered)
    };
    let mut script = Vec::new();
    let mut tag = 0;
    if seed % 2 == 1 {
        let percent = rng.u64(60..110);
        for n in 0..pool_bytes * percent / 100 / u64::from(FILLER) {
            tag += 1;
            script.push(put(format!("x{n:06}").into_bytes(), tag, FILLER));
        }
    }
    for _ in 0..len {
        for _ in 0..[0, 0, 1, 3][rng.usize(..4)] {
            tag += 1;
            script.push(put(vec![b'a' + rng.u8(..8)], tag, rng.u32(..900)));
        }
        script.push(Op::Ingest(0, edges.pairs(&mut rng, 0)));
        match rng.u8(..16) {
            0 => script.push(Op::Flush),
            1 => script.push(Op::Drain),
            2 => script.push(Op::Reopen(rng.bool(), 0)),
            3 => script.push(Op::Step(rng.u32(..), 5)),
            4 => script.push(Op::Scan(0, Range::All, rng.u64(..))),
            _ => {}
        }
    }
    script
}

/// Generates writes of sizes near these limits, with other operations in between.
pub fn of_writes(edges: &Edges, len: usize, seed: u64) -> Vec<Op> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut filled = 0;
    let mut script = Vec::new();
    for tag in 1..=len as u64 {
        let key = Key(vec![b'a' + rng.u8(..8)]);
        let len = match rng.u8(..3) {
            0 => rng.u64(..900),
            _ => edges.draw(&mut rng, filled),
        };
        let value = of_len(Value { tag, len: 0 }, len);
        let entry = Entry {
            space: 0,
            key: key.clone(),
            value: (rng.u8(..8) > 0).then_some(value),
            until: None,
            ttl: None,
        };
        filled += bytes(&entry);
        let durability = match rng.u8(..8) {
            0 => Durability::Sync,
            1 => Durability::Volatile,
            _ => Durability::Buffered,
        };
        script.push(Op::Write(vec![entry], durability));
        match rng.u8(..24) {
            0 => script.push(Op::Flush),
            1 => script.push(Op::Drain),
            2 => script.push(Op::Reopen(rng.bool(), 0)),
            3 => script.push(Op::Step(rng.u32(..), 5)),
            _ => script.push(Op::Get(0, key)),
        }
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;
    use terrace::Design;

    /// Drawn sizes come within a few bytes of each limit, on both sides.
    #[test]
    fn sizes_come_near_each_limit() {
        let options = settings::small_of(Design::MioDbSsd, Medium::Dram);
        let edges = Edges::of(&options, Medium::Dram);
        let mut rng = fastrand::Rng::with_seed(7);
        let drawn: Vec<u64> = (0..4000).map(|_| edges.draw(&mut rng, 3000)).collect();
        let memtable = options.front.memtable_bytes;
        for limit in [
            memtable - 3000,
            memtable / 8,
            memtable,
            options.front.log_bytes_max,
            options.pool.size_bytes / 8,
            options.pool.size_bytes,
        ] {
            assert!(
                drawn.iter().any(|size| (limit - 9..=limit).contains(size)),
                "{limit}"
            );
            assert!(
                drawn
                    .iter()
                    .any(|size| (limit + 1..limit + 9).contains(size)),
                "{limit}"
            );
        }
    }

    /// It is known which writes must be refused, except for those nearly as large as the largest
    /// batch.
    #[test]
    fn what_is_invalid_is_known() {
        let options = settings::small_of(Design::MioDb, Medium::Dax);
        let most = options.pool.size_bytes / 8;
        let entry = |key: usize, len: u64| Entry {
            space: 0,
            key: Key(vec![0; key]),
            value: Some(Value {
                tag: 1,
                len: len as u32,
            }),
            until: None,
            ttl: None,
        };
        let say = |key, len| is_invalid(&[entry(key, len)], &options);
        assert_eq!(say(1, 100), Some(false));
        assert_eq!(say(KEY_MAX, 100), Some(false));
        assert_eq!(say(KEY_MAX + 1, 100), Some(true));
        assert_eq!(say(1, most), Some(true));
        assert_eq!(say(1, most - 20), None);
    }
}
