//! Range deletes: ranges of the key space that were deleted at once, up to a sequence number.
//!
//! A range delete is an entry like any other in the log, in a memtable and in a table in the pool
//! (layout.rs), and moves with them; table files store range deletes in a block of their own. In
//! addition, all range deletes whose keys may still exist are kept in DRAM, cut into fragments, and
//! every view holds the set from when it was built: a read asks its view and no source. A database
//! without range deletes keeps no such set, and its reads check one word of their view.
//!
//! ```text
//!   write --add--> LiveRanges --set--> RangeSet of a view --newest--> is this version deleted?
//!                      ^  trim, when a drain has carried them into the bottom
//! ```
//!
//! Invariants
//!   D1  A range delete is in the set of a view if the view's sources may have a key that it
//!       covers, unless no read through the view may see the range delete, or each that does sees a
//!       newer one over the key.
//!   D2  A version is removed in place for a range delete only if the range delete is durable, no
//!       snapshot reads the version, and, if readers of older views may pass there, every view has
//!       the range delete: a reader without it could find a still older version.
//!
//! Writers on any thread add range deletes, jobs trim and query them, and readers query them
//! through views.

#[cfg(feature = "decoders")]
pub(crate) mod decoders;
mod fragment;
mod late;
pub(crate) mod layout;
mod list;
mod live;
mod set;

#[cfg(test)]
mod tests;

pub(crate) use fragment::{Keep, RangeDelete, Readable, fragment};
pub(crate) use late::{LateKeys, Newer, SeqBound};
pub(crate) use list::in_list;
pub(crate) use live::{Applicable, LiveRanges};
pub(crate) use set::{Fragments, Key, Last, RangeSet, pieces_bytes};
