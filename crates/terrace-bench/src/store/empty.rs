//! The store that does nothing: a run of it measures the cost of the harness.

use super::{About, Counters, Direction, Session, Settle, Store};
use crate::error::BenchError;
use crate::space::Space;

/// Opens the store; does nothing.
pub(super) fn open() -> Box<dyn Store> {
    Box::new(Empty)
}

struct Empty;

impl Store for Empty {
    fn about(&self) -> About {
        About {
            name: "empty: does nothing".to_string(),
            medium: "none: nothing is stored".to_string(),
            durability: "none: nothing is stored".to_string(),
            settings: "none".to_string(),
            counted_by: "nothing: the store does not write",
        }
    }

    fn session(&self) -> Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(Empty))
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

impl Session for Empty {
    fn put(&mut self, _: &[u8], _: &[u8]) -> Result<(), BenchError> {
        Ok(())
    }

    fn delete(&mut self, _: &[u8]) -> Result<(), BenchError> {
        Ok(())
    }

    fn batch_put(&mut self, _: &[u8], _: &[u8]) -> Result<(), BenchError> {
        Ok(())
    }

    fn batch_delete(&mut self, _: &[u8]) -> Result<(), BenchError> {
        Ok(())
    }

    fn commit(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    fn get(&mut self, _: &[u8], _: &mut dyn FnMut(&[u8])) -> Result<bool, BenchError> {
        Ok(false)
    }

    fn scan(
        &mut self,
        _: Option<&[u8]>,
        _: Direction,
        _: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), BenchError> {
        Ok(())
    }
}
