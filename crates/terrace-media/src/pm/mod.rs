//! Mapped memory with a known persistence domain, and everything that makes its bytes durable.
//!
//! `Region` reads, flushes and publishes; `arch` knows the instructions; `count` counts what was
//! made durable and why; `emulate` slows writes down to persistent memory's proportions; `map`
//! owns the address space; `prefetch` asks for bytes ahead. Plain bytes are written only through
//! `Claim` (`extent/claim.rs`).

pub(crate) mod arch;
pub(crate) mod arena;
pub(crate) mod count;
pub(crate) mod emulate;
pub(crate) mod map;
pub(crate) mod persist;
pub(crate) mod prefetch;
pub(crate) mod region;
#[cfg(test)]
mod tests;
