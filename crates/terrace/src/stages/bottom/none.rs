//! A bottom that takes nothing: the buffer holds all data.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::parts::ranges::Fragments;
use crate::stages::{
    Bottom, Drain, IngestWriter, Job, Need, RangeRequest, Sources, Takes, Urgency,
};
use crate::types::SeqNo;

/// The bottom of a database whose buffer keeps all data.
pub(crate) struct NoBottom;

impl Bottom for NoBottom {
    fn takes(&self) -> Takes {
        Takes::Nothing
    }

    fn drain_bytes_max(&self) -> u64 {
        0
    }

    fn drain_job(&self, _: Drain) -> Result<Box<dyn Job>> {
        Err(Error::invalid("this design has no stage below its buffer"))
    }

    fn ingest_writer(&self, _: SeqNo) -> Option<Box<dyn IngestWriter>> {
        None
    }

    fn next_job(&self, _: Urgency) -> Result<Option<Box<dyn Job>>> {
        Ok(None)
    }

    fn compact_range(&self, _: &Arc<RangeRequest>) {}

    fn is_compacted(&self, _: &RangeRequest) -> bool {
        true
    }

    fn is_drained(&self) -> bool {
        true
    }

    fn is_outside_pool(&self) -> bool {
        false
    }

    fn need(&self) -> Need {
        Need::default()
    }

    fn ranges(&self) -> Option<Arc<Fragments>> {
        None
    }

    fn sources(&self) -> Sources {
        Sources::new()
    }

    fn measure(&self, _: &mut Metrics) {}
}
