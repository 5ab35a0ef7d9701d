//! The files of a simulated machine.
//!
//! Each file has working and durable content in blocks, each directory working and durable names. A
//! sync of a file makes its content durable, and a sync of a directory the names in it. At a crash,
//! unsynced blocks survive, vanish or tear at a sector, and each unsynced change of names survives
//! or vanishes as a whole, so that a rename is atomic.
//!
//! Invariants
//!   F1  The durable names are the state before `pending`; applying all of `pending` to them gives
//!       the working names.

use super::Machine;
use super::choose::Chooser;
use crate::fs::{Advice, File, FileLock, FileSystem, OpenMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BLOCK: usize = 4096;
const SECTOR: usize = 512;

type Block = Option<Arc<[u8; BLOCK]>>;

/// Content in blocks; `None` stands for a block of zeros.
#[derive(Clone, Default)]
struct Content {
    len: u64,
    blocks: Vec<Block>,
}

fn block_mut(block: &mut Block) -> &mut [u8; BLOCK] {
    Arc::make_mut(block.get_or_insert_with(|| Arc::new([0; BLOCK])))
}

impl Content {
    fn read(&self, off: u64, buf: &mut [u8]) -> usize {
        let len = self.len.saturating_sub(off).min(buf.len() as u64) as usize;
        let mut done = 0;
        // BOUND: each iteration copies at least one byte.
        while done < len {
            let at = off as usize + done;
            let (index, from) = (at / BLOCK, at % BLOCK);
            let n = (BLOCK - from).min(len - done);
            match self.blocks.get(index).and_then(Option::as_ref) {
                Some(block) => buf[done..done + n].copy_from_slice(&block[from..from + n]),
                None => buf[done..done + n].fill(0),
            }
            done += n;
        }
        len
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            let (index, from) = (len as usize / BLOCK, len as usize % BLOCK);
            self.blocks.truncate(index + usize::from(from > 0));
            // Bytes after the end are zero, so that extending the file again reads as zeros.
            if from > 0
                && let Some(block @ Some(_)) = self.blocks.get_mut(index)
            {
                block_mut(block)[from..].fill(0);
            }
        }
        self.len = len;
        self.blocks.resize((len as usize).div_ceil(BLOCK), None);
    }
}

#[derive(Clone, Default)]
struct Node {
    working: Content,
    durable: Content,
    /// Blocks written since the last sync.
    dirty: BTreeSet<usize>,
    handles: usize,
}

impl Node {
    fn write(&mut self, off: u64, buf: &[u8]) {
        let end = off + buf.len() as u64;
        if end > self.working.len {
            self.working.set_len(end);
        }
        let mut done = 0;
        // BOUND: each iteration copies at least one byte.
        while done < buf.len() {
            let at = off as usize + done;
            let (index, from) = (at / BLOCK, at % BLOCK);
            let n = (BLOCK - from).min(buf.len() - done);
            let block = block_mut(&mut self.working.blocks[index]);
            block[from..from + n].copy_from_slice(&buf[done..done + n]);
            self.dirty.insert(index);
            done += n;
        }
    }

    fn set_len(&mut self, len: u64) {
        let (old, new) = (self.working.len, len);
        self.working.set_len(len);
        // All blocks whose content depends on the change of length.
        let first = old.min(new) as usize / BLOCK;
        self.dirty
            .extend(first..(old.max(new) as usize).div_ceil(BLOCK));
    }

    /// Makes the blocks of a range durable and nothing else.
    fn sync_part(&mut self, off: u64, bytes: usize) {
        let end = off + bytes as u64;
        if end > self.durable.len {
            self.durable.set_len(end);
        }
        let last = (end as usize).div_ceil(BLOCK);
        for index in off as usize / BLOCK..last {
            if let (Some(durable), Some(block)) = (
                self.durable.blocks.get_mut(index),
                self.working.blocks.get(index),
            ) {
                *durable = block.clone();
            }
            // Bytes of a block after the durable length are durable only with the length.
            if (index + 1) * BLOCK <= self.durable.len as usize {
                self.dirty.remove(&index);
            }
        }
    }

    fn sync(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        self.durable.set_len(self.working.len);
        for index in dirty {
            if let Some(block) = self.working.blocks.get(index) {
                self.durable.blocks[index] = block.clone();
            }
        }
    }

    /// Returns the content after a power loss.
    fn crash(&self, chooser: &mut Chooser) -> Content {
        let (old, new) = (self.durable.len, self.working.len);
        let len = if new >= old {
            chooser.between(old, new)
        } else if chooser.keeps() {
            new
        } else {
            old
        };
        let mut left = self.durable.clone();
        left.set_len(len);
        for &index in &self.dirty {
            let Some(to) = left.blocks.get_mut(index) else {
                break;
            };
            let sectors = chooser.part(BLOCK / SECTOR) * SECTOR;
            if sectors == 0 {
                continue;
            }
            match self.working.blocks.get(index).and_then(Option::as_ref) {
                Some(from) => block_mut(to)[..sectors].copy_from_slice(&from[..sectors]),
                None => block_mut(to)[..sectors].fill(0),
            }
        }
        // The surviving part of the last block may exceed the length.
        let end = left.len;
        left.len = (left.blocks.len() * BLOCK) as u64;
        left.set_len(end);
        left
    }
}

/// A change of names that survives as a whole or not at all.
#[derive(Clone)]
struct Renaming {
    sets: Vec<(PathBuf, Option<u64>)>,
}

impl Renaming {
    fn folders(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.sets
            .iter()
            .filter_map(|(path, _)| Some(path.parent()?.to_owned()))
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        for (path, node) in &self.sets {
            match node {
                Some(node) => names.insert(path.clone(), *node),
                None => names.remove(path),
            };
        }
    }
}

/// All files and directories of a machine.
#[derive(Clone, Default)]
pub(super) struct Files {
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    pending: Vec<Renaming>,
    folders: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    next: u64,
}

impl Files {
    fn has_folder(&self, dir: &Path) -> bool {
        dir.as_os_str().is_empty()
            || dir == Path::new("/")
            || dir == Path::new(".")
            || self.folders.contains(dir)
    }

    fn check_parent(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.has_folder(parent) {
            Ok(())
        } else {
            Err(not_found(parent))
        }
    }

    fn change(&mut self, sets: Vec<(PathBuf, Option<u64>)>) {
        let renaming = Renaming { sets };
        renaming.apply(&mut self.names);
        self.pending.push(renaming);
    }

    fn sync_dir(&mut self, dir: &Path) {
        // Syncing a change also syncs each earlier change that shares a directory with it, so that
        // the changes still pending follow the durable ones (F1).
        let mut dirs = BTreeSet::from([dir.to_owned()]);
        let mut apply = Vec::new();
        let mut keep = Vec::new();
        for renaming in self.pending.drain(..).rev() {
            let touched: Vec<PathBuf> = renaming.folders().collect();
            if touched.iter().any(|dir| dirs.contains(dir)) {
                dirs.extend(touched);
                apply.push(renaming);
            } else {
                keep.push(renaming);
            }
        }
        keep.reverse();
        apply.reverse();
        self.pending = keep;
        for renaming in apply {
            renaming.apply(&mut self.durable_names);
        }
        self.forget_nodes();
    }

    /// Drops content without names and handles.
    fn forget_nodes(&mut self) {
        let named: BTreeSet<u64> = self
            .names
            .values()
            .chain(self.durable_names.values())
            .copied()
            .chain(
                self.pending
                    .iter()
                    .flat_map(|r| r.sets.iter().filter_map(|(_, node)| *node)),
            )
            .collect();
        self.nodes
            .retain(|id, node| node.handles > 0 || named.contains(id));
    }

    /// Returns the state after a process crash.
    pub(super) fn process(&self) -> Files {
        let mut files = self.clone();
        files.close_all();
        files
    }

    /// Returns a possible state after a power loss.
    pub(super) fn crash(&self, chooser: &mut Chooser) -> Files {
        let mut names = self.durable_names.clone();
        for renaming in &self.pending {
            if chooser.keeps() {
                renaming.apply(&mut names);
            }
        }
        let mut nodes = BTreeMap::new();
        for id in names.values() {
            if let Some(node) = self.nodes.get(id) {
                let left = node.crash(chooser);
                let node = Node {
                    working: left.clone(),
                    durable: left,
                    ..Node::default()
                };
                nodes.insert(*id, node);
            }
        }
        Files {
            nodes,
            durable_names: names.clone(),
            names,
            pending: Vec::new(),
            folders: self.folders.clone(),
            locks: BTreeSet::new(),
            next: self.next,
        }
    }

    fn close_all(&mut self) {
        self.locks.clear();
        for node in self.nodes.values_mut() {
            node.handles = 0;
        }
        self.forget_nodes();
    }
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("{} does not exist", path.display()),
    )
}

/// The file system of one machine.
pub(super) struct SimFs {
    machine: Machine,
}

impl SimFs {
    pub(super) fn new(machine: Machine) -> SimFs {
        SimFs { machine }
    }

    fn files<R>(&self, f: impl FnOnce(&mut Files) -> R) -> R {
        f(&mut self.machine.inner.files.lock())
    }
}

impl FileSystem for SimFs {
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.files(|files| {
            for dir in dir.ancestors() {
                if files.names.contains_key(dir) {
                    let text = format!("{} is a file", dir.display());
                    return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
                }
                files.folders.insert(dir.to_owned());
            }
            Ok(())
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.files(|files| {
            if !files.has_folder(dir) {
                return Err(not_found(dir));
            }
            let mut names: Vec<String> = files
                .names
                .keys()
                .chain(&files.folders)
                .filter(|path| path.parent() == Some(dir))
                .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .collect();
            names.sort();
            Ok(names)
        })
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn File>> {
        let node = self.files(|files| {
            files.check_parent(path)?;
            if files.folders.contains(path) {
                let text = format!("{} is a directory", path.display());
                return Err(io::Error::new(io::ErrorKind::IsADirectory, text));
            }
            let id = match files.names.get(path) {
                Some(_) if mode.is_new() => {
                    let text = format!("{} exists", path.display());
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
                }
                Some(id) => *id,
                None if matches!(
                    mode,
                    OpenMode::Read | OpenMode::ReadDirect | OpenMode::Write
                ) =>
                {
                    return Err(not_found(path));
                }
                None => {
                    files.next += 1;
                    let id = files.next;
                    files.nodes.insert(id, Node::default());
                    files.change(vec![(path.to_owned(), Some(id))]);
                    id
                }
            };
            let node = files.nodes.entry(id).or_default();
            node.handles += 1;
            if mode == OpenMode::Truncate {
                node.set_len(0);
            }
            Ok(id)
        })?;
        let writable = !matches!(mode, OpenMode::Read | OpenMode::ReadDirect);
        Ok(Box::new(SimFile {
            machine: self.machine.clone(),
            node,
            writable,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.machine.point("rename", None);
        self.files(|files| {
            files.check_parent(to)?;
            let id = *files.names.get(from).ok_or_else(|| not_found(from))?;
            if from != to {
                files.change(vec![(from.to_owned(), None), (to.to_owned(), Some(id))]);
            }
            Ok(())
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.files(|files| {
            files.check_parent(to)?;
            let id = *files.names.get(from).ok_or_else(|| not_found(from))?;
            if files.names.contains_key(to) || files.has_folder(to) {
                let text = format!("{} exists", to.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            files.change(vec![(to.to_owned(), Some(id))]);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files(|files| {
            if !files.names.contains_key(path) {
                return Err(not_found(path));
            }
            files.change(vec![(path.to_owned(), None)]);
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.machine.point("folder sync", None);
        self.files(|files| {
            if !files.has_folder(dir) {
                return Err(not_found(dir));
            }
            files.sync_dir(dir);
            Ok(())
        })
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.files(|files| Ok(files.names.contains_key(path) || files.has_folder(path)))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn FileLock>> {
        drop(self.open(path, OpenMode::Create)?);
        self.files(|files| {
            if files.locks.insert(path.to_owned()) {
                Ok(Box::new(SimLock {
                    machine: self.machine.clone(),
                    path: path.to_owned(),
                }) as _)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            }
        })
    }
}

struct SimLock {
    machine: Machine,
    path: PathBuf,
}

impl FileLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.machine.inner.files.lock().locks.remove(&self.path);
    }
}

struct SimFile {
    machine: Machine,
    node: u64,
    writable: bool,
}

impl SimFile {
    fn node<R>(&self, f: impl FnOnce(&mut Node) -> R) -> R {
        f(self
            .machine
            .inner
            .files
            .lock()
            .nodes
            .entry(self.node)
            .or_default())
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.writable {
            Ok(())
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
}

impl File for SimFile {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.node(|node| node.working.read(off, buf)))
    }

    fn write_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        self.node(|node| node.write(off, buf));
        Ok(())
    }

    fn write_durable_at(&self, off: u64, buf: &[u8]) -> io::Result<()> {
        self.check_writable()?;
        self.node(|node| node.write(off, buf));
        self.machine.point("file sync", None);
        self.node(|node| node.sync_part(off, buf.len()));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.node(|node| node.working.len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.node(|node| node.set_len(len));
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        self.node(|node| {
            if len > node.working.len {
                node.set_len(len);
            }
        });
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.machine.point("file sync", None);
        self.node(Node::sync);
        Ok(())
    }

    fn advise(&self, _: u64, _: u64, _: Advice) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.node(|node| node.handles = node.handles.saturating_sub(1));
    }
}
