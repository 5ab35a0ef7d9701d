//! Integration tests of the store, in one binary so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, in its helpers too"
)]

mod buffer_only;
mod checkpoint;
mod compaction;
mod crash;
mod damage;
mod devices;
mod digest;
mod events;
mod expiry;
mod faults;
mod files;
mod flatlsm;
mod folder;
mod full_disk;
mod golden;
mod handles;
mod ingest;
mod inspect;
mod keyspaces;
mod kill;
mod limits;
mod linear;
mod log_ends;
mod log_syncs;
mod matrix;
mod matrix_parts;
mod media;
mod metamorphic;
mod model;
mod moments;
mod novelsm;
mod options;
mod persist_count;
mod pieces;
mod pools;
mod ranges;
mod read_only;
mod reads;
mod refusals;
mod reopen;
mod repair;
mod room;
mod space;
mod step_threads;
mod strangers;
mod values;
mod waits;
