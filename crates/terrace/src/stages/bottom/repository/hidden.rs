//! Removal of nodes from the repository that newer tables of the buffer hide. A drain removes those
//! of its own keys. But while it waits for space, tables behind it may hide the nodes whose space
//! it needs.
//!
//! CRASH: a node that is dead here is hidden by a durable version above it, which drains later.

use terrace_media::Purpose;

use super::{Inner, Relinker};
use crate::error::Result;
use crate::parts::key::Target;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::retain::Retention;
use crate::parts::skiplist::fingers::Fingers;
use crate::stages::Drain;

/// Nodes visited in one step.
const STEP_NODES: u32 = 128;

/// A walk over the repository.
pub(super) struct Hidden {
    /// The place from which the walk continues.
    at: (u32, Vec<u8>),
}

impl Hidden {
    pub(super) fn begin() -> Hidden {
        Hidden {
            at: (0, Vec::new()),
        }
    }

    /// Visits some nodes. Returns true if they were the last.
    pub(super) fn step(
        &mut self,
        inner: &Inner,
        relinker: &mut Relinker,
        drain: &Drain,
        retention: &Retention,
    ) -> Result<bool> {
        let mut fingers = Fingers::at(&inner.list, &Target::first_of(self.at.0, &self.at.1))?;
        let mut looked_at = 0;
        // BOUND: the rest of a key, and STEP_NODES.
        let ended = loop {
            if !relinker.has_room() {
                relinker.flush_fingers(&mut fingers);
                relinker.commit(inner, Purpose::Reclaim)?;
            }
            let off = fingers.following();
            if off == 0 {
                break true;
            }
            let node = inner.list.node(off)?;
            let (keyspace, seq, hash) = (node.header.keyspace, node.header.seq, node.header.hash);
            if keyspace >= RANGE_DELETE_BIT {
                break true;
            }
            looked_at += 1;
            if (self.at.0, self.at.1.as_slice()) != (keyspace, node.key) {
                self.at.0 = keyspace;
                self.at.1.clear();
                self.at.1.extend_from_slice(node.key);
                if looked_at > STEP_NODES {
                    break false;
                }
            }
            let newer = drain.newest_of_all(keyspace, node.key, hash)?;
            let newer = newer.filter(|newer| *newer > seq);
            match retention.is_superseded(newer, seq) {
                true => relinker.unlink_dead(&inner.list, &mut fingers)?,
                false => fingers.pass(&inner.list, &mut relinker.plan())?,
            }
        };
        relinker.flush_fingers(&mut fingers);
        relinker.commit(inner, Purpose::Reclaim)?;
        Ok(ended)
    }
}
