//! Checkpoints: copies of a database as it is at one moment, made while writers run.
//!
//! Table files never change, so they are linked, or copied if the file system cannot link; data in
//! memory or in the pool goes through the new database's own bottom. The new database is made in
//! the usual order: pool, files, manifest, and OPTIONS last.
//!
//! CRASH: the new directory contains the mark of `db/unfinished.rs` until the copy is whole. The
//! user removes what an interrupted checkpoint has left.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use terrace_media::{FileSystem, OpenMode, Prefault};

use super::open::{DbBuilder, LOCK};
use super::unfinished::Filling;
use super::{Db, Progress};
use crate::engine::Engine;
use crate::engine::freeze::Frozen;
use crate::error::{Error, Result};
use crate::options::{LeveledOptions, Workers};
use crate::parts::batch::Batch;
use crate::parts::expiry::Value;
use crate::parts::iter::Cursor;
use crate::parts::key::Target;
use crate::parts::manifest::{Change, Edit};
use crate::stages::{Folder, Shared};
use crate::types::{Durability, EntryKind, SeqNo};

/// Bytes copied at once if a file cannot be linked.
const COPY_BYTES: usize = 1 << 20;
/// Bytes of one batch if the copy goes through logs.
const BATCH_BYTES: usize = 64 << 10;

/// The result of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// Table files that both databases share from now on, as long as both need them.
    pub files_linked: u64,
    /// Table files that were copied, since the file system could not link them.
    pub files_copied: u64,
    /// Bytes of those files, linked and copied.
    pub file_bytes: u64,
    /// Entries that were in memory or in the pool.
    pub entries: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl Db {
    /// Copies the database, as it is at one moment, into a separate database: in the directory
    /// `path`, which must not exist or be empty, with a pool next to the files if this database has
    /// one. Writers and readers continue; creating and dropping keyspaces waits.
    ///
    /// Table files are linked if the file system can, so that designs with files copy little.
    /// `MioDb` copies all live data.
    ///
    /// # Errors
    /// `Invalid` if there is anything at `path`, or if it is in the directory of this database;
    /// `Full` and `Io` of the copy; `Closed`. After an error the parts of the copy are removed if
    /// possible, and `path` is no database; only if the very last step failed, the removal of the
    /// mark `UNFINISHED-CHECKPOINT`, it may be a whole one. A directory with the mark, as a crash
    /// can leave it, is not opened.
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<CheckpointReport> {
        Db::builder(path)
            .file_system(Arc::clone(self.file_system()))
            .checkpoint_of(self)
    }
}

impl DbBuilder {
    /// Makes the builder's directory a copy of `db`, as [`Db::checkpoint`] does. Of the builder's
    /// options only the pool's path counts: the location of the copy's pool, if `db` has one.
    pub fn checkpoint_of(mut self, db: &Db) -> Result<CheckpointReport> {
        let started = Instant::now();
        self.fix_path()?;
        self.options = self.options_of_copy(db);
        let pool_file = self.options.pool.path.as_ref();
        let pool_file = pool_file.map(|pool| self.path.join(pool));
        if self.is_inside(db.path()) {
            return Err(Error::invalid(format!(
                "{} is in the directory of the database to be copied: choose another path",
                self.path.display()
            )));
        }
        let had_folder = self.check_target()?;
        // LOCK: taken before all others. A keyspace dropped during the copy would be there in part.
        let _catalog = db.catalog().lock();
        let frozen = db.engine().freeze()?;
        let mut made_pool = false;
        let made = self.make_copy(db, frozen, &mut made_pool);
        if made.is_err() {
            let id = db.engine().shared.manifest.db();
            let pool = pool_file.filter(|_| made_pool);
            self.remove_unfinished(Filling::Checkpoint, id, pool, had_folder);
        }
        Ok(CheckpointReport {
            elapsed: started.elapsed(),
            ..made.map_err(Error::of_new)?
        })
    }

    fn options_of_copy(&self, db: &Db) -> crate::Options {
        let mut options = db.options().clone();
        // The copy states what the source states, not what the design sets; only its tables fit the
        // disk.
        let stated = db.options_stated();
        let memtable = &mut options.front.memtable_bytes;
        *memtable = stated.front.memtable_bytes.min(*memtable);
        options.front.pm_memtable_bytes = stated.front.pm_memtable_bytes;
        options.buffer.levels = stated.buffer.levels;
        options.buffer.table_bytes_max = stated.buffer.table_bytes_max;
        options.bottom.leveled = LeveledOptions {
            table_bytes: options.bottom.leveled.table_bytes,
            ..stated.bottom.leveled.clone()
        };
        options.pool.path = match (&options.pool.path, &self.options.pool.path) {
            (None, _) => None,
            (Some(_), Some(given)) => Some(given.clone()),
            (Some(own), None) if own.is_relative() => Some(own.clone()),
            // Not the pool of the database that is copied.
            (Some(_), None) => Some(PathBuf::from("pool")),
        };
        options.pool.prefault = Prefault::None;
        options.background.workers = Workers::Manual;
        options.read_only = false;
        options
    }

    /// Returns whether the builder's directory, which need not exist, is `dir` or in it, through
    /// links too.
    pub(super) fn is_inside(&self, dir: &Path) -> bool {
        let identity = |path: &Path| self.fs.identity(path).ok().flatten();
        let Some(of_dir) = identity(dir) else {
            return self.path.starts_with(dir);
        };
        let exists = |path: &&Path| identity(path).is_some();
        let Some(nearest) = self.path.ancestors().find(exists) else {
            return false;
        };
        let mut at = nearest.to_owned();
        // BOUND: the root is its own parent. The system resolves "..", also behind a link.
        loop {
            let here = identity(&at);
            if here == Some(of_dir) {
                return true;
            }
            at.push("..");
            if identity(&at) == here {
                return false;
            }
        }
    }

    /// Refuses a directory that is not empty. Returns whether it exists.
    pub(super) fn check_target(&self) -> Result<bool> {
        let failed = |e| Error::io("access", &self.path, e);
        if !self.fs.exists(&self.path).map_err(failed)? {
            return Ok(false);
        }
        let names = self.fs.list(&self.path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotADirectory => Error::invalid(format!(
                "{} is a file, and the target of a copy must be a new or empty directory: choose \
                 another path",
                self.path.display()
            )),
            _ => failed(e),
        })?;
        match names.first() {
            None => Ok(true),
            Some(name) => Err(Error::invalid(format!(
                "{} is not empty, it contains {name}, and the target of a copy must be a new or \
                 empty directory: choose another path, or, if an interrupted checkpoint or repair \
                 left these files, remove them",
                self.path.display()
            ))),
        }
    }

    fn make_copy(&self, db: &Db, frozen: Frozen, made_pool: &mut bool) -> Result<CheckpointReport> {
        let mut report = CheckpointReport::default();
        self.fs
            .create_dir_all(&self.path)
            .map_err(|e| Error::io("create", &self.path, e))?;
        let lock = self.path.join(LOCK);
        let _lock = self
            .fs
            .lock(&lock)
            .map_err(|e| Error::io("lock", &lock, e))?;
        self.mark_unfinished(Filling::Checkpoint)?;
        // Its table files are those of the copied database: so is its id.
        let mark = self.begin_creation(db.engine().shared.manifest.db())?;
        let shared = Arc::new(self.ground_of_copy(mark, made_pool)?);
        self.name_files(db, &frozen, &shared, &mut report)?;
        if let Some(time) = db.engine().shared.time_told() {
            // Entries that have expired in the source have expired in the copy.
            shared.manifest.commit(Edit::of(time))?;
        }
        let (seq, total) = (frozen.seq(), frozen.bytes_beside_files());
        let cursor = frozen.cursor();
        let handed_out = cursor.handed_out();
        let mut watch = || {
            let done = handed_out.bytes.load(Ordering::Relaxed);
            self.report(Progress {
                what: "copying",
                done: done.min(total),
                total,
                unit: "bytes",
            });
        };
        let engine = self.fill_copy(&shared, Box::new(cursor), seq, &mut watch)?;
        report.entries = handed_out.entries.load(Ordering::Relaxed);
        self.finish_copy(&engine)?;
        self.mark_finished(Filling::Checkpoint)?;
        Ok(report)
    }

    /// Moves all of `cursor`, whose numbers go up to `seq`, into the new database on `shared`.
    pub(super) fn fill_copy(
        &self,
        shared: &Arc<Shared>,
        cursor: Box<dyn Cursor>,
        seq: SeqNo,
        watch: &mut dyn FnMut(),
    ) -> Result<Arc<Engine>> {
        let design = shared.options.design_of_new();
        design.create(shared)?;
        let folder = Folder {
            fs: Arc::clone(&self.fs),
            dir: self.path.clone(),
        };
        let (stages, _) = design.open(shared, folder, false, &mut |_, _, _| {})?;
        let engine = Arc::new(Engine::new(Arc::clone(shared), stages));
        if shared.survival().frees_logs() {
            engine.drain_all(cursor, seq, watch)?;
        } else {
            write_all(&engine, cursor, watch)?;
        }
        Ok(engine)
    }

    /// Makes the data in `engine` durable, and then the directory a database.
    pub(super) fn finish_copy(&self, engine: &Engine) -> Result<()> {
        let shared = &engine.shared;
        // Its logs are as after a close; those without records are retired by the next open.
        engine.stages.front.close()?;
        // PERSIST: everything before OPTIONS, which makes the directory a database. Reversed, a
        // crash could leave one that opens and lacks data of the copy.
        shared
            .pool
            .sync_all()
            .map_err(|e| Error::io("sync the pool of", &self.path, e))?;
        self.finish_creation(shared)?;
        Ok(shared.pool.mark_clean()?)
    }

    /// Links or copies the files, and names them in the new manifest.
    fn name_files(
        &self,
        db: &Db,
        frozen: &Frozen,
        shared: &Shared,
        report: &mut CheckpointReport,
    ) -> Result<()> {
        let files = frozen.files();
        if files.is_empty() {
            return Ok(());
        }
        let total: u64 = files.iter().map(|file| file.item.bytes()).sum();
        let mut changes = vec![Change::LastSeq { seq: frozen.seq() }];
        let mut next = 0;
        for file in &files {
            // The name has the file's number.
            let to = self.path.join(file.path.file_name().unwrap_or_default());
            // Any failure to link leads to a copy, and the copy reports what is wrong.
            match self.fs.link(&file.path, &to) {
                Ok(()) => report.files_linked += 1,
                Err(_) => {
                    copy(db.files(), &file.path, &self.fs, &to)?;
                    report.files_copied += 1;
                }
            }
            report.file_bytes += file.item.bytes();
            changes.push(Change::Added(Arc::clone(&file.item)));
            next = next.max(file.last_id + 1);
            self.report(Progress {
                what: "linking files",
                done: report.file_bytes,
                total,
                unit: "bytes",
            });
        }
        changes.push(Change::NextId { id: next });
        shared.skip_ids(next);
        // PERSIST: the files' names before the edit that names them. Reversed, a crash could leave
        // a manifest that names missing files.
        self.fs
            .sync_dir(&self.path)
            .map_err(|e| Error::io("sync", &self.path, e))?;
        Ok(shared.manifest.commit(Edit { changes })?)
    }
}

/// Copies a file durably, except for its name.
fn copy(
    from_fs: &Arc<dyn FileSystem>,
    from: &Path,
    to_fs: &Arc<dyn FileSystem>,
    to: &Path,
) -> Result<()> {
    let reading = |e| Error::io("read", from, e);
    let writing = |e| Error::io("write", to, e);
    let source = from_fs.open(from, OpenMode::Read).map_err(reading)?;
    let target = to_fs.open(to, OpenMode::CreateNew).map_err(writing)?;
    let len = source.len().map_err(reading)?;
    let mut buffer = vec![0; COPY_BYTES.min(len as usize)];
    let mut at = 0;
    while at < len {
        let size = ((len - at) as usize).min(buffer.len());
        let piece = &mut buffer[..size];
        source.read_exact_at(at, piece).map_err(reading)?;
        target.write_at(at, piece).map_err(writing)?;
        at += size as u64;
    }
    // PERSIST: the bytes before the edit that names the file; its name is made durable with others.
    target.sync_data().map_err(writing)
}

/// Writes all of `cursor` like a normal writer, for a database that keeps only logs.
fn write_all(
    engine: &Arc<Engine>,
    mut cursor: Box<dyn Cursor>,
    watch: &mut dyn FnMut(),
) -> Result<()> {
    cursor.seek(&Target::first_of(0, &[]))?;
    let mut batch = Batch::default();
    loop {
        let entry = cursor.entry()?;
        if batch.len() > 0 && (entry.is_none() || batch.payload.len_bytes() >= BATCH_BYTES) {
            engine.write(&mut batch, Durability::Buffered)?;
            batch.clear();
            watch();
        }
        let Some(entry) = entry else {
            return Ok(());
        };
        // There is nothing below that a tombstone could hide.
        if entry.kind == EntryKind::Put as u8 {
            let Value { bytes, expiry } = cursor.value()?;
            match expiry {
                0 => batch.push(EntryKind::Put, entry.keyspace, entry.key, bytes),
                _ => batch.push_expiring(entry.keyspace, entry.key, bytes, expiry),
            }
        }
        cursor.advance()?;
    }
}
