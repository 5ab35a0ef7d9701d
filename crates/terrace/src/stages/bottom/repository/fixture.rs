//! A pool of 4 MiB in memory with an empty repository, for tests.

use std::sync::Arc;

use terrace_media::{Backing, ManualClock, Pool, PoolConfig};

use super::layout::EXTENT;
use super::recover;
use crate::parts::manifest::Manifest;
use crate::parts::manifest::item::Owners;
use crate::parts::redo::RedoArea;
use crate::stages::Shared;
use crate::testing::small_options;
use crate::types::DbId;

const OWNERS: Owners = &[&EXTENT];

pub(super) fn shared() -> Arc<Shared> {
    let mut config = PoolConfig::new(Backing::Anonymous, 4 << 20);
    config.granule = 4096;
    let pool = Pool::create(config).unwrap();
    let manifest = Manifest::create(&pool, DbId::default(), 64 << 10, OWNERS).unwrap();
    let redo = RedoArea::create(&pool, pool.alloc(RedoArea::BYTES).unwrap()).unwrap();
    let clock = Arc::new(ManualClock::new());
    let shared = Arc::new(Shared::new(pool, manifest, redo, small_options(), clock));
    recover::create(&shared).unwrap();
    shared
}
