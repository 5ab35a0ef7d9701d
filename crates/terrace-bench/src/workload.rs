//! This file is the workloads: what one client thread does between its first and last operation.
//!
//! Scans are timed 64 entries at a time, since a clock read for each entry would cost as much as
//! the entry; all other workloads are timed operation by operation.

use std::ops::Bound;

use terrace::{Db, Durability, Iter, WriteBatch};

use crate::config::{BenchConfig, Step};
use crate::error::BenchError;
use crate::keys::{KeyMaker, parse_key};
use crate::meter::{Meter, Pace, Tally};
use crate::values::Values;

/// Entries of a scan that are timed together.
pub(crate) const SCAN_GROUP: u64 = 64;

/// One read in this many is compared byte for byte; the others by their tag.
const CHECK_EVERY: u64 = 16;

/// What all threads of one workload share.
pub(crate) struct Work<'a> {
    pub(crate) config: &'a BenchConfig,
    pub(crate) db: &'a Db,
    pub(crate) meter: &'a Meter,
    /// Values with nothing read from them yet; each thread copies them.
    pub(crate) values: &'a Values,
    pub(crate) durability: Durability,
    /// Whether every value in the database was written by this run.
    pub(crate) checks: bool,
}

/// What one thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    WriteInOrder,
    WriteRandom,
    /// Writes at random until somebody stops the workload.
    WriteUntilStopped,
    DeleteRandom,
    ReadRandom,
    ReadMissing,
    ScanForward,
    ScanBackward,
    Seek,
}

impl Role {
    /// What the client threads of `step` do; `None` where it is no workload.
    pub(crate) fn of(step: Step) -> Option<Role> {
        match step {
            Step::FillSeq => Some(Role::WriteInOrder),
            Step::FillRandom | Step::Overwrite => Some(Role::WriteRandom),
            Step::ReadRandom | Step::ReadWhileWriting => Some(Role::ReadRandom),
            Step::ReadMissing => Some(Role::ReadMissing),
            Step::ReadSeq => Some(Role::ScanForward),
            Step::ReadReverse => Some(Role::ScanBackward),
            Step::SeekRandom => Some(Role::Seek),
            Step::DeleteRandom => Some(Role::DeleteRandom),
            Step::Drain | Step::Flush | Step::Wait => None,
        }
    }

    /// How many operations it does.
    pub(crate) fn ops(self, config: &BenchConfig) -> u64 {
        match self {
            Role::WriteInOrder | Role::WriteRandom | Role::DeleteRandom => config.num,
            Role::WriteUntilStopped => u64::MAX,
            Role::ReadRandom | Role::ReadMissing | Role::Seek => config.reads(),
            Role::ScanForward | Role::ScanBackward => config.reads(),
        }
    }
}

/// One client thread.
struct Client<'a> {
    work: &'a Work<'a>,
    keys: KeyMaker,
    values: Values,
    rng: fastrand::Rng,
}

/// Does what `role` says as worker number `thread`, once `start` lets it.
pub(crate) fn run(
    work: &Work<'_>,
    role: Role,
    thread: usize,
    seed: u64,
    start: &std::sync::Barrier,
) -> Result<Tally, BenchError> {
    let mut client = Client {
        work,
        keys: KeyMaker::new(work.config.key_bytes),
        values: work.values.clone(),
        rng: fastrand::Rng::with_seed(seed),
    };
    start.wait();
    let mut pace = Pace::new(work.meter, thread);
    let done = match role {
        Role::WriteInOrder | Role::WriteRandom | Role::WriteUntilStopped | Role::DeleteRandom => {
            client.write(role, &mut pace)
        }
        Role::ReadRandom => client.read(&mut pace),
        Role::ReadMissing => client.read_missing(&mut pace),
        Role::ScanForward => client.scan(&mut pace, false),
        Role::ScanBackward => client.scan(&mut pace, true),
        Role::Seek => client.seek(&mut pace),
    };
    if done.is_err() {
        work.meter.stop();
    }
    done.map(|()| pace.end())
}

impl Client<'_> {
    fn write(&mut self, role: Role, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        if self.work.config.batch_count > 1 {
            return self.write_batches(role, pace);
        }
        let config = self.work.config;
        let (db, durability) = (self.work.db, self.work.durability);
        let total = role.ops(config);
        let entry_bytes = (config.key_bytes + config.value_bytes) as u64;
        for i in 0..total {
            if self.work.meter.is_stopped() {
                break;
            }
            let number = self.number(role, i);
            if role == Role::DeleteRandom {
                db.delete_with(self.keys.key(number), durability)?;
                pace.finished(1, config.key_bytes as u64);
            } else {
                db.put_with(self.keys.key(number), self.values.value(number), durability)?;
                pace.finished(1, entry_bytes);
            }
        }
        Ok(())
    }

    fn write_batches(&mut self, role: Role, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        let total = role.ops(config);
        let mut batch = WriteBatch::new();
        let mut i = 0;
        while i < total && !self.work.meter.is_stopped() {
            let entries = (config.batch_count as u64).min(total - i);
            batch.clear();
            for _ in 0..entries {
                let number = self.number(role, i);
                if role == Role::DeleteRandom {
                    batch.delete(self.keys.key(number));
                } else {
                    batch.put(self.keys.key(number), self.values.value(number));
                }
                i += 1;
            }
            let value_bytes = if role == Role::DeleteRandom {
                0
            } else {
                config.value_bytes
            };
            self.work.db.write_ref(&mut batch, self.work.durability)?;
            pace.finished(entries, entries * (config.key_bytes + value_bytes) as u64);
        }
        Ok(())
    }

    fn read(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for i in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            let number = self.rng.u64(0..config.num);
            let mut bytes = config.key_bytes as u64;
            if let Some(value) = self.work.db.get(self.keys.key(number))? {
                bytes += value.len() as u64;
                pace.found();
                self.check(number, &value, i, pace)?;
            }
            pace.finished(1, bytes);
        }
        Ok(())
    }

    fn read_missing(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for _ in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            let number = self.rng.u64(0..config.num);
            let key = self.keys.missing(number);
            if self.work.db.get(key)?.is_some() {
                let key = String::from_utf8_lossy(key).into_owned();
                return Err(BenchError::WrongValue(format!(
                    "the store has a value for {key:?}, which nobody wrote"
                )));
            }
            pace.finished(1, config.key_bytes as u64 + 1);
        }
        Ok(())
    }

    fn scan(&mut self, pace: &mut Pace<'_>, backward: bool) -> Result<(), BenchError> {
        let total = self.work.config.reads();
        let mut iter = self.work.db.iter()?;
        let mut done = 0;
        while done < total && !self.work.meter.is_stopped() {
            let group = SCAN_GROUP.min(total - done);
            let (entries, bytes) = self.take(&mut iter, group, backward, done, pace)?;
            if entries > 0 {
                pace.finished(entries, bytes);
            }
            done += entries;
            if entries < group {
                break;
            }
        }
        Ok(())
    }

    fn seek(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for i in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            let number = self.rng.u64(0..config.num);
            let key = self.keys.key(number);
            let mut iter = self
                .work
                .db
                .range::<&[u8]>((Bound::Included(key), Bound::Unbounded))?;
            // db_bench's seek stands on the first entry; the nexts come after it.
            let (entries, bytes) = self.take(
                &mut iter,
                1 + config.seek_nexts,
                false,
                i * CHECK_EVERY,
                pace,
            )?;
            if entries > 0 {
                pace.found();
            }
            pace.finished(1, bytes);
        }
        Ok(())
    }

    /// Reads up to `count` entries; how many there were, and their bytes. The first is checked
    /// when `position` is a multiple of the sampling distance.
    fn take(
        &mut self,
        iter: &mut Iter,
        count: u64,
        backward: bool,
        position: u64,
        pace: &mut Pace<'_>,
    ) -> Result<(u64, u64), BenchError> {
        let (mut entries, mut bytes) = (0, 0);
        while entries < count {
            let Some(entry) = (if backward {
                iter.next_back()
            } else {
                iter.next()
            }) else {
                break;
            };
            let entry = entry?;
            let (key, value) = (entry.key(), entry.value());
            bytes += (key.len() + value.len()) as u64;
            if entries == 0 && self.work.checks {
                let Some(number) = parse_key(key) else {
                    let key = String::from_utf8_lossy(key).into_owned();
                    return Err(BenchError::WrongValue(format!(
                        "a scan gave the key {key:?}, which nobody wrote"
                    )));
                };
                self.check(number, value, position, pace)?;
            }
            entries += 1;
        }
        Ok((entries, bytes))
    }

    fn check(
        &mut self,
        number: u64,
        value: &[u8],
        position: u64,
        pace: &mut Pace<'_>,
    ) -> Result<(), BenchError> {
        if !self.work.checks {
            return Ok(());
        }
        let good = if position.is_multiple_of(CHECK_EVERY) {
            pace.checked();
            self.values.is_value(number, value)
        } else {
            self.values.has_tag(number, value)
        };
        if good {
            return Ok(());
        }
        let key = String::from_utf8_lossy(self.keys.key(number)).into_owned();
        Err(BenchError::WrongValue(format!(
            "the value of {} bytes that the store has for key {key:?} is not what was written",
            value.len()
        )))
    }

    #[inline]
    fn number(&mut self, role: Role, i: u64) -> u64 {
        match role {
            Role::WriteInOrder => i,
            _ => self.rng.u64(0..self.work.config.num),
        }
    }
}
