//! Files: the few operations that a store needs, as traits, so that tests can put a simulator or
//! faults behind them.
//!
//! `OsFs` is the real file system, `FaultFs` makes chosen operations of another one fail, `QuotaFs` gives it
//! so much room and no more, and
//! `sim::Machine::fs` gives a simulated one.
//!
//! What survives a power loss: bytes of a file once `sync_data` returned; names in a folder once
//! `sync_dir` of that folder returned; folders made by `create_dir_all` once it returned. Anything
//! else may survive, in part and in any order.

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

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OpenMode {
    /// An existing file, to read.
    Read,
    /// As `Read`, past the operating system's cache where the file system can; for readers that
    /// keep a cache of their own. Where it cannot, as `Read`.
    ReadDirect,
    /// An existing file, to read and write.
    Write,
    /// To read and write; made if it does not exist, kept as it is if it does.
    Create,
    /// To read and write; an error if it exists.
    CreateNew,
    /// As `CreateNew`, for a file that is written once from front to back: what is written in whole
    /// blocks goes past the operating system's cache where the file system can. Where it cannot, as
    /// `CreateNew`.
    CreateNewDirect,
    /// To read and write; made if it does not exist, emptied if it does.
    Truncate,
}

impl OpenMode {
    /// Whether a file that exists is an error.
    pub(crate) fn is_new(self) -> bool {
        matches!(self, OpenMode::CreateNew | OpenMode::CreateNewDirect)
    }
}

/// What a reader tells the system of a part of a file. Never changes what reads return.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Advice {
    /// It will be read from front to back.
    Sequential,
    /// It will be read here and there, so reading ahead is wasted.
    Random,
    /// It will be read soon: begin now.
    WillNeed,
    /// It will not be read soon: its memory may go.
    DontNeed,
}

/// An open file. Offsets are explicit, so one handle serves many threads.
pub trait File: Send + Sync {
    /// Reads at an offset; how many bytes, which is 0 at the end of the file and may be less than
    /// asked for anywhere.
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes at an offset, or fails; then any part of them may have been written.
    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()>;

    /// Writes all bytes at an offset and makes them durable, and the length if they extend the file.
    /// What was written elsewhere in the file before need not be: where there is much of that, this
    /// costs far less than `sync_data`.
    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.write_at(off, buf)?;
        self.sync_data()
    }

    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file off, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Takes space for the first `len` bytes, extending the file with zeros if it is shorter.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Makes everything written so far, and the length, durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Lets the system begin to make durable what was written to `len` bytes at an offset, so that less is
    /// left when `sync_data` is called. Waits for nothing and promises nothing: an error of the device is told
    /// by `sync_data`. Callers may ignore a failure.
    fn begin_sync(&self, off: u64, len: u64) -> io::Result<()> {
        let _ = (off, len);
        Ok(())
    }

    /// Says how `len` bytes at an offset will be read. Callers may ignore a failure.
    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()>;

    /// Brings `len` bytes at an offset into the system's cache, page by page, so that small writes there
    /// need not wait for memory: a new page costs such a write ten times its own time. For parts that
    /// were never written; of others it would read the disk. Callers may ignore a failure.
    fn prefault(&self, off: u64, len: u64) -> io::Result<()> {
        let _ = (off, len);
        Ok(())
    }

    /// Reads exactly the bytes asked for; `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, off: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        // BOUND: every turn reads at least one byte.
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

/// A lock that lasts as long as the value.
pub trait FileLock: Send + Sync {}

/// A file system.
pub trait FileSystem: Send + Sync {
    /// Makes a folder and its parents, durably. Not an error if they exist.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// The names in a folder, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>>;

    /// Renames a file; one that has the new name is replaced in the same step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file; `AlreadyExists` if something has the new name, which then stays as it is.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.exists(to)? {
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => self.rename(from, to),
        }
    }

    /// Gives a file a second name; `AlreadyExists` if something has it. Both names are equal, and
    /// the content goes with the last of them.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name of a file. Handles that are open go on working.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes a folder, which must be empty. `Unsupported` where folders stay once they are made.
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let _ = dir;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// The same path whatever becomes the process's current folder. As it is, where there is none.
    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    /// What tells the file that has this name from all others there are; it stays when the file is renamed.
    /// `NotFound` if none has it; `None` where the file system cannot tell.
    fn identity(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let _ = path;
        Ok(None)
    }

    /// Returns the free bytes of the disk that a folder is on, or `None` if the file system does not report them. A
    /// quota may leave less. Costs one system call.
    fn free_bytes(&self, dir: &Path) -> io::Result<Option<u64>> {
        let _ = dir;
        Ok(None)
    }

    /// Whether a file or folder has this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Takes a lock on a file, made if it does not exist; `WouldBlock` if somebody has it and
    /// keeps it. On a real file system it is asked for again for about 200 ms, since a process that
    /// is being started holds the locks of the one that starts it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>>;

    /// Takes a lock on a file that exists, beside others who share it, without writing anything;
    /// `WouldBlock` if somebody has it for himself. `None`: there is no such file, or the file system
    /// has no shared locks, and nobody is kept out.
    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        let _ = path;
        Ok(None)
    }
}
