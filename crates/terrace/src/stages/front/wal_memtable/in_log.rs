//! Values that stay in the log: a log in the pool is the table, and the memtable only its index
//! (FlatLSM, section 4.2).
//!
//! The node of such an entry has a reference in the place of its value, and a kind with
//! [`IN_LOG`] set. Neither leaves memory: a cursor returns the entry as it was written. The value
//! is read where the writer has logged it, and its checksum is compared at each read, since a
//! record's checksum covers only the checksums of its values.

use std::cell::Cell;
use std::sync::Arc;

use terrace_media::{Extent, Region, prefetch};

use crate::canary::{self, Canary};
use crate::error::Result;
use crate::parts::codec::{self, DecodeError};
use crate::parts::expiry::{Value, layout as expiring};
use crate::parts::iter::{Cursor, EntryView, TreeCursor};
use crate::parts::key::Target;
use crate::parts::log::LogEntry;
use crate::parts::ranges::Newer;
use crate::parts::skiplist::layout::node_bytes;
use crate::parts::skiplist::node::height_for;
use crate::parts::skiplist::{NewNode, Node};
use crate::types::{EntryKind, SeqNo};

/// The bit of a node's kind that says that its value is a reference.
const IN_LOG: u8 = 1 << 7;

/// The size of a reference. Shorter values are stored in nodes.
const REFERENCE_BYTES: usize = 16;

/// The number of values that are prefetched before they are used, and the bytes of them.
const VALUES_AHEAD: usize = 4;
const LINE: u64 = 64;
const LINES_AHEAD_MAX: u64 = 16;

/// The places of the values of a memtable.
#[derive(Clone)]
pub(super) enum Values {
    /// In its nodes.
    InNodes,
    /// In its log, in this region, if they are longer than a reference.
    InLog(Region),
}

/// A reference to the value of an entry.
#[derive(Clone, Copy)]
struct Reference {
    /// The offset in the pool.
    at: u64,
    bytes: u32,
    crc: u32,
}

impl Reference {
    fn encode(self) -> [u8; REFERENCE_BYTES] {
        let mut bytes = [0; REFERENCE_BYTES];
        bytes[..8].copy_from_slice(&self.at.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Reference> {
        let (at, rest) = bytes.split_first_chunk()?;
        let (len, crc) = rest.split_first_chunk()?;
        Some(Reference {
            at: u64::from_le_bytes(*at),
            bytes: u32::from_le_bytes(*len),
            crc: u32::from_le_bytes(*crc.first_chunk()?),
        })
    }
}

/// The node of an entry, before it is written.
pub(super) struct Entry<'a> {
    entry: LogEntry<'a>,
    reference: Option<[u8; REFERENCE_BYTES]>,
    in_tree: bool,
}

/// Returns whether an entry has a value that is longer than a reference to it.
fn is_long(entry: &LogEntry<'_>) -> bool {
    let is_put = entry.kind == EntryKind::Put as u8 || entry.kind == EntryKind::PutExpiring as u8;
    is_put && entry.value.len() > REFERENCE_BYTES
}

/// Returns the bytes of the node of an entry whose value stays in the log, if it is long.
pub(super) fn logged_bytes(entry: &LogEntry<'_>) -> usize {
    let value_bytes = match is_long(entry) {
        true => REFERENCE_BYTES,
        false => entry.value.len(),
    };
    node_bytes(1, entry.key.len(), value_bytes)
}

impl Values {
    /// Returns whether a value that is logged stays in the log.
    fn are_apart(&self, entry: &LogEntry<'_>) -> bool {
        matches!(self, Values::InLog(_)) && is_long(entry)
    }

    /// Returns whether a tree is the index of such a memtable: no stage takes over its bytes.
    pub(super) fn in_tree(&self) -> bool {
        matches!(self, Values::InLog(_))
    }

    /// Prepares the node of an entry. `logged_at`: the offset of its value in the pool; `None` if
    /// it has no record.
    #[inline]
    pub(super) fn entry<'a>(&self, entry: &LogEntry<'a>, logged_at: Option<u64>) -> Entry<'a> {
        let reference = match logged_at {
            Some(at) if self.are_apart(entry) => Some(Reference {
                at,
                // A payload has less than 4 GiB.
                bytes: entry.value.len() as u32,
                crc: entry.value_crc,
            }),
            _ => None,
        };
        Entry {
            entry: *entry,
            reference: reference.map(Reference::encode),
            in_tree: self.in_tree(),
        }
    }

    /// Returns the value of a node and its expiry, after checking checksums.
    pub(super) fn read<'a>(&'a self, node: &Node<'a>) -> Result<Value<'a>> {
        let value = node.checked_entry()?;
        self.resolve(node.header.kind, value)
    }

    /// Returns the value that a node of this kind has or refers to.
    fn resolve<'a>(&'a self, kind: u8, value: Value<'a>) -> Result<Value<'a>> {
        let Values::InLog(pool) = self else {
            return Ok(value);
        };
        if kind & IN_LOG == 0 {
            return Ok(value);
        }
        let damaged = |offset, expected: String, found: String| DecodeError {
            what: "value in a log",
            offset,
            expected,
            found,
        };
        let Some(reference) = Reference::decode(value.bytes) else {
            let found = format!("{} bytes", value.bytes.len());
            return Err(damaged(0, "a reference of 16 bytes".into(), found).into());
        };
        let Reference { at, bytes, crc } = reference;
        let Some(bytes) = pool.bytes(at, bytes as usize) else {
            let expected = format!("{bytes} bytes inside the pool");
            return Err(damaged(at, expected, "its end".into()).into());
        };
        prefetch(bytes);
        let computed = codec::checksum(bytes);
        if computed != crc && !canary::breaks(Canary::ValueChecksum) {
            return Err(damaged(at, codec::hex(crc), codec::hex(computed)).into());
        }
        if plain(kind) != EntryKind::PutExpiring as u8 {
            return Ok(Value { bytes, expiry: 0 });
        }
        let (expiry, bytes) = expiring::decode(bytes, at)?;
        Ok(Value { bytes, expiry })
    }
}

/// Returns the kind of an entry from that of its node.
#[inline]
pub(super) fn plain(kind: u8) -> u8 {
    kind & !IN_LOG
}

impl Entry<'_> {
    /// Returns the size of the node, which `node` makes with checksums.
    #[inline]
    pub(super) fn node_bytes(&self, hash: u64, seq: SeqNo) -> usize {
        let height = match self.in_tree {
            true => 1,
            false => height_for(hash, seq),
        };
        let value_bytes = match self.reference {
            Some(_) => REFERENCE_BYTES,
            None => self.entry.value.len(),
        };
        node_bytes(height, self.entry.key.len(), value_bytes)
    }

    /// Returns the node of the entry with the number `seq`. `hash` is that of its key.
    #[inline]
    pub(super) fn node(&self, hash: u64, seq: SeqNo) -> NewNode<'_> {
        let mut node = self.entry.node(hash, seq);
        if self.in_tree {
            node.height = 1;
        }
        match &self.reference {
            None => node,
            Some(reference) => NewNode {
                kind: node.kind | IN_LOG,
                value: reference,
                value_crc: codec::checksum(reference),
                ..node
            },
        }
    }
}

/// A cursor over a memtable whose values are in its log.
pub(super) struct InLogCursor {
    entries: TreeCursor,
    values: Values,
    /// Whether values are read: a walk over keys must not load them.
    reads_values: Cell<bool>,
    /// Keeps the space of the log.
    _log: Option<Arc<Extent>>,
}

impl InLogCursor {
    /// Creates a cursor over the entries of a tree and the log that has their values.
    pub(super) fn new(
        entries: TreeCursor,
        values: &Values,
        log: Option<&Arc<Extent>>,
    ) -> InLogCursor {
        InLogCursor {
            entries,
            values: values.clone(),
            reads_values: Cell::new(false),
            _log: log.cloned(),
        }
    }

    /// Prefetches the beginning of the value some entries ahead, which is anywhere in the log.
    #[inline]
    fn prefetch(&self, ahead: usize) {
        if !self.reads_values.get() {
            return;
        }
        // An entry that is damaged is reported when the cursor is at it.
        if let (Values::InLog(pool), Ok(Some(node))) = (&self.values, self.entries.ahead(ahead))
            && node.header.kind & IN_LOG != 0
            && let Some(Reference { at, bytes, .. }) = node.value().ok().and_then(Reference::decode)
        {
            for line in 0..u64::from(bytes).div_ceil(LINE).min(LINES_AHEAD_MAX) + 1 {
                pool.prefetch(at.wrapping_add(line * LINE));
            }
        }
    }

    fn prefetch_first(&self) {
        (0..=VALUES_AHEAD).for_each(|ahead| self.prefetch(ahead));
    }
}

impl Cursor for InLogCursor {
    fn hold(&mut self) -> bool {
        self.entries.hold()
    }

    fn release(&mut self) {
        self.entries.release();
    }

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.entries.seek(target)?;
        self.prefetch_first();
        Ok(())
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        self.entries.seek_before(target, breadth)?;
        self.prefetch_first();
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.entries.advance_in_leaf() {
            self.prefetch(VALUES_AHEAD);
            return Ok(());
        }
        self.entries.advance()?;
        self.prefetch_first();
        Ok(())
    }

    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer {
        self.entries.newer(from, to, than, last)
    }

    #[inline]
    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        Ok(self.entries.entry()?.map(|entry| EntryView {
            kind: EntryKind::without_expiry(plain(entry.kind)),
            ..entry
        }))
    }

    #[inline]
    fn value(&self) -> Result<Value<'_>> {
        if !self.reads_values.replace(true) {
            self.prefetch_first();
        }
        let kind = self.entries.entry()?.map_or(0, |entry| entry.kind);
        self.values.resolve(kind, self.entries.value()?)
    }
}
