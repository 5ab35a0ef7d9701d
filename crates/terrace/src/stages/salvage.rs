//! The contract of a stage with repair: where the entries of its items are in a pool of which any
//! part may be damaged, and by which headers its extents are recognized if the manifest has lost
//! them.

use std::borrow::Cow;

use terrace_media::Span;

use crate::parts::manifest::State;
use crate::parts::manifest::item::Owner;
use crate::types::SeqNo;

/// The functions that repair calls for a kind of item in the pool.
pub(crate) struct Salvage {
    pub(crate) owner: &'static Owner,
    /// Returns the id, and the length if the header records it, of the extent that begins with
    /// `head` at an offset.
    pub(crate) identify: Identify,
    /// Returns the entries of everything that the state names and of unnamed extents.
    pub(crate) find: fn(&State, &[Unnamed], &mut dyn DamagedPool) -> Found,
}

/// Returns the id of the extent that begins with these bytes at an offset, and its length.
pub(crate) type Identify = fn(head: &[u8; 64], off: u64) -> Option<(u64, Option<u64>)>;

/// An extent that the manifest does not name, and that its header identifies.
pub(crate) struct Unnamed {
    pub(crate) owner: &'static Owner,
    pub(crate) id: u64,
    pub(crate) span: Span,
}

/// The bytes of a pool in which any byte may be damaged.
pub(crate) trait DamagedBytes {
    /// Returns `len` bytes at an offset; `None` if they are beyond the pool or cannot be read.
    fn bytes(&mut self, at: u64, len: u64) -> Option<&[u8]>;
}

/// A pool in which any byte may be damaged.
pub(crate) trait DamagedPool: DamagedBytes {
    /// Returns the word at an offset, as it will be when interrupted batches are completed.
    fn word(&self, at: u64) -> Option<u64>;

    /// Returns whether a power loss has made links and mutable words meaningless.
    fn power_lost(&self) -> bool;
}

/// The entries of one stage.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) areas: Vec<Area>,
    /// The list over all areas, if they belong to one.
    pub(crate) list: Option<OneList>,
}

/// A list over all areas of a stage.
pub(crate) struct OneList {
    /// The number of nodes, if known.
    pub(crate) entries: Option<u64>,
    /// The offset of the extent that was being emptied, or 0. Some of its nodes may exist twice.
    pub(crate) reclaiming: u64,
}

/// The form of the entries in an area, each of which ends where the next begins.
#[derive(Clone, Copy)]
pub(crate) enum EntryForm {
    /// Nodes of a skip list. Those after damage are found by links.
    Nodes,
    /// Records of the stage's own, which this function reads.
    Records(ReadRecord),
}

/// Returns the record at an offset if it is sound and ends before `end`.
pub(crate) type ReadRecord = fn(&mut dyn DamagedBytes, at: u64, end: u64) -> Option<Record<'_>>;

/// An entry whose checksum is correct.
pub(crate) struct Record<'a> {
    /// Its length in the pool.
    pub(crate) bytes: u64,
    pub(crate) keyspace: u32,
    pub(crate) seq: SeqNo,
    /// The kind that a log would store, and with it the form of the value.
    pub(crate) kind: u8,
    pub(crate) key: &'a [u8],
    pub(crate) value: Cow<'a, [u8]>,
}

/// A range of the pool that contains entries.
pub(crate) struct Area {
    /// The name of the stage in the report.
    pub(crate) kind: &'static str,
    /// The id of the part that it belongs to. Consecutive areas of one part are reported together.
    pub(crate) id: u64,
    pub(crate) span: Span,
    pub(crate) form: EntryForm,
    /// The range of entries; offsets in the pool.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The offset of a head node.
    pub(crate) head: Option<u64>,
    /// Whether the end of the entries is unknown.
    pub(crate) open_end: bool,
    /// If it is, where it is at least: an offset in the pool.
    pub(crate) known_end: u64,
    /// Whether more entries may have followed the last one, as in a log whose end is not recorded.
    pub(crate) may_go_on: bool,
    /// Whether nodes may be marked dead.
    pub(crate) may_be_dead: bool,
    /// Whether it belongs to the stage's only list.
    pub(crate) in_one_list: bool,
    /// Whether its first page may belong elsewhere.
    pub(crate) replaced: bool,
    /// The numbers that its entries may have.
    pub(crate) seqs: Option<(SeqNo, SeqNo)>,
    /// Damage to the metadata that locates its entries.
    pub(crate) problem: Option<String>,
}

impl Area {
    /// Returns an area without entries.
    pub(crate) fn new(kind: &'static str, id: u64, span: Span) -> Area {
        Area {
            kind,
            id,
            span,
            form: EntryForm::Nodes,
            start: span.off,
            end: span.off,
            head: None,
            open_end: false,
            known_end: span.off,
            may_go_on: false,
            may_be_dead: false,
            in_one_list: false,
            replaced: false,
            seqs: None,
            problem: None,
        }
    }

    /// Sets the range of entries, relative to the start of the area.
    pub(crate) fn entries(self, from: u64, to: u64) -> Area {
        let start = self.span.off + from;
        Area {
            start,
            end: (self.span.off + to).max(start),
            ..self
        }
    }
}
