//! Measurements of a phase in addition to the time of its operations: its cost for the process, its
//! space on the medium, and the recovery time of a killed store.
//!
//! `usage.rs` reads processor time and memory from the kernel, `space.rs` compares files with live
//! data, `watch.rs` follows a workload by intervals, `kill.rs` is the phase `killreopen`.

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
