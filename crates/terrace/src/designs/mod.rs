//! Designs: which stages, with which numbers, from which paper.
//!
//! | design | front | buffer | bottom |
//! |---|---|---|---|
//! | `MioDb` | `wal_memtable` | `elastic` | `repository` |
//! | `MioDbSsd` | `wal_memtable` | `elastic` | `leveled` |
//! | `Leveled` | `wal_memtable` | none | `leveled` |
//!
//! This folder is the only place that names concrete stages together.

mod buffered;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod leveled;
mod miodb;
mod miodb_ssd;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::engine::Pipeline;
use crate::error::{Error, Result};
use crate::stages::Folder;
use crate::stages::Ground;

/// What the extents of a repository say of themselves, for those who rescue what is in a damaged pool.
pub(crate) use crate::stages::bottom::repository::salvage as repository_extents;

/// A composition of stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Design {
    /// MioDB (ASPLOS '23): log and DRAM memtable, levels of skip lists that merge by relinking, one
    /// huge skip list at the bottom.
    MioDb,
    /// MioDB with its bottom on a block device: levels of SSTables.
    MioDbSsd,
    /// The baseline, as LevelDB and RocksDB are: log and memtable, levels of SSTables.
    Leveled,
}

impl Design {
    /// Every design that is built.
    pub const ALL: [Design; 3] = [Design::MioDb, Design::MioDbSsd, Design::Leveled];

    /// The design's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Design::MioDb => "miodb",
            Design::MioDbSsd => "miodb-ssd",
            Design::Leveled => "leveled",
        }
    }

    /// Whether data stays in the pool: in a buffer or a bottom there. Else the pool has the logs and
    /// what memtables need, whatever the amount of data.
    pub fn keeps_data_in_pool(self) -> bool {
        match self {
            Design::MioDb | Design::MioDbSsd => true,
            Design::Leveled => false,
        }
    }

    /// Whether what the bottom takes outlives the process when the pool is on `medium`.
    pub(crate) fn keeps_bottom(self, medium: terrace_media::Medium) -> bool {
        self.keeps_table_files() || medium != terrace_media::Medium::Dram
    }

    /// Whether data ends in table files, in the database's folder.
    pub fn keeps_table_files(self) -> bool {
        match self {
            Design::MioDb => false,
            Design::MioDbSsd | Design::Leveled => true,
        }
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Design {
    type Err = Error;

    fn from_str(name: &str) -> Result<Design> {
        let known = Design::ALL
            .into_iter()
            .find(|d| d.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| {
            let names: Vec<_> = Design::ALL.iter().map(|d| d.name()).collect();
            Error::invalid(format!(
                "there is no design {name:?}; this version has {}",
                names.join(", ")
            ))
        })
    }
}

/// What the stages of a design found when they were opened.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) merges_resumed: u64,
    pub(crate) tables_rebuilt: u64,
}

/// Called with what is being rebuilt, bytes done and bytes in all.
pub(crate) type RebuildProgress<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

impl Design {
    /// Writes what the stages need on media before they can be opened for the first time.
    pub(crate) fn create(self, ground: &Arc<Ground>) -> Result<()> {
        match self {
            Design::MioDb => miodb::create(ground),
            // Their stages begin with nothing on media.
            Design::MioDbSsd | Design::Leveled => Ok(()),
        }
    }

    /// Whether links in the pool are without meaning and lists must be rebuilt.
    pub(crate) fn links_lost(self, ground: &Ground) -> bool {
        match self {
            Design::MioDb | Design::MioDbSsd => {
                crate::stages::buffer::elastic::recover::links_lost(ground)
            }
            Design::Leveled => false,
        }
    }

    /// Opens the stages over what is on media.
    pub(crate) fn open(
        self,
        ground: &Arc<Ground>,
        files: Folder,
        links_lost: bool,
        progress: RebuildProgress<'_>,
    ) -> Result<(Pipeline, Opened)> {
        match self {
            Design::MioDb => miodb::open(ground, files, links_lost, progress),
            Design::MioDbSsd => miodb_ssd::open(ground, files, links_lost, progress),
            Design::Leveled => leveled::open(ground, files),
        }
    }
}
