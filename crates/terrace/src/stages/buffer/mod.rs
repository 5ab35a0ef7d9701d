//! Buffer contract: the stage of sorted tables in the pool between a front and a bottom.
//!
//! | buffer | tables | merging | paper |
//! |---|---|---|---|
//! | `elastic` | skip lists on n levels, any number a level | relinks nodes, copies nothing | MioDB, 4.2-4.3 |

pub(crate) mod elastic;

use crate::error::Result;
use crate::metrics::Metrics;

use super::drain::Drain;
use super::job::Job;
use super::need::Urgency;
use super::sealed::SealedTable;
use super::source::Sources;

/// Stage 2: sorted tables in the pool.
pub(crate) trait Buffer: Send + Sync {
    /// Takes a sealed memtable.
    fn admit(&self, sealed: SealedTable) -> Result<Box<dyn Job>>;
    /// Work inside the buffer: merges.
    fn next_job(&self) -> Result<Option<Box<dyn Job>>>;
    /// Takes the oldest table that is due for the bottom, and those that follow it by age and are due too, up to
    /// `bytes_max` together. With `durable`, the bottom is durable, so logs go when it has their entries.
    fn next_drain(&self, urgency: Urgency, bytes_max: u64, durable: bool) -> Result<Option<Drain>>;
    /// Newest first.
    fn sources(&self) -> Sources;
    /// How many tables there are.
    fn table_count(&self) -> usize;
    /// Bytes of their nodes, superseded ones included.
    fn table_bytes(&self) -> u64;
    /// Adds what the buffer knows.
    fn measure(&self, metrics: &mut Metrics);
}
