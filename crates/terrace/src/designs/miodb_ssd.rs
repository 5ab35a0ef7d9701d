//! MioDB in its DRAM-PM-SSD form (Duan et al., ASPLOS 2023): the last level of
//! the elastic buffer drains to levels of SSTables on a block device.
//!
//! The paper's numbers are the defaults of `Options`: memtables and SSTables of 64 MiB, 8 levels of
//! buffer, a factor of 10. Where this differs from the paper, docs/designs.md says how and why.

use std::sync::Arc;

use super::{Opened, RebuildProgress};
use crate::engine::Pipeline;
use crate::error::Result;
use crate::stages::bottom::leveled;
use crate::stages::buffer::elastic;
use crate::stages::front::wal_memtable::{self, FlushTo};
use crate::stages::{Folder, Ground};

/// Opens the stages. The front comes last: it takes space, and everything that is live must have
/// been adopted by then.
pub(super) fn open(
    ground: &Arc<Ground>,
    folder: Folder,
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Pipeline, Opened)> {
    let (buffer, found) = elastic::recover::recover(ground, links_lost, &mut |done, total| {
        progress("rebuilding tables", done, total);
    })?;
    let bottom = leveled::recover::recover(ground, &folder)?;
    let front = wal_memtable::recover::recover(ground, folder, FlushTo::Pool)?;
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
