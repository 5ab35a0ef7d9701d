//! Caches of file blocks and of open files, each within a limit.
//!
//! Data, index and filter blocks share one budget. Blocks that a reader keeps for its lifetime are
//! *pinned*: they are held outside the cache, and their bytes are subtracted from the cache's
//! capacity, so that both together stay within the budget.
//!
//! A block in use by a read stays in memory until the read ends, even if the cache evicts it. Those
//! bytes exceed the budget, by about one block per running read.

#![cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "the engine will use it for multi-get, which checks the cache before it reads"
    )
)]

mod block;
mod file;
#[cfg(test)]
mod tests;

pub(crate) use block::{BlockCache, BlockKey, Pin, Weigh};
pub(crate) use file::FileCache;
