//! Drafts: a file is written once, from front to back, made durable, and then gets its name.
//!
//! So a file with its name is whole, and no name that is in use is given away.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{Appender, FileSystem, OpenMode};

use crate::canary::failpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{DbId, draft_of};

/// A file that does not have its name yet.
pub(crate) struct Draft {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    /// Its path until it is complete.
    draft: PathBuf,
    pub(crate) out: Appender,
}

impl Draft {
    /// Creates the draft of the file `path` of a database, which must not exist yet. `direct`:
    /// writes bypass the operating system's cache, if the file system supports it.
    pub(crate) fn create(
        fs: &Arc<dyn FileSystem>,
        path: &Path,
        db: DbId,
        direct: bool,
        write_bytes: usize,
    ) -> Result<Draft> {
        let mode = match direct {
            true => OpenMode::CreateNewDirect,
            false => OpenMode::CreateNew,
        };
        let draft = draft_of(path, db);
        let file = fs
            .open(&draft, mode)
            .map_err(|e| Error::io("create", &draft, e))?;
        Ok(Draft {
            fs: Arc::clone(fs),
            path: path.to_owned(),
            draft,
            out: Appender::new(file, write_bytes),
        })
    }

    /// Returns the path that the file will have.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error of a failed write.
    #[cold]
    pub(crate) fn failed(&self, e: std::io::Error) -> Error {
        Error::io("write", &self.path, e)
    }

    /// Returns the error of a call after an earlier one has failed.
    #[cold]
    pub(crate) fn has_failed(&self) -> Error {
        Error::new(
            ErrorKind::Stopped,
            format!(
                "an earlier write of {} failed: write the whole file again",
                self.path.display()
            ),
        )
    }

    /// Makes the file durable, first its contents and then its name. Returns its length. Never
    /// replaces an existing file. After an error no file remains, if it can be removed.
    pub(crate) fn finish(mut self) -> Result<u64> {
        // PERSIST: the contents, then the name, and the manifest only after this has returned.
        // Reversed, a crash could leave a manifest that refers to a short or missing file.
        let synced = self.out.sync();
        let synced = synced.map_err(|e| Error::io("sync", &self.path, e));
        let named = synced.and_then(|()| {
            // CRASH: recovery finds a draft, or a file that names its database. The manifest does
            // not refer to it, so recovery removes it.
            let renamed = self.fs.rename_new(&self.draft, &self.path);
            renamed.map_err(|e| Error::io("rename the finished file to", &self.path, e))
        });
        named.inspect_err(|_| {
            let _ = self.fs.remove(&self.draft);
        })?;
        let dir = self.path.parent().unwrap_or(Path::new(".")).to_owned();
        failpoint!(FileUnsynced => return Ok(self.out.position()));
        if let Err(e) = self.fs.sync_dir(&dir) {
            let _ = self.fs.remove(&self.path);
            return Err(Error::unsynced_folder(&dir, e));
        }
        Ok(self.out.position())
    }

    /// Removes the draft. One that cannot be removed is left for recovery.
    pub(crate) fn abandon(self) -> Result<()> {
        let Draft { fs, draft, out, .. } = self;
        drop(out);
        fs.remove(&draft)
            .map_err(|e| Error::io("remove", &draft, e))
    }
}
