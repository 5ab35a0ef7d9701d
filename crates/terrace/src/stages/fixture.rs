//! A pool of 4 MiB with an empty manifest, for tests.

use std::sync::Arc;

use terrace_media::{Backing, ManualClock, Pool, PoolConfig};

use super::Shared;
use crate::parts::manifest::Manifest;
use crate::parts::manifest::item::Owners;
use crate::parts::redo::RedoArea;
use crate::testing::small_options;
use crate::types::DbId;

/// Returns a pool in memory.
pub(crate) fn shared(owners: Owners) -> Arc<Shared> {
    shared_in(Backing::Anonymous, owners)
}

/// Returns a pool in this place.
pub(crate) fn shared_in(backing: Backing, owners: Owners) -> Arc<Shared> {
    let mut config = PoolConfig::new(backing, 4 << 20);
    config.granule = 4096;
    let pool = Pool::create(config).unwrap();
    let manifest = Manifest::create(&pool, DbId::default(), 64 << 10, owners).unwrap();
    let redo = RedoArea::create(&pool, pool.alloc(RedoArea::BYTES).unwrap()).unwrap();
    let clock = Arc::new(ManualClock::new());
    Arc::new(Shared::new(pool, manifest, redo, small_options(), clock))
}
