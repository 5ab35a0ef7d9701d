//! MioDB in its DRAM-PM form: Duan et al., "Revisiting Log-Structured Merging for KV Stores in
//! Hybrid Memory Systems", ASPLOS 2023.
//!
//! The paper's numbers are the defaults of `Options`: memtables of 64 MiB, 8 levels, filters of 16
//! bits a key. Where this differs from the paper, docs/designs.md says how and why.

use std::sync::Arc;

use super::{Opened, RebuildProgress, Recipe, buffered};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::repository;
use crate::stages::buffer::elastic::{self, Drains};
use crate::stages::front::wal_memtable::FlushTo;
use crate::stages::{Folder, Shared};

/// An empty repository is created first; the other stages need no initial bytes on media.
pub(super) const RECIPE: Recipe = Recipe {
    fix: |_| {},
    create: repository::recover::create,
    links_lost: elastic::recover::links_lost,
    open,
};

fn open(
    shared: &Arc<Shared>,
    folder: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Stages, Opened)> {
    let drains = match shared.pool_outlives() {
        true => Drains::Late,
        // The logs of a table are needed until all of it has drained.
        false => Drains::Early,
    };
    buffered::open(
        shared,
        folder,
        (FlushTo::Pool, drains),
        links_lost,
        progress,
        |_, progress| {
            let bottom = repository::recover::recover(shared, links_lost, &mut |done, total| {
                progress("rebuilding the repository", done, total);
            })?;
            Ok(Box::new(bottom))
        },
    )
}
