//! Mapped memory with a known persistence domain, and all code that makes its bytes durable.
//!
//! `Region` reads, flushes and publishes; `medium` lists the kinds of memory; `arch` contains the
//! instructions; `count` counts durable writes by purpose; `emulate` adds the cost of persistent
//! memory to writes; `map` owns the address space, and `map_miri` replaces it under Miri;
//! `prefetch` loads bytes ahead of use. Plain bytes are written only through `Claim` (`claim.rs`).

pub(crate) mod arch;
pub(crate) mod arena;
pub(crate) mod claim;
pub(crate) mod count;
pub(crate) mod emulate;
#[cfg(not(miri))]
pub(crate) mod map;
#[cfg(miri)]
pub(crate) mod map_miri;
pub(crate) mod medium;
pub(crate) mod persist;
pub(crate) mod prefetch;
pub(crate) mod region;
#[cfg(test)]
mod tests;

#[cfg(miri)]
pub(crate) use map_miri as map;
