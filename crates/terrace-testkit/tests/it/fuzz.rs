//! A short fuzzing run over all decoders, with a check that it finds errors.

use std::time::{Duration, Instant};

use terrace_media::decoder::{Decoder, Seen, same};
use terrace_testkit::fuzz::Target;
use terrace_testkit::seeds;

use crate::alone::alone;

/// The number of mutated inputs per decoder.
const EXECUTIONS: u64 = 6000;
/// The time limit of a decoder. A slow one gets fewer inputs: searching lists with cyclic links
/// takes long.
const PATIENCE: Duration = Duration::from_secs(1);

fn broken(name: &'static str, run: fn(&[u8]) -> Result<Seen, String>) -> Decoder {
    Decoder {
        name,
        seeds: || vec![vec![0; 12], vec![1, 2, 3, 4]],
        mend: |_| {},
        run,
    }
}

/// On any bytes, decoders return within their limits of time and memory and accept only what
/// encoders write. A decoder that does not is found. Memory is counted for a whole process.
#[test]
fn decoders_take_any_bytes() {
    alone("fuzz::decoders_take_any_bytes", take_any_bytes);
}

fn take_any_bytes() {
    for seed in seeds::seeds(1) {
        for decoder in terrace::testing::decoders() {
            let mut target = Target::new(decoder, seed);
            let begun = Instant::now();
            let mut run = target.begin();
            // BOUND: every iteration adds executions.
            while run.is_ok() && target.executions < EXECUTIONS && begun.elapsed() < PATIENCE {
                run = target.run(50);
            }
            if let Err(failure) = run {
                panic!("{failure}");
            }
        }
    }
    let panics = broken("panics", |bytes| Ok(Seen::Accepted(u64::from(bytes[3]))));
    let greedy = broken("greedy", |bytes| {
        let count = bytes
            .first_chunk::<4>()
            .map_or(0, |word| u32::from_le_bytes(*word));
        let taken = Vec::<u8>::with_capacity(count as usize / 64);
        Ok(Seen::Accepted(u64::from(taken.capacity() == 1)))
    });
    let liar = broken("liar", |bytes| {
        let again: Vec<u8> = bytes.iter().map(|byte| byte & 0x7f).collect();
        same("bytes", &again.as_slice(), &bytes)?;
        Ok(Seen::Accepted(0))
    });
    for (decoder, said) in [
        (panics, "it panics"),
        (greedy, "bytes of memory"),
        (liar, "is not"),
    ] {
        let found = Target::new(decoder, 0).run(EXECUTIONS);
        assert!(
            found.as_ref().is_err_and(|failure| failure.contains(said)),
            "{said}: {found:?}"
        );
    }
}
