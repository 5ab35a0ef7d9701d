//! This file is what a database takes of its medium against the data that lives in it.
//!
//! Used is what the files in its folder take of their file system; of a pool, which is made at its full
//! size, only the extents that live. Live data are keys and values that a reader would find. Their
//! number is known of one key in 16 and taken for all of them, so it is good to about
//! 4 / sqrt(number of keys).

use serde::{Deserialize, Serialize};

use crate::known::Known;
use crate::space::Space;

/// Bytes used and bytes alive at the end of a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SpaceReport {
    /// What the database takes.
    pub used_bytes: u64,
    /// Keys and values that live in it, estimated; `None` where the run does not know.
    pub live_bytes: Option<u64>,
    /// Used for each live byte; `None` where that is not known or nothing lives.
    pub amplification: Option<f64>,
}

/// Where the file of a pool is, for what it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolFile {
    /// There is none: the pool is plain memory, or there is no pool.
    None,
    /// In the database's folder, of which it takes so many bytes.
    Inside(u64),
    /// Somewhere else.
    Elsewhere,
}

impl SpaceReport {
    /// `space` has its `folder_bytes`; `known` is given where every key there was written by this run.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a pool only its live extents count, of files all of them, and what is not known is not said.
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
