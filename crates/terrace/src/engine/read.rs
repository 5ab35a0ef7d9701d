//! Point reads: pin the view, ask sources newest first, stop at the first that has the key.

use crate::error::{Error, Result};
use crate::metrics::OpCounter;
use crate::parts::expiry::is_past;
use crate::parts::snapshots::Moment;
use crate::stages::{Lookup, Probe, ReadStats};
use crate::types::{DEFAULT_KEYSPACE, key_hash};

use super::Engine;

impl Engine {
    /// The value of `key`: the newest, or the newest that a snapshot `at` a number sees.
    pub(crate) fn get(
        &self,
        keyspace: u32,
        key: &[u8],
        moment: Option<Moment>,
    ) -> Result<Option<Vec<u8>>> {
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
                    found = (!deleted).then_some(value);
                    break;
                }
                Some(Lookup::Deleted) => break,
                None => {}
            }
        }
        let counters = &self.ground.counters;
        counters.add(OpCounter::Gets, 1);
        counters.add(OpCounter::GetSources, stats.sources);
        if found.is_some() {
            counters.add(OpCounter::GetHits, 1);
        }
        if stats.filter_saved > 0 {
            counters.add(OpCounter::FilterSaved, stats.filter_saved);
        }
        if stats.cache_hits > 0 {
            counters.add(OpCounter::CacheHits, stats.cache_hits);
        }
        if stats.blocks_read > 0 {
            counters.add(OpCounter::CacheMisses, stats.blocks_read);
        }
        if stats.relink_retries > 0 {
            counters.add(OpCounter::RelinkRetries, stats.relink_retries);
        }
        Ok(found)
    }

    /// The values of several keys at one moment.
    pub(crate) fn multi_get<K: AsRef<[u8]>>(
        &self,
        keyspace: u32,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let ground = &self.ground;
        let moment = ground.snapshots.register(&ground.sequencer, &ground.time);
        let values = keys
            .iter()
            .map(|k| self.get(keyspace, k.as_ref(), Some(moment)))
            .collect();
        self.ground.snapshots.release(moment.seq);
        values
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
