//! Every bug built into the store is caught by the suites named for it, and the same cases pass on
//! a correct store. They run in processes of their own, since a bug is set for the whole process.

use std::process::ExitCode;

use terrace_testkit::canaries::{Choice, Places, campaign};
use terrace_testkit::kill::child_if_asked;

use crate::alone::myself;

/// The environment variable that gives a process its part of the suites.
const VARIABLE: &str = "TERRACE_CANARIES_PART";

/// The number of processes that share the suites.
const PARTS: usize = 2;

/// The entry point of the children, not a test. Without orders it does nothing.
#[test]
fn child() {
    if let Some(code) = child_if_asked() {
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
}

/// The entry point of a part, not a test. Without the variable it does nothing.
#[test]
fn part() {
    let Ok(part) = std::env::var(VARIABLE) else {
        return;
    };
    let command = || {
        let mut command = myself("canaries::child");
        command.env_remove(VARIABLE);
        command
    };
    let places = Places {
        child: &command,
        // Virtual machines run the program of the campaigns, which this is not.
        machines: None,
    };
    let choice = Choice {
        // `.ci/run` runs the others.
        slow: Some(false),
        part: Some((part.parse().expect("a number"), PARTS)),
        ..Choice::default()
    };
    campaign(choice, places).unwrap_or_else(|failure| panic!("{failure}"));
}

/// No bug of the store goes unseen.
#[test]
fn every_canary_is_caught() {
    let start = |part: usize| {
        let mut command = myself("canaries::part");
        command.env(VARIABLE, part.to_string());
        std::thread::spawn(move || command.output().expect("a part runs"))
    };
    let parts: Vec<_> = (0..PARTS).map(start).collect();
    for part in parts {
        let ended = part.join().expect("a part is awaited");
        let said = String::from_utf8_lossy(&ended.stdout);
        println!("{said}");
        let failed = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{said}\n{failed}");
        assert!(said.contains("1 passed"), "{said}");
    }
}
