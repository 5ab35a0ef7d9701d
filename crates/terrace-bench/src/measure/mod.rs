//! This folder is what a phase of a run is measured by, beside the clock of its operations: what it
//! costs the process, what it leaves on the medium, and what a killed store takes to come back.
//!
//! `usage.rs` asks the kernel for processor time and memory, `space.rs` weighs the files against the
//! data that lives in them, `watch.rs` follows a workload second by second, `kill.rs` is the phase
//! `killreopen`.

pub(crate) mod kill;
mod kinds;
mod space;
mod usage;
pub(crate) mod watch;

pub use kill::{RecoveryReport, victim};
pub use kinds::{KindReport, OpKind};
pub use space::SpaceReport;
pub use usage::UsageReport;

pub(crate) use space::PoolFile;
pub(crate) use usage::Usage;
