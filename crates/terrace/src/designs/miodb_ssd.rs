//! MioDB in its DRAM-PM-SSD form (Duan et al., ASPLOS 2023): the last level of
//! the elastic buffer drains to levels of SSTables on a block device.
//!
//! The paper's numbers are the defaults of `Options`: memtables of 64 MiB, 8 levels of
//! buffer, and for its baselines SSTables of 64 MiB and a factor of 10. Where this differs from the
//! paper, docs/designs.md says how and why.

use std::sync::Arc;

use super::{Opened, RebuildProgress, Recipe, buffered};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::buffer::elastic::{self, Drains};
use crate::stages::front::wal_memtable::FlushTo;
use crate::stages::{Folder, Shared};

/// No stage needs initial bytes on media.
pub(super) const RECIPE: Recipe = Recipe {
    fix: |_| {},
    create: |_| Ok(()),
    links_lost: elastic::recover::links_lost,
    open,
};

fn open(
    shared: &Arc<Shared>,
    folder: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Stages, Opened)> {
    // A drain frees its tables when all of it is in files: the pool is to hold several.
    let drains = (FlushTo::Pool, Drains::Early);
    buffered::open_over_files(shared, folder, drains, links_lost, progress)
}
