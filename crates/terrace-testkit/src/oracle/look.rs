//! Reads all of a database in every way.

use std::collections::BTreeMap;

use terrace::{Db, KeyValue};

use super::{Oracle, Outcome};
use crate::script::{Key, SPACES, space_name};
use crate::value::shown;
use crate::watchdog;

/// A value that was read. A short one does not identify its write, but whether it expires narrows
/// the choice.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Found {
    bytes: Vec<u8>,
    pub(super) expires: bool,
}

impl Found {
    fn of(pair: KeyValue) -> (Key, Found) {
        let expires = pair.expiry().is_some();
        let (key, bytes) = pair.into_pair();
        (Key(key), Found { bytes, expires })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The content of a database.
pub(super) type Seen = BTreeMap<u8, BTreeMap<Key, Found>>;

impl Oracle {
    /// Reads all of a database in every way, and checks that the results agree.
    pub(super) fn look(&self, db: &Db) -> Outcome<Seen> {
        let _operation = watchdog::operation("reading everything");
        let fail = |what: &str, e: terrace::Error| format!("{what} fails: {e}");
        let mut seen = Seen::new();
        let names = db
            .list_keyspaces()
            .map_err(|e| fail("listing keyspaces", e))?;
        for name in &names {
            let space = (0..SPACES)
                .find(|&s| space_name(s) == *name)
                .ok_or_else(|| format!("the keyspace {name:?} exists, but was never created"))?;
            let handle = db
                .keyspace(name)
                .map_err(|e| fail("opening a keyspace", e))?;
            let handle = handle.ok_or_else(|| format!("keyspace {name} is listed, not found"))?;
            let scan = |iter: terrace::Result<terrace::Iter>| -> Outcome<Vec<(Key, Found)>> {
                let pairs = iter.map_err(|e| fail("a scan", e))?;
                pairs
                    .map(|pair| pair.map(Found::of))
                    .collect::<Result<_, _>>()
                    .map_err(|e| fail("a scan", e))
            };
            let forward = scan(handle.iter())?;
            if !forward.is_sorted_by(|a, b| a.0 < b.0) {
                return Err(format!("a scan of {name} is not in order or repeats a key"));
            }
            let back: Result<Vec<_>, _> = match handle.iter() {
                Ok(iter) => iter.rev().map(|pair| pair.map(Found::of)).collect(),
                Err(e) => Err(e),
            };
            let back = back.map_err(|e| fail("a scan backward", e))?;
            if !forward.iter().eq(back.iter().rev()) {
                return Err(format!(
                    "{name}: {} pairs forward, {} backward, or different pairs",
                    forward.len(),
                    back.len()
                ));
            }
            let pairs: BTreeMap<Key, Found> = forward.into_iter().collect();
            let known = self.spaces.get(&space).map(|s| s.keys.keys());
            for key in known.into_iter().flatten().chain(pairs.keys()) {
                let got = handle.get(key).map_err(|e| fail("a get", e))?;
                let scanned = pairs.get(key).map(Found::bytes);
                if got.as_deref() != scanned {
                    return Err(format!(
                        "{name} {key:?}: get says {}, the scan {}",
                        shown(got.as_deref()),
                        shown(scanned)
                    ));
                }
            }
            seen.insert(space, pairs);
        }
        Ok(seen)
    }
}
