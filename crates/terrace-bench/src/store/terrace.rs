//! The adapter of Terrace.

use std::ops::Bound;

use ::terrace::{Db, Durability, Iter, Options, Result, WriteBatch};

use super::{About, Counters, Direction, Flushes, Session, Settle, Setup, Store};
use crate::config::engine_settings;
use crate::error::BenchError;
use crate::files::{BlockReads, FileSettings, special_settings};
use crate::space::Space;
use crate::units;

/// Opens or creates the database.
pub(super) fn open(setup: &Setup<'_>) -> std::result::Result<Box<dyn Store>, BenchError> {
    let mut options = setup.options.clone();
    options.error_if_missing = setup.existing;
    options.error_if_exists = !setup.existing;
    let db = Db::open(setup.folder, options)?;
    Ok(Box::new(Terrace { db }))
}

struct Terrace {
    db: Db,
}

impl Store for Terrace {
    fn about(&self) -> About {
        let options = self.db.options();
        About {
            name: options.design_of_new().to_string(),
            medium: self.db.metrics().pool.description,
            durability: durability(options),
            settings: settings(options),
            counted_by: "the store: bytes made durable in the pool, in lines of 64 B; bytes \
                         written to files",
        }
    }

    fn options(&self) -> Option<&Options> {
        Some(self.db.options())
    }

    fn session(&self) -> std::result::Result<Box<dyn Session + '_>, BenchError> {
        Ok(Box::new(Client {
            db: &self.db,
            durability: self.db.options().durability,
            batch: WriteBatch::new(),
        }))
    }

    fn settle(&self, how: Settle) -> std::result::Result<(), BenchError> {
        match how {
            Settle::Drain => self.db.drain()?,
            Settle::Flush => self.db.flush()?,
            Settle::Rest => self.db.wait_idle()?,
        }
        Ok(())
    }

    fn counters(&self) -> Counters {
        let metrics = self.db.metrics();
        let stalls = metrics.stalls.iter();
        let flushes = metrics.jobs.iter().find(|job| job.kind == "flush");
        Counters {
            user_bytes: Some(metrics.user_written_bytes),
            pm: metrics.pm,
            files: vec![
                ("log files", metrics.log_file_bytes),
                ("table files", metrics.table_file_bytes),
            ],
            stalls: stalls.map(|s| (s.reason.name(), s.count, s.time)).collect(),
            flushes: flushes.map(|job| Flushes {
                count: job.count,
                entry_count: job.entry_count,
                time: job.time,
            }),
            pool_bytes: Some(metrics.pool.allocated_bytes),
            blocks: BlockReads {
                hits: metrics.cache.hit_count,
                misses: metrics.cache.miss_count,
            },
        }
    }

    fn space(&self) -> Space {
        Space::of(&self.db.metrics())
    }

    fn close(self: Box<Self>) -> std::result::Result<(), BenchError> {
        Ok(self.db.close()?)
    }
}

fn durability(options: &Options) -> String {
    let survives = match options.durability {
        Durability::Volatile if options.logs_of_new() => {
            "gathered in the log; survives a killed process"
        }
        Durability::Volatile => "not logged",
        Durability::Buffered => "logged; survives a killed process",
        Durability::Sync => "logged and synced; survives power loss",
    };
    format!("{} ({survives})", options.durability)
}

fn settings(options: &Options) -> String {
    let mut line = format!("memtable {}", units::bytes(options.front.memtable_bytes));
    if let Some(buffer) = engine_settings(options) {
        line.push_str(&format!(", {buffer}"));
    }
    if let Some(files) = FileSettings::of(options) {
        let special = special_settings(&options.bottom.leveled);
        line.push_str(&format!("; {files}{special}"));
    }
    line
}

struct Client<'a> {
    db: &'a Db,
    durability: Durability,
    batch: WriteBatch,
}

impl Session for Client<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), BenchError> {
        Ok(self.db.put_with(key, value, self.durability)?)
    }

    fn delete(&mut self, key: &[u8]) -> std::result::Result<(), BenchError> {
        Ok(self.db.delete_with(key, self.durability)?)
    }

    fn batch_put(&mut self, key: &[u8], value: &[u8]) -> std::result::Result<(), BenchError> {
        self.batch.put(key, value);
        Ok(())
    }

    fn batch_delete(&mut self, key: &[u8]) -> std::result::Result<(), BenchError> {
        self.batch.delete(key);
        Ok(())
    }

    fn commit(&mut self) -> std::result::Result<(), BenchError> {
        self.db.write_ref(&mut self.batch, self.durability)?;
        self.batch.clear();
        Ok(())
    }

    fn get(
        &mut self,
        key: &[u8],
        see: &mut dyn FnMut(&[u8]),
    ) -> std::result::Result<bool, BenchError> {
        let value = self.db.get(key)?;
        if let Some(value) = &value {
            see(value);
        }
        Ok(value.is_some())
    }

    fn multi_get(
        &mut self,
        keys: &[Vec<u8>],
        see: &mut dyn FnMut(usize, &[u8]),
    ) -> std::result::Result<(), BenchError> {
        for (at, value) in self.db.multi_get(keys)?.into_iter().enumerate() {
            if let Some(value) = value {
                see(at, &value);
            }
        }
        Ok(())
    }

    fn scan(
        &mut self,
        from: Option<&[u8]>,
        direction: Direction,
        see: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> std::result::Result<(), BenchError> {
        let mut iter = iter(self.db, from, direction)?;
        loop {
            let entry = match direction {
                Direction::Forward => iter.next_ref(),
                Direction::Backward => iter.next_back_ref(),
            };
            let Some(entry) = entry else { return Ok(()) };
            let entry = entry?;
            if !see(entry.key(), entry.value()) {
                return Ok(());
            }
        }
    }
}

fn iter(db: &Db, from: Option<&[u8]>, direction: Direction) -> Result<Iter> {
    let bound = from.map_or(Bound::Unbounded, Bound::Included);
    match direction {
        _ if from.is_none() => db.iter(),
        Direction::Forward => db.range::<&[u8]>((bound, Bound::Unbounded)),
        Direction::Backward => db.range::<&[u8]>((Bound::Unbounded, bound)),
    }
}
