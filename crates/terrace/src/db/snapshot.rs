//! The snapshot: a moment that reads can return to.

use std::ops::RangeBounds;
use std::sync::Arc;

use crate::db::bounds::Bounds;
use crate::db::iter::{ExpiringValue, Iter, with_expiry};
use crate::db::{Handle, Keyspace};
use crate::engine::Engine;
use crate::error::Result;
use crate::parts::snapshots::ReadPoint;
use crate::types::DEFAULT_KEYSPACE;

/// A moment of the database: reads through it see exactly what was visible then, including entries
/// that have expired since. While it lives, merges and drains keep every version that it can see.
/// Cheap to create and to clone.
///
/// A [`Keyspace`] argument must belong to the same database, else the call gets `Invalid`.
#[derive(Clone)]
pub struct Snapshot(Arc<Registration>);

struct Registration {
    /// Keeps the database open.
    handle: Arc<Handle>,
    point: ReadPoint,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let engine = &self.handle.engine;
        if engine.is_foreign() {
            // Another thread may have held the list's lock when this process was forked.
            return;
        }
        engine.shared.snapshots.release(self.point.seq);
    }
}

impl Snapshot {
    pub(super) fn new(handle: &Arc<Handle>) -> Snapshot {
        let point = handle.engine.register_moment();
        Snapshot(Arc::new(Registration {
            handle: Arc::clone(handle),
            point,
        }))
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.0.handle.engine
    }

    /// Returns the value of `key` in the default keyspace at this moment.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.engine()
            .get(DEFAULT_KEYSPACE, key.as_ref(), Some(self.0.point))
    }

    /// Returns the value of `key` in `keyspace` at this moment.
    pub fn get_in(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.engine()
            .get(self.own(keyspace)?, key.as_ref(), Some(self.0.point))
    }

    /// Returns the value of `key` in the default keyspace, and its expiry.
    pub fn get_with_expiry(&self, key: impl AsRef<[u8]>) -> Result<Option<ExpiringValue>> {
        self.find(DEFAULT_KEYSPACE, key.as_ref())
    }

    /// Returns the value of `key` in `keyspace`, and its expiry.
    pub fn get_with_expiry_in(
        &self,
        keyspace: &Keyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<ExpiringValue>> {
        self.find(self.own(keyspace)?, key.as_ref())
    }

    fn find(&self, keyspace: u32, key: &[u8]) -> Result<Option<ExpiringValue>> {
        let point = Some(self.0.point);
        let found = self.engine().get_expiring(keyspace, key, point)?;
        Ok(found.map(with_expiry))
    }

    /// Returns the values of `keys` in the default keyspace.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let point = Some(self.0.point);
        self.engine().multi_get(DEFAULT_KEYSPACE, keys, point)
    }

    /// Returns the values of `keys` in `keyspace`.
    pub fn multi_get_in<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let point = Some(self.0.point);
        let keyspace = self.own(keyspace)?;
        self.engine().multi_get(keyspace, keys, point)
    }

    /// Returns an iterator over all pairs of the default keyspace.
    pub fn iter(&self) -> Result<Iter> {
        self.scan(DEFAULT_KEYSPACE, Bounds::all())
    }

    /// Returns an iterator over the pairs of the default keyspace whose keys are in `bounds`.
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<Iter> {
        self.scan(DEFAULT_KEYSPACE, Bounds::of(&bounds))
    }

    /// Returns an iterator over the pairs of the default keyspace whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.scan(DEFAULT_KEYSPACE, Bounds::prefix(prefix.as_ref()))
    }

    /// Returns an iterator over all pairs of `keyspace`.
    pub fn iter_in(&self, keyspace: &Keyspace) -> Result<Iter> {
        self.scan(self.own(keyspace)?, Bounds::all())
    }

    /// Returns an iterator over the pairs of `keyspace` whose keys are in `bounds`.
    pub fn range_in<K: AsRef<[u8]>>(
        &self,
        keyspace: &Keyspace,
        bounds: impl RangeBounds<K>,
    ) -> Result<Iter> {
        self.scan(self.own(keyspace)?, Bounds::of(&bounds))
    }

    /// Returns an iterator over the pairs of `keyspace` whose keys begin with `prefix`.
    pub fn prefix_in(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Iter> {
        self.scan(self.own(keyspace)?, Bounds::prefix(prefix.as_ref()))
    }

    /// Returns the number of a keyspace of this database.
    #[inline]
    fn own(&self, keyspace: &Keyspace) -> Result<u32> {
        keyspace.id_in(self.engine())
    }

    fn scan(&self, keyspace: u32, bounds: Bounds) -> Result<Iter> {
        let point = self.0.point;
        self.engine().shared.snapshots.register_again(point);
        let iter = Iter::new(self.engine(), keyspace, bounds, point)?;
        Ok(iter.keep_open(&self.0.handle))
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot(at {})", self.0.point.seq)
    }
}
