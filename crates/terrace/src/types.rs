//! The types that every module shares: sequence numbers, entry kinds, durability.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::Error;
use crate::named::named_enum;

/// A position in the one order of all writes. Ascending, never reused, 56 bits.
pub(crate) type SeqNo = u64;

/// The largest sequence number; a read at it sees everything.
pub(crate) const SEQ_MAX: SeqNo = (1 << 56) - 1;

/// The keyspace of the store's own records (names of keyspaces, drops not yet purged).
pub(crate) const SYSTEM_KEYSPACE: u32 = 0;

/// The keyspace for calls without a keyspace.
pub(crate) const DEFAULT_KEYSPACE: u32 = 1;

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// The identity of a database: 16 random bytes, drawn at creation, and stored in every file that
/// the database writes. A checkpoint has the id of its source, whose table files it shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub(crate) struct DbId(pub(crate) [u8; DbId::BYTES]);

impl DbId {
    pub(crate) const BYTES: usize = 16;

    /// Parses an id from `text`, 32 lower-case hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<DbId> {
        let value = u128::from_str_radix(text, 16).ok()?;
        let id = DbId(value.to_be_bytes());
        (id.to_string() == text).then_some(id)
    }

    /// Returns the id at the start of `bytes`.
    pub(crate) fn at(bytes: &[u8]) -> Option<DbId> {
        bytes.first_chunk().copied().map(DbId)
    }
}

impl fmt::Display for DbId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Returns the path at which the database `db` writes the draft of the file `path`. No other
/// database and no other program uses such a name, so a draft left by a crash is recognized by it.
pub(crate) fn draft_of(path: &Path, db: DbId) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{db}{DRAFT_ENDING}"));
    PathBuf::from(name)
}

/// Returns the database whose draft has this name.
pub(crate) fn draft_owner(name: &str) -> Option<DbId> {
    let (_, id) = name.strip_suffix(DRAFT_ENDING)?.rsplit_once('.')?;
    DbId::parse(id)
}

const DRAFT_ENDING: &str = ".draft";

/// The effect of an entry on its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum EntryKind {
    /// The key has the entry's value.
    Put = 1,
    /// The key is absent; such an entry is called a tombstone.
    Delete = 2,
    /// The keys of a range are absent unless newer entries exist for them:
    /// `parts/ranges/layout.rs`.
    RangeDelete = 3,
    /// As `Put`, with an expiry: `parts/expiry`. 4 is a value pointer of table files.
    PutExpiring = 5,
}

impl EntryKind {
    /// Returns the kind stored as `raw`, if it is known.
    pub(crate) fn from_raw(raw: u8) -> Option<EntryKind> {
        match raw {
            1 => Some(EntryKind::Put),
            2 => Some(EntryKind::Delete),
            3 => Some(EntryKind::RangeDelete),
            5 => Some(EntryKind::PutExpiring),
            _ => None,
        }
    }

    /// Returns the raw kind of an entry whose expiry, if it has one, is stored separately.
    #[inline]
    pub(crate) fn without_expiry(raw: u8) -> u8 {
        match raw == EntryKind::PutExpiring as u8 {
            true => EntryKind::Put as u8,
            false => raw,
        }
    }
}

named_enum! {
    /// The encoding of a block of a table file. The numbers are those on the media.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[repr(u8)]
    pub enum Compression {
        /// Uncompressed.
        None = 0 => "none",
        /// LZ4: fast, and about half the size for text.
        #[default]
        Lz4 = 1 => "lz4",
        /// Zstandard: smaller, slower to write; needs the feature `zstd`.
        Zstd = 2 => "zstd",
    }
}

impl Compression {
    /// Returns the compression stored as `raw`, if it is known.
    pub(crate) fn from_raw(raw: u8) -> Option<Compression> {
        Compression::ALL.into_iter().find(|way| *way as u8 == raw)
    }

    /// Returns whether this build of the library can write and read it.
    pub(crate) fn is_built(self) -> bool {
        self != Compression::Zstd || cfg!(feature = "zstd")
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(name: &str) -> Result<Compression, Error> {
        let known = Compression::ALL.into_iter().find(|way| way.name() == name);
        known.ok_or_else(|| {
            let names = Compression::ALL.map(Compression::name).join(", ");
            Error::invalid(format!("unknown compression {name:?}; use one of {names}"))
        })
    }
}

/// The guarantee that a write waits for before it returns. `docs/durability.md` has the table by
/// medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// Not logged: durable only after the next [`flush`](crate::Db::flush) or a close. Lost by any
    /// crash before that. On medium `Dram` a drain makes it durable if the design has table files;
    /// otherwise nothing does.
    ///
    /// `FlatLsm` logs it in its pool, where the log is the table: there a crash of the process
    /// loses nothing. A power loss on `Dax` may take the last records, as many as have less than
    /// 256 bytes together, and never one before a write of another mode. A memtable of `NoveLsm` in
    /// the pool is its own log: there it is as durable as `Buffered`.
    Volatile,
    /// Logged: survives a crash of the process on every medium, and power loss on `Dax`.
    #[default]
    Buffered,
    /// Logged and synced: survives power loss on every medium.
    Sync,
}

impl Durability {
    /// Returns the mode's name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Durability::Volatile => "volatile",
            Durability::Buffered => "buffered",
            Durability::Sync => "sync",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Returns the hash stored in every node and used by every filter.
#[inline]
pub(crate) fn key_hash(keyspace: u32, key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot_with_seed(u64::from(keyspace), key)
}
