//! This file opens databases: creates, refuses, recovers.
//!
//! A folder holds LOCK, OPTIONS, and on medium `Dram` the logs; the pool is where OPTIONS says. The
//! order of creation is: folder, lock, pool with manifest and stages, and OPTIONS last.
//!
//! CRASH: a folder without OPTIONS is no database yet. A pool found beside it is one whose creation
//! was interrupted and is made anew only if it holds no table and no log with records.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use terrace_media::{
    Backing, Clock, FileSystem, Machine, Medium, OsFs, Pool, PoolConfig, PoolError, PoolFaults,
    Shutdown, SystemClock,
};

use super::{Db, Handle, Progress, RecoveryReport, keyspace};
use crate::designs::Design;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::options::file::Fixed;
use crate::parts::manifest::Manifest;
use crate::parts::redo::RedoArea;
use crate::stages::Folder;
use crate::stages::Ground;

/// Superblock words that say where the redo area is.
const REDO_ROOTS: [usize; 2] = [8, 9];
/// Superblock word that is set when everything of a new database is in the pool.
const CREATED_ROOT: usize = 10;
const MANIFEST_BYTES: u64 = 256 * 1024;
const GROW_BYTES: u64 = 64 << 20;

type ProgressHook = Arc<dyn Fn(&Progress) + Send + Sync>;

/// Opens a database with components of the caller's choice.
pub struct DbBuilder {
    path: PathBuf,
    options: Options,
    fs: Arc<dyn FileSystem>,
    machine: Option<Machine>,
    faults: Option<Arc<PoolFaults>>,
    progress: Option<ProgressHook>,
    clock: Arc<dyn Clock>,
}

impl DbBuilder {
    pub(super) fn new(path: &Path) -> DbBuilder {
        DbBuilder {
            path: path.to_owned(),
            options: Options::default(),
            fs: Arc::new(OsFs),
            machine: None,
            faults: None,
            progress: None,
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// Uses these options.
    #[must_use]
    pub fn options(mut self, options: Options) -> DbBuilder {
        self.options = options;
        self
    }

    /// Keeps the files of the folder in `fs`.
    #[must_use]
    pub fn file_system(mut self, fs: Arc<dyn FileSystem>) -> DbBuilder {
        self.fs = fs;
        self
    }

    /// Keeps files and pool in a simulated machine, if the options name a pool.
    #[must_use]
    pub fn machine(mut self, machine: Machine) -> DbBuilder {
        self.fs = machine.fs();
        self.machine = Some(machine);
        self
    }

    /// Asks `clock` for the time at which entries expire.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> DbBuilder {
        self.clock = clock;
        self
    }

    /// Lets operations of the pool fail as `faults` says.
    #[must_use]
    pub fn pool_faults(mut self, faults: Arc<PoolFaults>) -> DbBuilder {
        self.faults = Some(faults);
        self
    }

    /// Calls `progress` while recovery takes long.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(&Progress) + Send + Sync + 'static) -> DbBuilder {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Opens the database. Errors as [`Db::open`].
    pub fn open(self) -> Result<Db> {
        let started = Instant::now();
        self.options.validate()?;
        let lock = self.lock_folder()?;
        let mut report = RecoveryReport::default();
        let fixed = Fixed::read(&self.fs, &self.path)?;
        let (ground, pool_is_new) = match &fixed {
            Some(fixed) => self.reopen(fixed, &mut report)?,
            None => (self.create(&mut report)?, true),
        };
        let ground = Arc::new(ground);
        let design = ground.options.design;
        if pool_is_new {
            design.create(&ground)?;
        }
        let links_lost = design.links_lost(&ground);
        let files = Folder {
            fs: Arc::clone(&self.fs),
            dir: self.path.clone(),
        };
        let (pipeline, opened) =
            design.open(&ground, files, links_lost, &mut |what, done, total| {
                self.report(Progress {
                    what,
                    done,
                    total,
                    unit: "bytes",
                });
            })?;
        report.merges_resumed = opened.merges_resumed;
        report.tables_rebuilt = opened.tables_rebuilt;
        if links_lost {
            ground
                .pool
                .sync_all()
                .map_err(|e| Error::io("sync", &self.path, e))?;
            ground.pool.mark_recovered()?;
        }
        let engine = Arc::new(Engine::new(Arc::clone(&ground), pipeline));
        engine.replay_logs(&mut report, &|bytes| {
            self.report(Progress {
                what: "replaying logs",
                done: bytes,
                total: bytes,
                unit: "bytes",
            });
        })?;
        keyspace::load_dropped(&engine)?;
        if report.created {
            self.finish_creation(&ground)?;
        }
        engine.start()?;
        report.elapsed = started.elapsed();
        Ok(Db(Arc::new(Handle {
            engine,
            path: self.path,
            recovery: report,
            catalog: Mutex::new(()),
            lock: Mutex::new(Some(lock)),
        })))
    }

    fn report(&self, progress: Progress) {
        if let Some(hook) = &self.progress {
            hook(&progress);
        }
    }

    fn lock_folder(&self) -> Result<Box<dyn terrace_media::FileLock>> {
        let exists = self.fs.exists(&self.path.join("OPTIONS"));
        let exists = exists.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotADirectory => Error::invalid(format!(
                "{} is a file: a database is a folder, so name one or a path where one can be made",
                self.path.display()
            )),
            _ => Error::io("look into", &self.path, e),
        })?;
        if !exists && self.options.error_if_missing {
            return Err(Error::invalid(format!(
                "there is no database in {}; create it first, or check the path",
                self.path.display()
            )));
        }
        if !exists {
            self.check_design_without_pool()?;
        }
        self.fs
            .create_dir_all(&self.path)
            .map_err(|e| Error::io("create", &self.path, e))?;
        let lock = self.path.join("LOCK");
        self.fs.lock(&lock).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => Error::new(
                ErrorKind::Locked,
                format!(
                    "the database in {} is open in another process, or elsewhere in this one: \
                     close it there first",
                    self.path.display()
                ),
            ),
            _ => Error::io("lock", &lock, e),
        })
    }

    /// Refuses, before anything is made, a database without a pool whose data would go to table files:
    /// the manifest, which names them, would be gone with the process.
    fn check_design_without_pool(&self) -> Result<()> {
        let design = self.options.design;
        if self.options.pool.path.is_some() || !design.keeps_table_files() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "design {design} does not work without a pool yet: name the file of one (the option \
                 pool.path), on any disk, or choose the design {}",
                Design::MioDb
            ),
        ))
    }

    fn pool_config(&self, options: &Options) -> PoolConfig {
        let backing = match (&options.pool.path, &self.machine) {
            (None, _) => Backing::Anonymous,
            (Some(_), Some(machine)) => Backing::Simulated(machine.clone()),
            (Some(path), None) => Backing::File(self.path.join(path)),
        };
        let mut config = PoolConfig::new(backing, options.pool.size_bytes);
        config.medium = options.pool.medium;
        config.prefault = options.pool.prefault;
        config.emulation = options.pool.emulation;
        config.grow_bytes = GROW_BYTES.min(options.pool.size_bytes);
        config.faults = self.faults.clone();
        // Small databases, as tests make them, would lose too much to rounding.
        if options.pool.size_bytes < 64 << 20 {
            config.granule = 4096;
        }
        config
    }

    /// Makes the pool of a new database, with an empty manifest and redo area.
    fn create(&self, report: &mut RecoveryReport) -> Result<Ground> {
        report.created = true;
        let options = self.options.clone();
        let pool = match Pool::create(self.pool_config(&options)) {
            Ok(pool) => pool,
            Err(PoolError::Exists { path }) => self.take_over(&options, path)?,
            Err(e) => return Err(e.into()),
        };
        self.new_ground(pool, options)
    }

    fn new_ground(&self, pool: Pool, options: Options) -> Result<Ground> {
        let manifest = Manifest::create(&pool, MANIFEST_BYTES.min(options.pool.size_bytes / 32))?;
        let extent = pool.alloc(RedoArea::BYTES)?;
        let span = extent.span();
        let redo = RedoArea::create(&pool, extent)?;
        pool.set_roots(&[(REDO_ROOTS[0], span.off), (REDO_ROOTS[1], span.len)])?;
        let clock = Arc::clone(&self.clock);
        Ok(Ground::new(pool, manifest, redo, options, clock))
    }

    /// A pool file where a new one is to be made: one whose creation was interrupted, or somebody's
    /// data.
    fn take_over(&self, options: &Options, path: PathBuf) -> Result<Pool> {
        let pool = Pool::open(self.pool_config(options))?;
        if pool.root(CREATED_ROOT) != 0 {
            return Err(Error::invalid(format!(
                "{} is the pool of a database whose folder is not {}: name another pool, or open \
                 the database that it belongs to",
                path.display(),
                self.path.display()
            )));
        }
        Ok(pool)
    }

    /// Says in the pool and in the folder that the database is complete.
    fn finish_creation(&self, ground: &Ground) -> Result<()> {
        let uuid = uuid_text(&ground.pool);
        // PERSIST: everything in the pool before OPTIONS, which makes the folder a database, and
        // OPTIONS before the word that makes the pool somebody's. Between the two, opening
        // finds OPTIONS and sets the word.
        Fixed::of(&ground.options, uuid).write(&self.fs, &self.path)?;
        Ok(ground.pool.set_roots(&[(CREATED_ROOT, 1)])?)
    }

    /// Opens the pool that OPTIONS names, and checks that it is the right one. True: the pool is
    /// new, since it does not outlive the process.
    fn reopen(&self, fixed: &Fixed, report: &mut RecoveryReport) -> Result<(Ground, bool)> {
        if self.options.error_if_exists {
            return Err(Error::invalid(format!(
                "there is a database in {} already",
                self.path.display()
            )));
        }
        let mut options = self.options.clone();
        if fixed.design != options.design.to_string() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the database in {} was created with design {} and is opened with design {}: \
                     open it with the design that it has",
                    self.path.display(),
                    fixed.design,
                    options.design
                ),
            ));
        }
        match (&fixed.pool_path, &options.pool.path) {
            (Some(created), None) => options.pool.path = Some(created.clone()),
            (None, Some(wanted)) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "the database in {} was created without a pool and cannot be opened with \
                         the pool {}",
                        self.path.display(),
                        wanted.display()
                    ),
                ));
            }
            _ => {}
        }
        if fixed.pool_path.is_none() {
            // The buffer was in memory: its logs are everything there is.
            let pool = Pool::create(self.pool_config(&options))?;
            return Ok((self.new_ground(pool, options)?, true));
        }
        options.pool.size_bytes = options.pool.size_bytes.max(fixed.pool_size_bytes);
        let pool = Pool::open(self.pool_config(&options))?;
        let uuid = uuid_text(&pool);
        if uuid != fixed.pool_uuid {
            return Err(Error::invalid(format!(
                "the pool at the path given has identity {uuid}, and the database in {} belongs to \
                 pool {}: name the right pool",
                self.path.display(),
                fixed.pool_uuid
            )));
        }
        if pool.root(CREATED_ROOT) == 0 {
            // PERSIST: the name of OPTIONS before the word: a process crash may have left it in the
            // cache only, and a pool that is somebody's without OPTIONS could never be opened.
            self.fs
                .sync_dir(&self.path)
                .map_err(|e| Error::io("sync", &self.path, e))?;
            pool.set_roots(&[(CREATED_ROOT, 1)])?;
        }
        report.clean = pool.shutdown() == Shutdown::Clean;
        let manifest = Manifest::open(&pool)?;
        let span = terrace_media::Span {
            off: pool.root(REDO_ROOTS[0]),
            len: pool.root(REDO_ROOTS[1]),
        };
        let extent = pool.adopt(span)?;
        let lost = pool.medium() == Medium::Mapped && pool.shutdown() == Shutdown::PowerLost;
        let redo = if lost {
            // Links are rebuilt from nodes; half a batch of old ones must not be applied to them.
            RedoArea::create(&pool, extent)?
        } else {
            let (redo, applied) = RedoArea::recover(&pool, extent)?;
            report.redo_slots_applied = applied;
            redo
        };
        let clock = Arc::clone(&self.clock);
        Ok((Ground::new(pool, manifest, redo, options, clock), false))
    }
}

/// The identity of a pool, as OPTIONS has it.
fn uuid_text(pool: &Pool) -> String {
    pool.uuid().iter().map(|b| format!("{b:02x}")).collect()
}
