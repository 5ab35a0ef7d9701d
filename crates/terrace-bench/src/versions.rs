//! The versions of a record that a reader may see while writers overwrite it.
//!
//! One record in [`EVERY`] is tracked. A write of it takes the next version when it begins, and
//! reports when it was acknowledged. While no write of a record is in progress, the store has
//! exactly one version, the last one. The order in which the store applied overlapping writes is
//! unknown, so they form a group: it lasts from the first write that begins while no other is in
//! progress until none is in progress. A write of a group follows every version before that group,
//! so once it is acknowledged those can never be read again.
//!
//! Invariants
//!   V1  `floor` rises, when a write is acknowledged, to the first version of its group: a read
//!       that begins later must not return an older one.
//!   V2  A read returns no version above the last one that has begun when the read ends.
//!   V3  A read may find nothing only if no put was acknowledged, or a delete at or above the floor
//!       has begun.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One record in this many is tracked.
pub(crate) const EVERY: u64 = 16;

/// The versions of the records that are tracked.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    followed: Vec<Mutex<Followed>>,
}

/// The state of one record.
#[derive(Debug, Default)]
struct Followed {
    /// The last version that a write took.
    last: u32,
    /// Writes in progress.
    under_way: u32,
    /// The first version of the current or the last group.
    group: u32,
    /// The oldest version that a read that begins now may return; 0 if nothing was acknowledged.
    floor: u32,
    /// The last version that is a delete.
    deleted: u32,
}

/// The oldest version that a read may find, taken when it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Floor(u32);

/// The reason that a read was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Nothing was found, though at least this version must exist.
    Lost(u32),
    /// The first version was found, though it was superseded: at least the second one must exist.
    Stale(u32, u32),
    /// The first version was found, but never written: the second one is the last.
    Unwritten(u32, u32),
}

impl Versions {
    /// Makes space for the records from 0 up to `records`. Records already tracked stay.
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
        // LOCK: held for some instructions, never during a call of the store.
        Some(followed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins a write of `record` and returns its version; `None` if the record is not tracked.
    #[inline]
    pub(crate) fn begin(&self, record: u64, is_delete: bool) -> Option<u32> {
        let mut followed = self.of(record)?;
        // A record is no longer tracked after four thousand million writes.
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

    /// Records that a write of `record` that got a version from [`Versions::begin`] was
    /// acknowledged.
    #[inline]
    pub(crate) fn acknowledge(&self, record: u64) {
        if let Some(mut followed) = self.of(record) {
            followed.under_way -= 1;
            followed.floor = followed.floor.max(followed.group);
        }
    }

    /// Returns the floor for a read of `record` that begins now; `None` if it is not tracked.
    #[inline]
    pub(crate) fn floor(&self, record: u64) -> Option<Floor> {
        self.of(record).map(|followed| Floor(followed.floor))
    }

    /// Checks whether a read of `record` that began at `floor` may end with `found`.
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

    /// Successive writes leave one version that may be read.
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
        // A read that began before these writes may have seen any of them, or nothing.
        for found in [None, Some(1), Some(2), Some(3)] {
            assert_eq!(versions.judge(16, before, found), Ok(()));
        }
    }

    /// Any of several overlapping writes may be the last; earlier versions may not be read.
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
        // The group has ended; the order of the next write is known.
        assert_eq!(versions.begin(0, false), Some(5));
        versions.acknowledge(0);
        let floor = versions.floor(0).expect("it is followed");
        assert_eq!(versions.judge(0, floor, Some(4)), Err(Wrong::Stale(4, 5)));
    }

    /// After a delete, finding nothing is right, and wrong after the following put; a put that a
    /// delete overwrote is wrong.
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

    /// Only a sample is tracked, within the space that was made; other records are never wrong.
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

    /// Threads that write and read a register that is correct by its lock never see a wrong
    /// version.
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
                            if rng.u8(0..4) == 0 {
                                // Lets another write that began later go first.
                                std::thread::yield_now();
                            }
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
