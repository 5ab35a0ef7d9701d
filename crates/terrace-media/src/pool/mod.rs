//! The pool: one file, device or piece of memory, mapped once, from which extents are allocated.
//!
//! A pool is created with a cap and grows up to it; its base never moves. It starts with the
//! superblock (`layout.rs`, `superblock.rs`); the rest is extents. Its kind of memory is detected
//! when it is opened (`medium.rs`).
//!
//! Invariants
//!   P1  Bytes are allocated in the backing before they are committed in the mapping.
//!   P2  A span is handed out once until its extent is dropped.
//!   P3  The superblock's `committed` is never above the length of the backing.
//!
//! All methods may be called from any thread.

mod alloc;
mod backing;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
pub(crate) mod error;
mod extent;
pub(crate) mod faults;
mod header;
mod layout;
mod medium;
mod prepared;
mod refusal;
mod space;
mod span;
mod superblock;
#[cfg(test)]
mod tests;

pub use backing::{Backing, random_id};
pub use error::PoolError;
pub use extent::Extent;
pub use faults::PoolFaults;
pub use header::PoolHeader;
pub use medium::{MediumChoice, Prefault};
pub use space::PoolUsage;
pub use span::{AllocError, Span};

use crate::pm::count::{Counts, Purpose};
use crate::pm::emulate::{Emulation, Emulator};
use crate::pm::medium::Medium;
use crate::pm::persist::{Extras, Mapping};
use crate::pm::region::Region;
use backing::{Opened, Store};
use layout::{FLAG_CLEAN, FLAG_DAX, FLAG_POWER_LOST, HEADER_BYTES, ROOTS};
use parking_lot::Mutex;
use refusal::{check, refuse};
use space::{Fit, Space};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use superblock::{NoSuperblock, Superblock};

/// The configuration for creating or opening a pool.
#[derive(Clone)]
pub struct PoolConfig {
    /// The backing of the pool.
    pub backing: Backing,
    /// The maximum size in bytes. It may be raised when the pool is reopened.
    pub cap_bytes: u64,
    /// How the medium is chosen.
    pub medium: MediumChoice,
    /// The time at which pages are faulted in.
    pub prefault: Prefault,
    /// The write costs to emulate; none by default.
    pub emulation: Option<Emulation>,
    /// The bytes by which the backing grows, large enough to make growing rare.
    pub grow_bytes: u64,
    /// The unit of allocation, a power of two of at least 4 KiB, fixed when the pool is created.
    pub granule: u64,
    /// The faults to inject; none by default.
    pub faults: Option<Arc<PoolFaults>>,
    /// The identity of a new pool; random by default.
    pub uuid: Option<[u8; 16]>,
    /// Opens a pool file without changing it: stores stay in memory. Off by default.
    pub private: bool,
}

impl PoolConfig {
    /// Returns a configuration with the defaults for all other fields.
    pub fn new(backing: Backing, cap_bytes: u64) -> PoolConfig {
        PoolConfig {
            backing,
            cap_bytes,
            medium: MediumChoice::Auto,
            prefault: Prefault::Ahead,
            emulation: None,
            grow_bytes: 64 << 20,
            granule: 16 << 10,
            faults: None,
            uuid: None,
            private: false,
        }
    }

    /// Checks all parameters that do not depend on the content of the media.
    fn validate(&self) -> Result<(), PoolError> {
        let mut problems = Vec::new();
        if !self.granule.is_power_of_two() || !(4096..=1 << 30).contains(&self.granule) {
            problems.push(format!(
                "the granule is {} bytes, but must be a power of two from 4096 to 2^30",
                self.granule
            ));
        } else if self.cap_bytes < first_extent(self.granule) + self.granule {
            problems.push(format!(
                "the pool size is {} bytes, but with granules of {} bytes it must be at least {}",
                self.cap_bytes,
                self.granule,
                first_extent(self.granule) + self.granule
            ));
        }
        if self.cap_bytes > 1 << 46 {
            problems.push(format!(
                "the pool size is {} bytes, but must be at most 2^46",
                self.cap_bytes
            ));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(PoolError::Invalid(problems.join("; ")))
        }
    }

    /// Returns the cap in whole granules.
    fn cap(&self) -> u64 {
        self.cap_bytes - self.cap_bytes % self.granule
    }
}

/// Returns the offset of the first extent.
fn first_extent(granule: u64) -> u64 {
    HEADER_BYTES.next_multiple_of(granule)
}

/// The state in which the pool was found when it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shutdown {
    /// The pool was closed or has just been created: all its bytes are durable.
    Clean,
    /// The last process ended without closing it, in this boot: all stores are present.
    Crashed,
    /// Power was lost or the machine restarted while the pool was open: only durable bytes are
    /// present. Remains until `mark_recovered` or `mark_clean`.
    PowerLost,
}

/// The superblock's state in DRAM.
struct Super {
    state: Superblock,
    /// The current slot.
    current: usize,
    /// A write failed, so the state on the media is unknown and nothing more is written.
    failed: bool,
}

/// The size from which a description of a pool says whether its pages are huge.
const PAGES_MATTER_BYTES: u64 = 64 << 20;

/// The state shared by all handles and extents of a pool.
pub(crate) struct PoolInner {
    region: Region,
    path: PathBuf,
    medium: Medium,
    forced: bool,
    shutdown: Shutdown,
    pages_lost: bool,
    superblock: Mutex<Super>,
    space: Space,
    faults: Option<Arc<PoolFaults>>,
    store: Store,
    /// Whether the kernel reported huge pages, and the committed bytes at that time.
    huge_pages: Mutex<Option<(bool, u64)>>,
}

/// An open pool. Clones are handles to the same pool, which closes with its last handle or extent.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<PoolInner>,
}

impl Pool {
    /// Creates a pool.
    ///
    /// # Errors
    /// `Exists` if there already is a pool, `Foreign` if there is something else, `Invalid` for an
    /// invalid configuration, `Locked`, `Full`, `Io`.
    pub fn create(config: PoolConfig) -> Result<Pool, PoolError> {
        config.validate()?;
        let opened = backing::create(
            &config.backing,
            config.cap(),
            config.medium,
            config.faults.as_deref(),
        )?;
        let (region, opened) = map(opened, &config, 0);
        let abandon = |e| {
            opened.store.abandon();
            e
        };
        let path = config.backing.path();
        let io = |op| {
            let path = path.clone();
            move |source| PoolError::Io { path, op, source }
        };
        let first = first_extent(config.granule);
        let initial = first.max(config.grow_bytes.min(config.cap()));
        let initial = initial.next_multiple_of(config.granule).min(config.cap());
        let mut committed = opened.committed;
        if committed < initial {
            let least = first.next_multiple_of(config.granule).min(config.cap());
            let faults = config.faults.as_deref();
            committed = space::grow(&opened.store, faults, committed, (least, initial))
                .map_err(|source| full_or_io(&path, least, source))
                .map_err(abandon)?;
        }
        let committed = committed.min(config.cap());
        region.map().set_committed(committed);
        match superblock::read(&region) {
            Err(NoSuperblock::Empty) => {}
            Ok(_) | Err(NoSuperblock::Newer(_)) => {
                return Err(PoolError::Exists { path: path.clone() });
            }
            Err(why) => return Err(refuse(&path, why)),
        }
        let state = Superblock {
            compat: 0,
            ro_compat: 0,
            incompat: 0,
            uuid: match config.uuid {
                Some(uuid) => uuid,
                None => opened
                    .store
                    .new_uuid()
                    .map_err(io("create an id for"))
                    .map_err(abandon)?,
            },
            granule: config.granule,
            cap: config.cap(),
            committed,
            boot_id: opened.boot_id,
            flags: dax_flag(opened.medium),
            generation: 1,
            roots: [0; ROOTS],
        };
        superblock::create(&region, &state)
            .map_err(io("initialise"))
            .map_err(abandon)?;
        opened
            .store
            .adopt_name(config.faults.as_deref())
            .map_err(io("name"))
            .map_err(abandon)?;
        Ok(Pool::start(
            opened,
            region,
            &config,
            state,
            0,
            Shutdown::Clean,
            false,
        ))
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// `NotFound`, `Locked`, `Foreign`, `Newer`, `Unsupported`, `Corrupt`, `Truncated`; `Invalid`
    /// if the configuration is invalid or its size is below that of the pool; `Io`.
    pub fn open(config: PoolConfig) -> Result<Pool, PoolError> {
        config.validate()?;
        let path = config.backing.path();
        let private = config.private;
        let opened = backing::open(
            &config.backing,
            config.cap(),
            config.medium,
            private,
            config.faults.as_deref(),
        )?;
        let (region, opened) = map(opened, &config, 0);
        region
            .map()
            .set_committed(opened.committed.min(config.cap()));
        let found = superblock::read(&region);
        if let Err(NoSuperblock::Empty) = found
            && matches!(config.backing, Backing::Simulated(_))
        {
            return Err(PoolError::NotFound { path });
        }
        let (mut state, current) = found.map_err(|why| refuse(&path, why))?;
        check(&path, &config, &state, opened.committed)?;
        region
            .map()
            .set_committed(opened.committed - opened.committed % state.granule);

        let shutdown = if state.flags & FLAG_CLEAN != 0 {
            Shutdown::Clean
        } else if state.lost_power(opened.boot_id) {
            Shutdown::PowerLost
        } else {
            Shutdown::Crashed
        };
        let dax = dax_flag(opened.medium);
        let was_dax = state.flags & FLAG_DAX;
        if shutdown == Shutdown::Crashed && dax > was_dax && !private {
            // PERSIST: pages that a session on `Mapped` left unwritten, before this session on
            // `Dax` refers to them without a sync. Reversed, a power loss could lose old nodes that
            // new links refer to.
            opened.store.sync_all().map_err(|source| PoolError::Io {
                path: path.clone(),
                op: "sync",
                source,
            })?;
        }
        let pages_lost = shutdown == Shutdown::PowerLost && was_dax == 0;
        state.flags = match shutdown {
            // A session on `Mapped` clears the `Dax` flag until the loss is repaired.
            Shutdown::PowerLost => FLAG_POWER_LOST | (was_dax & dax),
            Shutdown::Clean | Shutdown::Crashed => dax,
        };
        state.boot_id = opened.boot_id;
        state.cap = state.cap.max(config.cap());
        state.generation += 1;
        // PERSIST: the state that was read, before it is overwritten: another process of this boot
        // may have left it without making it durable. Then the cleared clean flag, before anyone
        // can change the pool. Reversed, a crash could leave a changed pool that is marked as
        // closed.
        superblock::settle(&region, current)
            .and_then(|()| superblock::write(&region, &state, current))
            .map_err(|source| PoolError::Io {
                path,
                op: "update the superblock of",
                source,
            })?;
        Ok(Pool::start(
            opened, region, &config, state, current, shutdown, pages_lost,
        ))
    }

    fn start(
        opened: Opened,
        region: Region,
        config: &PoolConfig,
        state: Superblock,
        current: usize,
        shutdown: Shutdown,
        pages_lost: bool,
    ) -> Pool {
        let granule = state.granule;
        let cap = config.cap_bytes.min(opened.memory.len() as u64);
        let space = Space::new(first_extent(granule), cap - cap % granule, granule, config);
        let inner = PoolInner {
            region,
            path: config.backing.path(),
            medium: opened.medium,
            forced: opened.forced,
            shutdown,
            pages_lost,
            superblock: Mutex::new(Super {
                state,
                current,
                failed: false,
            }),
            space,
            faults: config.faults.clone(),
            store: opened.store,
            huge_pages: Mutex::default(),
        };
        if config.prefault == Prefault::All {
            // Prefaulting is for speed only: the first use reports a failure.
            let _ = inner.prefault_all();
        }
        Pool {
            inner: Arc::new(inner),
        }
    }

    /// Returns the pool's region.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.inner.region
    }

    /// Returns the medium of the pool.
    pub fn medium(&self) -> Medium {
        self.inner.medium
    }

    /// Returns whether `Dax` instructions were forced on a medium not known to be persistent.
    pub fn forced(&self) -> bool {
        self.inner.forced
    }

    /// Returns the instructions that make stores durable: `clwb+sfence`, `sfence`, `msync`,
    /// `simulated`, `none`, ...
    pub fn instructions(&self) -> &'static str {
        match self.inner.medium {
            Medium::Mapped => "msync",
            Medium::Dax if matches!(self.inner.store, Store::Simulated(_)) => "simulated",
            Medium::Dax | Medium::Dram => self.region().map().flush_kind().name(),
        }
    }

    /// Describes the medium in one line, for reports: `dax (forced), clwb+sfence, huge pages,
    /// path`. Of small pools, whose page size costs little, it leaves out the pages.
    pub fn describe(&self) -> String {
        let forced = if self.inner.forced { " (forced)" } else { "" };
        let pages = match self.has_huge_pages() {
            Some(true) => ", huge pages",
            Some(false) => ", 4 KiB pages",
            None => "",
        };
        let (medium, path) = (self.inner.medium, self.inner.path.display());
        format!("{medium}{forced}, {}{pages}, {path}", self.instructions())
    }

    /// Asks the kernel once for each size of the pool, and never for a small or simulated one: the
    /// answer costs a walk over all mappings of the process, during which none of them can change.
    fn has_huge_pages(&self) -> Option<bool> {
        let map = self.region().map();
        let committed = map.committed();
        if matches!(self.inner.store, Store::Simulated(_)) || committed < PAGES_MATTER_BYTES {
            return None;
        }
        let mut known = self.inner.huge_pages.lock();
        match *known {
            Some((huge, at)) if huge || at == committed => Some(huge),
            _ => {
                let huge = medium::has_huge_pages(map.base() as usize);
                *known = Some((huge, committed));
                Some(huge)
            }
        }
    }

    /// Allocates an extent of `len` bytes, rounded up to granules, at the lowest free offset,
    /// preferring pages already faulted in. Grows the backing if necessary. Bytes are not zeroed.
    ///
    /// # Errors
    /// `Full` if there is no space under the cap or on the device, `Io` if growing failed
    /// otherwise.
    pub fn alloc(&self, len: u64) -> Result<Arc<Extent>, AllocError> {
        let span = self.inner.allocate(len, Fit::Lowest)?;
        Ok(Extent::new(span, Arc::clone(&self.inner)))
    }

    /// Takes a span that was allocated before the pool was opened.
    ///
    /// # Errors
    /// `Overlap` if part of it is in use, `OutOfRange` if it cannot be an extent of this pool.
    pub fn adopt(&self, span: Span) -> Result<Arc<Extent>, AllocError> {
        self.inner.space.adopt(span, self.region().end())?;
        Ok(Extent::new(span, Arc::clone(&self.inner)))
    }

    /// Faults an extent's pages in, unless that was done before or the pool was opened with
    /// `Prefault::None`.
    pub fn prefault(&self, extent: &Extent) {
        // Prefaulting is for speed only: a failure appears, if at all, at the first store.
        let _ = self
            .inner
            .space
            .populate(extent.span(), self.region().map());
    }

    /// Does the same for `len` bytes at `at` of an extent.
    pub fn prefault_part(&self, extent: &Extent, at: u64, len: u64) {
        let (at, end) = (
            at.min(extent.len()),
            at.saturating_add(len).min(extent.len()),
        );
        let span = Span {
            off: extent.off() + at,
            len: end - at,
        };
        let _ = self.inner.space.populate(span, self.region().map());
    }

    /// Returns the space usage.
    pub fn usage(&self) -> PoolUsage {
        self.inner.space.usage(self.region().end())
    }

    /// Returns a root word.
    ///
    /// # Panics
    /// If `i` is not below 16.
    pub fn root(&self, i: usize) -> u64 {
        self.inner.superblock.lock().state.roots[i]
    }

    /// Changes root words, all or none, durably.
    ///
    /// # Errors
    /// `Io` if a sync failed, now or in an earlier call; then it is unknown which state the next
    /// open finds.
    ///
    /// # Panics
    /// If an index is not below 16.
    pub fn set_roots(&self, changes: &[(usize, u64)]) -> Result<(), PoolError> {
        self.inner.update(|state| {
            for &(i, root) in changes {
                state.roots[i] = root;
            }
        })
    }

    /// Returns the identity of the pool, assigned when it was created.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.superblock.lock().state.uuid
    }

    /// Returns the state in which the pool was found when it was opened.
    pub fn shutdown(&self) -> Shutdown {
        self.inner.shutdown
    }

    /// Returns whether a power loss may have lost pages that were only fenced: the pool was on
    /// `Mapped` when power was lost, regardless of its medium now.
    pub fn pages_lost(&self) -> bool {
        self.inner.pages_lost
    }

    /// Makes everything durable and records that the damage of a power loss is repaired: after a
    /// process crash in this boot, the next open reports `Crashed`. Without this call it reports
    /// `PowerLost` again.
    pub fn mark_recovered(&self) -> Result<(), PoolError> {
        if self.inner.superblock.lock().state.flags & FLAG_POWER_LOST == 0 {
            return Ok(());
        }
        let region = self.region();
        if self.inner.medium == Medium::Dax {
            let len = (region.end() - region.origin()) as usize;
            region.persist(region.origin(), len, Purpose::Superblock);
        }
        // PERSIST: the repairs before the flag. Reversed, a second power loss could leave a pool
        // that is marked as repaired and only half is.
        self.sync_all().map_err(|source| PoolError::Io {
            path: self.inner.path.clone(),
            op: "sync",
            source,
        })?;
        self.inner
            .update(|state| state.flags = dax_flag(self.inner.medium))
    }

    /// Syncs the pool and marks it as closed: the next open reports `Clean`. The caller changes
    /// nothing afterwards.
    pub fn mark_clean(&self) -> Result<(), PoolError> {
        self.sync_all().map_err(|source| PoolError::Io {
            path: self.inner.path.clone(),
            op: "sync",
            source,
        })?;
        // PERSIST: everything else before the flag. Reversed, a crash could leave a pool that is
        // marked clean and is not.
        self.inner.update(|state| state.flags = FLAG_CLEAN)
    }

    /// Syncs all pages of the pool. On `Dax`, stores need a flush and a fence as well.
    pub fn sync_all(&self) -> io::Result<()> {
        self.region().map().only_while_syncs_succeed(|| {
            if let Some(faults) = &self.inner.faults {
                faults.sync()?;
            }
            self.inner.store.sync_all()
        })
    }

    /// Returns the counts of bytes made durable through this pool so far.
    pub fn counts(&self) -> Counts {
        self.region().map().counters().read()
    }

    /// Lets other processes open the pool before the last handle is dropped. From now on nothing
    /// may be written, and reads may see a change in progress.
    pub fn unlock(&self) {
        self.inner.store.unlock();
    }

    /// Makes the backing grow ahead of need: from now on it keeps free space for a quarter of the
    /// allocated bytes, within the cap and the space of the device. When the device is full, this
    /// reserve is left for the work that frees space. `needed` bytes will be allocated soon; if the
    /// device has no space for them either, [`PoolUsage::limit`] shows it.
    pub fn grow_ahead(&self, needed: u64) {
        self.inner.start_growing_ahead(needed);
    }

    /// Tries to grow again after the device was full. Returns whether that made space; `false` if
    /// the device was not full.
    pub fn look_for_room(&self) -> bool {
        self.inner.look_for_room()
    }

    /// Truncates the backing after the last extent. To be called after recovery, once all live
    /// extents are adopted and no one uses bytes outside of extents.
    pub fn trim(&self) {
        self.inner.trim();
    }
}

/// Returns the superblock flag for the medium.
fn dax_flag(medium: Medium) -> u64 {
    match medium {
        Medium::Dax => FLAG_DAX,
        Medium::Mapped | Medium::Dram => 0,
    }
}

/// Creates the region of an open backing with `committed` bytes.
fn map(opened: Opened, config: &PoolConfig, committed: u64) -> (Region, Opened) {
    let extras = Extras {
        hook: opened.hook.clone(),
        emulator: config
            .emulation
            .map(|emulation| Arc::new(Emulator::new(emulation))),
        faults: config.faults.clone(),
    };
    let private = matches!(opened.store, Store::Private { .. });
    let needs_sync = opened.medium == Medium::Mapped && !private;
    let memory = Arc::clone(&opened.memory);
    let map = Mapping::new(memory, committed, opened.flush, needs_sync, extras);
    (Region::new(Arc::new(map), 0), opened)
}

fn full_or_io(path: &std::path::Path, wanted: u64, source: io::Error) -> PoolError {
    let path = path.to_owned();
    if space::is_full(&source) {
        PoolError::Full { path, wanted }
    } else {
        PoolError::Io {
            path,
            op: "grow",
            source,
        }
    }
}
