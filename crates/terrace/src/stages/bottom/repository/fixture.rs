//! An empty repository, for tests.

use std::sync::Arc;

use super::layout::EXTENT;
use super::recover;
use crate::parts::manifest::item::Owners;
use crate::stages::{Shared, fixture};

const OWNERS: Owners = &[&EXTENT];

pub(super) fn shared() -> Arc<Shared> {
    let shared = fixture::shared(OWNERS);
    recover::create(&shared).unwrap();
    shared
}
