//! Stages: the three contracts that a design is composed of, and what travels between them.
//!
//! A *front* makes a write durable and readable; a *buffer* holds sorted tables and merges them; a
//! *bottom* is the home of cold data. Data moves down by two hand-overs: flush (front to buffer) and
//! drain (buffer to bottom). Each ends in one manifest edit, and only then do the stages *apply* the
//! change to what readers see: the receiver first, the giver second, so that a view built from the
//! newest source to the oldest at any moment misses nothing.
//!
//! The read rule: for one key, every version in an older source is older than every version in a
//! newer source, so the first source that has the key wins.

pub(crate) mod bottom;
pub(crate) mod buffer;
mod drain;
pub(crate) mod front;
mod ground;
pub(crate) mod names;
mod need;
mod spare;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_media::{Extent, FileSystem, Region, prefetch};

use crate::error::Result;
use crate::metrics::Metrics;
use crate::parts::batch::Batch;
use crate::parts::expiry::{Millis, layout as expiring};
use crate::parts::iter::{Cursor, MergeCursor};
use crate::parts::key::Target;
use crate::parts::manifest::{Change, Edit, FileMeta};
use crate::parts::ranges::{LateKeys, RangeSet, Spans};
use crate::parts::sequence::Taking;
use crate::parts::skiplist::Node;
use crate::types::{Durability, EntryKind, SEQ_MAX, SeqNo};

pub(crate) use drain::{Credit, Credits, Drain, EntryCount};
pub(crate) use ground::Ground;
pub(crate) use need::{Pressure, Urgency};
pub(crate) use spare::{Spare, SpareBytes};

/// A point read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
    /// The newest sequence number that the read may see.
    pub(crate) at: SeqNo,
    /// Whether the read wants the newest version there is. Then sources below the front ignore
    /// `at`, since a merge may just have dropped the version that was newest at `at`; the newest one that
    /// they return may be above `at`, and the read then begins again with a newer number.
    pub(crate) latest: bool,
}

impl<'a> Probe<'a> {
    /// The place of the newest version that a source below the front may return.
    #[inline]
    pub(crate) fn settled_target(&self) -> Target<'a> {
        let seq = if self.latest { SEQ_MAX } else { self.at };
        Target {
            keyspace: self.keyspace,
            key: self.key,
            seq,
        }
    }

    /// The place of the newest version that a front may return.
    #[inline]
    pub(crate) fn front_target(&self) -> Target<'a> {
        Target {
            keyspace: self.keyspace,
            key: self.key,
            seq: self.at,
        }
    }
}

/// What the newest source that has a key says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Unless a range delete is newer than the number, or the expiry, if it is not 0, has passed.
    Value {
        value: Vec<u8>,
        seq: SeqNo,
        expiry: Millis,
    },
    Deleted,
}

impl Lookup {
    /// Turns the node of the sought key into an answer, its checksum found right.
    pub(crate) fn from_node(node: &Node<'_>) -> Result<Lookup> {
        // All of it will be read, for its checksum and then to be copied.
        prefetch(node.value()?);
        let (value, _) = node.checked_value()?;
        match EntryKind::from_raw(node.header.kind) {
            Some(EntryKind::Put) => Ok(Lookup::Value {
                value: value.to_vec(),
                seq: node.header.seq,
                expiry: 0,
            }),
            Some(EntryKind::PutExpiring) => {
                let (expiry, value) = expiring::decode(value, node.off)?;
                Ok(Lookup::Value {
                    value: value.to_vec(),
                    seq: node.header.seq,
                    expiry,
                })
            }
            Some(EntryKind::Delete) => Ok(Lookup::Deleted),
            Some(EntryKind::RangeDelete) | None => Err(crate::error::Error::corruption(format!(
                "the node at pool offset {:#x} has the unknown kind {}; restore the database \
                 from a copy, or \
                 rebuild what is left with \"terrace repair\"",
                node.off, node.header.kind
            ))),
        }
    }
}

/// One of many point reads.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    pub(crate) probe: Probe<'a>,
    /// What the newest source that has the key says; `None`: ask an older one.
    pub(crate) answer: Option<Lookup>,
}

/// What one point read did; added to the counters at its end.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReadStats {
    pub(crate) sources: u64,
    pub(crate) filter_saved: u64,
    pub(crate) relink_retries: u64,
    /// Blocks that came from the cache, and from files.
    pub(crate) cache_hits: u64,
    pub(crate) blocks_read: u64,
}

/// What a walk over everything found.
#[derive(Debug, Default, Clone)]
pub(crate) struct Census {
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    pub(crate) bytes: u64,
    pub(crate) tables: u64,
    pub(crate) problems: Vec<String>,
    /// Keyspaces whose entries nobody may read: filters need not know them.
    pub(crate) dropped: Arc<Vec<u32>>,
}

/// A sorted set of entries that a reader may consult.
pub(crate) trait Source: Send + Sync {
    /// The newest entry for the probe's key that the probe may see.
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>>;
    /// Does the same for those of many reads, ascending by key, that have no answer yet.
    fn multi_get(&self, reads: &mut [Read<'_>], stats: &mut ReadStats) -> Result<()> {
        for read in reads.iter_mut().filter(|read| read.answer.is_none()) {
            read.answer = self.get(&read.probe, stats)?;
        }
        Ok(())
    }
    /// A cursor off the source.
    fn cursor(&self) -> Box<dyn Cursor>;
    /// About how many entries, and bytes of them, lie between two places.
    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)>;
    /// Checks everything that can be checked, calling `visited` with bytes as they are read.
    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64));
    /// About how many bytes `verify` will read.
    fn verify_bytes(&self) -> u64;
    /// Its entries have no number below the first of these, nor above the second.
    fn seqs(&self) -> (SeqNo, SeqNo) {
        (0, SEQ_MAX)
    }
    /// The files that the source consists of, for those who copy it; empty for a source in memory or
    /// in the pool. They stay for as long as the source is held.
    fn files(&self) -> Vec<NamedFile> {
        Vec::new()
    }
}

/// A table file and what the manifest says of it.
pub(crate) struct NamedFile {
    pub(crate) path: PathBuf,
    pub(crate) meta: Arc<FileMeta>,
}

/// Sources, newest first.
pub(crate) type Sources = Vec<Arc<dyn Source>>;

/// The order in which background jobs are preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum JobKind {
    Flush,
    Merge,
    Drain,
    Reclaim,
    Compact,
}

/// Background work of one stage, in steps of bounded length.
pub(crate) trait Job: Send {
    /// Its kind, for priorities and metrics.
    fn kind(&self) -> JobKind;
    /// Does the next step.
    fn step(&mut self) -> Result<Step>;
    /// Returns whether its next step needs as much room as the one that a disk refused. The engine then waits for more
    /// room; a job that returns false is run again after a while.
    fn needs_as_much(&self) -> bool {
        false
    }
    /// Whether it makes a spare memtable, of which one is enough.
    fn makes_spare(&self) -> bool {
        false
    }
}

/// How a step ended.
pub(crate) enum Step {
    /// There is more to do.
    More,
    /// There is more to do, and these jobs, which the one job has become, may run beside it.
    Split(Vec<Box<dyn Job>>),
    /// Nothing can be done until space comes back; the pool is full.
    Wait,
    /// Nothing can be done for a while: a disk is full, as the error says. The job has undone what
    /// it did and begins again with its next step.
    Retry(crate::error::Error),
    /// The job has done its work; the engine commits the edit, then applies it.
    Done(Completion),
}

/// What the engine does when a job has done its work.
pub(crate) struct Completion {
    /// Becomes durable first; may be empty.
    pub(crate) edit: Edit,
    /// Then runs, and a view is built from what it has changed.
    pub(crate) apply: Box<dyn FnOnce() + Send>,
    /// Extents that older views may still read.
    pub(crate) garbage: Vec<Arc<Extent>>,
    /// How many entries the job moved or copied.
    pub(crate) entries: u64,
}

impl Completion {
    /// The end of a job that changes nothing on media and nothing that readers see.
    pub(crate) fn nothing() -> Completion {
        Completion {
            edit: Edit::default(),
            apply: Box::new(|| {}),
            garbage: Vec::new(),
            entries: 0,
        }
    }
}

/// A memtable that is no longer written, on its way to the buffer.
pub(crate) struct SealedTable {
    pub(crate) id: u64,
    /// The table's bytes in DRAM, by the offsets that they will have in the pool.
    pub(crate) image: Region,
    /// The image is in the extent already: where the pool is memory, it is where writers put it.
    pub(crate) in_place: bool,
    /// Where the bytes go; their first offset is the extent's.
    pub(crate) extent: Arc<Extent>,
    pub(crate) used: u64,
    pub(crate) entries: u64,
    pub(crate) seq_first: SeqNo,
    pub(crate) seq_last: SeqNo,
    /// Keys written into ranges after they were deleted in the same memtable.
    pub(crate) late: Option<Arc<LateKeys>>,
    /// The logs that have its entries, needed until those are durable elsewhere.
    pub(crate) logs: Vec<u64>,
    /// Whether anybody still reads the memtable as such.
    pub(crate) readers: Arc<Readers>,
    /// Waits until every entry is in place. Returns whether each is durable by a log that is synced.
    pub(crate) settle: Box<dyn FnOnce() -> Result<bool> + Send>,
    /// Lets the front forget the memtable, once the buffer shows the table.
    pub(crate) forget: Box<dyn FnOnce() + Send>,
    /// A cursor off the memtable, for designs without a buffer.
    pub(crate) cursor: Box<dyn Cursor>,
}

impl SealedTable {
    /// The memtable as a drain, for designs without a buffer. What it has of `credits` is how much of the
    /// memtable is written.
    pub(crate) fn into_drain(self, credits: &Credits) -> Drain {
        let credit = credits.open(self.used, self.entries);
        let SealedTable {
            logs,
            settle,
            forget,
            cursor,
            seq_last,
            ..
        } = self;
        Drain {
            settle: Some(settle),
            cursor: MergeCursor::new(vec![cursor]),
            newer: None,
            seq_last,
            // What of it is applied becomes durable by the edit that applies it.
            durable: seq_last,
            edit: Edit {
                changes: vec![Change::LastSeq { seq: seq_last }],
            },
            logs,
            credit,
            put_back: None,
            count: EntryCount::default(),
            forget,
        }
    }
}

/// Whether a memtable has readers left: views that were made before it became a table. Where the table
/// is the same memory, its links must stay as those readers know them until then.
#[derive(Default)]
pub(crate) struct Readers(AtomicBool);

impl Readers {
    /// Nobody reads the memtable any more, or ever will.
    pub(crate) fn leave(&self) {
        // Release: pairs with the load, so that their last reads come before the first relink.
        self.0.store(true, Ordering::Release);
    }

    /// Whether the last has left.
    pub(crate) fn are_gone(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The changes that retire these logs.
pub(crate) fn retired(logs: &[u64]) -> impl Iterator<Item = Change> + '_ {
    logs.iter().map(|&id| Change::LogRetired { id })
}

/// The database's folder: log files, when logs are files, and tables of a bottom on the disk.
#[derive(Clone)]
pub(crate) struct Folder {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) dir: PathBuf,
}

/// How a front took a write.
pub(crate) enum Written {
    /// Durable as asked, and visible.
    Done {
        /// The memtable has just filled so far that a spare should be made.
        spare_due: bool,
    },
    /// The memtable with this id is too full; a new one is needed first.
    NeedsRoom(u64),
    /// A keyspace was dropped since those of the batch were checked.
    KeyspaceDropped,
}

/// What the replay of one log found.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Replayed {
    pub(crate) records: u64,
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// How the replay of a log may begin.
pub(crate) enum ReplayStart {
    /// It is to be called with what is to be told of bytes that were read.
    Task(ReplayTask),
    /// There is no room for its memtable now, as the error says.
    Full(crate::error::Error),
    /// There is no log left.
    Done,
}

/// Replays one log.
pub(crate) type ReplayTask = Box<dyn FnOnce(&dyn Fn(u64)) -> Result<ReplayEnded> + Send>;

/// What the replay of one log has made, for the front that began it.
pub(crate) struct ReplayEnded(pub(crate) Box<dyn Any + Send>);

/// What became of a replay that has ended.
pub(crate) enum ReplayTaken {
    Sealed(Replayed),
    /// Its memtable was too small for all of it: what is left is to be undone.
    Unfinished(ReplayEnded),
}

/// How large the memtable of a replay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplaySize {
    /// As large as memtables are, for speed: the log is read once.
    Usual,
    /// As large as the log's entries are, which are measured first.
    Exact,
    /// Where memtables are not copied, a part of that: the rest comes in another one.
    Part,
}

/// Stage 1: where a write becomes durable and readable.
pub(crate) trait Front: Send + Sync {
    /// Takes one batch, if no keyspace was refused since `refusals`. Calls `install` before range deletes show.
    fn write(
        &self,
        batch: &mut Batch,
        durability: Durability,
        refusals: u64,
        install: &dyn Fn(),
    ) -> Result<Written>;
    /// Replaces the memtable by the spare one, and calls `install` before anyone writes to it.
    /// With the batch that did not fit comes the memtable that it did not fit in: when that has been
    /// replaced already there is nothing to do. False: there is no spare, or it is too small.
    fn rotate(&self, full: Option<(&Batch, u64)>, install: &dyn Fn()) -> Result<bool>;
    /// Runs `f` while no write can take a number.
    fn hold_off_writers(&self, f: &mut dyn FnMut());
    /// Takes every number up to `upto` for entries that come in below the front, and returns the first
    /// of them; they become visible when the caller publishes them. Before that it replaces the
    /// memtable, as `rotate` does, so that the active one has no entry below `upto`. `None`: there is no
    /// spare for that, and nothing was taken.
    fn reserve(&self, upto: SeqNo, install: &dyn Fn()) -> Result<Option<Taking>>;
    /// Whether the active memtable has a range delete, or takes deletes only: these free nothing before it is
    /// flushed.
    fn has_active_ranges(&self) -> bool;
    /// Whether the active memtable has an entry below `seq`.
    fn has_active_before(&self, seq: SeqNo) -> bool;
    /// Whether a sealed memtable has an entry below `seq`.
    fn has_sealed_before(&self, seq: SeqNo) -> bool;
    /// A table of the entries of `batch`, all of them with the number `seq`, that nobody reads and no
    /// log has: for a buffer to take.
    fn seal_apart(&self, batch: &Batch, seq: SeqNo) -> Result<SealedTable>;
    /// Work inside the front that makes writers faster, for when there is no other.
    fn next_job(&self) -> Option<Box<dyn Job>>;
    /// Whether a spare memtable is missing and may be made.
    fn wants_spare(&self) -> bool;
    /// Bytes that a spare takes, large enough for `batch`.
    fn spare_bytes(&self, batch: Option<&Batch>) -> SpareBytes;
    /// Makes a spare memtable, large enough for `batch`. Slow; runs beside writers.
    fn prepare_spare(&self, batch: Option<&Batch>, on_reserve: bool) -> Result<Spare>;
    /// The oldest sealed memtable that no flush has taken yet.
    fn next_sealed(&self) -> Result<Option<SealedTable>>;
    /// How many sealed memtables wait for the end of their flush.
    fn sealed_count(&self) -> usize;
    /// Bytes that all memtables have in use, the active one and those that wait for the end of their flush.
    fn unflushed_bytes(&self) -> u64;
    /// Whether closing should flush the active memtable: it has entries that no log has, or so many
    /// that replaying them would make the next opening slow.
    fn wants_flush_to_close(&self) -> bool;
    /// Makes all logs durable. Returns the number up to which every logged entry is in them.
    fn sync_logs(&self) -> Result<SeqNo>;
    /// Takes no more writes, waits for those in flight, and makes the logs durable. Returns those that
    /// have no record.
    fn close(&self) -> Result<Vec<u64>>;
    /// Bytes of log files that are needed.
    fn log_file_bytes(&self) -> u64;
    /// These logs are not needed any more, and no edit names them: their places may be used again.
    fn logs_retired(&self, logs: &[u64]);
    /// Writers rest: gives back files that are kept for logs to come.
    fn rest(&self);
    /// How many logs recovery has found that are not replayed yet, and their bytes.
    fn logs_found(&self) -> (usize, u64);
    /// Takes memory for the replay of the oldest log that is left, and returns what replays it, on any
    /// thread and beside others.
    fn begin_replay(&self, size: ReplaySize) -> Result<ReplayStart>;
    /// Takes what a replay has made, the oldest first.
    fn end_replay(&self, ended: ReplayEnded) -> Result<ReplayTaken>;
    /// Gives up what a replay has made and the front has not sealed: its log is the oldest that is left again,
    /// and gets a memtable that is large enough.
    fn undo_replay(&self, ended: ReplayEnded) -> Result<()>;
    /// Newest first.
    fn sources(&self) -> Sources;
    /// Adds what the front knows.
    fn measure(&self, metrics: &mut Metrics);
}

/// Stage 2: sorted tables in the pool.
pub(crate) trait Buffer: Send + Sync {
    /// Takes a sealed memtable.
    fn admit(&self, sealed: SealedTable) -> Result<Box<dyn Job>>;
    /// Work inside the buffer: merges.
    fn next_job(&self) -> Result<Option<Box<dyn Job>>>;
    /// What should go to the bottom next: the oldest table that is due, and with it those that follow
    /// by age and are due too, as far as all of them have at most `bytes_max`. `durable`: the bottom is, so that logs go when it
    /// has what they had.
    fn next_drain(&self, urgency: Urgency, bytes_max: u64, durable: bool) -> Result<Option<Drain>>;
    /// Newest first.
    fn sources(&self) -> Sources;
    /// How many tables there are.
    fn table_count(&self) -> usize;
    /// Bytes of their nodes, superseded ones included.
    fn table_bytes(&self) -> u64;
    /// Adds what the buffer knows.
    fn measure(&self, metrics: &mut Metrics);
}

/// Durable entries that are newer than all of a drain, and that every reader asks first.
pub(crate) trait NewerVersions: Send {
    /// The number of the newest version of a key, of those that were there when the drain began.
    /// May miss one that a merge is replacing.
    fn newest(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>>;
}

/// Sorted entries on their way into a bottom, past the stages above. Nobody sees any of them before the
/// completion is applied; dropped before, they leave nothing.
pub(crate) trait Intake: Send {
    /// Takes the next put, with its expiry or 0; keys ascend.
    fn add(&mut self, keyspace: u32, key: &[u8], value: &[u8], expiry: Millis) -> Result<()>;
    /// Makes all that was taken durable, without a name.
    fn close(&mut self) -> Result<()>;
    /// The change that makes it part of the bottom, newer than all that is there at this moment.
    fn complete(self: Box<Self>) -> Completion;
    /// Leaves every file where it is, for the process that has the database open.
    fn leave(&mut self);
}

/// A range of keys that somebody wants as deep in the bottom as it can be.
#[derive(Debug)]
pub(crate) struct RangeRequest {
    /// Keyspace and key of the first and of the last entry; both may be there or not.
    pub(crate) first: (u32, Vec<u8>),
    pub(crate) last: (u32, Vec<u8>),
    /// What came later need not move.
    pub(crate) seq: SeqNo,
    /// Nor need what is in tables with this number and above: they were written since.
    pub(crate) id: u64,
}

/// Stage 3: the home of cold data.
pub(crate) trait Bottom: Send + Sync {
    /// Bytes that one drain should have at most, so that what it needs or keeps of the pool until it
    /// ends is bounded.
    fn drain_bytes_max(&self) -> u64;
    /// The same of the next drain, which may have less room.
    fn drain_bytes_now(&self) -> u64 {
        self.drain_bytes_max()
    }
    /// Takes a drain.
    fn absorb(&self, drain: Drain) -> Result<Box<dyn Job>>;
    /// Begins to take sorted entries that come in past the stages above, with the number `seq`. `None`:
    /// this bottom cannot take them so that they appear at once.
    fn intake(&self, seq: SeqNo) -> Option<Box<dyn Intake>>;
    /// Work inside the bottom: giving garbage back.
    fn next_job(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>>;
    /// From now on `next_job` finds what moves the range down, for as long as the request lives.
    fn compact_range(&self, request: &Arc<RangeRequest>);
    /// Whether nothing is left to do for a request.
    fn is_compacted(&self, request: &RangeRequest) -> bool;
    /// Whether everything that came down is where it belongs: nothing waits to be moved on before
    /// readers find it as they should.
    fn is_drained(&self) -> bool;
    /// Whether what it has taken outlives the process.
    fn is_durable(&self) -> bool;
    /// Whether what comes down leaves the pool, so that a drain needs no room there.
    fn is_outside_pool(&self) -> bool;
    /// How far it is behind with its own work.
    fn pressure(&self) -> Pressure;
    /// How near it is to pressure: at 0 its work may take its time, at 1 writers are about to be
    /// slowed.
    fn haste(&self) -> f64;
    /// Whether range deletes that have not come down cover something of it whole, so that it could go if
    /// they were durable.
    fn is_covered(&self, _: &RangeSet) -> bool {
        false
    }
    /// The range deletes that it holds and whose keys may still be there; `None` without any.
    fn ranges(&self) -> Option<Arc<Spans>>;
    /// Newest first.
    fn sources(&self) -> Sources;
    /// Adds what the bottom knows.
    fn measure(&self, metrics: &mut Metrics);
}
