//! Superblock slot: 256 bytes, four cache lines, little-endian, twice in a pool.
//!
//! |  at | size | field      |                                                       |
//! |-----|------|------------|-------------------------------------------------------|
//! |   0 |    8 | magic      | "TERRPOOL"; stored last when a pool is created        |
//! |   8 |    4 | format     | version of this layout                                |
//! |  12 |    4 | slot_bytes | bytes of the slot; the checksum is its last four      |
//! |  16 |    8 | compat     | features that an older program may ignore             |
//! |  24 |    8 | ro_compat  | features that limit an older program to reading       |
//! |  32 |    8 | incompat   | features that an older program must refuse            |
//! |  40 |   16 | uuid       | random, fixed when the pool is created                |
//! |  56 |    8 | granule    | allocation unit, a power of two                       |
//! |  64 |    8 | cap        | maximum size of the pool in bytes                     |
//! |  72 |    8 | committed  | minimum length of the file in bytes                   |
//! |  80 |   16 | boot_id    | the boot that wrote this slot                         |
//! |  96 |    8 | flags      | bit 0: closed cleanly; bit 1: power loss not repaired; bit 2: last opened on `Dax` |
//! | 104 |    8 | generation | the valid slot with the higher one is current         |
//! | 112 |  128 | roots      | 16 words that belong to the store                     |
//! | 240 |   12 | zero       | reserved                                              |
//! | 252 |    4 | checksum   | crc32c of bytes 0..252                                |
//!
//! Magic, format, slot_bytes and the place of the checksum stay the same in all later formats, so
//! that a newer pool can be distinguished from a damaged one. Slots start at `SLOTS`, in separate
//! pages, so that a torn page on `Mapped` damages only one. Extents start after `HEADER_BYTES`.

/// The number of words in the superblock that belong to the store.
pub(crate) const ROOTS: usize = 16;

/// The first bytes of every slot.
pub(crate) const MAGIC: [u8; 8] = *b"TERRPOOL";
/// The format that this program writes.
pub(crate) const FORMAT: u32 = 1;
/// The size of a slot in this format.
pub(crate) const SLOT_BYTES: usize = 256;
/// The maximum size of a slot in later formats.
pub(crate) const SLOT_BYTES_MAX: usize = 4096;
/// The offsets of the slots.
pub(crate) const SLOTS: [u64; 2] = [0, 4096];
/// The offset of the first extent, before rounding up to granules.
pub(crate) const HEADER_BYTES: u64 = 16 << 10;

pub(crate) const AT_MAGIC: usize = 0;
pub(crate) const AT_FORMAT: usize = 8;
pub(crate) const AT_SLOT_BYTES: usize = 12;
pub(crate) const AT_COMPAT: usize = 16;
pub(crate) const AT_RO_COMPAT: usize = 24;
pub(crate) const AT_INCOMPAT: usize = 32;
pub(crate) const AT_UUID: usize = 40;
pub(crate) const AT_GRANULE: usize = 56;
pub(crate) const AT_CAP: usize = 64;
pub(crate) const AT_COMMITTED: usize = 72;
pub(crate) const AT_BOOT_ID: usize = 80;
pub(crate) const AT_FLAGS: usize = 96;
pub(crate) const AT_GENERATION: usize = 104;
pub(crate) const AT_ROOTS: usize = 112;
pub(crate) const AT_ZERO: usize = 240;
pub(crate) const AT_CHECKSUM: usize = 252;

/// The pool was closed, and all its bytes are durable.
pub(crate) const FLAG_CLEAN: u64 = 1 << 0;
/// Power was lost, and the store has not yet reported that the damage is repaired.
pub(crate) const FLAG_POWER_LOST: u64 = 1 << 1;
/// The last session made stores durable by line; without this flag, by page. The next session may
/// use another medium.
pub(crate) const FLAG_DAX: u64 = 1 << 2;

const _: () = assert!(AT_FORMAT == AT_MAGIC + 8, "magic is 8 bytes");
const _: () = assert!(AT_SLOT_BYTES == AT_FORMAT + 4, "format is 4 bytes");
const _: () = assert!(AT_COMPAT == AT_SLOT_BYTES + 4, "slot_bytes is 4 bytes");
const _: () = assert!(AT_RO_COMPAT == AT_COMPAT + 8, "compat is 8 bytes");
const _: () = assert!(AT_INCOMPAT == AT_RO_COMPAT + 8, "ro_compat is 8 bytes");
const _: () = assert!(AT_UUID == AT_INCOMPAT + 8, "incompat is 8 bytes");
const _: () = assert!(AT_GRANULE == AT_UUID + 16, "uuid is 16 bytes");
const _: () = assert!(AT_CAP == AT_GRANULE + 8, "granule is 8 bytes");
const _: () = assert!(AT_COMMITTED == AT_CAP + 8, "cap is 8 bytes");
const _: () = assert!(AT_BOOT_ID == AT_COMMITTED + 8, "committed is 8 bytes");
const _: () = assert!(AT_FLAGS == AT_BOOT_ID + 16, "boot_id is 16 bytes");
const _: () = assert!(AT_GENERATION == AT_FLAGS + 8, "flags is 8 bytes");
const _: () = assert!(AT_ROOTS == AT_GENERATION + 8, "generation is 8 bytes");
const _: () = assert!(AT_ZERO == AT_ROOTS + ROOTS * 8, "roots are 8 bytes each");
const _: () = assert!(AT_CHECKSUM == AT_ZERO + 12, "12 bytes are reserved");
const _: () = assert!(SLOT_BYTES == AT_CHECKSUM + 4, "the checksum comes last");
const _: () = assert!(
    SLOTS[1] - SLOTS[0] >= SLOT_BYTES_MAX as u64,
    "slots do not overlap"
);
const _: () = assert!(
    SLOTS[1] + SLOT_BYTES_MAX as u64 <= HEADER_BYTES,
    "slots fit the header"
);
