//! Writes edits to the medium, compacts them when their space is full, and replays them when the
//! database is opened.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{FileSystem, Pool};

use crate::parts::codec::DecodeError;
use crate::parts::manifest::ManifestError;
use crate::parts::manifest::edit::{Change, Edit};
use crate::parts::manifest::file::{FileHome, NAME};
use crate::parts::manifest::home::Home;
use crate::parts::manifest::item::Owners;
use crate::parts::manifest::layout::{
    HEADER_BYTES, Header, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordHeader, Roots, decode_header,
    encode_header, other_version,
};
use crate::parts::manifest::pool::PoolHome;
use crate::parts::manifest::replay::replay;
use crate::parts::manifest::state::State;
use crate::parts::manifest::watch::Watch;
use crate::parts::reserve::Reserve;
use crate::types::DbId;

/// The space that edits which add data leave for deletes: logs created and retired, and edits that
/// remove data.
const KEPT_BYTES: u64 = 1024;

/// The manifest of a database, open for edits.
pub(crate) struct Manifest {
    owners: Owners,
    inner: Mutex<Inner>,
    /// The ends of the logs that have ended since the last written edit.
    /// LOCK: after `inner`; never held during a write.
    /// BOUND: one entry for each log that is needed.
    ended: Mutex<BTreeMap<u64, u64>>,
}

struct Inner {
    watch: Watch,
    db: DbId,
    state: State,
    home: Box<dyn Home>,
    generation: u64,
    /// The position of the next record.
    tail: u64,
    /// The number of the next record.
    number: u64,
    /// The first failure; every later commit fails with it.
    failed: Option<String>,
    /// The record being encoded; kept to reuse its memory.
    record: Vec<u8>,
}

impl Manifest {
    /// Creates the manifest of the empty store `db`, durable on return, in two extents of
    /// `extent_bytes`.
    ///
    /// If the roots name the manifest of an unfinished creation, it is dropped.
    pub(crate) fn create(
        pool: &Pool,
        db: DbId,
        extent_bytes: u64,
        owners: Owners,
    ) -> Result<Manifest, ManifestError> {
        // The generation exceeds any that left records in these extents: they must not follow the
        // first record.
        let generation = Roots::read(|i| pool.root(i)).generation + 1;
        let home = PoolHome::create(pool, extent_bytes, generation)?;
        Manifest::begin(Box::new(home), db, generation, owners)
    }

    /// Creates the manifest of the empty store `db` without a pool, durable on return, in a file in
    /// `dir` that must not exist.
    pub(crate) fn create_file(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        db: DbId,
        owners: Owners,
    ) -> Result<Manifest, ManifestError> {
        Manifest::begin(Box::new(FileHome::new(fs, dir, db)), db, 1, owners)
    }

    fn begin(
        home: Box<dyn Home>,
        db: DbId,
        generation: u64,
        owners: Owners,
    ) -> Result<Manifest, ManifestError> {
        let mut inner = Inner {
            watch: Watch::default(),
            db,
            state: State::default(),
            home,
            // The number before the first generation, which never existed.
            generation: generation - 1,
            tail: 0,
            number: 0,
            failed: None,
            record: Vec::new(),
        };
        inner.compact(&State::default(), 0)?;
        Ok(Manifest::of(inner, owners))
    }

    /// Opens the manifest that the pool's roots name and adopts its own extents. The records found
    /// are durable on return.
    ///
    /// The caller adopts the extents in the state before it commits or allocates anything.
    pub(crate) fn open(pool: &Pool, owners: Owners) -> Result<Manifest, ManifestError> {
        let (home, generation) = PoolHome::open(pool)?;
        let (bytes, _) = home.read()?;
        if let Some(version) = bytes.get(..HEADER_BYTES).and_then(other_version) {
            return Err(ManifestError::Version { version });
        }
        drop(bytes);
        Manifest::resume(home, generation, owners, |home, tail| {
            home.make_durable(tail)
        })
    }

    /// Opens the manifest in the directory `dir`. The records found are durable on return.
    pub(crate) fn open_file(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        owners: Owners,
    ) -> Result<Manifest, ManifestError> {
        let mut home = FileHome::open(fs, dir)?;
        let (bytes, _) = home.read()?;
        let head = bytes.get(..HEADER_BYTES).unwrap_or(&bytes);
        if let Some(version) = other_version(head) {
            return Err(ManifestError::Version { version });
        }
        let header = decode_header(head, 0)?;
        if (bytes.len() as u64) < header.file_bytes {
            // The file had this length before it got its name, so its end was cut off since.
            let expected = format!("{} bytes of manifest", header.file_bytes);
            let found = "the end of the file";
            return Err(DecodeError::new("manifest", bytes.len() as u64, expected, found).into());
        }
        home.belongs_to(header.db);
        Manifest::resume(home, header.generation, owners, |home, _| {
            home.make_durable()
        })
    }

    fn resume<H: Home + 'static>(
        home: H,
        generation: u64,
        owners: Owners,
        make_durable: impl FnOnce(&H, u64) -> std::io::Result<()>,
    ) -> Result<Manifest, ManifestError> {
        let (bytes, base) = home.read()?;
        let replayed = replay(&bytes, base, generation, owners)?;
        drop(bytes);
        if let Some(problem) = not_kept(&home, &replayed.state) {
            return Err(problem.into());
        }
        make_durable(&home, replayed.tail).map_err(ManifestError::Io)?;
        let inner = Inner {
            watch: Watch::default(),
            db: replayed.db,
            state: replayed.state,
            home: Box::new(home),
            generation,
            tail: replayed.tail,
            number: replayed.number,
            failed: None,
            record: Vec::new(),
        };
        Ok(Manifest::of(inner, owners))
    }

    fn of(inner: Inner, owners: Owners) -> Manifest {
        Manifest {
            owners,
            inner: Mutex::new(inner),
            ended: Mutex::default(),
        }
    }

    /// Notes that log `id` takes no more records and is durable up to its end at byte `end`. The
    /// next written edit records this, which costs no extra sync; a crash before it only weakens
    /// the detection of damage.
    pub(crate) fn note_log_end(&self, id: u64, end: u64) {
        self.ended.lock().insert(id, end);
    }

    /// Returns whether the next edit will record the end of a log.
    pub(crate) fn has_log_ends(&self) -> bool {
        let inner = self.inner.lock();
        let ended = self.ended.lock();
        !inner.notes(&ended, &Edit::default()).is_empty()
    }

    /// Applies all changes of `edit` atomically and durably, or none of them.
    ///
    /// An edit that contradicts the state is refused as `Corrupt`, a manifest that cannot grow as
    /// `Alloc` or `Draft`; these leave everything unchanged. Any other failure is final.
    pub(crate) fn commit(&self, edit: impl Borrow<Edit>) -> Result<(), ManifestError> {
        let edit: &Edit = edit.borrow();
        let inner = &mut *self.inner.lock();
        if let Some(first) = &inner.failed {
            return Err(ManifestError::Failed(first.clone()));
        }
        if edit.is_empty() {
            return Ok(());
        }
        inner.check_files()?;
        if !edit.changes.iter().any(|c| inner.home.keeps(c)) {
            // All changes are of a pool that disappears with the process.
            return inner.add(&edit.changes);
        }
        let ended = self.ended.lock().clone();
        let noted = inner.notes(&ended, edit);
        let noted_too = [&noted[..], &edit.changes].concat();
        match inner.add(&noted_too) {
            // There may be space for the requested changes alone.
            Err(e) if !e.is_final() && !noted.is_empty() => return inner.add(&edit.changes),
            added => added?,
        }
        self.ended.lock().retain(|id, _| !ended.contains_key(id));
        Ok(())
    }

    /// Watches these files: edits are refused once one is removed or replaced.
    pub(crate) fn watch(
        &self,
        fs: &Arc<dyn FileSystem>,
        paths: &[PathBuf],
    ) -> Result<(), ManifestError> {
        let mut inner = self.inner.lock();
        let added = paths.iter().try_for_each(|path| inner.watch.add(fs, path));
        added.map_err(ManifestError::Io)
    }

    /// Fails if a watched file was removed or replaced. Called before a file is created in the
    /// directory.
    pub(crate) fn check_files(&self) -> Result<(), ManifestError> {
        self.inner.lock().check_files()
    }

    /// Lets generations use the space of `reserve` when the disk is full. Gives space back if the
    /// state has shrunk.
    pub(crate) fn lend(&self, reserve: &Arc<Reserve>) {
        let mut inner = self.inner.lock();
        inner.home.lend(reserve);
        inner.shrink();
    }

    /// Returns the capacity of the current generation in bytes.
    pub(crate) fn room(&self) -> u64 {
        self.inner.lock().home.room()
    }

    /// Returns the database that owns the manifest.
    pub(crate) fn db(&self) -> DbId {
        self.inner.lock().db
    }

    /// Runs `f` on the state; commits wait for it.
    pub(crate) fn with_state<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        f(&self.inner.lock().state)
    }

    /// Rereads everything on the medium, compares it with the state in memory, and checks that no
    /// two extents in use overlap.
    pub(crate) fn verify(&self) -> Result<(), ManifestError> {
        let inner = self.inner.lock();
        let (bytes, base) = inner.home.read()?;
        // After a failure (N4) the medium may have the record of the edit that failed, or the
        // generation that it began, and nothing else.
        let (replayed, is_unknown) = match replay(&bytes, base, inner.generation, self.owners) {
            Ok(same) => {
                let one_more = same.number == inner.number + 1;
                (same, inner.failed.is_some() && one_more)
            }
            Err(e) if inner.failed.is_some() => {
                let next = replay(&bytes, base, inner.generation + 1, self.owners);
                let next = next.map_err(|_| e)?;
                let only_begun = next.number == 1;
                (next, only_begun)
            }
            Err(e) => return Err(e),
        };
        let expected = inner.state.restricted(|change| inner.home.keeps(change));
        let is_same = replayed.state == expected && replayed.tail == inner.tail;
        if !is_same && !is_unknown {
            let at = base + replayed.tail;
            let expected = format!("{} records", inner.number);
            let found = replayed.number.to_string();
            return Err(DecodeError::new("manifest", at, expected, found).into());
        }
        let mut spans = inner.state.spans();
        spans.extend(inner.home.spans());
        spans.sort_unstable();
        for pair in spans.windows(2) {
            if pair[0].off + pair[0].len > pair[1].off {
                let (expected, found) =
                    (format!("no extent inside {}", pair[0]), pair[1].to_string());
                return Err(DecodeError::new("manifest", pair[1].off, expected, found).into());
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Returns the changes that record the ends of logs, except for logs that `edit` retires.
    fn notes(&self, ended: &BTreeMap<u64, u64>, edit: &Edit) -> Vec<Change> {
        let is_news = |id: &u64| {
            let log = self.state.logs.get(id);
            log.is_some_and(|log| log.end.is_none()) && edit.retired_logs().all(|gone| gone != *id)
        };
        let news = ended.iter().filter(|(id, _)| is_news(id));
        news.map(|(&id, &end)| Change::LogEnded { id, end })
            .collect()
    }

    /// Applies all `changes` durably, or none of them.
    fn add(&mut self, changes: &[Change]) -> Result<(), ManifestError> {
        let mut state = self.state.clone();
        for change in changes {
            state.apply(change)?;
        }
        state.check(changes)?;
        let kept = changes.iter().filter(|c| self.home.keeps(c));
        let count = encode(&mut self.record, kept);
        let bytes = self.record.len().next_multiple_of(RECORD_ALIGN) as u64;
        if count > 0 {
            let kept = match changes.iter().any(Change::adds_data) {
                true => KEPT_BYTES,
                false => 0,
            };
            if bytes + kept <= self.home.room() - self.tail {
                self.append(bytes, count)?;
            } else {
                self.compact(&state, kept)?;
            }
        }
        self.state = state;
        Ok(())
    }

    /// Starts a new generation if the current one is many times as large as the state needs.
    fn shrink(&mut self) {
        if self.home.room() / 8 < self.home.room_of(0) || self.failed.is_some() {
            return;
        }
        let state = self.state.clone();
        let changes = state.to_changes();
        encode(
            &mut self.record,
            changes.iter().filter(|c| self.home.keeps(c)),
        );
        let wanted = self.home.room_of((HEADER_BYTES + self.record.len()) as u64);
        // The pool decides the size of its extents, and reports 0 here.
        if wanted > 0 && self.home.room() / 8 >= wanted {
            // Without space for the draft the file stays as it is. Other failures stop the edits.
            let _ = self.compact(&state, 0);
        }
    }

    /// Fails permanently if a watched file was removed or replaced.
    fn check_files(&mut self) -> Result<(), ManifestError> {
        match self.watch.lost().map(Path::to_owned) {
            None => Ok(()),
            Some(path) => self.fail(ManifestError::Gone(path)),
        }
    }

    fn fail<T>(&mut self, e: ManifestError) -> Result<T, ManifestError> {
        if e.is_final() {
            self.failed.get_or_insert_with(|| e.to_string());
        }
        Err(e)
    }

    /// Writes the encoded record of `count` changes after the last one.
    fn append(&mut self, bytes: u64, count: u32) -> Result<(), ManifestError> {
        RecordHeader::finish(&mut self.record, self.generation, self.number, count);
        match self.home.append(self.tail, &self.record) {
            Ok(()) => {
                self.tail += bytes;
                self.number += 1;
                Ok(())
            }
            Err(e) => self.fail(ManifestError::Io(e)),
        }
    }

    /// Starts a new generation with `state` as its first record and space for `kept` more bytes.
    fn compact(&mut self, state: &State, kept: u64) -> Result<(), ManifestError> {
        let changes = state.to_changes();
        let written = changes.iter().filter(|change| self.home.keeps(change));
        let count = encode(&mut self.record, written);
        let generation = self.generation + 1;
        RecordHeader::finish(&mut self.record, generation, 0, count);
        let bytes = (HEADER_BYTES + self.record.len()).next_multiple_of(RECORD_ALIGN);
        let mut image = encode_header(Header {
            generation,
            file_bytes: self.home.room_of(bytes as u64),
            db: self.db,
        })
        .to_vec();
        image.extend_from_slice(&self.record);
        image.resize(bytes, 0);
        if let Err(e) = self.home.replace(generation, &image, kept) {
            return self.fail(e);
        }
        if let Err(e) = self.watch.replaced(NAME) {
            return self.fail(ManifestError::Io(e));
        }
        self.generation = generation;
        self.tail = bytes as u64;
        self.number = 1;
        Ok(())
    }
}

/// Encodes changes after the space for their record's header and returns their number.
fn encode<'a>(record: &mut Vec<u8>, changes: impl Iterator<Item = &'a Change>) -> u32 {
    record.clear();
    record.resize(RECORD_HEADER_BYTES, 0);
    let mut count = 0;
    for change in changes {
        change.encode(record);
        count += 1;
    }
    count
}

/// Returns an error if the state has changes that no writer stores in this home.
fn not_kept(home: &impl Home, state: &State) -> Option<DecodeError> {
    let found = state.to_changes().into_iter().find(|c| !home.keeps(c))?;
    let expected = "only changes of files";
    Some(DecodeError::new(
        "manifest",
        0,
        expected,
        format!("{found:?}"),
    ))
}

/// Accessors for tests.
#[cfg(test)]
mod testing {
    use std::path::Path;
    use std::sync::Arc;

    use terrace_media::{FileSystem, Span};

    use super::{DbId, FileHome, Manifest, ManifestError, Owners, State};

    impl Manifest {
        /// Returns a copy of the state.
        pub(crate) fn state(&self) -> State {
            self.with_state(State::clone)
        }

        /// Returns the manifest's own extents, the current one first.
        pub(crate) fn spans(&self) -> Vec<Span> {
            self.inner.lock().home.spans()
        }

        /// Returns the generation, which counts compactions.
        pub(crate) fn generation(&self) -> u64 {
            self.inner.lock().generation
        }

        /// As `create_file`, with less space.
        pub(crate) fn create_small_file(
            fs: &Arc<dyn FileSystem>,
            dir: &Path,
            db: DbId,
            room: u64,
            owners: Owners,
        ) -> Result<Manifest, ManifestError> {
            Manifest::begin(Box::new(FileHome::small(fs, dir, db, room)), db, 1, owners)
        }
    }
}
