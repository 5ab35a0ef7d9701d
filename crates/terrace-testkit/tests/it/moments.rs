//! Reads during which writes are made and time passes: each shows the state of one instant.

use terrace_media::Medium;
use terrace_testkit::{moments, seeds};

/// Each read shows the state of one instant, for every way to read and every design, while the
/// clock jumps and background steps run.
#[test]
fn a_read_shows_the_state_of_one_instant() {
    for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
        for seed in seeds::seeds(40) {
            moments::once(seed, medium).unwrap_or_else(|failure| {
                panic!("{medium}: {failure}\nrepeat with TERRACE_SEED={seed:#x}")
            });
        }
    }
}
