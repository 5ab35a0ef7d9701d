//! db_bench's workloads: writes and reads of numbered keys.

use super::{CHECK_EVERY, Client, Role, SCAN_GROUP};
use crate::error::{BenchError, Found};
use crate::keys::parse_key;
use crate::meter::Pace;
use crate::shuffle::Shuffle;
use crate::store::Direction;
use crate::values::Values;

impl Client<'_> {
    pub(super) fn write(&mut self, role: Role, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        let order = match role {
            Role::WriteInOrder | Role::WriteBatches | Role::DeleteInOrder => Order::Ascending,
            Role::WriteShuffled => Order::Shuffled(Shuffle::new(config.num, self.rng.u64(..))),
            _ => Order::Random(config.num),
        };
        let deletes = matches!(role, Role::DeleteInOrder | Role::DeleteRandom);
        let batch_count = match role {
            Role::WriteBatches => config.batch_count.max(BATCH_COUNT),
            _ => config.batch_count,
        };
        if batch_count > 1 {
            return self.write_batches(role.ops(config), &order, deletes, batch_count, pace);
        }
        for i in 0..role.ops(config) {
            if self.work.meter.is_stopped() {
                break;
            }
            pace.begin(1);
            let number = order.number(i, &mut self.rng);
            let bytes = match deletes {
                true => self.delete(number)?,
                false => self.put(number)?,
            };
            pace.wrote(bytes);
            pace.finished(1, bytes);
        }
        Ok(())
    }

    /// Puts the key of `number`; returns the bytes of key and value.
    #[inline]
    fn put(&mut self, number: u64) -> Result<u64, BenchError> {
        let (key, value) = (self.keys.key(number), self.values.value(number));
        self.session.put(key, value)?;
        self.work.known.put(number);
        Ok((key.len() + value.len()) as u64)
    }

    /// Deletes the key of `number`; returns its bytes.
    #[inline]
    fn delete(&mut self, number: u64) -> Result<u64, BenchError> {
        let key = self.keys.key(number);
        self.work.known.delete(number);
        self.session.delete(key)?;
        Ok(key.len() as u64)
    }

    fn write_batches(
        &mut self,
        total: u64,
        order: &Order,
        deletes: bool,
        batch_count: usize,
        pace: &mut Pace<'_>,
    ) -> Result<(), BenchError> {
        let known = self.work.known;
        let mut numbers = Vec::with_capacity(batch_count);
        let mut i = 0;
        while i < total && !self.work.meter.is_stopped() {
            let entries = (batch_count as u64).min(total - i);
            pace.begin(entries);
            numbers.clear();
            let mut bytes = 0;
            for _ in 0..entries {
                let number = order.number(i, &mut self.rng);
                let key = self.keys.key(number);
                bytes += key.len() as u64;
                if deletes {
                    known.delete(number);
                    self.session.batch_delete(key)?;
                } else {
                    let value = self.values.value(number);
                    bytes += value.len() as u64;
                    self.session.batch_put(key, value)?;
                    numbers.push(number);
                }
                i += 1;
            }
            self.session.commit()?;
            for number in &numbers {
                known.put(*number);
            }
            pace.wrote(bytes);
            pace.finished(entries, bytes);
        }
        Ok(())
    }

    /// Reads keys of the numbers below `numbers`.
    pub(super) fn read(&mut self, numbers: u64, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for i in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            pace.begin(1);
            let number = self.rng.u64(0..numbers);
            let bytes = self.get(number, i.is_multiple_of(CHECK_EVERY), pace)?;
            pace.finished(1, config.key_bytes as u64 + bytes);
        }
        Ok(())
    }

    /// Reads keys, `batch_count` in one call.
    pub(super) fn read_many(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        let checks = self.work.checks;
        let mut done = 0;
        while done < config.reads() && !self.work.meter.is_stopped() {
            let count = (config.batch_count as u64).min(config.reads() - done);
            pace.begin(count);
            let numbers: Vec<u64> = (0..count).map(|_| self.rng.u64(0..config.num)).collect();
            let key = |&number: &u64| self.keys.key(number).to_vec();
            let keys: Vec<Vec<u8>> = numbers.iter().map(key).collect();
            let exactly = |at: usize| (done + at as u64).is_multiple_of(CHECK_EVERY);
            let mut bytes = count * config.key_bytes as u64;
            let mut found = vec![false; keys.len()];
            let mut wrong = None;
            let values = &mut self.values;
            self.session.multi_get(&keys, &mut |at, value| {
                found[at] = true;
                bytes += value.len() as u64;
                let number = numbers[at];
                if checks && !is_right(values, number, value, exactly(at)) {
                    let both = [values.expected(number, value), value].map(Found::of);
                    wrong.get_or_insert((at, both));
                }
            })?;
            if let Some((at, [expected, found])) = wrong {
                return Err(BenchError::wrong(&keys[at], &expected, &found));
            }
            for (at, (number, found)) in numbers.iter().zip(found).enumerate() {
                if found {
                    pace.found();
                    if exactly(at) && checks {
                        pace.checked();
                    }
                } else if checks && self.work.known.must_have(*number) {
                    self.ask_again(*number)?;
                }
            }
            pace.finished(count, bytes);
            done += count;
        }
        Ok(())
    }

    /// Reads keys and writes each one back.
    pub(super) fn update(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for i in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            pace.begin(1);
            let number = self.rng.u64(0..config.num);
            let read = self.get(number, i.is_multiple_of(CHECK_EVERY), pace)?;
            let written = self.put(number)?;
            pace.wrote(written);
            pace.finished(1, written + read);
        }
        Ok(())
    }

    /// Mixes reads and writes of keys: `read_percent` reads, the rest writes.
    pub(super) fn mix(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        const KINDS: [&str; 2] = ["read", "write"];
        let config = self.work.config;
        pace.kinds(&KINDS);
        for i in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            pace.begin(1);
            let number = self.rng.u64(0..config.num);
            if self.rng.u32(0..100) < config.read_percent {
                let bytes = self.get(number, i.is_multiple_of(CHECK_EVERY), pace)?;
                pace.finished_as(0, 1, config.key_bytes as u64 + bytes);
            } else {
                let bytes = self.put(number)?;
                pace.wrote(bytes);
                pace.finished_as(1, 1, bytes);
            }
        }
        Ok(())
    }

    /// Reads and checks one key; returns the bytes of its value.
    fn get(&mut self, number: u64, exactly: bool, pace: &mut Pace<'_>) -> Result<u64, BenchError> {
        let (checks, values) = (self.work.checks, &mut self.values);
        let (mut bytes, mut wrong) = (0, None);
        let key = self.keys.key(number);
        let found = self.session.get(key, &mut |value| {
            bytes = value.len() as u64;
            if checks && !is_right(values, number, value, exactly) {
                wrong = Some([values.expected(number, value), value].map(Found::of));
            }
        })?;
        if let Some([expected, found]) = wrong {
            return Err(BenchError::wrong(key, &expected, &found));
        }
        if found {
            pace.found();
            if exactly && checks {
                pace.checked();
            }
        } else if checks && self.work.known.must_have(number) {
            self.ask_again(number)?;
        }
        Ok(bytes)
    }

    /// Reads a key again that was missed though it must exist. It may have been put between the
    /// read and the check of `known`, so it counts as lost only if it is missed twice.
    #[cold]
    fn ask_again(&mut self, number: u64) -> Result<(), BenchError> {
        let key = self.keys.key(number);
        if self.session.get(key, &mut |_| ())? || !self.work.known.must_have(number) {
            return Ok(());
        }
        let expected = Found::of(self.values.expected(number, &[]));
        Err(BenchError::lost(key, &expected))
    }

    pub(super) fn read_missing(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for _ in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            pace.begin(1);
            let number = self.rng.u64(0..config.num);
            let key = self.keys.missing(number);
            let mut there = None;
            self.session
                .get(key, &mut |value| there = Some(Found::of(value)))?;
            if let Some(there) = there {
                return Err(BenchError::never_written(key, &there));
            }
            pace.finished(1, config.key_bytes as u64 + 1);
        }
        Ok(())
    }

    pub(super) fn scan(
        &mut self,
        pace: &mut Pace<'_>,
        direction: Direction,
    ) -> Result<(), BenchError> {
        let (total, meter) = (self.work.config.reads(), self.work.meter);
        if total == 0 {
            return Ok(());
        }
        let (checks, values) = (self.work.checks, &mut self.values);
        let mut failed = None;
        let (mut done, mut in_group, mut bytes) = (0u64, 0u64, 0u64);
        pace.begin(SCAN_GROUP.min(total));
        self.session.scan(None, direction, &mut |key, value| {
            let position = done + in_group;
            if in_group == 0 && checks {
                let exactly = position.is_multiple_of(CHECK_EVERY);
                if let Err(e) = check_entry(values, key, value, exactly) {
                    failed = Some(e);
                    return false;
                }
                if exactly {
                    pace.checked();
                }
            }
            bytes += (key.len() + value.len()) as u64;
            in_group += 1;
            if in_group == SCAN_GROUP.min(total - done) {
                pace.finished(in_group, bytes);
                done += in_group;
                (in_group, bytes) = (0, 0);
                let goes_on = done < total && !meter.is_stopped();
                if goes_on {
                    pace.begin(SCAN_GROUP.min(total - done));
                }
                return goes_on;
            }
            true
        })?;
        if in_group > 0 && failed.is_none() {
            pace.finished(in_group, bytes);
        }
        failed.map_or(Ok(()), Err)
    }

    pub(super) fn seek(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for _ in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            pace.begin(1);
            let number = self.rng.u64(0..config.num);
            let (checks, values) = (self.work.checks, &mut self.values);
            let (mut entries, mut bytes, mut failed) = (0, 0, None);
            let from = Some(self.keys.key(number));
            // db_bench's seek reads the first entry; the nexts come after it.
            let wanted = 1 + config.seek_nexts;
            self.session
                .scan(from, Direction::Forward, &mut |key, value| {
                    if entries == 0
                        && checks
                        && let Err(e) = check_entry(values, key, value, true)
                    {
                        failed = Some(e);
                        return false;
                    }
                    bytes += (key.len() + value.len()) as u64;
                    entries += 1;
                    entries < wanted
                })?;
            if let Some(e) = failed {
                return Err(e);
            }
            if entries > 0 {
                pace.found();
                if checks {
                    pace.checked();
                }
            }
            pace.finished(1, bytes);
        }
        Ok(())
    }
}

/// Entries of a batch of fillbatch, as in db_bench.
const BATCH_COUNT: usize = 1000;

/// The order of the keys that a workload writes.
enum Order {
    Ascending,
    /// Each drawn from the numbers below this one, with repetition.
    Random(u64),
    Shuffled(Shuffle),
}

impl Order {
    #[inline]
    fn number(&self, i: u64, rng: &mut fastrand::Rng) -> u64 {
        match self {
            Order::Ascending => i,
            Order::Random(end) => rng.u64(0..*end),
            Order::Shuffled(shuffle) => shuffle.at(i),
        }
    }
}

/// Returns whether `value` is that of `number`: byte for byte, or by its tag.
#[inline]
fn is_right(values: &mut Values, number: u64, value: &[u8], exactly: bool) -> bool {
    if exactly {
        values.is_value(number, value)
    } else {
        values.has_tag(number, value)
    }
}

/// Checks that an entry returned by a scan was written.
fn check_entry(
    values: &mut Values,
    key: &[u8],
    value: &[u8],
    exactly: bool,
) -> Result<(), BenchError> {
    let Some(number) = parse_key(key) else {
        return Err(BenchError::never_written(key, &Found::of(value)));
    };
    if is_right(values, number, value, exactly) {
        return Ok(());
    }
    let expected = Found::of(values.expected(number, value));
    Err(BenchError::wrong(key, &expected, &Found::of(value)))
}
