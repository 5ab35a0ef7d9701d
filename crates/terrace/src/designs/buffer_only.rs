//! A test design: MioDB's front and buffer without a bottom. It never frees space, since nothing is
//! drained, and shows that the engine works without a bottom.

use std::sync::Arc;

use super::{Opened, RebuildProgress, Recipe, buffered};
use crate::engine::Stages;
use crate::error::Result;
use crate::stages::bottom::none::NoBottom;
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
    buffered::open(
        shared,
        folder,
        (FlushTo::Pool, Drains::Early),
        links_lost,
        progress,
        |_, _| Ok(Box::new(NoBottom)),
    )
}
