//! Tests of the drivers, and short runs of them, in one binary so that it links once.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at the first surprise, in its helpers too"
)]

mod alone;
mod canaries;
mod fuzz;
mod moments;
mod panics;
mod soak;
mod stalled;
mod watchdog;

use terrace_testkit::heap::Counting;

/// Counts memory, since decoding is limited in memory.
#[global_allocator]
static HEAP: Counting = Counting;
