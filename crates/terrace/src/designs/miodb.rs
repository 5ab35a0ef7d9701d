//! MioDB in its DRAM-PM form: Duan et al., "Revisiting Log-Structured Merging for KV Stores in Hybrid
//! Memory Systems", ASPLOS 2023.
//!
//! The paper's numbers are the defaults of `Options`: memtables of 64 MiB, 8 levels, filters of 16
//! bits a key. Where this differs from the paper, docs/designs.md says how and why.

use std::sync::Arc;

use super::{Opened, RebuildProgress};
use crate::engine::Pipeline;
use crate::error::Result;
use crate::stages::Folder;
use crate::stages::Ground;
use crate::stages::bottom::repository;
use crate::stages::buffer::elastic;
use crate::stages::front::wal_memtable::{self, FlushTo};

/// Writes an empty repository; the other stages begin with nothing on media.
pub(super) fn create(ground: &Arc<Ground>) -> Result<()> {
    repository::recover::create(ground)
}

/// Opens the stages. The front comes last: it takes space, and everything that is live must have
/// been adopted by then.
pub(super) fn open(
    ground: &Arc<Ground>,
    files: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Pipeline, Opened)> {
    let (buffer, found) = elastic::recover::recover(ground, links_lost, &mut |done, total| {
        progress("rebuilding tables", done, total);
    })?;
    let bottom = repository::recover::recover(ground, links_lost, &mut |done, total| {
        progress("rebuilding the repository", done, total);
    })?;
    let front = wal_memtable::recover::recover(ground, files, FlushTo::Pool)?;
    let opened = Opened {
        merges_resumed: found.merges_resumed,
        tables_rebuilt: found.tables_rebuilt,
    };
    let pipeline = Pipeline {
        front: Box::new(front),
        buffer: Some(Box::new(buffer)),
        bottom: Box::new(bottom),
    };
    Ok((pipeline, opened))
}
