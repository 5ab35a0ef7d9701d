//! Children that run this test's own executable and are killed with SIGKILL.

use std::process::{Command, ExitCode};

use terrace_testkit::kill::{Victim, child_if_asked};
use terrace_testkit::seeds;
use terrace_testkit::settings::KINDS;

/// The lives of all kinds together.
const LIVES: usize = 140;

/// The entry point of the children, not a test. Without orders it does nothing.
#[test]
fn child() {
    if let Some(code) = child_if_asked() {
        std::process::exit(i32::from(code != ExitCode::SUCCESS));
    }
}

/// A child killed at any moment loses nothing that was acknowledged and shows nothing else.
#[test]
fn killed_children_lose_nothing() {
    let exe = std::env::current_exe().expect("a test has an executable");
    let command = || {
        let mut command = Command::new(&exe);
        command.args(["kill::child", "--exact", "--nocapture"]);
        command
    };
    for kind in KINDS {
        for seed in seeds::seeds(1) {
            let mut victim = Victim::new(kind, seed, &command);
            for _ in 0..LIVES / KINDS.len() {
                if let Err(failure) = victim.live_once() {
                    panic!("{}: {failure}", victim.describe());
                }
            }
            println!("{}: {:?}", victim.describe(), victim.tally);
        }
    }
}
