//! Media: the kinds of memory, distinguished by when a store is durable.

use std::fmt;

/// The kind of memory that holds a pool, which decides when a store is durable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Medium {
    /// Persistent memory, mapped directly: a line is durable once it is flushed and fenced.
    Dax,
    /// A file in the page cache: a page is durable once it is synced.
    Mapped,
    /// Anonymous memory: lost with the process.
    Dram,
}

impl Medium {
    /// Returns the name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Dax => "dax",
            Medium::Mapped => "mapped",
            Medium::Dram => "dram",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
