//! Syncs of logs that fail once, as reported by Linux: every writer that waits for the log gets the
//! error.

use terrace_testkit::faults::once::{self, Failing};
use terrace_testkit::settings;

/// A failed sync of a log fails every writer that waits for that log, and no writer is acknowledged
/// because a later sync of the same file succeeds.
#[test]
fn a_sync_that_failed_once_has_failed_for_all() {
    for design in settings::designs_in_pool() {
        for failing in [Failing::Left, Failing::Active] {
            once::run(design, failing).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
