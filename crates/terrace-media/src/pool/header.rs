//! The header of a pool, read from its file without opening the pool: no lock, no mapping, no
//! write. For programs that inspect or repair pools.

use std::path::Path;

use super::backing::system_boot_id;
use super::error::PoolError;
use super::layout::{FLAG_CLEAN, HEADER_BYTES, ROOTS, SLOT_BYTES, SLOT_BYTES_MAX, SLOTS};
use super::superblock::{Slot, Superblock, choose};
use crate::fs::File;

/// The content of a pool's header.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolHeader {
    /// The identity of the pool, assigned when it was created.
    pub uuid: [u8; 16],
    /// The unit of allocation in bytes.
    pub granule: u64,
    /// The maximum size in bytes.
    pub cap_bytes: u64,
    /// The minimum length of the file in bytes.
    pub committed_bytes: u64,
    /// The number of changes of the header.
    pub generation: u64,
    /// Whether the pool was closed cleanly.
    pub clean: bool,
    /// Whether power was lost or the machine restarted while the pool was open, and the damage has
    /// not been repaired since.
    pub power_lost: bool,
    /// The root words, which belong to the store.
    pub roots: [u64; ROOTS],
    /// The offsets of the slots that are not valid, at most one.
    pub damaged_slots: Vec<u64>,
}

impl PoolHeader {
    /// The offset of the first extent, before rounding up to granules.
    pub const BYTES: u64 = HEADER_BYTES;

    /// Reads the header of the pool in `file`; errors name `path`. The pool may be open in another
    /// program: the result is one of its states.
    ///
    /// # Errors
    /// `Foreign`; `Newer`; `Corrupt` if neither slot is valid; `Io`.
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

/// Reads the bytes that the file has; the rest stay zero.
fn read_up_to(file: &dyn File, off: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    let have = file.len()?.saturating_sub(off).min(bytes.len() as u64) as usize;
    file.read_exact_at(off, &mut bytes[..have])
}

const _: () = assert!(SLOT_BYTES <= SLOT_BYTES_MAX, "a slot is read whole");
