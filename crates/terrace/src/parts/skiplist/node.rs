//! Single nodes, read and written in DRAM arenas and in the pool alike.

use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::{Claim, Purpose, Region};

use super::layout::{self, HEADER_BYTES, HEIGHT_MAX, Header, LINK_OFFSET};
use crate::canary::{self, Canary};
use crate::parts::codec::{self, DecodeError};
use crate::parts::expiry::{Value, layout as expiring};
use crate::parts::key::{Target, compare_keys};
use crate::types::{EntryKind, SeqNo};

/// The smallest value that is copied past the caches. Smaller parts of a node are not, since later
/// writers read them again.
const STREAMED_MIN: usize = 1 << 10;

/// The contents of a node to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewNode<'a> {
    pub(crate) keyspace: u32,
    pub(crate) seq: SeqNo,
    pub(crate) kind: u8,
    pub(crate) hash: u64,
    pub(crate) height: u8,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) value_crc: u32,
    /// Whether the next node in storage order belongs to the same batch.
    pub(crate) more: bool,
}

impl NewNode<'_> {
    /// Returns the size of the node in bytes.
    pub(crate) fn bytes(&self) -> usize {
        layout::node_bytes(self.height, self.key.len(), self.value.len())
    }

    /// Returns the node's header bytes.
    pub(crate) fn header(&self) -> [u8; HEADER_BYTES] {
        Header {
            checksum: 0,
            keyspace: self.keyspace,
            seq: self.seq,
            kind: self.kind,
            hash: self.hash,
            key_len: self.key.len() as u32,
            height: self.height,
            value_len: self.value.len() as u32,
            more: self.more,
        }
        .encode(self.key, self.value_crc)
    }

    /// Writes the node at byte `at` of `claim`, with all links zero.
    pub(crate) fn write<R: Borrow<Region>>(&self, claim: &mut Claim<R>, at: usize) {
        let value_at = self.write_key(claim, at);
        claim.write(value_at, self.value);
    }

    /// As `write`, so that the node is durable after the next fence of this thread. Long values
    /// bypass the caches; until the fence, other threads may read all but the value.
    pub(crate) fn write_flushed<R: Borrow<Region>>(
        &self,
        claim: &mut Claim<R>,
        at: usize,
        purpose: Purpose,
    ) {
        let value_at = self.write_key(claim, at);
        let mut flushed = self.bytes();
        if self.value.len() < STREAMED_MIN {
            claim.write(value_at, self.value);
        } else {
            claim.write_streaming(value_at, self.value, purpose);
            flushed = value_at - at;
        }
        let off = claim.off() + at as u64;
        claim.region().flush(off, flushed, purpose);
    }

    /// Writes all but the value, whose place it returns.
    fn write_key<R: Borrow<Region>>(&self, claim: &mut Claim<R>, at: usize) -> usize {
        claim.write(at, &self.header());
        for level in 0..usize::from(self.height) {
            claim.store(at + HEADER_BYTES + 8 * level, 0);
        }
        let key_at = at + HEADER_BYTES + 8 * usize::from(self.height);
        claim.write(key_at, self.key);
        key_at + self.key.len()
    }
}

/// Returns the bytes of a head node: kind 0, every link zero.
pub(crate) fn head_bytes() -> [u8; layout::HEAD_BYTES] {
    let header = Header {
        checksum: 0,
        keyspace: 0,
        seq: 0,
        kind: 0,
        hash: 0,
        key_len: 0,
        height: HEIGHT_MAX as u8,
        value_len: 0,
        more: false,
    };
    let mut bytes = [0u8; layout::HEAD_BYTES];
    bytes[..HEADER_BYTES].copy_from_slice(&header.encode(&[], 0));
    bytes
}

/// Returns the height of an entry's tower, which is the same on every run. Two halvings make three
/// levels, so a level holds about 0.35 of the nodes below it. A ratio of 1/4 saves some links, but
/// needs half as many steps again, and every step forward on a level is a cache miss that nothing
/// can overlap.
#[inline]
pub(crate) fn height_for(hash: u64, seq: SeqNo) -> u8 {
    // Versions of one key differ in sequence number, so rewriting a key does not build equal
    // towers.
    let mut x = hash ^ seq.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    x = x.wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^= x >> 32;
    (1 + (x.trailing_zeros() * 2 / 3).min(HEIGHT_MAX as u32 - 1)) as u8
}

/// A node as read from its bytes. Its sizes are checked to stay inside the region; its checksum is
/// not checked until [`Node::checked_value`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) off: u64,
    pub(crate) header: Header,
    pub(crate) key: &'a [u8],
    region: &'a Region,
}

/// Returns the error for a link that leads outside the region.
#[cold]
fn outside(off: u64) -> DecodeError {
    DecodeError {
        what: "skip-list link",
        offset: off,
        expected: "the offset of a node inside the pool".into(),
        found: format!("{off:#x}"),
    }
}

/// Returns the error for a malformed node header.
#[cold]
fn malformed(off: u64, header: &Header) -> DecodeError {
    DecodeError {
        what: "skip-list node",
        offset: off,
        expected: format!("a height of 1 to {HEIGHT_MAX} and sizes inside the pool"),
        found: format!(
            "height {}, key of {} bytes, value of {} bytes",
            header.height, header.key_len, header.value_len
        ),
    }
}

impl<'a> Node<'a> {
    /// Reads the node at `off`.
    #[inline(always)]
    pub(crate) fn read(region: &'a Region, off: u64) -> Result<Node<'a>, DecodeError> {
        let bytes = region
            .bytes(off, HEADER_BYTES)
            .and_then(|b| b.first_chunk());
        let Some(bytes) = bytes else {
            return Err(outside(off));
        };
        let header = Header::decode(bytes);
        let key_at = off + HEADER_BYTES as u64 + 8 * u64::from(header.height);
        let key = region.bytes(key_at, header.key_len as usize);
        match key {
            Some(key) if header.height.wrapping_sub(1) < HEIGHT_MAX as u8 => Ok(Node {
                off,
                header,
                key,
                region,
            }),
            _ => Err(malformed(off, &header)),
        }
    }

    /// Returns the node's value without checking it.
    #[inline]
    pub(crate) fn value(&self) -> Result<&'a [u8], DecodeError> {
        let at = self.off
            + HEADER_BYTES as u64
            + 8 * u64::from(self.header.height)
            + u64::from(self.header.key_len);
        self.region
            .bytes(at, self.header.value_len as usize)
            .ok_or_else(|| malformed(self.off, &self.header))
    }

    /// Returns the node's value after verifying its checksum, and the checksum of the value.
    #[inline]
    pub(crate) fn checked_value(&self) -> Result<(&'a [u8], u32), DecodeError> {
        let value = self.value()?;
        let value_crc = codec::checksum(value);
        let bytes = self
            .region
            .bytes(self.off, HEADER_BYTES)
            .and_then(|b| b.first_chunk());
        let Some(bytes) = bytes else {
            return Err(outside(self.off));
        };
        let computed = layout::checksum(bytes, self.key, value_crc);
        if computed != self.header.checksum && !canary::breaks(Canary::ValueChecksum) {
            return Err(self.damaged(computed));
        }
        Ok((value, value_crc))
    }

    /// Returns the node's value and its expiry, after verifying the checksum.
    #[inline]
    pub(crate) fn checked_entry(&self) -> Result<Value<'a>, DecodeError> {
        let (bytes, _) = self.checked_value()?;
        if self.header.kind != EntryKind::PutExpiring as u8 {
            return Ok(Value { bytes, expiry: 0 });
        }
        let (expiry, bytes) = expiring::decode(bytes, self.off)?;
        Ok(Value { bytes, expiry })
    }

    #[cold]
    fn damaged(&self, computed: u32) -> DecodeError {
        DecodeError {
            what: "checksum of the node of a key",
            offset: self.off,
            expected: format!("{computed:#010x}"),
            found: format!(
                "{:#010x} (keyspace {}, key {})",
                self.header.checksum,
                self.header.keyspace,
                self.key.escape_ascii()
            ),
        }
    }

    /// Returns the node's place in the order.
    #[inline]
    pub(crate) fn target(&self) -> Target<'a> {
        Target {
            keyspace: self.header.keyspace,
            key: self.key,
            seq: self.header.seq,
        }
    }

    /// Compares the node with `target` in the sort order.
    #[inline(always)]
    pub(crate) fn compare(&self, target: &Target<'_>) -> Order {
        if self.header.keyspace != target.keyspace {
            return self.header.keyspace.cmp(&target.keyspace);
        }
        match compare_keys(self.key, target.key) {
            Order::Equal => target.seq.cmp(&self.header.seq),
            order => order,
        }
    }

    /// Returns whether the node is a version of the given user key.
    #[inline]
    pub(crate) fn same_key(&self, keyspace: u32, key: &[u8]) -> bool {
        self.header.keyspace == keyspace && self.key == key
    }
}

/// Returns the offset of the word that holds the link of `node` at `level`.
#[inline(always)]
pub(crate) fn link_at(node: u64, level: usize) -> u64 {
    // A damaged link may be any number. An offset outside the region is better than wrapping to
    // another word.
    node.saturating_add(HEADER_BYTES as u64 + 8 * level as u64)
}

/// Returns the atomic word of a link.
#[inline(always)]
pub(crate) fn link_word(
    region: &Region,
    node: u64,
    level: usize,
) -> Result<&AtomicU64, DecodeError> {
    region
        .word(link_at(node, level))
        .ok_or_else(|| outside(node))
}

/// Returns the node after `node` at `level`, or 0 at the end.
#[inline(always)]
pub(crate) fn next(region: &Region, node: u64, level: usize) -> Result<u64, DecodeError> {
    Ok(link_word(region, node, level)?.load(Ordering::Acquire) & LINK_OFFSET)
}
