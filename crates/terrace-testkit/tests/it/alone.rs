//! Tests of what a whole process has in common, such as its memory, its threads and its panics:
//! each runs in a process of its own.

use std::process::Command;

/// The environment variable that names the test that a process is for.
const VARIABLE: &str = "TERRACE_ALONE";

/// Returns a command that runs only `test` of this program, with its name as `module::test`.
pub(crate) fn myself(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command
        .args([test, "--exact", "--nocapture"])
        .env_remove(VARIABLE);
    command
}

/// Runs the body of `test` in another process, and fails as it does. The name is checked: a process
/// that runs no test has not passed.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(VARIABLE).is_some_and(|name| name == test) {
        return body();
    }
    let mut command = myself(test);
    let ended = command.env(VARIABLE, test).output().expect("a child runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    let failed = String::from_utf8_lossy(&ended.stderr);
    println!("{said}");
    assert!(ended.status.success(), "{said}\n{failed}");
    assert!(said.contains("1 passed"), "{said}");
}
