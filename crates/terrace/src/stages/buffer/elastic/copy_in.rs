//! The flush: a sealed memtable becomes a table by one copy of its bytes (MioDB, 4.2), or without a
//! copy if the memtable is in its extent: if the pool is memory, or as a list that is its own log.
//!
//! The copy streams past the caches, and each piece is fenced. Links need no change, since they are
//! pool offsets from the moment a node is written. The filter is built from the hashes in the
//! nodes, read in storage order while they are copied.

use std::mem::take;
use std::sync::Arc;

use terrace_media::Purpose;

use super::Tables;
use super::layout::{TableExtent, TableMeta};
use super::table::{Inner, Table};
use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::parts::filter::{Filter, FilterBuilder};
use crate::parts::manifest::{Change, Edit};
use crate::parts::skiplist::SkipList;
use crate::parts::skiplist::layout::{HEIGHT_MAX, TABLE_HEADER_BYTES, TABLE_NODES_AT};
use crate::parts::skiplist::node::link_at;
use crate::parts::skiplist::walk::Walk;
use crate::stages::{Completion, Job, JobKind, ListImage, Sealed, Shared, Step, retired};

/// Bytes copied in one step: about 20 us, so that a flush never occupies a thread for long.
const STEP_BYTES: u64 = 256 * 1024;

/// The flush of one memtable.
pub(super) struct CopyIn {
    shared: Arc<Shared>,
    tables: Arc<Tables>,
    /// Taken by the last step.
    sealed: Option<(Sealed, ListImage)>,
    /// Whether all entries are in the image.
    finished: bool,
    /// Whether each is in a log that is synced.
    synced: bool,
    copied: u64,
    /// The position of the walk over the nodes, from the start of the image.
    hashed: u64,
    filter: Option<FilterBuilder>,
}

impl CopyIn {
    pub(super) fn begin(
        shared: Arc<Shared>,
        tables: Arc<Tables>,
        sealed: Sealed,
        list: ListImage,
    ) -> CopyIn {
        let bits = shared.options.buffer.filter_bits_per_key;
        let filter = (bits > 0).then(|| FilterBuilder::new(sealed.entries, bits));
        CopyIn {
            shared,
            tables,
            sealed: Some((sealed, list)),
            finished: false,
            synced: false,
            copied: 0,
            hashed: TABLE_NODES_AT as u64,
            filter,
        }
    }

    /// Copies the next piece, if it is not in place yet, and reads the hashes of its nodes. Returns
    /// false when all is done.
    fn copy_piece(&mut self, used: u64, list: &ListImage) -> Result<bool> {
        let left = used - self.copied;
        if left == 0 {
            return Ok(false);
        }
        let len = left.min(STEP_BYTES) as usize;
        let at = list.extent.off() + self.copied;
        let outside = || Error::corruption("a memtable is larger than its extent in the pool");
        let bytes = list.region.bytes(at, len).ok_or_else(outside)?;
        if !list.in_place {
            let mut claim = list.extent.claim(self.copied, len).ok_or_else(outside)?;
            claim.write_streaming(0, bytes, Purpose::Flush);
            // PERSIST: this piece before a later step, which may run on another thread: a fence
            // does not order the stores of other threads. Reversed, the edit could name a table
            // with pieces missing.
            list.extent.region().fence(Purpose::Flush);
        }
        self.copied += len as u64;
        let flushes_links = list.in_place && self.shared.pool_outlives();
        if self.filter.is_some() || flushes_links {
            self.walk_piece(used, list, flushes_links)?;
        }
        if flushes_links {
            // PERSIST: the links of a list that was its own log, before the edit that makes it a
            // table. Reversed, a power loss could leave a table with links from before. All else of
            // its nodes is durable.
            // CRASH: it is still its log, and recovery links all nodes again.
            list.extent.region().fence(Purpose::Flush);
        }
        Ok(true)
    }

    /// Puts the hashes of a piece's nodes into the filter, and flushes their links.
    fn walk_piece(&mut self, used: u64, list: &ListImage, flushes_links: bool) -> Result<()> {
        let base = list.extent.off();
        let flush_links = |off: u64, height: u8| {
            let links = 8 * usize::from(height);
            let region = list.extent.region();
            failpoint!(LinksUnflushed skips region.flush(link_at(off, 0), links, Purpose::Flush));
        };
        if flushes_links && self.hashed == TABLE_NODES_AT as u64 {
            flush_links(base + TABLE_HEADER_BYTES as u64, HEIGHT_MAX as u8);
        }
        let mut walk = Walk::new(&list.region, base + self.hashed, base + used);
        while walk.position() < base + self.copied {
            let Some(node) = walk.next_node()? else {
                break;
            };
            if let Some(filter) = &mut self.filter {
                filter.insert(node.header.hash);
            }
            if flushes_links {
                flush_links(node.off, node.header.height);
            }
        }
        self.hashed = walk.position() - base;
        Ok(())
    }

    /// Writes the filter. Without pool space for it the table gets no filter.
    fn write_filter(&mut self) -> Result<Option<Arc<Filter>>> {
        let Some(builder) = self.filter.take() else {
            return Ok(None);
        };
        let Some(extent) = self.shared.alloc_optional(builder.len_bytes(), 0)? else {
            return Ok(None);
        };
        Ok(Some(Arc::new(builder.finish(&extent, Purpose::Flush))))
    }

    fn complete(&mut self, mut sealed: Sealed, list: ListImage) -> Result<Completion> {
        let filter = self.write_filter()?;
        let region = self.shared.pool.region();
        // PERSIST: the table's bytes and its filter before the edit that names them. Reversed, a
        // crash could leave a table of garbage and no log to rebuild it from.
        region.fence(Purpose::Flush);
        let sync = |off, len: u64| {
            failpoint!(TableSync => return Ok(()));
            region.sync(off, len as usize).map_err(|e| {
                Error::new(
                    crate::error::ErrorKind::Io,
                    format!("cannot sync a flushed table: {e}"),
                )
                .because(e)
            })
        };
        sync(list.extent.off(), sealed.bytes)?;
        if let Some(filter) = &filter {
            sync(filter.span().off, filter.span().len)?;
        }
        // A table in memory needs its logs until it is drained (B4).
        let outlives = self.shared.pool_outlives();
        let mut logs = take(&mut sealed.logs);
        failpoint!(LogRetired => self.shared.manifest.commit(Edit { changes: retired(&take(&mut logs)).collect() })?);
        let head = list.extent.off() + TABLE_HEADER_BYTES as u64;
        let mut span = list.extent.span();
        if outlives && list.in_place {
            // The rest is not needed, with the marks at its end.
            let granule = self.shared.pool.usage().granule;
            span.len = sealed.bytes.next_multiple_of(granule).min(span.len);
        }
        let meta = TableMeta {
            id: sealed.id,
            level: 0,
            head,
            extents: vec![TableExtent {
                span,
                used: sealed.bytes,
            }],
            filter: filter.as_ref().map(|f| f.span()),
            entries: sealed.entries,
            bytes: sealed.bytes,
            seq_first: sealed.seq_first,
            seq_last: sealed.seq_last,
            merging_into: None,
        };
        let mut changes = vec![Change::added(meta)];
        if outlives {
            let (seq, id) = (sealed.seq_last, sealed.id + 1);
            changes.extend([Change::LastSeq { seq }, Change::NextId { id }]);
            changes.extend(retired(&std::mem::take(&mut logs)));
        }
        let inner = Inner {
            level: 0,
            extents: vec![(Arc::clone(&list.extent), sealed.bytes)],
            entries: sealed.entries,
            bytes: sealed.bytes,
            seq_first: sealed.seq_first,
            seq_last: sealed.seq_last,
            logs,
            unsynced: !outlives && !self.synced,
            readers: list.in_place.then_some(list.readers),
            busy: false,
            named_filter: filter.clone(),
            merging_into: None,
            grows_to: 0,
        };
        let nodes = SkipList::new(region.clone(), head);
        let table = Arc::new(Table::new(
            sealed.id,
            nodes,
            filter.into_iter().collect(),
            sealed.late.clone(),
            inner,
        ));
        let tables = Arc::clone(&self.tables);
        let extent = list.extent;
        let forget = sealed.forget;
        Ok(Completion {
            edit: Edit { changes },
            apply: Box::new(move || {
                // PERSIST: the edit, which names no more of the extent, before that is free.
                extent.shorten(span.len);
                tables.insert(table);
                forget();
            }),
            garbage: Vec::new(),
            entries: sealed.entries,
        })
    }
}

impl Job for CopyIn {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn step(&mut self) -> Result<Step> {
        let Some((mut sealed, list)) = self.sealed.take() else {
            return Ok(Step::More);
        };
        if !self.finished {
            let finish = std::mem::replace(&mut sealed.finish, Box::new(|| Ok(false)));
            self.synced = finish()?;
            self.finished = true;
        }
        if sealed.entries == 0 {
            return Ok(Step::Done(sealed.into_nothing()));
        }
        if self.copy_piece(sealed.bytes, &list)? {
            self.sealed = Some((sealed, list));
            return Ok(Step::More);
        }
        Ok(Step::Done(self.complete(sealed, list)?))
    }
}
