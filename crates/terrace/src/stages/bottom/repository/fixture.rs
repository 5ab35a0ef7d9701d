//! A pool of 4 MiB in memory with an empty repository, for tests.

use std::sync::Arc;

use terrace_media::{Backing, ManualClock, Pool, PoolConfig};

use super::layout::EXTENT;
use super::recover;
use crate::parts::manifest::Manifest;
use crate::parts::manifest::item::Owners;
use crate::parts::redo::RedoArea;
use crate::stages::Ground;
use crate::testing::small_options;
use crate::types::DbId;

const OWNERS: Owners = &[&EXTENT];

pub(super) fn ground() -> Arc<Ground> {
    let mut config = PoolConfig::new(Backing::Anonymous, 4 << 20);
    config.granule = 4096;
    let pool = Pool::create(config).unwrap();
    let manifest = Manifest::create(&pool, DbId::default(), 64 << 10, OWNERS).unwrap();
    let redo = RedoArea::create(&pool, pool.alloc(RedoArea::BYTES).unwrap()).unwrap();
    let clock = Arc::new(ManualClock::new());
    let ground = Arc::new(Ground::new(pool, manifest, redo, small_options(), clock));
    recover::create(&ground).unwrap();
    ground
}
