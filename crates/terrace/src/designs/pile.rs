//! A test design: a buffer of immutable heaps above levels of SSTables. It shows that a buffer need
//! not be one of skip lists.

use std::sync::Arc;

use super::{Opened, Recipe};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::leveled;
use crate::stages::buffer::pile;
use crate::stages::front::wal_memtable::{self, FlushTo};
use crate::stages::{Folder, Shared};

/// No stage needs initial bytes on media, or keeps links in the pool.
pub(super) const RECIPE: Recipe = Recipe {
    create: |_| Ok(()),
    links_lost: |_| false,
    open: |shared, folder, _, _| open(shared, folder),
};

/// Opens the stages; the front comes last, since it allocates space.
fn open(shared: &Arc<Shared>, folder: Folder) -> Result<(Stages, Opened)> {
    let buffer = pile::recover(shared)?;
    let bottom = leveled::recover::recover(shared, &folder, wal_memtable::shape(shared))?;
    let front = wal_memtable::recover::recover(shared, folder, FlushTo::Pool)?;
    let stages = Stages {
        front: Box::new(front),
        buffer: Some(Box::new(buffer)),
        bottom: Box::new(bottom),
    };
    Ok((stages, Opened::default()))
}
