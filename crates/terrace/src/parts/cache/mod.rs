//! Caches: blocks of files in memory, and files that are open, each within a limit.
//!
//! Blocks live in one budget, whatever they hold: data, indexes and filters. What a reader keeps for
//! as long as it is open is *pinned*: it lies outside of the cache, and its bytes are taken off what
//! the cache may hold, so that both together stay within the budget.
//!
//! A block that a read is using stays in memory until the read ends, also when the cache has dropped
//! it; those bytes are beyond the budget, and as few as there are reads.

#![cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "multi-get, which looks before it reads, reaches the engine next"
    )
)]

mod block;
mod file;
#[cfg(test)]
mod tests;

pub(crate) use block::{BlockCache, BlockKey, Pin, Weigh};
pub(crate) use file::FileCache;
