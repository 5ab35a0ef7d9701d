//! A file system with limited space: a wrapper around another one that counts the blocks of files.
//!
//! A file is charged for the blocks that were allocated or written until its last name and its last
//! handle are gone, as on a disk. Names and directories are free.

use super::{Advice, File, FileLock, FileSystem, OpenMode};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The unit in which files are charged.
const BLOCK_BYTES: u64 = 4096;

/// A file system with limited space; see the module. Clones share the space.
#[derive(Clone)]
pub struct QuotaFs {
    inner: Arc<dyn FileSystem>,
    disk: Arc<Disk>,
    names: Arc<Mutex<HashMap<PathBuf, Arc<Blocks>>>>,
}

struct Disk {
    room: AtomicU64,
    used: Mutex<u64>,
}

/// The space of one file, charged while it has a name or a handle.
struct Blocks {
    disk: Arc<Disk>,
    bytes: Mutex<u64>,
}

impl Drop for Blocks {
    fn drop(&mut self) {
        *self.disk.used.lock() -= *self.bytes.get_mut();
    }
}

impl Blocks {
    /// Charges for a length of at least `len`; fails with `StorageFull` and no change if space is
    /// short.
    fn grow(&self, len: u64) -> io::Result<()> {
        let wanted = len.next_multiple_of(BLOCK_BYTES);
        let mut bytes = self.bytes.lock();
        let more = wanted.saturating_sub(*bytes);
        let mut used = self.disk.used.lock();
        if more > 0 && *used + more > self.disk.room.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *used += more;
        *bytes += more;
        Ok(())
    }

    /// Frees the space after `len`.
    fn cut(&self, len: u64) {
        let mut bytes = self.bytes.lock();
        let less = bytes.saturating_sub(len.next_multiple_of(BLOCK_BYTES));
        *bytes -= less;
        *self.disk.used.lock() -= less;
    }
}

impl QuotaFs {
    /// Returns a file system of `bytes` bytes. Files are charged from when they are opened through
    /// it.
    pub fn new(inner: Arc<dyn FileSystem>, bytes: u64) -> QuotaFs {
        let disk = Disk {
            room: AtomicU64::new(bytes),
            used: Mutex::new(0),
        };
        QuotaFs {
            inner,
            disk: Arc::new(disk),
            names: Arc::default(),
        }
    }

    /// Changes the total space. If it is less than the used space, nothing more fits, as if others
    /// had filled the disk.
    pub fn set_room(&self, bytes: u64) {
        self.disk.room.store(bytes, Ordering::Relaxed);
    }

    /// Returns the number of bytes charged.
    pub fn used(&self) -> u64 {
        *self.disk.used.lock()
    }

    /// Returns the space of the file with this name, which has just been opened.
    fn blocks(&self, path: &Path, file: &dyn File) -> io::Result<Arc<Blocks>> {
        let mut names = self.names.lock();
        if let Some(blocks) = names.get(path) {
            return Ok(Arc::clone(blocks));
        }
        // The file existed before, so it is charged even beyond the total space.
        let bytes = file.len()?.next_multiple_of(BLOCK_BYTES);
        *self.disk.used.lock() += bytes;
        let blocks = Arc::new(Blocks {
            disk: Arc::clone(&self.disk),
            bytes: Mutex::new(bytes),
        });
        names.insert(path.to_owned(), Arc::clone(&blocks));
        Ok(blocks)
    }
}

struct QuotaFile {
    inner: Box<dyn File>,
    blocks: Arc<Blocks>,
}

impl File for QuotaFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(off, buf)
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.blocks.grow(off.saturating_add(buf.len() as u64))?;
        self.inner.write_at(off, buf)
    }

    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.blocks.grow(off.saturating_add(buf.len() as u64))?;
        self.inner.write_durable_at(off, buf)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        // An extension is a hole and is free. Callers leave no holes, so a write is charged for
        // everything in front of it.
        self.inner.set_len(len)?;
        self.blocks.cut(len);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.blocks.grow(len)?;
        self.inner.allocate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn begin_sync(&self, off: u64, len: u64) -> io::Result<()> {
        self.inner.begin_sync(off, len)
    }

    fn advise(&self, off: u64, len: u64, advice: Advice) -> io::Result<()> {
        self.inner.advise(off, len, advice)
    }

    fn prefault(&self, off: u64, len: u64) -> io::Result<()> {
        self.inner.prefault(off, len)
    }
}

impl FileSystem for QuotaFs {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        let inner = self.inner.open(path, mode)?;
        let blocks = self.blocks(path, &*inner)?;
        if mode == OpenMode::Truncate {
            blocks.cut(0);
        }
        Ok(Box::new(QuotaFile { inner, blocks }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)?;
        let mut names = self.names.lock();
        names.remove(to);
        if let Some(blocks) = names.remove(from) {
            names.insert(to.to_owned(), blocks);
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.link(from, to)?;
        let mut names = self.names.lock();
        if let Some(blocks) = names.get(from).cloned() {
            names.insert(to.to_owned(), blocks);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)?;
        self.names.lock().remove(path);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<Option<u64>> {
        let room = self.disk.room.load(Ordering::Relaxed);
        Ok(Some(room.saturating_sub(self.used())))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        self.inner.lock(path)
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.inner.lock_shared(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsFs;

    /// A block counts once whether allocated or written, until the last name and handle are gone.
    #[test]
    fn blocks_count_until_the_last_name_and_handle_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let fs = QuotaFs::new(Arc::new(OsFs), 10 * BLOCK_BYTES);
        let file = fs.open(&at("a"), OpenMode::CreateNew).unwrap();
        file.allocate(4 * BLOCK_BYTES).unwrap();
        file.write_at(0, &[1; 100]).unwrap();
        assert_eq!(fs.used(), 4 * BLOCK_BYTES);
        let full = |done: io::Result<()>| done.unwrap_err().kind() == io::ErrorKind::StorageFull;
        assert!(full(file.allocate(11 * BLOCK_BYTES)));
        file.write_at(4 * BLOCK_BYTES, &[1]).unwrap();
        file.set_len(BLOCK_BYTES + 1).unwrap();
        assert_eq!(fs.used(), 2 * BLOCK_BYTES);
        fs.link(&at("a"), &at("b")).unwrap();
        fs.remove(&at("a")).unwrap();
        fs.rename(&at("b"), &at("c")).unwrap();
        assert_eq!(fs.used(), 2 * BLOCK_BYTES);
        fs.remove(&at("c")).unwrap();
        assert_eq!(fs.used(), 2 * BLOCK_BYTES, "a handle remains");
        drop(file);
        assert_eq!(fs.used(), 0);
        fs.set_room(0);
        let file = fs.open(&at("d"), OpenMode::CreateNew).unwrap();
        assert!(full(file.write_at(0, &[1])));
    }
}
