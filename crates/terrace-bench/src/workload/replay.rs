//! The replay of a trace: its calls, as fast as possible or at a rate, shared by all threads.
//!
//! Threads take the next call in turn, so calls of different threads overlap as those of the
//! recorded program may have. Values are generated with the recorded lengths; like those of YCSB's
//! records, each contains its key and version, so that reads can be checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{CHECK_EVERY, Client};
use crate::error::{BenchError, Found};
use crate::meter::Pace;
use crate::store::Direction;
use crate::trace::{Call, Trace};
use crate::values::Values;
use crate::versions::Versions;

/// A trace, and the position of its replay.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) trace: Arc<Trace>,
    next: AtomicU64,
    versions: Versions,
}

impl Replay {
    /// Returns a replay from the beginning.
    pub(crate) fn of(trace: Arc<Trace>) -> Replay {
        let mut versions = Versions::default();
        versions.grow(trace.keys());
        Replay {
            trace,
            next: AtomicU64::new(0),
            versions,
        }
    }
}

const KINDS: [&str; 5] = ["put", "delete", "get", "scan", "batch"];
const BATCH: usize = 4;

fn kind_of(call: Call) -> usize {
    match call {
        Call::Put(_) => 0,
        Call::Delete => 1,
        Call::Get => 2,
        Call::Scan(_) | Call::ScanBack(_) => 3,
    }
}

impl Client<'_> {
    /// Replays calls until none is left.
    pub(super) fn replay(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let missing = || BenchError::Invalid("no trace was given to replay".to_string());
        let replay = self.work.replay.ok_or_else(missing)?;
        pace.kinds(&KINDS);
        let mut done = self.thread as u64;
        while !self.work.meter.is_stopped() {
            let calls = replay
                .trace
                .group(replay.next.fetch_add(1, Ordering::Relaxed));
            done += 1;
            match calls {
                [] => {
                    if replay.next.load(Ordering::Relaxed) > replay.trace.groups() {
                        break;
                    }
                }
                [(call, number)] => {
                    pace.begin(1);
                    let bytes = self.call(replay, *call, *number, done, pace)?;
                    pace.finished_as(kind_of(*call), 1, bytes);
                }
                batch => {
                    pace.begin(batch.len() as u64);
                    let bytes = self.batch(replay, batch, done)?;
                    pace.wrote(bytes);
                    pace.finished_as(BATCH, batch.len() as u64, bytes);
                }
            }
        }
        Ok(())
    }

    /// Replays one call; returns the key and value bytes that it wrote or read.
    fn call(
        &mut self,
        replay: &Replay,
        call: Call,
        number: u32,
        done: u64,
        pace: &mut Pace<'_>,
    ) -> Result<u64, BenchError> {
        let key = replay.trace.key(number);
        let record = u64::from(number);
        let exactly = done.is_multiple_of(CHECK_EVERY);
        match call {
            Call::Put(len) => {
                let (followed, version) = begin(&replay.versions, record, len, done);
                let value = self.values.record(record, version, len as usize);
                self.session.put(key, value)?;
                if followed {
                    replay.versions.acknowledge(record);
                }
                let bytes = key.len() as u64 + u64::from(len);
                pace.wrote(bytes);
                Ok(bytes)
            }
            Call::Delete => {
                let followed = replay.versions.begin(record, true).is_some();
                self.session.delete(key)?;
                if followed {
                    replay.versions.acknowledge(record);
                }
                pace.wrote(key.len() as u64);
                Ok(key.len() as u64)
            }
            Call::Get => self.replay_get(replay, number, exactly, pace),
            Call::Scan(entries) => {
                self.replay_scan(replay, key, Direction::Forward, entries, exactly, pace)
            }
            Call::ScanBack(entries) => {
                self.replay_scan(replay, key, Direction::Backward, entries, exactly, pace)
            }
        }
    }

    fn batch(
        &mut self,
        replay: &Replay,
        batch: &[(Call, u32)],
        done: u64,
    ) -> Result<u64, BenchError> {
        let mut bytes = 0;
        let mut followed = Vec::new();
        for (call, number) in batch {
            let (key, record) = (replay.trace.key(*number), u64::from(*number));
            bytes += key.len() as u64;
            let is_followed = match call {
                Call::Put(len) => {
                    let (is_followed, version) = begin(&replay.versions, record, *len, done);
                    let value = self.values.record(record, version, *len as usize);
                    self.session.batch_put(key, value)?;
                    bytes += u64::from(*len);
                    is_followed
                }
                _ => {
                    self.session.batch_delete(key)?;
                    replay.versions.begin(record, true).is_some()
                }
            };
            if is_followed {
                followed.push(record);
            }
        }
        self.session.commit()?;
        for record in followed {
            replay.versions.acknowledge(record);
        }
        Ok(bytes)
    }

    fn replay_get(
        &mut self,
        replay: &Replay,
        number: u32,
        exactly: bool,
        pace: &mut Pace<'_>,
    ) -> Result<u64, BenchError> {
        let (key, record) = (replay.trace.key(number), u64::from(number));
        let checks = self.work.checks;
        let floor = replay.versions.floor(record).filter(|_| checks);
        let values = &mut self.values;
        let (mut len, mut version, mut wrong) = (0, None, None);
        let found = self.session.get(key, &mut |value| {
            len = value.len();
            if checks {
                version = values.version_of(record, value, exactly);
                if version.is_none() {
                    wrong = Some(Found::of(value));
                }
            }
        })?;
        if let Some(found) = wrong {
            return Err(BenchError::not_of_record(key, &found));
        }
        if found {
            pace.found();
            if exactly && checks {
                pace.checked();
            }
        }
        // A value too short for a version may be of any version.
        if let Some(floor) = floor
            && (!found || Values::has_version(len))
        {
            let judged = replay.versions.judge(record, floor, version);
            judged.map_err(|why| BenchError::wrong_version(key, why))?;
        }
        Ok((key.len() + len) as u64)
    }

    fn replay_scan(
        &mut self,
        replay: &Replay,
        key: &[u8],
        direction: Direction,
        entries: u32,
        exactly: bool,
        pace: &mut Pace<'_>,
    ) -> Result<u64, BenchError> {
        let (checks, values) = (self.work.checks, &mut self.values);
        let (mut bytes, mut seen, mut wrong) = (0, 0u32, None);
        // An empty key stands for the end of all keys.
        let from = (!key.is_empty()).then_some(key);
        self.session.scan(from, direction, &mut |found, value| {
            bytes += (found.len() + value.len()) as u64;
            if seen == 0 && checks {
                let number = replay.trace.find(found);
                let right = number.is_some_and(|number| {
                    let version = values.version_of(u64::from(number), value, exactly);
                    version.is_some()
                });
                if !right {
                    wrong = Some((found.to_vec(), Found::of(value), number.is_some()));
                    return false;
                }
            }
            seen += 1;
            seen < entries
        })?;
        match wrong {
            Some((key, value, true)) => Err(BenchError::not_of_record(&key, &value)),
            Some((key, value, false)) => Err(BenchError::never_written(&key, &value)),
            None => {
                if exactly && checks && seen > 0 {
                    pace.checked();
                }
                Ok(bytes)
            }
        }
    }
}

/// Begins a put of `len` bytes; returns whether its versions are tracked, and the version.
fn begin(versions: &Versions, record: u64, len: u32, done: u64) -> (bool, u32) {
    let followed = match Values::has_version(len as usize) {
        true => versions.begin(record, false),
        false => None,
    };
    (followed.is_some(), followed.unwrap_or(done as u32))
}
