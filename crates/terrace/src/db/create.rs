//! Creating databases, in directories that may contain foreign files, and finding which files of a
//! directory belong to a database.
//!
//! A creation begins with a mark: an empty file whose name contains the ids of the database and of
//! its pool. Then come the pool or MANIFEST, the stages, OPTIONS, a word in the pool or in MANIFEST
//! which records that OPTIONS existed, and last the removal of the mark.
//!
//! Invariants
//!   C1  Without OPTIONS there is no database. Any other trace of one then means that OPTIONS is
//!       lost, and nothing is created, removed or hidden; unless a mark proves that the trace
//!       belongs to an unfinished creation.
//!   C2  Anything that is removed carries the id of the mark, in its name or in its header.
//!   C3  The word is set when OPTIONS is durable. Anything with the word belongs to no unfinished
//!       creation.
//!
//! CRASH: before the mark is durable nothing else exists. After it, everything carries the ids of
//! the mark; the next open removes it and restarts under the same mark. With OPTIONS the database
//! is complete; the next open sets the word if it is missing, and removes the mark.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{FileSystem, OpenMode, Pool, PoolError, PoolHeader};

use super::open::{
    CREATED_ROOT, DbBuilder, LOCK, MANIFEST_BYTES, Made, MadePool, REDO_ROOTS, uuid_text,
};
use super::{Db, RecoveryReport};
use crate::designs::OWNERS;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::options::file::{NAME as OPTIONS, OptionsFile};
use crate::parts::manifest::layout::{HEADER_BYTES, manifest_database};
use crate::parts::manifest::{Change, Edit, FILE_NAME as MANIFEST, Manifest};
use crate::parts::redo::RedoArea;
use crate::parts::reserve::reserve_owner;
use crate::stages::Shared;
use crate::stages::file_names::{
    is_log_of, is_table_of, is_value_file_of, log_file_id, table_file_number, value_file_number,
};
use crate::types::{DbId, draft_owner};

/// The first bytes of a pool.
const POOL_MAGIC: &[u8; 8] = b"TERRPOOL";

/// The mark of an unfinished creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) db: DbId,
    /// The identity of the pool, which differs from that of the database: a copy has the id of its
    /// source, and its own pool.
    pub(super) pool: DbId,
}

impl Mark {
    fn name(&self) -> String {
        format!("CREATING-{}-{}", self.db, self.pool)
    }

    fn parse(name: &str) -> Option<Mark> {
        let (db, pool) = name.strip_prefix("CREATING-")?.split_once('-')?;
        let (db, pool) = (DbId::parse(db)?, DbId::parse(pool)?);
        Some(Mark { db, pool })
    }
}

/// Empties a file of the operating system. Returns an error for a device.
fn empty_file(path: &Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    file.set_len(0)?;
    file.sync_all()
}

/// Returns the names in a directory, or none if it does not exist.
fn names_in(fs: &dyn FileSystem, dir: &Path) -> Result<Vec<String>> {
    match fs.list(dir) {
        Ok(names) => Ok(names),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::io("list", dir, e)),
    }
}

/// Returns the first bytes of a file, or none if it cannot be read.
fn head_of(fs: &dyn FileSystem, path: &Path, len: usize) -> Vec<u8> {
    let mut head = vec![0; len];
    let file = fs.open(path, OpenMode::Read);
    match file.and_then(|file| file.read_exact_at(0, &mut head)) {
        Ok(()) => head,
        Err(_) => Vec::new(),
    }
}

/// Returns whether the file `name` provably belongs to the database `db`, except its OPTIONS and
/// LOCK.
fn is_own(fs: &dyn FileSystem, dir: &Path, name: &str, db: DbId) -> bool {
    let path = dir.join(name);
    if let Some(number) = table_file_number(name) {
        return is_table_of(fs, &path, db, number);
    }
    if let Some(number) = value_file_number(name) {
        return is_value_file_of(fs, &path, db, number);
    }
    if log_file_id(name).is_some() {
        return is_log_of(fs, &path, db);
    }
    if name == MANIFEST {
        return manifest_database(&head_of(fs, &path, HEADER_BYTES)) == Some(db);
    }
    draft_owner(name).or(reserve_owner(name)) == Some(db)
}

/// Returns which trace of a database the file `name` is, unless it belongs to the database of
/// `mark`.
fn trace(fs: &dyn FileSystem, dir: &Path, name: &str, mark: Option<Mark>) -> Option<&'static str> {
    if mark.is_some_and(|mark| is_own(fs, dir, name, mark.db)) {
        return None;
    }
    let path = dir.join(name);
    if name == MANIFEST {
        Some("a manifest")
    } else if log_file_id(name).is_some() {
        Some("a log")
    } else if let Some(number) = table_file_number(name) {
        // Another program may use the same name.
        let owner = crate::stages::file_names::table_file_owner(fs, &path);
        owner.is_some_and(|(_, n)| n == number).then_some("a table")
    } else if let Some(number) = value_file_number(name) {
        let owner = crate::stages::file_names::value_file_owner(fs, &path);
        owner
            .is_some_and(|(_, n)| n == number)
            .then_some("a value file")
    } else if draft_owner(name).is_some() {
        Some("an unfinished manifest")
    } else if reserve_owner(name).is_some() {
        Some("the reserve file")
    } else {
        let head = head_of(fs, &path, POOL_MAGIC.len());
        (head == POOL_MAGIC).then_some("a pool")
    }
}

impl Db {
    /// Removes the database in the directory `path`, and its pool unless that is a device. Files
    /// that do not provably belong to the database stay, and so does the directory if it contains
    /// any.
    ///
    /// # Errors
    /// `Invalid` if there is no database, `Locked` if it is open, `Corruption` if its own files
    /// cannot be determined, `Io`.
    ///
    /// ```
    /// # let place = tempfile::tempdir()?;
    /// # let folder = place.path().join("db");
    /// # let db = terrace::Db::open(&folder, terrace::testing::small_options())?;
    /// # use terrace::{Db, ErrorKind};
    /// let refused = Db::destroy(&folder).map_err(|e| e.kind());
    /// assert_eq!(refused, Err(ErrorKind::Locked));
    /// db.close()?;
    /// Db::destroy(&folder)?;
    /// assert!(!folder.exists());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn destroy(path: impl AsRef<Path>) -> Result<()> {
        let mut builder = Db::builder(path);
        builder.options.error_if_missing = true;
        builder.fix_path()?;
        let lock = builder.lock_folder()?;
        let Some(fixed) = OptionsFile::read(&builder.fs, &builder.path)? else {
            return Err(Error::invalid("the database was removed in the meantime"));
        };
        let mut pool = fixed.pool_path.as_ref().map(|at| builder.path.join(at));
        if let Some(at) = &pool {
            let header = builder.fs.open(at, OpenMode::Read);
            let header = header.ok().and_then(|f| PoolHeader::read(&*f, at).ok());
            let own = header.is_some_and(|h| DbId(h.uuid).to_string() == fixed.pool_uuid);
            if !own || !at.is_file() {
                pool = None;
            }
        }
        builder.remove_own(fixed.id, pool);
        drop(lock);
        if builder
            .fs
            .exists(&builder.path.join(OPTIONS))
            .unwrap_or(true)
        {
            let e = std::io::ErrorKind::PermissionDenied.into();
            return Err(Error::io("remove", &builder.path.join(OPTIONS), e));
        }
        // The directory may contain foreign files.
        let _ = builder.fs.remove_dir(&builder.path);
        Ok(())
    }
}

impl DbBuilder {
    /// Refuses a directory without OPTIONS that contains any trace of a database.
    pub(super) fn check_no_trace(&self) -> Result<()> {
        let names = names_in(&*self.fs, &self.path)?;
        let mark = names.iter().find_map(|name| Mark::parse(name));
        let own_pool = self.options.pool.path.as_ref().map(|p| self.path.join(p));
        for name in &names {
            let path = self.path.join(name);
            // A pool that is to be used is judged by its superblock words.
            let judged = Some(&path) != own_pool.as_ref() || mark.is_none();
            let nascent = mark.is_some() && name.ends_with(".creating");
            if let Some(what) = trace(&*self.fs, &self.path, name, mark)
                && judged
                && !nascent
            {
                return Err(self.options_lost(&path, what));
            }
        }
        let Some(mark) = mark.filter(|_| names.iter().any(|name| name == MANIFEST)) else {
            return Ok(());
        };
        // An unfinished manifest may be torn, and proves nothing.
        match Manifest::open_file(&self.fs, &self.path, OWNERS) {
            Ok(m) if m.db() == mark.db && m.with_state(|state| state.created) => {
                Err(self.options_lost(&self.path.join(MANIFEST), "a manifest"))
            }
            _ => Ok(()),
        }
    }

    fn options_lost(&self, path: &Path, what: &str) -> Error {
        Error::corruption(format!(
            "{} is {what} of a database whose OPTIONS file is missing, and a new database would \
             hide or destroy its data: restore OPTIONS from a copy, recover the readable data with \
             \"terrace repair {} --into DEST\", or move the file away",
            path.display(),
            self.path.display()
        ))
    }

    /// Creates a new identity.
    pub(super) fn new_id(&self) -> Result<DbId> {
        match &self.machine {
            Some(machine) => Ok(DbId(machine.new_uuid())),
            None => terrace_media::random_id().map(DbId).map_err(|e| {
                Error::new(
                    crate::error::ErrorKind::Io,
                    format!("cannot get random bytes from the system for the database's id: {e}"),
                )
            }),
        }
    }

    /// Begins a creation: from now on everything with these ids belongs to an unfinished creation.
    pub(super) fn begin_creation(&self, db: DbId) -> Result<Mark> {
        let mark = Mark {
            db,
            pool: self.new_id()?,
        };
        let path = self.path.join(mark.name());
        let made = self.fs.open(&path, OpenMode::CreateNew);
        made.map_err(|e| Error::io("create", &path, e))?;
        self.sync_mark()?;
        Ok(mark)
    }

    /// Makes the mark durable.
    fn sync_mark(&self) -> Result<()> {
        // PERSIST: the mark before anything that it proves. Reversed, a crash could leave files
        // that no later creation may remove.
        let synced = self.fs.sync_dir(&self.path);
        synced.map_err(|e| Error::io("sync", &self.path, e))
    }

    /// Creates the shared of a new database. `made` receives what is removed if opening it fails.
    pub(super) fn create(
        &self,
        report: &mut RecoveryReport,
        made: &mut Option<Made>,
    ) -> Result<Shared> {
        report.created = true;
        self.check_no_trace()?;
        let names = names_in(&*self.fs, &self.path)?;
        let found = names.iter().find_map(|name| Mark::parse(name));
        let mark = match found {
            Some(mark) => {
                // The process that made the mark may have been killed before it was durable.
                self.sync_mark()?;
                mark
            }
            None => self.begin_creation(self.new_id()?)?,
        };
        let mut options = self.options.clone();
        options.design = Some(options.design_of_new());
        let at = options.pool.path.as_ref().map(|at| self.path.join(at));
        let pool = at.map(|path| match path.symlink_metadata() {
            _ if self.machine.is_some() => MadePool::Simulated,
            Ok(_) => MadePool::Prepared(path),
            Err(_) => MadePool::New(path),
        });
        let made = made.insert(Made {
            db: mark.db,
            pool: None,
            resumed: found.is_some(),
        });
        let made_pool = self.make_pool(&options, mark)?;
        made.pool = pool;
        let pool = made_pool;
        for name in &names {
            let own = is_own(&*self.fs, &self.path, name, mark.db);
            if found.is_some() && (own || name.ends_with(&format!(".{}.creating", mark.pool))) {
                let path = self.path.join(name);
                let removed = self.fs.remove(&path);
                removed.map_err(|e| Error::io("remove the leftover file", &path, e))?;
            }
        }
        self.new_ground(pool, mark.db, options)
    }

    /// Creates the pool, or takes the one that the same creation has made before it was
    /// interrupted.
    fn make_pool(&self, options: &Options, mark: Mark) -> Result<Pool> {
        let mut config = self.pool_config(options)?;
        config.uuid = Some(mark.pool.0);
        let path = match Pool::create(config) {
            Err(PoolError::Exists { path }) => path,
            other => return Ok(other?),
        };
        let pool = Pool::open(self.pool_config(options)?)?;
        if pool.root(CREATED_ROOT) != 0 || pool.uuid() != mark.pool.0 {
            return Err(Error::invalid(format!(
                "{} is the pool of a database that is not in {}, or whose OPTIONS file is missing \
                 there: choose another pool, open the database that the pool belongs to, restore \
                 OPTIONS from a copy, or recover the readable data with \"terrace repair\"",
                path.display(),
                self.path.display()
            )));
        }
        Ok(pool)
    }

    /// Creates the shared of a copy, which is unknown to others until it is complete, in a new
    /// pool.
    pub(super) fn ground_of_copy(&self, mark: Mark, made_pool: &mut bool) -> Result<Shared> {
        let mut config = self.pool_config(&self.options)?;
        config.uuid = Some(mark.pool.0);
        let pool = Pool::create(config)?;
        *made_pool = true;
        let mut shared = self.new_ground(pool, mark.db, self.options.clone())?;
        shared.options.design_of_new().fix_options(&mut shared);
        Ok(shared)
    }

    fn new_ground(&self, pool: Pool, db: DbId, options: Options) -> Result<Shared> {
        let manifest = match options.pool.path {
            None => Manifest::create_file(&self.fs, &self.path, db, OWNERS)?,
            Some(_) => {
                let bytes = MANIFEST_BYTES.min(options.pool.size_bytes / 32);
                Manifest::create(&pool, db, bytes, OWNERS)?
            }
        };
        self.ground_on(pool, manifest, options)
    }

    /// Creates the shared of a pool without a redo area.
    pub(super) fn ground_on(
        &self,
        pool: Pool,
        manifest: Manifest,
        options: Options,
    ) -> Result<Shared> {
        let extent = pool.alloc(RedoArea::BYTES)?;
        let span = extent.span();
        let redo = RedoArea::create(&pool, extent)?;
        pool.set_roots(&[(REDO_ROOTS[0], span.off), (REDO_ROOTS[1], span.len)])?;
        let clock = Arc::clone(&self.clock);
        Ok(Shared::new(pool, manifest, redo, options, clock))
    }

    /// Records in the pool and in the directory that the database is complete.
    pub(super) fn finish_creation(&self, shared: &Shared) -> Result<()> {
        let (db, pool) = (shared.manifest.db(), uuid_text(&shared.pool));
        // PERSIST: everything in the pool before OPTIONS, which makes the directory a database,
        // OPTIONS before the word that records it (C3), and the word before the mark is removed.
        // Between them, an open finds OPTIONS, sets the word and removes the mark.
        let fixed = OptionsFile::of(&shared.stated, db, pool).in_folder(&self.path);
        fixed.write_new(&self.fs, &self.path)?;
        match shared.pool_outlives() {
            true => shared.pool.set_roots(&[(CREATED_ROOT, 1)])?,
            false => self.mark_created(&shared.manifest)?,
        }
        self.sweep(db)
    }

    pub(super) fn mark_created(&self, manifest: &Manifest) -> Result<()> {
        let changes = vec![Change::Created];
        let named = manifest.commit(Edit { changes });
        named.map_err(|e| self.name(e))
    }

    /// Removes the drafts of the database `db` that a crash has left, and the mark of its finished
    /// creation.
    pub(super) fn sweep(&self, db: DbId) -> Result<()> {
        for name in names_in(&*self.fs, &self.path)? {
            let own_mark = Mark::parse(&name).is_some_and(|mark| mark.db == db);
            if own_mark || draft_owner(&name) == Some(db) {
                let path = self.path.join(name);
                let removed = self.fs.remove(&path);
                removed.map_err(|e| Error::io("remove the leftover file", &path, e))?;
            }
        }
        Ok(())
    }

    /// Removes the parts of a creation that failed before there was OPTIONS, so that they take no
    /// space. LOCK stays, since others may have opened it.
    ///
    /// CRASH: the mark goes last, when the rest is durably gone, so the next open removes what is
    /// left.
    pub(super) fn take_back(&self, made: &Made) {
        let is_whole = self.fs.exists(&self.path.join(OPTIONS)).unwrap_or(true);
        if is_whole || made.resumed {
            return;
        }
        // With the mark, the next creation takes a pool that stays.
        let is_pool_gone = match &made.pool {
            None => true,
            Some(MadePool::New(path)) => {
                let dir = path.parent().unwrap_or(&self.path);
                self.fs.remove(path).is_ok() && self.fs.sync_dir(dir).is_ok()
            }
            Some(MadePool::Prepared(path)) => empty_file(path).is_ok(),
            Some(MadePool::Simulated) => false,
        };
        // PERSIST: the end of the parts before that of the mark. Reversed, a crash could leave
        // parts that no later creation may remove.
        let are_gone = self.remove_files(made.db) && self.fs.sync_dir(&self.path).is_ok();
        if is_pool_gone && are_gone {
            self.remove_mark(made.db);
        }
    }

    /// Removes from the directory what provably belongs to the database `db`, OPTIONS first, the
    /// mark and LOCK last. Files that cannot be removed stay, and so does the directory: only the
    /// caller knows its owner.
    pub(super) fn remove_own(&self, db: DbId, pool: Option<PathBuf>) {
        let fs = &*self.fs;
        if OptionsFile::read(&self.fs, &self.path).is_ok_and(|f| f.is_some_and(|f| f.id == db)) {
            let _ = fs.remove(&self.path.join(OPTIONS));
            // PERSIST: the removal of the database before that of its parts. Reversed, a crash
            // could leave one that opens and lacks some of them.
            let _ = fs.sync_dir(&self.path);
        }
        self.remove_files(db);
        if let Some(pool) = pool {
            let _ = fs.remove(&pool);
        }
        self.remove_mark(db);
        let lock = self.path.join(LOCK);
        let empty = fs
            .open(&lock, OpenMode::Read)
            .and_then(|file| file.is_empty());
        if empty.unwrap_or(false) {
            let _ = fs.remove(&lock);
        }
    }

    /// Removes the files in the directory that provably belong to the database `db`, except
    /// OPTIONS, the mark and LOCK. Returns whether all are gone.
    fn remove_files(&self, db: DbId) -> bool {
        let fs = &*self.fs;
        let Ok(names) = names_in(fs, &self.path) else {
            return false;
        };
        let mut are_gone = true;
        for name in names.iter().filter(|name| is_own(fs, &self.path, name, db)) {
            are_gone &= fs.remove(&self.path.join(name)).is_ok();
        }
        are_gone
    }

    fn remove_mark(&self, db: DbId) {
        for name in names_in(&*self.fs, &self.path).unwrap_or_default() {
            if Mark::parse(&name).is_some_and(|mark| mark.db == db) {
                let _ = self.fs.remove(&self.path.join(name));
            }
        }
    }
}
