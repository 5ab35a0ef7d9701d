//! The contract of a stage with repair: where the nodes of its items are in a pool of which any
//! part may be damaged, and by which headers its extents are recognized if the manifest has lost
//! them.

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
    /// Returns the nodes of everything that the state names and of unnamed extents.
    pub(crate) nodes: fn(&State, &[Unnamed], &mut dyn DamagedPool) -> Nodes,
}

/// Returns the id of the extent that begins with these bytes at an offset, and its length.
pub(crate) type Identify = fn(head: &[u8; 64], off: u64) -> Option<(u64, Option<u64>)>;

/// An extent that the manifest does not name, and that its header identifies.
pub(crate) struct Unnamed {
    pub(crate) owner: &'static Owner,
    pub(crate) id: u64,
    pub(crate) span: Span,
}

/// A pool in which any byte may be damaged.
pub(crate) trait DamagedPool {
    /// Returns `len` bytes at an offset; `None` if they are beyond the pool or cannot be read.
    fn bytes(&mut self, at: u64, len: u64) -> Option<&[u8]>;

    /// Returns the word at an offset, as it will be when interrupted batches are completed.
    fn word(&self, at: u64) -> Option<u64>;

    /// Returns whether a power loss has made links and mutable words meaningless.
    fn power_lost(&self) -> bool;
}

/// The nodes of one stage.
#[derive(Default)]
pub(crate) struct Nodes {
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

/// A range of the pool that contains nodes.
pub(crate) struct Area {
    /// The name of the stage in the report.
    pub(crate) kind: &'static str,
    /// The id of the part that it belongs to. Consecutive areas of one part are reported together.
    pub(crate) id: u64,
    pub(crate) span: Span,
    /// The range of nodes; offsets in the pool.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The offset of a head node.
    pub(crate) head: Option<u64>,
    /// Whether the end of the nodes is unknown.
    pub(crate) open_end: bool,
    /// Whether nodes may be marked dead.
    pub(crate) may_be_dead: bool,
    /// Whether it belongs to the stage's only list.
    pub(crate) in_one_list: bool,
    /// Whether its first page may belong elsewhere.
    pub(crate) replaced: bool,
    /// The numbers that its nodes may have.
    pub(crate) seqs: Option<(SeqNo, SeqNo)>,
    /// Damage to the metadata that locates its nodes.
    pub(crate) problem: Option<String>,
}

impl Area {
    /// Returns an area without nodes.
    pub(crate) fn new(kind: &'static str, id: u64, span: Span) -> Area {
        Area {
            kind,
            id,
            span,
            start: span.off,
            end: span.off,
            head: None,
            open_end: false,
            may_be_dead: false,
            in_one_list: false,
            replaced: false,
            seqs: None,
            problem: None,
        }
    }

    /// Sets the range of nodes, relative to the start of the area.
    pub(crate) fn nodes(self, from: u64, to: u64) -> Area {
        let start = self.span.off + from;
        Area {
            start,
            end: (self.span.off + to).max(start),
            ..self
        }
    }
}
