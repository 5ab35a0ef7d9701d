//! This file is the cursor over a skip list, in DRAM or in the pool.

use super::{Cursor, EntryView};
use crate::canary::{self, Canary};
use crate::error::Result;
use crate::parts::gate::{Gate, Held};
use crate::parts::skiplist::{SkipList, Target};

/// A cursor over one list.
pub(crate) struct ListCursor {
    list: SkipList,
    gate: Option<Gate>,
    held: Option<Held>,
    relinks_seen: u64,
    at: u64,
}

impl ListCursor {
    /// A cursor off `list`. A list without a gate is never relinked.
    pub(crate) fn new(list: SkipList, gate: Option<Gate>) -> ListCursor {
        ListCursor {
            list,
            gate,
            held: None,
            relinks_seen: 0,
            at: 0,
        }
    }
}

impl Cursor for ListCursor {
    fn hold(&mut self) -> bool {
        let Some(gate) = &self.gate else { return true };
        let held = gate.hold();
        let mut same = held.relink_count() == self.relinks_seen;
        if canary::breaks(Canary::CursorStale) {
            same = true;
        }
        self.relinks_seen = held.relink_count();
        self.held = Some(held);
        same
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.at = self.list.seek(target)?.node;
        Ok(())
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        self.at = self.list.seek_before(target, breadth)?;
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.at != 0 {
            self.at = self.list.next(self.at, 0)?;
            self.list.region().prefetch(self.at);
        }
        Ok(())
    }

    #[inline]
    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        if self.at == 0 {
            return Ok(None);
        }
        let node = self.list.node(self.at)?;
        Ok(Some(EntryView {
            keyspace: node.header.keyspace,
            key: node.key,
            seq: node.header.seq,
            kind: node.header.kind,
        }))
    }

    #[inline]
    fn value(&self) -> Result<&[u8]> {
        if self.at == 0 {
            return Ok(&[]);
        }
        Ok(self.list.node(self.at)?.checked_value()?.0)
    }
}
