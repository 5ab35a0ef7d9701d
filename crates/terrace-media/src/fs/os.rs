//! The real file system.

use super::signal::uninterrupted;
use super::{Advice, File, FileLock, FileSystem, OpenMode, lock};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::cell::RefCell;
use std::fs;
use std::io;
use std::num::NonZeroU64;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The operating system's file system.
#[derive(Clone, Copy, Default, Debug)]
pub struct OsFs;

struct OsFile(fs::File);

/// A file opened with `O_DIRECT` for reading: whole sectors are read into aligned memory.
struct DirectFile(OsFile);

/// The number of attempts to lock a file that others keep removing.
const LOCK_TURNS_MAX: usize = 8;
/// The alignment of offsets, lengths and addresses for direct I/O; devices require 512 or 4096.
const DIRECT_ALIGN: usize = 4096;
/// The most bytes that one direct system call transfers.
const DIRECT_BYTES_MAX: usize = 1 << 20;
/// The step of prefaulting: a page of the page cache or a part of one.
const CACHE_PAGE_BYTES: usize = 4096;

thread_local! {
    /// The aligned buffer for direct reads and writes of this thread.
    static LANDING: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct OsLock(
    #[expect(dead_code, reason = "held for its Drop, which releases the lock")] lock::Locked,
);

impl FileLock for OsLock {}

impl File for OsFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buf, off)
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_all_at(buf, off)
    }

    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        let mut done = 0;
        // BOUND: each iteration writes at least one byte or is interrupted by a signal.
        while done < buf.len() {
            let rest = [io::IoSlice::new(&buf[done..])];
            let at = off + done as u64;
            match rustix::io::pwritev2(&self.0, &rest, at, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                // The file system does not support it: sync the whole file.
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.write_at(at, &buf[done..])?;
                    return self.sync_data();
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let none = FallocateFlags::empty();
        match uninterrupted(|| rustix::fs::fallocate(&self.0, none, 0, len)) {
            // The file system cannot preallocate: set at least the length.
            Err(Errno::OPNOTSUPP) => {
                if self.len()? < len {
                    self.0.set_len(len)?;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn begin_sync(&self, off: u64, len: u64) -> io::Result<()> {
        let range = i64::try_from(off).ok().zip(i64::try_from(len).ok());
        let Some((off, len)) = range else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // Only this flag: those that wait would consume an error that `sync_data` has to report.
        let flags = libc::SYNC_FILE_RANGE_WRITE;
        // SAFETY: the descriptor belongs to `self`, and no memory is passed.
        match unsafe { libc::sync_file_range(self.0.as_raw_fd(), off, len, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()> {
        let Some(len) = NonZeroU64::new(len) else {
            return Ok(());
        };
        let advice = match advice {
            Advice::Sequential => rustix::fs::Advice::Sequential,
            Advice::Random => rustix::fs::Advice::Random,
            Advice::WillNeed => rustix::fs::Advice::WillNeed,
            Advice::DontNeed => rustix::fs::Advice::DontNeed,
        };
        Ok(rustix::fs::fadvise(&self.0, off, Some(len), advice)?)
    }

    fn prefault(&self, off: u64, len: u64) -> io::Result<()> {
        // Readahead would fill the cache with large folios, in which a small write visits every
        // page.
        self.advise(off, len, Advice::Random)?;
        let mut byte = [0];
        for at in (off..off.saturating_add(len)).step_by(CACHE_PAGE_BYTES) {
            if self.read_at(at, &mut byte)? == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl File for DirectFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        let skip = (off % DIRECT_ALIGN as u64) as usize;
        let want = buf.len().min(DIRECT_BYTES_MAX - skip);
        let len = (skip + want).next_multiple_of(DIRECT_ALIGN);
        with_landing(len, |aligned| {
            let found = self.0.read_at(off - skip as u64, aligned)?;
            let n = found.saturating_sub(skip).min(want);
            buf[..n].copy_from_slice(&aligned[skip..skip + n]);
            Ok(n)
        })
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn advise(&self, _: u64, _: u64, _: Advice) -> io::Result<()> {
        // Direct reads use no cache.
        Ok(())
    }
}

/// A file whose whole aligned blocks are written with `O_DIRECT`, and the rest through the page
/// cache. No byte of a sequential write takes both paths, unless a direct write failed.
struct DirectWriter {
    file: OsFile,
    direct: OsFile,
}

impl DirectWriter {
    /// Writes as much of `buf` as can be written directly and returns the number of bytes.
    fn write_blocks(&self, off: u64, buf: &[u8]) -> io::Result<usize> {
        if !off.is_multiple_of(DIRECT_ALIGN as u64) {
            return Ok(0);
        }
        let whole = buf.len() - buf.len() % DIRECT_ALIGN;
        let mut done = 0;
        for piece in buf[..whole].chunks(DIRECT_BYTES_MAX) {
            let at = off + done as u64;
            let written = with_landing(piece.len(), |aligned| {
                aligned.copy_from_slice(piece);
                self.direct.write_at(at, aligned)
            });
            match written {
                Ok(()) => done += piece.len(),
                // The device has stricter requirements: write the rest through the cache.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

impl File for DirectWriter {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(off, buf)
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        let done = self.write_blocks(off, buf)?;
        match &buf[done..] {
            [] => Ok(()),
            rest => self.file.write_at(off + done as u64, rest),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.file.allocate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        // Both handles refer to the same file, so one sync covers both.
        self.file.sync_data()
    }

    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()> {
        self.file.advise(off, len, advice)
    }
}

/// Calls `f` with `len` bytes of this thread's aligned buffer.
fn with_landing<R>(len: usize, f: impl FnOnce(&mut [u8]) -> io::Result<R>) -> io::Result<R> {
    LANDING.with_borrow_mut(|landing| {
        if landing.len() < len + DIRECT_ALIGN {
            landing.resize(len + DIRECT_ALIGN, 0);
        }
        let start = landing.as_ptr().align_offset(DIRECT_ALIGN);
        let aligned = landing.get_mut(start..start.saturating_add(len));
        f(aligned.ok_or_else(|| io::Error::other("cannot align memory for direct I/O"))?)
    })
}

/// Opens an existing file with `O_DIRECT`; `None` if the file system does not support it.
fn reopen_direct(path: &Path, write: bool) -> io::Result<Option<OsFile>> {
    let mut options = fs::OpenOptions::new();
    options.read(!write).write(write);
    options.custom_flags(OFlags::DIRECT.bits() as i32);
    match options.open(path) {
        Ok(file) => Ok(Some(OsFile(file))),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(e) => Err(e),
    }
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    fs::File::open(dir)?.sync_all()
}

impl FileSystem for OsFs {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        if dir.as_os_str().is_empty() || dir.is_dir() {
            return Ok(());
        }
        let parent = dir.parent().unwrap_or(Path::new("."));
        self.create_dir_all(parent)?;
        match fs::create_dir(dir) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => {}
            other => other?,
        }
        // PERSIST: the directory's name before anything in it is acknowledged.
        sync_folder(parent)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        if mode == OpenMode::ReadDirect
            && let Some(file) = reopen_direct(path, false)?
        {
            return Ok(Box::new(DirectFile(file)));
        }
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match mode {
            // Opening must not block: a FIFO would wait for a writer. The flag does not affect
            // regular files.
            OpenMode::Read | OpenMode::ReadDirect => {
                options.custom_flags(OFlags::NONBLOCK.bits() as i32)
            }
            OpenMode::Write => options.write(true),
            OpenMode::Create => options.write(true).create(true).truncate(false),
            OpenMode::CreateNew | OpenMode::CreateNewDirect => options.write(true).create_new(true),
            OpenMode::Truncate => options.write(true).create(true).truncate(true),
        };
        let file = OsFile(options.open(path)?);
        if mode == OpenMode::CreateNewDirect
            && let Some(direct) = reopen_direct(path, true)?
        {
            return Ok(Box::new(DirectWriter { file, direct }));
        }
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    #[cfg(target_os = "linux")]
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // The file system lacks `RENAME_NOREPLACE`: check the name first, without atomicity.
            Err(Errno::INVAL | Errno::NOSYS) if !self.exists(to)? => fs::rename(from, to),
            Err(Errno::INVAL | Errno::NOSYS) => Err(io::ErrorKind::AlreadyExists.into()),
            other => Ok(other?),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_folder(dir)
    }

    fn identity(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let file = fs::metadata(path)?;
        Ok(Some((file.dev(), file.ino())))
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        std::path::absolute(path)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let stat = rustix::fs::statvfs(dir)?;
        // Some network and user-space file systems report no blocks at all.
        let counts = stat.f_blocks > 0;
        Ok(counts.then(|| stat.f_bavail.saturating_mul(stat.f_frsize)))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        // BOUND: a fixed number of attempts. One fails only if another owner removes the file
        // between the open and the check.
        for _ in 0..LOCK_TURNS_MAX {
            let file = fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let lock = lock::exclusive(file)?;
            // A lock on a file that has lost its name excludes no one.
            let named = fs::metadata(path).map(|file| (file.dev(), file.ino()));
            let own = lock.metadata()?;
            if named.is_ok_and(|named| named == (own.dev(), own.ino())) {
                return Ok(Box::new(OsLock(lock)));
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        match fs::File::open(path) {
            Ok(file) => {
                let lock = lock::shared(file)?;
                Ok(Some(Box::new(OsLock(lock))))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}
