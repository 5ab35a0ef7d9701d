//! This file is the manifest's home in a file of the database's folder, for a database without a pool.
//!
//! A generation is a file whose space is taken when it is made, so that no record ever waits for
//! room on a disk; records are appended, each synced before anybody acts on it. The next generation
//! is written whole to a draft beside it, synced, and renamed over it. One name that a rename replaces
//! was chosen over a pointer file or two files that take turns: what is valid is what has the name,
//! so there is no second place that could disagree, and nothing to clean up but a draft.
//!
//! What is said of the pool is kept in memory only, like the pool: its tables are gone with the
//! process, and the logs that cover them are named here for as long as they are needed.
//!
//! Invariants
//!   F1  A file with the manifest's name is whole up to its first record: it had been synced when it
//!       got the name.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{File, FileSystem, OpenMode, Span};

use crate::canary::failpoint;
use crate::parts::manifest::ManifestError;
use crate::parts::manifest::edit::Change;
use crate::parts::manifest::home::{Home, room_for};
use crate::parts::reserve::{Reserve, Row};
use crate::types::{DbId, draft_of};

/// The name of the file.
pub(crate) const NAME: &str = "MANIFEST";
/// The least room of a generation.
const ROOM_MIN: u64 = 256 << 10;
/// BOUND: a longer file is not read into memory; a manifest of a million tables is shorter.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

/// The home of a manifest in a file.
pub(super) struct FileHome {
    fs: Arc<dyn FileSystem>,
    /// The same for drafts, which may take the reserve.
    drafts: Arc<dyn FileSystem>,
    dir: PathBuf,
    db: DbId,
    /// None until the first generation is written.
    file: Option<Box<dyn File>>,
    room: u64,
    room_min: u64,
}

impl FileHome {
    /// A home of the manifest of `db` without a file yet, in the folder `dir`.
    pub(super) fn new(fs: &Arc<dyn FileSystem>, dir: &Path, db: DbId) -> FileHome {
        FileHome {
            fs: Arc::clone(fs),
            drafts: Arc::clone(fs),
            dir: dir.to_owned(),
            db,
            file: None,
            room: 0,
            room_min: ROOM_MIN,
        }
    }

    /// The home with the file that has the manifest's name.
    pub(super) fn open(fs: &Arc<dyn FileSystem>, dir: &Path) -> Result<FileHome, ManifestError> {
        let mut home = FileHome::new(fs, dir, DbId::default());
        let path = dir.join(NAME);
        let failed = |e| ManifestError::Io(named(&path, e));
        let file = fs.open(&path, OpenMode::Write).map_err(failed)?;
        home.room = file.len().map_err(failed)?;
        home.file = Some(file);
        Ok(home)
    }

    /// The manifest that was opened is that of `db`.
    pub(super) fn belongs_to(&mut self, db: DbId) {
        self.db = db;
    }

    fn draft_path(&self) -> PathBuf {
        draft_of(&self.dir.join(NAME), self.db)
    }

    /// Makes durable what a killed process had written, and the file's name.
    pub(super) fn settle(&self) -> io::Result<()> {
        // PERSIST: a record that a killed process had written and not made durable, or a name that
        // it had given, before anybody acts on it. Reversed, power loss could take the edit back.
        if let Some(file) = &self.file {
            file.sync_data()
                .map_err(|e| named(&self.dir.join(NAME), e))?;
        }
        self.fs.sync_dir(&self.dir).map_err(|e| named(&self.dir, e))
    }

    /// Writes the draft of a generation; it has no meaning yet.
    fn draft(&self, image: &[u8], room: u64) -> io::Result<Box<dyn File>> {
        let file = self.drafts.open(&self.draft_path(), OpenMode::Truncate)?;
        file.allocate(room)?;
        file.write_at(0, image)?;
        Ok(file)
    }
}

/// The failure with the file's name.
fn named(path: &Path, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

impl Home for FileHome {
    fn keeps(&self, change: &Change) -> bool {
        !change.is_of_pool()
    }

    fn room(&self) -> u64 {
        self.room
    }

    fn room_of(&self, wanted: u64) -> u64 {
        room_for(wanted).max(self.room_min)
    }

    fn append(&mut self, at: u64, record: &[u8]) -> io::Result<()> {
        let path = self.dir.join(NAME);
        let Some(file) = &self.file else {
            return Err(io::Error::other("the manifest has no file yet"));
        };
        file.write_at(at, record).map_err(|e| named(&path, e))?;
        failpoint!(EditFence => return Ok(()));
        // PERSIST: the whole record, before the caller acts on it: removes files, reuses logs.
        // Reversed, a crash would bring back names of files that are gone.
        // CRASH: until this returns any part may be missing; the checksum says so, and replay ends
        // before the record.
        file.sync_data().map_err(|e| named(&path, e))
    }

    fn replace(&mut self, _: u64, image: &[u8], _: u64) -> Result<(), ManifestError> {
        // Four times what there is, so more than what should be kept.
        let room = self.room_of(image.len() as u64);
        let path = self.draft_path();
        let file = match self.draft(image, room) {
            Ok(file) => file,
            Err(e) => {
                // The draft has no meaning, so nothing has happened.
                let _ = self.fs.remove(&path);
                return Err(ManifestError::Draft(named(&path, e)));
            }
        };
        let final_failure = |e| ManifestError::Io(named(&path, e));
        // PERSIST: the generation before it gets the name (F1), and the name before anybody acts on
        // the edit. Reversed, power loss could leave a name without a manifest, or the manifest of
        // before an edit whose files were removed already.
        // CRASH: until the folder is synced either generation may have the name, and both are whole.
        file.sync_data().map_err(final_failure)?;
        let target = self.dir.join(NAME);
        let renamed = match self.file {
            Some(_) => self.fs.rename(&path, &target),
            // Before the first there is none of this database.
            None => self.fs.rename_new(&path, &target),
        };
        renamed.map_err(final_failure)?;
        self.fs.sync_dir(&self.dir).map_err(final_failure)?;
        self.file = Some(file);
        self.room = room;
        Ok(())
    }

    fn read(&self) -> Result<(Cow<'_, [u8]>, u64), ManifestError> {
        let path = self.dir.join(NAME);
        let failed = |e| ManifestError::Io(named(&path, e));
        let file = self.fs.open(&path, OpenMode::Read).map_err(failed)?;
        let len = file.len().map_err(failed)?;
        if len > BYTES_MAX {
            let text = format!("{len} bytes, more than any manifest has");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(0, &mut bytes).map_err(failed)?;
        Ok((Cow::Owned(bytes), 0))
    }

    fn lend(&mut self, reserve: &Arc<Reserve>) {
        self.drafts = Arc::new(reserve.lender(&self.fs, Row::Manifest));
        if self.file.is_some() {
            // A copy of the folder may have left out zeros, and with them the space of records to come. Where there is
            // none for it, the next record says so.
            let file = self.drafts.open(&self.dir.join(NAME), OpenMode::Write);
            let _ = file.and_then(|file| file.allocate(self.room));
        }
    }

    fn spans(&self) -> Vec<Span> {
        Vec::new()
    }
}

#[cfg(test)]
impl FileHome {
    /// A home whose generations have little room.
    pub(super) fn small(fs: &Arc<dyn FileSystem>, dir: &Path, db: DbId, room_min: u64) -> FileHome {
        FileHome {
            room_min,
            ..FileHome::new(fs, dir, db)
        }
    }
}
