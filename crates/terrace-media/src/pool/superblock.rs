//! The superblock: a pool's description of itself, in two slots, one of which is always whole.
//!
//! A change is written to the slot that is not current, made durable, and then written to the other
//! slot as well, so that a damaged byte in either slot loses nothing.
//!
//! Invariants
//!   S1  At every moment one slot is durable, whole, and holds the newest state acknowledged.
//!   S2  A slot is valid if its magic, format and checksum are right. Of two valid slots, the one
//!       with the higher generation is current.
//!   S3  A slot is stored to only while the other one is whole and its content is durable.
//!
//! CRASH: when a process ends, the next one of the same boot sees all its stores, durable or not. A
//! later power loss loses any subset of those that are not durable. Let P be the slot being stored
//! to and F the other one, which S3 guarantees. The next open may find:
//!
//! | P reads as                | current | P on the media  | left by a power loss during the open |
//! |---------------------------|---------|-----------------|--------------------------------------|
//! | old, no store arrived     | F       | the same        | F                                    |
//! | torn, or empty            | F       | torn or old     | F, and P in any state                |
//! | the new state, F the old  | P       | anything        | F until P is settled, then P         |
//! | the same state as F       | either  | anything        | F; or P, which is the same           |
//!
//! In the last two rows the current state was read but may not be durable. So an open first makes
//! the current slot durable (`settle`). That does not change its content, so a process that ends
//! there leaves the same row. If the current slot is P, F stays whole and durable meanwhile; if it
//! is F, nothing changes. After that the current slot takes the role of F, and the other one may be
//! stored to (S3). A state is settled before anyone uses it, so no state in use is undone.
//!
//! While a pool is created, P is the first slot, and F stands for the absence of a pool: the magic
//! is stored once the rest of the slot is durable, and the second slot once the first one is.

use super::layout::*;
use crate::pm::count::Purpose;
use crate::pm::region::Region;
use std::io;
use std::sync::atomic::Ordering;

/// The state stored in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    pub(crate) compat: u64,
    pub(crate) ro_compat: u64,
    pub(crate) incompat: u64,
    pub(crate) uuid: [u8; 16],
    pub(crate) granule: u64,
    pub(crate) cap: u64,
    pub(crate) committed: u64,
    pub(crate) boot_id: [u8; 16],
    pub(crate) flags: u64,
    pub(crate) generation: u64,
    pub(crate) roots: [u64; ROOTS],
}

/// The result of decoding a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// Nothing was stored here yet, or everything but the magic.
    Empty,
    /// Bytes of something else.
    Foreign([u8; 8]),
    /// A slot whose bytes changed after they were stored, or were only partly stored.
    Damaged { expected: u64, found: u64 },
    /// A whole slot of a later format.
    Newer(u32),
    /// A whole slot of this format.
    Valid(Box<Superblock>),
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

fn sixteen(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut sixteen = [0; 16];
    sixteen.copy_from_slice(&bytes[at..at + 16]);
    sixteen
}

impl Superblock {
    /// Returns whether power was lost since the pool was last closed, as far as a machine in this
    /// boot can tell, and the damage has not been repaired.
    pub(crate) fn lost_power(&self, boot_id: [u8; 16]) -> bool {
        self.flags & FLAG_CLEAN == 0
            && (self.flags & FLAG_POWER_LOST != 0 || self.boot_id != boot_id)
    }

    /// Encodes a slot.
    pub(crate) fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        let mut put = |at: usize, bytes: &[u8]| slot[at..at + bytes.len()].copy_from_slice(bytes);
        put(AT_MAGIC, &MAGIC);
        put(AT_FORMAT, &FORMAT.to_le_bytes());
        put(AT_SLOT_BYTES, &(SLOT_BYTES as u32).to_le_bytes());
        put(AT_COMPAT, &self.compat.to_le_bytes());
        put(AT_RO_COMPAT, &self.ro_compat.to_le_bytes());
        put(AT_INCOMPAT, &self.incompat.to_le_bytes());
        put(AT_UUID, &self.uuid);
        put(AT_GRANULE, &self.granule.to_le_bytes());
        put(AT_CAP, &self.cap.to_le_bytes());
        put(AT_COMMITTED, &self.committed.to_le_bytes());
        put(AT_BOOT_ID, &self.boot_id);
        put(AT_FLAGS, &self.flags.to_le_bytes());
        put(AT_GENERATION, &self.generation.to_le_bytes());
        for (i, root) in self.roots.iter().enumerate() {
            put(AT_ROOTS + i * 8, &root.to_le_bytes());
        }
        let checksum = crc_fast::crc32_iscsi(&slot[..AT_CHECKSUM]);
        slot[AT_CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
        slot
    }

    /// Decodes a slot from the longest slot that any format may have.
    pub(crate) fn decode(bytes: &[u8; SLOT_BYTES_MAX]) -> Slot {
        let mut magic = [0; 8];
        magic.copy_from_slice(&bytes[..8]);
        if magic == [0; 8] {
            return Slot::Empty;
        }
        if magic != MAGIC {
            return Slot::Foreign(magic);
        }
        let slot_bytes = half(bytes, AT_SLOT_BYTES);
        if !(SLOT_BYTES..=SLOT_BYTES_MAX).contains(&(slot_bytes as usize)) {
            return Slot::Damaged {
                expected: SLOT_BYTES as u64,
                found: u64::from(slot_bytes),
            };
        }
        let at_checksum = slot_bytes as usize - 4;
        let found = half(bytes, at_checksum);
        let expected = crc_fast::crc32_iscsi(&bytes[..at_checksum]);
        if expected != found {
            return Slot::Damaged {
                expected: u64::from(expected),
                found: u64::from(found),
            };
        }
        let format = half(bytes, AT_FORMAT);
        if format > FORMAT {
            return Slot::Newer(format);
        }
        if format != FORMAT || slot_bytes as usize != SLOT_BYTES {
            return Slot::Damaged {
                expected: u64::from(FORMAT),
                found: u64::from(format),
            };
        }
        let mut roots = [0; ROOTS];
        for (i, root) in roots.iter_mut().enumerate() {
            *root = word(bytes, AT_ROOTS + i * 8);
        }
        Slot::Valid(Box::new(Superblock {
            compat: word(bytes, AT_COMPAT),
            ro_compat: word(bytes, AT_RO_COMPAT),
            incompat: word(bytes, AT_INCOMPAT),
            uuid: sixteen(bytes, AT_UUID),
            granule: word(bytes, AT_GRANULE),
            cap: word(bytes, AT_CAP),
            committed: word(bytes, AT_COMMITTED),
            boot_id: sixteen(bytes, AT_BOOT_ID),
            flags: word(bytes, AT_FLAGS),
            generation: word(bytes, AT_GENERATION),
            roots,
        }))
    }
}

/// The reason why no superblock was found.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum NoSuperblock {
    /// Both slots are empty.
    Empty,
    /// The bytes belong to something else.
    Foreign([u8; 8]),
    /// No slot is valid, and at least one is damaged; describes the first damaged one.
    Damaged {
        offset: u64,
        expected: u64,
        found: u64,
    },
    /// The superblock has a later format.
    Newer(u32),
}

/// Returns the current slot and its number.
pub(crate) fn choose(slots: [Slot; 2]) -> Result<(Superblock, usize), NoSuperblock> {
    let mut best: Option<(Superblock, usize)> = None;
    let mut why = NoSuperblock::Empty;
    for (i, slot) in slots.into_iter().enumerate() {
        match slot {
            Slot::Valid(found) => {
                if best
                    .as_ref()
                    .is_none_or(|(best, _)| found.generation > best.generation)
                {
                    best = Some((*found, i));
                }
            }
            // A later format takes precedence: the other, older slot is out of date.
            Slot::Newer(format) => return Err(NoSuperblock::Newer(format)),
            Slot::Damaged { expected, found } => {
                if !matches!(why, NoSuperblock::Damaged { .. }) {
                    why = NoSuperblock::Damaged {
                        offset: SLOTS[i],
                        expected,
                        found,
                    };
                }
            }
            Slot::Foreign(found) => {
                if why == NoSuperblock::Empty {
                    why = NoSuperblock::Foreign(found);
                }
            }
            Slot::Empty => {}
        }
    }
    best.ok_or(why)
}

/// Reads both slots of a mapped pool and chooses the current one. A pool too short for a slot has
/// an empty one.
pub(crate) fn read(region: &Region) -> Result<(Superblock, usize), NoSuperblock> {
    choose(SLOTS.map(|off| {
        let mut bytes = [0; SLOT_BYTES_MAX];
        for (i, chunk) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let Some(word) = region.word(off + i as u64 * 8) else {
                return Slot::Empty;
            };
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Superblock::decode(&bytes)
    }))
}

/// Stores words `from..to` of a slot and makes them durable.
fn store(
    region: &Region,
    off: u64,
    slot: &[u8; SLOT_BYTES],
    from: usize,
    to: usize,
) -> io::Result<()> {
    for i in from..to {
        let at = off + i as u64 * 8;
        let Some(target) = region.word(at) else {
            return Err(io::Error::other("the superblock is not mapped"));
        };
        target.store(word(slot, i * 8), Ordering::Relaxed);
    }
    let (at, len) = (off + from as u64 * 8, (to - from) * 8);
    region.persist(at, len, Purpose::Superblock);
    region.sync(at, len)
}

/// Makes the current slot durable as it was read, before anything depends on it.
pub(crate) fn settle(region: &Region, current: usize) -> io::Result<()> {
    let off = SLOTS[current];
    for at in (off..off + SLOT_BYTES as u64).step_by(8) {
        let Some(word) = region.word(at) else {
            return Err(io::Error::other("the superblock is not mapped"));
        };
        // Storing the same value dirties the page, so that it is written back even if an earlier
        // process failed to sync it.
        word.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    // PERSIST: the state that was read, before the other slot is touched. Reversed, the state of a
    // killed process could be in this slot but durable in neither, and a power loss could lose both
    // (S1). It also keeps this process from acting on a state that a power loss would undo.
    region.persist(off, SLOT_BYTES, Purpose::Superblock);
    region.sync(off, SLOT_BYTES)
}

/// Writes a state over the current one, which is durable in slot `current`.
pub(crate) fn write(region: &Region, state: &Superblock, current: usize) -> io::Result<()> {
    let slot = state.encode();
    // PERSIST: the slot that is not current first, and durable before the other one is touched.
    // Reversed, a crash while the current slot is being overwritten could leave none (S1).
    // CRASH: between the two, the newer slot is current, and it holds the whole new state.
    store(region, SLOTS[1 - current], &slot, 0, SLOT_BYTES / 8)?;
    store(region, SLOTS[current], &slot, 0, SLOT_BYTES / 8)
}

/// Writes the first state of a pool, whose slots are empty.
pub(crate) fn create(region: &Region, state: &Superblock) -> io::Result<()> {
    let slot = state.encode();
    // PERSIST: everything but the magic first, so that an incomplete slot looks empty and the pool
    // can be created again. Reversed, a crash could leave a slot that looks like a damaged pool.
    store(region, SLOTS[0], &slot, 1, SLOT_BYTES / 8)?;
    store(region, SLOTS[0], &slot, 0, 1)?;
    store(region, SLOTS[1], &slot, 0, SLOT_BYTES / 8)
}
