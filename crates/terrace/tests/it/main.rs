//! The store's integration tests, in one binary so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, in its helpers too"
)]

mod compaction;
mod crash;
mod damage;
mod faults;
mod files;
mod golden;
mod kill;
mod linear;
mod metamorphic;
mod model;
mod persist_count;
mod refusals;
mod space;
