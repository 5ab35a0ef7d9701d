//! YCSB's operations: records are inserted, read, updated and scanned according to a workload.
//!
//! Every value contains its record and version ([`Values::record`]), so each read is checked; for a
//! sample of the records, the versions that may be read are also known
//! ([`Versions`](crate::versions::Versions)). Records are never deleted: every record that was
//! loaded or inserted must be found, and a scan that begins at a record's key must return that
//! record first.

use super::{CHECK_EVERY, Client, Ycsb};
use crate::error::{BenchError, Found};
use crate::meter::Pace;
use crate::records::{RecordKeys, name_in};
use crate::store::Direction;
use crate::values::Values;
use crate::ycsb::Operation;
use crate::ycsb::distribution::Requests;

/// A client of YCSB.
struct Records<'a, 'b> {
    client: &'b mut Client<'a>,
    ycsb: Ycsb<'a>,
    requests: Requests,
    keys: RecordKeys,
    /// The number of reads and writes; selects the reads to check, and gives versions to records
    /// that are not tracked.
    done: u64,
}

impl<'a, 'b> Records<'a, 'b> {
    fn of(client: &'b mut Client<'a>) -> Result<Self, BenchError> {
        let missing = || BenchError::Invalid("no workload of YCSB was given".to_string());
        let ycsb = client.work.ycsb.ok_or_else(missing)?;
        Ok(Records {
            client,
            ycsb,
            requests: ycsb.requests.clone(),
            keys: RecordKeys::new(ycsb.workload.ordered, ycsb.workload.padding),
            done: 0,
        })
    }

    /// Returns whether the next read is compared byte for byte.
    fn is_exact(&mut self) -> bool {
        self.done += 1;
        self.done.is_multiple_of(CHECK_EVERY)
    }

    /// Writes the next version of record `number`; returns its key and value bytes.
    fn write(&mut self, number: u64) -> Result<u64, BenchError> {
        let (ycsb, client) = (self.ycsb, &mut *self.client);
        let len = ycsb.workload.record_bytes(&mut client.rng);
        let name = self.keys.name(number);
        let key = self.keys.key(name);
        self.done += 1;
        let versions = &ycsb.records.versions;
        let followed = match Values::has_version(len) {
            true => versions.begin(number, false),
            false => None,
        };
        let version = followed.unwrap_or(self.done as u32);
        let value = client.values.record(name, version, len);
        client.session.put(key, value)?;
        if followed.is_some() {
            versions.acknowledge(number);
        }
        Ok((key.len() + len) as u64)
    }

    /// Inserts record `number`, which no thread requests before its acknowledgement.
    fn insert(&mut self, number: u64, pace: &mut Pace<'_>) -> Result<u64, BenchError> {
        let bytes = self.write(number)?;
        pace.wrote(bytes);
        self.ycsb.records.acknowledge(number);
        Ok(bytes)
    }

    /// Reads and checks record `number`; returns key and value bytes.
    fn read(&mut self, number: u64, pace: &mut Pace<'_>) -> Result<u64, BenchError> {
        let exactly = self.is_exact();
        let checks = self.client.work.checks;
        let client = &mut *self.client;
        let name = self.keys.name(number);
        let key = self.keys.key(name);
        let versions = &self.ycsb.records.versions;
        let floor = versions.floor(number).filter(|_| checks);
        let values = &mut client.values;
        let (mut bytes, mut version, mut wrong) = (0, None, None);
        let found = client.session.get(key, &mut |value| {
            bytes = value.len() as u64;
            if !checks {
                return;
            }
            match values.version_of(name, value, exactly) {
                Some(said) if Values::has_version(value.len()) => version = Some(said),
                Some(_) => {}
                None => wrong = Some(Found::of(value)),
            }
        })?;
        if let Some(found) = wrong {
            return Err(BenchError::not_of_record(key, &found));
        }
        if !found {
            if checks {
                return Err(BenchError::lost_record(key));
            }
            return Ok(key.len() as u64);
        }
        pace.found();
        if exactly && checks {
            pace.checked();
        }
        if let (Some(floor), Some(version)) = (floor, version) {
            let judged = versions.judge(number, floor, Some(version));
            judged.map_err(|why| BenchError::wrong_version(key, why))?;
        }
        Ok(key.len() as u64 + bytes)
    }

    /// Scans `entries` entries from record `number` upward; returns their bytes.
    fn scan(&mut self, number: u64, entries: u64, pace: &mut Pace<'_>) -> Result<u64, BenchError> {
        let exactly = self.is_exact();
        let checks = self.client.work.checks;
        let client = &mut *self.client;
        let name = self.keys.name(number);
        let key = self.keys.key(name);
        let values = &mut client.values;
        let (mut bytes, mut seen, mut failed) = (0, 0u64, None);
        let mut first_is_right = false;
        client
            .session
            .scan(Some(key), Direction::Forward, &mut |found, value| {
                bytes += (found.len() + value.len()) as u64;
                if seen == 0 {
                    first_is_right = found == key;
                }
                if checks && seen.is_multiple_of(CHECK_EVERY) {
                    // If the key is no record's, no value is right.
                    let right = name_in(found)
                        .is_some_and(|name| values.version_of(name, value, exactly).is_some());
                    if !right {
                        failed = Some((found.to_vec(), Found::of(value)));
                        return false;
                    }
                }
                seen += 1;
                seen < entries
            })?;
        if let Some((found, value)) = failed {
            return Err(match name_in(&found) {
                Some(_) => BenchError::not_of_record(&found, &value),
                None => BenchError::never_written(&found, &value),
            });
        }
        if checks && !first_is_right {
            return Err(BenchError::lost_record(key));
        }
        if exactly && checks {
            pace.checked();
        }
        Ok(bytes)
    }

    /// Draws the record of an operation.
    fn next(&mut self) -> u64 {
        let records = self.ycsb.records;
        let rng = &mut self.client.rng;
        self.requests.next(records.end(), &records.turn, rng)
    }
}

/// Inserts the records to load, together with all other threads.
pub(super) fn load(client: &mut Client<'_>, pace: &mut Pace<'_>) -> Result<(), BenchError> {
    let mut records = Records::of(client)?;
    let workload = records.ycsb.workload;
    let limit = workload.first + workload.loaded;
    // An arrival that finds everything loaded does not count.
    while let Some(number) = records.ycsb.records.take_below(limit) {
        if records.client.work.meter.is_stopped() {
            break;
        }
        pace.begin(1);
        let bytes = records.insert(number, pace)?;
        pace.finished(1, bytes);
    }
    Ok(())
}

/// Does this thread's share of the operations.
pub(super) fn transact(client: &mut Client<'_>, pace: &mut Pace<'_>) -> Result<(), BenchError> {
    let (thread, threads) = (client.thread as u64, client.work.config.threads as u64);
    let mut records = Records::of(client)?;
    let workload = records.ycsb.workload;
    let share = workload.ops / threads + u64::from(thread < workload.ops % threads);
    pace.kinds(&Operation::ALL.map(Operation::name));
    for _ in 0..share {
        if records.client.work.meter.is_stopped() {
            break;
        }
        pace.begin(1);
        let operation = workload.choose(&mut records.client.rng);
        let bytes = match operation {
            Operation::Insert => {
                let number = records.ycsb.records.take();
                records.insert(number, pace)?
            }
            Operation::Read => {
                let number = records.next();
                records.read(number, pace)?
            }
            Operation::Update => {
                let number = records.next();
                let bytes = records.write(number)?;
                pace.wrote(bytes);
                bytes
            }
            Operation::ReadModifyWrite => {
                let number = records.next();
                let read = records.read(number, pace)?;
                let written = records.write(number)?;
                pace.wrote(written);
                read + written
            }
            Operation::Scan => {
                let number = records.next();
                let entries = workload.scan_entries.next(&mut records.client.rng);
                records.scan(number, entries, pace)?
            }
        };
        pace.finished_as(operation as usize, 1, bytes);
    }
    Ok(())
}
