//! The real file system.

use super::{File, FileLock, FileSystem, OpenMode, lock};
use rustix::fs::FallocateFlags;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The operating system's file system.
#[derive(Clone, Copy, Default, Debug)]
pub struct OsFs;

struct OsFile(fs::File);

/// The lock goes with the open file description, which this value closes.
struct OsLock(#[expect(dead_code, reason = "held for its Drop, which releases the lock")] fs::File);

impl FileLock for OsLock {}

impl File for OsFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buf, off)
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_all_at(buf, off)
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
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, len) {
            // A file system that cannot take space ahead still gets the length.
            Err(rustix::io::Errno::OPNOTSUPP) => {
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
        // PERSIST: the folder's name before anything in it is acknowledged.
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
        let mut options = fs::OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::Write => options.write(true),
            OpenMode::Create => options.write(true).create(true).truncate(false),
            OpenMode::CreateNew => options.write(true).create_new(true),
            OpenMode::Truncate => options.write(true).create(true).truncate(true),
        };
        Ok(Box::new(OsFile(options.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_folder(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        lock::exclusive(&file)?;
        Ok(Box::new(OsLock(file)))
    }
}
