//! Stages: the contracts that a design is composed of, and the hand-overs between them.
//!
//! A *front* makes a write durable and readable; a *buffer* holds sorted tables and merges them; a
//! *bottom* holds cold data. Data moves down by two hand-overs: flush (front to buffer) and drain
//! (buffer to bottom).
//!
//! ```text
//!   Front   ----- Sealed ----->  Buffer  --- Drain --->  Bottom   hand-overs
//!     |                             |                       |
//!     +---------- Job ------------- + --------- Job --------+    steps in the background
//!     |                             |                       |
//!     +-------- Sources ----------- + ------- Sources ------+    a view, newest first
//! ```
//!
//! Each hand-over is a job of the receiver. It ends in one manifest edit, and only then do the
//! stages *apply* the change to the state that readers see: the receiver first, the giver second,
//! so that a view built from the newest source to the oldest at any moment misses nothing.
//!
//! The read rule: for one key, every version in an older source is older than every version in a
//! newer source, so the first source that has the key wins.
//!
//! | file | contract |
//! |---|---|
//! | `front/mod.rs`, `buffer/mod.rs`, `bottom/mod.rs` | the three stages; implementations are in their directories |
//! | `source.rs` | sources, which readers search |
//! | `job.rs` | background work in steps, and its end |
//! | `sealed.rs`, `drain.rs` | the two hand-overs |
//! | `column.rs` | the choice of the next range of keys to drain |
//! | `spare.rs`, `replay.rs` | optional services of a front: memtables made ahead of need, replay of logs |
//! | `survival.rs` | the part of a database that outlives the process, which decides when a log goes |
//! | `need.rs` | how urgently space is needed, and how near a stage is to stopping writers |
//! | `shared.rs`, `file_names.rs` | state shared by all stages: pool, manifest, numbers, time; files in the database's directory |
//!
//! The engine knows these contracts and no stage; a stage knows its neighbours' contracts and no
//! other stage; only `designs/` names stages together. A new stage is a directory next to the
//! existing ones and a row in a design.

pub(crate) mod bottom;
pub(crate) mod buffer;
mod column;
mod drain;
pub(crate) mod file_names;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod front;
mod job;
mod need;
mod replay;
pub(crate) mod salvage;
mod sealed;
mod shared;
mod source;
mod spare;
mod survival;

pub(crate) use crate::metrics::{JobCounter, JobKind};
pub(crate) use bottom::{Bottom, IngestWriter, RangeRequest, Takes};
pub(crate) use buffer::{Buffer, TablesMax};
pub(crate) use column::{Columns, Rows};
pub(crate) use drain::{Drain, DrainParts, EntryCount, NewerVersions, PendingFree};
pub(crate) use front::{Deletes, Front, FrontShape, Pending, Rotated, WritersHeld, Written};
pub(crate) use job::{Built, Completion, Garbage, Job, Step};
pub(crate) use need::{Need, Pressure, Urgency};
pub(crate) use replay::{
    Replay, ReplaySealed, ReplaySize, ReplayStart, ReplayTask, Replayed, ReplayedLog,
};
pub(crate) use sealed::{
    ApartBytes, Form, ListImage, Readers, RewriteApart, SealApart, Sealed, retired,
};
pub(crate) use shared::{Folder, Shared};
pub(crate) use source::{
    Census, ListReads, Lookup, NamedFile, Prediction, Probe, Read, ReadStats, Source, Sources,
    read_each,
};
pub(crate) use spare::{Spare, SpareBytes, SpareSize, Spares};
pub(crate) use survival::Survival;
