//! Watches whether the names of an open database's files still lead to the same files.
//!
//! A program that removes or replaces a database should take its lock first. If it does not, a
//! writer would continue on files that have no name any more. So each edit first checks the names
//! of the files that make the directory a database, at the cost of a few system calls.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::FileSystem;

/// File names and the identity of each file when it was recorded.
#[derive(Default)]
pub(super) struct Watch {
    files: Vec<Watched>,
}

struct Watched {
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    identity: (u64, u64),
}

impl Watch {
    /// Watches a file from now on, if the file system can identify files.
    pub(super) fn add(&mut self, fs: &Arc<dyn FileSystem>, path: &Path) -> io::Result<()> {
        if let Some(identity) = fs.identity(path)? {
            self.files.push(Watched {
                fs: Arc::clone(fs),
                path: path.to_owned(),
                identity,
            });
        }
        Ok(())
    }

    /// Records the new identity of a watched file that the database has replaced.
    pub(super) fn replaced(&mut self, name: &str) -> io::Result<()> {
        for file in &mut self.files {
            if file.path.file_name().is_some_and(|found| found == name)
                && let Some(now) = file.fs.identity(&file.path)?
            {
                file.identity = now;
            }
        }
        Ok(())
    }

    /// Returns the first watched file whose name is gone or leads to another file. A name that
    /// cannot be looked up now is not reported.
    pub(super) fn lost(&self) -> Option<&Path> {
        let lost = |file: &&Watched| match file.fs.identity(&file.path) {
            Ok(now) => now.is_some_and(|now| now != file.identity),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        self.files.iter().find(lost).map(|file| file.path.as_path())
    }
}
