//! Mapped memory with a known persistence domain, and everything that makes its bytes durable.
//!
//! `Region` reads, flushes and publishes; `medium` names the kinds of memory; `arch` knows the
//! instructions; `count` counts what was made durable and why; `emulate` slows writes down to
//! persistent memory's proportions; `map` owns the address space, and `map_miri` what stands in for
//! it under Miri; `prefetch` asks for bytes ahead. Plain bytes are written only through `Claim`
//! (`claim.rs`).

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
