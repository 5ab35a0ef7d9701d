//! The sizes that follow from a memory budget.

use super::limits::{Limits, job_sizes};
use super::{CACHE_BYTES_BESIDE, CACHE_INDEX_ONE_IN, Sizes, plan};
use crate::options::{FrontOptions, LeveledOptions, Options, piece_of_pool};

const KIB: u64 = 1 << 10;
/// The smallest table file; with smaller ones, names would outweigh data.
const TABLE_BYTES_MIN: u64 = 256 * KIB;

/// Returns the largest power of two that is no larger.
fn floor(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        bytes => 1 << bytes.ilog2(),
    }
}

/// Sets the sizes that are not `chosen`.
pub(super) fn sizes(options: &mut Options, budget: u64, chosen: Sizes) {
    let defaults = LeveledOptions::default();
    let leveled = &mut options.bottom.leveled;
    let table = floor(budget / 8).clamp(TABLE_BYTES_MIN, defaults.table_bytes);
    leveled.table_bytes = chosen.table_bytes.unwrap_or(table);
    let level1 = defaults.level1_bytes.min(4 * leveled.table_bytes);
    leveled.level1_bytes = chosen
        .level1_bytes
        .unwrap_or(level1)
        .max(leveled.table_bytes);
    leveled.debt_stop_bytes = leveled.debt_stop_bytes.max(leveled.level1_bytes);
    // The parts that do not depend on the sizes below are subtracted first: those sizes are minimal
    // here.
    options.bottom.extent_bytes = 16 * KIB;
    options.buffer.table_bytes_max = Some(0);
    options.front.memtable_bytes = 0;
    leveled_cache(options, 0);
    let pool_before = std::mem::take(&mut options.pool.size_bytes);
    let beside: u64 = plan(options, budget).iter().map(|part| part.bytes).sum();
    let left = budget.saturating_sub(beside);
    let files = options.design_of_new().keeps_table_files();
    let buffered = options.design_of_new().keeps_data_in_pool();
    let in_memory = options.pool_is_memory();
    // A pool in memory follows from these sizes; one in a file limits them.
    let piece_max = match in_memory {
        true => u64::MAX,
        false => piece_of_pool(chosen.pool_bytes.unwrap_or(pool_before)),
    };

    let memtables = options.memtables_max();
    let memtable = match (in_memory, buffered) {
        // A sixteenth of the pool, which gets more than half of what is left.
        (true, true) => left / 32,
        // The pool consists of memtables, and gets less than half.
        (true, false) => left / 32,
        // Arenas of all memtables; a third if there is a cache.
        (false, _) if files => left / 3 / memtables,
        (false, _) => left * 4 / 5 / memtables,
    };
    let memtable = floor(memtable.min(piece_max));
    let memtable = memtable.clamp(128 * KIB, FrontOptions::default().memtable_bytes);
    options.front.memtable_bytes = chosen.memtable_bytes.unwrap_or(memtable);
    if !in_memory && options.design_of_new().keeps_tables_in_logs() {
        // Kept, also by an opening without a budget: it would make tables whose indexes no later
        // opening with the budget could have.
        let tables = &mut options.buffer.tables;
        tables
            .table_bytes
            .get_or_insert(options.front.memtable_bytes);
    }

    let (tables_max, extents_max) = job_sizes(options, budget);
    let extent = match in_memory {
        true => floor(left / 128),
        false => u64::MAX,
    };
    let extent = extent.min(floor(extents_max)).min(floor(piece_max));
    options.bottom.extent_bytes = extent.clamp(16 * KIB, 16 << 20);

    options.pool.size_bytes = chosen.pool_bytes.unwrap_or(pool_before);
    let limits = Limits::within(options, budget);
    let of_memtables = limits.arenas_bytes
        + limits.search_hints_bytes
        + limits.late_bytes_of_all(options)
        // This was counted for memtables of size zero.
        - memtables_of_no_size(options, budget);
    let left = left.saturating_sub(of_memtables);
    let for_cache = |bytes: u64| (bytes - bytes / (CACHE_INDEX_ONE_IN + 1)) & !(4 * KIB - 1);
    if in_memory {
        let pool = match (chosen.pool_bytes, chosen.cache_bytes) {
            (Some(pool), _) => pool,
            (None, Some(cache)) if files => left.saturating_sub(cache + cache / CACHE_INDEX_ONE_IN),
            (None, _) if !files => left,
            // Only memtables, and as much again that readers may hold.
            (None, _) if !buffered => options.pool_bytes_min() + 2 * options.front.memtable_bytes,
            (None, _) => left * 5 / 8,
        };
        // Whole granules, so that nothing is lost to rounding.
        options.pool.size_bytes = chosen.pool_bytes.unwrap_or(pool & !(64 * KIB - 1));
    }
    if files {
        let pool = if in_memory {
            options.pool.size_bytes
        } else {
            0
        };
        let rest = for_cache(left.saturating_sub(pool));
        leveled_cache(options, chosen.cache_bytes.unwrap_or(rest));
    }
    let eighth = options.pool.size_bytes / 8;
    let eighth = match in_memory {
        true => eighth.min(options.front.log_bytes_max / 4),
        false => eighth,
    };
    let table_max = eighth.min(tables_max).max(options.front.memtable_bytes);
    options.buffer.table_bytes_max = Some(table_max);
}

/// Returns the search structures of memtables of size zero, which `plan` has counted.
fn memtables_of_no_size(options: &Options, budget: u64) -> u64 {
    let mut none = options.clone();
    none.front.memtable_bytes = 0;
    let limits = Limits::within(&none, budget);
    limits.arenas_bytes + limits.search_hints_bytes + limits.late_bytes_of_all(&none)
}

/// Sets the cache, and how many files may be open given the part of it that they may hold.
fn leveled_cache(options: &mut Options, cache_bytes: u64) {
    let leveled = &mut options.bottom.leveled;
    leveled.cache_bytes = cache_bytes;
    let most = LeveledOptions::default().open_files_max;
    let held = (cache_bytes + CACHE_BYTES_BESIDE) / 8;
    leveled.open_files_max = ((held / (8 * KIB)) as usize).clamp(4, most);
}
