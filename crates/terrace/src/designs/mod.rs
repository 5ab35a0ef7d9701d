//! Designs: which stages, with which numbers, from which paper.
//!
//! | design | front | buffer | bottom |
//! |---|---|---|---|
//! | `MioDb` | `wal_memtable` | `elastic` | `repository` |
//! | `MioDbSsd` | `wal_memtable` | `elastic` | `leveled` |
//! | `Leveled` | `wal_memtable` | none | `leveled` |
//!
//! This folder is the only place that names concrete stages together. A new design is a file with a `RECIPE` here, its
//! line in `Design::recipe`, and its name and shape in `options/design.rs`.

#[cfg(feature = "test-design")]
mod buffer_only;
mod buffered;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod leveled;
mod miodb;
mod miodb_ssd;

use std::sync::Arc;

use crate::engine::Pipeline;
use crate::error::Result;
use crate::options::Design;
use crate::stages::{Folder, Ground};

/// What the extents of a repository say of themselves, for those who rescue what is in a damaged pool.
pub(crate) use crate::stages::bottom::repository::salvage as repository_extents;

/// What the stages of a design found when they were opened.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) merges_resumed: u64,
    pub(crate) tables_rebuilt: u64,
}

/// Called with what is being rebuilt, bytes done and bytes in all.
pub(crate) type RebuildProgress<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// How the stages of a design are made and opened.
struct Recipe {
    create: fn(&Arc<Ground>) -> Result<()>,
    links_lost: fn(&Ground) -> bool,
    open: Open,
}

/// Opens the stages over what is on media; the flag says that links there are without meaning.
type Open = fn(&Arc<Ground>, Folder, bool, RebuildProgress<'_>) -> Result<(Pipeline, Opened)>;

impl Design {
    fn recipe(self) -> Recipe {
        match self {
            Design::MioDb => miodb::RECIPE,
            Design::MioDbSsd => miodb_ssd::RECIPE,
            Design::Leveled => leveled::RECIPE,
            #[cfg(feature = "test-design")]
            Design::BufferOnly => buffer_only::RECIPE,
        }
    }

    /// Writes what the stages need on media before they can be opened for the first time.
    pub(crate) fn create(self, ground: &Arc<Ground>) -> Result<()> {
        (self.recipe().create)(ground)
    }

    /// Whether links in the pool are without meaning and lists must be rebuilt.
    pub(crate) fn links_lost(self, ground: &Ground) -> bool {
        (self.recipe().links_lost)(ground)
    }

    /// Opens the stages over what is on media.
    pub(crate) fn open(
        self,
        ground: &Arc<Ground>,
        files: Folder,
        links_lost: bool,
        progress: RebuildProgress<'_>,
    ) -> Result<(Pipeline, Opened)> {
        (self.recipe().open)(ground, files, links_lost, progress)
    }
}
