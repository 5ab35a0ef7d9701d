//! The part common to MioDB's two forms and to NoveLSM: a log and memtable over the elastic buffer,
//! and a bottom below it.

use std::sync::Arc;

use super::{Opened, RebuildProgress};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::leveled;
use crate::stages::buffer::elastic::{self, Drains};
use crate::stages::front::wal_memtable::{self, FlushTo};
use crate::stages::{Bottom, Folder, Shared};

/// Opens the stages, the bottom with `open_bottom`. The front comes last: it allocates space, and
/// all live extents must have been adopted by then.
pub(super) fn open(
    shared: &Arc<Shared>,
    folder: Folder,
    (flush_to, drains): (FlushTo, Drains),
    links_lost: bool,
    progress: RebuildProgress<'_>,
    open_bottom: impl FnOnce(&Folder, RebuildProgress<'_>) -> Result<Box<dyn Bottom>>,
) -> Result<(Stages, Opened)> {
    let (buffer, found) =
        elastic::recover::recover(shared, drains, links_lost, &mut |done, total| {
            progress("rebuilding tables", done, total);
        })?;
    let bottom = open_bottom(&folder, progress)?;
    let front = wal_memtable::recover::recover(shared, folder, flush_to)?;
    let opened = Opened {
        merges_resumed: found.merges_resumed,
        tables_rebuilt: found.tables_rebuilt,
    };
    let stages = Stages {
        front: Box::new(front),
        buffer: Some(Box::new(buffer)),
        bottom,
    };
    Ok((stages, opened))
}

/// Opens the stages with levels of table files as the bottom.
pub(super) fn open_over_files(
    shared: &Arc<Shared>,
    folder: Folder,
    front_and_drains: (FlushTo, Drains),
    links_lost: bool,
    progress: RebuildProgress<'_>,
) -> Result<(Stages, Opened)> {
    open(
        shared,
        folder,
        front_and_drains,
        links_lost,
        progress,
        |folder, _| {
            let front = wal_memtable::shape(shared);
            let bottom = leveled::recover::recover(shared, folder, front, None)?;
            Ok(Box::new(bottom))
        },
    )
}
