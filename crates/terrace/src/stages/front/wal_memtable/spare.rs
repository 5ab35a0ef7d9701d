//! Spare memtables: a DRAM arena, a place in the pool for the flush, and a log.
//!
//! The slow work for a new memtable (space from the pool, page faults, the manifest edit) is done
//! here, concurrently with writers, so that sealing a memtable only swaps pointers.

use std::sync::Arc;

use terrace_media::{AllocError, Extent};

use super::files::LogFiles;
use super::in_log::Values;
use super::memtable::{Admits, Home, Memtable};
use super::{FlushTo, WalMemtable};
use crate::error::{Error, ErrorKind, Result};
use crate::parts::batch::Batch;
use crate::parts::log::layout::LOG_HEADER_BYTES;
use crate::parts::log::{ListLog, Log, PoolLog, record_bytes};
use crate::parts::manifest::{Change, Edit, LogPlace};
use crate::parts::reserve::{LOG_BYTES, Row};
use crate::stages::{Front, Shared, Spare, SpareBytes, SpareSize, Spares, retired};

/// Returns the bytes of the log of a memtable of `table_bytes`. Records of small values are larger
/// than their nodes, by up to a line; a memtable of such values is sealed a little early.
pub(super) fn log_bytes(table_bytes: u64) -> u64 {
    table_bytes + table_bytes / 4
}

/// Returns the bytes of the nodes of a memtable and of its log. In a log that has the values, the
/// nodes of values of 100 bytes take half as much as their records; of shorter ones, such a
/// memtable is sealed early.
fn parts(memtable_bytes: u64, in_log: bool) -> (u64, u64) {
    match in_log {
        true => (memtable_bytes / 8 * 5, memtable_bytes),
        false => (memtable_bytes, log_bytes(memtable_bytes)),
    }
}

/// Returns whether `spare` takes `batch`, which its log gets as the first record.
pub(super) fn fits(spare: &Memtable, batch: &Batch) -> bool {
    let payload = batch.payload.len_bytes();
    let record = LOG_HEADER_BYTES as u64 + record_bytes(payload);
    spare.takes(batch)
        && spare.bump.capacity() >= Memtable::bytes_for(spare.values.in_tree(), batch)
        && spare.log_bytes_max >= record
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
        let usual = || self.next_size(batch);
        let small = || Size::on_reserve(&self.shared, batch, self.in_log);
        let may_be_small = size != SpareSize::Usual;
        let (size, or) = match size {
            SpareSize::Usual => (usual(), None),
            SpareSize::Small => (small(), None),
            SpareSize::UsualOrSmall => (usual(), Some(small())),
        };
        let make = |size, or| {
            let place = (self.anchor.as_ref(), self.values());
            new_memtable(&self.shared, &self.log_files, &self.arenas, place, size, or)
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
                make(Size::least(self.in_log).on(Row::Ranges), None)?
            }
            made => made?,
        };
        // A log with its values, or a list, is too large to wait for.
        if !self.in_log && !spare.is_list() {
            spare.populate(0, spare.bump.capacity());
            spare.prefault_extents(&self.shared.pool);
        }
        Ok(spare)
    }
}

impl WalMemtable {
    /// Returns the usual size of the next memtable, which takes `batch`. Space for a log with its
    /// values may be slow to get, and writers would wait for it: after the small first table of an
    /// opening they are larger one by one. They are smaller one by one while each is sealed almost
    /// empty, as by flushes of a few entries.
    fn next_size(&self, batch: Option<&Batch>) -> Size {
        let list = self.next_list(batch);
        list.unwrap_or_else(|| self.next_in_memory(batch, &self.active.load()))
    }

    /// Returns the size of the next memtable after `active` if its index is in memory.
    fn next_in_memory(&self, batch: Option<&Batch>, active: &Memtable) -> Size {
        if !self.in_log {
            return Size::usual(&self.shared, batch, false);
        }
        let next = match active.is_spare_due() {
            true => active.log_bytes_max.saturating_mul(GROWTH),
            false => active.log_bytes_max / GROWTH,
        };
        let bytes = Size::first_bytes(&self.shared).max(next);
        let most = self.shared.options.front.memtable_bytes;
        Size::of(bytes.min(most), batch, true)
    }

    /// Returns the size of the next memtable if that is in the pool and its own log. While the one
    /// in DRAM before it is flushed, writers go on in it; once it is full, they go back to DRAM. So
    /// numbers stay in the order of memtables.
    fn next_list(&self, batch: Option<&Batch>) -> Option<Size> {
        let takes_turns = self.flush_to == FlushTo::PoolInTurns && self.shared.pool_outlives();
        if !takes_turns || self.active.load().is_list() {
            return None;
        }
        let table = self.shared.options.pm_memtable_bytes();
        let needed = batch.map_or(0, |batch| Memtable::bytes_for(false, batch));
        let usage = self.shared.pool.usage();
        // With less, writers could have to wait for its space where there is enough for a memtable
        // in DRAM: the reserve takes up to a quarter of the pool, and a table larger than an eighth
        // adds to that.
        let beside = usage.cap / LIST_ROOM.1 * LIST_ROOM.0 + table.saturating_sub(usage.cap / 8);
        let has_room = usage.free >= table + beside && usage.largest_free / 2 >= table;
        (has_room && ListLog::extent_bytes(needed) <= table).then_some(Size {
            table,
            log: 0,
            home: Home::List,
            is_small: false,
            on_reserve: None,
        })
    }

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
            *held = Size::for_next_opening(&self.shared, self.in_log);
        }
        !held.is_empty()
    }

    /// Returns the bytes that a memtable of a size takes.
    fn bytes_of(&self, size: Size) -> SpareBytes {
        let Size {
            table: index, log, ..
        } = size;
        let table = match &self.anchor {
            Some(_) => 0,
            None => index,
        };
        match self.shared.pool_outlives() {
            true => SpareBytes {
                extents: [log, table],
                index,
                log_file: 0,
            },
            false => SpareBytes {
                extents: [table, 0],
                index,
                log_file: log,
            },
        }
    }
}

impl Spares for WalMemtable {
    fn are_due(&self) -> bool {
        let filling = {
            let shown = self.tables.0.lock();
            shown.active.is_spare_due()
        };
        // While another thread makes one, a job could only find that out, end, and be started
        // again.
        filling
            && !self.making.is_locked()
            && self.spare.lock().is_none()
            && self.sealed_count() < self.shared.options.front.sealed_count_max
    }

    fn bytes(&self, batch: Option<&Batch>) -> SpareBytes {
        self.bytes_of(self.next_size(batch))
    }

    fn larger(&self, batch: &Batch) -> Option<SpareBytes> {
        // Both sizes are of a memtable in memory after the same active one: whether the next one is
        // a list depends on the free space of the pool, which can change between two calls.
        let active = self.active.load();
        let bytes_for = |batch| self.bytes_of(self.next_in_memory(batch, &active));
        let larger = bytes_for(Some(batch));
        larger.is_beyond(bytes_for(None)).then_some(larger)
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
                match self.in_log {
                    true => {
                        let before = self.active.load();
                        self.unfaulted.add_log_table(&spare, Some(&before));
                    }
                    false if spare.is_list() => self.unfaulted.add_table(&spare),
                    false => self.unfaulted.add_log(&spare),
                }
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

/// The first table of an opening whose values are in its log has this part of the usual size, and
/// at least these bytes.
const FIRST_PART: u64 = 16;
const FIRST_BYTES: u64 = 32 << 20;
/// The next ones are this many times the one before, up to the usual size.
const GROWTH: u64 = 4;

/// The part of the pool that is free beside a new list.
const LIST_ROOM: (u64, u64) = (5, 16);

/// The bytes of the smallest memtable.
const LEAST_BYTES: u64 = 4 << 10;

/// The bytes of a memtable and of its log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) table: u64,
    log: u64,
    home: Home,
    /// Whether it is smaller than the options say.
    is_small: bool,
    /// The row of the reserve that its log may take.
    on_reserve: Option<Row>,
}

impl Size {
    /// Returns the size of a memtable that takes `batch`.
    pub(super) fn usual(shared: &Shared, batch: Option<&Batch>, in_log: bool) -> Size {
        Size::of(shared.options.front.memtable_bytes, batch, in_log)
    }

    /// Returns the bytes of the first log of an opening, if logs have values.
    fn first_bytes(shared: &Shared) -> u64 {
        let memtable = shared.options.front.memtable_bytes;
        (memtable / FIRST_PART).max(memtable.min(FIRST_BYTES))
    }

    /// Returns the size of a memtable that takes `batch`, with its log on the reserve.
    pub(super) fn on_reserve(shared: &Shared, batch: Option<&Batch>, in_log: bool) -> Size {
        let memtable = shared.options.front.memtable_bytes;
        let bytes = memtable.min(LOG_BYTES / 5 * 4);
        let size = Size::of(bytes, batch, in_log);
        let row = match batch.is_none_or(Batch::deletes_many) {
            true => Row::Ranges,
            false => Row::Log,
        };
        Size {
            is_small: size.table < parts(memtable, in_log).0,
            on_reserve: Some(row),
            ..size
        }
    }

    /// Returns the size of the first memtable of an opening, which is going to replay logs of these
    /// bytes into the pool. In a pool with little space it is small: the entries of the logs were
    /// in the pool next to fewer memtables, so all free space is for replaying them. It is the
    /// smallest size if another could take the piece that the longest log needs.
    pub(super) fn first(shared: &Shared, logs: &[u64], in_log: bool) -> Size {
        let usual = match in_log {
            // A pool that is hardly used need not grow by a whole table.
            true => Size::of(Size::first_bytes(shared), None, in_log),
            false => Size::usual(shared, None, in_log),
        };
        // Every extent has been adopted by now, so this finds out whether the device has space in
        // addition to them.
        let table = if in_log { 0 } else { usual.table };
        let needed = table + usual.log + logs.iter().sum::<u64>();
        shared.pool.grow_ahead(needed);
        let room = shared.pool.usage();
        let longest = logs.iter().max().copied();
        let free = match longest {
            None => room.free,
            Some(_) => room.largest_free,
        };
        if !shared.pool_outlives() || free / ROOM_FOR_USUAL >= table + usual.log {
            return usual;
        }
        let small = Size::on_reserve(shared, None, in_log);
        let small = Size {
            on_reserve: None,
            ..small
        };
        let both =
            small.table.next_multiple_of(room.granule) + small.log.next_multiple_of(room.granule);
        let beside = |longest: u64| {
            room.second_free
                .max(room.largest_free.saturating_sub(longest))
        };
        match longest {
            Some(longest) if beside(longest) < both => Size::least(in_log),
            _ => small,
        }
    }

    /// Returns the size of the smallest memtable, which fits wherever space was kept for one.
    pub(super) fn least(in_log: bool) -> Size {
        Size {
            is_small: true,
            ..Size::of(LEAST_BYTES, None, in_log)
        }
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
    fn for_next_opening(shared: &Shared, in_log: bool) -> Vec<Arc<Extent>> {
        let sizes = [Size::on_reserve(shared, None, in_log), Size::least(in_log)];
        let taken = sizes.into_iter().find_map(|Size { table, log, .. }| {
            let places = if in_log { vec![log] } else { vec![log, table] };
            let taken = places
                .into_iter()
                .map(|bytes| shared.pool.alloc_tight(bytes));
            taken.collect::<Result<_, AllocError>>().ok()
        });
        taken.unwrap_or_default()
    }

    fn of(memtable: u64, batch: Option<&Batch>, in_log: bool) -> Size {
        let (mut table, mut log) = parts(memtable, in_log);
        let mut record = 0;
        if let Some(batch) = batch {
            let payload = batch.payload.len_bytes();
            record = LOG_HEADER_BYTES as u64 + record_bytes(payload);
            let nodes = Memtable::bytes_for(in_log, batch);
            if nodes > table {
                table = nodes;
                log = log.max(if in_log { record } else { log_bytes(table) });
            }
        }
        Size {
            table,
            log: log.max(record),
            home: Home::Arena,
            is_small: false,
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
    place: (Option<&Arc<Extent>>, Values),
    size: Size,
    small: Option<Size>,
) -> Result<Memtable> {
    let (anchor, values) = place;
    let place = || (anchor, values.clone());
    match (memtable_of(shared, log_files, arenas, place(), size), small) {
        // Logs are in the pool, or else on the disk: that is where a small one fits.
        (Err(e), Some(small))
            if e.kind() == ErrorKind::Full && shared.pool_outlives() == is_of_pool(&e) =>
        {
            memtable_of(shared, log_files, arenas, place(), small)
        }
        (made, _) => made,
    }
}

fn memtable_of(
    shared: &Arc<Shared>,
    log_files: &LogFiles,
    arenas: &Arc<super::Arenas>,
    (anchor, values): (Option<&Arc<Extent>>, Values),
    size: Size,
) -> Result<Memtable> {
    let pool = &shared.pool;
    let in_files = !shared.pool_outlives();
    let is_list = size.home == Home::List;
    let is_small = size.is_small;
    let alloc = |bytes| match is_small {
        true => pool.alloc_tight(bytes),
        false => pool.alloc(bytes),
    };
    // The longer extent first: then both find space whenever `PoolUsage::fits` returns true.
    let has_log_extent = !in_files && !is_list;
    let log_extent = has_log_extent.then(|| alloc(size.log)).transpose()?;
    let extent = match anchor {
        Some(anchor) => Arc::clone(anchor),
        None => alloc(size.table)?,
    };
    let id = shared.next_id();
    let home = if in_files { Home::Extent } else { size.home };
    let mut memtable = Memtable::new(id, Arc::clone(&extent), size.table, arenas, home, values)?;
    memtable.log_bytes_max = size.log;
    let failed = |e| {
        let text = format!("cannot create a log: {e}");
        Error::new(crate::error::ErrorKind::Io, text).because(e)
    };
    let (log, place): (Arc<dyn Log>, LogPlace) = match log_extent {
        None if is_list => {
            // Its bump takes batches that fit.
            memtable.log_bytes_max = u64::MAX;
            let span = extent.span();
            let log = ListLog::create(extent, id, pool.medium()).map_err(failed)?;
            (Arc::new(log), LogPlace::List(span))
        }
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
        _ if is_small && size.log <= log_bytes(LEAST_BYTES) && !in_files => Admits::Ranges,
        Some(_) => Admits::Deletes,
        None => Admits::All,
    };
    Ok(memtable)
}
