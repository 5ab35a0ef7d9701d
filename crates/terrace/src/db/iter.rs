//! The iterator: versions and tombstones of all sources folded into user pairs, in both directions.
//!
//! Pairs are fetched in chunks that start small and grow, so a short scan copies little and a long
//! one pays for its bookkeeping once in some hundred pairs. While a chunk is fetched every source
//! is held still; between chunks sources move nodes freely. If the view has changed or was taken
//! back (`engine/held.rs`), or a list was relinked, the next chunk begins with a seek past the last
//! key; that is exact since the iterator's sequence number is registered and no version that it
//! sees is dropped.

use std::cmp::Ordering as Order;
use std::iter::FusedIterator;
use std::sync::Arc;
use std::time::SystemTime;

use crate::canary;
use crate::engine::Engine;
use crate::engine::held::{Held, Slot};
use crate::error::Result;
use crate::metrics::OpCounter;
use crate::parts::expiry::{Millis, Value, is_past, time_of};
use crate::parts::iter::{MergeCursor, Stored};
use crate::parts::key::Target;
use crate::parts::key::compare_keys;
use crate::parts::memory::Lease;
use crate::parts::ranges::RangeSet;
use crate::parts::snapshots::ReadPoint;
use crate::types::{EntryKind, SeqNo};

use super::Handle;
use super::bounds::{Bounds, Place};
use super::pair::{End, KeyValue, PairRef, Ready};
use super::trace::ScanTrace;

/// Pairs in the largest chunk; a chunk ends early after `Limits::chunk_bytes` bytes.
const CHUNK_PAIRS: usize = 256;
/// Pairs in the first chunk; each chunk has twice as many as the one before. With more there are
/// fewer chunks, and more pairs that a short scan never returns.
const CHUNK_PAIRS_FIRST: usize = 2;
/// Bytes after which the first chunks end. Later ones have a quarter of the bytes before them, so
/// that few large pairs are fetched in vain.
const CHUNK_BYTES_FIRST: usize = 4 << 10;
/// Entries looked at, including tombstones, after which a chunk may end without a pair.
const CHUNK_ENTRIES: usize = 4096;
/// Versions of one key that are stepped over before a seek is cheaper.
const STEPS_BEFORE_SEEK: usize = 8;
/// Tower levels used by the first and the widest step backward.
const BREADTH_FIRST: usize = 1;
const BREADTH_MAX: usize = 5;

/// A value and its expiry, if it has one.
pub type ExpiringValue = (Vec<u8>, Option<SystemTime>);

/// Converts the result of a read to the public form.
pub(super) fn with_expiry((value, expiry): (Vec<u8>, Millis)) -> ExpiringValue {
    (value, (expiry != 0).then(|| time_of(expiry)))
}

/// An iterator over pairs in key order; [`rev`](Iterator::rev) reverses it.
///
/// It sees the state at its creation, despite later writes. It owns all that it needs. After an
/// error it ends.
pub struct Iter {
    engine: Arc<Engine>,
    seq: SeqNo,
    /// Entries that have expired by this time are absent.
    time: Millis,
    keyspace: u32,
    /// Whether it reads no values.
    keys_only: bool,
    /// Its view and cursor, which it may lose between chunks. A cursor that was kept is at `front`.
    slot: Arc<Slot>,
    /// Pairs between these places are not fetched yet.
    front: Place,
    back: Place,
    fetched_front: Ready,
    fetched_back: Ready,
    chunk_pairs: usize,
    /// Bytes of all pairs that were fetched from the front.
    front_bytes: usize,
    breadth: usize,
    failed: bool,
    /// Records how far the scan went, if calls are traced.
    trace: Option<Box<ScanTrace>>,
    /// The memory of the pairs, if there is a memory budget.
    lease: Option<Lease>,
    /// Keeps the database open, for an iterator of a user. Dropped last.
    handle: Option<Arc<Handle>>,
}

impl Drop for Iter {
    fn drop(&mut self) {
        if self.engine.is_foreign() {
            // Another thread may have held the list's lock when this process was forked.
            return;
        }
        self.engine.held.remove(&self.slot);
        self.engine.shared.snapshots.release(self.seq);
    }
}

/// BOUND: damaged links may form a cycle; then keys stop ascending, and the scan ends here.
fn ascending(ascends: bool, key: &[u8]) -> Result<()> {
    if ascends {
        return Ok(());
    }
    Err(crate::error::Error::corruption(format!(
        "keys are out of order after {}: run verify, and restore the database from a copy, or \
         recover the readable data with \"terrace repair\"",
        key.escape_ascii()
    )))
}

/// Returns the value of the entry under the cursor, empty if only keys are wanted, unless it
/// deletes the key or has expired by `time`.
#[inline]
fn live(
    cursor: &MergeCursor,
    kind: u8,
    time: Millis,
    keys_only: bool,
) -> Result<Option<Value<'_>>> {
    if kind != EntryKind::Put as u8 {
        return Ok(None);
    }
    let value = match keys_only {
        false => cursor.value()?,
        true => match cursor.stored()? {
            Stored::Inline(Value { expiry, .. }) | Stored::Apart(_, expiry) => {
                Value { bytes: &[], expiry }
            }
        },
    };
    Ok((!is_past(value.expiry, time)).then_some(value))
}

/// Counts one more pair of `bytes` before it is created.
#[inline]
fn count(lease: &mut Option<Lease>, engine: &Engine, bytes: usize) -> Result<()> {
    let Some(lease) = lease else {
        return Ok(());
    };
    match lease.set(lease.bytes() + Ready::cost_max(bytes) as u64) {
        true => Ok(()),
        false => Err(engine.shared.memory.iterators_are_full()),
    }
}

impl Iter {
    /// Creates an iterator at `seq`, and takes over one registration of it.
    pub(super) fn new(
        engine: &Arc<Engine>,
        keyspace: u32,
        bounds: Bounds,
        ReadPoint { seq, time }: ReadPoint,
    ) -> Result<Iter> {
        let (front, back) = bounds.places(keyspace);
        let iter = Iter {
            engine: Arc::clone(engine),
            seq,
            time,
            keyspace,
            keys_only: false,
            slot: engine.held.add(),
            front,
            back,
            fetched_front: Ready::default(),
            fetched_back: Ready::default(),
            chunk_pairs: CHUNK_PAIRS_FIRST,
            front_bytes: 0,
            breadth: BREADTH_FIRST,
            failed: false,
            trace: None,
            lease: {
                let memory = &engine.shared.memory;
                memory.is_limited().then(|| memory.iterators.lease())
            },
            handle: None,
        };
        // From here on dropping `iter` releases the registration.
        engine.check_open()?;
        engine.check_keyspace(keyspace)?;
        Ok(iter)
    }

    /// Returns the same iterator, whose pairs have empty values from the next fetched one on. It
    /// reads no values from value files, so it is faster there, and passes damage of them.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let db = terrace::Db::open(folder.path(), terrace::Options::default())?;
    /// db.put("key", "value")?;
    /// let pair = db.iter()?.keys_only().next().ok_or("no pair")??;
    /// assert_eq!((pair.key(), pair.value()), (&b"key"[..], &b""[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keys_only(mut self) -> Iter {
        self.keys_only = true;
        self
    }

    /// Keeps the database open for as long as the iterator lives.
    pub(super) fn keep_open(mut self, handle: &Arc<Handle>) -> Iter {
        self.handle = Some(Arc::clone(handle));
        self
    }

    /// Counts pairs in `trace`, which records them at the end.
    pub(super) fn record_to(&mut self, trace: Option<ScanTrace>) {
        self.trace = trace.map(Box::new);
    }

    fn is_exhausted(&self) -> bool {
        self.front.key_order() >= self.back.key_order()
    }

    /// Fetches a chunk while all sources are held still.
    fn fetch(&mut self, fill: impl FnOnce(&mut Iter, &mut Held) -> Result<()>) -> Result<()> {
        self.engine.check_open()?;
        let engine = Arc::clone(&self.engine);
        let slot = Arc::clone(&self.slot);
        let mut slot = slot.lock();
        // Adopts the current view.
        let held = match &mut *slot {
            Some(held) if engine.views.is_current(&held.view) => held,
            other => other.insert(Held::new(engine.views.hold())),
        };
        canary::stand_still();
        if !held.cursor.hold() {
            held.positioned = false;
        }
        let result = self.count_ready().and_then(|()| fill(self, held));
        held.cursor.release();
        if self.is_exhausted() {
            *slot = None;
        }
        engine.check_still_open()?;
        engine.check_keyspace(self.keyspace)?;
        result
    }

    /// Counts only the ready pairs: others were returned since.
    fn count_ready(&mut self) -> Result<()> {
        let back = self.fetched_back.held_bytes();
        self.count_with(back)
    }

    /// Counts the ready pairs at the front, and `back` bytes at the back.
    fn count_with(&mut self, back: usize) -> Result<()> {
        let Some(lease) = &mut self.lease else {
            return Ok(());
        };
        let ready = self.fetched_front.held_bytes() + back;
        match lease.set(ready as u64) {
            true => Ok(()),
            false => Err(self.engine.shared.memory.iterators_are_full()),
        }
    }

    /// Fetches the next chunk from the front.
    fn fetch_front(&mut self) -> Result<()> {
        let result = self.fetch(Iter::fill_front);
        self.chunk_pairs = (self.chunk_pairs * 2).min(CHUNK_PAIRS);
        result
    }

    fn fill_front(&mut self, held: &mut Held) -> Result<()> {
        if !held.positioned {
            held.cursor.seek(&self.front.target())?;
            held.positioned = true;
        }
        let mut looked_at = 0;
        let result = self.collect_front(held, &mut looked_at);
        let counters = &self.engine.shared.counters;
        counters.add(OpCounter::ScanEntries, looked_at as u64);
        result
    }

    /// Takes pairs from the cursor onward, and counts the entries looked at.
    fn collect_front(&mut self, held: &mut Held, looked_at: &mut usize) -> Result<()> {
        let Held { view, cursor, .. } = held;
        let ranges = view.ranges.as_deref();
        let chunk_bytes = (self.front_bytes / 4)
            .max(CHUNK_BYTES_FIRST)
            .min(self.engine.shared.memory.limits.chunk_bytes);
        let mut bytes = 0;
        let mut last: Option<Vec<u8>> = None;
        while self.fetched_front.len() < self.chunk_pairs && bytes < chunk_bytes {
            // A long run of tombstones must not hold the sources for long.
            *looked_at += 1;
            if *looked_at > CHUNK_ENTRIES && last.is_some() {
                break;
            }
            let Some(entry) = cursor.entry()? else {
                self.front = self.back.clone();
                return Ok(());
            };
            if !self.back.is_after(entry.keyspace, entry.key) {
                self.front = self.back.clone();
                return Ok(());
            }
            if entry.seq > self.seq {
                self.skip_newer(cursor)?;
                continue;
            }
            if let Some(ranges) = ranges
                && ranges.newest(entry.keyspace, entry.key, self.seq) > Some(entry.seq)
            {
                let key = entry.key.to_vec();
                *looked_at += self.pass_deleted(cursor, ranges, &key)?;
                last = Some(key);
                continue;
            }
            if let Some(value) = live(cursor, entry.kind, self.time, self.keys_only)? {
                let Value {
                    bytes: value,
                    expiry,
                } = value;
                match count(&mut self.lease, &self.engine, entry.key.len() + value.len()) {
                    // It begins the next chunk.
                    Err(_) if !self.fetched_front.is_empty() => break,
                    counted => counted?,
                }
                let pair_bytes = entry.key.len() + value.len();
                bytes += pair_bytes;
                self.front_bytes = self.front_bytes.saturating_add(pair_bytes);
                self.fetched_front.push(entry.key, value, expiry);
                last = None;
            } else {
                last = Some(entry.key.to_vec());
            }
            self.skip_versions(cursor, last.as_deref())?;
        }
        // The last key looked at, that of a pair or of a tombstone.
        let Some(key) = last.as_deref().or(self.fetched_front.last_key()) else {
            return Ok(());
        };
        self.front = Place::after(self.keyspace, key);
        Ok(())
    }

    /// Skips keys from `key` on that the range delete over it covers. Returns the number of steps.
    #[cold]
    fn pass_deleted(
        &self,
        cursor: &mut MergeCursor,
        ranges: &RangeSet,
        key: &[u8],
    ) -> Result<usize> {
        let Some(cover) = ranges.cover(self.keyspace, key, self.seq) else {
            return Ok(0);
        };
        let mut end = match cover.end.is_empty() {
            true => Place::before(self.keyspace + 1, &[]),
            false => Place::before(self.keyspace, &cover.end),
        };
        if end.key_order() > self.back.key_order() {
            end = self.back.clone();
        }
        cursor.pass(&end.target(), cover.seq)
    }

    /// Steps over the versions of the current key that are newer than the iterator.
    fn skip_newer(&self, cursor: &mut MergeCursor) -> Result<()> {
        let Some(entry) = cursor.entry()? else {
            return Ok(());
        };
        let (keyspace, seq) = (entry.keyspace, self.seq);
        let key = entry.key.to_vec();
        for _ in 0..STEPS_BEFORE_SEEK {
            cursor.advance()?;
            match cursor.entry()? {
                Some(entry) if entry.key == key && entry.seq > seq => {}
                _ => return Ok(()),
            }
        }
        cursor.seek(&Target {
            keyspace,
            key: &key,
            seq,
        })
    }

    /// Skips the older versions of the key just taken: `deleted`, or that of the last pair.
    #[inline]
    fn skip_versions(&self, cursor: &mut MergeCursor, deleted: Option<&[u8]>) -> Result<()> {
        for step in 0.. {
            cursor.advance()?;
            let Some(entry) = cursor.entry()? else {
                return Ok(());
            };
            let Some(key) = deleted.or(self.fetched_front.last_key()) else {
                return Ok(());
            };
            match (
                entry.keyspace.cmp(&self.keyspace),
                compare_keys(entry.key, key),
            ) {
                (Order::Equal, Order::Equal) => {}
                (keyspace, order) => {
                    let ascends = keyspace.then(order) == Order::Greater;
                    return ascending(ascends, key);
                }
            }
            if step >= STEPS_BEFORE_SEEK {
                // A key with very many versions: seek past them all.
                let behind = Place::after(self.keyspace, key);
                return cursor.seek(&behind.target());
            }
        }
        Ok(())
    }

    /// Fetches the next chunk from the back. It may be empty although there is more: the place has
    /// moved then.
    fn fetch_back(&mut self) -> Result<()> {
        let result = self.fetch(Iter::fill_back);
        let full = self.lease.as_ref().is_some_and(|lease| {
            // The next step fetches about three times as much.
            let chunk_bytes = self.engine.shared.memory.limits.chunk_bytes;
            lease.bytes() > chunk_bytes as u64 / 4
        });
        self.breadth = match full {
            true => self.breadth.saturating_sub(1),
            false => (self.breadth + 1).min(BREADTH_MAX),
        };
        result
    }

    fn fill_back(&mut self, held: &mut Held) -> Result<()> {
        held.positioned = false;
        let Held { view, cursor, .. } = held;
        // A place some entries before the end: the latest of those that the sources propose, so
        // that no source has many entries after it.
        let ranges = view.ranges.as_deref();
        let place = self.place_before(cursor, ranges)?;
        let start = match place {
            Some((keyspace, key)) => Place::before(keyspace, &key),
            None => self.front.clone(),
        };
        let mut start = if start.key_order() < self.front.key_order() {
            self.front.clone()
        } else {
            start
        };
        cursor.seek(&start.target())?;
        // Empty, except for its allocation.
        let mut pairs = std::mem::take(&mut self.fetched_back);
        let mut last: Vec<u8> = Vec::new();
        let mut any = false;
        let mut versions = 0;
        let mut looked_at = 0;
        while let Some(entry) = cursor.entry()? {
            if !self.back.is_after(entry.keyspace, entry.key) {
                break;
            }
            if entry.seq > self.seq {
                self.skip_newer(cursor)?;
                continue;
            }
            looked_at += 1;
            let older_version = any && entry.key == last.as_slice();
            ascending(!any || entry.key >= last.as_slice(), &last)?;
            if let Some(ranges) = ranges
                && !older_version
                && ranges.newest(entry.keyspace, entry.key, self.seq) > Some(entry.seq)
            {
                any = true;
                last.clear();
                last.extend_from_slice(entry.key);
                looked_at += self.pass_deleted(cursor, ranges, &last)?;
                continue;
            }
            versions = if older_version { versions + 1 } else { 0 };
            if versions > STEPS_BEFORE_SEEK {
                let behind = Place::after(self.keyspace, &last);
                cursor.seek(&behind.target())?;
                continue;
            }
            if !older_version {
                any = true;
                last.clear();
                last.extend_from_slice(entry.key);
                if let Some(value) = live(cursor, entry.kind, self.time, self.keys_only)? {
                    let Value {
                        bytes: value,
                        expiry,
                    } = value;
                    let bytes = entry.key.len() + value.len();
                    // BOUND: each iteration drops a pair.
                    while let Err(full) = count(&mut self.lease, &self.engine, bytes) {
                        // They end the next chunk.
                        let dropped = pairs.drop_first_half().ok_or(full)?;
                        start = Place::after(self.keyspace, &dropped);
                        self.count_with(pairs.held_bytes())?;
                    }
                    pairs.push(entry.key, value, expiry);
                }
            }
            cursor.advance()?;
        }
        self.back = start;
        self.fetched_back = pairs;
        let counters = &self.engine.shared.counters;
        counters.add(OpCounter::ScanEntries, looked_at as u64);
        Ok(())
    }

    /// Returns a place some entries before the end, if there are enough, not counting those that a
    /// range delete covers up to the end.
    fn place_before(
        &self,
        cursor: &mut MergeCursor,
        ranges: Option<&RangeSet>,
    ) -> Result<Option<(u32, Vec<u8>)>> {
        let end = match ranges {
            Some(_) => self.back.end_in(self.keyspace),
            None => None,
        };
        let cover = ranges
            .zip(end)
            .and_then(|(ranges, end)| ranges.cover_before(self.keyspace, &end, self.seq));
        let cover = cover
            .as_ref()
            .map(|cover| (Target::first_of(self.keyspace, &cover.begin), cover.seq));
        let cover = cover.as_ref().map(|(begin, seq)| (begin, *seq));
        cursor.place_before(&self.back.target(), self.breadth, cover)
    }
}

impl Iter {
    /// Returns the next pair without an allocation: it is stored in the iterator, and valid until
    /// the next call.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let db = terrace::Db::open(folder.path(), terrace::Options::default())?;
    /// db.put("key", "value")?;
    /// let (mut iter, mut bytes) = (db.iter()?, 0);
    /// while let Some(pair) = iter.next_ref() {
    ///     bytes += pair?.value().len();
    /// }
    /// assert_eq!(bytes, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Iterator::next`].
    #[inline]
    pub fn next_ref(&mut self) -> Option<Result<PairRef<'_>>> {
        match self.ready(End::Front)? {
            Ok(ready) => ready.lend(End::Front).map(Ok),
            Err(e) => Some(Err(e)),
        }
    }

    /// Returns the next pair from the back, as [`Iter::next_ref`].
    ///
    /// # Errors
    /// As [`Iterator::next`].
    #[inline]
    pub fn next_back_ref(&mut self) -> Option<Result<PairRef<'_>>> {
        match self.ready(End::Back)? {
            Ok(ready) => ready.lend(End::Back).map(Ok),
            Err(e) => Some(Err(e)),
        }
    }

    /// Returns the ready pairs that contain the next one at this end; `None` if there is none.
    #[inline]
    fn ready(&mut self, end: End) -> Option<Result<&mut Ready>> {
        // BOUND: each fetch moves `front` and `back` towards each other.
        let from = loop {
            let (mine, other) = match end {
                End::Front => (&self.fetched_front, &self.fetched_back),
                End::Back => (&self.fetched_back, &self.fetched_front),
            };
            if !mine.is_empty() {
                break end;
            }
            if self.failed || self.is_exhausted() {
                match (end, other.is_empty()) {
                    (_, true) => return None,
                    (End::Front, false) => break End::Back,
                    (End::Back, false) => break End::Front,
                }
            }
            let fetched = match end {
                End::Front => self.fetch_front(),
                End::Back => self.fetch_back(),
            };
            if let Err(e) = fetched {
                self.engine.note_damage(&e);
                self.fail();
                return Some(Err(e));
            }
        };
        if let Some(trace) = &mut self.trace {
            match end {
                End::Front => trace.forward += 1,
                End::Back => trace.backward += 1,
            }
        }
        Some(Ok(match from {
            End::Front => &mut self.fetched_front,
            End::Back => &mut self.fetched_back,
        }))
    }

    fn fail(&mut self) {
        self.failed = true;
        self.fetched_front.clear();
        self.fetched_back.clear();
        self.front = self.back.clone();
    }
}

impl Iterator for Iter {
    type Item = Result<KeyValue>;

    #[inline]
    fn next(&mut self) -> Option<Result<KeyValue>> {
        match self.ready(End::Front)? {
            Ok(ready) => ready.take(End::Front).map(Ok),
            Err(e) => Some(Err(e)),
        }
    }
}

impl DoubleEndedIterator for Iter {
    #[inline]
    fn next_back(&mut self) -> Option<Result<KeyValue>> {
        match self.ready(End::Back)? {
            Ok(ready) => ready.take(End::Back).map(Ok),
            Err(e) => Some(Err(e)),
        }
    }
}

impl FusedIterator for Iter {}

impl std::fmt::Debug for Iter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Iter(at {}, keyspace {})", self.seq, self.keyspace)
    }
}
