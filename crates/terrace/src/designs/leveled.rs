//! The baseline, as in LevelDB and RocksDB: a log and a memtable, flushed to level 0 of a tree of
//! SSTables (O'Neil et al., "The log-structured merge-tree", 1996; LevelDB's and RocksDB's
//! documents).

use std::sync::Arc;

use super::{Opened, Recipe};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::leveled;
use crate::stages::front::wal_memtable::{self, FlushTo};
use crate::stages::{Folder, Shared};

/// No stage needs initial bytes on media, or keeps links in the pool.
pub(super) const RECIPE: Recipe = Recipe {
    fix: |_| {},
    create: |_| Ok(()),
    links_lost: |_| false,
    open: |shared, folder, _, _| open(shared, folder),
};

/// Opens the stages; the front comes last, since it allocates space.
fn open(shared: &Arc<Shared>, folder: Folder) -> Result<(Stages, Opened)> {
    let front = wal_memtable::shape(shared);
    let bottom = leveled::recover::recover(shared, &folder, front, None)?;
    let front = wal_memtable::recover::recover(shared, folder, FlushTo::Bottom)?;
    let stages = Stages {
        front: Box::new(front),
        buffer: None,
        bottom: Box::new(bottom),
    };
    Ok((stages, Opened::default()))
}
