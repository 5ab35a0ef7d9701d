//! This file watches whether the files of an open database are still those that have their names.
//!
//! Whoever removes or replaces a database should have asked its lock. Where that was not done, a writer
//! would go on with files that nobody can find again. So each edit first looks whether the names of
//! the files that make the folder a database lead to what they led to: some system calls beside what
//! an edit costs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::FileSystem;

/// Names, and what each of them led to when it was noted.
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
    /// Watches a file from now on, where the file system can tell one from another.
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

    /// Notes what the name of a watched file leads to now that the database has replaced it.
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

    /// The first watched file whose name leads nowhere, or elsewhere. A name that cannot be looked up now
    /// says nothing.
    pub(super) fn lost(&self) -> Option<&Path> {
        let lost = |file: &&Watched| match file.fs.identity(&file.path) {
            Ok(now) => now.is_some_and(|now| now != file.identity),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        self.files.iter().find(lost).map(|file| file.path.as_path())
    }
}
