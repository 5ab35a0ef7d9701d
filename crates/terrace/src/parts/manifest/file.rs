//! The home of a manifest in a file of the database's directory, for a database without a pool.
//!
//! A generation is a file whose space is allocated when it is created, so that no record waits for
//! space on the disk. Records are appended, and each is synced before any caller acts on it. The
//! next generation is written as a draft in the same directory, synced, and renamed over the old
//! file. A single name replaced by a rename was chosen over a pointer file or two alternating
//! files: the file with the name is the valid one, so no second place can disagree, and only a
//! draft may be left to remove.
//!
//! Changes of the pool are kept in memory only, like the pool: its tables are gone with the
//! process, and the manifest names the logs that cover them for as long as they are needed.
//!
//! Invariants
//!   F1  A file with the manifest's name is complete up to its first record: it was synced before
//!       it got the name.

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
/// The minimum capacity of a generation.
const ROOM_MIN: u64 = 256 << 10;
/// BOUND: a longer file is neither written nor read into memory. With short keys a manifest of a
/// million tables is shorter; with keys of 64 KiB, one of two thousand.
pub(crate) const BYTES_MAX: u64 = 1 << 30;

/// The home of a manifest in a file.
pub(super) struct FileHome {
    fs: Arc<dyn FileSystem>,
    /// The same file system for drafts, which may use the reserve.
    drafts: Arc<dyn FileSystem>,
    dir: PathBuf,
    db: DbId,
    /// `None` until the first generation is written.
    file: Option<Box<dyn File>>,
    room: u64,
    room_min: u64,
    /// The longest file that is written.
    bytes_max: u64,
}

impl FileHome {
    /// Creates the home of the manifest of `db` in the directory `dir`, without a file yet.
    pub(super) fn new(fs: &Arc<dyn FileSystem>, dir: &Path, db: DbId) -> FileHome {
        FileHome {
            fs: Arc::clone(fs),
            drafts: Arc::clone(fs),
            dir: dir.to_owned(),
            db,
            file: None,
            room: 0,
            room_min: ROOM_MIN,
            bytes_max: BYTES_MAX,
        }
    }

    /// Opens the file with the manifest's name.
    pub(super) fn open(fs: &Arc<dyn FileSystem>, dir: &Path) -> Result<FileHome, ManifestError> {
        let mut home = FileHome::new(fs, dir, DbId::default());
        let path = dir.join(NAME);
        let failed = |e| ManifestError::Io(named(&path, e));
        let file = fs.open(&path, OpenMode::Write).map_err(failed)?;
        home.room = file.len().map_err(failed)?;
        home.file = Some(file);
        Ok(home)
    }

    /// Sets the database of a manifest that was opened.
    pub(super) fn belongs_to(&mut self, db: DbId) {
        self.db = db;
    }

    fn draft_path(&self) -> PathBuf {
        draft_of(&self.dir.join(NAME), self.db)
    }

    /// Makes the records of a killed process and the file's name durable.
    pub(super) fn make_durable(&self) -> io::Result<()> {
        // PERSIST: a record or a rename of a killed process that may not be durable, before any
        // caller acts on it. Reversed, a power loss could take the edit back.
        if let Some(file) = &self.file {
            file.sync_data()
                .map_err(|e| named(&self.dir.join(NAME), e))?;
        }
        self.fs.sync_dir(&self.dir).map_err(|e| named(&self.dir, e))
    }

    /// Writes the draft of a generation, which has no effect yet.
    fn draft(&self, image: &[u8], room: u64) -> io::Result<Box<dyn File>> {
        let file = self.drafts.open(&self.draft_path(), OpenMode::Truncate)?;
        file.allocate(room)?;
        file.write_at(0, image)?;
        Ok(file)
    }
}

/// Adds the file's name to an error.
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
        // PERSIST: the whole record, before the caller acts on it by removing files or reusing
        // logs. Reversed, a crash would bring back names of files that are gone.
        // CRASH: until this returns any part of the record may be missing; the checksum detects
        // this, and replay ends before the record.
        file.sync_data().map_err(|e| named(&path, e))
    }

    fn replace(&mut self, _: u64, image: &[u8], _: u64) -> Result<(), ManifestError> {
        // This is at least twice the size of the image, which leaves more than the space to keep.
        let room = self.room_of(image.len() as u64);
        let path = self.draft_path();
        if room > self.bytes_max {
            let text = format!(
                "the tables need {room} bytes of manifest, more than {}; use larger tables or \
                 shorter keys",
                self.bytes_max
            );
            return Err(ManifestError::Draft(named(&path, io::Error::other(text))));
        }
        let file = match self.draft(image, room) {
            Ok(file) => file,
            Err(e) => {
                // The draft had no effect, so nothing has changed.
                let _ = self.fs.remove(&path);
                return Err(ManifestError::Draft(named(&path, e)));
            }
        };
        let final_failure = |e| ManifestError::Io(named(&path, e));
        // PERSIST: the generation before it gets the name (F1), and the name before any caller acts
        // on the edit. Reversed, a power loss could leave a name without a manifest, or the old
        // manifest after files that it names were removed.
        // CRASH: until the directory is synced either generation may have the name; both are
        // complete.
        file.sync_data().map_err(final_failure)?;
        let target = self.dir.join(NAME);
        let renamed = match self.file {
            Some(_) => self.fs.rename(&path, &target),
            // Before the first generation this database has no manifest.
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
            let text = format!("{len} bytes, too many for a manifest");
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(0, &mut bytes).map_err(failed)?;
        Ok((Cow::Owned(bytes), 0))
    }

    fn lend(&mut self, reserve: &Arc<Reserve>) {
        self.drafts = Arc::new(reserve.lender(&self.fs, Row::Manifest));
        if self.file.is_some() {
            // A copy of the directory may have dropped zeros, and with them the space of later
            // records. If the disk has no space for them, the next append reports it.
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
    /// Creates a home whose generations have little space.
    pub(super) fn small(fs: &Arc<dyn FileSystem>, dir: &Path, db: DbId, room_min: u64) -> FileHome {
        FileHome {
            room_min,
            bytes_max: 128 * room_min,
            ..FileHome::new(fs, dir, db)
        }
    }
}
