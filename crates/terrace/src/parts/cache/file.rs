//! The cache of open files. Each file is opened once; beyond a limit on the number of files or on
//! the memory that they hold, the least useful file is closed.

use std::sync::Arc;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// Below this number of files one shard is enough, and the limit is exact.
const SHARDED_FROM: usize = 512;
const SHARDS: usize = 8;
/// The minimum limit. Fewer files cannot be divided into hot and recent ones.
const FILES_MIN: usize = 4;
/// The part of the limit for hot files. A newly opened file never has to wait for it.
const OFTEN: f64 = 0.75;

/// The weight of a file: the memory that it holds, but at least an equal share of the limit.
struct ByMemory<F> {
    least: u64,
    bytes: fn(&F) -> u64,
}

impl<F> Clone for ByMemory<F> {
    fn clone(&self) -> ByMemory<F> {
        ByMemory {
            least: self.least,
            bytes: self.bytes,
        }
    }
}

impl<F> Weighter<u64, Arc<F>> for ByMemory<F> {
    fn weight(&self, _: &u64, file: &Arc<F>) -> u64 {
        (self.bytes)(file).max(self.least)
    }
}

type Inner<F> = Cache<u64, Arc<F>, ByMemory<F>, DefaultHashBuilder, DefaultLifecycle<u64, Arc<F>>>;

/// Open files by number. A file evicted while a reader holds it stays open until the reader drops
/// it.
pub(crate) struct FileCache<F> {
    cache: Inner<F>,
}

impl<F> FileCache<F> {
    /// Creates a cache that keeps at most `files_max` files open, but at least four.
    #[cfg(test)]
    pub(crate) fn new(files_max: usize) -> FileCache<F> {
        FileCache::within(files_max, u64::MAX, |_| 0)
    }

    /// Creates a cache whose files hold at most `bytes_max` together, where `bytes` returns the
    /// bytes of one file. A file that exceeds the limit alone is not kept open.
    pub(crate) fn within(files_max: usize, bytes_max: u64, bytes: fn(&F) -> u64) -> FileCache<F> {
        let shards = if files_max < SHARDED_FROM { 1 } else { SHARDS };
        let files_max = (files_max / shards * shards).max(FILES_MIN);
        // In bytes, with each file counting at least its share; without a limit in bytes, in files.
        let least = match bytes_max {
            u64::MAX => 1,
            bytes_max => (bytes_max / files_max as u64).max(1),
        };
        let by_memory = ByMemory { least, bytes };
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(files_max)
            .weight_capacity(least * files_max as u64)
            .hot_allocation(OFTEN)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                by_memory,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter(files_max, least * files_max as u64, by_memory),
        };
        FileCache { cache }
    }

    /// Returns the open file with this number, or opens it with `open`. Concurrent callers for the
    /// same file wait for one of them to open it.
    #[inline]
    pub(crate) fn get_or_open<E>(
        &self,
        number: u64,
        open: impl FnOnce() -> Result<Arc<F>, E>,
    ) -> Result<Arc<F>, E> {
        self.cache.get_or_insert_with(&number, open)
    }

    /// Drops a file that was removed or is not needed soon.
    pub(crate) fn forget(&self, number: u64) {
        self.cache.remove(&number);
    }

    /// Returns whether the cache keeps this file open.
    #[cfg(test)]
    pub(crate) fn has(&self, number: u64) -> bool {
        self.cache.contains_key(&number)
    }

    /// Returns the number of files that the cache keeps open.
    pub(crate) fn open_count(&self) -> usize {
        self.cache.len()
    }
}
