//! Point reads: pin the view, ask sources newest first, stop at the first that has the key.

use crate::canary;
use crate::error::{Error, Result};
use crate::metrics::OpCounter;
use crate::parts::expiry::{Millis, is_past};
use crate::parts::snapshots::Moment;
use crate::stages::{Lookup, Probe, Read, ReadStats};
use crate::types::{DEFAULT_KEYSPACE, key_hash};

use super::Engine;

impl Engine {
    /// The value of `key`: the newest, or the newest that a snapshot `at` a number sees.
    #[inline]
    pub(crate) fn get(
        &self,
        keyspace: u32,
        key: &[u8],
        moment: Option<Moment>,
    ) -> Result<Option<Vec<u8>>> {
        let found = self.get_expiring(keyspace, key, moment)?;
        Ok(found.map(|(value, _)| value))
    }

    /// As `get`, with the expiry or 0.
    pub(crate) fn get_expiring(
        &self,
        keyspace: u32,
        key: &[u8],
        moment: Option<Moment>,
    ) -> Result<Option<(Vec<u8>, Millis)>> {
        let at = moment.map(|moment| moment.seq);
        self.check_open()?;
        self.check_keyspace(keyspace)?;
        // The view first, the number second: everything below the front of this view was visible
        // when the number is read (see `Probe::latest`).
        let view = self.views.pin();
        let seq = at.unwrap_or_else(|| self.ground.sequencer.visible());
        let probe = Probe {
            keyspace,
            key,
            hash: key_hash(keyspace, key),
            at: seq,
            latest: at.is_none(),
        };
        canary::stand_still();
        let mut stats = ReadStats::default();
        let mut found = None;
        for source in &view.sources {
            match source.get(&probe, &mut stats)? {
                Some(Lookup::Value { value, seq, expiry }) => {
                    if expiry != 0 {
                        let now = moment.map_or_else(|| self.ground.time.now(), |m| m.time);
                        if is_past(expiry, now) {
                            break;
                        }
                    }
                    let deleted = view.ranges.as_ref().is_some_and(|ranges| {
                        // Asked anew: a range delete that became visible since may have taken the
                        // newest version away already, so that this one is older.
                        let at = at.unwrap_or_else(|| self.ground.sequencer.visible());
                        ranges.newest(keyspace, key, at) > Some(seq)
                    });
                    found = (!deleted).then_some((value, expiry));
                    break;
                }
                Some(Lookup::Deleted) => break,
                None => {}
            }
        }
        self.count_reads(1, u64::from(found.is_some()), &stats);
        Ok(found)
    }

    /// Adds what point reads did to the counters.
    #[inline]
    fn count_reads(&self, reads: u64, hits: u64, stats: &ReadStats) {
        let counters = &self.ground.counters;
        counters.add(OpCounter::Gets, reads);
        counters.add(OpCounter::GetSources, stats.sources);
        for (counter, amount) in [
            (OpCounter::GetHits, hits),
            (OpCounter::FilterSaved, stats.filter_saved),
            (OpCounter::CacheHits, stats.cache_hits),
            (OpCounter::CacheMisses, stats.blocks_read),
            (OpCounter::RelinkRetries, stats.relink_retries),
        ] {
            if amount > 0 {
                counters.add(counter, amount);
            }
        }
    }

    /// The values of several keys at one moment: now, or the one of a snapshot `at` a number.
    pub(crate) fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: u32,
        keys: &[K],
        at: Option<Moment>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        self.check_open()?;
        self.check_keyspace(keyspace)?;
        match at {
            Some(moment) => self.multi_get_at(keyspace, keys, moment),
            None => {
                // Registered, so that no job drops what is newest at this number meanwhile.
                let ground = &self.ground;
                let moment = ground.snapshots.register(&ground.sequencer, &ground.time);
                let values = self.multi_get_at(keyspace, keys, moment);
                ground.snapshots.release(moment.seq);
                values
            }
        }
    }

    fn multi_get_at<K: AsRef<[u8]>>(
        &self,
        keyspace: u32,
        keys: &[K],
        Moment { seq, time }: Moment,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        // Neighbours next to one another: sources that lie in blocks answer them together.
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

    /// An error when `keyspace` was dropped.
    #[inline]
    pub(crate) fn check_keyspace(&self, keyspace: u32) -> Result<()> {
        if keyspace > DEFAULT_KEYSPACE && self.ground.dropped.contains(keyspace) {
            return Err(Error::invalid(
                "the keyspace of this handle was dropped: open it again by name, or create it",
            ));
        }
        Ok(())
    }
}
