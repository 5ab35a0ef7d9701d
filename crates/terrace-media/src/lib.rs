//! Bytes that survive: persistent memory, files, and a simulator of both.
//!
//! A store keeps its tables in a [`Pool`], which is one mapping of persistent memory or of a file,
//! and some of its data in files behind the [`FileSystem`] trait. This crate knows how bytes get
//! there and when they are durable; it knows nothing of keys and values. All access to mapped
//! memory that the compiler cannot check is inside of it.
//!
//! # What survives
//!
//! | medium   | found by                     | durable when                | process crash | power loss          |
//! |----------|------------------------------|-----------------------------|---------------|---------------------|
//! | `Dax`    | a synchronous mapping        | flushed, then fenced        | every store   | what was fenced     |
//! | `Mapped` | any other file               | its page was synced         | every store   | what was synced     |
//! | `Dram`   | no file                      | never                       | nothing       | nothing             |
//! | files    |                              | file, then folder synced    | every write   | what was synced     |
//!
//! - **Before you ask.** A store may become durable at any moment after it was made, in any order
//!   with other stores: caches evict lines and kernels write pages back as they like. Flushing says
//!   *by when*, never *not before*. So whatever makes bytes reachable is stored only after those
//!   bytes are durable, and every state between two fences is one that recovery understands.
//! - **Units.** Eight aligned bytes are durable together or not at all; a line (64 bytes) is not
//!   promised to be, nor is a page. Anything longer carries a checksum.
//! - **Own fences.** A fence waits for the flushes and streaming writes of its own thread only.
//! - **Caches in the persistence domain.** Where the platform says that its caches are flushed on
//!   power loss, a fence alone is enough, and `Pool::instructions` says so.
//! - **Forced.** `MediumChoice::ForceDax` executes the instructions of `Dax` on any mapping. That
//!   survives what `Mapped` survives, no more; `Pool::forced` and `Pool::describe` tell.
//!
//! Nobody promises that media keep what they were given: whoever reads data back checks it. Nobody
//! promises that a file stays as long as it is: a pool file that another program cuts off while it
//! is mapped ends the process at the next access.
//!
//! # Parts
//!
//! [`Region`] reads, flushes, fences and publishes; [`Claim`] writes bytes that nobody else may;
//! [`Bump`] hands claims out; [`Arena`] is their home in DRAM and [`Extent`] the one in a pool.
//! [`OsFs`] and [`FaultFs`] are file systems. [`Machine`] simulates memory and files together and
//! crashes them; [`PoolFaults`] and [`FaultFs`] make chosen operations fail.
//!
//! ```
//! use terrace_media::{Backing, Pool, PoolConfig, Purpose};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::create(PoolConfig::new(Backing::Anonymous, 1 << 20))?;
//! let extent = pool.alloc(64)?;
//! let mut claim = extent.claim(0, 5).expect("the extent has five bytes");
//! claim.write_streaming(0, b"hello", Purpose::Log);
//! pool.region().fence(Purpose::Log);
//! // From here on a root may name the extent.
//! pool.set_roots(&[(0, extent.off())])?;
//! assert_eq!(pool.region().bytes(pool.root(0), 5), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
#![allow(
    unsafe_code,
    reason = "this crate is where mapped memory becomes safe to use"
)]

mod clock;
#[cfg(feature = "decoders")]
pub mod decoder;
mod fs;
mod pm;
mod pool;
mod process;
mod sched;
pub mod sim;
mod stopwatch;

pub use clock::{Clock, ManualClock, SystemClock};
pub use fs::append::Appender;
pub use fs::fault::{Effect, FaultFs};
pub use fs::os::OsFs;
pub use fs::overlay::OverlayFs;
pub use fs::quota::QuotaFs;
pub use fs::{Advice, File, FileLock, FileSystem, OpenMode};
pub use pm::arena::Arena;
pub use pm::claim::{Bump, Claim};
pub use pm::count::{Counts, PersistCounts, Purpose};
pub use pm::emulate::Emulation;
pub use pm::map::anonymous_bytes;
pub use pm::medium::Medium;
pub use pm::prefetch::prefetch;
pub use pm::region::Region;
#[cfg(feature = "decoders")]
pub use pool::decoders::decoders;
pub use pool::{
    AllocError, Backing, Extent, MediumChoice, Pool, PoolConfig, PoolError, PoolFaults, PoolHeader,
    PoolUsage, Prefault, Shutdown, Span, random_id,
};
pub use process::{ForkedChild, fork_to, process_id};
pub use sched::ask_for_slices;
pub use sim::{Image, Machine, PersistPoint, Survive};
pub use stopwatch::Stopwatch;
