//! Repair: a new database of what can still be read of a damaged one.
//!
//! ```text
//!   OPTIONS, manifest ----used parts----> tables, logs, lists in the pool
//!                                              | everything that verifies
//!                                              v
//!                                      runs in the new directory, sorted
//!                                              | the newest version of each key
//!                                              v
//!                            a new database, made in the usual order
//! ```
//!
//! The damaged database is only read. The newest version is decided by numbers, wherever it was
//! found.
//!
//! CRASH: the new directory contains the mark of `db/unfinished.rs` until the new database is
//! whole.

mod evidence;
mod gather;
mod newest;
mod nodes;
mod owner;
mod pool;
mod report;
mod source;
mod values;

pub use report::{Loss, PartState, RepairOutcome, RepairPart, RepairReport, RepairedKeyspace};

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use terrace_media::Prefault;

use super::Progress;
use super::keyspace::{DEFAULT_NAME, Record};
use super::open::DbBuilder;
use super::unfinished::Filling;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Design, Options, Workers};
use crate::parts::batch::Batch;
use crate::parts::external_sort::ExternalSort;
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::{Fragments, Keep, RangeSet, Readable};
use crate::types::{DEFAULT_KEYSPACE, DbId, Durability};

use gather::Gathered;
use newest::{Newest, Seen};
use report::{Findings, PartState as State};
use source::{Source, Trust};

/// Memory for sorting: the size of a memtable, between these limits.
const SORT_BYTES_MIN: usize = 64 << 10;
const SORT_BYTES_MAX: usize = 64 << 20;
/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 4 << 20;

/// A damaged database: its directory, and its pool if that is not where its OPTIONS says.
#[derive(Debug, Clone)]
pub struct RepairSource {
    folder: PathBuf,
    pool: Option<PathBuf>,
}

impl RepairSource {
    /// Names the database in the directory `path`.
    pub fn new(path: impl AsRef<Path>) -> RepairSource {
        RepairSource {
            folder: path.as_ref().to_owned(),
            pool: None,
        }
    }

    /// Sets the file of its pool, whatever its OPTIONS says.
    #[must_use]
    pub fn pool(mut self, path: impl AsRef<Path>) -> RepairSource {
        self.pool = Some(path.as_ref().to_owned());
        self
    }
}

impl DbBuilder {
    /// Makes the builder's directory, which must not exist or be empty, a new database of the
    /// readable data of a damaged one: for each key the newest entry that verifies. Readable
    /// deletes, range deletes and expiry hide older entries. The damaged database is only read;
    /// close it first.
    ///
    /// The builder's options are those of the new database. If they name no design it gets that of
    /// the damaged one, if its OPTIONS can be read; [`Options::load`] returns the other options of
    /// that. Takes time, and for a while twice the space, in proportion to the data, and memory for
    /// sorting like a memtable's. Range deletes are held in memory.
    ///
    /// ```
    /// # use terrace::{Db, RepairOutcome, RepairSource};
    /// # let folder = tempfile::tempdir()?;
    /// # let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    /// # let mut options = terrace::testing::small_options();
    /// # options.pool.path = None;
    /// # options.pool.medium = terrace::MediumChoice::Auto;
    /// # let db = Db::open(&old, options.clone())?;
    /// # db.put("k", "v")?;
    /// # db.close()?;
    /// std::fs::remove_file(old.join("MANIFEST"))?;
    /// let report = Db::builder(&new)
    ///     .options(options)
    ///     .repair_of(&RepairSource::new(&old))?;
    /// assert_eq!(report.outcome, RepairOutcome::Partly, "{report:#?}");
    /// assert_eq!(report.keyspaces[0].pairs, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` if there is no such directory, no trace of a database in it, or something at the
    /// target; `Locked` if the database is open; `Unsupported` if a later version wrote it; `Full`
    /// and `Io` of the new database. Damage is no error: the report lists it. After an error the
    /// parts of the new database are removed if possible, and the target is no database; only if
    /// the very last step failed, the removal of the mark, it may be a whole one.
    pub fn repair_of(mut self, damaged: &RepairSource) -> Result<RepairReport> {
        let started = Instant::now();
        self.fix_path()?;
        let source = self.fs.absolute(&damaged.folder);
        if source.is_ok_and(|source| self.is_inside(&source)) {
            return Err(Error::invalid(format!(
                "{} is in the directory to be repaired, which is only read: choose another path",
                self.path.display()
            )));
        }
        let had_folder = self.check_target()?;
        let _source_lock = self.lock_source(&damaged.folder)?;
        let mut findings = Findings::default();
        let pool = damaged.pool.as_deref();
        let source = Source::look(&self.fs, &damaged.folder, pool, &mut findings)?;
        if source.is_empty() {
            return Err(Error::invalid(format!(
                "{} contains no part of a database, that is, no manifest, table file, log file or \
                 pool: check the path, and give --pool (pool.path) if the pool is elsewhere",
                damaged.folder.display()
            )));
        }
        self.options = self.options_of_repaired(&source)?;
        self.options.validate()?;
        let pool_file = self.options.pool.path.as_ref();
        let pool_file = pool_file.map(|pool| self.path.join(pool));
        if let (Some(new), Some(old)) = (&pool_file, &source.pool)
            && *new == old.path
        {
            return Err(Error::invalid(format!(
                "{} is the pool of the damaged database, which is only read: choose another path \
                 for the new pool",
                new.display()
            )));
        }
        let mut made_pool = false;
        let id = self.new_id()?;
        let made = self.make_repaired(id, &source, findings, &mut made_pool);
        let is_made = made
            .as_ref()
            .is_ok_and(|r| r.outcome != RepairOutcome::Nothing);
        if !is_made {
            let pool = pool_file.filter(|_| made_pool);
            self.remove_unfinished(Filling::Repair, id, pool, had_folder);
        }
        Ok(RepairReport {
            elapsed: started.elapsed(),
            ..made.map_err(Error::of_new)?
        })
    }

    /// Takes the shared lock against writers of the damaged database, if there is a LOCK file.
    fn lock_source(&self, folder: &Path) -> Result<Option<Box<dyn terrace_media::FileLock>>> {
        let lock = folder.join("LOCK");
        self.fs.lock_shared(&lock).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => Error::new(
                ErrorKind::Locked,
                format!(
                    "the database in {} is open, in another process or elsewhere in this one: \
                     close it before the repair",
                    folder.display()
                ),
            ),
            _ => Error::io("lock", &lock, e),
        })
    }

    fn options_of_repaired(&self, source: &Source) -> Result<Options> {
        let mut options = self.options.clone();
        if let (None, Some(fixed)) = (options.design, &source.fixed) {
            options.design = Some(fixed.design.parse::<Design>()?);
        }
        options.design = Some(options.design_of_new());
        options.pool.prefault = Prefault::None;
        options.background.workers = Workers::Manual;
        options.read_only = false;
        Ok(options)
    }

    fn make_repaired(
        &self,
        id: DbId,
        source: &Source,
        mut findings: Findings,
        made_pool: &mut bool,
    ) -> Result<RepairReport> {
        self.fs
            .create_dir_all(&self.path)
            .map_err(|e| Error::io("create", &self.path, e))?;
        let lock = self.path.join("LOCK");
        let _lock = self
            .fs
            .lock(&lock)
            .map_err(|e| Error::io("lock", &lock, e))?;
        self.mark_unfinished(Filling::Repair)?;
        let memory = usize::try_from(self.options.front.memtable_bytes).unwrap_or(usize::MAX);
        let memory = memory.clamp(SORT_BYTES_MIN, SORT_BYTES_MAX);
        let mut gathered = Gathered::new(ExternalSort::new(&self.fs, &self.path, memory));
        self.gather(source, &mut gathered, &mut findings)?;
        let mut report = RepairReport {
            entries: gathered.entries,
            ..RepairReport::default()
        };
        if gathered.any || source.trust != Trust::Nothing {
            report.keyspaces = self.write_repaired(id, source, gathered, made_pool)?;
            let certain = findings.losses.iter().any(|loss| loss.certain);
            let damaged = findings
                .parts
                .iter()
                .any(|part| matches!(part.state, State::Damaged | State::Missing));
            let is_sound = matches!(source.trust, Trust::Whole | Trust::MaybeCut);
            report.outcome = match is_sound && !certain && !damaged {
                true if findings.losses.is_empty() => RepairOutcome::Whole,
                true => RepairOutcome::Uncertain,
                false => RepairOutcome::Partly,
            };
        }
        report.parts = findings.parts;
        report.losses = findings.losses;
        Ok(report)
    }

    fn gather(
        &self,
        source: &Source,
        gathered: &mut Gathered,
        findings: &mut Findings,
    ) -> Result<()> {
        let total = gather::bytes_of(source) + pool::bytes_of(source);
        let (mut done, mut told) = (0, 0);
        let watch = &mut |bytes: u64| {
            done += bytes;
            if done >= told + REPORT_BYTES {
                told = done;
                self.report(Progress {
                    what: "reading",
                    done: done.min(total),
                    total,
                    unit: "bytes",
                });
            }
        };
        gather::tables(source, gathered, findings, watch)?;
        let mut logs = gather::log_files(source, findings);
        pool::find_logs(source, &mut logs, findings);
        gather::take_logs(logs, gathered, findings, watch)?;
        pool::take_nodes(source, gathered, findings, watch)
    }

    /// Writes the new database.
    fn write_repaired(
        &self,
        id: DbId,
        source: &Source,
        gathered: Gathered,
        made_pool: &mut bool,
    ) -> Result<Vec<RepairedKeyspace>> {
        let Gathered {
            mut sort,
            ranges,
            seq_last,
            entries,
            expires,
            ..
        } = gathered;
        let seq = seq_last.max(source.state.last_seq);
        // Time never went back while the database was whole, and does not now.
        let now = self.clock.unix_millis().max(source.state.time);
        let ranges = RangeSet::of(vec![Arc::new(Fragments::new(
            ranges,
            Keep::Readable(&Readable::later()),
        ))]);
        let newest = Newest::new(sort.merged()?, ranges, now);
        let seen = newest.seen();
        let mark = self.begin_creation(id)?;
        let shared = Arc::new(self.ground_of_copy(mark, made_pool)?);
        if expires || source.state.time > 0 {
            // Entries that have expired by now are permanently gone.
            shared
                .manifest
                .commit(Edit::of(Change::Time { time: now }))?;
        }
        let mut watch = || {
            let done = seen.lock().pairs.values().sum::<u64>();
            self.report(Progress {
                what: "writing",
                done: done.min(entries),
                total: entries,
                unit: "entries",
            });
        };
        let engine = self.fill_copy(&shared, Box::new(newest), seq, &mut watch)?;
        let keyspaces = name_keyspaces(&engine, &seen.lock())?;
        // The runs are in the directory of the new database.
        drop(sort);
        self.finish_copy(&engine)?;
        self.mark_finished(Filling::Repair)?;
        Ok(keyspaces)
    }
}

/// Gives names to keyspaces that have lost theirs. Returns all, the default one first.
fn name_keyspaces(engine: &Arc<Engine>, seen: &Seen) -> Result<Vec<RepairedKeyspace>> {
    let pairs = |id: u32| seen.pairs.get(&id).copied().unwrap_or(0);
    let mut keyspaces = vec![RepairedKeyspace {
        name: DEFAULT_NAME.to_owned(),
        id: DEFAULT_KEYSPACE,
        pairs: pairs(DEFAULT_KEYSPACE),
        renamed: false,
    }];
    let mut batch = Batch::default();
    let unnamed = |id: &u32| *id > DEFAULT_KEYSPACE && !seen.names.contains_key(id);
    let ids: Vec<u32> = seen.pairs.keys().copied().filter(unnamed).collect();
    let named = seen
        .names
        .iter()
        .map(|(&id, name)| (id, name.clone(), false));
    let renamed = ids.iter().map(|&id| {
        let mut name = format!("recovered-{id}");
        // BOUND: the number of names is finite.
        while seen.names.values().any(|taken| *taken == name) {
            name.push_str("-too");
        }
        (id, name, true)
    });
    let mut all: Vec<_> = named.chain(renamed).collect();
    all.sort();
    for (id, name, renamed) in all {
        if renamed {
            Record::Name(id, name.clone()).write(&mut batch);
        }
        keyspaces.push(RepairedKeyspace {
            name,
            id,
            pairs: pairs(id),
            renamed,
        });
    }
    let last = keyspaces.iter().map(|k| k.id).max().unwrap_or(0);
    if last >= seen.next && last > DEFAULT_KEYSPACE {
        Record::Next(last + 1).write(&mut batch);
    }
    if batch.len() > 0 {
        engine.write(&mut batch, Durability::Sync)?;
    }
    Ok(keyspaces)
}
