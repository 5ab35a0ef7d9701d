//! Items: what stages and parts name in the manifest, each kind encoded by its owner.
//!
//! The manifest itself knows logs, counters and times. Everything else, such as a table of the
//! buffer or a table file, is an item: an id, and bytes that only its owner can decode. An owner is
//! registered in designs/owners.rs, and nowhere else: replay, salvage, inspection, repair and the
//! fuzz targets learn from the registration what they need. An item whose owner is not registered
//! is never skipped, because its space would count as free (N1).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use terrace_media::Span;

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::key::Place;
use crate::parts::manifest::State;
use crate::types::{KEY_BYTES_MAX, SEQ_MAX, SeqNo};

/// The deepest possible level; no option reaches it.
const LEVEL_MAX: u64 = 63;
/// The maximum number of entries or bytes of an item; sums over all items do not overflow.
const AMOUNT_MAX: u64 = 1 << 48;

/// Something that is live, such as a table or an extent of a list.
pub(crate) trait Item: Any + fmt::Debug + Send + Sync {
    /// Returns the owner that decodes it.
    fn owner(&self) -> &'static Owner;

    /// Returns the id, which is unique among the items of the owner.
    fn id(&self) -> u64;

    /// Appends everything except owner and id to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Returns the extents of the pool that it occupies.
    fn spans(&self) -> Vec<Span> {
        Vec::new()
    }

    /// Returns the bytes of its entries, if it records them; 0 otherwise.
    fn bytes(&self) -> u64 {
        0
    }

    /// Returns the first and the last sequence number of its entries, if it records them.
    fn seqs(&self) -> Option<(SeqNo, SeqNo)> {
        None
    }

    /// Returns whether it can contain entries.
    fn has_entries(&self) -> bool {
        true
    }

    /// Returns the fields for people, without the id, in a fixed order.
    fn fields(&self) -> Vec<(&'static str, Field)>;
}

/// The registration of a kind of item.
pub(crate) struct Owner {
    /// The byte that identifies the owner in a manifest. Part of the format: the next free one in
    /// docs/formats.md, or 100 and above for tests.
    pub(crate) tag: u8,
    /// The word for one item in messages and in `inspect`, such as "table".
    pub(crate) name: &'static str,
    /// Whether its items are in the pool; the others are files of the directory.
    pub(crate) in_pool: bool,
    /// Whether its ids are from the counter that also numbers logs.
    pub(crate) numbered: bool,
    /// Decodes an item with the given id.
    pub(crate) decode: Decode,
    /// Fails if items of this owner contradict each other. Called after each edit that changes one.
    pub(crate) check: fn(&State) -> Result<(), DecodeError>,
    /// Returns items that the state accepts in this order, for fuzzing.
    #[cfg(feature = "decoders")]
    pub(crate) samples: fn() -> Vec<Arc<dyn Item>>,
}

/// Decodes an item with an id.
pub(crate) type Decode = fn(u64, &mut Reader<'_>) -> Result<Arc<dyn Item>, DecodeError>;

/// All owners that this program knows.
pub(crate) type Owners = &'static [&'static Owner];

/// The value of a named field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Field {
    /// A number.
    Number(u64),
    /// A place in the pool, in bytes.
    Span {
        /// Its offset.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
    /// A key and the number of its keyspace.
    Key(u32, Vec<u8>),
    /// Another item, by its number, and how many bytes of it are needed.
    Part {
        /// Its number.
        id: u64,
        /// The bytes.
        bytes: u64,
    },
}

impl From<Span> for Field {
    fn from(span: Span) -> Field {
        let (offset, bytes) = (span.off, span.len);
        Field::Span { offset, bytes }
    }
}

impl From<&Place> for Field {
    fn from((keyspace, key): &Place) -> Field {
        Field::Key(*keyspace, key.clone())
    }
}

/// Returns fields that are numbers.
pub(crate) fn number_fields(numbers: &[(&'static str, u64)]) -> Vec<(&'static str, Field)> {
    let field = |&(name, value)| (name, Field::Number(value));
    numbers.iter().map(field).collect()
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.tag == other.tag
    }
}

impl Eq for Owner {}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for dyn Item {
    fn eq(&self, other: &dyn Item) -> bool {
        let encoded = |item: &dyn Item| {
            let mut bytes = Vec::new();
            item.encode(&mut bytes);
            bytes
        };
        (self.owner(), self.id()) == (other.owner(), other.id()) && encoded(self) == encoded(other)
    }
}

impl Eq for dyn Item {}

impl dyn Item {
    /// Returns the item as its own type, if `T` is that.
    pub(crate) fn downcast<T: Item>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// Appends numbers as varints.
pub(crate) fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    for &number in numbers {
        codec::put_varint(out, number);
    }
}

/// Appends a span that may be absent.
pub(crate) fn put_optional_span(out: &mut Vec<u8>, span: Option<Span>) {
    // Offset 0 is the superblock, so 0 means absent.
    codec::put_varint(out, span.map_or(0, |span| span.off));
    if let Some(span) = span {
        codec::put_varint(out, span.len);
    }
}

/// Appends a keyspace and a key.
pub(crate) fn put_place(out: &mut Vec<u8>, (keyspace, key): &Place) {
    put_numbers(out, &[u64::from(*keyspace), key.len() as u64]);
    out.extend_from_slice(key);
}

/// Decodes a number that must not exceed `most`.
pub(crate) fn at_most(r: &mut Reader<'_>, most: u64) -> Result<u64, DecodeError> {
    let at = r.clone();
    match r.varint()? {
        number if number > most => Err(at.refuse(format!("at most {most}"), number.to_string())),
        number => Ok(number),
    }
}

/// Decodes the id of something new, with room for later ids.
pub(crate) fn id(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    at_most(r, u64::MAX / 2)
}

/// Decodes a sequence number.
pub(crate) fn seq(r: &mut Reader<'_>) -> Result<SeqNo, DecodeError> {
    at_most(r, SEQ_MAX)
}

/// Decodes a number of entries or bytes.
pub(crate) fn amount(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    at_most(r, AMOUNT_MAX)
}

/// Decodes a level; readers have a slot for each possible level.
pub(crate) fn level(r: &mut Reader<'_>) -> Result<u32, DecodeError> {
    Ok(at_most(r, LEVEL_MAX)? as u32)
}

/// Decodes a keyspace and a key.
pub(crate) fn place(r: &mut Reader<'_>) -> Result<Place, DecodeError> {
    let keyspace = r.varint_u32()?;
    let at = r.clone();
    let len = r.varint()?;
    if len > KEY_BYTES_MAX as u64 {
        return Err(at.refuse("the length of a key", len.to_string()));
    }
    Ok((keyspace, r.bytes(len as usize)?.to_vec()))
}

/// Decodes an extent of the pool.
pub(crate) fn span(r: &mut Reader<'_>) -> Result<Span, DecodeError> {
    let at = r.clone();
    let span = Span {
        off: r.varint()?,
        len: r.varint()?,
    };
    if span.off == 0 || span.len == 0 || span.off.checked_add(span.len).is_none() {
        return Err(at.refuse(
            "an extent",
            format!("offset {}, length {}", span.off, span.len),
        ));
    }
    Ok(span)
}

/// Decodes an extent that may be absent.
pub(crate) fn optional_span(r: &mut Reader<'_>) -> Result<Option<Span>, DecodeError> {
    let at = r.clone();
    if r.varint()? == 0 {
        return Ok(None);
    }
    *r = at;
    span(r).map(Some)
}
