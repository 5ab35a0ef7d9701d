//! The decoder of the superblock, for fuzzing.

use std::path::{Path, PathBuf};

use super::layout::{AT_CHECKSUM, AT_ZERO, FORMAT, ROOTS, SLOT_BYTES, SLOT_BYTES_MAX};
use super::superblock::{NoSuperblock, Slot, Superblock, choose};
use super::{Backing, PoolConfig, check, first_extent};
use crate::decoder::{Decoder, Seen, kind_of, same, seal};
use crate::pool::space::Space;

/// Returns the decoders of this crate.
pub fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "superblock",
        seeds,
        mend,
        run,
    }]
}

/// Returns seeds, each with both slots in sequence.
fn seeds() -> Vec<Vec<u8>> {
    let state = |generation, flags| Superblock {
        compat: 0,
        ro_compat: 0,
        incompat: 0,
        uuid: *b"0123456789abcdef",
        granule: 4096,
        cap: 1 << 30,
        committed: 1 << 20,
        boot_id: [7; 16],
        flags,
        generation,
        roots: std::array::from_fn::<u64, ROOTS, _>(|at| at as u64 * 4096),
    };
    let slot = |generation, flags| state(generation, flags).encode().to_vec();
    vec![
        [slot(1, 0), slot(2, 1)].concat(),
        [slot(9, 2), vec![0; SLOT_BYTES]].concat(),
        [vec![0; SLOT_BYTES], slot(u64::MAX, 3)].concat(),
    ]
}

fn mend(bytes: &mut [u8]) {
    for slot in bytes.chunks_mut(SLOT_BYTES) {
        seal(slot, AT_CHECKSUM);
    }
}

fn run(bytes: &[u8]) -> Result<Seen, String> {
    let mut chunks = bytes.chunks(SLOT_BYTES);
    let slots = [chunks.next(), chunks.next()].map(|chunk| {
        let mut slot = [0; SLOT_BYTES_MAX];
        let chunk = chunk.unwrap_or(&[]);
        slot[..chunk.len()].copy_from_slice(chunk);
        (Superblock::decode(&slot), slot)
    });
    for (found, slot) in &slots {
        if let Slot::Valid(state) = found {
            let again = state.encode();
            same("a slot", &&again[..AT_ZERO], &&slot[..AT_ZERO])?;
            let mut whole = [0; SLOT_BYTES_MAX];
            whole[..SLOT_BYTES].copy_from_slice(&again);
            same("a slot, again", found, &Superblock::decode(&whole))?;
        }
    }
    let state = match choose(slots.map(|(found, _)| found)) {
        Ok((state, _)) => state,
        Err(why) => {
            let what = match why {
                NoSuperblock::Empty => "empty",
                NoSuperblock::Foreign(_) => "foreign",
                NoSuperblock::Damaged { .. } => "damaged",
                NoSuperblock::Newer(format) if format > FORMAT => "newer",
                NoSuperblock::Newer(_) => return Err("a known format is refused".into()),
            };
            return Ok(Seen::Refused(kind_of(what, "")));
        }
    };
    let path = PathBuf::from("pool");
    let config = PoolConfig::new(Backing::File(path.clone()), 1 << 30);
    match check(Path::new("pool"), &config, &state, 1 << 20) {
        Ok(()) => {
            let granule = state.granule;
            let cap = config.cap_bytes - config.cap_bytes % granule;
            let space = Space::new(first_extent(granule), cap, granule, &config);
            let usage = space.usage(1 << 20);
            Ok(Seen::Accepted(granule ^ u64::from(usage.allocated > 0)))
        }
        Err(e) => Ok(Seen::Refused(kind_of("check", &e.to_string()))),
    }
}
