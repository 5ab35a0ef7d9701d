//! Seeds of random tests: a range, or the single seed given in the environment.

/// Returns the seeds that a test runs: `0..count`, or only `TERRACE_SEED` (decimal or 0x...) if it
/// is set.
pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("TERRACE_SEED") {
        Ok(text) => {
            let parsed = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => text.parse(),
            };
            vec![parsed.expect("TERRACE_SEED is a number, decimal or 0x and hexadecimal")]
        }
        Err(_) => (0..count).collect(),
    }
}
