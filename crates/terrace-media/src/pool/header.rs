//! This file is a pool's header as a look at the file shows it, without opening the pool: no lock,
//! no mapping, no byte written. For programs that show or rescue what is there.

use std::path::Path;

use super::backing::system_boot_id;
use super::error::PoolError;
use super::layout::{FLAG_CLEAN, HEADER_BYTES, ROOTS, SLOT_BYTES, SLOT_BYTES_MAX, SLOTS};
use super::superblock::{Slot, Superblock, choose};
use crate::fs::File;

/// What a pool says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolHeader {
    /// The identity that the pool got when it was made.
    pub uuid: [u8; 16],
    /// The unit of allocation in bytes.
    pub granule: u64,
    /// Bytes that the pool may grow to.
    pub cap_bytes: u64,
    /// Bytes that the file had, at least.
    pub committed_bytes: u64,
    /// Counts changes of the header.
    pub generation: u64,
    /// Whether the pool was closed.
    pub clean: bool,
    /// Whether the pool was not closed before power was lost, or before the machine that it was on last started anew,
    /// and nobody has repaired that since.
    pub power_lost: bool,
    /// The words that belong to the store.
    pub roots: [u64; ROOTS],
    /// The offsets of the slots that are not whole: one at most.
    pub damaged_slots: Vec<u64>,
}

impl PoolHeader {
    /// Where extents begin, before rounding up to granules.
    pub const BYTES: u64 = HEADER_BYTES;

    /// Reads the header of the pool in `file`; `path` is what errors name. A program that has the
    /// pool open may go on: what is read is one of its states.
    ///
    /// # Errors
    /// `Foreign`, `Newer`, `Corrupt` when neither slot is whole, `Io`.
    pub fn read(file: &dyn File, path: &Path) -> Result<PoolHeader, PoolError> {
        let mut slots = [Slot::Empty, Slot::Empty];
        for (slot, &off) in slots.iter_mut().zip(&SLOTS) {
            let mut bytes = [0; SLOT_BYTES_MAX];
            read_up_to(file, off, &mut bytes).map_err(|source| PoolError::Io {
                path: path.to_owned(),
                op: "read the header of",
                source,
            })?;
            *slot = Superblock::decode(&bytes);
        }
        let damaged_slots = SLOTS
            .iter()
            .zip(&slots)
            .filter(|(_, slot)| !matches!(slot, Slot::Valid(_)))
            .map(|(off, _)| *off)
            .collect();
        let (state, _) = choose(slots).map_err(|why| super::refuse(path, why))?;
        Ok(PoolHeader {
            uuid: state.uuid,
            granule: state.granule,
            cap_bytes: state.cap,
            committed_bytes: state.committed,
            generation: state.generation,
            clean: state.flags & FLAG_CLEAN != 0,
            power_lost: state.lost_power(system_boot_id()),
            roots: state.roots,
            damaged_slots,
        })
    }
}

/// Reads what the file has of these bytes; the rest stays zero.
fn read_up_to(file: &dyn File, off: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    let have = file.len()?.saturating_sub(off).min(bytes.len() as u64) as usize;
    file.read_exact_at(off, &mut bytes[..have])
}

const _: () = assert!(SLOT_BYTES <= SLOT_BYTES_MAX, "a slot is read whole");
