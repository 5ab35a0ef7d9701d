//! Space: overwriting the same keys for ever with values of changing size keeps a pool bounded, and the folder
//! within the bound of docs/operations.md.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace::{Db, Design, MediumChoice, Options, Workers};
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::soak::Folder;
use crate::watchdog::{self, watched};

/// Keys that are overwritten.
const KEYS: usize = 16;

/// Overwrites for `turns` turns, drawn from `seed`; a store whose pool fills has failed, and so has
/// one that shows anything but the last value of each key.
pub fn overwrite(options: &Options, seed: u64, turns: u32) -> Outcome {
    let _case = watchdog::case(format!("overwriting, seed {seed:#x}"));
    let folder = scratch()?;
    let db = watched("opening", || Db::open(folder.path(), options.clone()))
        .map_err(|e| format!("opening: {e:?}"))?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = vec![(0u8, 0usize); KEYS];
    for turn in 0..turns {
        let _operation = watchdog::operation(("turn", turn));
        let key = rng.usize(..KEYS);
        let most = [10, 300, 5000, 200 << 10][rng.usize(..4)];
        // Few are large, so that one turn does not fill the pool.
        let most = if rng.u8(0..20) > 0 {
            most.min(5000)
        } else {
            most
        };
        let value = (turn as u8, rng.usize(10..=most));
        db.put([key as u8], vec![value.0; value.1])
            .map_err(|e| format!("turn {turn}, {} bytes: {e}", value.1))?;
        model[key] = value;
        if options.background.workers == Workers::Manual {
            db.step(rng.usize(..)).map_err(|e| format!("a step: {e}"))?;
        }
    }
    for (key, (byte, len)) in model.iter().enumerate() {
        let found = db.get([key as u8]).map_err(|e| format!("a get: {e}"))?;
        let found = found.unwrap_or_default();
        if found.len() != *len || found.iter().any(|b| b != byte) {
            return Err(format!(
                "key {key}: expected {len} bytes {byte}, found {}",
                found.len()
            ));
        }
    }
    Ok(())
}

/// Keys that are overwritten at random, in a database whose bottom is table files.
#[derive(Clone, Debug)]
pub struct Overwriting {
    /// The options of the database.
    pub options: Options,
    /// How many keys there are.
    pub keys: u64,
    /// The length of a value, of random bytes.
    pub value_bytes: usize,
    /// How many threads write; one with `Workers::Manual`.
    pub threads: u64,
    /// How often a key is overwritten on average.
    pub times: u64,
    /// For how long at most.
    pub time: Duration,
    /// What is written follows from it.
    pub seed: u64,
}

/// What an overwritten database took at most, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Taken {
    /// Keys and values that are there, as tables have them.
    pub live: u64,
    /// Tables that were there at one time, without those that were being written or removed.
    pub tables: u64,
    /// All table files.
    pub files: u64,
    /// Log files.
    pub logs: u64,
    /// Tables and logs.
    pub folder: u64,
    /// The same once the database had settled.
    pub settled: u64,
}

/// Bytes of a key.
const KEY_BYTES: u64 = 16;
/// What a table has for each entry beside key and value: its head, and its part of index and filter.
const ENTRY_BYTES: u64 = 16;

impl Overwriting {
    /// Values of 1 KiB, overwritten by four threads for so long, in a database with default options.
    pub fn by_default(
        design: Design,
        medium: Medium,
        keys: u64,
        time: Duration,
        seed: u64,
    ) -> Overwriting {
        let mut options = Options {
            design: Some(design),
            ..Options::default()
        };
        options.pool.path = (medium != Medium::Dram).then(|| "pool".into());
        options.pool.medium = match medium {
            Medium::Dax => MediumChoice::ForceDax,
            Medium::Mapped => MediumChoice::Mapped,
            Medium::Dram => MediumChoice::Auto,
        };
        Overwriting {
            options,
            keys,
            value_bytes: 1024,
            threads: 4,
            times: u64::MAX / keys.max(1),
            time,
            seed,
        }
    }

    fn live(&self) -> u64 {
        self.keys * (KEY_BYTES + ENTRY_BYTES + self.value_bytes as u64)
    }

    /// What one drain takes at most.
    fn drain(&self) -> u64 {
        let (pool, front) = (&self.options.pool, &self.options.front);
        let logs = match pool.path {
            Some(_) => u64::MAX,
            None => front.log_bytes_max,
        };
        let largest = self.options.buffer.table_bytes_max.unwrap_or(0);
        (pool.size_bytes.min(logs) / 4)
            .max(2 * front.memtable_bytes)
            .max(largest)
    }

    /// Fills a database in `folder`, overwrites it, and looks at the bound all the time.
    pub fn hold(&self, folder: &Path) -> Outcome<Taken> {
        let _case = watchdog::case(format!("{self:?}"));
        let path = folder.join("db");
        let db = watched("opening", || Db::open(&path, self.options.clone()))
            .map_err(|e| format!("opening: {e:?}"))?;
        let key = |n: u64| format!("{n:0width$}", width = KEY_BYTES as usize).into_bytes();
        let put = |n: u64, rng: &mut fastrand::Rng| -> Outcome {
            let mut value = vec![0; self.value_bytes];
            rng.fill(&mut value);
            db.put(key(n), value).map_err(|e| format!("key {n}: {e}"))
        };
        let manual = self.options.background.workers == Workers::Manual;
        let mut taken = Taken {
            live: self.live(),
            ..Taken::default()
        };
        let mut rng = fastrand::Rng::with_seed(self.seed);
        for n in 0..self.keys {
            put(n, &mut rng)?;
            if manual {
                db.step(rng.usize(..)).map_err(|e| format!("a step: {e}"))?;
            }
        }
        let writes = self.keys * self.times;
        if manual {
            for turn in 0..writes {
                put(rng.u64(..self.keys), &mut rng)?;
                db.step(rng.usize(..)).map_err(|e| format!("a step: {e}"))?;
                if turn % 64 == 0 {
                    self.look(&db, &mut taken)?;
                }
            }
        } else {
            let (next, begun) = (AtomicU64::new(0), Instant::now());
            let write = |thread: u64| -> Outcome {
                let mut rng = fastrand::Rng::with_seed(self.seed ^ (thread + 1));
                while next.fetch_add(1, Ordering::Relaxed) < writes && begun.elapsed() < self.time {
                    put(rng.u64(..self.keys), &mut rng)?;
                }
                Ok(())
            };
            std::thread::scope(|scope| {
                let write = &write;
                let threads = (0..self.threads).map(|thread| scope.spawn(move || write(thread)));
                let threads: Vec<_> = threads.collect();
                while !threads.iter().all(|thread| thread.is_finished()) {
                    self.look(&db, &mut taken)?;
                    std::thread::sleep(Duration::from_millis(5));
                }
                let joined = threads
                    .into_iter()
                    .map(|t| t.join().map_err(|_| "a panic")?);
                joined.collect::<Outcome<()>>()
            })?;
        }
        db.settle().map_err(|e| format!("coming to rest: {e}"))?;
        self.look_at_rest(&db, &mut taken)?;
        db.close().map_err(|e| format!("closing: {e}"))?;
        Ok(taken)
    }

    /// While writers run.
    fn look(&self, db: &Db, taken: &mut Taken) -> Outcome {
        let (metrics, folder) = (db.metrics(), Folder::of(db.path()));
        let tables: u64 = metrics.files.iter().map(|level| level.bytes).sum();
        let total = folder.tables + folder.logs;
        let raise = |mine: &mut u64, other: u64| *mine = (*mine).max(other);
        raise(&mut taken.tables, tables);
        raise(&mut taken.files, folder.tables);
        raise(&mut taken.logs, folder.logs);
        raise(&mut taken.folder, total);
        let (live, logs) = (taken.live, self.options.front.log_bytes_max);
        // A file takes whole blocks.
        let blocks = 4096 * (folder.table_count + folder.log_count);
        // A compaction has each key once: it writes no more than what is live, beside a drain.
        let compaction = live + self.drain();
        // What is estimated from few entries is off by more.
        let percent = u64::from(self.options.bottom.leveled.garbage_percent);
        let held = live + live / 200 * 3 * percent + live / 10;
        let bounds = [
            ("tables", tables, held + 3 * self.drain()),
            (
                "the folder",
                total,
                held + 3 * self.drain() + logs + compaction + blocks,
            ),
        ];
        for (what, is, most) in bounds {
            if is > most {
                return Err(format!(
                    "{what}: {is} bytes, more than {most}\n{taken:?}\n{metrics}"
                ));
            }
        }
        Ok(())
    }

    /// At rest, with files that are removed behind a reader not yet gone.
    fn look_at_rest(&self, db: &Db, taken: &mut Taken) -> Outcome {
        let folder = Folder::of(db.path());
        taken.settled = folder.tables + folder.logs;
        let log = self.options.front.memtable_bytes / 4 * 5 + (128 << 10);
        let blocks = 4096 * (folder.table_count + folder.log_count);
        let percent = u64::from(self.options.bottom.leveled.garbage_percent);
        let most = taken.live + taken.live / 300 * (percent + 15) + 2 * log + blocks;
        if taken.settled > most {
            let metrics = db.metrics();
            return Err(format!(
                "settled: {} bytes, more than {most}\n{folder:?}\n{taken:?}\n{metrics}",
                taken.settled
            ));
        }
        Ok(())
    }
}
