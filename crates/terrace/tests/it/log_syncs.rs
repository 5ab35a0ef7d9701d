//! Syncs of logs that fail once, as Linux tells of them: whoever waits for that log hears of it.

use terrace_testkit::faults::once::{self, Failing};
use terrace_testkit::settings;

/// A sync of a log that fails is told to every writer that waits for that log, and none is acknowledged
/// because a later sync of the same file succeeds.
#[test]
fn a_sync_that_failed_once_has_failed_for_all() {
    for design in settings::designs_in_pool() {
        for failing in [Failing::Left, Failing::Active] {
            once::run(design, failing).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
