//! Point reads: pin the view, search sources newest first, stop at the first that contains the key.
//!
//! One read, one point: every answer is the state of the database at one number and one time, which
//! held together at an instant of the call (docs/concurrency.md, "One read, one point").

use std::sync::Arc;

use crate::canary::{self, failpoint};
use crate::error::{Error, Result};
use crate::metrics::OpCounter;
use crate::parts::expiry::{Millis, is_past};
use crate::parts::snapshots::ReadPoint;
use crate::stages::{Lookup, Probe, Read, ReadStats, Shared, Source};
use crate::types::{DEFAULT_KEYSPACE, key_hash};

use super::Engine;
use super::view::View;

/// BOUND: a point read searches this often before it registers a read point.
const SEARCHES_MAX: u32 = 8;
/// How often the registration of a read point looks at number and time before it holds off writers.
const LOOKS_MAX: u32 = 64;

/// Returns the entry of a key in the newest source that contains it.
#[inline]
pub(super) fn search(
    sources: &[Arc<dyn Source>],
    probe: &Probe<'_>,
    stats: &mut ReadStats,
) -> Result<Option<Lookup>> {
    for source in sources {
        if let Some(hit) = source.get(probe, stats)? {
            return Ok(Some(hit));
        }
    }
    Ok(None)
}

/// Returns the value of a hit at the number of its probe and at a time, with the expiry or 0.
#[inline]
fn value_at(
    view: &View,
    probe: &Probe<'_>,
    hit: Option<Lookup>,
    time: Millis,
) -> Option<(Vec<u8>, Millis)> {
    match hit {
        Some(Lookup::Value { value, seq, expiry }) if !is_past(expiry, time) => {
            let ranges = view.ranges.as_ref();
            let deleted = ranges.is_some_and(|ranges| {
                ranges.newest(probe.keyspace, probe.key, probe.at) > Some(seq)
            });
            (!deleted).then_some((value, expiry))
        }
        _ => None,
    }
}

impl Engine {
    /// Returns the value of `key`: the newest, or the newest that is visible at a read `point`.
    #[inline]
    pub(crate) fn get(
        &self,
        keyspace: u32,
        key: &[u8],
        point: Option<ReadPoint>,
    ) -> Result<Option<Vec<u8>>> {
        let found = self.get_expiring(keyspace, key, point)?;
        Ok(found.map(|(value, _)| value))
    }

    /// As `get`, with the expiry or 0.
    pub(crate) fn get_expiring(
        &self,
        keyspace: u32,
        key: &[u8],
        point: Option<ReadPoint>,
    ) -> Result<Option<(Vec<u8>, Millis)>> {
        self.check_open()?;
        let mut stats = ReadStats::default();
        let hash = key_hash(keyspace, key);
        let mut probe = Probe {
            keyspace,
            key,
            hash,
            at: 0,
            latest: false,
        };
        let found = match point {
            None => self.get_newest(&mut probe, &mut stats),
            Some(point) => self.get_at(&mut probe, point, &mut stats),
        };
        self.check_still_open()?;
        // After the search: see `check_keyspace`.
        self.check_keyspace(keyspace)?;
        let found = found.inspect_err(|e| self.note_damage(e))?;
        self.count_reads(1, u64::from(found.is_some()), &stats);
        Ok(found)
    }

    /// Returns the entry of a key in the newest source that contains it, with the help of idle read
    /// workers.
    #[inline]
    fn search(
        &self,
        view: &Arc<View>,
        probe: &Probe<'_>,
        stats: &mut ReadStats,
    ) -> Result<Option<Lookup>> {
        match &self.read_workers {
            None => search(&view.sources, probe, stats),
            Some(workers) => workers.search(view, probe, stats),
        }
    }

    /// Returns the value of a key at some instant of the call.
    ///
    /// A read registers nothing, so jobs may remove versions that it should see. It therefore
    /// searches at a number, and trusts the result only if nothing happened since that could have
    /// changed the answer for its key (`judge`).
    fn get_newest(
        &self,
        probe: &mut Probe<'_>,
        stats: &mut ReadStats,
    ) -> Result<Option<(Vec<u8>, Millis)>> {
        probe.latest = true;
        for _ in 0..SEARCHES_MAX {
            // The order matters. Time first, so that it was told before the number was read. View
            // last: it contains every memtable and every range delete of numbers that were visible
            // before it was pinned.
            let time = self.shared.time.handed_out();
            probe.at = self.shared.sequencer.visible();
            let view = self.views.pin();
            canary::stand_still();
            let hit = self.search(&view, probe, stats)?;
            if let Some(found) = self.judge(&view, probe, hit, time) {
                return Ok(found);
            }
        }
        // Writers or the clock overtook every search. What is visible at a registered read point
        // stays.
        probe.latest = false;
        let point = self.register_moment();
        let found = self.get_at(probe, point, stats);
        self.shared.snapshots.release(point.seq);
        found
    }

    /// Returns the value of a key at a registered read point.
    fn get_at(
        &self,
        probe: &mut Probe<'_>,
        ReadPoint { seq, time }: ReadPoint,
        stats: &mut ReadStats,
    ) -> Result<Option<(Vec<u8>, Millis)>> {
        probe.at = seq;
        let view = self.views.pin();
        canary::stand_still();
        let hit = self.search(&view, probe, stats)?;
        Ok(value_at(&view, probe, hit, time))
    }

    /// Judges the result of a search without a registration; `None` if it must be repeated.
    ///
    /// The answer is the key's state at the number, unless
    /// - the hit is above the number: a merge brought it down, and a range delete that the view
    ///   lacks may cover it;
    /// - a range delete over the key became visible since: jobs may have removed what it covers,
    ///   and its batch may have put the key again;
    /// - the hit expired between `time`, which was told before the number was read, and now: the
    ///   key may have been written again before that;
    /// - nothing was found, and more time was told since: a job may have dropped an entry that was
    ///   alive.
    ///
    /// A live hit needs no more: if it is alive now, it was alive when the number was read.
    #[inline]
    fn judge(
        &self,
        view: &View,
        probe: &Probe<'_>,
        hit: Option<Lookup>,
        time: Millis,
    ) -> Option<Option<(Vec<u8>, Millis)>> {
        failpoint!(TornGet
            => return Some(value_at(view, &Probe { at: self.shared.sequencer.visible(), ..*probe }, hit, time)));
        failpoint!(TimeLast => return Some(value_at(view, probe, hit, self.shared.time.now())));
        if view.ranges.is_some() && self.has_newer_range(view, probe) {
            return None;
        }
        let expiry = match &hit {
            Some(Lookup::Value { seq, .. }) if *seq > probe.at => return None,
            Some(Lookup::Value { expiry, .. }) => *expiry,
            Some(Lookup::Deleted) | None => 0,
        };
        let found = value_at(view, probe, hit, time);
        let is_certain = match (&found, expiry) {
            (Some(_), 0) => true,
            (Some(_), expiry) => !is_past(expiry, self.shared.time.now()),
            (None, expiry) => is_past(expiry, time) || self.shared.time.handed_out() == time,
        };
        is_certain.then_some(found)
    }

    /// Returns whether a range delete over the key has become visible since the number was read.
    fn has_newer_range(&self, view: &View, probe: &Probe<'_>) -> bool {
        let now = self.shared.sequencer.visible();
        now > probe.at
            && view.ranges.as_ref().is_some_and(|ranges| {
                ranges.newest(probe.keyspace, probe.key, now) > Some(probe.at)
            })
    }

    /// Adds the statistics of point reads to the counters.
    #[inline]
    fn count_reads(&self, reads: u64, hits: u64, stats: &ReadStats) {
        let counters = &self.shared.counters;
        counters.add(OpCounter::Gets, reads);
        counters.add(OpCounter::GetSources, stats.sources);
        for (counter, amount) in [
            (OpCounter::GetHits, hits),
            (OpCounter::FilterSaved, stats.filter_saved),
            (OpCounter::CacheHits, stats.cache_hits),
            (OpCounter::CacheMisses, stats.blocks_read),
            (OpCounter::RelinkRetries, stats.relink_retries),
            (OpCounter::ParallelReads, stats.parallel),
        ] {
            if amount > 0 {
                counters.add(counter, amount);
            }
        }
    }

    /// Returns the values of several keys at one moment: the current one, or the given one.
    pub(crate) fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: u32,
        keys: &[K],
        at: Option<ReadPoint>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        if let [key] = keys {
            // One key needs neither an order nor a registration.
            return Ok(vec![self.get(keyspace, key.as_ref(), at)?]);
        }
        self.check_open()?;
        let values = match at {
            Some(point) => self.multi_get_at(keyspace, keys, point),
            None => {
                // Registered, so that no job drops what is newest at this number meanwhile.
                let point = self.register_moment();
                let values = self.multi_get_at(keyspace, keys, point);
                self.shared.snapshots.release(point.seq);
                values
            }
        };
        self.check_still_open()?;
        self.check_keyspace(keyspace)?;
        values.inspect_err(|e| self.note_damage(e))
    }

    fn multi_get_at<K: AsRef<[u8]>>(
        &self,
        keyspace: u32,
        keys: &[K],
        ReadPoint { seq, time }: ReadPoint,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        // Sorted, so that sources divided into blocks answer neighbours together.
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by(|&a, &b| keys[a].as_ref().cmp(keys[b].as_ref()));
        let read = |&index: &usize| {
            let key = keys[index].as_ref();
            let probe = Probe {
                keyspace,
                key,
                hash: key_hash(keyspace, key),
                at: seq,
                latest: false,
            };
            Read {
                probe,
                answer: None,
            }
        };
        let mut reads: Vec<Read<'_>> = order.iter().map(read).collect();
        let mut stats = ReadStats::default();
        let view = self.views.hold();
        canary::stand_still();
        for source in &view.sources {
            source.multi_get(&mut reads, &mut stats)?;
            if reads.iter().all(|read| read.answer.is_some()) {
                break;
            }
        }
        let mut values = vec![None; keys.len()];
        let mut hits = 0;
        for (index, read) in order.into_iter().zip(reads) {
            let Some(Lookup::Value {
                value,
                seq: found,
                expiry,
            }) = read.answer
            else {
                continue;
            };
            let deleted = view
                .ranges
                .as_ref()
                .is_some_and(|ranges| ranges.newest(keyspace, read.probe.key, seq) > Some(found));
            if !deleted && !is_past(expiry, time) {
                values[index] = Some(value);
                hits += 1;
            }
        }
        self.count_reads(keys.len() as u64, hits, &stats);
        Ok(values)
    }

    /// Registers a read point; `SnapshotList::release` releases it.
    pub(crate) fn register_moment(&self) -> ReadPoint {
        let Shared {
            snapshots,
            sequencer,
            time,
            ..
        } = &*self.shared;
        if let Some(point) = snapshots.register(sequencer, time, LOOKS_MAX) {
            return point;
        }
        let _held = self.stages.front.hold_off_writers();
        // BOUND: meanwhile no number is taken, and only pending ones become visible.
        loop {
            if let Some(point) = snapshots.register(sequencer, time, u32::MAX) {
                return point;
            }
        }
    }

    /// Returns an error if `keyspace` was dropped. A read checks after it has its answer: a job may
    /// purge the keyspace as soon as it is dropped, so an answer from before the drop is whole, and
    /// a later one is not.
    #[inline]
    pub(crate) fn check_keyspace(&self, keyspace: u32) -> Result<()> {
        if keyspace > DEFAULT_KEYSPACE && self.shared.dropped.contains(keyspace) {
            return Err(Error::invalid(
                "the keyspace of this handle was dropped: open it again by name, or create it",
            ));
        }
        Ok(())
    }
}
