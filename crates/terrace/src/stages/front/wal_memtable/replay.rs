//! Replay of logs into memtables, several at a time.
//!
//! Logs are independent of one another: each becomes one memtable, since the edit that names the
//! new place of its entries also retires it. Only the sealing of the memtables is in the order of
//! their age. A log is read once, into a memtable of the usual size, since it held the entries of
//! such a memtable. If that was larger, or if there is no space for the usual size, the log is
//! measured first, and its memtable is as large as its entries.
//!
//! In a pool that is memory a log may also become several memtables, the oldest entries first,
//! when memtables are much smaller than they were or free space is in small pieces. The first of
//! these reads all of the log, so damage anywhere in it ends the replay before any entry is used;
//! each later one reads on from where the one before was full. The last of them has the log:
//! tables leave the buffer oldest first, so the log goes when all of them have left (B4). The log
//! is synced first: records that a killed process left in the page cache could still be lost, and
//! the first memtables may be in files by then. In a pool that outlives the process one
//! edit retires the log, so there one memtable has all of it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_media::{AllocError, Extent, Purpose, Shutdown, Span};

use super::files::LogFiles;
use super::in_log::Values;
use super::index::Index;
use super::memtable::{Arenas, Home, Memtable};
use super::spare::Size;
use super::{Tables, Waiting, WalMemtable, append_failed};
use crate::canary::failpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::codec::DecodeError;
use crate::parts::log::layout::{LOG_HEADER_BYTES, RECORD_ALIGN};
use crate::parts::log::{
    FileLog, ListBounds, LogEntry, LogOf, RecordView, mark_end, replay_file, replay_list,
    replay_pool,
};
use crate::parts::manifest::{Change, Edit, LogPlace};
use crate::parts::ranges::{LateKeys, RangeDelete, Readable};
use crate::parts::skiplist::layout::{Header, TABLE_HEADER_BYTES};
use crate::parts::skiplist::salvage::SoundNode;
use crate::parts::skiplist::{SkipList, walk};
use crate::stages::{
    Replay, ReplaySealed, ReplaySize, ReplayStart, Replayed, ReplayedLog, Shared, retired,
};
use crate::types::{EntryKind, SeqNo};

/// Logs are shortened to multiples of these bytes.
const SHORTEN_MIN: u64 = 64 << 10;

/// The number of memtables that one log should become at most, while there is space for larger ones
/// than the options say.
const MEMTABLES_WANTED: u64 = 16;

/// A log to be replayed.
#[derive(Clone)]
pub(super) struct FoundLog {
    id: u64,
    /// The end of the log, if it was recorded. Then the log is synced.
    end: Option<u64>,
    place: FoundPlace,
    /// The bytes of its place.
    pub(super) bytes: u64,
    /// The entries that are not in memtables yet; `None`: all of them.
    rest: Option<Rest>,
    /// The size of a memtable for these, once they were measured.
    exact: Option<Measured>,
}

/// The entries of a log that follow those in memtables.
#[derive(Clone, Copy)]
struct Rest {
    first: Place,
    /// The contents of the whole log.
    log: Replayed,
}

/// The place of an entry in a log.
#[derive(Clone, Copy)]
struct Place {
    /// The offset of its record.
    record: u64,
    /// The number of entries before it in that record.
    at: usize,
}

/// The sizes of memtables.
#[derive(Clone, Copy)]
struct Measured {
    /// The bytes for all entries.
    all: u64,
    /// The bytes for the first entry.
    first: u64,
}

#[derive(Clone)]
pub(super) enum FoundPlace {
    Pool(Arc<Extent>),
    /// A list that is its own log.
    List(Arc<Extent>),
    File,
}

/// Returns the bytes of an extent.
fn bytes_of(extent: &Extent) -> Result<&[u8]> {
    let bytes = extent.region().bytes(extent.off(), extent.len() as usize);
    bytes.ok_or_else(|| Error::corruption("the extent of a list is not inside the pool"))
}

impl FoundLog {
    /// Returns the first number of a log in the pool, or `None` if it has no record. A damaged log
    /// is not empty.
    fn first_seq(&self, shared: &Shared) -> Option<SeqNo> {
        let extent = match &self.place {
            FoundPlace::Pool(extent) => extent,
            FoundPlace::List(extent) => return self.first_in_list(extent, shared),
            FoundPlace::File => return Some(0),
        };
        let log = LogOf {
            db: shared.manifest.db(),
            id: self.id,
            end: self.end,
            from: None,
        };
        let mut found = 0;
        // The first record ends it.
        let first = &mut |record: RecordView<'_>| {
            found = record.first_seq;
            Err(None::<DecodeError>)
        };
        let is_empty = replay_pool(extent, log, first).is_ok();
        (!is_empty).then_some(found)
    }

    /// As `first_seq`, of a list.
    fn first_in_list(&self, extent: &Extent, shared: &Shared) -> Option<SeqNo> {
        let mut found = 0;
        // The first node ends it.
        let first = &mut |_, node: SoundNode<'_>| {
            found = node.header.seq;
            Err(None::<DecodeError>)
        };
        let bytes = bytes_of(extent).unwrap_or_default();
        let is_empty = replay_list(bytes, extent.off(), self.bounds(shared), first).is_ok();
        (!is_empty).then_some(found)
    }

    /// Returns its bounds, if it is a list.
    fn bounds(&self, shared: &Shared) -> ListBounds {
        ListBounds {
            id: self.id,
            end: self.end,
            power_lost: shared.pool.shutdown() == Shutdown::PowerLost,
        }
    }

    /// Returns the bytes of memory that its replay takes in the pool.
    pub(super) fn bytes_to_replay(&self) -> u64 {
        match &self.place {
            FoundPlace::List(_) => 0,
            FoundPlace::Pool(_) | FoundPlace::File => self.bytes,
        }
    }

    pub(super) fn new(
        (id, end): (u64, Option<u64>),
        place: FoundPlace,
        log_files: &LogFiles,
    ) -> FoundLog {
        let bytes = match &place {
            FoundPlace::Pool(extent) | FoundPlace::List(extent) => extent.len(),
            FoundPlace::File => log_files.bytes(id),
        };
        FoundLog {
            id,
            end,
            place,
            bytes,
            rest: None,
            exact: None,
        }
    }
}

/// Retires the logs in the pool that have no record: those of spares, and of openings that ended
/// before they took a write. In a nearly full pool the first memtable and replays need their space.
/// Orders the others by age: the log of an ingest is made after that of the memtable which takes
/// the writes that follow it.
///
/// CRASH: before the edit the next opening finds them again, after it their extents are free.
pub(super) fn retire_empty(shared: &Shared, found: &mut VecDeque<FoundLog>) -> Result<()> {
    let (mut logs, mut empty) = (Vec::new(), Vec::new());
    for log in found.drain(..) {
        match log.first_seq(shared) {
            Some(first) => logs.push((first, log)),
            None => empty.push(log),
        }
    }
    failpoint!(LogsByNumber skips logs.sort_by_key(|(first, _)| *first));
    found.extend(logs.into_iter().map(|(_, log)| log));
    if empty.is_empty() {
        return Ok(());
    }
    let ids: Vec<u64> = empty.iter().map(|log| log.id).collect();
    let changes = retired(&ids).collect();
    // PERSIST: the edit before the extents are free. Reversed, a crash could leave the name of a
    // log on space that has been given to something else.
    shared.manifest.commit(Edit { changes })?;
    Ok(())
}

/// A log whose entries are in a memtable that is not sealed yet.
struct Ended {
    replayer: Replayer,
    log: FoundLog,
    /// Its file, if it is to be synced.
    file: Option<Arc<FileLog>>,
    replayed: Replayed,
    /// The number of the last entry in the memtable.
    seq_last: SeqNo,
    /// Range deletes among the entries.
    ranges: Vec<RangeDelete>,
    /// `None`: nothing has to be sealed.
    memtable: Option<Memtable>,
    /// The entries that the memtable has no space for.
    left: Option<Left>,
    /// Whether it has been sealed.
    sealed: bool,
}

/// The entries of a log that a memtable had no space for.
#[derive(Clone, Copy)]
struct Left {
    first: Place,
    /// The bytes of the first of them, and of all that are in the memtable.
    first_bytes: u64,
    taken_bytes: u64,
}

/// The reason why a log is not read to its end.
enum Halt {
    Enough,
    Failed(Error),
}

impl From<DecodeError> for Halt {
    fn from(e: DecodeError) -> Halt {
        Halt::Failed(e.into())
    }
}

/// The state of the front that one replay uses, on any thread.
struct Replayer {
    shared: Arc<Shared>,
    log_files: Arc<LogFiles>,
    arenas: Arc<Arenas>,
    /// Stands for the places of memtables that go to files.
    anchor: Option<Arc<Extent>>,
    values: Values,
    tables: Arc<Tables>,
    found: Arc<Mutex<VecDeque<FoundLog>>>,
}

impl Replayer {
    /// Returns an empty memtable of `bytes` for a log.
    fn memtable(&self, log: &FoundLog, bytes: u64) -> Result<Memtable> {
        let extent = match &self.anchor {
            Some(anchor) => Arc::clone(anchor),
            None => self.shared.pool.alloc(bytes)?,
        };
        let home = match self.shared.pool_outlives() {
            true => Home::Arena,
            false => Home::Extent,
        };
        // The log's id names no table until the first of its memtables does.
        let id = match log.rest {
            None => log.id,
            Some(_) => self.shared.next_id(),
        };
        let values = self.values.clone();
        let mut memtable = Memtable::new(id, extent, bytes, &self.arenas, home, values)?;
        memtable.logs.push(log.id);
        Ok(memtable)
    }

    /// Reads a log into a memtable. `read` gets the number of bytes of each read.
    fn replay(self, log: FoundLog, memtable: Memtable, read: &dyn Fn(u64)) -> Result<Ended> {
        let mut memtable = memtable;
        let mut left: Option<Left> = None;
        let mut ranges = Vec::new();
        // Nodes of an index without values are small and many. A budget has no memory for this.
        let sorts = matches!(self.values, Values::InLog(_)) && !self.shared.memory.is_limited();
        let mut unlinked: Vec<u64> = Vec::new();
        let mut expiring = false;
        let (mut taken_bytes, mut seq_last) = (0, None);
        let file = match log.place {
            FoundPlace::File if log.end.is_none() && !self.shared.options.read_only => {
                let path = self.log_files.path(log.id);
                let file = FileLog::found(self.log_files.fs(), &path, log.id);
                Some(file.map_err(|e| Error::io("open the log", &path, e))?)
            }
            FoundPlace::File | FoundPlace::Pool(_) | FoundPlace::List(_) => None,
        };
        let replayed = self.read_log(&log, read, &mut |entry, seq, place| {
            expiring |= entry.kind == EntryKind::PutExpiring as u8;
            if left.is_some() {
                return Ok(log.rest.is_none());
            }
            let bytes = Memtable::entry_bytes(&self.values, &entry, seq) as u64;
            let fits = match sorts {
                true => {
                    let placed = memtable.place(&entry, seq, &mut ranges)?;
                    unlinked.extend(placed.map(|(off, _)| off));
                    placed.is_some()
                }
                false => memtable.replay(&entry, seq, &mut ranges)?,
            };
            if fits {
                (taken_bytes, seq_last) = (taken_bytes + bytes, Some(seq));
            } else {
                left = Some(Left {
                    first: place,
                    first_bytes: bytes,
                    taken_bytes,
                });
            }
            Ok(true)
        })?;
        if let (Index::Tree(tree), true, None) = (&memtable.index, sorts, &left) {
            tree.build(unlinked)?;
        }
        let replayed = match log.rest {
            Some(rest) => {
                let is_whole = replayed.bytes == rest.log.bytes && seq_last.is_some();
                if left.is_none() && !is_whole {
                    return Err(changed());
                }
                rest.log
            }
            None => replayed,
        };
        if expiring {
            self.shared.time.begin();
        }
        if let FoundPlace::Pool(extent) = &log.place {
            // A process crash leaves records in the page cache only, and replay relies on them from
            // here on.
            let region = extent.region();
            region
                .sync(extent.off(), replayed.bytes as usize)
                .map_err(|e| append_failed(&self.shared, e))?;
            memtable.kept = Some(Arc::clone(extent));
            memtable.kept_bytes = replayed.bytes;
        }
        if let Some(file) = &file {
            file.ends_at(replayed.bytes);
        }
        let is_used = left.is_none() || memtable.is_in_place() && seq_last.is_some();
        Ok(Ended {
            replayer: self,
            log,
            file: file.map(Arc::new),
            replayed,
            seq_last: seq_last.unwrap_or(0),
            ranges,
            memtable: is_used.then_some(memtable),
            left,
            sealed: false,
        })
    }

    /// Links the nodes of a list that is its own log, in place. After a killed process the links of
    /// all nodes before the last mark are there, and only the others are linked again.
    ///
    /// CRASH: the next recovery finds the same nodes. If power failed, then or before this one, it
    /// links all of them again. If this process alone was killed, links of nodes before the mark
    /// led only to nodes after them in the order of keys. Links of nodes behind the mark may lead
    /// anywhere: `keep_only` takes those nodes out, and compares the keys on both sides of each
    /// gap. The edit that makes the list a table follows the flush of all links.
    fn relink(self, log: FoundLog, extent: &Arc<Extent>, read: &dyn Fn(u64)) -> Result<Ended> {
        let base = extent.off();
        let mut nodes: Vec<u64> = Vec::new();
        let mut ranges = Vec::new();
        let (mut seqs, mut deletes, mut expiring) = (None, 0, false);
        let late = LateKeys::within(self.shared.memory.limits.late_bytes);
        let bytes = bytes_of(extent)?;
        let bounds = log.bounds(&self.shared);
        let found = replay_list(bytes, base, bounds, &mut |at, node| {
            let Header {
                seq,
                kind,
                keyspace,
                ..
            } = node.header;
            let (first, _) = *seqs.get_or_insert((seq, seq));
            seqs = Some((first, seq));
            let is_range = kind == EntryKind::RangeDelete as u8;
            if is_range {
                let range = RangeDelete::from_entry(keyspace, node.key, seq, base + at)?;
                late.add(std::slice::from_ref(&range));
                ranges.push(range);
            }
            if late.any() {
                late.note(keyspace, node.key, seq);
            }
            deletes += u64::from(is_range || kind == EntryKind::Delete as u8);
            expiring |= kind == EntryKind::PutExpiring as u8;
            nodes.push(base + at);
            read(node.bytes());
            Ok::<(), DecodeError>(())
        });
        let found = found.map_err(|e| self.name_log(e.into(), &log))?;
        if expiring {
            self.shared.time.begin();
        }
        let (seq_first, seq_last) = seqs.unwrap_or((0, 0));
        let mut memtable = Memtable::of_list(log.id, Arc::clone(extent), found.bytes, &self.arenas);
        memtable.logs.push(log.id);
        memtable.late = Arc::new(late);
        if found.entries > 0 {
            memtable.count(seq_first, found.entries, deletes);
        }
        let region = extent.region();
        let head = base + TABLE_HEADER_BYTES as u64;
        let marked = nodes.partition_point(|off| *off < base + found.marked);
        let was_killed = self.shared.pool.shutdown() == Shutdown::Crashed;
        if was_killed && walk::keep_only(region, head, &nodes[..marked]).unwrap_or(false) {
            let list = SkipList::new(region.clone(), head);
            for &off in &nodes[marked..] {
                let node = list.node(off)?;
                list.insert_from(None, off, node.header.height, &node.target())?;
            }
        } else {
            let lean = self.shared.memory.is_limited();
            walk::sort(region, &mut nodes, lean)?;
            walk::relink_sorted(region, head, nodes.into_iter())?;
        }
        // PERSIST: nodes that a killed process wrote and did not fence, before a reader can see
        // them. Reversed, a power loss would take back what has been read.
        let others = found.bytes.saturating_sub(found.durable) as usize;
        region.persist(base + found.durable, others, Purpose::Log);
        // A process crash leaves nodes in the page cache only, and the end of the list relies on
        // them from here on.
        let synced = region.sync(base, found.bytes as usize);
        synced.map_err(|e| append_failed(&self.shared, e))?;
        // CRASH: until the recovery of the pool ends, the next one still knows of the power loss.
        mark_end(extent, log.id, found.bytes);
        Ok(Ended {
            replayer: self,
            log,
            file: None,
            replayed: Replayed {
                records: found.batches,
                entries: found.entries,
                bytes: found.bytes,
                stranded: 0,
            },
            seq_last,
            ranges,
            memtable: Some(memtable),
            left: None,
            sealed: false,
        })
    }

    /// Returns the bytes that a memtable for the rest of a log needs.
    fn measure(&self, log: &FoundLog) -> Result<Measured> {
        let (mut first, mut nodes, mut count) = (0, 0, 0);
        self.read_log(log, &|_| {}, &mut |entry, seq, _| {
            let bytes = Memtable::entry_bytes(&self.values, &entry, seq) as u64;
            if count == 0 {
                first = bytes;
            }
            (nodes, count) = (nodes + bytes, count + 1);
            Ok(true)
        })?;
        let index = |entries| Memtable::index_bytes(&self.values, entries);
        Ok(Measured {
            all: index(count) + nodes,
            first: index(count.min(1)) + first,
        })
    }

    /// Passes the entries of a log that are not in memtables yet to `entry`, until it returns
    /// false; returns the counts of the records that were read to their end. `read` gets the bytes
    /// of each record that is read for the first time.
    fn read_log(
        &self,
        log: &FoundLog,
        read: &dyn Fn(u64),
        entry: &mut dyn FnMut(LogEntry<'_>, SeqNo, Place) -> Result<bool>,
    ) -> Result<Replayed> {
        let from = log.rest.map(|rest| rest.first);
        let mut replayed = Replayed::default();
        let mut at = from.map_or(LOG_HEADER_BYTES as u64, |from| from.record);
        let mut record = |record: RecordView<'_>| -> Result<(), Halt> {
            let skipped = from.filter(|from| from.record == at).map_or(0, |it| it.at);
            let entries = record.entries().enumerate();
            for (number, (seq, found)) in entries.skip(skipped) {
                let place = Place {
                    record: at,
                    at: number,
                };
                if !entry(found?, seq, place).map_err(Halt::Failed)? {
                    return Err(Halt::Enough);
                }
            }
            at += record.bytes();
            replayed.records += 1;
            replayed.entries += u64::from(record.entry_count);
            if from.is_none() {
                read(record.bytes());
            }
            Ok(())
        };
        let found = LogOf {
            db: self.shared.manifest.db(),
            id: log.id,
            end: log.end,
            from: from.map(|from| from.record),
        };
        let end = match &log.place {
            FoundPlace::Pool(extent) => replay_pool(extent, found, &mut record),
            // Its entries are not read as records.
            FoundPlace::List(_) => return Ok(replayed),
            FoundPlace::File => {
                let path = self.log_files.path(log.id);
                let fault = |e| Halt::Failed(Error::io("read the log", &path, e));
                replay_file(self.log_files.fs(), &path, found, &fault, &mut record)
            }
        };
        match end {
            Ok(end) => (replayed.bytes, replayed.stranded) = (end.bytes, end.stranded),
            Err(Halt::Enough) => {}
            Err(Halt::Failed(e)) => return Err(self.name_log(e, log)),
        }
        Ok(replayed)
    }

    fn name_log(&self, e: Error, log: &FoundLog) -> Error {
        let place = match &log.place {
            FoundPlace::Pool(extent) | FoundPlace::List(extent) => {
                format!("pool extent {}", extent.span())
            }
            FoundPlace::File => self.log_files.path(log.id).display().to_string(),
        };
        Error::new(e.kind(), format!("log {} ({place}): {e}", log.id)).because(e)
    }
}

impl WalMemtable {
    /// Returns the size of a memtable for a log, before its entries are measured.
    fn usual_bytes(&self, log: &FoundLog) -> u64 {
        let usual = Size::usual(&self.shared, None, self.in_log).table;
        match self.shared.memory.is_limited() {
            true => usual,
            // Memtables may be far smaller than they were, and readers search each table.
            false => usual.max(log.bytes / MEMTABLES_WANTED),
        }
    }

    fn replayer(&self) -> Replayer {
        Replayer {
            shared: Arc::clone(&self.shared),
            log_files: Arc::clone(&self.log_files),
            arenas: Arc::clone(&self.arenas),
            anchor: self.anchor.clone(),
            values: self.values(),
            tables: Arc::clone(&self.tables),
            found: Arc::clone(&self.found),
        }
    }
}

impl Replay for WalMemtable {
    fn logs_left(&self) -> (usize, u64) {
        let found = self.found.lock();
        (found.len(), found.iter().map(|log| log.bytes).sum())
    }

    fn begin(&self, size: ReplaySize) -> Result<ReplayStart> {
        let mut found = self.found.lock();
        let Some(log) = found.front_mut() else {
            return Ok(ReplayStart::Done);
        };
        let replayer = self.replayer();
        if let FoundPlace::List(extent) = &log.place {
            let (log, extent) = (log.clone(), Arc::clone(extent));
            found.pop_front();
            return Ok(ReplayStart::Task(Box::new(move |read| {
                let ended = replayer.relink(log, &extent, read)?;
                Ok(Box::new(ended) as Box<dyn ReplayedLog>)
            })));
        }
        if size != ReplaySize::Usual && log.exact.is_none() {
            log.exact = Some(replayer.measure(log)?);
        }
        let bytes = match log.exact {
            None => self.usual_bytes(log),
            Some(exact) if size == ReplaySize::Part && !self.shared.pool_outlives() => {
                // The remaining space must take the copies of these entries in the bottom.
                let usage = self.shared.pool.usage();
                let most = usage.largest_free.min(usage.free / 4);
                most.clamp(exact.first, exact.all.max(exact.first))
            }
            Some(exact) => exact.all,
        };
        let memtable = match replayer.memtable(log, bytes) {
            Ok(memtable) => memtable,
            Err(e) if e.kind() == ErrorKind::Full => return Ok(ReplayStart::Full(no_room(e))),
            Err(e) => return Err(e),
        };
        let Some(log) = found.pop_front() else {
            return Ok(ReplayStart::Done);
        };
        Ok(ReplayStart::Task(Box::new(move |read| {
            let ended = replayer.replay(log, memtable, read)?;
            Ok(Box::new(ended) as Box<dyn ReplayedLog>)
        })))
    }
}

impl ReplayedLog for Ended {
    fn seal(mut self: Box<Self>) -> Result<ReplaySealed> {
        let Replayer {
            shared,
            log_files,
            tables,
            ..
        } = &self.replayer;
        let log = &mut self.log;
        if self.replayed.records == 0 {
            let changes = retired(&[log.id]).collect();
            shared.manifest.commit(Edit { changes })?;
            log_files.retire(log.id);
            return Ok(ReplaySealed::All(self.replayed));
        }
        let Some(mut memtable) = self.memtable.take() else {
            return Ok(ReplaySealed::Unfinished(self));
        };
        if let Some(file) = self.file.take() {
            // A process crash leaves records in the page cache only.
            log_files
                .leave_unsynced(log.id, file, None)
                .map_err(|e| append_failed(shared, e))?;
        }
        if let Some(left) = self.left {
            // PERSIST: the log before a table that has some of its entries. Reversed, a power loss
            // could leave that table without the rest of the log, and with it a part of a batch.
            failpoint!(PartUnsynced skips log_files.sync_left().map_err(|e| append_failed(shared, e))?);
            memtable.logs.clear();
            log.rest = Some(Rest {
                first: left.first,
                log: self.replayed,
            });
            log.exact = log.exact.map(|exact| Measured {
                all: exact.all.saturating_sub(left.taken_bytes),
                first: Memtable::index_bytes(&self.replayer.values, 1) + left.first_bytes,
            });
        }
        if let (Values::InLog(_), FoundPlace::Pool(extent)) = (&self.replayer.values, &log.place) {
            shorten(shared, log.id, extent, self.replayed.bytes)?;
        }
        let ranges = std::mem::take(&mut self.ranges);
        shared.ranges.add(ranges, &Readable::later(), true);
        shared.sequencer.start_after(self.seq_last);
        let sealed = Waiting {
            memtable: Arc::new(memtable),
            taken: false,
        };
        tables.0.lock().sealed.push(sealed);
        self.sealed = true;
        Ok(match self.left {
            None => ReplaySealed::All(self.replayed),
            Some(_) => ReplaySealed::Unfinished(self),
        })
    }

    /// Undoes the replay. Measures the log if its memtable was too small for even one entry, or
    /// must hold all of it.
    fn undo(self: Box<Self>) -> Result<()> {
        let Ended {
            replayer,
            mut log,
            memtable,
            sealed,
            ..
        } = *self;
        if memtable.is_none() && !sealed {
            if log.exact.is_some() {
                return Err(changed());
            }
            log.exact = Some(replayer.measure(&log)?);
        }
        replayer.found.lock().push_front(log);
        Ok(())
    }
}

/// Frees the unused part of a log that stays in the pool as a table, if that is much.
///
/// CRASH: before the edit the log has its old place, after it the shorter one. Its records are in
/// both, and nothing follows them.
fn shorten(shared: &Shared, id: u64, extent: &Extent, used: u64) -> Result<()> {
    let unit = SHORTEN_MIN.max(shared.pool.usage().granule);
    // And a seal.
    let kept = (used + RECORD_ALIGN as u64).next_multiple_of(unit);
    if shared.options.read_only || extent.len() / 2 < kept {
        return Ok(());
    }
    let span = extent.span();
    let place = LogPlace::Pool(Span { len: kept, ..span });
    let changes = vec![
        Change::LogRetired { id },
        Change::LogCreated { id, place },
        Change::LogEnded { id, end: used },
    ];
    // PERSIST: the edit, before the space is free. Reversed, a crash could leave a log on space
    // that has been given to something else.
    match shared
        .manifest
        .commit(Edit { changes })
        .map_err(Error::from)
    {
        Ok(()) => extent.shorten(kept),
        // It stays as long as it is.
        Err(e) if e.kind() == ErrorKind::Full => {}
        Err(e) => return Err(e),
    }
    Ok(())
}

/// Returns the error for a log that is not as it was when it was first read.
fn changed() -> Error {
    Error::corruption("the log changed during its replay")
}

/// Returns the error for a log whose memtable has no place, when no more data can be moved to make
/// one.
fn no_room(e: Error) -> Error {
    let source = std::error::Error::source(&e);
    if source.is_none_or(|source| source.downcast_ref::<AllocError>().is_none()) {
        return e;
    }
    Error::new(
        ErrorKind::Full,
        "the pool has no space for the data of its logs; reopen with a larger --pool-size \
         (pool.size_bytes)",
    )
    .because(e)
}
