//! This file is the cache of open files: each opened once, the least useful closed beyond a limit of
//! their number, or of the memory that they hold.

use std::sync::Arc;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// With fewer files than this one shard is enough, and the limit is exact.
const SHARDED_FROM: usize = 512;
const SHARDS: usize = 8;
/// Fewer files cannot be divided into those used often and those opened last.
const FILES_MIN: usize = 4;
/// The part of the limit that is for files used often; a file just opened never has to wait for it.
const OFTEN: f64 = 0.75;

/// What a file counts: at least one part of the limit on their number, and more if it holds more memory.
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

/// Open files by number. A file that a reader still holds stays open after the cache has dropped it.
pub(crate) struct FileCache<F> {
    cache: Inner<F>,
}

impl<F> FileCache<F> {
    /// A cache that keeps at most `files_max` files open by itself, and four if that is
    /// fewer.
    #[cfg(test)]
    pub(crate) fn new(files_max: usize) -> FileCache<F> {
        FileCache::within(files_max, u64::MAX, |_| 0)
    }

    /// The same for files that together hold at most `bytes_max`, each as many as `bytes` says; one
    /// that holds more than all may is not kept open.
    pub(crate) fn within(files_max: usize, bytes_max: u64, bytes: fn(&F) -> u64) -> FileCache<F> {
        let shards = if files_max < SHARDED_FROM { 1 } else { SHARDS };
        let files_max = (files_max / shards * shards).max(FILES_MIN);
        // In bytes, of which each file counts its part at least; without a limit of bytes, in files.
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

    /// Whether the cache keeps this file open.
    #[cfg(test)]
    pub(crate) fn has(&self, number: u64) -> bool {
        self.cache.contains_key(&number)
    }

    /// How many files the cache keeps open.
    pub(crate) fn open_count(&self) -> usize {
        self.cache.len()
    }
}
