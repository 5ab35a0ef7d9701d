//! A faulty store for tests of the checks: a map that loses, changes or invents entries.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{About, Counters, Direction, Session, Settle, Store};
use crate::error::BenchError;
use crate::space::Space;

/// The fault of a [`Liar`] on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    /// No fault: the store is correct.
    None,
    /// Puts of the key are acknowledged and dropped.
    Lose,
    /// The last byte of its value is changed.
    Change,
    /// Every requested key has a value.
    Invent,
    /// Deletes of the key are acknowledged and dropped.
    Keep,
    /// Puts of the key after the first one are acknowledged and dropped.
    Stale,
    /// The results are correct, but each read of the key stalls for [`STALL`].
    Stall,
}

/// The duration of a stalled read.
pub(crate) const STALL: Duration = Duration::from_millis(60);

/// A store with a fault on one key.
pub(crate) struct Liar {
    pub(crate) lie: Lie,
    pub(crate) key: Vec<u8>,
    pub(crate) entries: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Liar {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        let mut value = value.to_vec();
        match self.lie {
            Lie::Lose if key == self.key => return,
            Lie::Stale if key == self.key && self.entries().contains_key(key) => return,
            Lie::Change if key == self.key => {
                if let Some(last) = value.last_mut() {
                    *last ^= 1;
                }
            }
            _ => {}
        }
        self.entries().insert(key.to_vec(), value);
    }
}

impl Store for Liar {
    fn about(&self) -> About {
        About {
            name: "liar".to_string(),
            medium: "memory".to_string(),
            durability: "none".to_string(),
            settings: format!("{:?}", self.lie),
            counted_by: "nobody",
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(self))
    }

    fn settle(&self, _: Settle) -> Result<(), BenchError> {
        Ok(())
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn space(&self) -> Space {
        Space::default()
    }

    fn close(self: Box<Self>) -> Result<(), BenchError> {
        Ok(())
    }
}

impl Session for &Liar {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        Liar::put(self, key, value);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        if self.lie != Lie::Keep || key != self.key {
            self.entries().remove(key);
        }
        Ok(())
    }

    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> Result<(), BenchError> {
        Liar::put(self, key, value);
        Ok(())
    }

    fn batch_delete(&mut self, key: &[u8]) -> Result<(), BenchError> {
        self.delete(key)
    }

    fn commit(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        if self.lie == Lie::Stall && key == self.key {
            std::thread::sleep(STALL);
        }
        match self.entries().get(key) {
            Some(value) => see(value),
            None if self.lie == Lie::Invent => see(b"invented"),
            None => return Ok(false),
        }
        Ok(true)
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), BenchError> {
        let end = from.map_or(Bound::Unbounded, Bound::Included);
        let entries = self.entries();
        match direction {
            Direction::Forward => {
                let mut range = entries.range::<[u8], _>((end, Bound::Unbounded));
                range.all(|(key, value)| see(key, value));
            }
            Direction::Backward => {
                let mut range = entries.range::<[u8], _>((Bound::Unbounded, end)).rev();
                range.all(|(key, value)| see(key, value));
            }
        }
        Ok(())
    }
}
