//! Fuzzing of the decoders: encoded bytes are mutated, their checksums mostly corrected, and
//! decoded.
//!
//! For any bytes the decoder returns without a panic, within its limits of time and memory.
//! Accepted bytes are equal to an encoder's output or decode to the same again, as the decoder's
//! own checks define (`terrace::testing::decoders`). An input with new behavior is kept and mutated
//! further, so that the campaign reaches states that no single mutation leads to.
//!
//! The seed determines everything. Inputs that once failed are in `corpus.txt`.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_media::decoder::{Decoder, Seen};

use crate::heap;
use crate::oracle::Outcome;
use crate::request::Request;

/// Inputs worth keeping, one per line: the decoder's name and the bytes in hexadecimal.
const CORPUS: &str = include_str!("corpus.txt");
/// The maximum length of an input.
const BYTES_MAX: usize = 4096;
/// The maximum number of inputs kept per decoder.
const KEPT_MAX: usize = 400;
/// The memory that one decoding may take, in addition to `MEMORY_EACH` per input byte: compressed
/// bytes expand, and the checks copy all of them.
const MEMORY_MIN: u64 = 1 << 20;
const MEMORY_EACH: u64 = 4096;
/// The time that one decoding may take. A slower one is repeated, so that other load on the machine
/// does not count.
const TIME_MAX: Duration = Duration::from_secs(5);
/// The time without a finished decoding after which it counts as hanging.
const HANG: Duration = Duration::from_secs(60);
/// The number of decodings of one decoder before the next one's turn.
const TURN: u64 = 20_000;

/// Numbers at or next to limits.
const EDGES: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    127,
    128,
    255,
    256,
    4095,
    4096,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    (1 << 56) - 1,
    1 << 56,
    u64::MAX / 2,
    u64::MAX,
];

/// One decoder under fuzzing.
pub struct Target {
    decoder: Decoder,
    rng: fastrand::Rng,
    seed: u64,
    kept: Vec<Vec<u8>>,
    seen: BTreeSet<Seen>,
    /// The number of decodings so far.
    pub executions: u64,
    /// The number of inputs that were accepted.
    pub accepted: u64,
}

impl Target {
    /// Makes a target. `seed` determines all that follows.
    pub fn new(decoder: Decoder, seed: u64) -> Target {
        let name = decoder.name.bytes();
        let own = name.fold(seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut kept = (decoder.seeds)();
        kept.extend(corpus_of(decoder.name));
        Target {
            decoder,
            rng: fastrand::Rng::with_seed(own),
            seed,
            kept,
            seen: BTreeSet::new(),
            executions: 0,
            accepted: 0,
        }
    }

    /// Decodes encoded and kept inputs. At least one must be accepted.
    pub fn begin(&mut self) -> Outcome {
        for (at, seed) in self.kept.clone().into_iter().enumerate() {
            self.decode(&seed)
                .map_err(|failure| format!("input {at}: {failure}"))?;
        }
        match self.accepted {
            0 => Err(format!("{} accepts none of its seeds", self.decoder.name)),
            _ => Ok(()),
        }
    }

    /// Runs this many mutated inputs.
    pub fn run(&mut self, executions: u64) -> Outcome {
        for _ in 0..executions {
            let mut input = self.rng.choice(&self.kept).cloned().unwrap_or_default();
            for _ in 0..1 + self.rng.u8(..).trailing_zeros() {
                self.change(&mut input);
            }
            input.truncate(BYTES_MAX);
            if self.rng.u8(0..4) > 0 {
                (self.decoder.mend)(&mut input);
            }
            if let Err(failure) = self.decode(&input) {
                let shorter = self.shrink(input);
                let hex: String = shorter.iter().map(|byte| format!("{byte:02x}")).collect();
                let name = self.decoder.name;
                return Err(format!(
                    "{name}: {failure}\nshortened input, a line of corpus.txt: {name} {hex}\n\
                     repeat: fuzz --decoder {name} --seed {:#x} --executions {}",
                    self.seed, self.executions
                ));
            }
        }
        Ok(())
    }

    fn decode(&mut self, input: &[u8]) -> Outcome {
        self.executions += 1;
        let seen = check(&self.decoder, input)?;
        self.accepted += u64::from(matches!(seen, Seen::Accepted(_)));
        if self.seen.insert(seen) && self.kept.len() < KEPT_MAX {
            self.kept.push(input.to_vec());
        }
        Ok(())
    }

    /// Removes pieces while the input still fails.
    fn shrink(&mut self, mut input: Vec<u8>) -> Vec<u8> {
        for piece in [256, 64, 16, 8, 4, 2, 1] {
            let mut at = 0;
            // BOUND: the input shrinks or the position grows.
            while at + piece <= input.len() {
                let mut shorter = input.clone();
                shorter.drain(at..at + piece);
                match check(&self.decoder, &shorter) {
                    Err(_) => input = shorter,
                    Ok(_) => at += piece,
                }
            }
        }
        input
    }

    /// Applies one mutation.
    fn change(&mut self, input: &mut Vec<u8>) {
        let rng = &mut self.rng;
        let len = input.len();
        if len == 0 {
            input.extend((0..rng.usize(1..9)).map(|_| rng.u8(..)));
            return;
        }
        let at = rng.usize(..len);
        let piece = at..len.min(at + 1 + rng.usize(..32));
        match rng.u8(0..12) {
            0 | 1 => input[at] ^= 1 << rng.u8(0..8),
            2 => input[at] = rng.u8(..),
            3 => input[at] = input[at].wrapping_add(rng.u8(0..9).wrapping_sub(4)),
            4..7 => {
                // Writes an integer of some width with a typical bad value.
                let size = [1, 2, 4, 8][rng.usize(..4)];
                let number = match rng.u8(0..4) {
                    0 => len as u64,
                    1 => (len as u64).wrapping_add(rng.u64(0..17)).wrapping_sub(8),
                    _ => EDGES[rng.usize(..EDGES.len())],
                };
                let at = if rng.bool() { at / size * size } else { at };
                let place = input[at..].iter_mut();
                place
                    .zip(number.to_le_bytes().into_iter().take(size))
                    .for_each(|(byte, new)| *byte = new);
            }
            7 => drop(input.drain(piece)),
            8 => {
                let copy = input[piece].to_vec();
                let to = rng.usize(..=len);
                input.splice(to..to, copy);
            }
            9 => {
                let copy = input[piece].to_vec();
                let to = rng.usize(..len);
                let place = input[to..].iter_mut();
                place.zip(copy).for_each(|(byte, new)| *byte = new);
            }
            10 => {
                let fill = [0, 0xff, rng.u8(..)][rng.usize(..3)];
                match rng.bool() {
                    true => input[piece].fill(fill),
                    false => drop(input.splice(at..at, vec![fill; piece.len()])),
                }
            }
            _ => {
                // Joins the front of one input to the back of another, or truncates.
                input.truncate(at);
                if rng.bool()
                    && let Some(other) = rng.choice(&self.kept)
                {
                    let from = rng.usize(..=other.len());
                    input.extend_from_slice(&other[from..]);
                }
            }
        }
    }
}

/// Decodes an input. Fails on a panic, on too much time or memory, or on a failed check.
pub fn check(decoder: &Decoder, input: &[u8]) -> Outcome<Seen> {
    match check_once(decoder, input)? {
        (seen, lasted) if lasted <= TIME_MAX => Ok(seen),
        _ => match check_once(decoder, input)? {
            (_, lasted) if lasted > TIME_MAX => {
                Err(format!("{} bytes take {lasted:.0?}", input.len()))
            }
            (seen, _) => Ok(seen),
        },
    }
}

fn check_once(decoder: &Decoder, input: &[u8]) -> Outcome<(Seen, Duration)> {
    let before = heap::in_use();
    heap::begin();
    let begun = Instant::now();
    let seen = catch_unwind(AssertUnwindSafe(|| (decoder.run)(input)));
    let (lasted, taken) = (begun.elapsed(), heap::peak().saturating_sub(before));
    let seen = seen.map_err(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
        format!("it panics: {}", said.unwrap_or_default())
    })??;
    let memory_max = MEMORY_MIN + MEMORY_EACH * input.len() as u64;
    if taken > memory_max {
        return Err(format!(
            "{} bytes take {taken} bytes of memory",
            input.len()
        ));
    }
    Ok((seen, lasted))
}

/// Returns the lines of `corpus.txt` for a decoder.
fn corpus_of(name: &str) -> Vec<Vec<u8>> {
    let lines = CORPUS.lines().filter_map(|line| line.split_once(' '));
    let of_it = lines.filter(|(of, _)| *of == name);
    of_it.filter_map(|(_, hex)| bytes_of(hex)).collect()
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// Ends the process if no decoding finishes. Nothing else can interrupt one.
struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    fn new(progress: Arc<AtomicU64>, text: String) -> Watchdog {
        let over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&over);
        std::thread::spawn(move || {
            let (mut last, mut since) = (u64::MAX, Instant::now());
            while !asked.load(Ordering::Relaxed) {
                let now = progress.load(Ordering::Relaxed);
                if now != last {
                    (last, since) = (now, Instant::now());
                } else if since.elapsed() > HANG {
                    eprintln!("a decoding does not end: after {now} turns, {text}");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Watchdog(over)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs decoders in turns, for as long as requested.
pub fn campaign(request: &Request) -> Outcome {
    let seed = request.number("seed", 0)?;
    let name = request.text("decoder").unwrap_or("all");
    let decoders = terrace::testing::decoders();
    let names: Vec<&str> = decoders.iter().map(|decoder| decoder.name).collect();
    let chosen = decoders
        .iter()
        .filter(|it| name == "all" || it.name == name);
    let mut targets: Vec<Target> = chosen.map(|&it| Target::new(it, seed)).collect();
    if targets.is_empty() {
        let known = names.join(", ");
        return Err(format!(
            "unknown decoder {name}; use one of {known}, or all"
        ));
    }
    let turns = Arc::new(AtomicU64::new(0));
    let text = format!("decoder {name}, seed {seed:#x}");
    let _watchdog = Watchdog::new(Arc::clone(&turns), text);
    // A panic is a finding and is reported once, with its input.
    std::panic::set_hook(Box::new(|_| {}));
    targets.iter_mut().try_for_each(Target::begin)?;
    let each = request.number("executions", 100_000)?;
    let mut said = 0;
    // BOUND: every turn adds decodings, and the clock advances.
    while request.goes_on("executions", 100_000, targets[0].executions)? {
        for target in &mut targets {
            let left = each.saturating_sub(target.executions);
            let timed = request.text("minutes").is_some();
            target.run(if timed { TURN } else { TURN.min(left) })?;
            turns.fetch_add(1, Ordering::Relaxed);
        }
        let minutes = request.elapsed().as_secs() / 60;
        if minutes > said {
            said = minutes;
            let all: u64 = targets.iter().map(|target| target.executions).sum();
            println!("{:.0?}: {all} decodings", request.elapsed());
        }
    }
    println!(
        "{:<18} {:>12} {:>12} {:>8}",
        "decoder", "decodings", "accepted", "kinds"
    );
    for target in &targets {
        let (name, kinds) = (target.decoder.name, target.seen.len());
        let (executions, accepted) = (target.executions, target.accepted);
        println!("{name:<18} {executions:>12} {accepted:>12} {kinds:>8}");
    }
    let all: u64 = targets.iter().map(|target| target.executions).sum();
    println!(
        "fuzz: seed {seed:#x}, {all} decodings, {:.0?}",
        request.elapsed()
    );
    Ok(())
}
