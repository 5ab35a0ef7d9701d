//! This file reads the headers of the repository for those who rescue its nodes.

use super::layout::{self, ENTRIES_AT, HEADER_BYTES, RECLAIMING_AT, SYNCED_AT, USED_AT};

/// Where the first node begins in an extent, and the head node in the head extent.
pub(crate) const NODES_AT: u64 = HEADER_BYTES as u64;

/// What an extent says of itself, each of it as long as nobody has damaged it. Offsets of words that
/// change are from the extent's start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExtentWords {
    pub(crate) used: u64,
    /// What of `used` a power loss cannot take; `None` where it takes none of it.
    pub(crate) synced: Option<u64>,
}

/// The words of an extent, read by their offsets.
pub(crate) fn extent_words(read: &dyn Fn(u64) -> u64) -> ExtentWords {
    ExtentWords {
        used: read(USED_AT),
        synced: Some(read(SYNCED_AT)).filter(|synced| *synced != 0),
    }
}

/// Of the head extent: nodes in the list, and the offset of an extent of which some nodes may be there
/// twice, or 0.
pub(crate) fn head_words(read: &dyn Fn(u64) -> u64) -> (u64, u64) {
    (read(ENTRIES_AT), read(RECLAIMING_AT))
}

/// Whether `bytes`, found at `at`, begin the extent of `length` bytes that lies there.
pub(crate) fn is_extent(bytes: &[u8], at: u64, length: u64) -> bool {
    layout::check_extent(bytes, at, length).is_ok()
}

/// Whether `bytes`, found at `at`, say that they begin the extent there, whatever the rest of them says.
pub(crate) fn is_placed(bytes: &[u8], at: u64) -> bool {
    layout::extent_offset(bytes) == Some(at)
}

/// The length that the extent which begins with `bytes` says it has, if they begin one.
pub(crate) fn extent_length(bytes: &[u8], at: u64) -> Option<u64> {
    let length = bytes
        .get(8..16)?
        .first_chunk()
        .map(|word| u64::from_le_bytes(*word))?;
    is_extent(bytes, at, length).then_some(length)
}
