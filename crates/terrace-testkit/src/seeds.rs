//! Seeds of random tests: a range, or the single seed given in the environment.

/// Returns the seeds that a test runs: `0..count`, times [`times`], or only `TERRACE_SEED` (decimal
/// or 0x...) if it is set.
pub fn seeds(count: u64) -> Vec<u64> {
    match given() {
        Some(seed) => vec![seed],
        None => (0..count * times()).collect(),
    }
}

/// Returns the cases of a test that divides its seeds among `kinds`: each of [`seeds`] with one of
/// them in turn. A given seed runs with all of them.
///
/// Cases take traits from remainders of their seed, mostly by 2, 4 and 8, so the turn shifts:
/// otherwise a kind would never have some of the traits.
pub fn in_turns<T: Copy>(count: u64, kinds: &[T]) -> Vec<(u64, T)> {
    if let Some(seed) = given() {
        return kinds.iter().map(|&kind| (seed, kind)).collect();
    }
    let len = kinds.len() as u64;
    let turn = |seed: u64| (seed + seed / len.max(8)) % len;
    let all = seeds(count).into_iter();
    all.map(|seed| (seed, kinds[turn(seed) as usize])).collect()
}

/// Returns the stride of a test that takes samples: `stride`, divided by [`times`].
pub fn stride(stride: usize) -> usize {
    (stride / times() as usize).max(1)
}

/// Returns how many times as much a test tries as by default: `TERRACE_TIMES`, or 1.
pub fn times() -> u64 {
    std::env::var("TERRACE_TIMES").map_or(1, |text| {
        let times: u64 = text.parse().expect("TERRACE_TIMES is a number");
        times.max(1)
    })
}

fn given() -> Option<u64> {
    let text = std::env::var("TERRACE_SEED").ok()?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(parsed.expect("TERRACE_SEED is a number, decimal or 0x and hexadecimal"))
}
