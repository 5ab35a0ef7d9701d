//! This file is the workloads: what one client thread does between its first and last operation.
//!
//! Scans are timed 64 entries at a time, since a clock read for each entry would cost as much as
//! the entry; all other workloads are timed operation by operation.

use crate::config::{BenchConfig, Step};
use crate::error::{BenchError, Found};
use crate::keys::{KeyMaker, parse_key};
use crate::known::Known;
use crate::meter::{Meter, Pace, Tally};
use crate::store::{Direction, Session, Store};
use crate::values::Values;

/// Entries of a scan that are timed together.
pub(crate) const SCAN_GROUP: u64 = 64;

/// One read in this many is compared byte for byte; the others by their tag.
const CHECK_EVERY: u64 = 16;

/// What all threads of one workload share.
pub(crate) struct Work<'a> {
    pub(crate) config: &'a BenchConfig,
    pub(crate) store: &'a dyn Store,
    pub(crate) meter: &'a Meter,
    /// Values with nothing read from them yet; each thread copies them.
    pub(crate) values: &'a Values,
    /// A sample of the keys that must be there.
    pub(crate) known: &'a Known,
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
            Step::KillReopen | Step::Drain | Step::Flush | Step::Wait => None,
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
    session: Box<dyn Session + 'a>,
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
    let session = work.store.session();
    let (keys, values) = (KeyMaker::new(work.config.key_bytes), work.values.clone());
    let rng = fastrand::Rng::with_seed(seed);
    start.wait();
    // From here on the meter knows that this worker ends, however it does.
    let mut pace = Pace::new(work.meter, thread);
    let done = session.and_then(|session| {
        let mut client = Client {
            work,
            session,
            keys,
            values,
            rng,
        };
        match role {
            Role::WriteInOrder
            | Role::WriteRandom
            | Role::WriteUntilStopped
            | Role::DeleteRandom => client.write(role, &mut pace),
            Role::ReadRandom => client.read(&mut pace),
            Role::ReadMissing => client.read_missing(&mut pace),
            Role::ScanForward => client.scan(&mut pace, Direction::Forward),
            Role::ScanBackward => client.scan(&mut pace, Direction::Backward),
            Role::Seek => client.seek(&mut pace),
        }
    });
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
        let (config, known) = (self.work.config, self.work.known);
        let entry_bytes = (config.key_bytes + config.value_bytes) as u64;
        for i in 0..role.ops(config) {
            if self.work.meter.is_stopped() {
                break;
            }
            let number = self.number(role, i);
            let key = self.keys.key(number);
            if role == Role::DeleteRandom {
                known.delete(number);
                self.session.delete(key)?;
                pace.wrote(config.key_bytes as u64);
                pace.finished(1, config.key_bytes as u64);
            } else {
                self.session.put(key, self.values.value(number))?;
                known.put(number);
                pace.wrote(entry_bytes);
                pace.finished(1, entry_bytes);
            }
        }
        Ok(())
    }

    fn write_batches(&mut self, role: Role, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let (config, known) = (self.work.config, self.work.known);
        let total = role.ops(config);
        let mut numbers = Vec::with_capacity(config.batch_count);
        let mut i = 0;
        while i < total && !self.work.meter.is_stopped() {
            let entries = (config.batch_count as u64).min(total - i);
            numbers.clear();
            for _ in 0..entries {
                let number = self.number(role, i);
                let key = self.keys.key(number);
                if role == Role::DeleteRandom {
                    known.delete(number);
                    self.session.batch_delete(key)?;
                } else {
                    self.session.batch_put(key, self.values.value(number))?;
                    numbers.push(number);
                }
                i += 1;
            }
            let value_bytes = if role == Role::DeleteRandom {
                0
            } else {
                config.value_bytes
            };
            self.session.commit()?;
            for number in &numbers {
                known.put(*number);
            }
            let bytes = entries * (config.key_bytes + value_bytes) as u64;
            pace.wrote(bytes);
            pace.finished(entries, bytes);
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
            let bytes = self.get(number, i.is_multiple_of(CHECK_EVERY), pace)?;
            pace.finished(1, config.key_bytes as u64 + bytes);
        }
        Ok(())
    }

    /// Reads and checks one key; the bytes of its value.
    fn get(&mut self, number: u64, exactly: bool, pace: &mut Pace<'_>) -> Result<u64, BenchError> {
        let (checks, values) = (self.work.checks, &mut self.values);
        let (mut bytes, mut wrong) = (0, None);
        let key = self.keys.key(number);
        let found = self.session.get(key, &mut |value| {
            bytes = value.len() as u64;
            if checks && !is_right(values, number, value, exactly) {
                wrong = Some(Found::of(value));
            }
        })?;
        if let Some(found) = wrong {
            return Err(BenchError::wrong(
                key,
                &Found::of(values.value(number)),
                &found,
            ));
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

    /// A key that must be there was missed. It may have come between the read and the look at what
    /// is known, so it counts as lost only if it is missed once more.
    #[cold]
    fn ask_again(&mut self, number: u64) -> Result<(), BenchError> {
        let key = self.keys.key(number);
        if self.session.get(key, &mut |_| ())? || !self.work.known.must_have(number) {
            return Ok(());
        }
        let expected = Found::of(self.values.value(number));
        Err(BenchError::lost(key, &expected))
    }

    fn read_missing(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for _ in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
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

    fn scan(&mut self, pace: &mut Pace<'_>, direction: Direction) -> Result<(), BenchError> {
        let (total, meter) = (self.work.config.reads(), self.work.meter);
        if total == 0 {
            return Ok(());
        }
        let (checks, values) = (self.work.checks, &mut self.values);
        let mut failed = None;
        let (mut done, mut in_group, mut bytes) = (0u64, 0u64, 0u64);
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
                return done < total && !meter.is_stopped();
            }
            true
        })?;
        if in_group > 0 && failed.is_none() {
            pace.finished(in_group, bytes);
        }
        failed.map_or(Ok(()), Err)
    }

    fn seek(&mut self, pace: &mut Pace<'_>) -> Result<(), BenchError> {
        let config = self.work.config;
        for _ in 0..config.reads() {
            if self.work.meter.is_stopped() {
                break;
            }
            let number = self.rng.u64(0..config.num);
            let (checks, values) = (self.work.checks, &mut self.values);
            let (mut entries, mut bytes, mut failed) = (0, 0, None);
            let from = Some(self.keys.key(number));
            // db_bench's seek stands on the first entry; the nexts come after it.
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

    #[inline]
    fn number(&mut self, role: Role, i: u64) -> u64 {
        match role {
            Role::WriteInOrder => i,
            _ => self.rng.u64(0..self.work.config.num),
        }
    }
}

/// Whether `value` is that of `number`: byte for byte, or by its tag.
#[inline]
fn is_right(values: &mut Values, number: u64, value: &[u8], exactly: bool) -> bool {
    if exactly {
        values.is_value(number, value)
    } else {
        values.has_tag(number, value)
    }
}

/// Whether an entry that a scan gave was written.
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
    let expected = Found::of(values.value(number));
    Err(BenchError::wrong(key, &expected, &Found::of(value)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;
    use crate::store::liar::{Liar, Lie};

    const NUM: u64 = 64;

    /// So many that one in 16 of them, those that are compared byte for byte, ask for every key.
    const READS: u64 = 500 * NUM;

    /// Fills a store that lies about the key of number 48 and runs `roles` over it, to the last one's end.
    fn caught(lie: Lie, batch_count: usize, roles: &[Role]) -> Result<Tally, BenchError> {
        let config = BenchConfig {
            num: NUM,
            reads: Some(READS),
            value_bytes: 100,
            batch_count,
            ..BenchConfig::default()
        };
        let store = Liar {
            lie,
            key: KeyMaker::new(config.key_bytes).key(48).to_vec(),
            entries: Mutex::default(),
        };
        let known = Known::none_of(NUM);
        let run = |role| {
            let work = Work {
                config: &config,
                store: &store,
                meter: &Meter::new(1, 0, None),
                values: &Values::new(config.value_bytes, 1),
                known: &known,
                checks: true,
            };
            super::run(&work, role, 0, 7, &Barrier::new(1))
        };
        let filled = run(Role::WriteInOrder);
        let each = roles.iter().map(|role| run(*role));
        each.fold(filled, |before, now| before.and(now))
    }

    /// A lost key, a changed byte and an invented value end the run, with key, expected and found; an
    /// honest store passes.
    #[test]
    fn lies_are_found_out() {
        for batch_count in [1, 7] {
            for (lie, role, said) in [
                (Lie::Lose, Role::ReadRandom, "lost an acknowledged write"),
                (Lie::Change, Role::ReadRandom, "wrong value"),
                (Lie::Change, Role::Seek, "wrong value"),
                (Lie::Invent, Role::ReadMissing, "nobody wrote"),
            ] {
                let problem = caught(lie, batch_count, &[role]);
                let problem = problem.map(drop).expect_err("it lied").to_string();
                for part in [said, "key \"", "expected ", "found "] {
                    assert!(problem.contains(part), "{part} in {problem}");
                }
                if lie != Lie::Invent {
                    assert!(problem.contains("key \"0000000000000048\""), "{problem}");
                    assert!(problem.contains("(100 B, hash "), "{problem}");
                }
                let honest = caught(Lie::None, batch_count, &[role]).expect("an honest store");
                assert_eq!(honest.ops, READS);
            }
        }
    }

    /// A key that was deleted is not missed.
    #[test]
    fn deleted_keys_are_not_missed() {
        for batch_count in [1, 7] {
            let roles = [Role::DeleteRandom, Role::ReadRandom];
            let honest = caught(Lie::None, batch_count, &roles).expect("an honest store");
            assert_eq!(honest.ops, READS);
            assert!((1..READS).contains(&honest.found), "{}", honest.found);
        }
    }
}
