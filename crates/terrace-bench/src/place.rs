//! The location of a run's database, and how a fresh one is made without losing data.
//!
//! A temporary directory is made in memory (`/dev/shm`) if that has enough space, else in the
//! system's directory for temporary files. It contains a file that stays locked while its run
//! lives, so that the next run can recognize and remove the leftovers of a killed one.
//!
//! Invariants
//!   P1  A database, pool or level 0 is removed only if this run made it, or `replace_db` allows
//!       it.

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};

use tempfile::TempDir;
use terrace::Options;
use terrace_media::{FileSystem, OsFs};

use crate::config::BenchConfig;
use crate::error::BenchError;
use crate::measure::PoolFile;
use crate::store::StoreKind;

/// The file that names the peer whose files are next to it, in the directory [`PEER_FOLDER`].
const PEER_FILE: &str = "bench-store";
const PEER_FOLDER: &str = "store";

const PREFIX: &str = "terrace-bench-";
const OWNER_FILE: &str = "owner";

/// The location of a run's database.
#[derive(Debug)]
pub(crate) struct Place {
    db: PathBuf,
    /// The path of the pool's file; `None` if the pool is in plain memory.
    pool: Option<PathBuf>,
    /// The directory of level 0, if it is outside of the database's.
    level0: Option<PathBuf>,
    temporary: Option<(TempDir, File)>,
    store: StoreKind,
}

impl Place {
    /// Finds the location, and checks that its contents may be used as `config` demands.
    pub(crate) fn find(config: &BenchConfig, options: &Options) -> Result<Place, BenchError> {
        let (db, temporary) = match &config.db {
            Some(path) => (path.clone(), None),
            None => {
                let (folder, owner) = make_temporary(config.place_bytes(options))?;
                (folder.path().join("db"), Some((folder, owner)))
            }
        };
        let pool = options.pool.path.as_ref().map(|path| db.join(path));
        let level0 = config.level0_in(&db);
        let leads_out = |path: &Path| path.components().any(|part| part == Component::ParentDir);
        let level0 = level0.filter(|path| !path.starts_with(&db) || leads_out(path));
        let place = Place {
            db,
            pool,
            level0,
            temporary,
            store: config.store,
        };
        if !config.use_existing_db {
            place.clear_the_way(config.replace_db)?;
        }
        Ok(place)
    }

    /// Returns the database's directory.
    pub(crate) fn db(&self) -> &Path {
        &self.db
    }

    /// Returns the directory that the store is opened in. A peer's is made below the database's,
    /// next to a file with the peer's name, so that this run, a later one and `--replace-db`
    /// recognize it.
    pub(crate) fn store_folder(&self, existing: bool) -> Result<PathBuf, BenchError> {
        if self.store == StoreKind::Terrace {
            return Ok(self.db.clone());
        }
        let (folder, marker) = (self.db.join(PEER_FOLDER), self.db.join(PEER_FILE));
        if existing {
            let there = fs::read_to_string(&marker).unwrap_or_default();
            if there.trim() != self.store.name() {
                return Err(BenchError::Invalid(format!(
                    "{} has no database of {} made by this benchmark",
                    self.db.display(),
                    self.store
                )));
            }
            return Ok(folder);
        }
        fs::create_dir_all(&folder).map_err(|e| BenchError::io("create", &folder, e))?;
        fs::write(&marker, self.store.name()).map_err(|e| BenchError::io("write", &marker, e))?;
        Ok(folder)
    }

    /// Returns the path of the pool's file and its size.
    pub(crate) fn pool_file(&self) -> PoolFile {
        use std::os::unix::fs::MetadataExt;
        match &self.pool {
            None => PoolFile::None,
            Some(pool) if pool.starts_with(&self.db) => {
                PoolFile::Inside(pool.metadata().map_or(0, |file| file.blocks() * 512))
            }
            Some(_) => PoolFile::Elsewhere,
        }
    }

    /// Returns the path next to which the pool of the limit line is made, on the same file system
    /// as the database's pool. `None` if the pool is a device, which has no space for a second one.
    pub(crate) fn beside(&self) -> Result<Option<PathBuf>, BenchError> {
        if let Some(pool) = &self.pool
            && !pool.starts_with(&self.db)
        {
            return Ok((!pool.exists() || is_regular(pool)).then(|| pool.clone()));
        }
        fs::create_dir_all(&self.db).map_err(|e| BenchError::io("create", &self.db, e))?;
        Ok(Some(self.db.join("bench")))
    }

    /// Returns whether the directory is removed at the end of the run.
    pub(crate) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// Removes the files of this run, for the next fresh database.
    pub(crate) fn remove(&self) -> Result<(), BenchError> {
        if Options::load(&self.db)?.is_some() {
            // Fails if the database is open, here or in another process; files of others stay.
            terrace::Db::destroy(&self.db)?;
        }
        if let Some(pool) = self.pool.as_ref().filter(|pool| is_regular(pool)) {
            check_unlocked(pool)?;
        }
        check_unlocked(&self.db.join("LOCK"))?;
        if let Some(pool) = self.pool.as_ref().filter(|pool| is_regular(pool)) {
            fs::remove_file(pool).map_err(|e| BenchError::io("remove", pool, e))?;
        }
        if let Some(level0) = self.level0.as_ref().filter(|path| path.exists()) {
            fs::remove_dir_all(level0).map_err(|e| BenchError::io("remove", level0, e))?;
        }
        // The directory itself stays: it may be a mount point.
        let Ok(entries) = fs::read_dir(&self.db) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let removed = match entry.file_type() {
                Ok(kind) if kind.is_dir() => fs::remove_dir_all(&path),
                _ => fs::remove_file(&path),
            };
            removed.map_err(|e| BenchError::io("remove", &path, e))?;
        }
        Ok(())
    }

    /// Fails if existing data would be lost, unless `replace` allows it.
    fn clear_the_way(&self, replace: bool) -> Result<(), BenchError> {
        let folder = self.db.display();
        if self.db.exists() && !is_empty_folder(&self.db) {
            if !self.db.join(PEER_FILE).exists() && Options::load(&self.db)?.is_none() {
                return Err(BenchError::Invalid(format!(
                    "{folder} has files that are not a database: use an empty directory"
                )));
            }
            if !replace {
                return Err(BenchError::Invalid(format!(
                    "{folder} has a database: use it (--use-existing-db) or replace it \
                     (--replace-db)"
                )));
            }
        }
        if let Some(pool) = self.pool.as_ref().filter(|pool| is_regular(pool))
            && !replace
            && !pool.starts_with(&self.db)
            && pool.metadata().is_ok_and(|file| file.len() > 0)
        {
            return Err(BenchError::Invalid(format!(
                "{} exists: choose another pool file, or replace it (--replace-db)",
                pool.display()
            )));
        }
        if let Some(level0) = self.level0.as_ref().filter(|path| path.exists())
            && !replace
            && !is_empty_folder(level0)
        {
            return Err(BenchError::Invalid(format!(
                "{} is not empty: choose another directory for level 0, or replace it \
                 (--replace-db)",
                level0.display()
            )));
        }
        self.remove()
    }
}

/// Fails if the file at `path` is locked.
fn check_unlocked(path: &Path) -> Result<(), BenchError> {
    let Ok(file) = File::open(path) else {
        return Ok(());
    };
    file.try_lock().map_err(|_| {
        BenchError::Invalid(format!(
            "{} is locked: close the database that has it open first",
            path.display()
        ))
    })
}

fn is_regular(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file())
}

fn is_empty_folder(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Makes a temporary directory on a file system with space for `bytes` and a little more for the
/// limit line.
pub(crate) fn make_temporary(bytes: u64) -> Result<(TempDir, File), BenchError> {
    let in_memory = Path::new("/dev/shm");
    let temporary = std::env::temp_dir();
    let mut parent = temporary.as_path();
    if in_memory.is_dir() && free_bytes(in_memory) > bytes.saturating_add(1 << 30) {
        parent = in_memory;
    }
    remove_abandoned(parent);
    let make = |parent: &Path| {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // Locked before it gets its name, so that no other run finds it unlocked.
        let unnamed = folder.path().join("starting");
        let owner = File::create(&unnamed)?;
        owner.lock()?;
        fs::rename(&unnamed, folder.path().join(OWNER_FILE))?;
        Ok((folder, owner))
    };
    make(parent)
        .or_else(|_| make(&temporary))
        .map_err(|e| BenchError::io("create a temporary directory in", parent, e))
}

/// Returns the bytes that may still be written to the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> u64 {
    OsFs.free_bytes(path).ok().flatten().unwrap_or(0)
}

/// Removes directories of killed runs: those whose owner file is unlocked.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // A directory without an owner file may belong to a run that is about to lock it, so leave
        // it alone.
        let folder = entry.path();
        let Ok(owner) = File::open(folder.join(OWNER_FILE)) else {
            continue;
        };
        if owner.try_lock().is_ok() {
            // A directory that cannot be removed belongs to another user, who can remove it.
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory of a killed run is removed; that of a live run is not.
    #[test]
    fn abandoned_folders_are_removed() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let make = |name: &str, with_owner: bool| {
            let folder = parent.path().join(format!("{PREFIX}{name}"));
            fs::create_dir(&folder).expect("a directory");
            with_owner.then(|| File::create(folder.join(OWNER_FILE)).expect("an owner file"))
        };
        let living = make("living", true).expect("an owner file");
        living.lock().expect("it is not locked");
        drop(make("dead", true));
        make("starting", false);
        remove_abandoned(parent.path());
        let exists = |name: &str| parent.path().join(format!("{PREFIX}{name}")).exists();
        assert!(exists("living"));
        assert!(exists("starting"));
        assert!(!exists("dead"));
    }

    /// A directory with other files, and another owner's pool file, are refused and kept.
    #[test]
    fn foreign_data_is_refused() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let precious = parent.path().join("precious");
        fs::write(&precious, "data").expect("a file");
        let mut options = Options::default();
        let mut config = BenchConfig {
            db: Some(parent.path().into()),
            ..BenchConfig::default()
        };
        let problem = Place::find(&config, &options).expect_err("the directory is in use");
        assert!(problem.to_string().contains("not a database"), "{problem}");

        config.db = Some(parent.path().join("db"));
        options.pool.path = Some(precious.clone());
        let problem = Place::find(&config, &options).expect_err("the pool file is in use");
        assert!(problem.to_string().contains("exists"), "{problem}");
        assert_eq!(fs::read(&precious).expect("it still exists"), b"data");
    }

    /// A level 0 of another run is refused, or replaced on request, and files beside it stay.
    #[test]
    fn a_level0_elsewhere_is_used_with_care() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let precious = parent.path().join("precious");
        fs::write(&precious, "data").expect("a file");
        let mut config = BenchConfig {
            db: Some(parent.path().join("db")),
            level0: Some(parent.path().into()),
            ..BenchConfig::default()
        };
        let options = Options::default();
        let made = |config: &BenchConfig| {
            let made = config.options_in(&parent.path().join("db"), &options);
            let level0 = made.expect("it is made").bottom.leveled.level0_dir;
            let table = level0.expect("it is set").join("0000000000000001.sst");
            fs::write(&table, "old").expect("a file");
            table
        };
        let place = Place::find(&config, &options).expect("nothing is there");
        let table = made(&config);
        place.remove().expect("the run made it");
        assert!(!table.exists());
        let table = made(&config);
        let problem = Place::find(&config, &options).expect_err("it is of another run");
        assert!(problem.to_string().contains("--replace-db"), "{problem}");
        assert!(table.exists());
        config.replace_db = true;
        Place::find(&config, &options).expect("it may be replaced");
        assert!(!table.exists());
        assert_eq!(fs::read(&precious).expect("it still exists"), b"data");
    }
}
