//! The same history through every design: all of them show the same, step by step.

use terrace_testkit::metamorphic::run;
use terrace_testkit::seeds;

/// Whatever the design and however hostile its options, users see the same at every step.
#[test]
fn every_design_shows_the_same() {
    for seed in seeds::seeds(10) {
        run(seed, 500)
            .unwrap_or_else(|failure| panic!("{failure}\nrepeat with TERRACE_SEED={seed:#x}"));
    }
}
