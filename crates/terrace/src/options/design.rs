//! The designs by name, and where each keeps its data.
//!
//! Used by options, memory plans and tools. The stages of each design are in `designs/`.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::named::named_enum;

named_enum! {
    /// A composition of stages.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Design {
        /// MioDB (ASPLOS '23): log and DRAM memtable, levels of skip lists that merge by relinking,
        /// one huge skip list at the bottom.
        MioDb => "miodb",
        /// MioDB with its bottom on a block device: levels of SSTables.
        MioDbSsd => "miodb-ssd",
        /// MatrixKV (ATC '20): level 0 is a matrix of rows in the pool, which leaves in columns of
        /// keys that are merged with level 1 in table files.
        MatrixKv => "matrixkv",
        /// FlatLSM (TOS '23): tables in the pool that are their logs, with an index in memory,
        /// above two levels of table files with long values apart.
        FlatLsm => "flatlsm",
        /// NoveLSM (ATC '18), flat and mutable: memtables in memory and in the pool take turns, and
        /// those in the pool are their own logs; levels of SSTables below.
        NoveLsm => "novelsm",
        /// NoveLSM without SSTables: all data stays in the pool.
        NoveLsmNoSst => "novelsm-nosst",
        /// NoveLSM, hierarchical and immutable: memtables in memory are copied into one in the
        /// pool, above levels of SSTables.
        NoveLsmHier => "novelsm-hier",
        /// The baseline, like LevelDB and RocksDB: log and memtable, levels of SSTables.
        Leveled => "leveled",
        ;
        #[cfg(feature = "test-design")]
        BufferOnly => "buffer-only",
    }
}

/// The designs that only tests use, which `Design::ALL` leaves out.
const OF_TESTS: &[Design] = &[
    #[cfg(feature = "test-design")]
    Design::BufferOnly,
];

/// The location of a design's data.
struct Shape {
    /// The name of the stage in the pool between memtables and bottom.
    buffer: Option<&'static str>,
    table_files: bool,
    /// Whether what is in the buffer is in logs alone.
    logs_are_tables: bool,
}

impl Design {
    const fn shape(self) -> Shape {
        let (buffer, table_files, logs_are_tables) = match self {
            Design::MioDb | Design::NoveLsmNoSst => (Some("elastic"), false, false),
            Design::MioDbSsd | Design::NoveLsm | Design::NoveLsmHier => {
                (Some("elastic"), true, false)
            }
            Design::MatrixKv => (Some("matrix"), true, false),
            Design::FlatLsm => (Some("tables"), true, true),
            Design::Leveled => (None, true, false),
            #[cfg(feature = "test-design")]
            Design::BufferOnly => (Some("elastic"), false, false),
        };
        Shape {
            buffer,
            table_files,
            logs_are_tables,
        }
    }

    /// Returns what it is, in a few words, for help texts.
    pub const fn summary(self) -> &'static str {
        match self {
            Design::MioDb => "all data stays in the pool",
            Design::MioDbSsd => "a buffer in the pool, or in memory, above levels of table files",
            Design::MatrixKv => {
                "level 0 in the pool, merged in columns with level 1 in table files"
            }
            Design::FlatLsm => {
                "logs in the pool that are its tables, above two levels of table files"
            }
            Design::NoveLsm => {
                "memtables in memory and in the pool in turns, above levels of table files"
            }
            Design::NoveLsmNoSst => {
                "memtables in memory and in the pool in turns; all data stays in the pool"
            }
            Design::NoveLsmHier => {
                "memtables in memory above one in the pool, above levels of table files"
            }
            Design::Leveled => "log and memtable above levels of table files",
            #[cfg(feature = "test-design")]
            Design::BufferOnly => "for tests: a buffer without a bottom",
        }
    }

    /// Returns whether data stays in the pool: in a buffer or a bottom there. Otherwise the pool
    /// contains the logs and the space of memtables, whatever the amount of data.
    pub fn keeps_data_in_pool(self) -> bool {
        self.shape().buffer.is_some()
    }

    /// Returns the name of the buffer, the stage in the pool that takes flushed memtables:
    /// "elastic", "matrix" or "tables". Each has options that mean nothing to the others.
    pub fn buffer(self) -> Option<&'static str> {
        self.shape().buffer
    }

    /// Returns whether the tables of its buffer are logs and indexes of these: an entry needs its
    /// log until it is in a table file.
    pub(crate) fn keeps_tables_in_logs(self) -> bool {
        self.shape().logs_are_tables
    }

    /// Returns whether it has a memtable in the pool, in addition to those in memory.
    pub const fn has_pm_memtable(self) -> bool {
        match self {
            Design::NoveLsm | Design::NoveLsmNoSst | Design::NoveLsmHier => true,
            #[cfg(feature = "test-design")]
            Design::BufferOnly => false,
            Design::MioDb
            | Design::MioDbSsd
            | Design::MatrixKv
            | Design::FlatLsm
            | Design::Leveled => false,
        }
    }

    /// Returns whether data ends up in table files, in the database's directory.
    pub fn keeps_table_files(self) -> bool {
        self.shape().table_files
    }
}

impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Design {
    type Err = Error;

    fn from_str(name: &str) -> Result<Design> {
        let known = Design::ALL
            .into_iter()
            .chain(OF_TESTS.iter().copied())
            .find(|d| d.name().eq_ignore_ascii_case(name));
        known.ok_or_else(|| {
            let names: Vec<_> = Design::ALL.iter().map(|d| d.name()).collect();
            Error::invalid(format!(
                "unknown design {name:?}; this version has {}",
                names.join(", ")
            ))
        })
    }
}
