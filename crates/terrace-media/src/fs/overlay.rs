//! An overlay on a file system that is only read: changes are kept in memory and discarded.
//!
//! It opens a database without changing a byte of it: recovery writes as usual, but into memory. A
//! file is copied into memory when it is opened for writing.

use super::{Advice, File, FileLock, FileSystem, OpenMode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file system that keeps changes in memory; see the module.
#[derive(Clone)]
pub struct OverlayFs {
    base: Arc<dyn FileSystem>,
    /// Files that differ from the base; `None` marks a removed file.
    changed: Arc<Mutex<BTreeMap<PathBuf, Option<MemoryFile>>>>,
}

/// A file in memory.
#[derive(Clone, Default)]
struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl OverlayFs {
    /// Returns an overlay without changes.
    pub fn new(base: Arc<dyn FileSystem>) -> OverlayFs {
        OverlayFs {
            base,
            changed: Arc::default(),
        }
    }

    fn changed(&self, path: &Path) -> Option<Option<MemoryFile>> {
        self.changed.lock().get(path).cloned()
    }

    /// Returns the content of a file, from memory or the base.
    fn content(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.changed(path) {
            Some(Some(file)) => Ok(file.0.lock().clone()),
            Some(None) => Err(io::ErrorKind::NotFound.into()),
            None => {
                let file = self.base.open(path, OpenMode::Read)?;
                let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
                file.read_exact_at(0, &mut bytes)?;
                Ok(bytes)
            }
        }
    }

    fn put(&self, path: &Path, content: Vec<u8>) -> MemoryFile {
        let file = MemoryFile(Arc::new(Mutex::new(content)));
        let mut changed = self.changed.lock();
        changed.insert(path.to_owned(), Some(file.clone()));
        file
    }

    fn is_missing(&self, path: &Path) -> io::Result<bool> {
        self.exists(path).map(|exists| !exists)
    }
}

impl File for MemoryFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.lock();
        let start = bytes.len().min(usize::try_from(off).unwrap_or(usize::MAX));
        let rest = &bytes[start..];
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        let start = usize::try_from(off).map_err(io::Error::other)?;
        let end = start
            .checked_add(buf.len())
            .ok_or(io::ErrorKind::FileTooLarge)?;
        let mut bytes = self.0.lock();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(buf);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.0.lock().resize(len, 0);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if self.len()? < len {
            self.set_len(len)?;
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn advise(&self, _: u64, _: u64, _: Advice) -> io::Result<()> {
        Ok(())
    }
}

/// A lock that excludes no one: no other process can see a file in memory.
struct NoLock;

impl FileLock for NoLock {}

impl FileSystem for OverlayFs {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        // Files in memory need no directory.
        let _ = dir;
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let changed = self.changed.lock();
        let mut names = self.base.list(dir)?;
        names.retain(|name| !changed.contains_key(&dir.join(name)));
        let added = changed
            .iter()
            .filter(|(path, file)| path.parent() == Some(dir) && file.is_some());
        names.extend(added.filter_map(|(path, _)| {
            let name = path.file_name()?;
            Some(name.to_string_lossy().into_owned())
        }));
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        match (mode, self.changed(path)) {
            (OpenMode::Read | OpenMode::ReadDirect, None) => self.base.open(path, mode),
            (OpenMode::Truncate, _) => Ok(Box::new(self.put(path, Vec::new()))),
            (OpenMode::CreateNew | OpenMode::CreateNewDirect, _) => match self.is_missing(path)? {
                true => Ok(Box::new(self.put(path, Vec::new()))),
                false => Err(io::ErrorKind::AlreadyExists.into()),
            },
            (_, Some(Some(file))) => Ok(Box::new(file)),
            (OpenMode::Create, _) if self.is_missing(path)? => {
                Ok(Box::new(self.put(path, Vec::new())))
            }
            _ => {
                let content = self.content(path)?;
                Ok(Box::new(self.put(path, content)))
            }
        }
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self.changed(from) {
            // Open handles keep referring to the same file.
            Some(Some(file)) => {
                self.changed.lock().insert(to.to_owned(), Some(file));
            }
            _ => {
                let content = self.content(from)?;
                self.put(to, content);
            }
        }
        self.remove(from)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        if !self.is_missing(to)? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // Links are made only for files that are no longer written, so a copy is equivalent.
        let content = self.content(from)?;
        self.put(to, content);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if self.is_missing(path)? {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.changed.lock().insert(path.to_owned(), None);
        Ok(())
    }

    fn absolute(&self, path: &Path) -> io::Result<PathBuf> {
        self.base.absolute(path)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.changed(path) {
            Some(file) => Ok(file.is_some()),
            None => self.base.exists(path),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        let shared = self.base.lock_shared(path)?;
        Ok(shared.unwrap_or(Box::new(NoLock)))
    }

    fn lock_shared(&self, path: &Path) -> io::Result<Option<Box<dyn FileLock>>> {
        self.base.lock_shared(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsFs;

    fn text(fs: &OverlayFs, path: &Path) -> String {
        let file = fs.open(path, OpenMode::Read).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(0, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// All operations are visible through the overlay, and the base does not change.
    #[test]
    fn the_base_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a", "b", "c"] {
            std::fs::write(at(name), name).unwrap();
        }
        let fs = OverlayFs::new(Arc::new(OsFs));
        assert_eq!(text(&fs, &at("a")), "a");
        let a = fs.open(&at("a"), OpenMode::Write).unwrap();
        a.write_at(1, b"more").unwrap();
        fs.remove(&at("b")).unwrap();
        fs.rename(&at("c"), &at("d")).unwrap();
        fs.link(&at("d"), &at("e")).unwrap();
        let new = fs.open(&at("f"), OpenMode::CreateNew).unwrap();
        new.allocate(2).unwrap();
        assert!(fs.open(&at("f"), OpenMode::CreateNew).is_err());
        assert!(fs.open(&at("b"), OpenMode::Read).is_err());
        assert!(fs.remove(&at("b")).is_err());
        assert_eq!(fs.list(folder.path()).unwrap(), ["a", "d", "e", "f"]);
        assert_eq!(
            [
                text(&fs, &at("a")),
                text(&fs, &at("e")),
                text(&fs, &at("f"))
            ],
            ["amore", "c", "\0\0"]
        );
        fs.open(&at("a"), OpenMode::Truncate).unwrap();
        assert_eq!(text(&fs, &at("a")), "");

        let base = OverlayFs::new(Arc::new(OsFs));
        assert_eq!(base.list(folder.path()).unwrap(), ["a", "b", "c"]);
        for name in ["a", "b", "c"] {
            assert_eq!(text(&base, &at(name)), name);
        }
    }
}
