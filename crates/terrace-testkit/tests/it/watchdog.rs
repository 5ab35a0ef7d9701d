//! The watchdog ends a process in which an operation does not return, and reports where it hangs.

use std::time::Duration;

use terrace_testkit::watchdog;

use crate::alone::myself;

/// The environment variable that makes a child of this program hang.
const VARIABLE: &str = "TERRACE_HANG";

/// The entry point of the child, not a test. Without the variable it does nothing.
#[test]
fn child() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let _case = watchdog::case("seed 0x51ab".into());
    std::thread::scope(|scope| {
        for n in 0..2u64 {
            scope.spawn(move || {
                let _operation =
                    watchdog::operation_within(Duration::from_millis(300), ("a put", n));
                std::thread::park();
            });
        }
    });
}

/// The report names the operation, the operations of every thread, and the threads of the process.
#[test]
fn an_operation_that_does_not_return_ends_the_process() {
    let ended = myself("watchdog::child")
        .env(VARIABLE, "1")
        .output()
        .expect("a child runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(watchdog::STATUS), "{said}");
    for part in [
        "has not returned in",
        "(\"a put\", 0)",
        "(\"a put\", 1)",
        "seed 0x51ab",
        "threads:",
        "stacks",
    ] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
}
