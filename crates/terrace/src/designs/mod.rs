//! Designs: the stages of each, their sizes, and the papers that they come from.
//!
//! | design | front | buffer | bottom |
//! |---|---|---|---|
//! | `MioDb` | `wal_memtable` | `elastic` | `repository` |
//! | `MioDbSsd` | `wal_memtable` | `elastic` | `leveled` |
//! | `MatrixKv` | `wal_memtable` | `matrix` | `leveled` |
//! | `FlatLsm` | `wal_memtable`, values in its log | `tables` | `leveled`, two levels |
//! | `NoveLsm` | `wal_memtable`, in turns in the pool | `elastic`, one level | `leveled` |
//! | `NoveLsmNoSst` | the same | the same | `repository` |
//! | `NoveLsmHier` | `wal_memtable` | `elastic`, one table | `leveled` |
//! | `Leveled` | `wal_memtable` | none | `leveled` |
//!
//! Only this directory combines concrete stages. A new design is a file with a `RECIPE` here, its
//! line in `Design::recipe`, and its name and shape in `options/design.rs`.

#[cfg(feature = "test-design")]
mod buffer_only;
mod buffered;
#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod flatlsm;
mod leveled;
mod matrixkv;
mod miodb;
mod miodb_ssd;
mod novelsm;
mod owners;

use std::sync::Arc;

use crate::engine::Stages;
use crate::error::{Error, Result};
use crate::options::Design;
use crate::stages::{Folder, Shared, Takes};

pub(crate) use owners::{OWNERS, SALVAGES};

/// The result of opening the stages of a design.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Opened {
    pub(crate) merges_resumed: u64,
    pub(crate) tables_rebuilt: u64,
}

/// Receives the name of the part that is being rebuilt, the bytes done and the total.
pub(crate) type RebuildProgress<'a> = &'a mut dyn FnMut(&'static str, u64, u64);

/// The functions that create and open the stages of a design.
struct Recipe {
    /// Sets the options that the design fixes, whatever was stated.
    fix: fn(&mut Shared),
    create: fn(&Arc<Shared>) -> Result<()>,
    links_lost: fn(&Shared) -> bool,
    open: Open,
}

/// Opens the stages over existing data on media; the flag means that links there are invalid.
type Open = fn(&Arc<Shared>, Folder, bool, RebuildProgress<'_>) -> Result<(Stages, Opened)>;

impl Design {
    fn recipe(self) -> Recipe {
        match self {
            Design::MioDb => miodb::RECIPE,
            Design::MioDbSsd => miodb_ssd::RECIPE,
            Design::Leveled => leveled::RECIPE,
            Design::FlatLsm => flatlsm::RECIPE,
            Design::NoveLsm => novelsm::RECIPE,
            Design::NoveLsmNoSst => novelsm::NO_SST,
            Design::NoveLsmHier => novelsm::HIERARCHICAL,
            Design::MatrixKv => matrixkv::RECIPE,
            #[cfg(feature = "test-design")]
            Design::BufferOnly => buffer_only::RECIPE,
        }
    }

    /// Sets the options that the design fixes, whatever was stated. They are in force, not stated.
    pub(crate) fn fix_options(self, shared: &mut Shared) {
        (self.recipe().fix)(shared);
    }

    /// Writes the bytes that the stages need on media before they are opened for the first time.
    pub(crate) fn create(self, shared: &Arc<Shared>) -> Result<()> {
        (self.recipe().create)(shared)
    }

    /// Returns whether links in the pool are invalid, so that lists must be rebuilt.
    pub(crate) fn links_lost(self, shared: &Shared) -> bool {
        (self.recipe().links_lost)(shared)
    }

    /// Opens the stages over existing data on media.
    pub(crate) fn open(
        self,
        shared: &Arc<Shared>,
        files: Folder,
        links_lost: bool,
        progress: RebuildProgress<'_>,
    ) -> Result<(Stages, Opened)> {
        let (stages, opened) = (self.recipe().open)(shared, files, links_lost, progress)?;
        let drains_ranges = stages.buffer.as_ref().is_some_and(|it| it.drains_ranges());
        if drains_ranges && stages.bottom.takes() != Takes::Ranges {
            return Err(Error::invalid(format!(
                "the design {self} has a buffer that drains ranges of keys, and a bottom that takes \
                 whole tables"
            )));
        }
        Ok((stages, opened))
    }
}
