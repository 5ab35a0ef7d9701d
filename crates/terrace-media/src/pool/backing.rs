//! The backing of a pool: a file, anonymous memory, or a simulated machine, and how it is opened,
//! grown, shrunk and synced.

use super::error::PoolError;
use super::faults::PoolFaults;
use super::layout::{HEADER_BYTES, MAGIC};
use super::medium::{self, MediumChoice};
use super::prepared;
use super::refusal::printable;
use crate::fs::FileSystem;
use crate::fs::lock::{self, Locked};
use crate::fs::os::OsFs;
use crate::fs::signal::uninterrupted;
use crate::pm::arch::Flush;
use crate::pm::map::Memory;
use crate::pm::medium::Medium;
use crate::pm::persist::Hook;
use crate::sim::Machine;
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The memory or file that backs a pool.
#[derive(Clone, Debug)]
pub enum Backing {
    /// A file, or a DAX character device.
    File(PathBuf),
    /// Memory that is lost with the process.
    Anonymous,
    /// The persistent memory of a simulated machine.
    Simulated(Machine),
}

impl Backing {
    /// Returns the path shown in messages.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Backing::File(path) => path.clone(),
            Backing::Anonymous => PathBuf::from("(anonymous)"),
            Backing::Simulated(_) => PathBuf::from("(simulated)"),
        }
    }

    /// Returns the free bytes of the file's device, or `None` if they are unknown.
    pub fn free_bytes(&self) -> Option<u64> {
        let Backing::File(path) = self else {
            return None;
        };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let free = OsFs.free_bytes(dir.unwrap_or(Path::new(".")));
        free.ok().flatten()
    }
}

/// An open backing.
pub(crate) enum Store {
    File {
        file: Locked,
        path: PathBuf,
        device: bool,
    },
    Anonymous,
    /// A file that is only read; stores stay in memory.
    Private {
        file: Locked,
    },
    Simulated(Machine),
}

/// File systems whose `SEEK_DATA` counts what was stored by a mapping and is not written back:
/// tmpfs, ext4, XFS and btrfs. Others may ask a server, which does not know it.
const COUNTS_MAPPED: [u64; 4] = [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e];

impl Store {
    /// Returns the first offset from `from` on at which the file may have content: `from` itself if
    /// the file system cannot say, `u64::MAX` if no content follows.
    pub(crate) fn next_written(&self, from: u64) -> u64 {
        let (Store::File {
            file,
            device: false,
            ..
        }
        | Store::Private { file }) = self
        else {
            return from;
        };
        let known = rustix::fs::fstatfs(&**file)
            .is_ok_and(|found| COUNTS_MAPPED.contains(&(found.f_type as u64 & 0xffff_ffff)));
        if !known {
            return from;
        }
        match rustix::fs::seek(&**file, rustix::fs::SeekFrom::Data(from)) {
            Ok(found) => found,
            Err(rustix::io::Errno::NXIO) => u64::MAX,
            Err(_) => from,
        }
    }

    /// Lets other processes open the file.
    pub(crate) fn unlock(&self) {
        match self {
            Store::File { file, .. } | Store::Private { file } => file.unlock(),
            Store::Anonymous | Store::Simulated(_) => {}
        }
    }
}

/// An open and mapped backing.
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) memory: Arc<Memory>,
    /// The length in bytes, in whole pages.
    pub(crate) committed: u64,
    pub(crate) medium: Medium,
    pub(crate) forced: bool,
    pub(crate) flush: Flush,
    pub(crate) hook: Option<Arc<dyn Hook>>,
    pub(crate) boot_id: [u8; 16],
}

fn io_error(path: &Path, op: &'static str) -> impl FnOnce(io::Error) -> PoolError {
    move |source| PoolError::Io {
        path: path.to_owned(),
        op,
        source,
    }
}

/// Fails if a fault is due for this call on a pool's file.
fn injected(faults: Option<&PoolFaults>, path: &Path, op: &'static str) -> Result<(), PoolError> {
    faults.map_or(Ok(()), |faults| faults.file(op).map_err(io_error(path, op)))
}

/// Returns the temporary name of a pool file while it is created.
fn nascent(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".creating");
    PathBuf::from(name)
}

/// Returns whether a file may be left over from an interrupted creation: it starts with the magic,
/// which is stored last, or with zeros.
fn is_nascent(file: &File) -> io::Result<bool> {
    let mut start = [0; 8];
    let found = file.read_at(&mut start, 0)?;
    Ok(start == MAGIC || start[..found].iter().all(|b| *b == 0))
}

fn device_bytes(file: &File, path: &Path) -> Result<u64, PoolError> {
    let rdev = file.metadata().map_err(io_error(path, "examine"))?.rdev();
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let size = format!("/sys/dev/char/{major}:{minor}/size");
    let text = std::fs::read_to_string(&size).map_err(|_| {
        PoolError::Unsupported(format!(
            "{} is a device of unknown size; use a DAX device or a file for the pool",
            path.display()
        ))
    })?;
    text.trim().parse().map_err(|_| {
        PoolError::Unsupported(format!(
            "the size of the device {} is not a number: {text}",
            path.display()
        ))
    })
}

/// The kind of file at a path.
enum Found {
    Nothing,
    EmptyFile,
    File,
    Device,
}

fn look(path: &Path) -> Result<Found, PoolError> {
    match std::fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(e) => Err(io_error(path, "examine")(e)),
        Ok(meta) if meta.is_dir() => Err(PoolError::Invalid(format!(
            "{} is a directory, but a pool is a file: give a path inside the directory",
            path.display()
        ))),
        Ok(meta) if meta.file_type().is_char_device() => Ok(Found::Device),
        Ok(meta) if !meta.is_file() => Err(PoolError::Invalid(format!(
            "{} is neither a file nor a DAX device, so it cannot hold a pool; choose another path",
            path.display()
        ))),
        Ok(meta) if meta.len() == 0 => Ok(Found::EmptyFile),
        Ok(_) => Ok(Found::File),
    }
}

fn open_locked(
    path: &Path,
    create: bool,
    faults: Option<&PoolFaults>,
) -> Result<Locked, PoolError> {
    injected(faults, path, "open for writing")?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .open(path)
        .map_err(|e| match e.kind() {
            io::ErrorKind::NotFound if !create => PoolError::NotFound {
                path: path.to_owned(),
            },
            _ => io_error(path, "open for writing")(e),
        })?;
    injected(faults, path, "lock")?;
    lock::exclusive(file).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => PoolError::Locked {
            path: path.to_owned(),
        },
        _ => io_error(path, "lock")(e),
    })
}

fn open_file(
    file: Locked,
    path: &Path,
    cap: u64,
    choice: MediumChoice,
    device: bool,
    faults: Option<&PoolFaults>,
) -> Result<Opened, PoolError> {
    injected(faults, path, "examine")?;
    let bytes = if device {
        device_bytes(&file, path)?
    } else {
        file.metadata().map_err(io_error(path, "examine"))?.len()
    };
    let cap = if device { cap.min(bytes) } else { cap };
    injected(faults, path, "map")?;
    let mapped =
        medium::map_file(&file, cap as usize, choice, device).map_err(io_error(path, "map"))?;
    Ok(Opened {
        store: Store::File {
            file,
            path: path.to_owned(),
            device,
        },
        memory: Arc::new(mapped.memory),
        committed: if device { cap } else { bytes - bytes % 4096 },
        medium: mapped.medium,
        forced: mapped.forced,
        flush: mapped.flush,
        hook: None,
        boot_id: system_boot_id(),
    })
}

fn open_anonymous(cap: u64, choice: MediumChoice) -> Result<Opened, PoolError> {
    let memory =
        Memory::anonymous(cap as usize, true).map_err(io_error(Path::new("(anonymous)"), "map"))?;
    let forced = choice == MediumChoice::ForceDax;
    Ok(Opened {
        store: Store::Anonymous,
        memory: Arc::new(memory),
        committed: 0,
        medium: if forced { Medium::Dax } else { Medium::Dram },
        forced,
        flush: if forced {
            Flush::best()
        } else {
            Flush::Nothing
        },
        hook: None,
        boot_id: system_boot_id(),
    })
}

fn open_simulated(machine: &Machine, cap: u64) -> Result<Opened, PoolError> {
    let path = Path::new("(simulated)");
    if !machine.pm_take() {
        return Err(PoolError::Locked {
            path: path.to_owned(),
        });
    }
    // From here on, dropping `store` releases the machine's memory.
    let store = Store::Simulated(machine.clone());
    let (memory, committed) = machine.pm_open(cap).map_err(io_error(path, "map"))?;
    if committed > cap {
        return Err(PoolError::Invalid(format!(
            "the simulated pool has {committed} bytes, more than the given size of {cap} bytes; \
             open it with at least its size"
        )));
    }
    Ok(Opened {
        store,
        memory,
        committed,
        medium: machine.medium(),
        forced: false,
        flush: Flush::Nothing,
        hook: Some(machine.hook()),
        boot_id: machine.boot_id(),
    })
}

/// Opens the backing of a new pool. A file has a temporary name until `adopt_name`.
pub(crate) fn create(
    backing: &Backing,
    cap: u64,
    choice: MediumChoice,
    faults: Option<&PoolFaults>,
) -> Result<Opened, PoolError> {
    let path = match backing {
        Backing::Anonymous => return open_anonymous(cap, choice),
        Backing::Simulated(machine) => return open_simulated(machine, cap),
        Backing::File(path) => path,
    };
    if let Found::Device = look(path)? {
        let file = open_locked(path, false, faults)?;
        return open_file(file, path, cap, choice, true, faults);
    }
    let path = &prepared::target(path).map_err(io_error(path, "follow"))?;
    let nascent = nascent(path);
    let file = open_locked(&nascent, true, faults)?;
    // The previous owner of the lock may have renamed this very file to its final name.
    let ours = file.metadata().map_err(io_error(path, "examine"))?.ino();
    if std::fs::metadata(&nascent).map(|meta| meta.ino()).ok() != Some(ours) {
        return Err(PoolError::Locked { path: path.clone() });
    }
    if let Found::File = look(path)? {
        let _ = std::fs::remove_file(&nascent);
        return Err(refuse_existing(path));
    }
    if !is_nascent(&file).map_err(io_error(path, "read"))? {
        return Err(PoolError::Invalid(format!(
            "{} exists and is not a pool, but a new pool first needs this name; move the file away \
             or choose another path",
            nascent.display()
        )));
    }
    injected(faults, path, "empty")?;
    file.set_len(0).map_err(io_error(path, "empty"))?;
    prepared::replace(path, &file)
        .and_then(|()| open_file(file, path, cap, choice, false, faults))
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&nascent);
        })
}

/// Returns the error for a file that already exists at the path of a new pool.
fn refuse_existing(path: &Path) -> PoolError {
    let mut start = [0; 8];
    let read = File::open(path).and_then(|file| file.read_at(&mut start, 0));
    match read {
        Ok(8) if start == MAGIC => PoolError::Exists {
            path: path.to_owned(),
        },
        Ok(n) => PoolError::Foreign {
            path: path.to_owned(),
            found: printable(&start[..n]),
        },
        Err(e) => io_error(path, "read")(e),
    }
}

/// Opens the backing of an existing pool, without changing it if `private`.
pub(crate) fn open(
    backing: &Backing,
    cap: u64,
    choice: MediumChoice,
    private: bool,
    faults: Option<&PoolFaults>,
) -> Result<Opened, PoolError> {
    match backing {
        backing if private => open_private(backing, cap, choice),
        Backing::Anonymous => Err(PoolError::NotFound {
            path: backing.path(),
        }),
        Backing::Simulated(machine) => open_simulated(machine, cap),
        Backing::File(path) => {
            let device = match look(path)? {
                Found::Nothing | Found::EmptyFile => {
                    return Err(PoolError::NotFound { path: path.clone() });
                }
                Found::File => false,
                Found::Device => true,
            };
            let file = open_locked(path, false, faults)?;
            let len = file.metadata().map_err(io_error(path, "examine"))?.len();
            if !device && len < HEADER_BYTES {
                // Too short for a superblock, so its first bytes decide the error.
                return Err(match refuse_existing(path) {
                    PoolError::Exists { path } => PoolError::Truncated {
                        path,
                        len,
                        expected: HEADER_BYTES,
                    },
                    other => other,
                });
            }
            let opened = open_file(file, path, cap, choice, device, faults)?;
            if !device && opened.committed > cap {
                return Err(PoolError::Invalid(format!(
                    "the pool {} has {} bytes, more than the given size of {cap} bytes; raise the \
                     pool's size",
                    path.display(),
                    opened.committed
                )));
            }
            Ok(opened)
        }
    }
}

/// Opens the backing of an existing pool without changing a byte of it: stores are lost with the
/// process. Several processes may do so at the same time.
fn open_private(backing: &Backing, cap: u64, choice: MediumChoice) -> Result<Opened, PoolError> {
    let Backing::File(path) = backing else {
        return Err(PoolError::Unsupported(format!(
            "the pool {} is not a file, and only files can be opened read-only",
            backing.path().display()
        )));
    };
    match look(path)? {
        Found::Nothing | Found::EmptyFile => {
            return Err(PoolError::NotFound { path: path.clone() });
        }
        Found::Device => {
            return Err(PoolError::Unsupported(format!(
                "{} is a device, and only files can be opened read-only",
                path.display()
            )));
        }
        Found::File => {}
    }
    let file = File::open(path).map_err(io_error(path, "open"))?;
    let file = lock::shared(file).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => PoolError::Locked { path: path.clone() },
        _ => io_error(path, "lock")(e),
    })?;
    let bytes = file.metadata().map_err(io_error(path, "examine"))?.len();
    let committed = bytes - bytes % 4096;
    if committed < HEADER_BYTES {
        return Err(match refuse_existing(path) {
            PoolError::Exists { path } => PoolError::Truncated {
                path,
                len: bytes,
                expected: HEADER_BYTES,
            },
            other => other,
        });
    }
    if committed > cap {
        return Err(PoolError::Invalid(format!(
            "the pool {} has {committed} bytes, more than the given size of {cap} bytes; raise the \
             pool's size",
            path.display()
        )));
    }
    let mapped = medium::map_private(&file, cap as usize, committed as usize, choice)
        .map_err(io_error(path, "map"))?;
    Ok(Opened {
        store: Store::Private { file },
        memory: Arc::new(mapped.memory),
        committed,
        medium: mapped.medium,
        forced: mapped.forced,
        flush: mapped.flush,
        hook: None,
        boot_id: system_boot_id(),
    })
}

impl Store {
    /// Renames a new file to its final name, durably.
    pub(crate) fn adopt_name(&self, faults: Option<&PoolFaults>) -> io::Result<()> {
        let injected = |what| faults.map_or(Ok(()), |faults| faults.file(what));
        if let Store::File {
            file,
            path,
            device: false,
        } = self
        {
            // PERSIST: the superblock before the name. Reversed, a crash could leave a file with
            // the pool's name that is not a pool.
            injected("sync")?;
            file.sync_all()?;
            injected("rename")?;
            std::fs::rename(nascent(path), path)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            let sync = || File::open(dir.unwrap_or(Path::new(".")))?.sync_all();
            let synced = injected("sync the directory of").and_then(|()| sync());
            if synced.is_err() {
                // The caller abandons the file, which removes it by its temporary name. Under its
                // final name it would be taken for the pool of a database whose OPTIONS is missing.
                std::fs::rename(path, nascent(path))?;
            }
            synced?;
        }
        Ok(())
    }

    /// Removes a file that still has its temporary name.
    pub(crate) fn abandon(&self) {
        if let Store::File {
            path,
            device: false,
            ..
        } = self
        {
            let _ = std::fs::remove_file(nascent(path));
        }
    }

    /// Allocates bytes `from..to` of the backing, so that no store to them can fail.
    pub(crate) fn grow(&self, from: u64, to: u64) -> io::Result<()> {
        match self {
            Store::File { device: true, .. } => Err(io::ErrorKind::StorageFull.into()),
            Store::Anonymous | Store::Private { .. } => Ok(()),
            Store::Simulated(machine) => {
                machine.pm_resize(to);
                Ok(())
            }
            Store::File { file, .. } => {
                let none = FallocateFlags::empty();
                match uninterrupted(|| rustix::fs::fallocate(&**file, none, from, to - from)) {
                    Ok(()) => Ok(()),
                    Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(file, from, to),
                    Err(e) => {
                        // Space left by a failed growth would count as part of the pool when it is
                        // reopened.
                        let _ = file.set_len(from);
                        Err(e.into())
                    }
                }
            }
        }
    }

    /// Frees the bytes after `to`.
    pub(crate) fn shrink(&self, to: u64, faults: Option<&PoolFaults>) -> io::Result<()> {
        faults.map_or(Ok(()), |faults| faults.file("cut"))?;
        match self {
            Store::File { device: true, .. } | Store::Anonymous | Store::Private { .. } => Ok(()),
            Store::File { file, .. } => file.set_len(to),
            Store::Simulated(machine) => {
                machine.pm_resize(to);
                Ok(())
            }
        }
    }

    /// Syncs all pages of the pool. On `Dax`, stores need a flush and a fence as well.
    pub(crate) fn sync_all(&self) -> io::Result<()> {
        match self {
            Store::File { device: true, .. } | Store::Anonymous | Store::Private { .. } => Ok(()),
            Store::File { file, .. } => file.sync_all(),
            Store::Simulated(machine) => {
                machine.pm_sync_all();
                Ok(())
            }
        }
    }

    /// Returns a random identity for a new pool.
    pub(crate) fn new_uuid(&self) -> io::Result<[u8; 16]> {
        if let Store::Simulated(machine) = self {
            return Ok(machine.new_uuid());
        }
        random_id()
    }
}

/// Returns 16 random bytes from the system, for a new identity.
///
/// # Errors
/// The system's error.
pub fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Store::Simulated(machine) = self {
            machine.pm_close();
        }
    }
}

/// Allocates space by writing zeros if the file system has no `fallocate`.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    // BOUND: each iteration writes at least one byte.
    while at < to {
        let len = (to - at).min(zeros.len() as u64) as usize;
        if let Err(e) = file.write_all_at(&zeros[..len], at) {
            let _ = file.set_len(from);
            return Err(e);
        }
        at += len as u64;
    }
    Ok(())
}

/// Returns the identity of this boot, or a random, unique one if the kernel provides none.
pub(super) fn system_boot_id() -> [u8; 16] {
    let mut id = [0; 16];
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    if digits.len() == 32 {
        for (byte, pair) in id.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = pair[0] << 4 | pair[1];
        }
    } else if let Ok(mut file) = File::open("/dev/urandom") {
        let _ = file.read_exact(&mut id);
    }
    id
}
