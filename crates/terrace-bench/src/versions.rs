//! This file is which version of a record a reader may see, where writers overwrite it meanwhile.
//!
//! One record in [`EVERY`] is followed. A write of it takes the next version when it begins, and says
//! when it was acknowledged. While no write of a record is under way the store has exactly one version,
//! the last one. Of writes that overlap nobody knows which one the store did last, so they are taken
//! together: a group lasts from the first write that begins while none is under way until none is any
//! more. A write that began in a group was preceded by every version before that group, so once it is
//! acknowledged those can never be read again.
//!
//! Invariants
//!   V1  `floor` rises, when a write is acknowledged, to the first version of its group: a read that
//!       begins later must not give an older one.
//!   V2  A read gives no version above the last one that has begun when the read ends.
//!   V3  A read may find nothing only if no put was acknowledged, or a delete at or above the floor has
//!       begun.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One record in this many is followed.
pub(crate) const EVERY: u64 = 16;

/// The versions of the records that are followed.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    followed: Vec<Mutex<Followed>>,
}

/// What is known of one record.
#[derive(Debug, Default)]
struct Followed {
    /// The last version that a write took.
    last: u32,
    /// Writes that have begun and not ended.
    under_way: u32,
    /// The first version of the group that is under way, or was last.
    group: u32,
    /// No read that begins now gives an older version; 0 where nothing was acknowledged.
    floor: u32,
    /// The last version that is a delete.
    deleted: u32,
}

/// What a read that begins now must at least find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Floor(u32);

/// Why a read was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Nothing was found, and something must be there: at least this version.
    Lost(u32),
    /// This version was found, and must be gone: at least the second one must be there.
    Stale(u32, u32),
    /// This version was found, and was never written: the second one is the last.
    Unwritten(u32, u32),
}

impl Versions {
    /// Makes room for the records from 0 up to `records`. What is followed already stays.
    pub(crate) fn grow(&mut self, records: u64) {
        let wanted = records.div_ceil(EVERY) as usize;
        if wanted > self.followed.len() {
            self.followed.resize_with(wanted, Mutex::default);
        }
    }

    fn of(&self, record: u64) -> Option<MutexGuard<'_, Followed>> {
        if !record.is_multiple_of(EVERY) {
            return None;
        }
        let followed = self.followed.get((record / EVERY) as usize)?;
        // LOCK: held for some instructions, never over a call of the store.
        Some(followed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A write of `record` begins: its version; `None` where the record is not followed.
    #[inline]
    pub(crate) fn begin(&self, record: u64, is_delete: bool) -> Option<u32> {
        let mut followed = self.of(record)?;
        // A record that was written four thousand million times is followed no more.
        let version = followed.last.checked_add(1)?;
        followed.last = version;
        if followed.under_way == 0 {
            followed.group = version;
        }
        followed.under_way += 1;
        if is_delete {
            followed.deleted = version;
        }
        Some(version)
    }

    /// A write of `record` that [`Versions::begin`] gave a version was acknowledged.
    #[inline]
    pub(crate) fn acknowledge(&self, record: u64) {
        if let Some(mut followed) = self.of(record) {
            followed.under_way -= 1;
            followed.floor = followed.floor.max(followed.group);
        }
    }

    /// What a read of `record` that begins now must find; `None` where it is not followed.
    #[inline]
    pub(crate) fn floor(&self, record: u64) -> Option<Floor> {
        self.of(record).map(|followed| Floor(followed.floor))
    }

    /// Whether a read of `record` that began at `floor` may end with `found`.
    pub(crate) fn judge(&self, record: u64, floor: Floor, found: Option<u32>) -> Result<(), Wrong> {
        let Some(followed) = self.of(record) else {
            return Ok(());
        };
        let Floor(floor) = floor;
        match found {
            None if floor == 0 || followed.deleted >= floor => Ok(()),
            None => Err(Wrong::Lost(floor)),
            Some(version) if version < floor => Err(Wrong::Stale(version, floor)),
            Some(version) if version > followed.last => {
                Err(Wrong::Unwritten(version, followed.last))
            }
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions() -> Versions {
        let mut versions = Versions::default();
        versions.grow(33);
        versions
    }

    /// Writes one after another leave one version that may be read.
    #[test]
    fn alone_only_the_last_version_is_right() {
        let versions = versions();
        let before = versions.floor(16).expect("it is followed");
        assert_eq!(versions.judge(16, before, None), Ok(()));
        for version in 1..=3 {
            assert_eq!(versions.begin(16, false), Some(version));
            versions.acknowledge(16);
        }
        let floor = versions.floor(16).expect("it is followed");
        assert_eq!(versions.judge(16, floor, Some(3)), Ok(()));
        assert_eq!(versions.judge(16, floor, Some(2)), Err(Wrong::Stale(2, 3)));
        assert_eq!(
            versions.judge(16, floor, Some(4)),
            Err(Wrong::Unwritten(4, 3))
        );
        assert_eq!(versions.judge(16, floor, None), Err(Wrong::Lost(3)));
        // A read that began before all of this may have seen any of them, and nothing.
        for found in [None, Some(1), Some(2), Some(3)] {
            assert_eq!(versions.judge(16, before, found), Ok(()));
        }
    }

    /// Of writes that overlap every one may be the last; what was before them may not be.
    #[test]
    fn overlapping_writes_may_end_in_any_order() {
        let versions = versions();
        versions.begin(0, false);
        versions.acknowledge(0);
        assert_eq!(versions.begin(0, false), Some(2));
        let during = versions.floor(0).expect("it is followed");
        assert_eq!(versions.begin(0, false), Some(3));
        versions.acknowledge(0);
        assert_eq!(versions.begin(0, false), Some(4));
        let floor = versions.floor(0).expect("it is followed");
        for version in 2..=4 {
            assert_eq!(versions.judge(0, floor, Some(version)), Ok(()));
        }
        assert_eq!(versions.judge(0, floor, Some(1)), Err(Wrong::Stale(1, 2)));
        assert_eq!(versions.judge(0, during, Some(1)), Ok(()));
        versions.acknowledge(0);
        versions.acknowledge(0);
        // The group is over; the next write knows its order again.
        assert_eq!(versions.begin(0, false), Some(5));
        versions.acknowledge(0);
        let floor = versions.floor(0).expect("it is followed");
        assert_eq!(versions.judge(0, floor, Some(4)), Err(Wrong::Stale(4, 5)));
    }

    /// Nothing is right after a delete and wrong after the put that followed it; a put that a delete
    /// overwrote is wrong.
    #[test]
    fn deletes_are_versions_too() {
        let versions = versions();
        for is_delete in [false, true] {
            versions.begin(32, is_delete);
            versions.acknowledge(32);
        }
        let floor = versions.floor(32).expect("it is followed");
        assert_eq!(versions.judge(32, floor, None), Ok(()));
        assert_eq!(versions.judge(32, floor, Some(1)), Err(Wrong::Stale(1, 2)));
        versions.begin(32, false);
        assert_eq!(
            versions.judge(32, floor, None),
            Ok(()),
            "the put is not acknowledged"
        );
        versions.acknowledge(32);
        let floor = versions.floor(32).expect("it is followed");
        assert_eq!(versions.judge(32, floor, None), Err(Wrong::Lost(3)));
    }

    /// Only a sample is followed, within the room that was made; the rest is never wrong.
    #[test]
    fn a_sample_is_followed() {
        let mut versions = versions();
        for record in [1, 15, 17, 48, u64::MAX] {
            assert_eq!(versions.begin(record, false), None);
            assert_eq!(versions.floor(record), None);
            versions.acknowledge(record);
            assert_eq!(versions.judge(record, Floor(9), None), Ok(()));
        }
        versions.begin(32, false);
        versions.acknowledge(32);
        versions.grow(100);
        versions.grow(10);
        assert_eq!(
            versions.floor(32),
            Some(Floor(1)),
            "growing forgets nothing"
        );
        assert_eq!(versions.floor(48), Some(Floor(0)));
    }

    /// Threads that write and read one register, which is right by its lock, never see a wrong version.
    #[test]
    fn a_right_register_is_never_wrong() {
        let versions = versions();
        let register = std::sync::RwLock::new(None);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (versions, register) = (&versions, &register);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(thread);
                    for _ in 0..20_000 {
                        if rng.bool() {
                            let is_delete = rng.u8(0..4) == 0;
                            let version = versions.begin(0, is_delete).expect("it is followed");
                            let new = (!is_delete).then_some(version);
                            *register.write().expect("no panic") = new;
                            versions.acknowledge(0);
                        } else {
                            let floor = versions.floor(0).expect("it is followed");
                            let found = *register.read().expect("no panic");
                            assert_eq!(versions.judge(0, floor, found), Ok(()));
                        }
                    }
                });
            }
        });
    }
}
