//! The cursor over a skip list, in DRAM or in the pool.

use super::{Cursor, EntryView};
use crate::canary::failpoint;
use crate::error::Result;
use crate::parts::expiry::Value;
use crate::parts::key::Target;
use crate::parts::latch::{Held, Latch};
use crate::parts::ranges::{LateKeys, Newer, SeqBound};
use crate::parts::skiplist::SkipList;
use crate::parts::skiplist::search::Search;
use crate::types::{EntryKind, SEQ_MAX, SeqNo};
use std::sync::Arc;

/// The bytes that one prefetch loads.
const LINE: u64 = 64;
/// The maximum number of cache lines of a node to prefetch. The hardware prefetcher recognizes
/// sequential reads only after some of them, and with values of 1 KiB those misses took most of the
/// time of a scan.
const LINES_AHEAD_MAX: u64 = 64;

/// Stands for the node behind the next one until its offset is read. Reading it would wait for the
/// next node, which a scan over many sources may never reach.
const UNKNOWN: u64 = u64::MAX;

/// A cursor over one list.
pub(crate) struct ListCursor {
    list: SkipList,
    latch: Option<Latch>,
    held: Option<Held>,
    relinks_seen: u64,
    /// The largest sequence number that a reader sees.
    newest: SeqNo,
    late: Option<Arc<LateKeys>>,
    ages: Option<Arc<SeqBound>>,
    at: u64,
    /// The two nodes after `at`, or 0 at the end. They are prefetched while earlier nodes are used,
    /// since the nodes of a table are not in address order. A node inserted between them meanwhile,
    /// in a memtable, is too new for the holder of the cursor to see.
    ahead: [u64; 2],
    /// The number of cache lines of the last node read. It estimates the size of the next nodes,
    /// whose headers are not loaded yet.
    lines: u64,
    search: Option<Search>,
}

impl ListCursor {
    /// Creates an unpositioned cursor over `list`. A list without a latch is never relinked.
    pub(crate) fn new(list: SkipList, latch: Option<Latch>) -> ListCursor {
        ListCursor {
            list,
            latch,
            held: None,
            relinks_seen: 0,
            newest: SEQ_MAX,
            late: None,
            ages: None,
            at: 0,
            ahead: [0; 2],
            lines: 1,
            search: None,
        }
    }

    /// Sets the largest sequence number to read.
    pub(crate) fn up_to(mut self, newest: SeqNo) -> ListCursor {
        self.newest = newest;
        self
    }

    /// Sets the keys that were written into ranges after those were deleted in the list.
    pub(crate) fn with_late(mut self, late: Arc<LateKeys>) -> ListCursor {
        self.late = Some(late);
        self
    }

    /// Sets the ages of the entries of a list that is still written.
    pub(crate) fn with_ages(mut self, ages: &Arc<SeqBound>) -> ListCursor {
        self.ages = Some(Arc::clone(ages));
        self
    }

    /// Moves to a node whose header the search has read.
    fn enter(&mut self, at: u64) -> Result<()> {
        self.at = at;
        self.ahead = [0; 2];
        if at == 0 {
            return Ok(());
        }
        self.measure()?;
        self.ahead = [self.list.next(at, 0)?, UNKNOWN];
        self.prefetch(at);
        self.prefetch(self.ahead[0]);
        Ok(())
    }

    /// Takes the size of the current node as an estimate for those after it.
    #[inline]
    fn measure(&mut self) -> Result<()> {
        let bytes = self.list.node(self.at)?.header.node_bytes() as u64;
        // A node may begin anywhere in a line.
        self.lines = (bytes.div_ceil(LINE) + 1).min(LINES_AHEAD_MAX);
        Ok(())
    }

    /// Prefetches all lines of a node at once.
    #[inline]
    fn prefetch(&self, node: u64) {
        let region = self.list.region();
        for line in 0..self.lines {
            region.prefetch(node.wrapping_add(line * LINE));
        }
    }

    /// Finds and prefetches the second node ahead.
    #[inline]
    fn look_ahead(&mut self) -> Result<()> {
        self.ahead[1] = 0;
        if self.ahead[0] != 0 {
            self.ahead[1] = self.list.next(self.ahead[0], 0)?;
            self.prefetch(self.ahead[1]);
        }
        Ok(())
    }
}

impl Cursor for ListCursor {
    fn hold(&mut self) -> bool {
        let Some(latch) = &self.latch else {
            return true;
        };
        let held = latch.hold();
        let mut same = held.relink_count() == self.relinks_seen;
        failpoint!(CursorStale => same = true);
        self.relinks_seen = held.relink_count();
        self.held = Some(held);
        same
    }

    fn release(&mut self) {
        self.held = None;
    }

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        let at = self.list.seek(target)?.node;
        self.enter(at)
    }

    fn begin_seek(&mut self, target: &Target<'_>) -> Result<bool> {
        if self.list.has_search_hints() {
            self.seek(target)?;
            return Ok(true);
        }
        self.search = self.list.begin_search()?;
        if self.search.is_none() {
            self.enter(0)?;
        }
        Ok(self.search.is_none())
    }

    #[inline]
    fn step_seek(&mut self, target: &Target<'_>) -> Result<bool> {
        let Some(search) = &mut self.search else {
            return Ok(true);
        };
        match self.list.step_search(search, target)? {
            Some(at) => {
                self.search = None;
                self.enter(at)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        let at = self.list.seek_before(target, breadth)?;
        self.enter(at)
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        if self.at != 0 {
            self.measure()?;
        }
        self.at = self.ahead[0];
        self.ahead[0] = self.ahead[1];
        if self.ahead[0] == UNKNOWN {
            self.ahead[0] = match self.at {
                0 => 0,
                at => self.list.next(at, 0)?,
            };
            self.prefetch(self.ahead[0]);
        }
        self.look_ahead()
    }

    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer {
        if self.newest <= than {
            return Newer::No;
        }
        match (&self.late, &self.ages) {
            (Some(late), _) => late.newer(from, to, than, last),
            (None, Some(ages)) => ages.newer(from, to, than, last),
            (None, None) => Newer::Unknown,
        }
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
            kind: EntryKind::without_expiry(node.header.kind),
        }))
    }

    #[inline]
    fn value(&self) -> Result<Value<'_>> {
        if self.at == 0 {
            return Ok(Value::default());
        }
        Ok(self.list.node(self.at)?.checked_entry()?)
    }
}
