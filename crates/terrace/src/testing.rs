//! Internals for tests: settings of a store small enough to be created thousands of times, canaries
//! that tests must detect, decoders to be fed with arbitrary bytes.

#[cfg(feature = "canary")]
pub use crate::canary::{
    Canary,
    switch::{in_the_next_call, set_canary},
};
use crate::options::{MediumChoice, Options, Workers};

/// Returns options of a small store: a pool of 4 MiB in the database's directory with forced `Dax`
/// instructions, memtables of 16 KiB, and background steps run by hand.
pub fn small_options() -> Options {
    let mut options = Options::default();
    options.pool.path = Some("pool".into());
    options.pool.size_bytes = 4 << 20;
    options.pool.medium = MediumChoice::ForceDax;
    options.front.memtable_bytes = 16 << 10;
    options.bottom.extent_bytes = 32 << 10;
    options.buffer.levels = 3;
    options.background.workers = Workers::Manual;
    options
}

/// Returns every decoder of bytes from media.
#[cfg(feature = "decoders")]
pub fn decoders() -> Vec<terrace_media::decoder::Decoder> {
    [
        crate::designs::decoders::decoders(),
        crate::options::decoders::decoders(),
        terrace_media::decoders(),
    ]
    .concat()
}
