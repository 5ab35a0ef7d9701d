//! Test tools for Terrace: scripts and their oracle, crash drivers, histories of concurrent calls,
//! and damage.
//!
//! The tests of the store run these with few seeds. The binary of this crate runs them at length.

mod calls;
pub mod campaign;
#[cfg(feature = "canary")]
pub mod canaries;
pub mod crash;
pub mod damage;
pub mod faults;
pub mod fuzz;
pub mod golden;
pub mod guest;
pub mod heap;
pub mod history;
pub mod kill;
pub mod linear;
pub mod lists;
pub mod metamorphic;
pub mod model;
pub mod moments;
pub mod oracle;
mod panics;
pub mod place;
pub mod request;
pub mod script;
pub mod seeds;
pub mod settings;
pub mod shrink;
pub mod sizes;
pub mod soak;
pub mod space;
#[cfg(feature = "canary")]
pub mod stalled;
pub mod strangers;
pub mod torture;
pub mod value;
pub mod watchdog;
pub mod world;
mod writes;
