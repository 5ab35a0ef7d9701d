//! Salvage of nodes from the bytes of an extent of a possibly damaged pool.
//!
//! Nodes are stored one after another, so after a sound node the next one begins, up to the first
//! damaged one. Only links reveal where the next node after that begins, because bytes that look
//! like a node there may be part of a value. A link of a sound node leads to a node.

use super::layout::{HEAD_BYTES, HEADER_BYTES, HEIGHT_MAX, Header, checksum};
use crate::parts::codec;
use crate::parts::ranges::layout::ENTRY_KEY_BYTES_MAX;
use crate::types::key_hash;

/// A node whose checksum is correct.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SoundNode<'a> {
    pub(crate) header: Header,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    links: &'a [u8],
}

impl SoundNode<'_> {
    /// Returns the size of the node in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.header.node_bytes() as u64
    }

    /// Returns its links as stored, from the lowest level up.
    pub(crate) fn links(&self) -> impl Iterator<Item = u64> + '_ {
        let (words, _) = self.links.as_chunks::<8>();
        words.iter().map(|word| u64::from_le_bytes(*word))
    }
}

/// Returns the node at the start of `bytes` if it is sound.
pub(crate) fn sound_node(bytes: &[u8]) -> Option<SoundNode<'_>> {
    let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let header = Header::decode(head);
    if !(1..=HEIGHT_MAX).contains(&usize::from(header.height)) {
        return None;
    }
    let (links, rest) = rest.split_at_checked(8 * usize::from(header.height))?;
    let (key, rest) = rest.split_at_checked(header.key_len as usize)?;
    let value = rest.get(..header.value_len as usize)?;
    let sound = checksum(head, key, codec::checksum(value)) == header.checksum;
    sound.then_some(SoundNode {
        header,
        key,
        value,
        links,
    })
}

/// The sizes in the header of a node, which may be damaged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    /// The number of bytes up to the end of the key.
    pub(crate) key_end: u64,
    /// The number of bytes of the whole node.
    pub(crate) bytes: u64,
}

/// Returns the sizes in the node header at the start of `bytes`, or `None` if no node can have
/// them.
pub(crate) fn front(bytes: &[u8]) -> Option<Front> {
    let header = Header::decode(bytes.first_chunk::<HEADER_BYTES>()?);
    let height = usize::from(header.height);
    let fits = (1..=HEIGHT_MAX).contains(&height) && header.key_len as usize <= ENTRY_KEY_BYTES_MAX;
    fits.then(|| Front {
        key_end: (HEADER_BYTES + 8 * height) as u64 + u64::from(header.key_len),
        bytes: header.node_bytes() as u64,
    })
}

/// Returns the keyspace and key of the node at the start of `bytes`, which must contain it up to
/// the end of its key, if the stored hash confirms them.
pub(crate) fn hashed_key(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let header = Header::decode(bytes.first_chunk::<HEADER_BYTES>()?);
    let key_at = HEADER_BYTES + 8 * usize::from(header.height);
    let key = bytes.get(key_at..)?.get(..header.key_len as usize)?;
    (key_hash(header.keyspace, key) == header.hash).then_some((header.keyspace, key))
}

/// Returns the links of the head node at the start of `bytes`, if it is sound.
pub(crate) fn head_links(bytes: &[u8]) -> Vec<u64> {
    let head = bytes.get(..HEAD_BYTES).and_then(sound_node);
    head.map_or_else(Vec::new, |head| head.links().collect())
}
