//! Files that fail on demand: a wrapper around any file system, with one counter for all of its
//! operations.
//!
//! A test runs a script once to learn how many operations it has, then once for every n with the
//! n-th failing.

use super::{Advice, File, FileLock, FileSystem, OpenMode};
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A counter that trips at a chosen call.
#[derive(Default)]
pub(crate) struct Trap(Mutex<TrapState>);

#[derive(Default)]
struct TrapState {
    calls: u64,
    at: u64,
    kind: Option<io::ErrorKind>,
    sticky: bool,
}

/// The call that tripped.
pub(crate) struct Fault {
    kind: io::ErrorKind,
    call: u64,
}

impl Fault {
    pub(crate) fn error(&self, what: &str) -> io::Error {
        io::Error::new(
            self.kind,
            format!("injected fault: {what}, call {}", self.call),
        )
    }
}

impl Trap {
    pub(crate) fn set(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        *self.0.lock() = TrapState {
            calls: 0,
            at: n,
            kind: Some(kind),
            sticky,
        };
    }

    pub(crate) fn reset(&self) {
        *self.0.lock() = TrapState::default();
    }

    pub(crate) fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    pub(crate) fn step(&self) -> Result<(), Fault> {
        let mut state = self.0.lock();
        state.calls += 1;
        match state.kind {
            Some(kind) if state.calls == state.at || (state.sticky && state.calls > state.at) => {
                Err(Fault {
                    kind,
                    call: state.calls,
                })
            }
            _ => Ok(()),
        }
    }
}

/// What all handles of one `FaultFs` share.
#[derive(Default)]
struct Shared {
    trap: Trap,
    short: AtomicBool,
    short_reads: AtomicU64,
    full: AtomicBool,
}

/// A file system whose n-th operation fails. Clones share the counter.
#[derive(Clone)]
pub struct FaultFs {
    inner: Arc<dyn FileSystem>,
    shared: Arc<Shared>,
}

impl FaultFs {
    /// Wraps a file system; nothing fails yet.
    pub fn new(inner: Arc<dyn FileSystem>) -> FaultFs {
        FaultFs {
            inner,
            shared: Arc::default(),
        }
    }

    /// Makes the `n`-th operation from now, counted from 1, fail with `kind`, and all later ones
    /// too if `sticky`. A failing write has written half of its bytes.
    pub fn fail_at(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        self.shared.trap.set(n, kind, sticky);
    }

    /// Takes the fault away and counts from zero again.
    pub fn reset(&self) {
        self.shared.trap.reset();
    }

    /// Operations since the last reset or fault set.
    pub fn operations(&self) -> u64 {
        self.shared.trap.calls()
    }

    /// Lets the disk be full: files take no more space, everything else goes on.
    pub fn fill_up(&self, full: bool) {
        self.shared.full.store(full, Ordering::Relaxed);
    }

    /// Makes reads return fewer bytes than asked for, of lengths that vary from call to call.
    pub fn short_transfers(&self, on: bool) {
        self.shared.short.store(on, Ordering::Relaxed);
    }
}

struct FaultFile {
    inner: Box<dyn File>,
    shared: Arc<Shared>,
}

impl Shared {
    fn step(&self, what: &str) -> io::Result<()> {
        self.trap.step().map_err(|fault| fault.error(what))
    }

    /// An error when the disk is full.
    fn room(&self) -> io::Result<()> {
        match self.full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl File for FaultFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.shared.step("read")?;
        let mut len = buf.len();
        if len > 1 && self.shared.short.load(Ordering::Relaxed) {
            let call = self.shared.short_reads.fetch_add(1, Ordering::Relaxed);
            len = 1 + (call as usize * 7) % (len - 1);
        }
        self.inner.read_at(off, &mut buf[..len])
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        // What has been allocated takes writes on a full disk too.
        if self.shared.full.load(Ordering::Relaxed)
            && off.saturating_add(buf.len() as u64) > self.inner.len()?
        {
            self.shared.room()?;
        }
        if let Err(fault) = self.shared.trap.step() {
            self.inner.write_at(off, &buf[..buf.len() / 2])?;
            return Err(fault.error("write"));
        }
        self.inner.write_at(off, buf)
    }

    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.shared.step("write and sync")?;
        self.inner.write_durable_at(off, buf)
    }

    fn len(&self) -> io::Result<u64> {
        self.shared.step("length")?;
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.shared.step("set length")?;
        self.inner.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.shared.room()?;
        self.shared.step("allocate")?;
        self.inner.allocate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.step("sync")?;
        self.inner.sync_data()
    }

    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()> {
        self.shared.step("advise")?;
        self.inner.advise(off, len, advice)
    }

    fn prefault(&self, off: u64, len: u64) -> io::Result<()> {
        self.shared.step("prefault")?;
        self.inner.prefault(off, len)
    }
}

impl FileSystem for FaultFs {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.shared.step("create folder")?;
        self.inner.create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.shared.step("list folder")?;
        self.inner.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        self.shared.step("open")?;
        if mode.is_new() {
            self.shared.room()?;
        }
        let inner = self.inner.open(path, mode)?;
        Ok(Box::new(FaultFile {
            inner,
            shared: Arc::clone(&self.shared),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.shared.step("rename")?;
        self.inner.rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.shared.step("link")?;
        self.inner.link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.shared.step("remove")?;
        self.inner.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.shared.step("sync folder")?;
        self.inner.sync_dir(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.shared.step("look up")?;
        self.inner.exists(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        self.shared.step("lock")?;
        self.inner.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.shared.step("lock")?;
        self.inner.lock_shared(path)
    }
}
