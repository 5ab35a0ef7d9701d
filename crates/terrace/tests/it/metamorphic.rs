//! One history on every design: all of them show the same, step by step.

use terrace_testkit::metamorphic::run;
use terrace_testkit::seeds;

/// For every design and however unfavorable its options, users see the same at every step.
#[test]
fn every_design_shows_the_same() {
    for seed in seeds::seeds(4) {
        run(seed, 500)
            .unwrap_or_else(|failure| panic!("{failure}\nrepeat with TERRACE_SEED={seed:#x}"));
    }
}
