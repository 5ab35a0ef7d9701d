//! Files that fail on demand: a wrapper around any file system that counts its operations.
//!
//! A test runs a script once to count its operations, then once for every n with the n-th failing.

use super::{Advice, File, FileLock, FileSystem, OpenMode};
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The effect of a call that fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Effect {
    /// A write writes half of its bytes; any other call does nothing.
    #[default]
    Half,
    /// The call takes full effect but still reports a failure.
    All,
}

/// A counter that trips at a chosen call.
#[derive(Default)]
pub(crate) struct Trap(Mutex<TrapState>);

#[derive(Default)]
struct TrapState {
    calls: u64,
    at: u64,
    kind: Option<io::ErrorKind>,
    sticky: bool,
    /// A description of the first call that failed.
    tripped: Option<String>,
}

/// A call that has to fail.
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
            tripped: None,
        };
    }

    pub(crate) fn reset(&self) {
        *self.0.lock() = TrapState::default();
    }

    pub(crate) fn calls(&self) -> u64 {
        self.0.lock().calls
    }

    pub(crate) fn tripped(&self) -> Option<String> {
        self.0.lock().tripped.clone()
    }

    pub(crate) fn step(&self, what: impl FnOnce() -> String) -> Result<(), Fault> {
        let mut state = self.0.lock();
        state.calls += 1;
        match state.kind {
            Some(kind) if state.calls == state.at || (state.sticky && state.calls > state.at) => {
                state.tripped.get_or_insert_with(what);
                Err(Fault {
                    kind,
                    call: state.calls,
                })
            }
            _ => Ok(()),
        }
    }
}

/// The state that all handles of one `FaultFs` share.
#[derive(Default)]
struct Shared {
    trap: Trap,
    short: AtomicBool,
    short_reads: AtomicU64,
    full: AtomicBool,
    does_all: AtomicBool,
    /// The delay of each write in nanoseconds.
    slower: AtomicU64,
    judge: Mutex<Option<Judge>>,
}

/// Accepts or refuses each call before it runs, given its operation and file name.
type Judge = Arc<dyn Fn(&str) -> io::Result<()> + Send + Sync>;

/// A file system whose n-th operation fails. Clones share the counter.
#[derive(Clone)]
pub struct FaultFs {
    inner: Arc<dyn FileSystem>,
    shared: Arc<Shared>,
}

impl FaultFs {
    /// Wraps a file system. No faults are set.
    pub fn new(inner: Arc<dyn FileSystem>) -> FaultFs {
        FaultFs {
            inner,
            shared: Arc::default(),
        }
    }

    /// Makes the `n`-th operation from now, counted from 1, fail with `kind`, and all later ones
    /// too if `sticky`. A failing write writes half of its bytes, unless [`leave`](FaultFs::leave)
    /// sets another effect.
    pub fn fail_at(&self, n: u64, kind: io::ErrorKind, sticky: bool) {
        self.shared.trap.set(n, kind, sticky);
    }

    /// Sets the effect of calls that fail.
    pub fn leave(&self, effect: Effect) {
        let all = effect == Effect::All;
        self.shared.does_all.store(all, Ordering::Relaxed);
    }

    /// Calls `judge` before every counted call with its operation and the last part of its path, as
    /// in `sync MANIFEST`. A call that `judge` refuses does nothing and fails with that error.
    /// `judge` may wait for calls of other threads.
    pub fn judge(&self, judge: impl Fn(&str) -> io::Result<()> + Send + Sync + 'static) {
        *self.shared.judge.lock() = Some(Arc::new(judge));
    }

    /// Returns the operation and file name of the first call that failed since the fault was set.
    pub fn tripped(&self) -> Option<String> {
        self.shared.trap.tripped()
    }

    /// Removes the fault and resets the counter.
    pub fn reset(&self) {
        self.shared.trap.reset();
    }

    /// Returns the number of operations since the last reset or fault set.
    pub fn operations(&self) -> u64 {
        self.shared.trap.calls()
    }

    /// Simulates a full disk: files cannot take more space, and all else works.
    pub fn fill_up(&self, full: bool) {
        self.shared.full.store(full, Ordering::Relaxed);
    }

    /// Delays every write by this time, as on a slow disk.
    pub fn slow_writes(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.shared.slower.store(nanos, Ordering::Relaxed);
    }

    /// Makes reads return fewer bytes than requested, by a length that varies from call to call.
    pub fn short_transfers(&self, on: bool) {
        self.shared.short.store(on, Ordering::Relaxed);
    }
}

struct FaultFile {
    inner: Box<dyn File>,
    name: String,
    shared: Arc<Shared>,
}

/// Returns the last part of a path, for messages.
fn name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

impl Shared {
    /// Asks the judge about a call.
    fn judged(&self, what: &str, name: &str) -> io::Result<()> {
        let judge = self.judge.lock().clone();
        judge.map_or(Ok(()), |judge| judge(&format!("{what} {name}")))
    }

    /// Counts a call. A call that has to fail still runs if the effect is `All`.
    fn call<R>(
        &self,
        what: &'static str,
        name: &str,
        done: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        self.judged(what, name)?;
        match self.trap.step(|| format!("{what} {name}")) {
            Ok(()) => done(),
            Err(fault) => {
                if self.does_all.load(Ordering::Relaxed) {
                    done()?;
                }
                Err(fault.error(what))
            }
        }
    }

    /// As `call`, for a write of `len` bytes, half of which may be written.
    fn write(
        &self,
        what: &'static str,
        name: &str,
        len: usize,
        done: impl FnOnce(usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let slower = Duration::from_nanos(self.slower.load(Ordering::Relaxed));
        if !slower.is_zero() {
            std::thread::sleep(slower);
        }
        self.judged(what, name)?;
        match self.trap.step(|| format!("{what} {name}")) {
            Ok(()) => done(len),
            Err(fault) => {
                let all = self.does_all.load(Ordering::Relaxed);
                done(if all { len } else { len / 2 })?;
                Err(fault.error(what))
            }
        }
    }

    /// Fails if the disk is full.
    fn room(&self) -> io::Result<()> {
        match self.full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl FaultFile {
    fn call<R>(
        &self,
        what: &'static str,
        done: impl FnOnce(&dyn File) -> io::Result<R>,
    ) -> io::Result<R> {
        self.shared.call(what, &self.name, || done(&*self.inner))
    }
}

impl File for FaultFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut len = buf.len();
        if len > 1 && self.shared.short.load(Ordering::Relaxed) {
            let call = self.shared.short_reads.fetch_add(1, Ordering::Relaxed);
            len = 1 + (call as usize * 7) % (len - 1);
        }
        self.call("read", |file| file.read_at(off, &mut buf[..len]))
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        // A full disk still accepts writes within the length of the file.
        if self.shared.full.load(Ordering::Relaxed)
            && off.saturating_add(buf.len() as u64) > self.inner.len()?
        {
            self.shared.room()?;
        }
        let done = |len| self.inner.write_at(off, &buf[..len]);
        self.shared.write("write", &self.name, buf.len(), done)
    }

    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        let done = |len| self.inner.write_durable_at(off, &buf[..len]);
        let what = "write and sync";
        self.shared.write(what, &self.name, buf.len(), done)
    }

    fn len(&self) -> io::Result<u64> {
        self.call("length", |file| file.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call("set length", |file| file.set_len(len))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.shared.room()?;
        self.call("allocate", |file| file.allocate(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.call("sync", |file| file.sync_data())
    }

    fn begin_sync(&self, off: u64, len: u64) -> io::Result<()> {
        self.call("begin sync", |file| file.begin_sync(off, len))
    }

    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()> {
        self.call("advise", |file| file.advise(off, len, advice))
    }

    fn prefault(&self, off: u64, len: u64) -> io::Result<()> {
        self.call("prefault", |file| file.prefault(off, len))
    }
}

impl FaultFs {
    fn call<R>(
        &self,
        what: &'static str,
        path: &Path,
        done: impl FnOnce(&dyn FileSystem) -> io::Result<R>,
    ) -> io::Result<R> {
        self.shared.call(what, &name(path), || done(&*self.inner))
    }
}

impl FileSystem for FaultFs {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.call("create folder", dir, |fs| fs.create_dir_all(dir))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call("list folder", dir, |fs| fs.list(dir))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        let inner = self.call("open", path, |fs| {
            if mode.is_new() {
                self.shared.room()?;
            }
            fs.open(path, mode)
        })?;
        Ok(Box::new(FaultFile {
            inner,
            name: name(path),
            shared: Arc::clone(&self.shared),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("rename", to, |fs| fs.rename(from, to))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("rename", to, |fs| fs.rename_new(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("link", to, |fs| fs.link(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call("remove", path, |fs| fs.remove(path))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.call("remove folder", dir, |fs| fs.remove_dir(dir))
    }

    fn identity(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.inner.identity(path)
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.inner.absolute(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call("sync folder", dir, |fs| fs.sync_dir(dir))
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        // Not counted and never failing: callers do not depend on the result.
        match self.shared.full.load(Ordering::Relaxed) {
            true => Ok(Some(0)),
            false => self.inner.free_bytes(dir),
        }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.call("look up", path, |fs| fs.exists(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        self.call("lock", path, |fs| fs.lock(path))
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.call("lock", path, |fs| fs.lock_shared(path))
    }
}
