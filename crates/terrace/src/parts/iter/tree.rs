//! The cursor over the tree of a memtable.

use super::{Cursor, EntryView};
use crate::error::Result;
use crate::parts::btree::{Stretch, Tree};
use crate::parts::expiry::Value;
use crate::parts::key::Target;
use crate::parts::ranges::{LateKeys, Newer};
use crate::parts::skiplist::Node;
use crate::types::{EntryKind, SeqNo};
use std::sync::Arc;

/// The number of entries that are prefetched before they are used.
const ENTRIES_AHEAD: usize = 8;

/// The offset in an entry at which most short keys end.
const KEY_LINE: u64 = 55;

/// A cursor over one tree.
///
/// It has a copy of the rest of a leaf. An entry inserted there meanwhile is too new for the holder
/// of the cursor to see.
pub(crate) struct TreeCursor {
    tree: Tree,
    /// The largest sequence number that a reader sees.
    newest: SeqNo,
    late: Option<Arc<LateKeys>>,
    /// The current entry, and the ones after it in its leaf.
    stretch: Stretch,
}

impl TreeCursor {
    /// Creates an unpositioned cursor over `tree`, for entries up to `newest`.
    pub(crate) fn new(tree: Tree, newest: SeqNo) -> TreeCursor {
        TreeCursor {
            tree,
            newest,
            late: None,
            stretch: Stretch::default(),
        }
    }

    /// Sets the keys that were written into ranges after those were deleted in the tree.
    pub(crate) fn with_late(mut self, late: Arc<LateKeys>) -> TreeCursor {
        self.late = Some(late);
        self
    }

    /// Returns the entry some entries ahead, if its leaf has it. Its first lines are prefetched.
    #[inline]
    pub(crate) fn ahead(&self, entries: usize) -> Result<Option<Node<'_>>> {
        match self.stretch.get(entries) {
            Some(entry) => Ok(Some(Node::read(self.tree.region(), entry)?)),
            None => Ok(None),
        }
    }

    /// Moves to the next entry if that is in the same leaf.
    #[inline]
    pub(crate) fn advance_in_leaf(&mut self) -> bool {
        let is_last = self.stretch.get(1).is_none();
        if !is_last {
            self.stretch.pop();
            self.prefetch(ENTRIES_AHEAD - 1);
        }
        !is_last
    }

    #[inline]
    fn prefetch(&self, ahead: usize) {
        if let Some(entry) = self.stretch.get(ahead) {
            self.tree.region().prefetch(entry);
            self.tree.region().prefetch(entry.wrapping_add(KEY_LINE));
        }
    }

    fn enter(&mut self, stretch: Stretch) {
        self.stretch = stretch;
        for ahead in 0..ENTRIES_AHEAD {
            self.prefetch(ahead);
        }
        self.tree.prefetch_after(&self.stretch);
    }

    #[inline]
    fn node(&self) -> Result<Option<Node<'_>>> {
        self.ahead(0)
    }
}

impl Cursor for TreeCursor {
    fn hold(&mut self) -> bool {
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        let stretch = self.tree.stretch(target)?;
        self.enter(stretch);
        Ok(())
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        let back = 3_u64.saturating_pow(breadth as u32);
        let entry = self.tree.seek_before(target, back)?;
        if entry == 0 {
            self.stretch = Stretch::default();
            return Ok(());
        }
        let at = Node::read(self.tree.region(), entry)?.target();
        let stretch = self.tree.stretch(&at)?;
        self.enter(stretch);
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if !self.advance_in_leaf() {
            let next = self.tree.stretch_after(&self.stretch)?;
            self.enter(next);
        }
        Ok(())
    }

    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer {
        if self.newest <= than {
            return Newer::No;
        }
        match &self.late {
            Some(late) => late.newer(from, to, than, last),
            None => Newer::Unknown,
        }
    }

    #[inline]
    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        Ok(self.node()?.map(|node| EntryView {
            keyspace: node.header.keyspace,
            key: node.key,
            seq: node.header.seq,
            kind: EntryKind::without_expiry(node.header.kind),
        }))
    }

    #[inline]
    fn value(&self) -> Result<Value<'_>> {
        match self.node()? {
            Some(node) => Ok(node.checked_entry()?),
            None => Ok(Value::default()),
        }
    }
}
