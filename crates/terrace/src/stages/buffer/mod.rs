//! Buffer contract: the stage of sorted tables in the pool between a front and a bottom.
//!
//! | buffer | tables | merging | paper |
//! |---|---|---|---|
//! | `elastic` | skip lists on n levels, any number in a level | relinks nodes, copies nothing | MioDB, 4.1-4.3, 4.5, 4.6 |
//! | `matrix` | rows with arrays | none; drains in columns of keys | MatrixKV, 3 |
//! | `tables` | sealed memtables over their logs | none, but logs of mostly garbage are rewritten; all that are due drain together | FlatLSM, 4.2.2, 4.3 |

pub(crate) mod elastic;
pub(crate) mod matrix;
pub(crate) mod tables;

use crate::error::Result;
use crate::metrics::Metrics;
use crate::parts::batch::Batch;
use crate::types::SeqNo;

use super::column::Columns;
use super::drain::Drain;
use super::job::Job;
use super::need::Urgency;
use super::sealed::Sealed;
use super::source::Sources;

/// The tables of a buffer that limits their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TablesMax {
    /// The bytes of memtables and tables from which writers are slowed, and at which they stop.
    pub(crate) slow_bytes: u64,
    pub(crate) stop_bytes: u64,
    /// The maximum number of both together.
    pub(crate) count: usize,
}

/// Stage 2: sorted tables in the pool.
pub(crate) trait Buffer: Send + Sync {
    /// Returns whether its drains take ranges of keys, which only some bottoms accept. Never
    /// changes.
    fn drains_ranges(&self) -> bool {
        false
    }
    /// Takes a sealed memtable. If the job finds no space in the pool, it waits (`Step::Wait`). Its
    /// edit names the table. If the pool outlives the process, the edit also has `LastSeq`,
    /// `NextId`, and the retirement of `sealed.logs`; otherwise the table keeps these logs, and
    /// `LastSeq` is in the edit of its drain.
    fn flush_job(&self, sealed: Sealed) -> Result<Box<dyn Job>>;
    /// Returns the bytes of the pool that the flush of a memtable takes, beyond the extent that the
    /// memtable has from the start.
    fn flush_bytes(&self) -> u64 {
        0
    }
    /// Returns the limits of its tables; `None` if only the space of the pool limits them.
    fn tables_max(&self) -> Option<TablesMax> {
        None
    }
    /// Makes a table of the entries of `batch`, whose keys ascend, all with the number `seq`. No
    /// log has them, and they become visible when the completion of the job is applied. The space
    /// is allocated here: the steps of this job cannot wait for any.
    fn build(&self, batch: &Batch, seq: SeqNo) -> Result<Box<dyn Job>>;
    /// Returns work inside the buffer: merges, whose jobs are of the kind `Merge`.
    fn next_job(&self, urgency: Urgency) -> Result<Option<Box<dyn Job>>>;
    /// Takes the oldest table that is due for the bottom, and those that follow it by age and are
    /// due too, up to `bytes_max` together; at least one table, even if `bytes_max` is 0. Above
    /// `Urgency::None` every table is due; else the buffer decides. `None` while a drain of older
    /// tables runs, or of other keys of the same tables, since drains end in order.
    ///
    /// A buffer that drains ranges may take a range of the keys of these tables, and the other keys
    /// in later drains. Older views go on reading all of their entries, and a new view may lack the
    /// drained keys only if the bottom shows them. If the pool ends with the process, their logs
    /// stay until the last of them ends. `columns` chooses these ranges, if the bottom merges
    /// drains with its first level.
    fn next_drain(
        &self,
        urgency: Urgency,
        bytes_max: u64,
        columns: Option<&dyn Columns>,
    ) -> Result<Option<Drain>>;
    /// Returns the sources, newest first.
    fn sources(&self) -> Sources;
    /// Returns the number of its newest entry, or 0 if it has none.
    fn newest(&self) -> SeqNo;
    /// Returns the number of tables.
    fn table_count(&self) -> usize;
    /// Returns the bytes of their entries, superseded ones included.
    fn table_bytes(&self) -> u64;
    /// Returns the bytes of the largest table, or of the table that a merge is about to make, if
    /// that is larger: a drain takes whole tables, so a bottom in the pool needs as much free
    /// space. 0 if no table is ever larger than `Options::table_bytes_max`.
    fn table_bytes_largest(&self) -> u64 {
        0
    }
    /// Adds the metrics of the buffer.
    fn measure(&self, metrics: &mut Metrics);
}
