//! This file refuses to write to a copy of a database's folder whose pool is that of the original.
//!
//! A pool outside the folder is not copied with it. What leaves it as tables would come to the folder that is open then,
//! and the other would miss them, so the two must not be used by turns.

use std::path::Path;

use super::open::DbBuilder;
use crate::error::{Error, Result};
use crate::options::file::{Fixed, NAME};

impl DbBuilder {
    /// Refuses the folder if it is a copy, the original is there, and both have the same pool. `fixed` is of the folder.
    pub(super) fn check_not_copied(&self, fixed: &Fixed) -> Result<()> {
        let (Some(original), Some(pool)) = (&fixed.folder, &fixed.pool_path) else {
            return Ok(());
        };
        if self.options.read_only || *original == self.path {
            return Ok(());
        }
        // An original that cannot be read says nothing.
        let found = Fixed::read(&self.fs, original).ok().flatten();
        let wanted = self.options.pool.path.as_ref().unwrap_or(pool);
        if found.is_none_or(|found| found.id != fixed.id)
            || !self.is_same(&self.path.join(wanted), &original.join(pool))
            || self.is_same(&self.path.join(NAME), &original.join(NAME))
        {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} is a copy of {}, which is there too, and both have the pool {}: to write to both by turns would lose data. \
             Read the copy with Options::read_only, or --read-only on the command line; for a copy with a pool of its own \
             make a checkpoint; if this copy is to replace the other, move that away first",
            self.path.display(),
            original.display(),
            pool.display()
        )))
    }

    /// Whether two paths lead to one file.
    fn is_same(&self, one: &Path, other: &Path) -> bool {
        let identity = |path: &Path| self.fs.identity(path).ok().flatten();
        identity(one).is_some_and(|one| identity(other) == Some(one))
    }
}
