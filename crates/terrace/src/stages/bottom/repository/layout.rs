//! Repository: the header of its head and of each extent that its nodes are copied to.
//!
//! Head extent, 64 bytes, followed by the list's head node (`parts/skiplist/layout.rs`):
//!
//! | at | size | field       |                                                      |
//! |----|------|-------------|------------------------------------------------------|
//! |  0 |    4 | magic       | "TREP"                                               |
//! |  4 |    4 | version     | 1                                                    |
//! |  8 |    8 | zero        |                                                      |
//! | 16 |    4 | checksum    | crc32c of bytes 0..16                                |
//! | 20 |   12 | zero        |                                                      |
//! | 32 |    8 | entry count | nodes in the list; changes through the redo area     |
//! | 40 |    8 | reclaiming  | offset of the extent being emptied, or 0; likewise   |
//! | 48 |   16 | zero        |                                                      |
//!
//! Extent, 64 bytes, followed by nodes without gaps up to `used`:
//!
//! | at | size | field    |                                                          |
//! |----|------|----------|----------------------------------------------------------|
//! |  0 |    4 | magic    | "TREX"                                                   |
//! |  4 |    4 | version  | 1                                                        |
//! |  8 |    8 | length   | bytes of the extent                                      |
//! | 16 |    4 | checksum | crc32c of bytes 0..16                                    |
//! | 20 |    4 | zero     |                                                          |
//! | 24 |    8 | offset   | where in the pool it begins; 0: written by an earlier build |
//! | 32 |    8 | used     | bytes from the start; changes through the redo area      |
//! | 40 |    8 | dead     | bytes of nodes that are superseded; through the redo area |
//! | 48 |    8 | synced   | on `Mapped`: the part of `used` that survives a power loss; else 0 |
//! | 56 |    8 | expiring | nodes that expire: KiB of them, rounded up, in the low 24 bits, and |
//! |    |      |          | the second since 1970 when the last does above them; through the redo area |
//!
//! In the manifest each extent is an item whose id is its offset: a byte, 0 for the head extent and
//! 1 for the others, then its length as a varint.

use std::sync::Arc;

use terrace_media::Span;

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::manifest::item::{Field, Item, Owner};
use crate::parts::manifest::{State, refuse};

/// The repository's extents as items of the manifest.
pub(crate) static EXTENT: Owner = Owner {
    tag: 2,
    name: "repository-extent",
    in_pool: true,
    numbered: false,
    decode: |off, r| Ok(Arc::new(ExtentMeta::decode(off, r)?)),
    check: check_head_item,
    #[cfg(feature = "decoders")]
    samples: || {
        let at = |off| Span { off, len: 65536 };
        vec![
            Arc::new(ExtentMeta::Head(at(1 << 24))),
            Arc::new(ExtentMeta::Nodes(at(1 << 25))),
        ]
    },
};

/// An extent of the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtentMeta {
    /// The extent of the head node. There is one, as soon as the database is created.
    Head(Span),
    /// An extent of other nodes.
    Nodes(Span),
}

impl Item for ExtentMeta {
    fn owner(&self) -> &'static Owner {
        &EXTENT
    }

    fn id(&self) -> u64 {
        self.span().off
    }

    fn encode(&self, out: &mut Vec<u8>) {
        codec::put_u8(out, u8::from(matches!(self, ExtentMeta::Nodes(_))));
        codec::put_varint(out, self.span().len);
    }

    fn spans(&self) -> Vec<Span> {
        vec![self.span()]
    }

    fn has_entries(&self) -> bool {
        matches!(self, ExtentMeta::Nodes(_))
    }

    fn fields(&self) -> Vec<(&'static str, Field)> {
        let name = match self {
            ExtentMeta::Head(_) => "head",
            ExtentMeta::Nodes(_) => "nodes",
        };
        vec![(name, Field::from(self.span()))]
    }
}

impl ExtentMeta {
    fn decode(off: u64, r: &mut Reader<'_>) -> Result<ExtentMeta, DecodeError> {
        let at = r.clone();
        let (kind, len) = (r.u8()?, r.varint()?);
        if off == 0 || len == 0 || off.checked_add(len).is_none() {
            return Err(at.refuse("an extent", format!("offset {off}, length {len}")));
        }
        let span = Span { off, len };
        match kind {
            0 => Ok(ExtentMeta::Head(span)),
            1 => Ok(ExtentMeta::Nodes(span)),
            other => Err(at.refuse("a kind of extent", other.to_string())),
        }
    }

    /// Returns its place in the pool.
    pub(crate) fn span(&self) -> Span {
        match self {
            ExtentMeta::Head(span) | ExtentMeta::Nodes(span) => *span,
        }
    }
}

/// Fails unless there is one head extent.
fn check_head_item(state: &State) -> Result<(), DecodeError> {
    let extents = state.items::<ExtentMeta>();
    match extents.filter(|extent| !extent.has_entries()).count() {
        1 => Ok(()),
        count => refuse("one head of the repository", count.to_string()),
    }
}

/// The size of either header.
pub(super) const HEADER_BYTES: usize = 64;
/// The offset of the entry count in the head extent.
pub(super) const ENTRIES_AT: u64 = 32;
/// The offset, in the head extent, of the word that names the extent being emptied.
pub(super) const RECLAIMING_AT: u64 = 40;
/// The offset, in an extent, of the word with the extent's offset.
const OFFSET_AT: usize = 24;
/// The offset of `used` in an extent.
pub(super) const USED_AT: u64 = 32;
/// The offset of `dead` in an extent.
pub(super) const DEAD_AT: u64 = 40;
/// The offset of `synced` in an extent.
pub(super) const SYNCED_AT: u64 = 48;
/// The offset of `expiring` in an extent.
pub(super) const EXPIRING_AT: u64 = 56;

const KIB_BITS: u32 = 24;

/// Encodes the bytes of nodes that expire, and the time in milliseconds when the last of them does.
pub(super) fn encode_expiring(bytes: u64, last: u64) -> u64 {
    let kib = bytes.div_ceil(1024).min((1 << KIB_BITS) - 1);
    let second = last.div_ceil(1000).min(u64::MAX >> KIB_BITS);
    second << KIB_BITS | kib
}

/// Decodes the bytes and the last expiry, each rounded up.
pub(super) fn decode_expiring(word: u64) -> (u64, u64) {
    let kib = word & ((1 << KIB_BITS) - 1);
    (kib * 1024, (word >> KIB_BITS).saturating_mul(1000))
}

const _: () = assert!(RECLAIMING_AT == ENTRIES_AT + 8, "both change in one line");

const HEAD_MAGIC: [u8; 4] = *b"TREP";
const EXTENT_MAGIC: [u8; 4] = *b"TREX";
const VERSION: u32 = 1;

const _: () = assert!(
    USED_AT.is_multiple_of(8) && DEAD_AT.is_multiple_of(8),
    "atomic words"
);
const _: () = assert!(EXPIRING_AT + 8 <= HEADER_BYTES as u64, "inside the header");

fn encode(magic: [u8; 4], length: u64, word: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [0u8; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&magic);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&length.to_le_bytes());
    let crc = codec::checksum(&bytes[..16]);
    bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    bytes[32..40].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// Returns the header of a head extent without entries.
pub(super) fn encode_head() -> [u8; HEADER_BYTES] {
    encode(HEAD_MAGIC, 0, 0)
}

/// Returns the header of an extent at `off` without nodes; `synced` is whether the word of that
/// name is used.
pub(super) fn encode_extent(off: u64, length: u64, synced: bool) -> [u8; HEADER_BYTES] {
    let mut bytes = encode(EXTENT_MAGIC, length, HEADER_BYTES as u64);
    bytes[OFFSET_AT..OFFSET_AT + 8].copy_from_slice(&off.to_le_bytes());
    let word = if synced { HEADER_BYTES as u64 } else { 0 };
    let at = SYNCED_AT as usize;
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    bytes
}

fn check(bytes: &[u8], at: u64, magic: [u8; 4], length: u64) -> Result<(), DecodeError> {
    let wanted = encode(magic, length, 0);
    if bytes.len() < HEADER_BYTES || bytes[..20] != wanted[..20] {
        return Err(DecodeError {
            what: "repository header",
            offset: at,
            expected: format!("{:02x?}", &wanted[..20]),
            found: format!("{:02x?}", &bytes[..bytes.len().min(20)]),
        });
    }
    Ok(())
}

/// Checks that `bytes`, found at `at`, begin a head extent.
pub(super) fn check_head(bytes: &[u8], at: u64) -> Result<(), DecodeError> {
    check(bytes, at, HEAD_MAGIC, 0)
}

/// Checks that `bytes`, found at `at`, begin the extent of `length` bytes there. Otherwise a page
/// of another extent would be accepted with its `used`: nodes after that would be ignored and
/// overwritten.
pub(super) fn check_extent(bytes: &[u8], at: u64, length: u64) -> Result<(), DecodeError> {
    check(bytes, at, EXTENT_MAGIC, length)?;
    match extent_offset(bytes) {
        Some(said) if said != at => Err(DecodeError {
            what: "repository header",
            offset: at,
            expected: format!("the extent at {at:#x}"),
            found: format!("that at {said:#x}"),
        }),
        _ => Ok(()),
    }
}

/// Returns the offset in the header of an extent; `None` if it has none.
pub(super) fn extent_offset(bytes: &[u8]) -> Option<u64> {
    let word = bytes.get(OFFSET_AT..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word)).filter(|said| *said != 0)
}
