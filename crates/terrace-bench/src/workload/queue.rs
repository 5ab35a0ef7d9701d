//! A queue in a store: keys are put at the end, and the first one is found and deleted.
//!
//! Log-structured stores are bad at this: a search for the first key has to pass everything that
//! was deleted before it. The seek starts at the original start of the queue, like that of a
//! consumer that knows only the queue's name. Each thread has its own queue, so that the key at its
//! head is known exactly: one that is lost, or deleted and back again, ends the run.

use super::{CHECK_EVERY, Client};
use crate::error::{BenchError, Found};
use crate::keys::parse_key;
use crate::meter::Pace;
use crate::store::Direction;

/// The operations on each key: it is put, found, and deleted.
pub(super) const OPS_OF_A_KEY: u64 = 3;

const KINDS: [&str; 3] = ["put", "seek", "delete"];
const PUT: usize = 0;
const SEEK: usize = 1;
const DELETE: usize = 2;

impl Client<'_> {
    /// Puts `num` keys at the end of a queue, and deletes each one from its head when `queue_depth`
    /// more are behind it.
    pub(super) fn queue(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        let depth = config.queue_depth.min(config.num);
        let first = self.thread as u64 * config.num;
        pace.kinds(&KINDS);
        for i in 0..config.num + depth {
            if self.work.meter.is_stopped() {
                return Ok(());
            }
            if i < config.num {
                pace.begin(1);
                let key = self.keys.key(first + i);
                let value = self.values.value(first + i);
                let bytes = (key.len() + value.len()) as u64;
                self.session.put(key, value)?;
                pace.wrote(bytes);
                pace.finished_as(PUT, 1, bytes);
            }
            if i >= depth {
                pace.begin(1);
                let bytes = self.find_head(first, Some(first + i - depth), pace)?;
                pace.finished_as(SEEK, 1, bytes);
                pace.begin(1);
                let key = self.keys.key(first + i - depth);
                self.session.delete(key)?;
                pace.wrote(key.len() as u64);
                pace.finished_as(DELETE, 1, key.len() as u64);
            }
        }
        self.find_head(first, None, pace).map(drop)
    }

    /// Seeks the head of the queue that began at `first`, and checks that it is `head`, or that the
    /// queue is empty; returns the bytes of the entry.
    fn find_head(
        &mut self,
        first: u64,
        head: Option<u64>,
        pace: &mut Pace<'_>,
    ) -> Result<u64, BenchError> {
        let end = first + self.work.config.num;
        let values = &mut self.values;
        let (mut bytes, mut other) = (0, None);
        let from = Some(self.keys.key(first));
        self.session
            .scan(from, Direction::Forward, &mut |key, value| {
                bytes = (key.len() + value.len()) as u64;
                let number = parse_key(key);
                let right = match number.filter(|_| number == head) {
                    Some(number) if number.is_multiple_of(CHECK_EVERY) => {
                        pace.checked();
                        values.is_value(number, value)
                    }
                    Some(number) => values.has_tag(number, value),
                    None => false,
                };
                if !right {
                    let expected = head.map(|head| Found::of(values.expected(head, value)));
                    other = Some((key.to_vec(), expected, Found::of(value)));
                }
                false
            })?;
        if !self.work.checks {
            return Ok(bytes);
        }
        if let Some((key, expected, found)) = other {
            let Some(number) = parse_key(&key) else {
                return Err(BenchError::never_written(&key, &found));
            };
            if let Some(expected) = expected.filter(|_| Some(number) == head) {
                return Err(BenchError::wrong(&key, &expected, &found));
            }
            if number < head.unwrap_or(end) {
                return Err(BenchError::deleted(&key, &found));
            }
            // The key is one behind the head, or the head of the next queue.
            bytes = 0;
        }
        match head {
            Some(head) if bytes == 0 => {
                let expected = Found::of(self.values.expected(head, &[]));
                Err(BenchError::lost(self.keys.key(head), &expected))
            }
            _ => Ok(bytes),
        }
    }
}
