//! Opening databases: refuses and recovers them, or has them created (create.rs).
//!
//! A directory holds LOCK, OPTIONS, table files, and without a pool MANIFEST and the logs; OPTIONS
//! names the pool. Each of these files names its database.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use terrace_media::{
    Backing, Clock, FileSystem, Machine, OsFs, OverlayFs, Pool, PoolConfig, PoolError, PoolFaults,
    Prefault, Shutdown, SystemClock,
};

use super::trace::Trace;
use super::{Db, Handle, Progress, RecoveryReport, keyspace};
use crate::canary::failpoint;
use crate::designs::OWNERS;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::events::{self, Every, event};
use crate::metrics::human_bytes;
use crate::options::file::{NAME as OPTIONS, OptionsFile};
use crate::options::{Design, MediumChoice, Options, Workers};
use crate::parts::manifest::{FILE_NAME as MANIFEST, Manifest, ManifestError};
use crate::parts::redo::RedoArea;
use crate::parts::reserve::Reserve;
use crate::stages::{Folder, Shared};
use crate::types::DbId;

/// The name of the lock file of a database. It is empty, and an existing one is kept.
pub(super) const LOCK: &str = "LOCK";
/// The superblock word that is set once everything of a new database is in the pool.
pub(super) const CREATED_ROOT: usize = 10;
/// The superblock words that locate the redo area.
pub(super) const REDO_ROOTS: [usize; 2] = [8, 9];
pub(super) const MANIFEST_BYTES: u64 = 256 * 1024;

pub(super) type ProgressHook = Arc<dyn Fn(&Progress) + Send + Sync>;

/// Opens a database with components chosen by the caller.
pub struct DbBuilder {
    pub(super) path: PathBuf,
    pub(super) options: Options,
    /// Whether the caller gave options.
    stated: bool,
    /// Whether those that shape the data are kept.
    pub(super) keeps: bool,
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) machine: Option<Machine>,
    faults: Option<Arc<PoolFaults>>,
    progress: Option<ProgressHook>,
    trace: Option<Arc<Trace>>,
    pub(super) clock: Arc<dyn Clock>,
    /// The time since the last message about a long step.
    told: Every,
}

/// The pool that a creation has made.
pub(super) enum MadePool {
    /// A new file.
    New(PathBuf),
    /// In the place of an empty file, a link or a device that the user had prepared.
    Prepared(PathBuf),
    /// In a simulated machine, which keeps it.
    Simulated,
}

/// The parts that a creation in progress has made.
pub(super) struct Made {
    pub(super) db: DbId,
    pub(super) pool: Option<MadePool>,
    /// Whether an earlier creation has left parts.
    pub(super) resumed: bool,
}

impl DbBuilder {
    pub(super) fn new(path: &Path) -> DbBuilder {
        DbBuilder {
            path: path.to_owned(),
            options: Options::default(),
            stated: false,
            keeps: true,
            fs: Arc::new(OsFs),
            machine: None,
            faults: None,
            progress: None,
            trace: None,
            clock: Arc::new(SystemClock::default()),
            told: Every::from_now(),
        }
    }

    /// Uses these options, all of them, and keeps them as [`Db::open`] does. Without this call the
    /// database uses its kept options (see [`Options::load`]), and a new one the defaults.
    #[must_use]
    pub fn options(mut self, options: Options) -> DbBuilder {
        self.options = options;
        self.stated = true;
        self
    }

    /// Leaves the kept options of an existing database as they are, for programs that only read
    /// but do not open read-only: those of [`options`](DbBuilder::options) apply to this open
    /// alone. A raised size of a pool in a file is kept, since the file may grow.
    #[must_use]
    pub fn without_keeping(mut self) -> DbBuilder {
        self.keeps = false;
        self
    }

    /// Stores the files of the directory in `fs`.
    #[must_use]
    pub fn file_system(mut self, fs: Arc<dyn FileSystem>) -> DbBuilder {
        self.fs = fs;
        self
    }

    /// Stores files, and the pool if the options name one, in a simulated machine.
    #[must_use]
    pub fn machine(mut self, machine: Machine) -> DbBuilder {
        self.fs = machine.fs();
        self.machine = Some(machine);
        self
    }

    /// Uses `clock` for the expiry of entries.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> DbBuilder {
        self.clock = clock;
        self
    }

    /// Injects failures of pool operations, as configured in `faults`.
    #[must_use]
    pub fn pool_faults(mut self, faults: Arc<PoolFaults>) -> DbBuilder {
        self.faults = Some(faults);
        self
    }

    /// Calls `progress` during a long recovery.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(&Progress) + Send + Sync + 'static) -> DbBuilder {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Records every call to the database in `out`, one line each, for `terrace bench --trace`
    /// (docs/trace.md describes the format). Keys are recorded as they are, values by their length.
    /// Each call costs an additional lock and the write of its line, so pass a buffered writer; it
    /// is flushed by [`Db::close`], which returns an error of `out`. Reads of a
    /// [`Snapshot`](super::Snapshot) are not recorded.
    #[must_use]
    pub fn trace(mut self, out: impl Write + Send + 'static) -> DbBuilder {
        self.trace = Some(Arc::new(Trace::to(Box::new(out))));
        self
    }

    /// Opens the database. Errors as [`Db::open`].
    pub fn open(mut self) -> Result<Db> {
        let started = Instant::now();
        self.fix_path()?;
        match (self.stated, OptionsFile::read(&self.fs, &self.path)) {
            (false, Ok(Some(fixed))) => self.options = fixed.options(&self.path)?,
            (false, Err(e)) => return Err(e),
            // First, since the sizes of a database may be invalid with another design. Any other
            // problem is that of a later step.
            (true, Ok(Some(fixed))) if !self.options.error_if_exists => {
                self.check_design(&fixed)?;
                if fixed.pool_path.is_some() {
                    // A pool in a file keeps its cap.
                    let stated = &mut self.options.pool.size_bytes;
                    *stated = fixed.pool_size_bytes.max(*stated);
                }
            }
            _ => {}
        }
        self.options.validate()?;
        let lock = match self.options.read_only {
            true => self.lock_to_read()?,
            false => Some(self.lock_folder()?),
        };
        self.check_finished()?;
        let base = Arc::clone(&self.fs);
        if self.options.read_only {
            // From here on everything works as usual, and stays in memory.
            self.fs = Arc::new(OverlayFs::new(Arc::clone(&base)));
            self.options.pool.prefault = Prefault::None;
            self.options.background.workers = Workers::Manual;
        }
        let exists = self.exists(false)?;
        let mut made = None;
        let opened = self.open_or_create(started, &mut made);
        if let (Err(_), Some(made)) = (&opened, &made) {
            self.take_back(made);
        }
        let (engine, recovery) = opened.map_err(|e| self.with_way_on(e, exists))?;
        Ok(Db(Arc::new(Handle {
            engine,
            path: self.path,
            fs: base,
            files: self.fs,
            recovery,
            progress: self.progress,
            trace: self.trace,
            catalog: Mutex::new(()),
            lock: Mutex::new(lock),
        })))
    }

    /// Opens the database in the locked directory, or creates it. `made` then contains what the
    /// creation has begun.
    fn open_or_create(
        &mut self,
        started: Instant,
        made: &mut Option<Made>,
    ) -> Result<(Arc<Engine>, RecoveryReport)> {
        let mut report = RecoveryReport::default();
        let fixed = OptionsFile::read(&self.fs, &self.path)?;
        let (mut shared, pool_is_new) = match &fixed {
            Some(fixed) => {
                let found = self.reopen(fixed, &mut report)?;
                self.sweep(fixed.id)?;
                found
            }
            None => {
                let created = self.create(&mut report, made);
                (created?, true)
            }
        };
        self.fit_disk(&mut shared);
        let design = shared.options.design_of_new();
        design.fix_options(&mut shared);
        let shared = Arc::new(match self.options.read_only {
            true => shared,
            false => {
                let db = shared.manifest.db();
                shared.with_reserve(Reserve::open(&self.fs, &self.path, db))
            }
        });
        if pool_is_new {
            design.create(&shared)?;
        }
        let links_lost = design.links_lost(&shared);
        let files = Folder {
            fs: Arc::clone(&self.fs),
            dir: self.path.clone(),
        };
        let (stages, opened) =
            design.open(&shared, files, links_lost, &mut |what, done, total| {
                self.report(Progress {
                    what,
                    done,
                    total,
                    unit: "bytes",
                });
            })?;
        if self.options.read_only
            && let Some(replay) = stages.front.replay()
        {
            check_logs_fit(&shared, replay.logs_left().1)?;
        }
        report.merges_resumed = opened.merges_resumed;
        report.tables_rebuilt = opened.tables_rebuilt;
        failpoint!(RecoveredEarly if links_lost => shared.pool.mark_recovered()?);
        let engine = Arc::new(Engine::new(Arc::clone(&shared), stages));
        engine.replay_logs(&mut report, &|done, total| {
            self.report(Progress {
                what: "replaying logs",
                done,
                total,
                unit: "bytes",
            });
        })?;
        if links_lost {
            // PERSIST: the links of all lists, those of logs among them, before the pool counts as
            // recovered. Reversed, the recovery after a kill would rely on links that a power loss
            // has taken.
            // CRASH: until then the next recovery makes all links again.
            shared.pool.mark_recovered()?;
        }
        let gone = keyspace::load_dropped(&engine, report.clean)?;
        match &fixed {
            None => self.finish_creation(&shared)?,
            Some(fixed) if !self.options.read_only => self.keep_options(fixed, &shared)?,
            Some(_) => {}
        }
        self.watch_files(&shared)?;
        shared.keep_reserve();
        let begun = engine.start().and_then(|()| match self.options.read_only {
            true => Ok(()),
            false => keyspace::forget(&engine, &gone),
        });
        // Workers hold the engine, and with it the pool and its lock.
        begun.inspect_err(|_| engine.stop())?;
        report.elapsed = started.elapsed();
        event!(
            info,
            "terrace::open",
            shared.db,
            "{report}; the database in {} has the id {} and the design {design}; pool: {}",
            self.path.display(),
            shared.db,
            shared.pool.describe()
        );
        Ok((engine, report))
    }

    pub(super) fn report(&self, progress: Progress) {
        if self.told.is_due(events::STEP) {
            event!(
                info,
                "terrace::open",
                self.path.as_path(),
                "{}, {} of {} {} so far",
                progress.what,
                progress.done,
                progress.total,
                progress.unit
            );
        }
        if let Some(hook) = &self.progress {
            hook(&progress);
        }
    }

    /// Stops the database if its files are removed or replaced while it is open.
    fn watch_files(&self, shared: &Shared) -> Result<()> {
        let mut paths = vec![self.path.join(LOCK), self.path.join(OPTIONS)];
        match (&shared.options.pool.path, &self.machine) {
            (Some(pool), None) => paths.push(self.path.join(pool)),
            (Some(_), Some(_)) => {}
            (None, _) => paths.push(self.path.join(MANIFEST)),
        }
        match self.options.read_only {
            // It writes nothing, and its LOCK may be missing.
            true => Ok(()),
            false => Ok(shared.manifest.watch(&self.fs, &paths)?),
        }
    }

    /// Makes the path absolute, so that it stays valid when the process changes its current
    /// directory.
    pub(super) fn fix_path(&mut self) -> Result<()> {
        let fixed = self.fs.absolute(&self.path);
        self.path = fixed.map_err(|e| Error::io("find", &self.path, e))?;
        Ok(())
    }

    /// Returns whether there is a database, or an error if there must be one.
    fn exists(&self, must_exist: bool) -> Result<bool> {
        let exists = self.fs.exists(&self.path.join("OPTIONS"));
        let exists = exists.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotADirectory => Error::invalid(format!(
                "{} is a file, but a database is a directory: give a directory, or a path where \
                 one can be created",
                self.path.display()
            )),
            _ => Error::io("access", &self.path, e),
        })?;
        if !exists && must_exist {
            self.check_no_trace()?;
            return Err(Error::invalid(format!(
                "there is no database in {}; create it first, or check the path",
                self.path.display()
            )));
        }
        Ok(exists)
    }

    /// Takes the shared lock against writers, if there is a LOCK file: a database that was copied
    /// without one, or to read-only media, has no writers.
    fn lock_to_read(&self) -> Result<Option<Box<dyn terrace_media::FileLock>>> {
        self.exists(true)?;
        let lock = self.path.join(LOCK);
        self.fs.lock_shared(&lock).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => Error::new(
                ErrorKind::Locked,
                format!(
                    "the database in {} is open for writing, in another process or elsewhere in \
                     this one: close it there first, or make a checkpoint there",
                    self.path.display()
                ),
            ),
            _ => Error::io("lock", &lock, e),
        })
    }

    pub(super) fn lock_folder(&self) -> Result<Box<dyn terrace_media::FileLock>> {
        self.exists(self.options.error_if_missing)?;
        self.fs
            .create_dir_all(&self.path)
            .map_err(|e| Error::io("create", &self.path, e))?;
        let lock = self.path.join(LOCK);
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

    /// Returns the configuration of the pool, from the options and the directory.
    pub(super) fn pool_config(&self, options: &Options) -> Result<PoolConfig> {
        let backing = match (&options.pool.path, &self.machine) {
            // A medium that outlives the process would be trusted, and a close would lose
            // everything.
            (None, _) if options.pool.medium != MediumChoice::Auto => {
                return Err(Error::invalid(
                    "--medium (pool.medium) forces a medium, but the database has no pool: give \
                     one with --pool (pool.path), or use the medium auto",
                ));
            }
            (None, _) => Backing::Anonymous,
            (Some(_), Some(machine)) => Backing::Simulated(machine.clone()),
            (Some(path), None) => Backing::File(self.path.join(path)),
        };
        let mut config = PoolConfig::new(backing, options.pool.size_bytes);
        config.medium = options.pool.medium;
        config.prefault = options.pool.prefault;
        config.emulation = options.pool.emulation;
        config.grow_bytes = self.pool_step(&config).min(options.pool.size_bytes);
        config.faults = self.faults.clone();
        config.private = options.read_only;
        // Small databases, such as those of tests, would lose too much to rounding.
        if options.pool.size_bytes < 64 << 20 {
            config.granule = 4096;
        }
        Ok(config)
    }

    /// Adds the path of the manifest file to an error.
    pub(super) fn name(&self, e: ManifestError) -> Error {
        let e = Error::from(e);
        let path = self.path.join(MANIFEST);
        Error::new(e.kind(), format!("{}: {e}", path.display())).because(e)
    }

    /// Refuses a manifest that does not belong to the database in OPTIONS.
    fn check_owner(&self, fixed: &OptionsFile, manifest: &Manifest) -> Result<()> {
        if manifest.db() == fixed.id {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "the manifest in {} belongs to database {}, but OPTIONS there names {}: restore the \
             directory, and the pool if there is one, from the same copy",
            self.path.display(),
            manifest.db(),
            fixed.id
        )))
    }

    /// Opens the manifest of a database without a pool.
    fn open_manifest(&self) -> Result<Manifest> {
        Manifest::open_file(&self.fs, &self.path, OWNERS).map_err(|e| match e {
            ManifestError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Error::corruption(format!(
                    "{} is missing, so the files of the database are unknown; restore the \
                     directory from a copy, or recover the readable data with \"terrace repair\"",
                    self.path.join(MANIFEST).display()
                ))
            }
            e => self.name(e),
        })
    }

    /// Opens the pool that OPTIONS names, and checks that it is the right one. Returns true if the
    /// pool is new, since it does not outlive the process.
    fn reopen(&self, fixed: &OptionsFile, report: &mut RecoveryReport) -> Result<(Shared, bool)> {
        if self.options.error_if_exists {
            return Err(Error::invalid(format!(
                "a database already exists in {}",
                self.path.display()
            )));
        }
        self.check_not_copied(fixed)?;
        self.check_design(fixed)?;
        let mut options = self.options.clone();
        options.design = Some(self.design(fixed)?);
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
        if options.memory_bytes.is_some() {
            // Design and pool, which may come from the database, determine the use of memory.
            options.validate()?;
        }
        if fixed.pool_path.is_none() {
            // The buffer was in memory: it is rebuilt from logs.
            let manifest = self.open_manifest()?;
            self.check_owner(fixed, &manifest)?;
            if !manifest.with_state(|state| state.created) {
                // PERSIST: the name of OPTIONS before the mark: a process crash may have left it in
                // the cache only.
                self.fs
                    .sync_dir(&self.path)
                    .map_err(|e| Error::io("sync", &self.path, e))?;
                self.mark_created(&manifest)?;
            }
            report.clean = manifest.with_state(|state| state.closed);
            let pool = Pool::create(self.pool_config(&options)?)?;
            return Ok((self.ground_on(pool, manifest, options)?, true));
        }
        let pool = Pool::open(self.pool_config(&options)?);
        let pool = pool.map_err(|e| self.without_pool(e))?;
        let uuid = uuid_text(&pool);
        if uuid != fixed.pool_uuid {
            return Err(Error::invalid(format!(
                "the given pool has the id {uuid}, but the database in {} uses the pool with the \
                 id {}: name the right pool",
                self.path.display(),
                fixed.pool_uuid
            )));
        }
        self.check_not_left(fixed, &pool)?;
        if pool.root(CREATED_ROOT) == 0 {
            // PERSIST: the name of OPTIONS before the word: a process crash may have left it in the
            // cache only, and a pool with the word but without OPTIONS could never be opened.
            self.fs
                .sync_dir(&self.path)
                .map_err(|e| Error::io("sync", &self.path, e))?;
            pool.set_roots(&[(CREATED_ROOT, 1)])?;
        }
        report.clean = pool.shutdown() == Shutdown::Clean;
        let manifest = Manifest::open(&pool, OWNERS)?;
        self.check_owner(fixed, &manifest)?;
        let span = terrace_media::Span {
            off: pool.root(REDO_ROOTS[0]),
            len: pool.root(REDO_ROOTS[1]),
        };
        let extent = pool.adopt(span)?;
        let redo = if pool.pages_lost() {
            // Links are rebuilt from nodes; half a batch of old ones must not be applied to them.
            RedoArea::create(&pool, extent)?
        } else {
            let (redo, applied) = RedoArea::recover(&pool, extent)?;
            report.redo_slots_applied = applied;
            redo
        };
        let clock = Arc::clone(&self.clock);
        Ok((Shared::new(pool, manifest, redo, options, clock), false))
    }
}

impl DbBuilder {
    /// Returns the error of a pool that cannot be opened. The advice for a new pool would destroy
    /// the data of this one.
    fn without_pool(&self, e: PoolError) -> Error {
        let what = match &e {
            PoolError::NotFound { path } => format!("{} is missing or empty", path.display()),
            PoolError::Foreign { path, .. } => format!("{} is not a pool", path.display()),
            _ => return e.into(),
        };
        let dir = self.path.display();
        let text = format!(
            "the database in {dir} has its data in a pool, and {what}: name the pool with --pool \
             (pool.path) if it is in another place, restore it from a copy, or recover the \
             readable data with \"terrace repair {dir} --into DEST\""
        );
        Error::new(ErrorKind::Invalid, text).because(e)
    }

    /// Refuses another design than that of the database.
    fn check_design(&self, fixed: &OptionsFile) -> Result<()> {
        match self.options.design {
            Some(wanted) if fixed.design != wanted.to_string() => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the database in {} was created with design {}, but is opened with design \
                     {wanted}: use its design, or omit --design (Options::design)",
                    self.path.display(),
                    fixed.design
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Returns the design of a database.
    fn design(&self, fixed: &OptionsFile) -> Result<Design> {
        fixed.design.parse().map_err(|_| {
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the database in {} has the design {}, which this version does not know: open \
                     it with a later version",
                    self.path.display(),
                    fixed.design
                ),
            )
        })
    }
}

/// Refuses to replay more than the memory budget has room for if nothing can be moved to files.
fn check_logs_fit(shared: &Shared, log_bytes: u64) -> Result<()> {
    let room = shared.options.pool.size_bytes / 2;
    if !shared.memory.is_limited() || shared.pool_outlives() || log_bytes <= room {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Full,
        format!(
            "a read-only open must replay logs of {} into memory, but --memory (memory_bytes) \
             allows {}: open it once to write, which moves them to files, or raise memory_bytes",
            human_bytes(log_bytes),
            human_bytes(room)
        ),
    ))
}

/// Returns the identity of a pool, in the form used in OPTIONS.
pub(super) fn uuid_text(pool: &Pool) -> String {
    pool.uuid().iter().map(|b| format!("{b:02x}")).collect()
}
