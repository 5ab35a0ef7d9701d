//! Range deletes: what of the key space was deleted at once, and up to which number.
//!
//! A range delete is an entry like any other, in the log, in a memtable, in a table in the pool
//! (layout.rs), and travels with them; in table files it has a block of its own. Beside that, all
//! range deletes whose keys may still be there are kept in DRAM, cut into fragments, and every view
//! holds what there was when it was built: a read asks its view and none of the sources. A database
//! without range deletes has nothing of this, and its reads look at one word of their view.
//!
//! ```text
//!   write --add--> LiveRanges --set--> RangeSet of a view --newest--> is this version deleted?
//!                      ^  trim, when a drain has carried them into the bottom
//! ```
//!
//! Invariants
//!   D1  A range delete is in the set of a view if the view's sources may have a key that it covers,
//!       unless no read through the view may see the range delete, or each that does sees a newer one over
//!       the key.
//!   D2  A version is taken out of its place for a range delete only where the range delete is durable
//!       itself, no snapshot reads the version, and, if readers of older views may come by there, no
//!       view is left that lacks the range delete: such a reader could find a still older version.
//!
//! Callers: writers on any thread add; jobs trim and ask; readers ask through views.

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
pub(crate) use late::{Ages, LateKeys, Newer};
pub(crate) use list::in_list;
pub(crate) use live::{Applicable, LiveRanges};
pub(crate) use set::{Key, Last, RangeSet, Spans, pieces_bytes};
