//! Refusals: the errors for a pool that cannot be opened.

use super::error::PoolError;
use super::layout::{self, FORMAT};
use super::superblock::{NoSuperblock, Superblock};
use super::{PoolConfig, first_extent};
use std::path::Path;

/// Returns the error for a backing without a superblock.
pub(super) fn refuse(path: &Path, why: NoSuperblock) -> PoolError {
    let path = path.to_owned();
    match why {
        NoSuperblock::Empty => PoolError::Foreign {
            path,
            found: printable(&[0]),
        },
        NoSuperblock::Foreign(found) => PoolError::Foreign {
            path,
            found: printable(&found),
        },
        NoSuperblock::Newer(format) => PoolError::Newer {
            path,
            format,
            supported: FORMAT,
        },
        NoSuperblock::Damaged {
            offset,
            expected,
            found,
        } => PoolError::Corrupt {
            path,
            what: "the superblock's checksum",
            offset,
            expected: format!("{expected:#010x}"),
            found: format!("{found:#010x}"),
        },
    }
}

/// Checks a valid superblock against the backing and the configuration.
pub(super) fn check(
    path: &Path,
    config: &PoolConfig,
    state: &Superblock,
    committed: u64,
) -> Result<(), PoolError> {
    if state.incompat != 0 || state.ro_compat != 0 {
        return Err(PoolError::Unsupported(format!(
            "the pool {} uses features that this program does not know (incompatible {:#x}, \
             read-only compatible {:#x}); use a later version",
            path.display(),
            state.incompat,
            state.ro_compat
        )));
    }
    if !state.granule.is_power_of_two() || !(4096..=1 << 30).contains(&state.granule) {
        return Err(PoolError::Corrupt {
            path: path.to_owned(),
            what: "the granule in the superblock",
            offset: layout::AT_GRANULE as u64,
            expected: "a power of two from 4096 to 2^30".to_owned(),
            found: state.granule.to_string(),
        });
    }
    if state.generation == u64::MAX {
        // The next generation would overflow and be older than all others.
        return Err(PoolError::Corrupt {
            path: path.to_owned(),
            what: "the generation in the superblock",
            offset: layout::AT_GENERATION as u64,
            expected: "less than 2^64 - 1".to_owned(),
            found: state.generation.to_string(),
        });
    }
    let expected = state.committed.max(first_extent(state.granule));
    if committed < expected {
        return Err(PoolError::Truncated {
            path: path.to_owned(),
            len: committed,
            expected,
        });
    }
    if config.cap_bytes < committed {
        return Err(PoolError::Invalid(format!(
            "the pool {} has {committed} bytes, more than the given size of {} bytes; raise the \
             pool's size",
            path.display(),
            config.cap_bytes
        )));
    }
    Ok(())
}

/// Formats bytes for a message.
pub(crate) fn printable(bytes: &[u8]) -> String {
    if bytes.iter().all(|b| *b == 0) {
        return "zero bytes, but only an empty file can become a pool; truncate it".to_owned();
    }
    format!("\"{}\"", bytes.escape_ascii())
}
