//! Bytes that survive: persistent memory, files, and a simulator of both.
#![allow(
    unsafe_code,
    reason = "this crate is where mapped memory becomes safe to use"
)]

mod clock;
mod extent;
mod fs;
mod pm;
mod pool;
pub mod sim;

pub use clock::{Clock, ManualClock, SystemClock};
pub use extent::claim::{Bump, Claim};
pub use extent::{AllocError, Extent, Span};
pub use fs::fault::FaultFs;
pub use fs::os::OsFs;
pub use fs::{File, FileLock, FileSystem, OpenMode};
pub use pm::arena::Arena;
pub use pm::count::{Counts, PersistCounts, Purpose};
pub use pm::emulate::Emulation;
pub use pm::region::Region;
pub use pool::{
    Backing, Medium, MediumChoice, Pool, PoolConfig, PoolError, PoolFaults, PoolUsage, Prefault,
    Shutdown,
};
pub use sim::{Image, Machine, PersistPoint, Survive};
