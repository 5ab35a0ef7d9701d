//! Refusing writes to a copied directory that shares its pool with the original.
//!
//! A pool outside the directory is not copied with it. Data that leaves the pool as tables would go
//! to the directory that is open then, and the other would lack it, so the two must not be used
//! alternately. OPTIONS names the directory that it was written for. In another directory it is a
//! copy while the original exists. If the original is gone, the directory was moved, or replaces
//! the original: the move is counted in OPTIONS and in the pool. A directory whose count is less
//! than the pool's was left behind by a move.

use std::path::Path;
use std::sync::Arc;

use terrace_media::{FileSystem, Pool};

use super::open::DbBuilder;
use crate::error::{Error, Result};
use crate::options::file::{NAME, OptionsFile};
use crate::parts::reserve::Row;
use crate::stages::Shared;

/// The superblock word with the number of moves.
const MOVES_ROOT: usize = 11;

impl DbBuilder {
    /// Refuses the directory if it is a copy, the original exists, and both use the same pool.
    /// `fixed` is that of the directory.
    pub(super) fn check_not_copied(&self, fixed: &OptionsFile) -> Result<()> {
        let (Some(original), Some(pool)) = (&fixed.folder, &fixed.pool_path) else {
            return Ok(());
        };
        if self.options.read_only || *original == self.path {
            return Ok(());
        }
        // An original that cannot be read proves nothing.
        let found = OptionsFile::read(&self.fs, original).ok().flatten();
        let wanted = self.options.pool.path.as_ref().unwrap_or(pool);
        if found.is_none_or(|found| found.id != fixed.id)
            || !self.is_same(&self.path.join(wanted), &original.join(pool))
            || self.is_same(&self.path.join(NAME), &original.join(NAME))
        {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} is a copy of {}, which still exists, and both use the pool {}: writing to both in \
             turn would lose data. Open the copy with --read-only (Options::read_only), or make a \
             checkpoint to get a copy with a separate pool; if this copy is to replace the \
             original, move the original away first",
            self.path.display(),
            original.display(),
            pool.display()
        )))
    }

    /// Refuses a directory if another one of the same database has been opened with the pool since.
    /// `fixed` is that of the directory.
    pub(super) fn check_not_left(&self, fixed: &OptionsFile, pool: &Pool) -> Result<()> {
        if self.options.read_only || fixed.folder.is_none() || pool.root(MOVES_ROOT) <= fixed.moves
        {
            return Ok(());
        }
        let path = self.options.pool.path.as_ref().or(fixed.pool_path.as_ref());
        Err(Error::invalid(format!(
            "{} is an older copy of a database whose directory was moved or replaced, and which \
             was opened elsewhere with the same pool {}: data that has left the pool since is only \
             in that directory. Open that one, or recover the data in this directory and the pool \
             with \"terrace repair\"",
            self.path.display(),
            path.map(|path| path.display().to_string())
                .unwrap_or_default()
        )))
    }

    /// Keeps the options in use for the next open, if they differ from the previous ones, and
    /// counts a move.
    pub(super) fn keep_options(&self, before: &OptionsFile, shared: &Shared) -> Result<()> {
        let now = OptionsFile::of(&shared.stated, before.id, before.pool_uuid.clone());
        let mut now = now.in_folder(&self.path);
        now.kept.carry(&before.kept);
        if !self.keeps {
            now.kept = before.kept.clone();
            if !shared.pool_outlives() {
                now.pool_size_bytes = before.pool_size_bytes;
            }
        }
        let is_moved = before.folder.is_some() && now.folder != before.folder;
        now.moves = before.moves + u64::from(is_moved);
        if now != *before {
            // CRASH: either the old or the new options, and both fit all data.
            let lender = shared.reserve.lender(&self.fs, Row::Manifest);
            let lender: Arc<dyn FileSystem> = Arc::new(lender);
            now.write(&lender, &self.path)?;
        }
        if shared.pool_outlives()
            && now.folder.is_some()
            && shared.pool.root(MOVES_ROOT) != now.moves
        {
            // PERSIST: OPTIONS before the word. Reversed, a crash could leave a directory that is
            // taken for an older copy.
            shared.pool.set_roots(&[(MOVES_ROOT, now.moves)])?;
        }
        Ok(())
    }

    /// Returns whether two paths lead to one file.
    fn is_same(&self, one: &Path, other: &Path) -> bool {
        let identity = |path: &Path| self.fs.identity(path).ok().flatten();
        identity(one).is_some_and(|one| identity(other) == Some(one))
    }
}
