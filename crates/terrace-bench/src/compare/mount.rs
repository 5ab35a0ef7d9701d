//! The location of a comparison's databases: one directory on one mount for all of them.
//!
//! Invariants
//!   M1  A directory is emptied only if a comparison made it: it contains the file [`OWNER`].
//!   M2  That file is locked while a comparison lives, so two never measure on one mount at once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::BenchError;
use crate::place;

/// The directory below the mount.
const FOLDER: &str = "terrace-compare";
const OWNER: &str = "owner";

/// The directory of all databases of a comparison.
#[derive(Debug)]
pub(super) struct Mount {
    folder: PathBuf,
    /// The lock of a directory on a given mount.
    owner: Option<File>,
    /// The temporary directory and its lock.
    _temporary: Option<(TempDir, File)>,
}

impl Mount {
    /// Makes a directory on `mount`, or a temporary one with space for `bytes`.
    pub(super) fn new(mount: Option<&Path>, bytes: u64) -> Result<Mount, BenchError> {
        let Some(mount) = mount else {
            let (folder, owner) = place::make_temporary(bytes)?;
            return Ok(Mount {
                folder: folder.path().to_path_buf(),
                owner: None,
                _temporary: Some((folder, owner)),
            });
        };
        if !mount.is_dir() {
            // A new directory would be on the underlying file system instead of the intended mount.
            return Err(BenchError::Invalid(format!(
                "there is no directory {}: mount it, or create it",
                mount.display()
            )));
        }
        let folder = mount.join(FOLDER);
        let io = |what: &'static str| {
            let folder = folder.clone();
            move |e| BenchError::io(what, &folder, e)
        };
        let marker = folder.join(OWNER);
        if folder.exists() && !marker.exists() {
            return Err(BenchError::Invalid(format!(
                "{} was not made by a comparison: move it away, or use another mount",
                folder.display()
            )));
        }
        fs::create_dir_all(&folder).map_err(io("make"))?;
        let owner = File::options()
            .create(true)
            .append(true)
            .open(&marker)
            .map_err(io("create a file in"))?;
        if owner.try_lock().is_err() {
            return Err(BenchError::Invalid(format!(
                "another comparison is running on {}: wait for it, because two would slow each \
                 other",
                mount.display()
            )));
        }
        let mount = Mount {
            folder,
            owner: Some(owner),
            _temporary: None,
        };
        mount.clear()?;
        Ok(mount)
    }

    /// Returns the path of the next database, which does not exist.
    pub(super) fn db(&self) -> PathBuf {
        self.folder.join("db")
    }

    /// Makes the directory of the next run and returns it, for files that are no database.
    pub(super) fn make(&self) -> Result<PathBuf, BenchError> {
        let folder = self.db();
        fs::create_dir_all(&folder).map_err(|e| BenchError::io("make", &folder, e))?;
        Ok(folder)
    }

    /// Removes the files of a run.
    pub(super) fn clear(&self) -> Result<(), BenchError> {
        let db = self.db();
        match fs::remove_dir_all(&db) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(BenchError::io("remove", &db, e))
            }
            _ => Ok(()),
        }
    }

    /// Fails if the mount has no space for a run.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), String> {
        let free = place::free_bytes(&self.folder);
        if free >= bytes {
            return Ok(());
        }
        Err(format!(
            "the run may take {} of {}, which has {} free: free space, or use another mount, \
             smaller data_sizes or a smaller num",
            crate::units::bytes(bytes),
            self.folder.display(),
            crate::units::bytes(free)
        ))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.owner.is_some() {
            // A directory that cannot be removed is found by the next comparison, which tries
            // again.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory of an earlier comparison is removed; one with other owners, or in use, is
    /// refused.
    #[test]
    fn a_mount_is_used_with_care() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let missing = Mount::new(Some(&parent.path().join("missing")), 0).map(drop);
        let missing = missing.expect_err("it does not exist").to_string();
        assert!(missing.contains("mount it"), "{missing}");
        let mount = Mount::new(Some(parent.path()), 0).expect("an empty mount");
        let refused = Mount::new(Some(parent.path()), 0).map(drop);
        let refused = refused.expect_err("it is in use").to_string();
        assert!(refused.contains("another comparison"), "{refused}");
        fs::create_dir(mount.db()).expect("a directory");
        fs::write(mount.db().join("file"), "left").expect("a file");
        mount.clear().expect("it can be removed");
        assert!(!mount.db().exists());
        assert!(mount.check_room(0).is_ok());
        let problem = mount.check_room(u64::MAX).expect_err("that is too much");
        assert!(problem.contains("free space"), "{problem}");
        drop(mount);
        assert!(!parent.path().join(FOLDER).exists());
        fs::create_dir(parent.path().join(FOLDER)).expect("a directory");
        let refused = Mount::new(Some(parent.path()), 0).map(drop);
        let refused = refused.expect_err("a user made it").to_string();
        assert!(
            refused.contains("was not made by a comparison"),
            "{refused}"
        );
    }
}
