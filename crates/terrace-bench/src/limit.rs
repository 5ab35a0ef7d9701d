//! The limit line: the throughput of the medium alone for the same records, in the same run.
//!
//! It moves only the bytes: no ordering, no index, no lookup. Each limit runs on as many threads as
//! its workload, in a second pool next to the database's (same medium, same instructions, same
//! emulation, all pages faulted in before).
//!
//! - Writes: the records of the log (32 bytes of header, 16 bytes, key and value for each entry,
//!   rounded up to 64) appended in order to a ring in an extent, each with a streaming write and a
//!   fence, and with a sync if the durability is `Sync`. `Volatile` writes are plain copies, and
//!   small ones of `FlatLsm` are flushed 256 bytes together. A pool
//!   in plain memory (medium `dram`) logs to files, so its limit is one `pwrite` a record, and one
//!   `fdatasync` if the durability is `Sync`.
//! - Random reads: values copied from random offsets of that extent.
//! - Scans: keys and values copied from it in order.
//! - Seeks: a random offset, and the entries after it copied in order.
//! - Missing keys: one load of a random cache line.
//!
//! The extent is as large as the data, but at least 64 MiB and at most 1 GiB.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use terrace::{Durability, Options, Prefault, Purpose};
use terrace_media::{Backing, Claim, Extent, Pool, PoolConfig};

use crate::config::BenchConfig;
use crate::error::BenchError;
use crate::step::Step;

const EXTENT_BYTES_MIN: u64 = 64 << 20;
const EXTENT_BYTES_MAX: u64 = 1 << 30;

/// The size of the ring of a log in a file.
const FILE_BYTES: u64 = 64 << 20;

/// `FlatLsm` gathers records smaller than this, and flushes this many bytes together.
const GATHERED_BYTES: usize = 256;

/// Records moved by one measurement, unless their bytes are too few or too many.
const RECORDS: u64 = 200_000;

/// The minimum of bytes moved by one measurement, so that small records do not stay in the caches.
const MOVED_BYTES_MIN: u64 = 64 << 20;

/// The maximum of bytes moved by one measurement.
const MOVED_BYTES_MAX: u64 = 1 << 30;

/// The maximum of records moved by one measurement, as a multiple of the entries of the workload: a
/// tiny run is not followed by a long measurement of the medium.
const TIMES_MAX: u64 = 16;

/// The number of rounds; the best one counts, so that a disturbance does not lower the limit.
const ROUNDS: usize = 3;

/// The random bytes that records are cut from.
const SOURCE_BYTES: usize = 1 << 20;

/// Operations a second that the medium alone allows, all threads together.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    rates: Vec<(Kind, f64)>,
    /// The measured pool, as a line for people; `None` if no pool was made.
    pub pool: Option<String>,
    /// The duration of that pool's creation and pre-faulting.
    pub prepared: Duration,
}

/// The access pattern of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Append,
    AppendDeletes,
    ReadRandom,
    Scan,
    Seek,
    Miss,
}

impl Kind {
    fn of(step: Step) -> Option<Kind> {
        match step {
            Step::FillSeq
            | Step::FillBatch
            | Step::FillRandom
            | Step::FillUniqueRandom
            | Step::Overwrite => Some(Kind::Append),
            Step::DeleteSeq | Step::DeleteRandom => Some(Kind::AppendDeletes),
            Step::ReadRandom | Step::ReadHot | Step::MultiReadRandom | Step::ReadWhileWriting => {
                Some(Kind::ReadRandom)
            }
            Step::ReadSeq | Step::ReadReverse => Some(Kind::Scan),
            Step::SeekRandom | Step::SeekRandomWhileWriting => Some(Kind::Seek),
            Step::ReadMissing => Some(Kind::Miss),
            // Operations of several kinds have no limit of one kind.
            Step::UpdateRandom | Step::ReadRandomWriteRandom => None,
            Step::Queue
            | Step::YcsbLoad
            | Step::YcsbA
            | Step::YcsbB
            | Step::YcsbC
            | Step::YcsbD
            | Step::YcsbE
            | Step::YcsbF
            | Step::YcsbRun
            | Step::Churn
            | Step::Replay => None,
            Step::KillReopen | Step::Drain | Step::Flush | Step::Wait => None,
        }
    }

    fn appends(self) -> bool {
        matches!(self, Kind::Append | Kind::AppendDeletes)
    }
}

impl Limits {
    /// Measures every limit that the steps of `config` need. `beside` is the future path of the
    /// database's pool, or its directory if it has no pool file.
    pub(crate) fn measure(
        config: &BenchConfig,
        options: &Options,
        beside: &Path,
    ) -> Result<Limits, BenchError> {
        let mut kinds: Vec<Kind> = Vec::new();
        for kind in config.steps.iter().filter_map(|step| Kind::of(*step)) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let mut limits = Limits::default();
        if kinds.is_empty() {
            return Ok(limits);
        }
        let begun = Instant::now();
        let bench = Bench::new(config, options, beside)?;
        limits.prepared = begun.elapsed();
        limits.pool = Some(bench.pool.describe());
        for kind in kinds {
            limits.rates.push((kind, bench.best(kind)?));
        }
        Ok(limits)
    }

    /// Returns the limit for `step`, in operations a second.
    pub fn of(&self, step: Step) -> Option<f64> {
        let kind = Kind::of(step)?;
        self.rates
            .iter()
            .find(|(measured, _)| *measured == kind)
            .map(|(_, rate)| *rate)
    }
}

/// Returns the bytes that a record of `entries` entries takes in the log.
fn record_bytes(entries: u64, key_bytes: usize, value_bytes: usize) -> u64 {
    let entry = (16 + key_bytes as u64 + value_bytes as u64).next_multiple_of(8);
    (32 + entries * entry).next_multiple_of(64)
}

/// A file that is removed when the measurement ends.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // The file may not exist (a pool in plain memory), and nothing depends on its removal.
        let _ = fs::remove_file(&self.0);
    }
}

/// The setup in which limits are measured.
struct Bench<'a> {
    config: &'a BenchConfig,
    durability: Durability,
    /// Whether records of less than 256 bytes are flushed that many bytes together.
    gathers: bool,
    pool: Pool,
    extents: Vec<Arc<Extent>>,
    source: Vec<u8>,
    /// The log of a pool in plain memory.
    log_file: Option<File>,
    _scratch: [Scratch; 2],
}

impl<'a> Bench<'a> {
    fn new(
        config: &'a BenchConfig,
        options: &Options,
        beside: &Path,
    ) -> Result<Bench<'a>, BenchError> {
        let with = |suffix: &str| {
            let mut name = beside.as_os_str().to_os_string();
            name.push(suffix);
            PathBuf::from(name)
        };
        let (pool_path, log_path) = (with(".limit-pool"), with(".limit-log"));
        let in_memory = options.pool.path.is_none();
        let scratch = [Scratch(pool_path.clone()), Scratch(log_path.clone())];
        let threads = config.threads as u64;
        let data = config
            .data_bytes()
            .clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX);
        // Every thread needs space for two records, even if the clamped size is smaller.
        let record = record_bytes(
            config.batch_count as u64,
            config.key_bytes,
            config.value_bytes,
        );
        let extent_bytes = (data / threads).max(2 * record).next_multiple_of(1 << 16);
        let medium = |e: &dyn std::fmt::Display| BenchError::Medium(e.to_string());
        let backing = if in_memory {
            Backing::Anonymous
        } else {
            Backing::File(pool_path)
        };
        let pool = Pool::create(PoolConfig {
            medium: options.pool.medium,
            prefault: Prefault::All,
            emulation: options.pool.emulation,
            ..PoolConfig::new(backing, extent_bytes * threads + (4 << 20))
        })
        .map_err(|e| medium(&e))?;
        let mut extents = Vec::new();
        for _ in 0..threads {
            let extent = pool.alloc(extent_bytes).map_err(|e| medium(&e))?;
            pool.prefault(&extent);
            extents.push(extent);
        }
        let mut rng = fastrand::Rng::with_seed(config.seed);
        let mut source = vec![0; SOURCE_BYTES + record as usize];
        rng.fill(&mut source);
        let log_file = in_memory
            .then(|| open_log(&log_path, &source))
            .transpose()?;
        // Small records of a log that is the table are gathered.
        let gathers = options.durability == Durability::Volatile && options.logs_of_new();
        let durability = match options.durability {
            Durability::Volatile if gathers => Durability::Buffered,
            durability => durability,
        };
        let bench = Bench {
            config,
            durability,
            gathers,
            pool,
            extents,
            source,
            log_file,
            _scratch: scratch,
        };
        bench.touch()?;
        Ok(bench)
    }

    /// Writes every byte of the extents once, so that reads find data and every page is faulted in.
    fn touch(&self) -> Result<(), BenchError> {
        for extent in &self.extents {
            let mut claim = self.claim(extent)?;
            let mut at = 0;
            while at < claim.len() as usize {
                let len = SOURCE_BYTES.min(claim.len() as usize - at);
                claim.write(at, &self.source[..len]);
                at += len;
            }
        }
        Ok(())
    }

    fn claim(&self, extent: &Extent) -> Result<Claim, BenchError> {
        extent
            .claim(0, extent.len() as usize)
            .ok_or_else(|| BenchError::Medium("the extent is smaller than reported".to_string()))
    }

    fn best(&self, kind: Kind) -> Result<f64, BenchError> {
        let mut best: f64 = 0.0;
        for round in 0..ROUNDS {
            best = best.max(self.round(kind, round as u64)?);
        }
        Ok(best)
    }

    /// Returns the number of records of `bytes` bytes that one measurement moves.
    fn count_of(&self, bytes: u64) -> u64 {
        let bytes = bytes.max(1);
        RECORDS
            .max(MOVED_BYTES_MIN / bytes)
            .min(MOVED_BYTES_MAX / bytes)
            .min(self.config.num.saturating_mul(TIMES_MAX))
            .max(100)
    }

    /// Runs one round and returns its operations a second.
    fn round(&self, kind: Kind, round: u64) -> Result<f64, BenchError> {
        let threads = self.config.threads;
        let start = Barrier::new(threads);
        let results: Vec<Result<(u64, Duration), BenchError>> = std::thread::scope(|scope| {
            let workers: Vec<_> = self
                .extents
                .iter()
                .enumerate()
                .map(|(thread, extent)| {
                    let start = &start;
                    let seed = self.config.seed ^ (round << 32) ^ thread as u64;
                    scope.spawn(move || {
                        start.wait();
                        let begun = Instant::now();
                        let ops = self.work(kind, thread, extent, seed)?;
                        Ok((ops, begun.elapsed()))
                    })
                })
                .collect();
            let died = || BenchError::Medium("a thread of the measurement panicked".to_string());
            workers
                .into_iter()
                .map(|worker| worker.join().map_err(|_| died())?)
                .collect()
        });
        let (mut ops, mut longest) = (0, Duration::ZERO);
        for result in results {
            let (done, elapsed) = result?;
            ops += done;
            longest = longest.max(elapsed);
        }
        Ok(ops as f64 / longest.as_secs_f64().max(1e-9))
    }

    fn work(
        &self,
        kind: Kind,
        thread: usize,
        extent: &Extent,
        seed: u64,
    ) -> Result<u64, BenchError> {
        match (kind, &self.log_file) {
            (kind, Some(file)) if kind.appends() && self.durability != Durability::Volatile => {
                self.append_to_file(kind, thread, file)
            }
            (kind, _) if kind.appends() => self.append(kind, extent),
            _ => self.read(kind, extent, seed),
        }
    }

    /// Returns the bytes of one appended record, and the number of records to append.
    fn appended(&self, kind: Kind) -> (usize, u64) {
        let value_bytes = if kind == Kind::Append {
            self.config.value_bytes
        } else {
            0
        };
        let entries = self.config.batch_count as u64;
        let record = record_bytes(entries, self.config.key_bytes, value_bytes);
        (record as usize, self.count_of(record))
    }

    fn append(&self, kind: Kind, extent: &Extent) -> Result<u64, BenchError> {
        let (record, records) = self.appended(kind);
        let region = extent.region();
        let mut claim = self.claim(extent)?;
        let (mut at, mut unflushed) = (0, 0);
        for i in 0..records {
            if at + record > claim.len() as usize {
                (at, unflushed) = (0, 0);
            }
            let from = ((i as usize * record) % SOURCE_BYTES) & !15;
            let bytes = &self.source[from..from + record];
            if self.durability == Durability::Volatile {
                claim.write(at, bytes);
            } else if self.gathers && record < GATHERED_BYTES {
                claim.write(at, bytes);
                unflushed += record;
                if unflushed >= GATHERED_BYTES {
                    let from = claim.off() + (at + record - unflushed) as u64;
                    region.persist(from, unflushed, Purpose::Log);
                    unflushed = 0;
                }
            } else {
                claim.write_streaming(at, bytes, Purpose::Log);
                region.fence(Purpose::Log);
            }
            if self.durability == Durability::Sync {
                region
                    .sync(claim.off() + at as u64, record)
                    .map_err(|e| BenchError::Medium(format!("cannot sync its pool: {e}")))?;
            }
            at += record;
        }
        Ok(records * self.config.batch_count as u64)
    }

    fn append_to_file(&self, kind: Kind, thread: usize, file: &File) -> Result<u64, BenchError> {
        let (record, records) = self.appended(kind);
        let failed = |e| BenchError::Medium(format!("cannot write its log file: {e}"));
        // Each thread has its own part of the file, as it would have its own place in the log.
        let part = (FILE_BYTES / self.config.threads as u64).max(record as u64);
        let first = part * thread as u64;
        let mut at = 0;
        for i in 0..records {
            if at + record as u64 > part {
                at = 0;
            }
            let from = ((i as usize * record) % SOURCE_BYTES) & !15;
            file.write_all_at(&self.source[from..from + record], first + at)
                .map_err(failed)?;
            if self.durability == Durability::Sync {
                file.sync_data().map_err(failed)?;
            }
            at += record as u64;
        }
        Ok(records * self.config.batch_count as u64)
    }

    fn read(&self, kind: Kind, extent: &Extent, seed: u64) -> Result<u64, BenchError> {
        let config = self.config;
        let stride = record_bytes(1, config.key_bytes, config.value_bytes);
        let slots = (extent.len() / stride).max(1);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut out = vec![0u8; config.key_bytes + config.value_bytes];
        // A random read copies the value, a scan copies key and value, and a seek does so for each
        // entry.
        let (len, entries) = match kind {
            Kind::Miss => (1, 1),
            Kind::Scan => (out.len(), 1),
            Kind::Seek => (out.len(), 1 + config.seek_nexts),
            _ => (config.value_bytes, 1),
        };
        let ops = self.count_of(stride * entries);
        let mut slot = 0;
        for _ in 0..ops {
            if kind != Kind::Scan {
                slot = rng.u64(0..slots);
            }
            for _ in 0..entries {
                let from = extent.off() + slot * stride;
                let bytes = extent.region().bytes(from, len).ok_or_else(|| {
                    BenchError::Medium("the extent is smaller than reported".to_string())
                })?;
                out[..len].copy_from_slice(bytes);
                black_box(&mut out);
                slot = if slot + 1 == slots { 0 } else { slot + 1 };
            }
        }
        Ok(ops)
    }
}

fn open_log(path: &Path, source: &[u8]) -> Result<File, BenchError> {
    let failed = |e| BenchError::io("create", path, e);
    let mut open = OpenOptions::new();
    let file = open
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(failed)?;
    let mut at = 0;
    while at < FILE_BYTES {
        file.write_all_at(&source[..SOURCE_BYTES], at)
            .map_err(failed)?;
        at += SOURCE_BYTES as u64;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record has the size of a log record: header, entries, rounded up to a cache line.
    #[test]
    fn records_have_the_size_of_the_log() {
        assert_eq!(
            record_bytes(1, 16, 4096),
            (32 + 16 + 16 + 4096u64).next_multiple_of(64)
        );
        assert_eq!(record_bytes(1, 16, 0), 64);
        assert_eq!(
            record_bytes(10, 16, 100),
            (32 + 10 * 136u64).next_multiple_of(64)
        );
    }

    /// Every workload with a limit gets one and no other, on a pool in plain memory and in a file.
    #[test]
    fn every_workload_has_a_limit() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        for path in [None, Some(PathBuf::from("pool"))] {
            let mut options = Options::default();
            options.pool.path = path;
            let config = BenchConfig {
                steps: Step::ALL.to_vec(),
                num: 10,
                value_bytes: 10_000,
                threads: 2,
                batch_count: 3,
                ..BenchConfig::default()
            };
            let beside = folder.path().join("pool");
            let limits = Limits::measure(&config, &options, &beside).expect("the limits");
            for step in Step::ALL {
                let mixed = matches!(
                    step,
                    Step::UpdateRandom | Step::ReadRandomWriteRandom | Step::Queue | Step::Replay
                );
                let of_ycsb = config
                    .workload_of(step)
                    .is_ok_and(|workload| workload.is_some());
                let is_timed = !step.settles() && step != Step::KillReopen;
                let has_one = is_timed && !mixed && !of_ycsb && step != Step::YcsbRun;
                assert_eq!(limits.of(step).is_some(), has_one, "{step}");
                assert!(limits.of(step).is_none_or(|rate| rate > 0.0), "{step}");
            }
        }
        let left = fs::read_dir(folder.path()).expect("the directory").count();
        assert_eq!(left, 0, "the measurement removes its files");
    }
}
