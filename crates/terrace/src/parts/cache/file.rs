//! This file is the cache of open files: each opened once, the least useful closed beyond a limit.

use std::sync::Arc;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, UnitWeighter};

/// With fewer files than this one shard is enough, and the limit is exact.
const SHARDED_FROM: usize = 512;
const SHARDS: usize = 8;
/// Fewer files cannot be divided into those used often and those opened last.
const FILES_MIN: usize = 4;
/// The part of the limit that is for files used often; a file just opened never has to wait for it.
const OFTEN: f64 = 0.75;

/// Open files by number. A file that a reader still holds stays open after the cache has dropped it.
pub(crate) struct FileCache<F> {
    cache: Cache<u64, Arc<F>>,
}

impl<F> FileCache<F> {
    /// A cache that keeps at most `files_max` files open by itself, and four if that is
    /// fewer.
    pub(crate) fn new(files_max: usize) -> FileCache<F> {
        let shards = if files_max < SHARDED_FROM { 1 } else { SHARDS };
        let files_max = (files_max / shards * shards).max(FILES_MIN);
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(files_max)
            .weight_capacity(files_max as u64)
            .hot_allocation(OFTEN)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                UnitWeighter,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::new(files_max),
        };
        FileCache { cache }
    }

    /// The open file with this number, or what `open` gives; callers that need the same file at the
    /// same time wait for one of them to open it.
    #[inline]
    pub(crate) fn get_or_open<E>(
        &self,
        number: u64,
        open: impl FnOnce() -> Result<Arc<F>, E>,
    ) -> Result<Arc<F>, E> {
        self.cache.get_or_insert_with(&number, open)
    }

    /// Drops a file, which was removed or is not needed soon.
    pub(crate) fn forget(&self, number: u64) {
        self.cache.remove(&number);
    }

    /// How many files the cache keeps open.
    pub(crate) fn open_count(&self) -> usize {
        self.cache.len()
    }
}
