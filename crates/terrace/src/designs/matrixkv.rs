//! MatrixKV (Yao et al., USENIX ATC 2020): level 0 is a matrix container in the pool, which leaves
//! in columns that are merged with level 1.
//!
//! The paper's numbers are the defaults of `Options`: memtables and SSTables of 64 MiB, a factor of
//! 10 between levels. Level 1 is as large as the container (section 3.3), whatever
//! `bottom.leveled.level1_bytes` says, unless flattening is off. Where this differs from the paper,
//! docs/designs.md says how and why.

use std::sync::Arc;

use super::{Opened, Recipe};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::leveled::{self, ColumnBytes};
use crate::stages::buffer::matrix;
use crate::stages::front::wal_memtable::{self, FlushTo};
use crate::stages::{Folder, Shared};

/// No stage needs initial bytes on media, or keeps links in the pool.
pub(super) const RECIPE: Recipe = Recipe {
    fix,
    create: |_| Ok(()),
    links_lost: |_| false,
    open: |shared, folder, _, _| open(shared, folder),
};

/// Opens the stages; the front comes last, since it allocates space.
fn open(shared: &Arc<Shared>, folder: Folder) -> Result<(Stages, Opened)> {
    let buffer = matrix::recover(shared)?;
    let (front, levels) = (wal_memtable::shape(shared), &shared.options.bottom.leveled);
    // If the pool is memory, the compactor leaves at once, as a run of level 0.
    let columns = shared
        .pool_outlives()
        .then(|| match shared.options.buffer.matrix.columns {
            true => ColumnBytes::of(
                levels.growth,
                levels.table_bytes,
                matrix::container_bytes(shared),
            ),
            false => ColumnBytes::unbounded(),
        });
    let bottom = leveled::recover::recover(shared, &folder, front, columns)?;
    let front = wal_memtable::recover::recover(shared, folder, FlushTo::Buffer)?;
    let stages = Stages {
        front: Box::new(front),
        buffer: Some(Box::new(buffer)),
        bottom: Box::new(bottom),
    };
    Ok((stages, Opened::default()))
}

/// Sets the options of the levels: columns have a fixed level to be merged with, and level 0 has
/// only what ingests bring, which columns cannot pass.
fn fix(shared: &mut Shared) {
    if !shared.pool_outlives() {
        return;
    }
    let container = matrix::container_bytes(shared);
    let options = &mut shared.options;
    let levels = &mut options.bottom.leveled;
    levels.dynamic_sizes = false;
    levels.runs_compact = 1;
    if options.buffer.matrix.flattened {
        levels.level1_bytes = container;
    }
}
