//! The limits that a memory budget sets for parts without an option.

use super::super::Options;
use crate::types::Compression;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The smallest node of a skip list: its header, one link, a short key.
const NODE_BYTES_MIN: u64 = 40;
/// The memory of an open table and of the index blocks under a cursor, in addition to entries.
const CURSOR_INDEX_BYTES: u64 = 80 * KIB;
/// The memory of a table writer in addition to entries, keys and its buffer.
const WRITER_BESIDE_BYTES: u64 = 64 * KIB;
/// The memory that Zstandard needs to compress.
const ZSTD_BYTES: u64 = 2 * MIB;
/// The memory that a reclaim needs for each node that it moves.
const MOVED_BYTES: u64 = 40;
/// A redo slot in DRAM.
const REDO_BYTES: u64 = 64 * KIB;
/// With fewer runs at a time, level 0 would never be finished.
const RUNS_MIN: u64 = 4;
/// More runs at a time save little: writers are slowed from a dozen on.
const RUNS_MAX: u64 = 16;
/// How many runs of level 0 a drain and an ingest may add once writers are stopped.
const RUNS_AT_ONCE: u64 = 2;
const JOBS_MAX: u64 = 64;
/// Tables of the buffer that may still store the keys written into deleted ranges, in addition to
/// memtables.
const LATE_TABLES: u64 = 32;

/// The limits of parts of the store without an option. [`Limits::none`] applies without a budget.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// Whether there is a budget.
    pub(crate) are_set: bool,
    /// Key and value of one entry.
    pub(crate) entry_bytes: u64,
    /// Range deletes of one batch.
    pub(crate) batch_ranges: u64,
    /// The bytes of a batch that a thread keeps for its next write.
    pub(crate) kept_batch_bytes: usize,
    /// The number of concurrent merges, drains, reclaims and compactions.
    pub(crate) jobs: usize,
    /// Runs of level 0 in one compaction.
    pub(crate) runs: usize,
    /// Bytes read at once from each table by a compaction, and by a scan.
    pub(crate) job_ahead_bytes: usize,
    pub(crate) scan_ahead_bytes: usize,
    /// One write to a table file.
    pub(crate) write_bytes: usize,
    /// The memory of a table writer for its keys and blocks.
    pub(crate) keys_bytes: u64,
    /// The number of logs that are replayed concurrently.
    pub(crate) replays: usize,
    /// Entries of one table of an ingest into the buffer.
    pub(crate) ingest_bytes: u64,
    /// Pairs of one chunk of an iterator.
    pub(crate) chunk_bytes: usize,
    /// Memtables outside of the pool.
    pub(crate) arenas_bytes: u64,
    pub(crate) search_hints_bytes: u64,
    /// Keys written into deleted ranges, of one memtable.
    pub(crate) late_bytes: u64,
    /// The part of the block cache that open tables and their filters hold.
    pub(crate) held_bytes: u64,
    pub(crate) iterators_bytes: u64,
    pub(crate) reads_bytes: u64,
    pub(crate) batches_bytes: u64,
    pub(crate) ranges_bytes: u64,
    pub(crate) jobs_bytes: u64,
    /// The option that background jobs follow most.
    pub(crate) jobs_follow: &'static str,
    pub(crate) rest_bytes: u64,
}

impl Limits {
    /// Returns the limits of a database with these options.
    pub(crate) fn of(options: &Options) -> Limits {
        match options.memory_bytes {
            Some(budget) => Limits::within(options, budget),
            None => Limits::none(),
        }
    }

    /// Returns the limits without a budget.
    pub(crate) fn none() -> Limits {
        Limits {
            are_set: false,
            entry_bytes: u64::MAX,
            batch_ranges: u64::MAX,
            kept_batch_bytes: 1 << 20,
            jobs: usize::MAX,
            runs: usize::MAX,
            job_ahead_bytes: 1 << 20,
            scan_ahead_bytes: 256 << 10,
            write_bytes: 1 << 20,
            keys_bytes: u64::MAX,
            replays: usize::MAX,
            ingest_bytes: u64::MAX,
            chunk_bytes: 256 << 10,
            arenas_bytes: u64::MAX,
            search_hints_bytes: u64::MAX,
            late_bytes: u64::MAX,
            held_bytes: u64::MAX,
            iterators_bytes: u64::MAX,
            reads_bytes: u64::MAX,
            batches_bytes: u64::MAX,
            ranges_bytes: u64::MAX,
            jobs_bytes: u64::MAX,
            jobs_follow: "memory_bytes",
            rest_bytes: u64::MAX,
        }
    }

    /// Returns the limits within a budget.
    pub(super) fn within(options: &Options, budget: u64) -> Limits {
        let entry = (budget / 512).clamp(64 * KIB, 16 * MIB);
        let memtable = options.front.memtable_bytes;
        let jobs = JobLimits::within(options, budget, entry);
        let ahead = (budget / 1024).clamp(16 * KIB, 256 * KIB);
        let memtables = options.memtables_max();
        let arenas = match options.pool_is_memory() {
            true => 0,
            // Arenas consist of whole pages.
            false => memtables.saturating_mul(memtable.saturating_add(4 * KIB)),
        };
        Limits {
            are_set: true,
            entry_bytes: entry,
            batch_ranges: 64,
            kept_batch_bytes: 64 << 10,
            jobs: jobs.count as usize,
            runs: jobs.runs as usize,
            job_ahead_bytes: jobs.ahead as usize,
            scan_ahead_bytes: ahead as usize,
            write_bytes: jobs.write as usize,
            keys_bytes: jobs.keys,
            replays: (budget / (64 * MIB)).clamp(1, 8) as usize,
            ingest_bytes: jobs.keys / 4,
            chunk_bytes: ahead as usize,
            arenas_bytes: arenas,
            search_hints_bytes: (options.front.sealed_count_max as u64 + 3)
                .saturating_mul(memtable / 8 + 52 * KIB),
            late_bytes: (memtable / 64).max(4 * KIB),
            held_bytes: options.bottom.leveled.cache_bytes / 8,
            iterators_bytes: (budget / 16).max(lone_iterator_bytes(options, entry, ahead)),
            reads_bytes: budget / 32,
            batches_bytes: budget / 32,
            ranges_bytes: budget / 16,
            jobs_bytes: jobs.bytes,
            jobs_follow: jobs.follow,
            rest_bytes: 512 * KIB + budget / 64,
        }
    }

    /// Returns the part of the reads in progress that is for data: the rest is for index blocks and
    /// filters.
    pub(crate) fn data_reads_bytes(&self) -> u64 {
        self.reads_bytes / 4 * 3
    }

    /// Returns how many point reads of one table may be answered together: their blocks are held
    /// until all are answered.
    pub(crate) fn reads_at_once(&self) -> usize {
        match self.are_set {
            true => (self.data_reads_bytes() / self.entry_bytes)
                .saturating_sub(2)
                .max(1) as usize,
            false => usize::MAX,
        }
    }

    /// Returns the memory of the keys written into deleted ranges, in all tables that store them.
    pub(super) fn late_bytes_of_all(&self, options: &Options) -> u64 {
        let tables = options.memtables_max() + LATE_TABLES;
        tables.saturating_mul(self.late_bytes)
    }
}

/// Returns whether value files may be written.
fn has_apart(options: &Options) -> bool {
    // With tables in logs the design states from where on.
    let states = options.design_of_new().keeps_tables_in_logs();
    options.bottom.leveled.values_apart_from.is_some() || states
}

/// Returns the memory that an iterator over everything needs if no other is open, whatever the
/// sizes of entries. `ahead` bytes are read at once, and form a chunk.
fn lone_iterator_bytes(options: &Options, entry: u64, ahead: u64) -> u64 {
    let leveled = &options.bottom.leveled;
    let chunks = 2 * (ahead + entry);
    if !options.design_of_new().keeps_table_files() {
        return chunks;
    }
    let block = entry + 2 * leveled.block_bytes as u64;
    // Of blocks and of value files, which an opening may begin to write.
    let ahead = 2 * ahead;
    let sources = leveled.runs_stop as u64 + u64::from(leveled.levels) + RUNS_AT_ONCE;
    chunks + sources.saturating_mul(block + ahead)
}

/// The memory and the number of background jobs.
struct JobLimits {
    count: u64,
    runs: u64,
    ahead: u64,
    write: u64,
    keys: u64,
    bytes: u64,
    follow: &'static str,
}

impl JobLimits {
    fn within(options: &Options, budget: u64, entry: u64) -> JobLimits {
        let leveled = &options.bottom.leveled;
        let share = budget / 4;
        let ahead = (budget / 512).clamp(32 * KIB, MIB);
        let write = (budget / 256).clamp(64 * KIB, MIB);
        let keys = (budget / 64).clamp(256 * KIB, 64 * MIB);
        let files = options.design_of_new().keeps_table_files();
        // The filter of a merged table, and a reclaim's data about an extent, take what a writer's
        // keys would take; larger tables and extents take more.
        let filter = |bytes: u64| {
            let bits = u64::from(options.buffer.filter_bits_per_key);
            (bytes / NODE_BYTES_MIN).saturating_mul(bits) / 8
        };
        let of_pm_memtable = match options.design_of_new().has_pm_memtable() {
            true => options.pm_memtable_bytes(),
            false => 0,
        };
        let merged = match options.design_of_new().keeps_data_in_pool() {
            true => filter(options.table_bytes_max().max(of_pm_memtable)),
            false => 0,
        };
        let moved = match files {
            true => 0,
            false => options.bottom.extent_bytes / NODE_BYTES_MIN * MOVED_BYTES,
        };
        let known = keys.max(merged).max(moved);
        let follow = match (known == keys, merged >= moved) {
            (true, _) if leveled.block_bytes as u64 > entry => "bottom.leveled.block_bytes",
            (true, _) => "memory_bytes",
            (false, true) if of_pm_memtable > options.table_bytes_max() => {
                "front.pm_memtable_bytes (--pm-memtable-size)"
            }
            (false, true) => "buffer.table_bytes_max",
            (false, false) => "bottom.extent_bytes",
        };
        let block = entry + 2 * leveled.block_bytes as u64;
        let zstd = [leveled.compression, leveled.compression_upper].contains(&Compression::Zstd);
        let writer = match files {
            true => {
                // A block and its keys while they grow, the compressed block, and the compressor.
                let packer = if zstd { ZSTD_BYTES } else { 0 };
                // A value file has a compressor and a compressed value of its own; the write buffer
                // is shared.
                let apart = match has_apart(options) {
                    true => packer + 2 * entry,
                    false => 0,
                };
                write + known + 7 * block + WRITER_BESIDE_BYTES + packer + apart
            }
            false => known + 4 * entry + REDO_BYTES,
        };
        // In addition to the other jobs: one flush, one ingest.
        let beside = 2 * writer;
        // Without threads jobs take turns.
        let workers = options.worker_count().unwrap_or(2) + options.merge_thread_count();
        let inputs = |runs: u64| match files {
            true => (runs + 1) * (block + CURSOR_INDEX_BYTES + ahead) + 2 * block,
            false => 0,
        };
        let left = share.saturating_sub(beside);
        let affordable = left / (writer + inputs(RUNS_MIN));
        // One more than the number of threads: a compaction that has given way to a drain keeps its
        // memory.
        let count = affordable.clamp(1, (workers as u64 + 1).clamp(2, JOBS_MAX));
        let each = (left / count).saturating_sub(writer + 2 * block);
        let runs = each / (block + CURSOR_INDEX_BYTES + ahead);
        let runs = runs.saturating_sub(1).clamp(RUNS_MIN - 1, RUNS_MAX);
        JobLimits {
            count,
            runs,
            ahead,
            write,
            keys,
            bytes: beside + count * (writer + inputs(runs)),
            follow,
        }
    }

    /// Returns the largest table of the buffer whose filter takes no more than `keys`.
    fn table_bytes_for(keys: u64, bits: u32) -> u64 {
        match bits {
            0 => u64::MAX,
            bits => keys.saturating_mul(8) / u64::from(bits) * NODE_BYTES_MIN,
        }
    }
}

/// Returns the sizes of tables in the buffer and of extents of the repository up to which jobs need
/// no more memory than for others.
pub(super) fn job_sizes(options: &Options, budget: u64) -> (u64, u64) {
    let keys = (budget / 64).clamp(256 * KIB, 64 * MIB);
    let tables = JobLimits::table_bytes_for(keys, options.buffer.filter_bits_per_key);
    (tables, keys / MOVED_BYTES * NODE_BYTES_MIN)
}
