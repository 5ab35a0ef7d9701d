//! Spare memtables: a DRAM arena, a place in the pool for the flush, and a log.
//!
//! The slow work for a new memtable (space from the pool, page faults, the manifest edit) is done
//! here, concurrently with writers, so that sealing a memtable only swaps pointers.

use std::sync::Arc;

use terrace_media::{AllocError, Extent};

use super::WalMemtable;
use super::files::LogFiles;
use super::memtable::{Admits, Memtable};
use crate::error::{Error, ErrorKind, Result};
use crate::parts::batch::Batch;
use crate::parts::log::layout::LOG_HEADER_BYTES;
use crate::parts::log::{Log, PoolLog, record_bytes};
use crate::parts::manifest::{Change, Edit, LogPlace};
use crate::parts::reserve::{LOG_BYTES, Row};
use crate::stages::{Front, Shared, Spare, SpareBytes, SpareSize, Spares, retired};

/// Returns the bytes of the log of a memtable of `table_bytes`. Records of small values are larger
/// than their nodes, by up to a line; a memtable of such values is sealed a little early.
pub(super) fn log_bytes(table_bytes: u64) -> u64 {
    table_bytes + table_bytes / 4
}

/// Returns whether `spare` takes `batch`, which its log gets as the first record.
pub(super) fn fits(spare: &Memtable, batch: &Batch) -> bool {
    let payload = batch.payload.len_bytes();
    let record = LOG_HEADER_BYTES as u64 + record_bytes(payload);
    spare.takes(batch)
        && spare.bump.capacity() >= Memtable::bytes_for(payload, batch.len())
        && log_bytes(spare.bump.capacity()) >= record
}

/// Distinguishes a full pool from a full disk of the logs.
fn no_room(e: Error) -> Spare {
    match is_of_pool(&e) {
        true => Spare::PoolFull,
        false => Spare::DiskFull(e),
    }
}

impl WalMemtable {
    /// Makes a spare that takes `batch`.
    pub(super) fn make_spare(&self, batch: Option<&Batch>, size: SpareSize) -> Result<Memtable> {
        let usual = || Size::usual(&self.shared, batch);
        let small = || Size::on_reserve(&self.shared, batch);
        let may_be_small = size != SpareSize::Usual;
        let (size, or) = match size {
            SpareSize::Usual => (usual(), None),
            SpareSize::Small => (small(), None),
            SpareSize::UsualOrSmall => (usual(), Some(small())),
        };
        let make = |size, or| {
            let anchor = self.anchor.as_ref();
            new_memtable(
                &self.shared,
                &self.log_files,
                &self.arenas,
                anchor,
                size,
                or,
            )
        };
        let spare = match make(size, or) {
            // All pieces of the pool may be too short for it. Without a fresh memtable the deletes
            // in the active one would free nothing, and no other caller could either.
            Err(e)
                if batch.is_none()
                    && may_be_small
                    && e.kind() == ErrorKind::Full
                    && is_of_pool(&e)
                    && self.shared.pool_outlives() =>
            {
                make(Size::least().on(Row::Ranges), None)?
            }
            made => made?,
        };
        spare.populate(0, spare.bump.capacity());
        spare.prefault_extents(&self.shared.pool);
        Ok(spare)
    }
}

impl WalMemtable {
    /// Returns whether a memtable in the last pieces of the pool takes a batch of single deletes,
    /// which it does if the space of the next opening can be held.
    pub(super) fn admits_deletes(&self, memtable: &Memtable, batch: &Batch) -> bool {
        memtable.admits == Admits::Ranges && batch.only_deletes() && self.hold_for_next_opening()
    }

    /// Holds the space of the first memtable of the next opening. Returns false if the pool has
    /// none, so that a memtable that took the last pieces could keep the database from being opened
    /// again.
    fn hold_for_next_opening(&self) -> bool {
        if !self.shared.pool_outlives() {
            return true;
        }
        // Only now, since the replay of the logs may have needed all free space.
        let mut held = self.for_next_opening.lock();
        if held.is_empty() {
            *held = Size::for_next_opening(&self.shared);
        }
        !held.is_empty()
    }
}

impl Spares for WalMemtable {
    fn are_due(&self) -> bool {
        let filling = {
            let shown = self.tables.0.lock();
            shown.active.bump.used() > shown.active.spare_due_at()
        };
        // While another thread makes one, a job could only find that out, end, and be started
        // again.
        filling
            && !self.making.is_locked()
            && self.spare.lock().is_none()
            && self.sealed_count() < self.shared.options.front.sealed_count_max
    }

    fn bytes(&self, batch: Option<&Batch>) -> SpareBytes {
        let Size { table, log, .. } = Size::usual(&self.shared, batch);
        let table = match &self.anchor {
            Some(_) => 0,
            None => table,
        };
        match self.shared.pool_outlives() {
            true => SpareBytes {
                extents: [log, table],
                log_file: 0,
            },
            false => SpareBytes {
                extents: [table, 0],
                log_file: log,
            },
        }
    }

    fn prepare(&self, batch: Option<&Batch>, size: SpareSize) -> Result<Spare> {
        let Some(_one) = self.making.try_lock() else {
            return Ok(Spare::Underway);
        };
        let small = {
            let mut spare = self.spare.lock();
            match spare.take() {
                Some(ready) if batch.is_none_or(|batch| fits(&ready, batch)) => {
                    *spare = Some(ready);
                    return Ok(Spare::Ready);
                }
                small => small,
            }
        };
        if let Some(small) = small {
            // PERSIST: retired before its extents are free again, which is when it drops, and
            // before its file is reused.
            let changes = retired(&[small.id]).collect();
            match self.shared.manifest.commit(Edit { changes }) {
                Ok(()) => self.log_files.retire(small.id),
                Err(e) => {
                    let e = Error::from(e);
                    if e.kind() != ErrorKind::Full {
                        return Err(e);
                    }
                    // It stays named, so it must not be forgotten.
                    *self.spare.lock() = Some(small);
                    return Ok(no_room(e));
                }
            }
        }
        if !self.hold_for_next_opening() {
            return Ok(Spare::PoolFull);
        }
        match self.make_spare(batch, size) {
            Ok(spare) => {
                let spare = Arc::new(spare);
                self.unfaulted.add_log(&spare);
                *self.spare.lock() = Some(spare);
                Ok(Spare::Ready)
            }
            Err(e) if e.kind() == ErrorKind::Full => Ok(no_room(e)),
            Err(e) => Err(e),
        }
    }
}

/// The first memtable of an opening has the usual size if this many of them fit the pool, in
/// addition to logs to be replayed in one piece: it must not take the only place for a memtable
/// that one of them needs.
const ROOM_FOR_USUAL: u64 = 4;

/// The bytes of the smallest memtable.
const LEAST_BYTES: u64 = 4 << 10;

/// The bytes of a memtable and of its log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    table: u64,
    log: u64,
    /// The row of the reserve that its log may take.
    on_reserve: Option<Row>,
}

impl Size {
    /// Returns the size of a memtable that takes `batch`.
    pub(super) fn usual(shared: &Shared, batch: Option<&Batch>) -> Size {
        Size::of(shared.options.front.memtable_bytes, batch)
    }

    /// Returns the size of a memtable that takes `batch`, with its log on the reserve.
    pub(super) fn on_reserve(shared: &Shared, batch: Option<&Batch>) -> Size {
        let memtable = shared.options.front.memtable_bytes;
        let size = Size::of(memtable.min(LOG_BYTES / 5 * 4), batch);
        let row = match batch.is_none_or(Batch::deletes_many) {
            true => Row::Ranges,
            false => Row::Log,
        };
        Size {
            on_reserve: Some(row),
            ..size
        }
    }

    /// Returns the size of the first memtable of an opening, which is going to replay logs of these
    /// bytes into the pool. In a pool with little space it is small: the entries of the logs were
    /// in the pool next to fewer memtables, so all free space is for replaying them. It is the
    /// smallest size if another could take the piece that the longest log needs.
    pub(super) fn first(shared: &Shared, logs: &[u64]) -> Size {
        let usual = Size::usual(shared, None);
        // Every extent has been adopted by now, so this finds out whether the device has space in
        // addition to them.
        let needed = usual.table + usual.log + logs.iter().sum::<u64>();
        shared.pool.grow_ahead(needed);
        let room = shared.pool.usage();
        let longest = logs.iter().max().copied();
        let free = match longest {
            None => room.free,
            Some(_) => room.largest_free,
        };
        if !shared.pool_outlives() || free / ROOM_FOR_USUAL >= usual.table + usual.log {
            return usual;
        }
        let small = Size::of(usual.table.min(LOG_BYTES / 5 * 4), None);
        let both =
            small.table.next_multiple_of(room.granule) + small.log.next_multiple_of(room.granule);
        let beside = |longest: u64| {
            room.second_free
                .max(room.largest_free.saturating_sub(longest))
        };
        match longest {
            Some(longest) if beside(longest) < both => Size::least(),
            _ => small,
        }
    }

    /// Returns the size of the smallest memtable, which fits wherever space was kept for one.
    pub(super) fn least() -> Size {
        Size::of(LEAST_BYTES, None)
    }

    /// Lets the log take a row of the reserve.
    pub(super) fn on(self, row: Row) -> Size {
        Size {
            on_reserve: Some(row),
            ..self
        }
    }

    /// Holds extents for a first memtable of an opening, if there is space for them. Nothing names
    /// them, so the next opening finds them free, however full the pool is.
    fn for_next_opening(shared: &Shared) -> Vec<Arc<Extent>> {
        let sizes = [Size::on_reserve(shared, None), Size::least()];
        let taken = sizes.into_iter().find_map(|Size { table, log, .. }| {
            let taken = [log, table].map(|bytes| shared.pool.alloc_tight(bytes));
            taken.into_iter().collect::<Result<_, AllocError>>().ok()
        });
        taken.unwrap_or_default()
    }

    fn of(memtable: u64, batch: Option<&Batch>) -> Size {
        let (mut table, mut record) = (memtable, 0);
        if let Some(batch) = batch {
            let payload = batch.payload.len_bytes();
            record = LOG_HEADER_BYTES as u64 + record_bytes(payload);
            table = table.max(Memtable::bytes_for(payload, batch.len()));
        }
        Size {
            table,
            log: log_bytes(table).max(record),
            on_reserve: None,
        }
    }
}

/// Returns whether an error means that the pool has no space, and not a disk.
pub(super) fn is_of_pool(e: &Error) -> bool {
    std::error::Error::source(e).is_some_and(|source| source.downcast_ref::<AllocError>().is_some())
}

/// Creates a memtable with its place in the pool, if no `anchor` stands for it, and its log, both
/// named. If a disk has no space for the log, it has the size `small`, if there is one.
pub(super) fn new_memtable(
    shared: &Arc<Shared>,
    log_files: &LogFiles,
    arenas: &Arc<super::Arenas>,
    anchor: Option<&Arc<Extent>>,
    size: Size,
    small: Option<Size>,
) -> Result<Memtable> {
    match (memtable_of(shared, log_files, arenas, anchor, size), small) {
        // Logs are in the pool, or else on the disk: that is where a small one fits.
        (Err(e), Some(small))
            if e.kind() == ErrorKind::Full && shared.pool_outlives() == is_of_pool(&e) =>
        {
            memtable_of(shared, log_files, arenas, anchor, small)
        }
        (made, _) => made,
    }
}

fn memtable_of(
    shared: &Arc<Shared>,
    log_files: &LogFiles,
    arenas: &Arc<super::Arenas>,
    anchor: Option<&Arc<Extent>>,
    size: Size,
) -> Result<Memtable> {
    let pool = &shared.pool;
    let in_place = !shared.pool_outlives();
    let is_small = size.table < shared.options.front.memtable_bytes;
    let alloc = |bytes| match is_small {
        true => pool.alloc_tight(bytes),
        false => pool.alloc(bytes),
    };
    // The longer extent first: then both find space whenever `PoolUsage::fits` returns true.
    let log_extent = (!in_place).then(|| alloc(size.log)).transpose()?;
    let extent = match anchor {
        Some(anchor) => Arc::clone(anchor),
        None => alloc(size.table)?,
    };
    let id = shared.next_id();
    let mut memtable = Memtable::new(id, extent, size.table, arenas, in_place)?;
    let (log, place): (Arc<dyn Log>, LogPlace) = match log_extent {
        None => {
            shared.manifest.check_files()?;
            let failed = |e| Error::io("create the log", &log_files.path(id), e);
            let log = match size.on_reserve {
                Some(row) => log_files.create_on_reserve(id, size.log, row),
                None => log_files.create(id, size.log),
            };
            let log = log.map_err(failed)?;
            (Arc::new(log), LogPlace::File)
        }
        Some(extent) => {
            let span = extent.span();
            memtable.log_extent = Some(Arc::clone(&extent));
            let failed = |e| {
                let text = format!("cannot create a log: {e}");
                Error::new(crate::error::ErrorKind::Io, text).because(e)
            };
            let log = PoolLog::create(extent, (shared.manifest.db(), id), pool.medium())
                .map_err(failed)?;
            (Arc::new(log), LogPlace::Pool(span))
        }
    };
    // PERSIST: the log's name before its first record (W2). Reversed, a crash would lose every
    // record in it.
    let changes = vec![
        Change::LogCreated { id, place },
        Change::NextId { id: id + 1 },
    ];
    if let Err(e) = shared.manifest.commit(Edit { changes }) {
        if !e.is_final() {
            // Nothing names it. After a final error something may name it, and it stays.
            log_files.retire(id);
        }
        return Err(e.into());
    }
    memtable.log = Some(log);
    memtable.logs.push(id);
    memtable.admits = match size.on_reserve {
        _ if is_small && size.table <= LEAST_BYTES && !in_place => Admits::Ranges,
        Some(_) => Admits::Deletes,
        None => Admits::All,
    };
    Ok(memtable)
}
