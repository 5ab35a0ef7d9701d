//! This file is the workloads: what one client thread does between its first and last operation.
//!
//! Scans are timed 64 entries at a time, since a clock read for each entry would cost as much as
//! the entry; all other workloads are timed operation by operation.

mod numbers;

use crate::config::{BenchConfig, Step};
use crate::error::BenchError;
use crate::keys::KeyMaker;
use crate::known::Known;
use crate::meter::{Meter, Pace, Tally};
use crate::store::{Direction, Session, Store};
use crate::values::Values;

/// Entries of a scan that are timed together.
pub(crate) const SCAN_GROUP: u64 = 64;

/// One read in this many is compared byte for byte; the others by their tag.
const CHECK_EVERY: u64 = 16;

/// What all threads of one workload share.
pub(crate) struct Work<'a> {
    pub(crate) config: &'a BenchConfig,
    pub(crate) store: &'a dyn Store,
    pub(crate) meter: &'a Meter,
    /// Values with nothing read from them yet; each thread copies them.
    pub(crate) values: &'a Values,
    /// A sample of the keys that must be there.
    pub(crate) known: &'a Known,
    /// Whether every value in the database was written by this run.
    pub(crate) checks: bool,
}

/// What one thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    WriteInOrder,
    WriteRandom,
    /// Writes at random until somebody stops the workload.
    WriteUntilStopped,
    DeleteRandom,
    ReadRandom,
    ReadMissing,
    ScanForward,
    ScanBackward,
    Seek,
}

impl Role {
    /// What the client threads of `step` do; `None` where it is no workload.
    pub(crate) fn of(step: Step) -> Option<Role> {
        match step {
            Step::FillSeq => Some(Role::WriteInOrder),
            Step::FillRandom | Step::Overwrite => Some(Role::WriteRandom),
            Step::ReadRandom | Step::ReadWhileWriting => Some(Role::ReadRandom),
            Step::ReadMissing => Some(Role::ReadMissing),
            Step::ReadSeq => Some(Role::ScanForward),
            Step::ReadReverse => Some(Role::ScanBackward),
            Step::SeekRandom => Some(Role::Seek),
            Step::DeleteRandom => Some(Role::DeleteRandom),
            Step::Drain | Step::Flush | Step::Wait => None,
        }
    }

    /// How many operations it does.
    pub(crate) fn ops(self, config: &BenchConfig) -> u64 {
        match self {
            Role::WriteInOrder | Role::WriteRandom | Role::DeleteRandom => config.num,
            Role::WriteUntilStopped => u64::MAX,
            Role::ReadRandom | Role::ReadMissing | Role::Seek => config.reads(),
            Role::ScanForward | Role::ScanBackward => config.reads(),
        }
    }
}

/// One client thread.
struct Client<'a> {
    work: &'a Work<'a>,
    session: Box<dyn Session + 'a>,
    keys: KeyMaker,
    values: Values,
    rng: fastrand::Rng,
}

/// Does what `role` says as worker number `thread`, once `start` lets it.
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
    // From here on the meter knows that this worker ends, however it does.
    let mut pace = Pace::new(work.meter, thread);
    let done = session.and_then(|session| {
        let mut client = Client {
            work,
            session,
            keys,
            values,
            rng,
        };
        match role {
            Role::WriteInOrder
            | Role::WriteRandom
            | Role::WriteUntilStopped
            | Role::DeleteRandom => client.write(role, &mut pace),
            Role::ReadRandom => client.read(&mut pace),
            Role::ReadMissing => client.read_missing(&mut pace),
            Role::ScanForward => client.scan(&mut pace, Direction::Forward),
            Role::ScanBackward => client.scan(&mut pace, Direction::Backward),
            Role::Seek => client.seek(&mut pace),
        }
    });
    if done.is_err() {
        work.meter.stop();
    }
    done.map(|()| pace.end())
}
