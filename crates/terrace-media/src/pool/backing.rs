//! What is behind a pool: a file, anonymous memory, or a simulated machine; how it is opened,
//! grown, cut and synced.

use super::error::PoolError;
use super::faults::PoolFaults;
use super::layout::{HEADER_BYTES, MAGIC};
use super::medium::{self, MediumChoice};
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

/// What a pool is made of.
#[derive(Clone, Debug)]
pub enum Backing {
    /// A file, or a DAX character device.
    File(PathBuf),
    /// Memory that goes with the process.
    Anonymous,
    /// The persistent memory of a simulated machine.
    Simulated(Machine),
}

impl Backing {
    /// How messages name it.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Backing::File(path) => path.clone(),
            Backing::Anonymous => PathBuf::from("(anonymous)"),
            Backing::Simulated(_) => PathBuf::from("(simulated)"),
        }
    }

    /// Returns the free bytes of the device of the file, or `None` if nothing reports them.
    pub fn free_bytes(&self) -> Option<u64> {
        let Backing::File(path) = self else {
            return None;
        };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let free = OsFs.free_bytes(dir.unwrap_or(Path::new(".")));
        free.ok().flatten()
    }
}

/// The open backing.
pub(crate) enum Store {
    File {
        file: Locked,
        path: PathBuf,
        device: bool,
    },
    Anonymous,
    /// A file that is only read; what is stored lies in memory.
    Private {
        file: Locked,
    },
    Simulated(Machine),
}

impl Store {
    /// Lets other processes open the file.
    pub(crate) fn unlock(&self) {
        match self {
            Store::File { file, .. } | Store::Private { file } => file.unlock(),
            Store::Anonymous | Store::Simulated(_) => {}
        }
    }
}

/// A backing that is open and mapped.
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) memory: Arc<Memory>,
    /// Bytes that exist, in whole pages.
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

/// Whether the next call on a pool's file is to fail.
fn injected(faults: Option<&PoolFaults>, path: &Path, op: &'static str) -> Result<(), PoolError> {
    faults.map_or(Ok(()), |faults| faults.file(op).map_err(io_error(path, op)))
}

/// The name under which a pool file is made before it gets its own.
fn nascent(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".creating");
    PathBuf::from(name)
}

/// Whether a file may be a pool whose making was interrupted: the magic is stored last.
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
            "{} is a device that does not tell its size; only DAX devices and files hold pools",
            path.display()
        ))
    })?;
    text.trim().parse().map_err(|_| {
        PoolError::Unsupported(format!(
            "{} has a size that is no number: {text}",
            path.display()
        ))
    })
}

/// What is at a path now.
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
            "{} is a folder; a pool is a file inside of one",
            path.display()
        ))),
        Ok(meta) if meta.file_type().is_char_device() => Ok(Found::Device),
        Ok(meta) if !meta.is_file() => Err(PoolError::Invalid(format!(
            "{} is neither a file nor a DAX device, so it cannot hold a pool",
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
    // Gives the memory back when it is dropped.
    let store = Store::Simulated(machine.clone());
    let (memory, committed) = machine.pm_open(cap).map_err(io_error(path, "map"))?;
    if committed > cap {
        return Err(PoolError::Invalid(format!(
            "the simulated pool has {committed} bytes, more than the size of {cap} bytes it is opened with; open it \
             with at least as much"
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

/// Opens the backing of a pool that is to be made. A file has a temporary name until `adopt_name`.
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
    let nascent = nascent(path);
    let file = open_locked(&nascent, true, faults)?;
    // Whoever had the lock before may have given this very file its final name.
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
            "{} is in the way: a pool has this name while it is made, and it is no pool; move the file \
             away, or name another pool",
            nascent.display()
        )));
    }
    injected(faults, path, "empty")?;
    file.set_len(0).map_err(io_error(path, "empty"))?;
    open_file(file, path, cap, choice, false, faults).inspect_err(|_| {
        let _ = std::fs::remove_file(&nascent);
    })
}

/// Why a file that is there already is not made a pool.
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

/// Bytes as a message shows them.
pub(crate) fn printable(bytes: &[u8]) -> String {
    if bytes.iter().all(|b| *b == 0) {
        return "zero bytes".to_owned();
    }
    format!("\"{}\"", bytes.escape_ascii())
}

/// Opens the backing of a pool that exists; `private`: without changing it.
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
                // Too short to map a superblock: its first bytes say what it was.
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
                    "the pool {} has {} bytes, more than the size of {cap} bytes it is opened \
                     with; open it with at least as much",
                    path.display(),
                    opened.committed
                )));
            }
            Ok(opened)
        }
    }
}

/// Opens the backing of a pool that exists, without changing a byte of it: what is stored into the
/// pool goes with the process. Others may do the same at the same time.
fn open_private(backing: &Backing, cap: u64, choice: MediumChoice) -> Result<Opened, PoolError> {
    let Backing::File(path) = backing else {
        return Err(PoolError::Unsupported(format!(
            "the pool {} is no file, and only files can be opened without being changed",
            backing.path().display()
        )));
    };
    match look(path)? {
        Found::Nothing | Found::EmptyFile => {
            return Err(PoolError::NotFound { path: path.clone() });
        }
        Found::Device => {
            return Err(PoolError::Unsupported(format!(
                "{} is a device, and only files can be opened without being changed",
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
            "the pool {} has {committed} bytes, more than the size of {cap} bytes it is opened \
             with; open it with at least as much",
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
    /// Gives a file that was just made its own name, durably.
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
            let synced = injected("sync the folder of").and_then(|()| sync());
            if synced.is_err() {
                // The caller gives the file up, which removes it by its first name. Left under its own, it would be
                // taken for the pool of a database whose OPTIONS is missing.
                std::fs::rename(path, nascent(path))?;
            }
            synced?;
        }
        Ok(())
    }

    /// Removes a file that was not given its own name.
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

    /// Makes bytes `from..to` exist, with space behind them, so that no store to them can fail.
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
                        // What a failed growth left behind would be taken for pool on reopening.
                        let _ = file.set_len(from);
                        Err(e.into())
                    }
                }
            }
        }
    }

    /// Gives the bytes after `to` back.
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

    /// Makes every byte of the pool durable.
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

    /// A random identity for a new pool.
    pub(crate) fn new_uuid(&self) -> io::Result<[u8; 16]> {
        if let Store::Simulated(machine) = self {
            return Ok(machine.new_uuid());
        }
        random_id()
    }
}

/// Sixteen random bytes of the system's, for the identity of something that is made.
///
/// # Errors
/// The system gives none.
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

/// Takes space where the file system cannot do it by itself.
fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    // BOUND: every turn writes at least one byte.
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

/// The identity of this boot; random, so that it equals no other, if the kernel does not tell.
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
