//! Estimates of garbage: bytes of entries that a newer one in a table above supersedes, and that
//! only a compaction reclaims.
//!
//! While a table is written, the filters of older tables are asked for one of its keys in
//! `EVERY_MAX` or fewer. So a table knows about how many bytes it supersedes, and a version, which
//! sums this up, how much of it is live. Compactions are due once garbage reaches `garbage_percent`
//! of the live bytes; from one and a half times as much writers are slowed, and soon after limited
//! to the rate at which compactions reclaim. New keys do not count.
//!
//! G1  An estimate refuses nothing: a table that cannot be read supersedes nothing, and if drains
//!     wait for garbage to go, a compaction that reclaims it is due or running.
//! G2  The last level has no garbage, and a table without an estimate, as after opening, counts as
//!     having none.

use super::Inner;
use super::version::{Run, Version};
use crate::error::Result;
use crate::parts::key::Target;
use crate::parts::sstable::ReadCounts;
use crate::stages::{Need, Pressure, Urgency};
use crate::types::key_hash;

/// One key in this many is looked up in older tables.
const EVERY_MAX: u64 = 32;
/// The number of keys to look up for tables with as many entries as the version. With fewer keys
/// the estimate is poor, and in a small database looking up each key is cheap.
const SAMPLES_MIN: u64 = 8192;
/// Of known garbage at most this part of the live bytes is left alone at rest.
const LEAST_PART: u64 = 8;
/// The maximum pressure of garbage before drains stop.
const PART_MAX: f64 = 0.98;

/// Counts the bytes that a table being written supersedes.
pub(super) struct Sampler {
    /// One key in this many is looked up.
    every: u64,
    /// The number of keys before the next lookup; `None` before the first key.
    skip: Option<u64>,
    superseded: u64,
    /// The superseded bytes of each written table, in their order.
    pub(super) tables: Vec<u64>,
}

impl Sampler {
    /// Creates a sampler for a table that is written above those of a version, of which
    /// `open_files_max` may be open.
    pub(super) fn above(version: &Version, open_files_max: usize) -> Sampler {
        let entries: u64 = version.tables().map(|table| table.meta.entries).sum();
        // A table that is not open is opened for one lookup.
        let every = match version.tables().count() > open_files_max {
            true => EVERY_MAX,
            false => (entries / SAMPLES_MIN).clamp(1, EVERY_MAX),
        };
        Sampler {
            every,
            skip: None,
            superseded: 0,
            tables: Vec::new(),
        }
    }

    /// Takes a key that was written to a table of `level`, once for all its versions.
    pub(super) fn take(&mut self, version: &Version, level: usize, (keyspace, key): (u32, &[u8])) {
        if let Some(skip @ 1..) = self.skip {
            self.skip = Some(skip - 1);
            return;
        }
        // Gaps come from hashes, so that a pattern of keys is neither always missed nor always hit.
        let hash = key_hash(keyspace, key);
        let drawn = (hash >> 32) % (2 * self.every - 1);
        let first = self.skip.replace(drawn).is_none();
        if first && self.every > 1 {
            self.skip = Some(drawn % self.every);
            return;
        }
        // A key stands for itself and those up to the next one.
        self.superseded += (drawn + 1) * version.older_bytes(level, (keyspace, key), hash);
    }

    /// Notes that the table is closed.
    pub(super) fn close_table(&mut self) {
        self.tables.push(std::mem::take(&mut self.superseded));
    }
}

/// Returns the average size of an entry of a table, if the run may have an older version of a key.
fn entry_bytes(run: &Run, (keyspace, key): (u32, &[u8]), hash: u64) -> Result<Option<u64>> {
    let Some(table) = run.tables.get(run.position(keyspace, key)) else {
        return Ok(None);
    };
    if table.first() > (keyspace, key) {
        return Ok(None);
    }
    let (open, mut counts) = (table.open()?, ReadCounts::default());
    let has = match open.has_filter() {
        true => open.may_contain(hash, &mut counts)?,
        false => open
            .get(&Target::first_of(keyspace, key), hash, &mut counts)?
            .is_some(),
    };
    Ok(has.then(|| table.meta.bytes / table.meta.entries.max(1)))
}

impl Version {
    /// Returns the size of the newest entry of a key below the tables written to `level`, or 0.
    fn older_bytes(&self, level: usize, place: (u32, &[u8]), hash: u64) -> u64 {
        let runs = match level {
            0 => self.runs.as_slice(),
            _ => &[],
        };
        let mut older = runs
            .iter()
            .chain(&self.levels[level.min(self.levels.len())..]);
        let found = older.find_map(|run| entry_bytes(run, place, hash).ok().flatten());
        found.unwrap_or(0)
    }

    /// Returns the bytes that tables supersede: those of level 0, and of each level below it but
    /// the last.
    pub(super) fn superseded(&self) -> impl Iterator<Item = u64> {
        let above_last = self.levels.len() - 1;
        let upper = self.runs.iter().map(|run| run.superseded()).sum();
        let lower = self.levels[..above_last].iter();
        std::iter::once(upper).chain(lower.map(|run| run.superseded()))
    }
}

/// The garbage in the tables, and its limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Garbage {
    pub(super) bytes: u64,
    /// Compactions are due from here on.
    pub(super) due: u64,
    /// They are due from here on while nothing is written.
    due_at_rest: u64,
    /// Writers are slowed from here on.
    slow: u64,
    /// Writers are nearly stopped here, and drains are as small as possible.
    stop: u64,
}

/// Returns the position of a value between two numbers; 1 and more above the second.
fn part(value: u64, from: u64, to: u64) -> f64 {
    value.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64
}

impl Garbage {
    /// Computes the limits. Of `all` bytes of tables, `superseded` are garbage, but none of the
    /// keys of the `largest` run; `drains` are the least and most bytes of a drain.
    fn of(all: u64, largest: u64, superseded: u64, percent: u32, drains: (u64, u64)) -> Garbage {
        let bytes = superseded.min(all.saturating_sub(largest));
        let live = all - bytes;
        Garbage::with(bytes, live, (percent, 0), drains)
    }

    /// Computes the same for a known amount of garbage. The least bytes of a drain are left alone,
    /// as long as there are writers: less is not worth the rewriting of a table.
    pub(super) fn known(bytes: u64, live: u64, percent: u32, drains: (u64, u64)) -> Garbage {
        Garbage::with(bytes, live, (percent, drains.0), drains)
    }

    fn with(bytes: u64, live: u64, (percent, least): (u32, u64), drains: (u64, u64)) -> Garbage {
        let share = live / 100 * u64::from(percent);
        let due = share + least;
        let slow = due / 2 * 3;
        let drain = drains.1.max(drains.0);
        Garbage {
            bytes,
            due,
            // In a small database a drain is much of the live bytes.
            due_at_rest: (share + least.min(live / LEAST_PART)) / 3,
            slow,
            stop: slow + (live / 4).clamp(drains.0, drain),
        }
    }

    /// Returns whether some has to go.
    pub(super) fn is_due(&self) -> bool {
        self.bytes > self.due
    }

    /// Returns the score of compactions for garbage; they are due from 1 on.
    pub(super) fn score(&self, urgency: Urgency) -> f64 {
        // Resting writers are not disturbed, and garbage left now stays for long.
        let due = match urgency {
            Urgency::Rest => self.due_at_rest,
            _ => self.due,
        };
        self.bytes as f64 / due.max(1) as f64
    }

    /// Returns how far compactions are behind with garbage.
    pub(super) fn need(&self) -> Need {
        let range = self.stop - self.slow;
        // A drain that was larger than its limit, or a machine short of processor time, may go this
        // far beyond; after that no drain runs before a compaction ends.
        let most = match self.bytes < self.stop + range {
            true => PART_MAX,
            false => 1.0,
        };
        let pressure = Pressure {
            part: part(self.bytes, self.slow, self.stop).min(most),
            range,
        };
        Need::of(part(self.bytes, self.due, self.slow), pressure)
    }

    /// Returns the bytes of a drain that fits before the stop, if the share `superseding` of it
    /// supersedes something.
    pub(super) fn room_for_drain(&self, superseding: f64) -> u64 {
        let room = self.stop.saturating_sub(self.bytes) as f64;
        // Smaller shares would divide by nearly nothing.
        (room / superseding.max(0.01)) as u64
    }
}

impl Inner {
    /// Returns the garbage of a version.
    pub(super) fn garbage(&self, version: &Version) -> Garbage {
        let bytes = || {
            let runs = version.runs.iter().chain(&version.levels);
            runs.map(|run| run.bytes())
        };
        Garbage::of(
            bytes().sum(),
            // A key occurs once in a run.
            bytes().max().unwrap_or(0),
            version.superseded().sum(),
            self.store.options.garbage_percent,
            (self.front.memtable_bytes, self.drain_bytes_max()),
        )
    }

    /// Returns the maximum size in bytes of the next drain.
    pub(super) fn drain_bytes_now(&self) -> u64 {
        let version = self.version();
        let newest = version.runs.first();
        let share = |run: &Run| run.superseded() as f64 / run.bytes().max(1) as f64;
        let superseding = newest.map_or(0.0, |run| share(run));
        let room = self.garbage(&version).room_for_drain(superseding);
        self.drain_bytes_max().min(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn garbage(live: u64, garbage: u64) -> Garbage {
        Garbage::of(live + garbage, live, garbage, 20, (64 * MIB, 256 * MIB))
    }

    /// Nothing is due up to a fifth of the live data, at rest up to a fifteenth.
    #[test]
    fn compactions_are_due_from_a_share_on() {
        let gib = 1 << 30;
        assert!(garbage(gib, gib / 6).score(Urgency::None) < 1.0);
        assert!(garbage(gib, gib / 4).score(Urgency::None) > 1.0);
        assert!(garbage(gib, gib / 16).score(Urgency::Rest) < 1.0);
        assert!(garbage(gib, gib / 14).score(Urgency::Rest) > 1.0);
    }

    /// Known garbage of a database that is as small as a drain goes at rest, and only there.
    #[test]
    fn at_rest_a_small_database_keeps_little_known_garbage() {
        let known = |garbage| Garbage::known(garbage, 64 * MIB, 30, (64 * MIB, 256 * MIB));
        assert!(known(60 * MIB).score(Urgency::None) < 1.0);
        assert!(known(7 * MIB).score(Urgency::Rest) < 1.0);
        assert!(known(10 * MIB).score(Urgency::Rest) > 1.0);
    }

    /// Writers are slowed from three tenths on and stopped only far above that, and a drain that
    /// supersedes entries fits before the point where they are nearly stopped.
    #[test]
    fn writers_are_slowed_towards_the_bound() {
        for live in [0, MIB, 512 * MIB, 8 << 30] {
            let mut last = 0.0;
            for percent in 0..=400 {
                let garbage = garbage(live, live / 100 * percent);
                let part = garbage.need().pressure().part;
                assert!((last..=1.0).contains(&part), "{live} {percent}: {part}");
                let far = garbage.bytes >= 2 * garbage.stop - garbage.slow;
                assert_eq!(part == 1.0, far, "{live} {percent}: {part}");
                assert!(percent > 30 || part == 0.0, "{live} {percent}: {part}");
                let drain = garbage.room_for_drain(1.0);
                assert!(garbage.bytes + drain <= garbage.stop.max(garbage.bytes));
                last = part;
            }
        }
        let stop = garbage(8 << 30, 0).stop;
        assert!(stop <= (8u64 << 30) * 3 / 10 + 256 * MIB, "{stop}");
        assert!(garbage(512 * MIB, 0).room_for_drain(0.0) > 1 << 30);
    }
}
