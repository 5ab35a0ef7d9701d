//! Walks over a whole tree, to check it and to estimate the number of entries between two keys.

use std::cmp::Ordering as Order;

use super::Tree;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
use crate::parts::skiplist::{Node, Visit, check_node};

impl Tree {
    /// Calls `visit` for every entry in order and checks the order, sizes and hashes. The tree may
    /// be under insertion.
    pub(crate) fn check(&self, visit: Visit<'_>) -> Result<(), DecodeError> {
        let mut stretch = self.stretch(&Target::first_of(0, &[]))?;
        let mut last: Option<Node<'_>> = None;
        // BOUND: entries ascend.
        while let Some(entry) = stretch.get(0) {
            let node = Node::read(self.region(), entry)?;
            if let Some(last) = last
                && last.compare(&node.target()) != Order::Less
            {
                return Err(DecodeError {
                    what: "index of a memtable",
                    offset: entry,
                    expected: "entries in ascending order".into(),
                    found: format!("the key {}", node.key.escape_ascii()),
                });
            }
            visit(&node, check_node(&node));
            last = Some(node);
            stretch.pop();
            if stretch.get(0).is_none() {
                stretch = self.stretch_after(&stretch)?;
            }
        }
        Ok(())
    }

    /// Estimates the number of entries between `from` and `to`, of `all`.
    pub(crate) fn count_between(
        &self,
        from: &Target<'_>,
        to: &Target<'_>,
        all: u64,
    ) -> Result<u64, DecodeError> {
        let share = self.share_before(to)? - self.share_before(from)?;
        Ok((share.max(0.0) * all as f64).round() as u64)
    }
}
