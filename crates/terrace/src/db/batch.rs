//! The write batch: puts and deletes that are applied atomically.

use std::ops::RangeBounds;
use std::time::{Duration, SystemTime};

use crate::db::Keyspace;
use crate::db::bounds::Bounds;
use crate::parts::batch::Batch;
use crate::parts::expiry::millis_of;
use crate::types::{DEFAULT_KEYSPACE, EntryKind, KEY_BYTES_MAX};

/// Puts and deletes, in order, that become visible and durable atomically.
///
/// Its keyspaces must belong to the database that writes it, else the write gets `Invalid`.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let db = terrace::Db::open(folder.path(), terrace::testing::small_options())?;
/// use terrace::{Durability, WriteBatch};
/// let mut batch = WriteBatch::new();
/// batch.put("from", "90").put("to", "110").delete("pending");
/// db.write(batch, Durability::Buffered)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct WriteBatch {
    pub(super) batch: Batch,
    /// The size of a key or value that no batch can hold; reported when the batch is written.
    pub(super) too_large: Option<usize>,
    /// The opening of the database of the keyspaces; 0 without any.
    opening: u64,
    /// Whether keyspaces of several databases were given; reported when the batch is written.
    is_mixed: bool,
}

/// The longest value that a batch can encode, in bytes.
const VALUE_BYTES_MAX: usize = 1 << 30;
/// The longest key that a batch can encode; `Db::write` refuses far shorter ones.
const KEY_ENCODABLE_MAX: usize = (1 << 24) - 1;

impl WriteBatch {
    /// Creates an empty batch.
    pub fn new() -> WriteBatch {
        WriteBatch::default()
    }

    /// Sets `key` to `value` in the default keyspace.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> &mut WriteBatch {
        self.push(
            EntryKind::Put,
            DEFAULT_KEYSPACE,
            key.as_ref(),
            value.as_ref(),
        )
    }

    /// Deletes `key` from the default keyspace.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> &mut WriteBatch {
        self.push(EntryKind::Delete, DEFAULT_KEYSPACE, key.as_ref(), &[])
    }

    /// Sets `key` to `value` in `keyspace`.
    pub fn put_in(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> &mut WriteBatch {
        let keyspace = self.id_of(keyspace);
        self.push(EntryKind::Put, keyspace, key.as_ref(), value.as_ref())
    }

    /// Deletes `key` from `keyspace`.
    pub fn delete_in(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> &mut WriteBatch {
        let keyspace = self.id_of(keyspace);
        self.push(EntryKind::Delete, keyspace, key.as_ref(), &[])
    }

    /// Sets `key` to `value` in the default keyspace, for the duration `ttl` from the time at which
    /// the batch is written; see [`Db::put_with_ttl`](crate::Db::put_with_ttl).
    pub fn put_with_ttl(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> &mut WriteBatch {
        self.push_with_ttl(DEFAULT_KEYSPACE, key.as_ref(), value.as_ref(), ttl)
    }

    /// Sets `key` to `value` in `keyspace` for the duration `ttl`.
    pub fn put_with_ttl_in(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> &mut WriteBatch {
        let keyspace = self.id_of(keyspace);
        self.push_with_ttl(keyspace, key.as_ref(), value.as_ref(), ttl)
    }

    /// Sets `key` to `value` in the default keyspace, until the time `expiry`; see
    /// [`Db::put_with_expiry`](crate::Db::put_with_expiry).
    pub fn put_with_expiry(
        &mut self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> &mut WriteBatch {
        self.push_with_expiry(DEFAULT_KEYSPACE, key.as_ref(), value.as_ref(), expiry)
    }

    /// Sets `key` to `value` in `keyspace` until the time `expiry`.
    pub fn put_with_expiry_in(
        &mut self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: SystemTime,
    ) -> &mut WriteBatch {
        let keyspace = self.id_of(keyspace);
        self.push_with_expiry(keyspace, key.as_ref(), value.as_ref(), expiry)
    }

    /// Returns the number of a keyspace. All keyspaces must belong to the database that writes the
    /// batch.
    #[inline]
    fn id_of(&mut self, keyspace: &Keyspace) -> u32 {
        let opening = keyspace.engine().shared.opening;
        self.is_mixed |= self.opening != 0 && self.opening != opening;
        self.opening = opening;
        keyspace.id()
    }

    /// Returns whether all keyspaces belong to this opening of a database.
    #[inline]
    pub(super) fn belongs_to(&self, opening: u64) -> bool {
        !self.is_mixed && (self.opening == 0 || self.opening == opening)
    }

    fn push_with_ttl(
        &mut self,
        keyspace: u32,
        key: &[u8],
        value: &[u8],
        ttl: Duration,
    ) -> &mut WriteBatch {
        if self.fits(key, value) {
            let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
            self.batch.push_with_ttl(keyspace, key, value, ttl.max(1));
        }
        self
    }

    fn push_with_expiry(
        &mut self,
        keyspace: u32,
        key: &[u8],
        value: &[u8],
        expiry: SystemTime,
    ) -> &mut WriteBatch {
        if self.fits(key, value) {
            let expiry = millis_of(expiry);
            self.batch.push_expiring(keyspace, key, value, expiry);
        }
        self
    }

    /// Returns whether one more entry can be encoded; else the batch is refused when it is written.
    #[inline]
    fn fits(&mut self, key: &[u8], value: &[u8]) -> bool {
        let all = self.batch.payload.len_bytes() + key.len() + value.len();
        if key.len() > KEY_ENCODABLE_MAX || all > VALUE_BYTES_MAX {
            self.too_large = Some(key.len().max(value.len()));
            return false;
        }
        true
    }

    /// Deletes the keys in `bounds` from the default keyspace, including those that earlier entries
    /// of the batch have put. Empty bounds, such as a range whose end comes before its start,
    /// delete nothing.
    pub fn delete_range<K: AsRef<[u8]>>(&mut self, bounds: impl RangeBounds<K>) -> &mut WriteBatch {
        self.push_range(DEFAULT_KEYSPACE, &Bounds::of(&bounds))
    }

    /// Deletes the keys in `bounds` from `keyspace`; see
    /// [`delete_range`](WriteBatch::delete_range).
    pub fn delete_range_in<K: AsRef<[u8]>>(
        &mut self,
        keyspace: &Keyspace,
        bounds: impl RangeBounds<K>,
    ) -> &mut WriteBatch {
        let keyspace = self.id_of(keyspace);
        self.push_range(keyspace, &Bounds::of(&bounds))
    }

    pub(super) fn push_range(&mut self, keyspace: u32, bounds: &Bounds) -> &mut WriteBatch {
        let longest = bounds.longest_key();
        if longest > KEY_BYTES_MAX {
            self.too_large = Some(longest);
        } else if let Some((begin, end)) = bounds.half_open() {
            self.batch.push_range(keyspace, &begin, &end);
        }
        self
    }

    #[inline]
    pub(super) fn push(
        &mut self,
        kind: EntryKind,
        keyspace: u32,
        key: &[u8],
        value: &[u8],
    ) -> &mut WriteBatch {
        if self.fits(key, value) {
            self.batch.push(kind, keyspace, key, value);
        }
        self
    }

    /// Removes all entries and keeps the allocation for the next ones.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.too_large = None;
        self.opening = 0;
        self.is_mixed = false;
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.batch.len() == 0
    }

    /// Returns the key and value bytes of all entries.
    pub fn size_bytes(&self) -> usize {
        self.batch.user_bytes() as usize
    }
}
