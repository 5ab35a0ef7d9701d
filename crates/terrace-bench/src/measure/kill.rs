//! The phase `killreopen`: the time that a store takes to recover after SIGKILL, and whether all of
//! its acknowledged writes survived.
//!
//! A second process of this program, the victim, fills a fresh database with every number once, in
//! an unsorted order, and reports when it is done. It is killed at that moment, with its background
//! work in progress. This process opens the database, which is the time of the recovery, and
//! compares every key byte for byte.
//!
//! For that, a pool is opened without pre-faulting, as users open one, and again with the
//! configured options for the phases that follow. Files are in the page cache: the work of the
//! store is timed, not the disk.
//!
//! Invariants
//!   R1  The victim acknowledges by writing a line to its standard output, which it does not
//!       buffer.
//!   R2  It ends when the process that started it is gone.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::config::BenchConfig;
use crate::error::{BenchError, Found};
use crate::keys::KeyMaker;
use crate::known::Known;
use crate::store::Setup;
use crate::values::Values;

/// The line that the victim prints once all of its writes are acknowledged.
const ACKNOWLEDGED: &str = "acknowledged";

/// The recovery of a killed store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// Seconds until the killed store was open again.
    pub open_s: f64,
    /// Acknowledged writes, all of which were found, byte for byte.
    pub verified: u64,
    /// Seconds that reading all of them took.
    pub verify_s: f64,
}

/// Returns the order in which the victim writes: every number below `num` once, neighbours far
/// apart.
fn scattered(num: u64) -> impl Iterator<Item = u64> {
    fn gcd(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    // Near the golden ratio of the range and coprime to it, so every number occurs once.
    let mut step = ((num as f64 * 0.618_034) as u64).max(1);
    while gcd(step, num) != 1 {
        step += 1;
    }
    (0..num).scan(0u64, move |at, _| {
        let number = *at;
        *at = (*at + step % num) % num;
        Some(number)
    })
}

/// Runs the victim: fills the database in `folder`, reports it, and waits to be killed.
///
/// Fails if the store does; then it acknowledges nothing.
pub fn victim(config: &BenchConfig, folder: &Path) -> Result<(), BenchError> {
    let options = config.store_options();
    options.validate()?;
    let store = config.store.open(&Setup {
        folder,
        existing: false,
        options: &config.options_in(folder, &options)?,
        data_bytes: config.data_bytes(),
    })?;
    let mut session = store.session()?;
    let mut keys = KeyMaker::new(config.key_bytes);
    let mut values = Values::mixed(config.value_bytes_min(), config.value_bytes, config.seed);
    for number in scattered(config.num) {
        session.put(keys.key(number), values.value(number))?;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{ACKNOWLEDGED}")
        .and_then(|()| out.flush())
        .map_err(BenchError::Output)?;
    // Nothing is written to this pipe: the read returns when the process at the other end exits.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

/// Starts a victim, and kills it when it has acknowledged everything.
pub(crate) fn kill_a_victim(config: &BenchConfig, folder: &Path) -> Result<(), BenchError> {
    let failed = |what: &str, e| BenchError::Io {
        what: format!("{what} the process that killreopen kills"),
        source: e,
    };
    let program = std::env::current_exe().map_err(|e| failed("find", e))?;
    let mut child = Command::new(program)
        .args(config.victim_args.iter().flatten())
        .arg("--victim")
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed("start", e))?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out)
            .read_line(&mut said)
            .map_err(|e| failed("listen to", e))?;
    }
    // SIGKILL, with background work in progress.
    child.kill().map_err(|e| failed("kill", e))?;
    let evidence = last_words(&mut child);
    child.wait().map_err(|e| failed("wait for", e))?;
    if said.trim() == ACKNOWLEDGED {
        return Ok(());
    }
    Err(BenchError::Victim(format!(
        "the process that killreopen kills failed before that: {evidence}"
    )))
}

fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(err) = child.stderr.take() {
        // If the read fails, the message is empty.
        let _ = err.take(1 << 16).read_to_string(&mut text);
    }
    match text.trim() {
        "" => "it printed nothing".to_string(),
        text => text.to_string(),
    }
}

/// Checks every acknowledged key and records it in `known`; returns their number and the seconds
/// taken.
pub(crate) fn verify(
    config: &BenchConfig,
    store: &dyn crate::store::Store,
    known: &Known,
) -> Result<(u64, f64), BenchError> {
    let begun = Instant::now();
    let mut session = store.session()?;
    let mut keys = KeyMaker::new(config.key_bytes);
    let mut values = Values::mixed(config.value_bytes_min(), config.value_bytes, config.seed);
    for number in 0..config.num {
        let mut wrong = None;
        let key = keys.key(number);
        let found = session.get(key, &mut |value| {
            if !values.is_value(number, value) {
                wrong = Some([values.expected(number, value), value].map(Found::of));
            }
        })?;
        if let Some([expected, found]) = wrong {
            return Err(BenchError::wrong(key, &expected, &found));
        }
        if !found {
            let expected = Found::of(values.expected(number, &[]));
            return Err(BenchError::lost(key, &expected));
        }
        known.put(number);
    }
    Ok((config.num, begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number occurs once for every range, and few occur in order.
    #[test]
    fn every_number_comes_once() {
        for num in [1, 2, 3, 10, 16, 1000, 4096, 10_007] {
            let order: Vec<u64> = scattered(num).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..num), "{num}");
            let in_order = order.windows(2).filter(|w| w[0] + 1 == w[1]).count();
            assert!(in_order as u64 <= num / 2 + 1, "{num}: {in_order}");
        }
    }

    /// A store that lost or changed an acknowledged write is detected, with key and evidence.
    #[test]
    fn what_is_missing_after_a_kill_is_found() {
        use crate::store::Store;
        use crate::store::liar::{Liar, Lie};
        let config = BenchConfig {
            num: 100,
            value_bytes: 50,
            ..BenchConfig::default()
        };
        for (lie, said) in [
            (Lie::None, None),
            (Lie::Lose, Some("lost an acknowledged write")),
            (Lie::Change, Some("wrong value")),
        ] {
            let store = Liar {
                lie,
                key: KeyMaker::new(config.key_bytes).key(48).to_vec(),
                entries: std::sync::Mutex::default(),
            };
            let mut keys = KeyMaker::new(config.key_bytes);
            let mut values =
                Values::mixed(config.value_bytes_min(), config.value_bytes, config.seed);
            for number in scattered(config.num) {
                let mut session = store.session().expect("a session");
                session
                    .put(keys.key(number), values.value(number))
                    .expect("a put");
            }
            let known = Known::none_of(config.num);
            match (verify(&config, &store, &known), said) {
                (Ok((verified, _)), None) => assert_eq!(verified, 100),
                (Err(problem), Some(said)) => {
                    let problem = problem.to_string();
                    assert!(problem.contains(said), "{problem}");
                    assert!(problem.contains("0000000000000048"), "{problem}");
                }
                (result, said) => panic!("{result:?} where {said:?} was due"),
            }
        }
    }
}
