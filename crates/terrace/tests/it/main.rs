//! The store's integration tests, in one binary so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, in its helpers too"
)]

mod crash;
mod damage;
mod expiry;
mod faults;
mod files;
mod kill;
mod linear;
mod model;
mod persist_count;
mod ranges;
mod refusals;
mod space;
