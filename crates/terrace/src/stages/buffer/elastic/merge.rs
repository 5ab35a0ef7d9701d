//! The merge of two tables by relinking: the newer is emptied into the older (MioDB, 4.3).
//!
//! Both lists are walked in key order. A node of the newer list is linked into the older at its
//! place; a version that no reader can see is left out. No key and no value is copied. The filter
//! of the result is built on the way from the hashes in the nodes.
//!
//! Each step plans some hundred changes from links that no other job may change, then makes them
//! all through the redo area while it holds the latches of both lists. Until the merge ends, the
//! older list answers with both tables' filters (E3), and readers search the newer list first (E1).
//!
//! A lost link looks like the end of a list. So each batch also records how many entries were left
//! out so far, and a resumed merge knows how many must still come.
//!
//! Durable order: the count, the edit that names the merge, then batches of links, then the filter,
//! then the edit that removes the newer table.

use std::cmp::Ordering as Order;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrace_media::Purpose;

use super::Tables;
use super::layout::{TABLE, TableMeta};
use super::table::Table;
use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::parts::filter::{Filter, FilterBuilder};
use crate::parts::manifest::{Change, Edit};
use crate::parts::redo::layout::STORES_MAX;
use crate::parts::redo::{Mark, RedoSlot};
use crate::parts::retain::Retention;
use crate::parts::skiplist::fingers::{Fingers, Plan};
use crate::parts::skiplist::layout::HEIGHT_MAX;
use crate::parts::skiplist::node::{Node, link_at};
use crate::parts::snapshots::Stripes;
use crate::stages::{Completion, EntryCount, Job, JobKind, Shared, Step};
use crate::types::SeqNo;

/// Nodes visited in one step: some tens of microseconds.
const STEP_NODES: u32 = 256;
/// The maximum stores of one node, and those that end a batch: the stores that the fingers still
/// owe, the newer list's head, and the count.
const NODE_STORES: usize = HEIGHT_MAX;
const LAST_STORES: usize = 2 * HEIGHT_MAX + 1;
/// Stores that must be left in a batch to begin another key in it.
const KEY_STORES: usize = STORES_MAX / 2;

/// One merge.
pub(super) struct Merge {
    shared: Arc<Shared>,
    tables: Arc<Tables>,
    newer: Arc<Table>,
    older: Arc<Table>,
    slot: RedoSlot,
    /// Whether the result stays on the level of the older table.
    stays: bool,
    retention: Retention,
    begun: bool,
    fingers: Fingers,
    /// The newer list's head links after the planned changes.
    heads: [u64; HEIGHT_MAX],
    heads_written: [u64; HEIGHT_MAX],
    /// The last node kept: later versions of its key are compared with it.
    kept: Option<(u64, SeqNo)>,
    /// The last node taken out of the newer list.
    taken: u64,
    filter: Option<FilterBuilder>,
    entries: u64,
    bytes: u64,
    /// Entries of both tables that are linked in one of them, and those visited.
    count: EntryCount,
    /// Entries of both that are linked in neither any more, and the number in the newer table's
    /// header.
    left_out: u64,
    left_out_written: Option<u64>,
    /// The state before a key of which the newer list has several versions.
    savepoint: Option<Box<Savepoint>>,
}

/// A place between two keys to which planning can return.
struct Savepoint {
    fingers: Fingers,
    heads: [u64; HEIGHT_MAX],
    kept: Option<(u64, SeqNo)>,
    taken: u64,
    entries: u64,
    bytes: u64,
    passed: u64,
    left_out: u64,
    planned: Mark,
}

impl Merge {
    /// Prepares the merge of `newer` into `older`, which the caller has marked busy. The result
    /// moves down one level unless it `stays`.
    pub(super) fn begin(
        shared: Arc<Shared>,
        tables: Arc<Tables>,
        newer: Arc<Table>,
        older: Arc<Table>,
        (slot, stays): (RedoSlot, bool),
    ) -> Result<Merge> {
        let bits = shared.options.buffer.filter_bits_per_key;
        // Entries of an interrupted merge were counted in both tables already; the sum bounds them.
        let entries = newer.inner.lock().entries + older.inner.lock().entries;
        let filter = (bits > 0).then(|| FilterBuilder::new(entries, bits));
        let begun = newer.inner.lock().merging_into.is_some();
        // A merge begun by an earlier release has no count.
        let left_out_written = if begun { newer.left_out() } else { Some(0) };
        let left_out = left_out_written.unwrap_or(0);
        if left_out > entries {
            return Err(Error::corruption(format!(
                "the merge of table {} into table {} lost {left_out} of {entries} entries; restore \
                 the database from a copy, or recover the readable data with \"terrace repair\"",
                newer.id, older.id
            )));
        }
        let mut heads = [0; HEIGHT_MAX];
        for (level, head) in heads.iter_mut().enumerate() {
            *head = newer.list.next(newer.list.head(), level)?;
        }
        let mut stripes = shared.snapshots.stripes();
        failpoint!(MergeStripes => stripes = Stripes::default());
        Ok(Merge {
            fingers: Fingers::at_start(&older.list)?,
            retention: Retention {
                stripes,
                dropped: shared.dropped.all(),
                // Range deletes in the two tables are as durable as their entries.
                ranges: Vec::from_iter(
                    shared
                        .ranges
                        .applicable_in_place(newer.seq_bound.newest(), None),
                ),
                // Expired values are left to drains.
                horizon: 0,
            },
            begun,
            heads,
            heads_written: heads,
            kept: None,
            taken: 0,
            filter,
            entries: 0,
            bytes: 0,
            count: match left_out_written {
                Some(left_out) => EntryCount::of(entries - left_out),
                None => EntryCount::default(),
            },
            left_out,
            left_out_written,
            savepoint: None,
            shared,
            tables,
            newer,
            older,
            slot,
            stays,
        })
    }

    /// Names the merge in the manifest and lets the older table answer for both (E3).
    fn announce(&mut self) -> Result<()> {
        let edit = Edit::of(Change::changed(TableMeta {
            merging_into: Some(self.older.id),
            ..self.newer.named(&self.shared)?
        }));
        // PERSIST: the count before the announcement. Reversed, a crash would leave a merge without
        // a count.
        self.newer.count_left_out(0);
        // PERSIST: the announcement before the first link. Reversed, a crash would leave nodes of
        // the newer table in a list whose filter denies them.
        self.shared.manifest.commit(edit)?;
        self.newer.inner.lock().merging_into = Some(Arc::clone(&self.older));
        self.older.seq_bound.raise(self.newer.seq_bound.newest());
        let mut filters = Vec::clone(&self.older.filters.load());
        let newer_filters = self.newer.filters.load();
        if filters.is_empty() || newer_filters.is_empty() {
            // A table without a filter answers for every key, and so must the pair.
            filters.clear();
        } else {
            filters.extend(newer_filters.iter().cloned());
        }
        failpoint!(MergeFilters skips self.older.filters.store(Arc::new(filters)));
        self.begun = true;
        Ok(())
    }

    /// Returns whether the next node of the newer list has another key than the last one taken. A
    /// batch ends only there: if an older version stayed in the newer list after the newest moved
    /// to the older one, a reader, which searches the newer list first, would get the older
    /// version.
    fn between_keys(&self) -> Result<bool> {
        let list = &self.newer.list;
        if self.taken == 0 || self.heads[0] == 0 {
            return Ok(true);
        }
        let last = list.node(self.taken)?;
        Ok(!list
            .node(self.heads[0])?
            .same_key(last.header.keyspace, last.key))
    }

    /// Returns the state to which planning returns if the versions of the next key do not fit the
    /// batch; `None` if the newer list has just one, which always fits.
    fn savepoint(&self) -> Result<Option<Box<Savepoint>>> {
        let list = &self.newer.list;
        let first = self.heads[0];
        let second = if first == 0 { 0 } else { list.next(first, 0)? };
        if second == 0 {
            return Ok(None);
        }
        let node = list.node(first)?;
        if !list.node(second)?.same_key(node.header.keyspace, node.key) {
            return Ok(None);
        }
        Ok(Some(Box::new(Savepoint {
            fingers: self.fingers.clone(),
            heads: self.heads,
            kept: self.kept,
            taken: self.taken,
            entries: self.entries,
            bytes: self.bytes,
            passed: self.count.passed,
            left_out: self.left_out,
            planned: self.slot.mark(),
        })))
    }

    /// Undoes the plan back to the last place between keys. Returns true if nothing else is left.
    fn take_back(&mut self) -> bool {
        let Some(savepoint) = self.savepoint.take() else {
            return false;
        };
        self.fingers = savepoint.fingers;
        self.heads = savepoint.heads;
        self.kept = savepoint.kept;
        self.taken = savepoint.taken;
        self.entries = savepoint.entries;
        self.bytes = savepoint.bytes;
        self.count.passed = savepoint.passed;
        self.left_out = savepoint.left_out;
        self.slot.truncate(savepoint.planned);
        // Nodes that were neighbours and stay so are taken without a store.
        self.slot.is_empty() && self.fingers.is_flushed() && self.heads == self.heads_written
    }

    /// Returns whether `node` is hidden from every reader, given the last node kept.
    fn superseded(&self, node: &Node<'_>) -> Result<bool> {
        let (keyspace, seq) = (node.header.keyspace, node.header.seq);
        // Keys are compared only if their numbers would let one hide the other.
        let newer = match self.kept {
            Some((off, newer)) if self.retention.is_superseded(Some(newer), seq) => {
                let kept = self.older.list.node(off)?;
                kept.same_key(keyspace, node.key).then_some(newer)
            }
            _ => None,
        };
        Ok(self.retention.is_hidden((keyspace, node.key), seq, newer))
    }

    fn keep(&mut self, off: u64, seq: SeqNo, hash: u64, bytes: usize) {
        self.kept = Some((off, seq));
        self.entries += 1;
        self.bytes += bytes as u64;
        if let Some(filter) = &mut self.filter {
            filter.insert(hash);
        }
    }

    /// Plans the change for the next node of either list. Returns false when both are at their
    /// ends.
    fn plan_node(&mut self) -> Result<bool> {
        let newer = Arc::clone(&self.newer);
        let older = Arc::clone(&self.older);
        let (a, b) = (self.heads[0], self.fingers.following());
        let from_newer = match (a, b) {
            (0, 0) => return Ok(false),
            (0, _) => false,
            (_, 0) => true,
            _ => newer.list.node(a)?.compare(&older.list.node(b)?.target()) == Order::Less,
        };
        self.count.passed += 1;
        if !from_newer {
            let node = older.list.node(b)?;
            if self.superseded(&node)? {
                self.left_out += 1;
                self.fingers.unlink(&older.list)?;
            } else {
                self.keep(
                    b,
                    node.header.seq,
                    node.header.hash,
                    node.header.node_bytes(),
                );
                self.fingers.pass(&older.list, &mut self.slot)?;
            }
            return Ok(true);
        }
        let node = newer.list.node(a)?;
        let height = usize::from(node.header.height);
        for level in 0..height {
            self.heads[level] = newer.list.next(a, level)?;
        }
        newer.list.region().prefetch(self.heads[0]);
        newer.list.region().prefetch(self.heads[1]);
        self.taken = a;
        if self.superseded(&node)? {
            self.left_out += 1;
        } else {
            self.keep(
                a,
                node.header.seq,
                node.header.hash,
                node.header.node_bytes(),
            );
            self.fingers
                .insert(a, &self.heads[..height], &mut self.slot);
        }
        Ok(true)
    }

    /// Makes the planned changes.
    fn commit(&mut self) -> Result<()> {
        self.fingers.flush(&mut self.slot);
        if self
            .left_out_written
            .is_some_and(|written| written != self.left_out)
        {
            self.slot.store(self.newer.left_out_at(), self.left_out + 1);
            self.left_out_written = Some(self.left_out);
        }
        let planned = self.slot.mark();
        // Last of all: through them a reader learns that nodes are in the older list.
        for level in 0..HEIGHT_MAX {
            if self.heads[level] != self.heads_written[level] {
                self.slot
                    .store(link_at(self.newer.list.head(), level), self.heads[level]);
                self.heads_written[level] = self.heads[level];
            }
        }
        if self.slot.is_empty() {
            return Ok(());
        }
        failpoint!(UnlinkFirst => self.slot.last_first(planned));
        let _newer = self.newer.latch.relink();
        let _older = self.older.latch.relink();
        if self.taken != 0 {
            // Before any link of these nodes changes (E2).
            self.newer.frontier.store(self.taken, Ordering::Release);
        }
        self.slot.commit()
    }

    fn write_filter(&mut self) -> Result<Option<Arc<Filter>>> {
        let Some(builder) = self.filter.take() else {
            return Ok(None);
        };
        let named = |table: &Table| {
            let inner = table.inner.lock();
            inner
                .named_filter
                .as_ref()
                .map_or(0, |filter| filter.span().len)
        };
        let replaced = named(&self.newer) + named(&self.older);
        let Some(extent) = (self.shared).alloc_optional(builder.len_bytes(), replaced)? else {
            return Ok(None);
        };
        let filter = builder.finish(&extent, Purpose::Merge);
        let region = self.shared.pool.region();
        // PERSIST: the filter before the edit that names it; reversed, a crash could leave a filter
        // of garbage that denies keys.
        region.fence(Purpose::Merge);
        let span = filter.span();
        region.sync(span.off, span.len as usize).map_err(|e| {
            Error::new(
                crate::error::ErrorKind::Io,
                format!("cannot sync a filter: {e}"),
            )
            .because(e)
        })?;
        Ok(Some(Arc::new(filter)))
    }

    fn complete(&mut self) -> Result<Completion> {
        self.count.check()?;
        self.slot.clear()?;
        let filter = self.write_filter()?;
        let newer_level = self.newer.inner.lock().level;
        let level = self.older.inner.lock().level.max(newer_level);
        let level = (level + u32::from(!self.stays)).min(self.shared.options.buffer.levels - 1);
        let (entries, bytes) = (self.entries, self.bytes);
        let taken = self.newer.named(&self.shared)?;
        let mut merged = self.older.named(&self.shared)?;
        merged.level = level;
        merged.filter = filter.as_ref().map(|f| f.span());
        (merged.entries, merged.bytes) = (entries, bytes);
        merged.extents.extend(taken.extents);
        merged.seq_first = merged.seq_first.min(taken.seq_first);
        merged.seq_last = merged.seq_last.max(taken.seq_last);
        let id = taken.id;
        let edit = Edit {
            changes: vec![
                Change::Removed { owner: &TABLE, id },
                Change::changed(merged),
            ],
        };
        let (tables, newer, older) = (
            Arc::clone(&self.tables),
            Arc::clone(&self.newer),
            Arc::clone(&self.older),
        );
        Ok(Completion {
            edit,
            apply: Box::new(move || {
                let mut newer_body = newer.inner.lock();
                {
                    let mut inner = older.inner.lock();
                    // The newer table keeps its own handles: older views may still start at its
                    // head.
                    inner.extents.extend(newer_body.extents.iter().cloned());
                    inner.entries = entries;
                    (inner.bytes, inner.grows_to) = (bytes, 0);
                    inner.seq_first = inner.seq_first.min(newer_body.seq_first);
                    inner.seq_last = newer_body.seq_last;
                    inner.logs.append(&mut newer_body.logs);
                    inner.unsynced |= newer_body.unsynced;
                    inner.level = level;
                    inner.named_filter = filter.clone();
                    inner.busy = false;
                }
                // Readers that still have the table in a view no longer treat the two as a pair.
                newer_body.merging_into = None;
                drop(newer_body);
                older.filters.store(Arc::new(filter.into_iter().collect()));
                tables.remove(newer.id);
            }),
            garbage: Vec::new(),
            entries,
        })
    }
}

impl Job for Merge {
    fn kind(&self) -> JobKind {
        JobKind::Merge
    }

    fn step(&mut self) -> Result<Step> {
        if !self.begun {
            self.announce()?;
            return Ok(Step::More);
        }
        let mut more = true;
        let mut looked_at = 0;
        while more {
            if self.between_keys()? {
                if looked_at >= STEP_NODES || !self.slot.has_room(KEY_STORES) {
                    break;
                }
                self.savepoint = self.savepoint()?;
            } else if !self.slot.has_room(NODE_STORES + LAST_STORES) {
                let alone = self.take_back();
                self.commit()?;
                // A key with so many versions that snapshots read waits until some snapshots are
                // gone.
                return Ok(if alone { Step::Wait } else { Step::More });
            }
            more = self.plan_node()?;
            looked_at += 1;
        }
        self.commit()?;
        if more {
            return Ok(Step::More);
        }
        Ok(Step::Done(self.complete()?))
    }
}
