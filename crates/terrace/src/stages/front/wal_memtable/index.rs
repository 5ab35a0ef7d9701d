//! The index of a memtable: a skip list where the next stage takes over its bytes, else a B+-tree,
//! which is faster and takes no search hints.

use std::sync::Arc;

use terrace_media::{Bump, Extent, Region};

use crate::error::{Error, Result};
use crate::parts::btree::{self, Tree};
use crate::parts::codec::DecodeError;
use crate::parts::iter::{Cursor, ListCursor, TreeCursor};
use crate::parts::key::{Place, Target};
use crate::parts::ranges::LateKeys;
use crate::parts::skiplist::layout::{TABLE_HEADER_BYTES, TABLE_NODES_AT, encode_table_header};
use crate::parts::skiplist::node::head_bytes;
use crate::parts::skiplist::search_hints::SearchHints;
use crate::parts::skiplist::{self, Node, SkipList, Visit};
use crate::types::SeqNo;

use super::in_log::{InLogCursor, Values};

/// The entries of a memtable in order.
pub(super) enum Index {
    List(SkipList),
    Tree(Tree),
}

/// A place that was found for an entry before it is inserted.
#[derive(Clone, Copy, Default)]
pub(super) enum Approach {
    #[default]
    Unknown,
    List(skiplist::Approach),
    Tree(btree::Approach),
}

/// Returns the error for an arena that is too small for an empty index.
fn holds_nothing(bump: &Bump) -> Error {
    let bytes = bump.capacity();
    Error::invalid(format!("a memtable of {bytes} bytes holds nothing"))
}

impl Index {
    /// Creates an empty list for the table `id`, at the beginning of the extent that is at `start`.
    pub(super) fn list(
        bump: &Bump,
        start: u64,
        id: u64,
        search_hints: Option<SearchHints>,
    ) -> Result<Index> {
        let claim = bump.lend(TABLE_NODES_AT, 64);
        let mut claim = claim.ok_or_else(|| holds_nothing(bump))?;
        claim.write(0, &encode_table_header(id));
        claim.write(TABLE_HEADER_BYTES, &head_bytes());
        let list = SkipList::new(bump.region().clone(), start + TABLE_HEADER_BYTES as u64);
        Ok(Index::List(match search_hints {
            Some(search_hints) => list.with_search_hints(search_hints),
            None => list,
        }))
    }

    /// Opens the list at the beginning of an extent, whose header and head are written.
    pub(super) fn existing_list(extent: &Extent) -> Index {
        let head = extent.off() + TABLE_HEADER_BYTES as u64;
        Index::List(SkipList::new(extent.region().clone(), head))
    }

    /// Creates an empty tree.
    pub(super) fn tree(bump: &Bump) -> Result<Index> {
        let tree = Tree::new(bump)?.ok_or_else(|| holds_nothing(bump))?;
        Ok(Index::Tree(tree))
    }

    /// Returns the bytes of an arena for an index of `entries`, besides their nodes.
    pub(super) fn bytes_for(in_tree: bool, entries: u64) -> u64 {
        match in_tree {
            true => Tree::bytes_for(entries),
            false => TABLE_NODES_AT as u64,
        }
    }

    /// Returns the bytes that [`grow`](Index::grow) takes for `entries`.
    #[inline]
    pub(super) fn lacks(&self, entries: u64) -> u64 {
        match self {
            Index::List(_) => 0,
            Index::Tree(tree) => tree.lacks(entries),
        }
    }

    /// Provides the memory for an index of `entries`. Returns false if the arena is full. Calls
    /// must not overlap.
    #[inline]
    pub(super) fn grow(&self, bump: &Bump, entries: u64) -> bool {
        match self {
            Index::List(_) => true,
            Index::Tree(tree) => tree.grow(bump, entries),
        }
    }

    pub(super) fn region(&self) -> &Region {
        match self {
            Index::List(list) => list.region(),
            Index::Tree(tree) => tree.region(),
        }
    }

    /// Takes the search hints out. Returns `None` if there are none, or if they are still in use.
    pub(super) fn take_search_hints(&mut self) -> Option<SearchHints> {
        match self {
            Index::List(list) => list.take_search_hints(),
            Index::Tree(_) => None,
        }
    }

    /// Finds where an entry will be inserted, and prefetches the memory there.
    #[inline]
    pub(super) fn approach(&self, target: &Target<'_>) -> Approach {
        match self {
            Index::List(list) => Approach::List(list.approach(target)),
            Index::Tree(tree) => tree
                .approach(target)
                .map_or(Approach::Unknown, Approach::Tree),
        }
    }

    /// Inserts the entry whose node `write` writes and returns.
    #[inline]
    pub(super) fn insert(
        &self,
        approach: Approach,
        target: &Target<'_>,
        write: impl FnOnce() -> (u64, u8),
    ) -> Result<()> {
        match self {
            Index::List(list) => {
                let approach = match approach {
                    Approach::List(approach) => approach,
                    _ => skiplist::Approach::default(),
                };
                let from = list.look_ahead(approach, target)?;
                let (off, height) = write();
                Ok(list.insert_from(from, off, height, target)?)
            }
            Index::Tree(tree) => {
                let approach = match approach {
                    Approach::Tree(approach) => Some(approach),
                    _ => None,
                };
                let (off, _) = write();
                tree.insert(approach, off, target)
            }
        }
    }

    /// Returns the first node at or after a target.
    #[inline]
    pub(super) fn seek(&self, target: &Target<'_>) -> Result<Option<Node<'_>>, DecodeError> {
        let off = match self {
            Index::List(list) => list.seek(target)?.node,
            Index::Tree(tree) => tree.seek(target)?,
        };
        match off {
            0 => Ok(None),
            off => self.node(off).map(Some),
        }
    }

    /// Returns an unpositioned cursor over the entries up to the number `newest`. `log` has their
    /// values, if nodes have not.
    pub(super) fn cursor(
        &self,
        newest: SeqNo,
        late: Option<Arc<LateKeys>>,
        (values, log): (&Values, Option<&Arc<Extent>>),
    ) -> Box<dyn Cursor> {
        match self {
            Index::List(list) => {
                let cursor = ListCursor::new(list.clone(), None).up_to(newest);
                Box::new(match late {
                    Some(late) => cursor.with_late(late),
                    None => cursor,
                })
            }
            Index::Tree(tree) => {
                let mut cursor = TreeCursor::new(tree.clone(), newest);
                if let Some(late) = late {
                    cursor = cursor.with_late(late);
                }
                match values {
                    Values::InLog(_) => Box::new(InLogCursor::new(cursor, values, log)),
                    Values::InNodes => Box::new(cursor),
                }
            }
        }
    }

    /// Estimates the number of entries between two places, of `all`.
    pub(super) fn count_between(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
        all: u64,
    ) -> Result<u64> {
        let count = match self {
            Index::List(list) => list.count_between(from, to)?,
            Index::Tree(tree) => tree.count_between(from, to, all)?,
        };
        Ok(count.min(all))
    }

    /// Returns about `count` ascending entries, with about as many others of all `entries` between
    /// any two.
    pub(super) fn spread(&self, entries: u64, count: usize) -> Result<Vec<(Place, SeqNo)>> {
        let found = match self {
            Index::List(list) => list.spread(entries, count)?,
            Index::Tree(tree) => tree.spread(count)?,
        };
        let at = (0..count).map(|at| at * found.len() / count);
        let mut found: Vec<u64> = at.filter_map(|at| found.get(at).copied()).collect();
        found.dedup();
        found
            .into_iter()
            .map(|off| {
                let node = self.node(off)?;
                Ok(((node.header.keyspace, node.key.to_vec()), node.header.seq))
            })
            .collect()
    }

    fn node(&self, off: u64) -> Result<Node<'_>, DecodeError> {
        Node::read(self.region(), off)
    }

    /// Visits and checks all entries. Others may be inserted meanwhile.
    pub(super) fn check(&self, visit: Visit<'_>) -> Result<(), DecodeError> {
        match self {
            Index::List(list) => list.check_growing(visit),
            Index::Tree(tree) => tree.check(visit),
        }
    }
}
