//! This file is memory that the system has at hand when a phase begins.
//!
//! A virtual machine gives memory that lies free for some seconds back to its host. Whoever touches it next
//! waits for the host, many times as long as for a page that is there, and which run that is, is
//! chance. So memory is touched before a run and held by the comparison, which is a process of its own, and
//! a part of it is let go of as each phase begins: what is allocated next is taken from what was freed
//! last.

use crate::error::BenchError;
use crate::machine::available_bytes;
use crate::units;

/// Every page of this size is touched.
const PAGE_BYTES: usize = 4096;

/// Before the first phase pools are made, that of the store and that of the limit line: for each there is a piece
/// too.
const PIECES_BEFORE: usize = 2;

/// Memory held for the phases of one run.
pub(super) struct WarmMemory {
    pieces: Vec<Vec<u8>>,
}

impl WarmMemory {
    /// Touches and holds `bytes` for each of `phases`, and lets go of those for the first one and what comes
    /// before it. Takes as long as the host needs to give them.
    pub(super) fn hold(bytes: u64, phases: usize) -> WarmMemory {
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut pieces = Vec::new();
        if len > 0 {
            pieces.resize_with(PIECES_BEFORE + phases, || touched(len));
        }
        pieces.truncate(phases.saturating_sub(1));
        WarmMemory { pieces }
    }

    /// Gives the system what was held for the phase that begins.
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
    // What nobody reads may otherwise not be written.
    std::hint::black_box(bytes)
}

/// Refuses what this machine does not have.
pub(super) fn check(bytes: u64, phases: usize) -> Result<(), BenchError> {
    let pieces = (PIECES_BEFORE + phases) as u64;
    let (all, there) = (bytes.saturating_mul(pieces), available_bytes());
    if all <= there / 4 * 3 {
        return Ok(());
    }
    Err(BenchError::Invalid(format!(
        "warm_memory holds {} for each of {phases} phases and for {PIECES_BEFORE} pools before them, {} \
         together, and {} of memory are available, of which the stores need some: write less",
        units::bytes(bytes),
        units::bytes(all),
        units::bytes(there)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each phase gets its part, nothing is held where none is asked for, and more than there is is refused.
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
        let refused = check(1 << 60, 3).expect_err("nobody has so much");
        assert!(refused.to_string().contains("write less"), "{refused}");
    }
}
