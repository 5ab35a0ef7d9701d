//! The ways to read: single gets, multi-gets, snapshots, and scans of all keys, of a prefix and of
//! a range, from either end and from both.

use std::ops::Bound;

use terrace::{Iter, Keyspace, Snapshot};

use super::roster::Place;
use super::seen::{Look, Seen};
use super::{Stage, failed};
use crate::oracle::Outcome;
use crate::watchdog;

/// The keys of a scan.
enum Keys {
    All,
    Prefix(Vec<u8>),
    Range(Bound<Vec<u8>>, Bound<Vec<u8>>),
}

impl Keys {
    fn has(&self, key: &Vec<u8>) -> bool {
        match self {
            Keys::All => true,
            Keys::Prefix(prefix) => key.starts_with(prefix),
            Keys::Range(low, high) => {
                let above = match low {
                    Bound::Included(low) => key >= low,
                    Bound::Excluded(low) => key > low,
                    Bound::Unbounded => true,
                };
                let below = match high {
                    Bound::Included(high) => key <= high,
                    Bound::Excluded(high) => key < high,
                    Bound::Unbounded => true,
                };
                above && below
            }
        }
    }

    fn of(&self, space: &Keyspace) -> terrace::Result<Iter> {
        match self {
            Keys::All => space.iter(),
            Keys::Prefix(prefix) => space.prefix(prefix),
            Keys::Range(low, high) => space.range((low.clone(), high.clone())),
        }
    }

    fn in_snapshot(&self, snapshot: &Snapshot, space: &Keyspace) -> terrace::Result<Iter> {
        match self {
            Keys::All => snapshot.iter_in(space),
            Keys::Prefix(prefix) => snapshot.prefix_in(space, prefix),
            Keys::Range(low, high) => snapshot.range_in(space, (low.clone(), high.clone())),
        }
    }
}

impl Stage<'_> {
    pub(super) fn read_on(&self, reader: u64) -> Outcome<Seen> {
        let mut rng = fastrand::Rng::with_seed(self.run.seed ^ (reader + 1) << 50);
        let mut seen = Seen::default();
        while self.goes_on() {
            let _operation = watchdog::operation("turn of a reader");
            self.read(&mut rng, &mut seen)?;
        }
        Ok(seen)
    }

    /// Reads once, in a random way.
    fn read(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        self.stand_still(rng);
        match rng.u8(0..40) {
            0..22 => self.get(rng, seen),
            22..29 => self.multi_get(rng, seen),
            29..33 => self.snapshot(rng, seen),
            33..36 => self.read_comer(rng),
            _ => self.scan(rng, seen),
        }
    }

    fn draw(&self, rng: &mut fastrand::Rng) -> Place {
        // Half of the draws are of frequently written keys; the others are far more numerous.
        let families = &self.roster.families;
        let family = match rng.bool() {
            true => &families[rng.usize(..families.len())],
            false => &self.roster.places,
        };
        family[rng.usize(..family.len())].clone()
    }

    pub(super) fn get(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        let place = self.draw(rng);
        let (space, key) = (&self.spaces[place.0], &place.1);
        let called = self.tick();
        let found = match rng.u8(0..3) {
            0 if place.0 == 0 => self.db.get(key),
            1 => space
                .get_with_expiry(key)
                .map(|found| found.map(|found| found.0)),
            _ => space.get(key),
        };
        let found = found.map_err(failed("a get"))?;
        let mut look = Look::new("get", (called, self.tick()));
        look.note(place, found.as_deref())?;
        seen.judge(&self.roster, &look)
    }

    /// Returns keys of one family, and some others.
    fn some(&self, rng: &mut fastrand::Rng) -> Vec<Place> {
        let families = &self.roster.families;
        let family = &families[rng.usize(..families.len())];
        let mut some = family[..family.len().min(40)].to_vec();
        for _ in 0..rng.u8(..4) {
            some.push(self.draw(rng));
        }
        rng.shuffle(&mut some);
        some
    }

    fn multi_get(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        let some = self.some(rng);
        let space = some[0].0;
        let keys: Vec<&Vec<u8>> = some
            .iter()
            .filter(|place| place.0 == space)
            .map(|place| &place.1)
            .collect();
        let called = self.tick();
        let found = self.spaces[space].multi_get(&keys);
        let found = found.map_err(failed("a multi-get"))?;
        let mut look = Look::new("multi-get", (called, self.tick()));
        for (key, found) in keys.into_iter().zip(found) {
            look.note((space, key.clone()), found.as_deref())?;
        }
        seen.judge(&self.roster, &look)
    }

    fn snapshot(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        let called = self.tick();
        let snapshot = self.db.snapshot().map_err(failed("a snapshot"))?;
        let mut look = Look::new("snapshot", (called, self.tick()));
        for _ in 0..rng.u8(1..4) {
            for (space, key) in self.some(rng) {
                let found = snapshot.get_in(&self.spaces[space], &key);
                look.note(
                    (space, key),
                    found.map_err(failed("a get in it"))?.as_deref(),
                )?;
                std::thread::yield_now();
            }
            let (space, keys) = (rng.usize(..2), self.some(rng));
            let keys: Vec<Vec<u8>> = keys
                .into_iter()
                .filter(|place| place.0 == space)
                .map(|place| place.1)
                .collect();
            let found = snapshot.multi_get_in(&self.spaces[space], &keys);
            for (key, found) in keys
                .into_iter()
                .zip(found.map_err(failed("a multi-get in it"))?)
            {
                look.note((space, key), found.as_deref())?;
            }
        }
        for space in 0..2 {
            if rng.u8(..4) == 0 {
                let keys = self.keys(rng);
                let iter = keys.in_snapshot(&snapshot, &self.spaces[space]);
                let iter = iter.map_err(failed("a scan of a snapshot"))?;
                self.take(iter, &keys, space, rng, &mut look)?;
                seen.scans += 1;
            }
        }
        seen.judge(&self.roster, &look)
    }

    fn keys(&self, rng: &mut fastrand::Rng) -> Keys {
        match rng.u8(0..4) {
            0 => Keys::Prefix(self.draw(rng).1[..rng.usize(1..3)].to_vec()),
            1 => {
                let (one, other) = (self.draw(rng).1, self.draw(rng).1);
                let low = match rng.u8(..3) {
                    0 => Bound::Unbounded,
                    1 => Bound::Included(one.clone().min(other.clone())),
                    _ => Bound::Excluded(one.clone().min(other.clone())),
                };
                let high = match rng.u8(..3) {
                    0 => Bound::Unbounded,
                    1 => Bound::Included(one.max(other)),
                    _ => Bound::Excluded(one.max(other)),
                };
                Keys::Range(low, high)
            }
            _ => Keys::All,
        }
    }

    fn scan(&self, rng: &mut fastrand::Rng, seen: &mut Seen) -> Outcome {
        let (keys, space) = (self.keys(rng), rng.usize(..2));
        let called = self.tick();
        let iter = keys.of(&self.spaces[space]).map_err(failed("a scan"))?;
        let mut look = Look::new("scan", (called, self.tick()));
        self.take(iter, &keys, space, rng, &mut look)?;
        seen.scans += 1;
        seen.judge(&self.roster, &look)
    }

    /// Takes all pairs of a scan, each key once and in order. Keys that the scan does not return
    /// are absent.
    fn take(
        &self,
        mut iter: Iter,
        keys: &Keys,
        space: usize,
        rng: &mut fastrand::Rng,
        look: &mut Look,
    ) -> Outcome {
        let way = rng.u8(0..3);
        let (mut low, mut high): (Option<Vec<u8>>, Option<Vec<u8>>) = (None, None);
        let mut missing: std::collections::BTreeSet<&Vec<u8>> = self
            .roster
            .places
            .iter()
            .filter(|(s, key)| *s == space && keys.has(key))
            .map(|(_, key)| key)
            .collect();
        for turn in 0u32.. {
            let backward = match way {
                0 => false,
                1 => true,
                _ => rng.bool(),
            };
            let next = if backward {
                iter.next_back()
            } else {
                iter.next()
            };
            let Some(pair) = next else { break };
            let (key, value) = pair.map_err(failed("a scan"))?.into_pair();
            let between = low.as_ref().is_none_or(|low| *low < key)
                && high.as_ref().is_none_or(|high| *high > key);
            if !between || !keys.has(&key) {
                return Err(format!(
                    "a scan (way {way}) gives {:?} between {low:?} and {high:?}",
                    key.escape_ascii().to_string()
                ));
            }
            if turn.is_multiple_of(16) {
                std::thread::yield_now();
            }
            missing.remove(&key);
            look.note((space, key.clone()), Some(&value))?;
            *(if backward { &mut high } else { &mut low }) = Some(key);
        }
        for key in missing {
            look.note((space, key.clone()), None)?;
        }
        Ok(())
    }
}
