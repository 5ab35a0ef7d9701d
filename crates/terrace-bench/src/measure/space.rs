//! The space that a database takes on its medium against its live data.
//!
//! Used is the space that the files in its directory take on their file system; of a pool, which is
//! made at its full size, only the allocated extents. Live data are keys and values that a reader
//! would find. Their number is extrapolated from one key in 16, so its error is about 4 /
//! sqrt(number of keys).

use serde::{Deserialize, Serialize};

use crate::known::Known;
use crate::space::Space;

/// Bytes used and bytes alive at the end of a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SpaceReport {
    /// The bytes that the database takes.
    pub used_bytes: u64,
    /// Live keys and values in bytes, estimated; `None` if the run does not know them.
    pub live_bytes: Option<u64>,
    /// Used bytes per live byte; `None` if unknown or nothing is live.
    pub amplification: Option<f64>,
    /// The most bytes that the live extents of the pool took during the phase, in samples 100 ms
    /// apart and at its ends; `None` without a pool.
    #[serde(default)]
    pub pool_peak_bytes: Option<u64>,
}

/// The location of a pool's file, which decides how its space counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolFile {
    /// There is no file: the pool is plain memory, or there is no pool.
    None,
    /// In the database's directory, where it takes this many bytes.
    Inside(u64),
    /// Outside the database's directory.
    Elsewhere,
}

impl SpaceReport {
    /// Compares used and live bytes. `space` includes its `folder_bytes`; `known` is given if this
    /// run wrote every key in the database.
    pub(crate) fn of(
        space: &Space,
        pool: PoolFile,
        known: Option<&Known>,
        entry_bytes: u64,
    ) -> SpaceReport {
        let folder = space.folder_bytes;
        let used_bytes = match pool {
            PoolFile::None => folder,
            PoolFile::Inside(bytes) => folder.saturating_sub(bytes) + space.pool_allocated_bytes,
            PoolFile::Elsewhere => folder + space.pool_allocated_bytes,
        };
        let live_bytes = known.map(|known| known.estimate() * entry_bytes);
        SpaceReport {
            used_bytes,
            live_bytes,
            amplification: live_bytes
                .filter(|live| *live > 0)
                .map(|live| used_bytes as f64 / live as f64),
            pool_peak_bytes: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only live extents of a pool count, files count in full, and unknown figures are omitted.
    #[test]
    fn used_is_weighed_against_live() {
        let known = Known::none_of(16_000);
        for number in 0..8000 {
            known.put(number);
        }
        let space = Space {
            folder_bytes: 1_050_000,
            pool_allocated_bytes: 1_550_000,
            ..Space::default()
        };
        let used = |pool| SpaceReport::of(&space, pool, None, 100).used_bytes;
        assert_eq!(used(PoolFile::None), 1_050_000);
        assert_eq!(used(PoolFile::Elsewhere), 2_600_000);
        let report = SpaceReport::of(&space, PoolFile::Inside(1_000_000), Some(&known), 100);
        assert_eq!(report.used_bytes, 1_600_000);
        assert_eq!(report.live_bytes, Some(800_000));
        assert_eq!(report.amplification, Some(2.0));
        let report = SpaceReport::of(&space, PoolFile::None, None, 100);
        assert_eq!((report.live_bytes, report.amplification), (None, None));
    }
}
