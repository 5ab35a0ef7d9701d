//! The mark of a directory that a checkpoint or a repair is filling.
//!
//! CRASH: the directory contains the mark before any part of the new database, and loses it after
//! it has become a database. A directory with the mark is not opened, so half a copy never passes
//! for a whole one, and no empty database is created over its parts.

use std::path::PathBuf;
use std::sync::Arc;

use terrace_media::{FileSystem, OpenMode};

use super::open::DbBuilder;
use crate::error::{Error, Result};
use crate::options::file::NAME as OPTIONS;
use crate::types::DbId;

/// The work that fills a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filling {
    Checkpoint,
    Repair,
}

impl Filling {
    const ALL: [Filling; 2] = [Filling::Checkpoint, Filling::Repair];

    fn mark(self) -> &'static str {
        match self {
            Filling::Checkpoint => "UNFINISHED-CHECKPOINT",
            Filling::Repair => "UNFINISHED-REPAIR",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Filling::Checkpoint => "checkpoint",
            Filling::Repair => "repair",
        }
    }
}

impl DbBuilder {
    /// Refuses a directory that a checkpoint or a repair has left unfinished.
    pub(super) fn check_finished(&self) -> Result<()> {
        for filling in Filling::ALL {
            let (mark, name) = (self.path.join(filling.mark()), filling.name());
            let found = self.fs.exists(&mark);
            if found.map_err(|e| Error::io("check for", &mark, e))? {
                return Err(Error::invalid(format!(
                    "a {name} into {} has not finished, so the database there is incomplete: \
                     remove the directory and run \"terrace {name}\" again",
                    self.path.display()
                )));
            }
        }
        Ok(())
    }

    pub(super) fn mark_unfinished(&self, filling: Filling) -> Result<()> {
        let path = self.path.join(filling.mark());
        let failed = |e| Error::io("write", &path, e);
        let file = self.fs.open(&path, OpenMode::CreateNew).map_err(failed)?;
        let text = format!(
            "A {} is writing this directory. It has not finished while this file exists.\n",
            filling.name()
        );
        file.write_at(0, text.as_bytes()).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        // PERSIST: the mark before anything that could be taken for a database.
        self.fs.sync_dir(&self.path).map_err(failed)
    }

    pub(super) fn mark_finished(&self, filling: Filling) -> Result<()> {
        let path = self.path.join(filling.mark());
        let failed = |e| Error::io("remove", &path, e);
        // PERSIST: OPTIONS, which `finish_copy` has made durable, before the mark is removed: a
        // directory without either would be taken for one in which a database may be created.
        self.fs.remove(&path).map_err(failed)?;
        self.fs.sync_dir(&self.path).map_err(failed)
    }

    /// Removes the parts of a failed copy, the mark last, and the directory if it was made for the
    /// copy and is empty. If parts cannot be removed, they are no database.
    pub(super) fn remove_unfinished(
        &self,
        filling: Filling,
        db: DbId,
        pool: Option<PathBuf>,
        had_folder: bool,
    ) {
        let fs: &Arc<dyn FileSystem> = &self.fs;
        let has = |name: &str| fs.exists(&self.path.join(name)).unwrap_or(true);
        if has(OPTIONS) && !has(filling.mark()) {
            // Everything was done except the sync after the removal of the mark.
            return;
        }
        self.remove_own(db, pool.clone());
        // The mark stays if anything remains that could be taken for a database.
        let is_left = has(OPTIONS) || self.check_no_trace().is_err();
        if !is_left && pool.is_none_or(|pool| !fs.exists(&pool).unwrap_or(true)) {
            let _ = fs.remove(&self.path.join(filling.mark()));
        }
        if !had_folder {
            // It stays if it is not empty.
            let _ = fs.remove_dir(&self.path);
        }
    }
}
