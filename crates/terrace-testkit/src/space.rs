//! Space: continuous overwriting of the same keys with values of changing size keeps a pool
//! bounded, and the directory within the bound of docs/operations.md.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace::{Db, Design, MediumChoice, Options, Workers};
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::soak::Folder;
use crate::watchdog::{self, watched};

/// The number of keys that are overwritten.
const KEYS: usize = 16;

/// Overwrites keys for `turns` turns, drawn from `seed`. Fails if the pool fills up, or if a key
/// shows anything but its last value.
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
        // Few values are large, so that one turn does not fill the pool.
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

/// Random overwriting of keys in a database whose bottom is table files.
#[derive(Clone, Debug)]
pub struct Overwriting {
    /// The options of the database.
    pub options: Options,
    /// The number of keys.
    pub keys: u64,
    /// The length of a value, which consists of random bytes.
    pub value_bytes: usize,
    /// The number of writing threads, 1 with `Workers::Manual`.
    pub threads: u64,
    /// How often a key is overwritten on average.
    pub times: u64,
    /// The maximum time.
    pub time: Duration,
    /// Determines what is written.
    pub seed: u64,
}

/// The maximum sizes of an overwritten database, in bytes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Taken {
    /// Live keys and values, as encoded in tables.
    pub live: u64,
    /// Tables that existed at one time, without those being written or removed.
    pub tables: u64,
    /// All table files.
    pub files: u64,
    /// Log files.
    pub logs: u64,
    /// Tables and logs.
    pub folder: u64,
    /// The same after the database has settled.
    pub settled: u64,
}

/// The length of a key in bytes.
const KEY_BYTES: u64 = 16;
/// The overhead of an entry in a table: its head, and its share of index and filter.
const ENTRY_BYTES: u64 = 16;

impl Overwriting {
    /// Returns values of 1 KiB, overwritten by four threads for a time, in a database with default
    /// options.
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

    /// Returns the maximum size of a drain.
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

    /// Fills a database in `folder`, overwrites it, and checks the bound continuously.
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
        db.wait_idle().map_err(|e| format!("coming to rest: {e}"))?;
        self.look_at_rest(&db, &mut taken)?;
        db.close().map_err(|e| format!("closing: {e}"))?;
        Ok(taken)
    }

    /// Checks the bounds while writers run.
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
        // Files occupy whole blocks.
        let blocks = 4096 * (folder.table_count + folder.log_count);
        // A compaction writes each key once, so no more than the live data and a drain.
        let compaction = live + self.drain();
        // Estimates from few entries are less exact.
        let percent = u64::from(self.options.bottom.leveled.garbage_percent);
        let held = live + live / 200 * 3 * percent + live / 10;
        let bounds = [
            ("tables", tables, held + 3 * self.drain()),
            (
                "the directory",
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

    /// Checks the bounds at rest. Files whose removal waits for a reader may still exist.
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
