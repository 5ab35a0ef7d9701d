//! Writers and readers on threads, during merges and drains: the results are linearizable, and each
//! of them shows what holds at any instant.

use terrace_testkit::linear::Run;
use terrace_testkit::place::scratch;
use terrace_testkit::seeds;
use terrace_testkit::settings::KINDS;

/// All results of four writers and four readers are linearizable; batches are seen whole, scans
/// neither miss nor repeat a key, sums are constant, permanent keys are always found, and drops of
/// keyspaces are atomic.
#[test]
fn concurrent_answers_are_explained_by_an_order() {
    for (seed, (medium, design)) in seeds::in_turns(13, &KINDS) {
        let run = Run {
            seed,
            medium,
            design,
            writers: 4,
            readers: 4,
            writes: 300,
            spread: if seed % 2 == 0 { 1 } else { 40 },
        };
        let folder = scratch().expect("a directory");
        match run.run(folder.path()) {
            Ok(tally) => println!("{design} on {medium}, seed {seed}: {tally:?}"),
            Err(failure) => panic!("{design} on {medium}, seed {seed}: {failure}"),
        }
    }
}
