//! Value files of the levels: when their values move, and when they are forgotten.
//!
//! Long values are written once, when their entries reach the levels, and tables point to them. So
//! compactions move keys and pointers. A value file is a segment (`parts/segments`) that tables
//! share: each records how many bytes of which files it points to, and a value is garbage once no
//! table points to it.
//!
//! A file *leaves* if at least half of it is garbage, or if garbage is due and it has the largest
//! share, or if it is one of the smallest and there are many: whatever writes tables copies the
//! values that it finds there to its own value file. If garbage is due, tables that point to it are
//! rewritten, one at a time. A file that no table points into is forgotten by an edit. On a full
//! disk files leave one at a time, each if there is space for its live values and for a table.
//!
//! Invariants
//!   V1  A value file is durable before the edit that names it, which is that of the first tables
//!       that point into it.
//!   V2  An edit forgets a value file only if no table of the version points into it (S2). Jobs
//!       point only into files of their input, which stays in the version until their edit, or into
//!       files that they have written.
//!
//! CRASH: a value file that no edit names is removed when the database is opened, and one without a
//! live value is forgotten again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Inner;
use super::compaction::Compaction;
use super::garbage::Garbage;
use super::value_file::ValueHandle;
use super::version::{Table, Version};
use crate::error::{Error, Result};
use crate::parts::manifest::{Change, Edit};
use crate::parts::sstable::{PointerEntry, SsTable, Verified};
use crate::parts::values::{Pointer, VALUE_FILE};
use crate::stages::{Completion, Job, JobKind, Step};

impl Table {
    /// Returns the value file that a pointer of the table names.
    pub(super) fn value_file(&self, pointer: Pointer) -> Result<&Arc<ValueHandle>> {
        let at = (self.values).binary_search_by_key(&pointer.file, |file| file.meta.number);
        at.map(|at| &self.values[at]).map_err(|_| {
            Error::corruption(format!(
                "{} points into value file {}, which the manifest does not record for it: restore \
                 the database from a copy, or recover the readable data with \"terrace repair\"",
                self.path().display(),
                pointer.file
            ))
        })
    }

    /// Decodes a pointer of the table.
    pub(super) fn pointer(&self, bytes: &[u8]) -> Result<Pointer> {
        Pointer::decode(bytes, 0).map_err(|e| {
            let path = self.path();
            Error::corruption(format!("{}: {}", path.display(), Error::from(e)))
        })
    }

    /// Reads all of the table and the values that it points to, and checks them.
    pub(super) fn verify(&self, open: &SsTable, visited: &mut dyn FnMut(u64)) -> Verified {
        let mut pointed = BTreeMap::new();
        let mut check = |entry: PointerEntry<'_>| -> Result<u64> {
            let pointer = self.pointer(entry.pointer)?;
            self.value_file(pointer)?.open()?.read(pointer, entry.key)?;
            *pointed.entry(pointer.file).or_default() += u64::from(pointer.bytes);
            Ok(u64::from(pointer.bytes))
        };
        let mut verified = open.verify(visited, &mut check);
        for file in self.values.iter() {
            match file.open() {
                Ok(open) if open.bytes() != file.meta.bytes => verified.problem(format!(
                    "value file {} has {} bytes, but the manifest records {}",
                    file.meta.number,
                    open.bytes(),
                    file.meta.bytes
                )),
                // Its values cannot be read either.
                Ok(_) | Err(_) => {}
            }
        }
        let recorded: BTreeMap<u64, u64> = self.meta.values.iter().copied().collect();
        if verified.is_sound() && pointed != recorded {
            verified.problem(format!(
                "it points to {pointed:?}, bytes by value file, but the manifest records \
                 {recorded:?}"
            ));
        }
        verified
    }

    /// Reads a value that the table points to.
    pub(super) fn read_value(&self, pointer: Pointer, key: (u32, &[u8])) -> Result<Vec<u8>> {
        let file = self.value_file(pointer)?.open()?;
        let held = u64::from(pointer.bytes) + u64::from(pointer.value_bytes);
        let _turn = self.memory().read(held);
        file.read(pointer, key)
    }

    /// Returns whether the table points into one of these files.
    fn points_into(&self, files: &BTreeSet<u64>) -> bool {
        let mut values = self.meta.values.iter();
        values.any(|(file, _)| files.contains(file))
    }
}

impl Inner {
    /// Returns the garbage in the value files of a version that only jobs which move values
    /// reclaim.
    pub(super) fn value_garbage(&self, version: &Version) -> Garbage {
        let (garbage, live) = version.values.garbage();
        // The smallest amount that is worth the rewriting of a table.
        let least = self.front.memtable_bytes;
        let percent = self.store.options.garbage_percent;
        let drains = (least, self.drain_bytes_max());
        Garbage::known(garbage, live, percent, drains)
    }

    /// Returns the value files whose values move to the files of a job that begins now.
    pub(super) fn leaving(&self, version: &Version) -> BTreeSet<u64> {
        let mut leaving = self.leaving_with(version, std::iter::empty());
        if !self.shared.reserve.is_tight() {
            // BOUND: as much as a few drains bring. A drain may meet the values of all files, and
            // writers may wait for it.
            let full = self.store.value_file_bytes();
            let most = full.min(DRAINS_JOINED * self.front.memtable_bytes);
            let mut small: Vec<(u64, u64)> = version.values.small(full).collect();
            small.sort_by_key(|(_, bytes)| *bytes);
            let mut all = 0;
            let fits = small.into_iter().take_while(|(_, bytes)| {
                all += bytes;
                all <= most
            });
            leaving.extend(fits.map(|(number, _)| number));
        }
        leaving
    }

    /// Returns those of them that have garbage, and other ones.
    pub(super) fn leaving_with(
        &self,
        version: &Version,
        others: impl Iterator<Item = u64>,
    ) -> BTreeSet<u64> {
        let is_due = self.value_garbage(version).is_due();
        let mut leaving = self.leaving_for_garbage(version, is_due);
        leaving.extend(others);
        leaving
    }

    /// Returns the files that a compaction for garbage would move now.
    pub(super) fn leaving_if_due(&self) -> BTreeSet<u64> {
        self.leaving_for_garbage(&self.version(), true)
    }

    /// Returns those of them that have garbage.
    fn leaving_for_garbage(&self, version: &Version, is_due: bool) -> BTreeSet<u64> {
        let values = &version.values;
        if values.is_empty() {
            return BTreeSet::new();
        }
        let leaving = values.to_collect(is_due);
        let reserve = &self.shared.reserve;
        if !reserve.is_tight() {
            return leaving;
        }
        let fits = |number: u64, live: u64| {
            let one = BTreeSet::from([number]);
            let tables = version.tables().filter(|table| table.points_into(&one));
            let largest = tables.map(|table| table.meta.bytes).max().unwrap_or(0);
            reserve.has_room_for_table(live + largest)
        };
        values.one_of(&leaving, fits).into_iter().collect()
    }

    /// Reads a value in a file of the version.
    pub(super) fn read_value(&self, pointer: Pointer, key: (u32, &[u8])) -> Result<Vec<u8>> {
        let version = self.version();
        let Some(handle) = version.values.get(pointer.file) else {
            return Err(Error::corruption(format!(
                "a table points into value file {}, which the manifest does not name: restore the \
                 database from a copy, or recover the readable data with \"terrace repair\"",
                pointer.file
            )));
        };
        handle.open()?.read(pointer, key)
    }
}

/// The maximum bytes of small value files that a job joins, in memtables.
const DRAINS_JOINED: u64 = 16;

/// Returns the rewriting of the smallest free table that points into a file that leaves. `is_due`:
/// garbage is due.
pub(super) fn pick(
    inner: &Inner,
    version: &Version,
    is_due: bool,
    is_free: &dyn Fn(&Table) -> bool,
) -> Option<Compaction> {
    let leaving = inner.leaving_for_garbage(version, is_due);
    let tables = version.tables().filter(|table| table.points_into(&leaving));
    let free = tables.filter(|table| is_free(table));
    let table = free.min_by_key(|table| table.meta.bytes)?;
    let compaction = Compaction::rewriting(table);
    Some(compaction.moving(leaving))
}

/// Forgets value files without a live value.
pub(super) struct Forget {
    inner: Arc<Inner>,
    numbers: Vec<u64>,
}

/// Returns the job that forgets value files, if there are any to forget.
pub(super) fn forget(inner: &Arc<Inner>) -> Option<Box<dyn Job>> {
    let (mut busy, version) = inner.choosing();
    let mut numbers = version.values.dead();
    numbers.retain(|number| !busy.numbers.contains(number));
    if numbers.is_empty() {
        return None;
    }
    // Files and tables are numbered together.
    busy.numbers.extend(&numbers);
    let inner = Arc::clone(inner);
    Some(Box::new(Forget { inner, numbers }))
}

impl Drop for Forget {
    fn drop(&mut self) {
        let mut busy = self.inner.busy.lock();
        self.numbers.iter().for_each(|number| {
            busy.numbers.remove(number);
        });
    }
}

impl Job for Forget {
    fn kind(&self) -> JobKind {
        JobKind::Compact
    }

    fn step(&mut self) -> Result<Step> {
        let removed = self.numbers.iter().map(|&id| Change::Removed {
            owner: &VALUE_FILE,
            id,
        });
        let changes = removed.collect();
        let (inner, numbers) = (Arc::clone(&self.inner), self.numbers.clone());
        Ok(Step::Done(Completion {
            edit: Edit { changes },
            apply: Box::new(move || inner.forget_values(&numbers)),
            garbage: Vec::new(),
            entries: 0,
        }))
    }
}

impl Inner {
    /// Installs the next version, without value files that the manifest has forgotten. They go when
    /// no reader is left that holds a table which points into them.
    fn forget_values(&self, numbers: &[u64]) {
        let mut names = self.installing.lock();
        let old = self.version.load_full();
        for handle in numbers.iter().filter_map(|&number| old.values.get(number)) {
            handle.retire();
        }
        let new = Arc::new(old.without_values(numbers));
        *names = self.store.charge_names(&new);
        self.version.store(new);
    }
}
