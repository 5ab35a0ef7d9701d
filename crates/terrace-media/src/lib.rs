//! Bytes that survive: persistent memory, files, and a simulator of both.
//!
//! A store keeps its tables in a [`Pool`], which is one mapping of persistent memory or of a file,
//! and some of its data in files behind the [`FileSystem`] trait. This crate writes bytes and makes
//! them durable; it knows nothing of keys and values. It contains all accesses to mapped memory
//! that the compiler cannot check.
//!
//! # What survives
//!
//! | medium   | detected by           | durable when                | process crash | power loss    |
//! |----------|-----------------------|-----------------------------|---------------|---------------|
//! | `Dax`    | a synchronous mapping | flushed, then fenced        | every store   | fenced stores |
//! | `Mapped` | any other file        | its page was synced         | every store   | synced pages  |
//! | `Dram`   | no file               | never                       | nothing       | nothing       |
//! | files    |                       | file, then directory synced | every write   | synced writes |
//!
//! - **Early durability.** A store may become durable at any moment after it was made, and in any
//!   order with other stores: caches evict lines and kernels write pages back at will. A flush
//!   guarantees only the *latest* moment. So a reference to bytes is stored only after the bytes
//!   are durable, and recovery must understand every state between two fences.
//! - **Atomicity.** Eight aligned bytes become durable atomically. A cache line (64 bytes) or a
//!   page may be torn, so anything longer than a word carries a checksum.
//! - **Fences are per thread.** A fence waits only for the flushes and streaming writes of its own
//!   thread.
//! - **Caches in the persistence domain.** If the platform reports that its caches are flushed on
//!   power loss, a fence alone is enough, and `Pool::instructions` shows it.
//! - **Forced.** `MediumChoice::ForceDax` executes the instructions of `Dax` on any mapping. That
//!   makes the mapping no more durable; `Pool::forced` and `Pool::describe` report it.
//!
//! Media may corrupt data, so readers verify what they read. If another program truncates a pool
//! file while it is mapped, the next access to a missing page kills the process.
//!
//! # Parts
//!
//! [`Region`] reads, flushes, fences and publishes; [`Claim`] writes bytes that it owns
//! exclusively; [`Bump`] allocates claims, from an [`Arena`] in DRAM or an [`Extent`] in a pool.
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
//! // From here on a root may refer to the extent.
//! pool.set_roots(&[(0, extent.off())])?;
//! assert_eq!(pool.region().bytes(pool.root(0), 5), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
#![allow(unsafe_code, reason = "this crate makes mapped memory safe to use")]

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
pub use pm::prefetch::{prefetch, prefetch_value};
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
