//! Shrinking: removes operations from a failing script, and members from the remaining operations,
//! while it still fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::oracle::Outcome;
use crate::script::Op;
use crate::value::Value;
use crate::{panics, watchdog};

/// Runs `run` and turns a panic into a failure, including a panic of one of the store's threads.
pub fn guarded<T>(run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    panics::watch();
    let outcome = catch_unwind(AssertUnwindSafe(run));
    if let Some(panic) = panics::take() {
        return Err(format!("a thread of the store panics: {panic}"));
    }
    match outcome {
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

/// The length of shrunk values, enough to identify the write that made them.
const VALUE_BYTES: u32 = 8;

/// A failing script that is being shrunk, and its failure.
struct Shrinking<'a> {
    script: Vec<Op>,
    failure: String,
    /// The number of remaining tries.
    left: usize,
    run: &'a mut dyn FnMut(&[Op]) -> Outcome,
}

impl Shrinking<'_> {
    /// Replaces the current script with `script` if that fails too.
    fn try_instead(&mut self, script: Vec<Op>) -> bool {
        self.left = self.left.saturating_sub(1);
        let outcome = guarded(|| (self.run)(&script));
        if let Err(failure) = outcome {
            (self.script, self.failure) = (script, failure);
            return true;
        }
        false
    }

    /// Removes pieces of a list in the script, large ones first, single members last. `with` puts
    /// the remaining `list` into the script.
    fn leave_out<T: Clone>(&mut self, mut list: Vec<T>, with: impl Fn(&[Op], Vec<T>) -> Vec<Op>) {
        let mut size = list.len().div_ceil(2);
        // BOUND: every iteration uses a try or halves the size.
        while size > 0 && self.left > 0 {
            let mut at = 0;
            while at < list.len() && self.left > 0 {
                let mut shorter = list.clone();
                shorter.drain(at..(at + size).min(shorter.len()));
                let script = with(&self.script, shorter.clone());
                match self.try_instead(script) {
                    true => list = shorter,
                    false => at += size,
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }

    /// Shrinks the operation at `at`: fewer members, then shorter values.
    fn shrink_operation(&mut self, at: usize) {
        let replaced = |script: &[Op], op: Op| {
            let mut script = script.to_vec();
            script[at] = op;
            script
        };
        match self.script[at].clone() {
            Op::Write(entries, durability) if entries.len() > 1 => {
                self.leave_out(entries, |script, entries| {
                    replaced(script, Op::Write(entries, durability))
                });
            }
            Op::Ingest(space, pairs) if pairs.len() > 1 => {
                self.leave_out(pairs, |script, pairs| {
                    replaced(script, Op::Ingest(space, pairs))
                });
            }
            Op::MultiGet(space, keys) if keys.len() > 1 => {
                self.leave_out(keys, |script, keys| {
                    replaced(script, Op::MultiGet(space, keys))
                });
            }
            _ => {}
        }
        let mut shorter = self.script[at].clone();
        let is_shorter = match &mut shorter {
            Op::Write(entries, _) => {
                let values = entries.iter_mut().filter_map(|entry| entry.value.as_mut());
                shorten(values)
            }
            Op::Ingest(_, pairs) => shorten(pairs.iter_mut().map(|(_, value)| value)),
            _ => false,
        };
        if is_shorter && self.left > 0 {
            self.try_instead(replaced(&self.script, shorter));
        }
    }
}

/// Shortens values to what identifies them. Returns false if all were short already.
fn shorten<'a>(values: impl Iterator<Item = &'a mut Value>) -> bool {
    let mut any = false;
    for value in values.filter(|value| value.len > VALUE_BYTES) {
        value.len = VALUE_BYTES;
        any = true;
    }
    any
}

/// Returns the smallest failing script found in at most `tries` runs, and its failure. Fewer
/// operations count more than smaller ones.
pub fn shrink(
    script: &[Op],
    failure: String,
    tries: usize,
    run: &mut dyn FnMut(&[Op]) -> Outcome,
) -> (Vec<Op>, String) {
    let mut shrinking = Shrinking {
        script: script.to_vec(),
        failure,
        left: tries,
        run,
    };
    // BOUND: every iteration but the last shrinks the script or uses up the tries.
    loop {
        let before = shrinking.script.clone();
        shrinking.leave_out(before.clone(), |_, script| script);
        for at in 0..shrinking.script.len() {
            if shrinking.left > 0 {
                shrinking.shrink_operation(at);
            }
        }
        if shrinking.left == 0 || shrinking.script == before {
            return (shrinking.script, shrinking.failure);
        }
    }
}

/// Runs a script. On failure shrinks it and reports everything needed to reproduce the failure.
pub fn check(
    name: &str,
    seed: u64,
    script: &[Op],
    run: &mut dyn FnMut(&[Op]) -> Outcome,
) -> Outcome {
    let _case = watchdog::case(format!("{name}, seed {seed:#x}"));
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

#[cfg(test)]
mod tests {
    use terrace::Durability;

    use super::*;
    use crate::script::{Entry, Key};

    fn entry(tag: u64) -> Entry {
        Entry {
            space: 0,
            key: Key(tag.to_be_bytes().to_vec()),
            value: Some(Value { tag, len: 5000 }),
            until: None,
            ttl: None,
        }
    }

    /// Of a long script that fails because of one entry and a later operation, only these remain,
    /// and a value whose length matters keeps it.
    #[test]
    fn only_what_fails_is_left() {
        for needs in [1, 600] {
            let mut script: Vec<Op> = (0..300)
                .map(|n| match n % 3 {
                    0 => Op::Flush,
                    1 => Op::Write((n * 10..n * 10 + 9).map(entry).collect(), Durability::Sync),
                    _ => Op::MultiGet(0, vec![Key(vec![n as u8]); 5]),
                })
                .collect();
            script.push(Op::Drain);
            let mut run = |script: &[Op]| {
                let at = script.iter().position(|op| match op {
                    Op::Write(entries, _) => entries.iter().any(|entry| {
                        let value = entry.value.expect("all have one");
                        value.tag == 2505 && value.len >= needs
                    }),
                    _ => false,
                });
                match at {
                    Some(at) if script[at..].contains(&Op::Drain) => Err("lost".to_owned()),
                    _ => Ok(()),
                }
            };
            let (short, failure) = shrink(&script, "lost".to_owned(), 2000, &mut run);
            let mut blamed = entry(2505);
            blamed.value = Some(Value {
                tag: 2505,
                len: if needs == 1 { VALUE_BYTES } else { 5000 },
            });
            let wanted = [Op::Write(vec![blamed], Durability::Sync), Op::Drain];
            assert_eq!(short, wanted);
            assert_eq!(failure, "lost");
        }
    }
}
