//! Memory that the system has at hand when a phase begins.
//!
//! A virtual machine returns memory that was free for some seconds to its host. The next access to
//! it waits for the host, many times as long as for a resident page, and chance decides which run
//! pays. So the comparison, a separate process, touches and holds memory before a run, and frees a
//! part of it as each phase begins: the system allocates the most recently freed pages first.

use crate::error::BenchError;
use crate::machine::available_bytes;
use crate::units;

/// Every page of this size is touched.
const PAGE_BYTES: usize = 4096;

/// Before the first phase, two pools are made, that of the store and that of the limit line; there
/// is a piece for each.
const PIECES_BEFORE: usize = 2;

/// Memory held for the phases of one run.
pub(super) struct WarmMemory {
    pieces: Vec<Vec<u8>>,
}

impl WarmMemory {
    /// Touches and holds `bytes` for each of `phases`, and frees those for the first one and for
    /// the pools made before it. Takes as long as the host needs to provide them.
    pub(super) fn hold(bytes: u64, phases: usize) -> WarmMemory {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut pieces = Vec::new();
        if len > 0 {
            pieces.resize_with(PIECES_BEFORE + phases, || touched(len));
        }
        pieces.truncate(phases.saturating_sub(1));
        WarmMemory { pieces }
    }

    /// Frees the memory held for the phase that begins.
    pub(super) fn let_go(&mut self) {
        drop(self.pieces.pop());
    }
}

fn touched(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for page in bytes.chunks_mut(PAGE_BYTES) {
        if let Some(byte) = page.first_mut() {
            *byte = 1;
        }
    }
    // Writes to memory that is never read could be optimized out.
    std::hint::black_box(bytes)
}

/// Fails if the machine does not have enough memory.
pub(super) fn check(bytes: u64, phases: usize) -> Result<(), BenchError> {
    let pieces = (PIECES_BEFORE + phases) as u64;
    let (all, there) = (bytes.saturating_mul(pieces), available_bytes());
    if all <= there / 4 * 3 {
        return Ok(());
    }
    Err(BenchError::Invalid(format!(
        "warm_memory needs {} for each of {phases} phases and for {PIECES_BEFORE} pools before \
         them, {} in total, but {} of memory are available, of which the stores need some: use a \
         smaller value",
        units::bytes(bytes),
        units::bytes(all),
        units::bytes(there)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each phase gets its part, nothing is held if none is requested, and a request for too much
    /// is refused.
    #[test]
    fn memory_is_let_go_of_phase_by_phase() {
        let mut warm = WarmMemory::hold(10_000, 3);
        assert_eq!(warm.pieces.len(), 2, "the first has begun");
        let each = |piece: &Vec<u8>| piece.len() == 10_000 && piece[4096] == 1;
        assert!(warm.pieces.iter().all(each));
        warm.let_go();
        assert_eq!(warm.pieces.len(), 1);
        warm.let_go();
        warm.let_go();
        assert!(warm.pieces.is_empty());
        assert!(WarmMemory::hold(0, 7).pieces.is_empty());
        assert!(check(1 << 20, 3).is_ok());
        let refused = check(1 << 60, 3).expect_err("no machine has that much");
        assert!(
            refused.to_string().contains("use a smaller value"),
            "{refused}"
        );
    }
}
