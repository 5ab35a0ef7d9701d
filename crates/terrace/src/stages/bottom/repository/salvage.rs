//! Reading of the repository's headers for salvaging its nodes.

use super::layout::{self, ENTRIES_AT, HEADER_BYTES, RECLAIMING_AT, SYNCED_AT, USED_AT};

/// The offset of the first node in an extent, and of the head node in the head extent.
pub(crate) const NODES_AT: u64 = HEADER_BYTES as u64;

/// The header words of an extent, which may be damaged. They are offsets from the extent's start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExtentWords {
    pub(crate) used: u64,
    /// The part of `used` that survives a power loss; `None` if all of it does.
    pub(crate) synced: Option<u64>,
}

/// Reads the words of an extent by their offsets.
pub(crate) fn extent_words(read: &dyn Fn(u64) -> u64) -> ExtentWords {
    ExtentWords {
        used: read(USED_AT),
        synced: Some(read(SYNCED_AT)).filter(|synced| *synced != 0),
    }
}

/// Returns, from the head extent, the number of nodes in the list, and the offset of an extent of
/// which some nodes may exist twice, or 0.
pub(crate) fn head_words(read: &dyn Fn(u64) -> u64) -> (u64, u64) {
    (read(ENTRIES_AT), read(RECLAIMING_AT))
}

/// Returns whether `bytes`, found at `at`, begin the extent of `length` bytes there.
pub(crate) fn is_extent(bytes: &[u8], at: u64, length: u64) -> bool {
    layout::check_extent(bytes, at, length).is_ok()
}

/// Returns whether the header in `bytes` names the offset `at`, even if the rest of it is damaged.
pub(crate) fn is_placed(bytes: &[u8], at: u64) -> bool {
    layout::extent_offset(bytes) == Some(at)
}

/// Returns the length in the header that begins with `bytes`, if they begin an extent.
pub(crate) fn extent_length(bytes: &[u8], at: u64) -> Option<u64> {
    let length = bytes
        .get(8..16)?
        .first_chunk()
        .map(|word| u64::from_le_bytes(*word))?;
    is_extent(bytes, at, length).then_some(length)
}
