//! One memory budget for an open database: the maximum of each part, and what is left for the
//! others.
//!
//! Everything here is a function of the options. The limits of the parts at run time are in
//! `parts/memory.rs` and in each part; docs/memory.md lists them.
//!
//! Invariants
//!   M1  With `memory_bytes` set, the parts of [`Options::memory_plan`] add up to no more, or the
//!       options are refused.
//!   M2  No part ever takes more than its row of the plan.

mod derive;
mod limits;

use super::Options;
use crate::metrics::human_bytes;

pub(crate) use limits::Limits;

/// Names of the parts.
pub(crate) const POOL: &str = "the pool";
pub(crate) const MEMTABLES: &str = "memtables";
pub(crate) const SEARCH: &str = "search structures of memtables";
pub(crate) const CACHE: &str = "the block cache";
pub(crate) const JOBS: &str = "background jobs";
pub(crate) const ITERATORS: &str = "iterators";
pub(crate) const READS: &str = "reads in progress";
pub(crate) const WRITES: &str = "writes in progress";
pub(crate) const RANGES: &str = "deleted ranges";
pub(crate) const REST: &str = "everything else";

/// The smallest budget: a smaller one would have no room for a key of 64 KiB in all parts at once.
pub(crate) const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Sizes that the caller of [`Options::within`] chooses; those that are `None` follow from the
/// budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// [`PoolOptions::size_bytes`](super::PoolOptions::size_bytes).
    pub pool_bytes: Option<u64>,
    /// [`FrontOptions::memtable_bytes`](super::FrontOptions::memtable_bytes).
    pub memtable_bytes: Option<u64>,
    /// [`LeveledOptions::cache_bytes`](super::LeveledOptions::cache_bytes).
    pub cache_bytes: Option<u64>,
    /// [`LeveledOptions::table_bytes`](super::LeveledOptions::table_bytes).
    pub table_bytes: Option<u64>,
    /// [`LeveledOptions::level1_bytes`](super::LeveledOptions::level1_bytes).
    pub level1_bytes: Option<u64>,
}

/// The maximum memory of one part of an open database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPart {
    /// The name of the part.
    pub name: &'static str,
    /// The maximum in bytes.
    pub bytes: u64,
    /// The option that determines it.
    pub follows: &'static str,
}

impl Options {
    /// Returns these options, with a memory budget and with sizes that fit it, whatever their
    /// previous sizes; those that are `chosen` are used as they are. Design, pool, threads and
    /// filters affect the result, so set them first. Later changes are checked against the budget
    /// when the database is opened.
    ///
    /// ```
    /// use terrace::{Options, Sizes};
    /// let options = Options::default().within(64 << 20, Sizes::default());
    /// options.validate()?;
    /// let sum: u64 = options.memory_plan().iter().map(|part| part.bytes).sum();
    /// assert!(sum <= 64 << 20);
    /// # Ok::<(), terrace::Error>(())
    /// ```
    #[must_use]
    pub fn within(mut self, memory_bytes: u64, chosen: Sizes) -> Options {
        self.memory_bytes = Some(memory_bytes);
        derive::sizes(&mut self, memory_bytes, chosen);
        self
    }

    /// Returns the maximum memory of each part of a database with these options; empty without
    /// [`Options::memory_bytes`], since several parts have no limit then.
    pub fn memory_plan(&self) -> Vec<MemoryPart> {
        match self.memory_bytes {
            Some(budget) => plan(self, budget),
            None => Vec::new(),
        }
    }

    /// Returns the parts that use memory, with or without a budget; their bytes are right only with
    /// one.
    pub(crate) fn parts_of_memory(&self) -> Vec<MemoryPart> {
        plan(self, self.memory_bytes.unwrap_or(MEMORY_BYTES_MIN))
    }

    /// Returns the problem with the budget, if there is one.
    pub(super) fn memory_problem(&self) -> Option<String> {
        let budget = self.memory_bytes?;
        if budget < MEMORY_BYTES_MIN {
            return Some(format!(
                "--memory (memory_bytes) is {budget}, but must be at least {MEMORY_BYTES_MIN}"
            ));
        }
        let plan = plan(self, budget);
        let sum = plan
            .iter()
            .fold(0u64, |sum, part| sum.saturating_add(part.bytes));
        if sum <= budget {
            return None;
        }
        let rows: Vec<String> = plan
            .iter()
            .map(|part| {
                let bytes = human_bytes(part.bytes);
                format!("{} {bytes} ({})", part.name, part.follows)
            })
            .collect();
        let largest = plan.iter().max_by_key(|part| part.bytes);
        Some(format!(
            "memory_bytes is {}, but the parts may need: {}; that is {} in total ({} too much): \
             lower {}, let --memory (Options::within) choose the sizes, or raise memory_bytes",
            human_bytes(budget),
            rows.join(", "),
            human_bytes(sum),
            human_bytes(sum - budget),
            largest.map_or("the sizes", |part| part.follows),
        ))
    }

    /// Returns whether the pool is in memory.
    pub(crate) fn pool_is_memory(&self) -> bool {
        self.pool.path.is_none()
    }

    /// Returns how many memtables may be in memory: the active one, the spare, those that wait for
    /// their flush, and as many that readers of older views hold. Where tables of the buffer are
    /// memtables, these too.
    pub(crate) fn memtables_max(&self) -> u64 {
        let usual = 2 * (self.front.sealed_count_max as u64 + 2);
        match self.design_of_new().keeps_tables_in_logs() {
            true => usual.max(self.buffer.tables.count_max as u64 + 4),
            false => usual,
        }
    }
}

/// The block cache needs one byte for its index for this many bytes of blocks.
const CACHE_INDEX_ONE_IN: u64 = 8;
const CACHE_BYTES_BESIDE: u64 = 256 << 10;

/// Returns the memory of the cache including its index.
fn cache_with_index(cache_bytes: u64) -> u64 {
    cache_bytes
        .saturating_add(cache_bytes / CACHE_INDEX_ONE_IN)
        .saturating_add(CACHE_BYTES_BESIDE)
}

/// Returns the parts, all of them non-empty.
fn plan(options: &Options, budget: u64) -> Vec<MemoryPart> {
    let limits = Limits::within(options, budget);
    let memtable = options.front.memtable_bytes;
    let mut plan = Vec::new();
    let mut part = |name, bytes: u64, follows| {
        plan.push(MemoryPart {
            name,
            bytes,
            follows,
        });
    };
    match options.pool_is_memory() {
        true => part(POOL, options.pool.size_bytes, "pool.size_bytes"),
        false => part(MEMTABLES, limits.arenas_bytes, "front.memtable_bytes"),
    }
    part(
        SEARCH,
        limits.search_hints_bytes + limits.late_bytes_of_all(options),
        match memtable > 1 << 20 {
            true => "front.memtable_bytes",
            false => "front.sealed_count_max",
        },
    );
    if options.design_of_new().keeps_table_files() {
        let cache = cache_with_index(options.bottom.leveled.cache_bytes);
        part(CACHE, cache, "bottom.leveled.cache_bytes");
    }
    part(JOBS, limits.jobs_bytes, limits.jobs_follow);
    part(ITERATORS, limits.iterators_bytes, "memory_bytes");
    part(READS, limits.reads_bytes, "memory_bytes");
    part(WRITES, limits.batches_bytes, "memory_bytes");
    part(RANGES, limits.ranges_bytes, "memory_bytes");
    part(REST, limits.rest_bytes, "memory_bytes");
    plan
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::options::Design;
    use crate::options::{MIB, Workers};

    fn shapes() -> Vec<Options> {
        let mut shapes = Vec::new();
        for design in Design::ALL {
            for pool in [None, Some(PathBuf::from("pool"))] {
                for workers in [Workers::Manual, Workers::Threads(1), Workers::Threads(16)] {
                    let mut options = Options {
                        design: Some(design),
                        ..Options::default()
                    };
                    options.pool.path = pool.clone();
                    options.background.workers = workers;
                    shapes.push(options);
                }
            }
        }
        shapes
    }

    fn sum(options: &Options) -> u64 {
        options.memory_plan().iter().map(|part| part.bytes).sum()
    }

    /// For any design, medium and number of threads, the sizes that follow from a budget fit it,
    /// use most of it, and are valid.
    #[test]
    fn derived_sizes_keep_within_the_budget_and_use_it() {
        for shape in shapes() {
            for budget in [
                16, 17, 20, 24, 32, 48, 64, 100, 128, 256, 500, 1024, 8192, 100_000,
            ] {
                let budget = budget * MIB;
                let options = shape.clone().within(budget, Sizes::default());
                if let Err(e) = options.validate() {
                    panic!("{budget}: {e}\n{options:#?}");
                }
                assert!(sum(&options) <= budget);
                // A memtable has a maximum size, so a design without a cache stops growing.
                let grows = options.pool_is_memory() || options.design_of_new().keeps_table_files();
                if grows {
                    assert!(
                        sum(&options) >= budget / 10 * 8,
                        "{} of {budget}: {:#?}",
                        sum(&options),
                        options.memory_plan()
                    );
                }
                let limits = Limits::of(&options);
                assert!(limits.runs >= 3, "{budget}: {limits:?}");
                assert!(limits.entry_bytes <= options.front.memtable_bytes / 2);
            }
        }
    }

    /// The memtable in the pool follows memtables and pool, and within a budget becomes no larger
    /// than the tables that its jobs have memory for.
    #[test]
    fn the_memtable_in_the_pool_fits_pool_and_budget() {
        let mut options = Options::default();
        options.pool.path = Some(PathBuf::from("pool"));
        for (pool, memtable, expected) in [
            (64 << 10, 64, 512),
            (8 << 10, 64, 512),
            (4 << 10, 64, 256),
            (8 << 10, 4, 32),
        ] {
            options.pool.size_bytes = pool * MIB;
            options.front.memtable_bytes = memtable * MIB;
            assert_eq!(options.pm_memtable_bytes(), expected * MIB);
        }
        options.pool.size_bytes = 64 << 30;
        let mut bounded = 0;
        for budget in [16, 20, 32, 64, 128, 500, 1024, 8192] {
            let options = options.clone().within(budget * MIB, Sizes::default());
            assert!(options.pm_memtable_bytes() <= options.table_bytes_max());
            let unbounded = 8 * options.front.memtable_bytes;
            bounded += usize::from(options.pm_memtable_bytes() < unbounded);
        }
        assert!(bounded > 0, "no budget bounds it");
        options.design = Some(Design::NoveLsm);
        options.front.pm_memtable_bytes = Some(16 << 30);
        let problem = options.within(64 * MIB, Sizes::default()).memory_problem();
        let named = "lower front.pm_memtable_bytes (--pm-memtable-size)";
        assert!(
            problem.as_ref().is_some_and(|it| it.contains(named)),
            "{problem:?}"
        );
    }

    /// A larger budget makes nothing smaller.
    #[test]
    fn sizes_grow_with_the_budget() {
        for shape in shapes() {
            let mut before: Option<Options> = None;
            for mib in (16..400).step_by(8).chain((400..5000).step_by(512)) {
                let options = shape.clone().within(mib * MIB, Sizes::default());
                if let Some(before) = before {
                    let (new, old) = (&options.front, &before.front);
                    assert!(new.memtable_bytes >= old.memtable_bytes, "{mib} MiB");
                    let (new, old) = (&options.bottom.leveled, &before.bottom.leveled);
                    assert!(new.table_bytes >= old.table_bytes, "{mib} MiB");
                }
                before = Some(options);
            }
        }
    }

    /// The derived sizes fit a small pool in a file, and those that the caller chooses are used as
    /// they are.
    #[test]
    fn derived_sizes_fit_a_small_pool() {
        for shape in shapes().into_iter().filter(|o| !o.pool_is_memory()) {
            for budget in [16, 64, 1024, 4096] {
                for pool in [4, 16, 100, 256, 576, 1024] {
                    let mut before = shape.clone();
                    before.pool.size_bytes = pool * MIB;
                    let options = before.within(budget * MIB, Sizes::default());
                    options.validate().unwrap();
                    assert_eq!(options.pool.size_bytes, pool * MIB);
                    let chosen = Sizes {
                        pool_bytes: Some(pool * MIB),
                        ..Sizes::default()
                    };
                    let same = shape.clone().within(budget * MIB, chosen);
                    assert_eq!(same.kept(), options.kept());
                    let chosen = Sizes {
                        memtable_bytes: Some(MIB / 2),
                        ..chosen
                    };
                    let stated = shape.clone().within(budget * MIB, chosen);
                    assert_eq!(stated.front.memtable_bytes, MIB / 2);
                }
            }
        }
    }

    /// Sizes that the caller chooses stay as they are, and the others make room for them.
    #[test]
    fn chosen_sizes_win() {
        for shape in shapes().into_iter().filter(Options::pool_is_memory) {
            let chosen = Sizes {
                pool_bytes: Some(20 * MIB),
                memtable_bytes: Some(MIB / 2),
                table_bytes: Some(3 * MIB),
                ..Sizes::default()
            };
            let options = shape.clone().within(64 * MIB, chosen);
            options.validate().unwrap();
            assert_eq!(options.pool.size_bytes, 20 * MIB);
            assert_eq!(options.front.memtable_bytes, MIB / 2);
            assert_eq!(options.bottom.leveled.table_bytes, 3 * MIB);
            if options.design_of_new().keeps_table_files() {
                let cache = |options: &Options| options.bottom.leveled.cache_bytes;
                let smaller = Sizes {
                    pool_bytes: Some(16 * MIB),
                    ..chosen
                };
                assert!(cache(&shape.within(64 * MIB, smaller)) > cache(&options));
            }
        }
    }

    /// Sizes that cannot fit are refused, with the share of each part and the option to lower.
    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let mut options = Options::default().within(64 * MIB, Sizes::default());
        options.validate().unwrap();
        options.bottom.leveled.cache_bytes = 64 * MIB;
        let problem = options.validate().unwrap_err().to_string();
        for part in [
            "memory_bytes is 64.0 MiB",
            "the block cache 72.2 MiB (bottom.leveled.cache_bytes)",
            "the pool ",
            "lower bottom.leveled.cache_bytes",
            "raise memory_bytes",
        ] {
            assert!(problem.contains(part), "{part}: {problem}");
        }
        options.bottom.leveled.cache_bytes = MIB;
        options.validate().unwrap();
        options.memory_bytes = Some(1);
        let problem = options.validate().unwrap_err().to_string();
        assert!(problem.contains("at least 16777216"), "{problem}");
    }

    /// Without a budget nothing is limited and nothing is planned.
    #[test]
    fn without_a_budget_nothing_is_limited() {
        let options = Options::default();
        assert_eq!(options.memory_plan(), []);
        let limits = Limits::of(&options);
        assert_eq!((limits.jobs, limits.runs), (usize::MAX, usize::MAX));
        assert_eq!(limits.entry_bytes, u64::MAX);
        assert!(!limits.are_set);
    }
}
