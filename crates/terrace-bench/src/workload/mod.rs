//! The workloads: the operations of one client thread.
//!
//! Scans are timed 64 entries at a time, since a clock read for each entry would cost as much as
//! the entry; all other workloads are timed operation by operation.

mod numbers;
mod queue;
mod records;
mod replay;
#[cfg(test)]
mod tests;

use crate::config::BenchConfig;
use crate::error::BenchError;
use crate::keys::KeyMaker;
use crate::known::Known;
use crate::meter::{Meter, Pace, Tally};
use crate::records::Records;
use crate::schedule::Schedule;
use crate::step::Step;
use crate::store::{Direction, Session, Store};
use crate::values::Values;
use crate::ycsb::Workload;
use crate::ycsb::distribution::Requests;

pub(crate) use replay::Replay;

/// Entries of a scan that are timed together.
pub(crate) const SCAN_GROUP: u64 = 64;

/// One read in this many is compared byte for byte; the others by their tag.
const CHECK_EVERY: u64 = 16;

/// The state shared by all threads of one workload.
pub(crate) struct Work<'a> {
    pub(crate) config: &'a BenchConfig,
    pub(crate) store: &'a dyn Store,
    pub(crate) meter: &'a Meter,
    /// Values from which nothing was taken yet; each thread copies them.
    pub(crate) values: &'a Values,
    /// A sample of the keys that must exist.
    pub(crate) known: &'a Known,
    /// Whether this run wrote every value in the database.
    pub(crate) checks: bool,
    /// The additional state of YCSB's steps.
    pub(crate) ycsb: Option<Ycsb<'a>>,
    /// The trace to replay.
    pub(crate) replay: Option<&'a Replay>,
}

/// A workload of YCSB on its records.
#[derive(Clone, Copy)]
pub(crate) struct Ycsb<'a> {
    pub(crate) workload: &'a Workload,
    pub(crate) records: &'a Records,
    /// Requests from which none was drawn yet; each thread copies them.
    pub(crate) requests: &'a Requests,
}

impl<'a> Ycsb<'a> {
    /// Combines the parts if all are present.
    pub(crate) fn of(
        workload: Option<&'a Workload>,
        records: Option<&'a Records>,
        requests: Option<&'a Requests>,
    ) -> Option<Ycsb<'a>> {
        Some(Ycsb {
            workload: workload?,
            records: records?,
            requests: requests?,
        })
    }
}

/// The work of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    WriteInOrder,
    /// As `WriteInOrder`, in batches of db_bench's size.
    WriteBatches,
    WriteRandom,
    /// Writes every key once, in random order.
    WriteShuffled,
    /// Writes at random until the workload is stopped.
    WriteUntilStopped,
    DeleteInOrder,
    DeleteRandom,
    ReadRandom,
    ReadHot,
    /// Reads several random keys in one call.
    ReadMany,
    ReadMissing,
    ScanForward,
    ScanBackward,
    Seek,
    /// Reads a key and writes it.
    Update,
    /// Reads mixed with writes.
    Mix,
    Queue,
    /// YCSB's load phase.
    Load,
    /// YCSB's operations.
    Transact,
    /// The calls of a trace.
    Replay,
}

impl Role {
    /// Returns the role of the client threads of `step`; `None` if it is no workload.
    pub(crate) fn of(step: Step) -> Option<Role> {
        match step {
            Step::FillSeq => Some(Role::WriteInOrder),
            Step::FillBatch => Some(Role::WriteBatches),
            Step::FillRandom | Step::Overwrite => Some(Role::WriteRandom),
            Step::FillUniqueRandom => Some(Role::WriteShuffled),
            Step::ReadRandom | Step::ReadWhileWriting => Some(Role::ReadRandom),
            Step::ReadHot => Some(Role::ReadHot),
            Step::MultiReadRandom => Some(Role::ReadMany),
            Step::ReadMissing => Some(Role::ReadMissing),
            Step::ReadSeq => Some(Role::ScanForward),
            Step::ReadReverse => Some(Role::ScanBackward),
            Step::SeekRandom | Step::SeekRandomWhileWriting => Some(Role::Seek),
            Step::UpdateRandom => Some(Role::Update),
            Step::ReadRandomWriteRandom => Some(Role::Mix),
            Step::DeleteSeq => Some(Role::DeleteInOrder),
            Step::DeleteRandom => Some(Role::DeleteRandom),
            Step::Queue => Some(Role::Queue),
            Step::YcsbLoad => Some(Role::Load),
            Step::YcsbA
            | Step::YcsbB
            | Step::YcsbC
            | Step::YcsbD
            | Step::YcsbE
            | Step::YcsbF
            | Step::YcsbRun
            | Step::Churn => Some(Role::Transact),
            Step::Replay => Some(Role::Replay),
            Step::KillReopen | Step::Drain | Step::Flush | Step::Wait => None,
        }
    }

    /// Returns the operations of one thread; for roles whose threads share them, see
    /// [`Work::total_ops`].
    fn ops(self, config: &BenchConfig) -> u64 {
        match self {
            Role::WriteInOrder
            | Role::WriteBatches
            | Role::WriteRandom
            | Role::WriteShuffled
            | Role::DeleteInOrder
            | Role::DeleteRandom => config.num,
            Role::WriteUntilStopped => u64::MAX,
            Role::Queue => config.num.saturating_mul(queue::OPS_OF_A_KEY),
            Role::ReadRandom
            | Role::ReadHot
            | Role::ReadMany
            | Role::ReadMissing
            | Role::Seek
            | Role::Update
            | Role::Mix
            | Role::ScanForward
            | Role::ScanBackward => config.reads(),
            Role::Load | Role::Transact | Role::Replay => 0,
        }
    }

    /// Returns whether its operations report whether they found something.
    pub(crate) fn finds(self) -> bool {
        matches!(
            self,
            Role::ReadRandom
                | Role::ReadHot
                | Role::ReadMany
                | Role::ReadMissing
                | Role::Seek
                | Role::Update
                | Role::Mix
        )
    }
}

impl Work<'_> {
    /// Returns the operations of all client threads that do `role`.
    pub(crate) fn total_ops(&self, role: Role) -> u64 {
        match (role, &self.ycsb) {
            (Role::Load, Some(ycsb)) => ycsb.workload.loaded,
            (Role::Transact, Some(ycsb)) => ycsb.workload.ops,
            (Role::Replay, _) => self.replay.map_or(0, |replay| replay.trace.calls()),
            _ => role
                .ops(self.config)
                .saturating_mul(self.config.threads as u64),
        }
    }

    /// Returns the schedule of worker number `thread` in an open loop; `None` in a closed one.
    fn schedule(&self, role: Role, thread: usize, seed: u64) -> Option<Schedule> {
        let config = self.config;
        let (rate, thread, threads) = match role {
            Role::WriteUntilStopped => (config.writer_rate?, 0, 1),
            _ => (config.rate?, thread, config.threads),
        };
        let arrivals = config.arrivals;
        Some(Schedule::new(rate, arrivals, thread, threads, seed))
    }
}

/// One client thread.
struct Client<'a> {
    work: &'a Work<'a>,
    /// Its number among the workers.
    thread: usize,
    session: Box<dyn Session + 'a>,
    keys: KeyMaker,
    values: Values,
    rng: fastrand::Rng,
}

/// Does the work of `role` as worker number `thread`, after `start`.
pub(crate) fn run(
    work: &Work<'_>,
    role: Role,
    thread: usize,
    seed: u64,
    start: &std::sync::Barrier,
) -> Result<Tally, BenchError> {
    let session = work.store.session();
    let (keys, values) = (KeyMaker::new(work.config.key_bytes), work.values.clone());
    let rng = fastrand::Rng::with_seed(seed);
    start.wait();
    // From here on, the meter learns of the end of this worker on every path.
    let mut pace = Pace::new(work.meter, thread);
    if let Some(schedule) = work.schedule(role, thread, seed) {
        pace.follow(schedule);
    }
    let done = session.and_then(|session| {
        let mut client = Client {
            work,
            thread,
            session,
            keys,
            values,
            rng,
        };
        match role {
            Role::WriteInOrder
            | Role::WriteBatches
            | Role::WriteRandom
            | Role::WriteShuffled
            | Role::WriteUntilStopped
            | Role::DeleteInOrder
            | Role::DeleteRandom => client.write(role, &mut pace),
            Role::ReadRandom => client.read(work.config.num, &mut pace),
            Role::ReadHot => client.read(work.config.num.div_ceil(100), &mut pace),
            Role::ReadMany => client.read_many(&mut pace),
            Role::ReadMissing => client.read_missing(&mut pace),
            Role::ScanForward => client.scan(&mut pace, Direction::Forward),
            Role::ScanBackward => client.scan(&mut pace, Direction::Backward),
            Role::Seek => client.seek(&mut pace),
            Role::Update => client.update(&mut pace),
            Role::Mix => client.mix(&mut pace),
            Role::Queue => client.queue(&mut pace),
            Role::Load => records::load(&mut client, &mut pace),
            Role::Transact => records::transact(&mut client, &mut pace),
            Role::Replay => client.replay(&mut pace),
        }
    });
    if done.is_err() {
        work.meter.stop();
    }
    done.map(|()| pace.end())
}
