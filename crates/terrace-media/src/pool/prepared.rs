//! Files that a user has prepared for a new pool: an empty file, or a symbolic link to its place.
//!
//! A pool is created under another name and renamed when it is complete. The new file gets the
//! place and the permissions of the empty file that it replaces, and its owner if the process may
//! set it.

use super::error::PoolError;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

/// BOUND: the number of symbolic links that are followed, as in the kernel.
const LINKS_MAX: usize = 40;

/// Returns the path of the file itself: a rename onto a symbolic link would replace the link.
pub(super) fn target(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        match std::fs::symlink_metadata(&target) {
            Ok(meta) if meta.is_symlink() => {
                let to = std::fs::read_link(&target)?;
                target = target.parent().unwrap_or(Path::new("")).join(to);
            }
            // Whatever else fails will fail for the file as well.
            _ => return Ok(target),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Prepares `file` to replace the file at `path`, if there is one: copies permissions and owner.
pub(super) fn replace(path: &Path, file: &File) -> Result<(), PoolError> {
    let failed = |op| {
        move |source| PoolError::Io {
            path: path.to_owned(),
            op,
            source,
        }
    };
    // The user must be allowed to write the file, not only its directory.
    let found = match OpenOptions::new().write(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(failed("open for writing"))?,
    };
    let meta = found.metadata().map_err(failed("examine"))?;
    if meta.nlink() > 1 {
        return Err(PoolError::Invalid(format!(
            "the file {} has several hard links, and a new pool would replace only this one; \
             remove the others or choose another path",
            path.display()
        )));
    }
    let new = file.metadata().map_err(failed("examine"))?;
    if (new.uid(), new.gid()) != (meta.uid(), meta.gid()) {
        match fchown(file, Some(meta.uid()), Some(meta.gid())) {
            // Only root may give a file away.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            kept => kept.map_err(failed("keep the owner of"))?,
        }
    }
    let permissions = file.set_permissions(meta.permissions());
    permissions.map_err(failed("keep the permissions of"))
}
