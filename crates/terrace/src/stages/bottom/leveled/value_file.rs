//! Value files in versions: the files, and how much of each is live.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::TableStore;
use crate::canary::{self, Canary};
use crate::error::{Error, Result};
use crate::parts::sstable::FileMeta;
use crate::parts::values::layout::HEADER_BYTES;
use crate::parts::values::{ValueFile, ValueMeta};

/// BOUND: the value files beyond four times as many as their bytes need, before small ones are
/// joined. A file is small below this part of the full size.
const FILES_SPARE: u64 = 64;
const SMALL_PART: u64 = 4;

/// The memory of a value file: its metadata in two versions and in two states of the manifest.
const FILE_BYTES: u64 = (2 * size_of::<Live>() + 3 * size_of::<ValueMeta>()) as u64 + 128;

/// A value file, while a version or a table holds it.
pub(super) struct ValueHandle {
    store: Arc<TableStore>,
    pub(super) meta: ValueMeta,
    /// Whether the manifest no longer names it.
    obsolete: AtomicBool,
}

impl Drop for ValueHandle {
    fn drop(&mut self) {
        if *self.obsolete.get_mut() {
            self.store.open_values.forget(self.meta.number);
            // CRASH: no edit names a file that stays; opening the database removes it.
            let _ = self.store.fs.remove(&self.path());
        }
    }
}

impl ValueHandle {
    pub(super) fn new(store: &Arc<TableStore>, meta: ValueMeta) -> Arc<ValueHandle> {
        Arc::new(ValueHandle {
            store: Arc::clone(store),
            meta,
            obsolete: AtomicBool::new(false),
        })
    }

    /// Lets the file be removed once no version and no table holds it.
    pub(super) fn retire(&self) {
        self.obsolete.store(true, Ordering::Relaxed);
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> PathBuf {
        self.store.value_path(self.meta.number)
    }

    /// Returns the open file.
    pub(super) fn open(&self) -> Result<Arc<ValueFile>> {
        let store = &self.store;
        let number = self.meta.number;
        store.open_values.get_or_open(number, || {
            let path = self.path();
            let file = ValueFile::open(&*store.fs, &path, number, store.options.direct_reads)?;
            if file.db() != store.db {
                return Err(Error::corruption(format!(
                    "{} is a value file of another database, {}, and this one is {}: restore the \
                     file from a copy, or recover the readable data with \"terrace repair\"",
                    path.display(),
                    file.db(),
                    store.db
                )));
            }
            Ok(Arc::new(file))
        })
    }
}

/// A value file of a version.
#[derive(Clone)]
struct Live {
    handle: Arc<ValueHandle>,
    /// The bytes of the records that tables point to.
    bytes: u64,
}

impl Live {
    /// Returns the bytes of all records.
    fn all(&self) -> u64 {
        let records = self.handle.meta.bytes.saturating_sub(HEADER_BYTES as u64);
        records.max(self.bytes)
    }

    fn garbage(&self) -> u64 {
        self.all() - self.bytes
    }
}

/// The value files of a version by number.
#[derive(Default)]
pub(super) struct Values {
    files: BTreeMap<u64, Live>,
    /// The bytes of all files, and of the records that tables point to: each query of the pressure
    /// reads them.
    bytes: u64,
    live: u64,
    /// The bytes of records in files that are not wholly garbage.
    kept: u64,
}

impl Values {
    fn of(files: BTreeMap<u64, Live>) -> Arc<Values> {
        let kept = files.values().filter(|file| file.bytes > 0);
        Arc::new(Values {
            bytes: files.values().map(|file| file.handle.meta.bytes).sum(),
            live: files.values().map(|file| file.bytes).sum(),
            kept: kept.map(Live::all).sum(),
            files,
        })
    }

    /// Returns the files with other tables and additional files.
    pub(super) fn edited<'a>(
        self: &Arc<Values>,
        removed: impl Iterator<Item = &'a FileMeta>,
        added: impl Iterator<Item = &'a FileMeta>,
        files: &[Arc<ValueHandle>],
    ) -> Arc<Values> {
        if self.files.is_empty() && files.is_empty() {
            return Arc::clone(self);
        }
        let mut all = self.files.clone();
        for handle in files {
            let live = Live {
                handle: Arc::clone(handle),
                bytes: 0,
            };
            all.insert(handle.meta.number, live);
        }
        for (file, bytes) in added.flat_map(|table| &table.values) {
            if let Some(live) = all.get_mut(file) {
                live.bytes += bytes;
            }
        }
        for (file, bytes) in removed.flat_map(|table| &table.values) {
            if let Some(live) = all.get_mut(file) {
                live.bytes = live.bytes.saturating_sub(*bytes);
            }
        }
        Values::of(all)
    }

    /// Returns the files without some.
    pub(super) fn without(&self, numbers: &[u64]) -> Arc<Values> {
        let files = self.files.iter();
        let kept = files.filter(|(number, _)| !numbers.contains(number));
        Values::of(kept.map(|(n, live)| (*n, live.clone())).collect())
    }

    /// Returns the file with this number.
    pub(super) fn get(&self, number: u64) -> Option<&Arc<ValueHandle>> {
        self.files.get(&number).map(|live| &live.handle)
    }

    /// Returns the number of files, the bytes of all, and those that are live.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        (self.files.len() as u64, self.bytes, self.live)
    }

    /// Returns whether there are no files.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the garbage in files that are not wholly garbage, and the live bytes.
    pub(super) fn garbage(&self) -> (u64, u64) {
        (self.kept - self.live, self.live)
    }

    /// Returns the memory of the names.
    pub(super) fn names_bytes(&self) -> u64 {
        self.files.len() as u64 * FILE_BYTES
    }

    /// Returns the files whose values move because of garbage. `is_due`: garbage is due.
    pub(super) fn leaving(&self, is_due: bool) -> BTreeSet<u64> {
        let share = |live: &Live| live.garbage() as f64 / live.all().max(1) as f64;
        let half = self.files.iter().filter(|(_, live)| share(live) >= 0.5);
        let mut leaving: BTreeSet<u64> = half.map(|(number, _)| *number).collect();
        if is_due {
            let with = self.files.iter();
            let with = with.filter(|(_, live)| live.bytes > 0 && live.garbage() > 0);
            let most = with.max_by(|a, b| share(a.1).total_cmp(&share(b.1)));
            leaving.extend(most.map(|(number, _)| *number));
        }
        leaving
    }

    /// Returns the one of these files that has most garbage, of those whose live bytes fit.
    pub(super) fn one_of(
        &self,
        files: &BTreeSet<u64>,
        fits: impl Fn(u64, u64) -> bool,
    ) -> Option<u64> {
        let files = self.files.iter().filter(|(number, live)| {
            files.contains(number) && live.bytes > 0 && fits(**number, live.bytes)
        });
        let most = files.max_by_key(|(_, live)| live.garbage());
        most.map(|(number, _)| *number)
    }

    /// Returns the files that are small, and the bytes of each, if there are many more than their
    /// bytes need.
    pub(super) fn small(&self, full_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let needed = self.bytes / full_bytes.max(1);
        let too_many = self.files.len() as u64 > FILES_SPARE + 4 * needed;
        let is_small =
            move |live: &Live| too_many && live.handle.meta.bytes < full_bytes / SMALL_PART;
        let small = self.files.iter().filter(move |(_, live)| is_small(live));
        small.map(|(number, live)| (*number, live.handle.meta.bytes))
    }

    /// Returns the files into which no table points.
    pub(super) fn dead(&self) -> Vec<u64> {
        let early = canary::breaks(Canary::ValuesForgotten);
        let is_dead = |live: &Live| live.bytes == 0 || early && live.bytes < live.all() / 2;
        let dead = self.files.iter().filter(|(_, live)| is_dead(live));
        dead.map(|(number, _)| *number).collect()
    }
}
