//! One simulated machine: persistent memory and files whose unsynced parts can be lost together.
//!
//! The working memory is ordinary memory that the pool maps, so stores cost nothing and none is
//! missed. The durable image is separate. On `Dax`, a flush records the content of lines and a
//! fence of the same thread copies them into the image; on `Mapped`, a sync copies pages. Files and
//! directories likewise have a working and a durable state. At a crash the two are compared, and
//! `Survive` decides which of the differences reached the media.
//!
//! Not simulated: values of a word between two flushes, which might have reached the media on their
//! own, and a loss of less than whole sectors inside a page or a file block.
//!
//! Every fence and sync is a *persist point*. A hook sees each one just before it takes effect, and
//! may build images there and boot other machines from them.
//!
//! Invariants
//!   X1  Machines share no state; images share only immutable content.
//!   X2  The hook runs with no lock of the machine held, and not for operations made inside of it
//!       on the same machine.

mod choose;
mod fs;
mod image;
mod pm;
#[cfg(test)]
mod tests;

pub use choose::Survive;
pub use image::Image;

use crate::fs::FileSystem;
use crate::pm::count::Purpose;
use crate::pm::map::Memory;
use crate::pm::medium::Medium;
use crate::pm::persist::Hook;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A moment at which something is about to become durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PersistPoint {
    /// The number of earlier persist points since the machine started.
    pub index: u64,
    /// The pending operation: `fence`, `pool sync`, `file sync`, `rename`, `folder sync`.
    pub what: &'static str,
    /// The purpose of a fence.
    pub purpose: Option<Purpose>,
}

type PersistHook = Box<dyn FnMut(&Machine, PersistPoint) + Send>;

/// A simulated machine. Clones are handles to the same one.
#[derive(Clone)]
pub struct Machine {
    inner: Arc<Inner>,
}

struct Inner {
    medium: Medium,
    boot_id: [u8; 16],
    boots: u64,
    points: AtomicU64,
    pool_open: AtomicBool,
    hook: Mutex<Option<Arc<Mutex<PersistHook>>>>,
    random: Mutex<fastrand::Rng>,
    pm: Mutex<pm::Pm>,
    files: Mutex<fs::Files>,
}

thread_local! {
    /// The machines whose hooks this thread is running.
    static INSIDE: RefCell<Vec<*const Inner>> = const { RefCell::new(Vec::new()) };
}

impl Machine {
    /// Creates a machine with empty memory and no files. The same seed gives the same machine.
    ///
    /// # Panics
    /// If the medium is `Dram`, which loses everything.
    pub fn new(seed: u64, medium: Medium) -> Machine {
        assert!(
            medium != Medium::Dram,
            "a simulated pool is on Dax or Mapped"
        );
        Machine::assemble(
            seed,
            medium,
            None,
            0,
            pm::Pm::default(),
            fs::Files::default(),
        )
    }

    fn assemble(
        seed: u64,
        medium: Medium,
        boot_id: Option<[u8; 16]>,
        boots: u64,
        pm: pm::Pm,
        files: fs::Files,
    ) -> Machine {
        let mut random = fastrand::Rng::with_seed(seed ^ boots.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let fresh = random.u128(..).to_le_bytes();
        Machine {
            inner: Arc::new(Inner {
                medium,
                boot_id: boot_id.unwrap_or(fresh),
                boots,
                points: AtomicU64::new(0),
                pool_open: AtomicBool::new(false),
                hook: Mutex::new(None),
                random: Mutex::new(random),
                pm: Mutex::new(pm),
                files: Mutex::new(files),
            }),
        }
    }

    /// Starts a machine from an image. After a crash image it is a different boot, which a pool
    /// reports as a power loss; after a process image it is the same boot.
    pub fn boot(image: Image, seed: u64) -> Machine {
        let Image {
            medium,
            boot_id,
            boots,
            pm,
            files,
        } = image;
        Machine::assemble(
            seed,
            medium,
            boot_id,
            boots + 1,
            pm::Pm::from_image(pm),
            files,
        )
    }

    /// As `boot`, with the pool on another medium from now on.
    ///
    /// # Panics
    /// If the medium is `Dram`, which loses everything.
    pub fn boot_on(mut image: Image, seed: u64, medium: Medium) -> Machine {
        assert!(
            medium != Medium::Dram,
            "a simulated pool is on Dax or Mapped"
        );
        image.medium = medium;
        Machine::boot(image, seed)
    }

    /// Returns the machine's file system.
    pub fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::new(fs::SimFs::new(self.clone()))
    }

    /// Sets or removes the hook that is called at every persist point, just before it takes effect.
    /// The hook may build images of this machine and use others; it must not wait for other threads
    /// that use this one.
    pub fn on_persist(&self, hook: Option<PersistHook>) {
        *self.inner.hook.lock() = hook.map(|hook| Arc::new(Mutex::new(hook)));
    }

    /// Returns the number of persist points passed.
    pub fn points(&self) -> u64 {
        self.inner.points.load(Ordering::Relaxed)
    }

    /// Returns the medium of the machine's persistent memory.
    pub fn medium(&self) -> Medium {
        self.inner.medium
    }

    /// Returns an image of what the media could hold if power failed now.
    pub fn crash_image(&self, survive: Survive) -> Image {
        let mut chooser = choose::Chooser::new(survive);
        // Memory and files are imaged in sequence, so concurrent operations of other threads are
        // part of the crash.
        let pm = self.inner.pm.lock().crash(self.inner.medium, &mut chooser);
        let files = self.inner.files.lock().crash(&mut chooser);
        Image {
            medium: self.inner.medium,
            boot_id: None,
            boots: self.inner.boots,
            pm,
            files,
        }
    }

    /// Returns an image for each subset of the changes that are not durable yet, as left by a power
    /// loss now; `None` if there are more than `pending_max` changes.
    pub fn crash_images(&self, pending_max: u32) -> Option<Vec<Image>> {
        let mut chooser = choose::Chooser::new(Survive::Chosen(0));
        self.inner.pm.lock().crash(self.inner.medium, &mut chooser);
        self.inner.files.lock().crash(&mut chooser);
        let pending = chooser.decided();
        let image = |subset| self.crash_image(Survive::Chosen(subset));
        (pending <= pending_max.min(63)).then(|| (0..1 << pending).map(image).collect())
    }

    /// Returns an image of what the next process finds if this one is killed now: all stores, in
    /// the same boot. Changes that are not durable are still lost if power fails before they become
    /// so.
    pub fn process_image(&self) -> Image {
        let pm = self.inner.pm.lock().process(self.inner.medium);
        let files = self.inner.files.lock().process();
        Image {
            medium: self.inner.medium,
            boot_id: Some(self.inner.boot_id),
            boots: self.inner.boots,
            pm,
            files,
        }
    }

    /// Passes a persist point: calls the hook, unless this thread is running it.
    fn point(&self, what: &'static str, purpose: Option<Purpose>) {
        let me = Arc::as_ptr(&self.inner);
        if INSIDE.with_borrow(|inside| inside.contains(&me)) {
            return;
        }
        let index = self.inner.points.fetch_add(1, Ordering::Relaxed);
        let hook = self.inner.hook.lock().clone();
        if let Some(hook) = hook {
            let _leave = Leave::enter(me);
            (*hook.lock())(
                self,
                PersistPoint {
                    index,
                    what,
                    purpose,
                },
            );
        }
    }

    pub(crate) fn boot_id(&self) -> [u8; 16] {
        self.inner.boot_id
    }

    /// Returns an identity from the machine's random numbers.
    pub fn new_uuid(&self) -> [u8; 16] {
        self.inner.random.lock().u128(..).to_le_bytes()
    }

    pub(crate) fn hook(&self) -> Arc<dyn Hook> {
        Arc::new(self.clone())
    }

    /// Reserves the working memory for a pool until `pm_close`. Returns false if another pool has
    /// it.
    pub(crate) fn pm_take(&self) -> bool {
        !self.inner.pool_open.swap(true, Ordering::AcqRel)
    }

    /// Returns the working memory and its current length, which may exceed `cap`, to the pool that
    /// reserved it.
    pub(crate) fn pm_open(&self, cap: u64) -> io::Result<(Arc<Memory>, u64)> {
        self.inner.pm.lock().open(cap)
    }

    pub(crate) fn pm_close(&self) {
        self.inner.pool_open.store(false, Ordering::Release);
    }

    pub(crate) fn pm_resize(&self, len: u64) {
        self.inner.pm.lock().resize(len);
    }

    pub(crate) fn pm_sync_all(&self) {
        self.point("pool sync", None);
        let mut pm = self.inner.pm.lock();
        let len = pm.len();
        pm.sync_pages(0, len, self.inner.medium);
    }
}

/// Notes the end of a hook, even if it panics.
struct Leave;

impl Leave {
    fn enter(machine: *const Inner) -> Leave {
        INSIDE.with_borrow_mut(|inside| inside.push(machine));
        Leave
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        INSIDE.with_borrow_mut(|inside| inside.pop());
    }
}

impl Hook for Machine {
    fn flushed(&self, at: u64, len: u64) {
        if self.inner.medium == Medium::Dax {
            self.inner.pm.lock().flushed(at, len);
        }
    }

    fn fence(&self, purpose: Purpose) {
        self.point("fence", Some(purpose));
        if self.inner.medium == Medium::Dax {
            self.inner.pm.lock().fence();
        }
    }

    fn sync(&self, at: u64, len: u64) -> io::Result<()> {
        if self.inner.medium == Medium::Mapped {
            self.point("pool sync", None);
            self.inner.pm.lock().sync_pages(at, len, self.inner.medium);
        }
        Ok(())
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Machine({}, {} points)",
            self.inner.medium,
            self.points()
        )
    }
}
