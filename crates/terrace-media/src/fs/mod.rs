//! Files: the few operations that a store needs, as traits, so that tests can substitute a
//! simulator or inject faults.
//!
//! `OsFs` is the real file system. `FaultFs`, `QuotaFs` and `OverlayFs` wrap another one: they fail
//! chosen operations, limit the space, or keep changes in memory. `sim::Machine::fs` simulates one.
//!
//! A power loss preserves the bytes of a file once `sync_data` has returned, the names in a
//! directory once `sync_dir` of that directory has returned, and directories created by
//! `create_dir_all` once it has returned. Anything else may survive, in part and in any order.

pub(crate) mod append;
pub(crate) mod fault;
pub(crate) mod lock;
pub(crate) mod os;
pub(crate) mod overlay;
pub(crate) mod quota;
pub(crate) mod signal;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

/// The mode in which a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpenMode {
    /// Opens an existing file for reading.
    Read,
    /// As `Read`, but bypasses the page cache if the file system supports it. For readers that keep
    /// their own cache.
    ReadDirect,
    /// Opens an existing file for reading and writing.
    Write,
    /// Opens a file for reading and writing; creates it if it does not exist.
    Create,
    /// Creates a file for reading and writing; fails if it exists.
    CreateNew,
    /// As `CreateNew`, for a file that is written once from front to back: whole blocks bypass the
    /// page cache if the file system supports it.
    CreateNewDirect,
    /// Opens a file for reading and writing; creates it if it does not exist and truncates it if it
    /// does.
    Truncate,
}

impl OpenMode {
    /// Returns whether opening an existing file is an error.
    pub(crate) fn is_new(self) -> bool {
        matches!(self, OpenMode::CreateNew | OpenMode::CreateNewDirect)
    }
}

/// The expected access pattern of a part of a file. Never changes the result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Advice {
    /// The range is read sequentially.
    Sequential,
    /// The range is read at random, so readahead is wasted.
    Random,
    /// The range is needed soon, so readahead starts now.
    WillNeed,
    /// The range is not needed soon, so its cached pages may be dropped.
    DontNeed,
}

/// An open file. Offsets are explicit, so one handle serves many threads.
pub trait File: Send + Sync {
    /// Reads at an offset and returns the number of bytes read, which is 0 at the end of the file
    /// and may be less than requested anywhere.
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes at an offset. On failure, any part of them may have been written.
    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()>;

    /// Writes all bytes at an offset and makes them durable, and also the length if they extend the
    /// file. Earlier writes elsewhere in the file need not become durable: if there are many, this
    /// costs far less than `sync_data`.
    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.write_at(off, buf)?;
        self.sync_data()
    }

    /// Returns the length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Truncates the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Allocates space for the first `len` bytes, extending the file with zeros if it is shorter.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Makes all writes so far, and the length, durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Starts writing back `len` bytes at an offset, so that less is left for `sync_data`. Does not
    /// wait and guarantees nothing: `sync_data` reports the errors of the device. Callers may
    /// ignore a failure.
    fn begin_sync(&self, off: u64, len: u64) -> io::Result<()> {
        let _ = (off, len);
        Ok(())
    }

    /// Announces how `len` bytes at an offset will be read. Callers may ignore a failure.
    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()>;

    /// Brings `len` bytes at an offset into the page cache, page by page, so that small writes
    /// there do not wait for a new page, which takes ten times as long as the write itself.
    /// Intended for ranges that were never written, as others would be read from the disk. Callers
    /// may ignore a failure.
    fn prefault(&self, off: u64, len: u64) -> io::Result<()> {
        let _ = (off, len);
        Ok(())
    }

    /// Reads exactly the requested bytes; fails with `UnexpectedEof` if the file ends before them.
    fn read_exact_at(&self, off: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        // BOUND: each iteration reads at least one byte or is interrupted by a signal.
        while done < buf.len() {
            match self.read_at(off + done as u64, &mut buf[done..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// A lock that is held until the value is dropped.
pub trait FileLock: Send + Sync {}

/// A file system.
pub trait FileSystem: Send + Sync {
    /// Creates a directory and its parents, durably. Existing ones are not an error.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Returns the names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>>;

    /// Renames a file, atomically replacing the target if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file; fails with `AlreadyExists` if the target exists, and then leaves it
    /// unchanged.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.exists(to)? {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => self.rename(from, to),
        }
    }

    /// Creates a hard link to a file; fails with `AlreadyExists` if the target exists.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name of a file. Open handles stay usable.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory; `Unsupported` if the file system cannot remove directories.
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let _ = dir;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Returns the absolute path, which stays valid if the process changes its current directory. A
    /// file system without a current directory returns the path unchanged.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    /// Returns a unique identity of the file with this name, which survives renaming. `NotFound` if
    /// there is no such file; `None` if the file system has no identities.
    fn identity(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let _ = path;
        Ok(None)
    }

    /// Returns the free bytes of the disk that holds a directory, or `None` if the file system does
    /// not report them. A quota may leave less. Costs one system call.
    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let _ = dir;
        Ok(None)
    }

    /// Returns whether a file or directory with this name exists.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Takes an exclusive lock on a file, which is created if it does not exist; `WouldBlock` if it
    /// stays locked. The real file system retries for about 200 ms, since a child process holds its
    /// parent's locks while it starts.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;

    /// Takes a shared lock on an existing file without writing anything; `WouldBlock` if it is
    /// locked exclusively. Returns `None` without a lock if the file does not exist or the file
    /// system has no shared locks.
    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let _ = path;
        Ok(None)
    }
}
