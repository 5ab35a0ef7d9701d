//! Shrinking: leaves operations out of a failing script for as long as it still fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::oracle::Outcome;
use crate::script::Op;

/// Runs `run` and turns a panic into a failure.
pub fn guarded<T>(run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// The shortest failing script found in at most `tries` runs, and how it fails.
pub fn shrink(
    script: &[Op],
    failure: String,
    tries: usize,
    run: &mut dyn FnMut(&[Op]) -> Outcome,
) -> (Vec<Op>, String) {
    let mut best = (script.to_vec(), failure);
    let mut left = tries;
    let mut size = best.0.len().div_ceil(2);
    // BOUND: every turn uses up a try or halves the size.
    while size > 0 && left > 0 {
        let mut at = 0;
        while at < best.0.len() && left > 0 {
            let mut shorter = best.0.clone();
            shorter.drain(at..(at + size).min(shorter.len()));
            left -= 1;
            match guarded(|| run(&shorter)) {
                Err(failure) => best = (shorter, failure),
                Ok(()) => at += size,
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    best
}

/// Runs a script; on failure shrinks it and says everything that is needed to go on.
pub fn check(
    name: &str,
    seed: u64,
    script: &[Op],
    run: &mut dyn FnMut(&[Op]) -> Outcome,
) -> Outcome {
    let Err(failure) = guarded(|| run(script)) else {
        return Ok(());
    };
    let first = failure.clone();
    let (short, failure) = shrink(script, failure, 2000, run);
    let lines: Vec<String> = short.iter().map(|op| format!("  {op:?}")).collect();
    Err(format!(
        "{name}, seed {seed:#x}: {first}\nshrunk to {} operations, which fail with: {failure}\n{}",
        short.len(),
        lines.join("\n")
    ))
}
