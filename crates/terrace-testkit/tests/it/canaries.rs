//! Every bug built into the store is caught by the suites named for it, and the same cases pass on
//! a correct store.

use std::process::{Command, ExitCode};

use terrace_testkit::canaries::{Choice, Places, campaign};
use terrace_testkit::kill::child_if_asked;

/// The entry point of the children, not a test. Without orders it does nothing.
#[test]
fn child() {
    if let Some(code) = child_if_asked() {
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
}

/// No bug of the store goes unseen.
#[test]
fn every_canary_is_caught() {
    let exe = std::env::current_exe().expect("a test has an executable");
    let command = || {
        let mut command = Command::new(&exe);
        command.args(["child", "--exact", "--nocapture"]);
        command
    };
    let places = Places {
        child: &command,
        // Virtual machines run the program of the campaigns, which this is not.
        machines: None,
    };
    campaign(Choice::default(), places).unwrap_or_else(|failure| panic!("{failure}"));
}
