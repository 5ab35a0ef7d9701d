//! Creation of the repository, and recovery after a close, a crash or a power loss.
//!
//! A crash can leave
//!   - an extent named in the manifest with nothing in it: drains append to it;
//!   - bytes after `used`: a node that was copied and never linked, overwritten by the next;
//!   - an unfinished drain: its table is still in the buffer and drains again;
//!   - an extent half emptied: the next reclaim continues with it.
//!
//! A power loss on `Mapped` leaves invalid links. Every node below `synced` is then found in its
//! place and must be sound; dead ones are left out. Bytes after `synced` are ignored: nodes copied
//! there are still in the buffer, or in the extent that they came from.
//!
//! The word `synced` is kept on `Mapped` alone. A database may change its medium from one opening
//! to the next, so each opening sets or clears the word.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_media::{Extent, Medium, Purpose};

use super::fresh::Fresh;
use super::layout::{
    self, DEAD_AT, ENTRIES_AT, EXPIRING_AT, ExtentMeta, HEADER_BYTES, RECLAIMING_AT, SYNCED_AT,
    USED_AT,
};
use super::reclaim::expiry_of;
use super::space::Space;
use super::sweep::Swept;
use super::{Inner, Relinker, Repository};
use crate::canary::failpoint;
use crate::error::{Error, Result};
use crate::parts::codec::DecodeError;
use crate::parts::latch::Latch;
use crate::parts::manifest::item::Item;
use crate::parts::manifest::{Change, Edit};
use crate::parts::ranges::{SeqBound, in_list};
use crate::parts::skiplist::SkipList;
use crate::parts::skiplist::layout::LINK_DEAD;
use crate::parts::skiplist::node::{head_bytes, link_at};
use crate::parts::skiplist::walk::{self, Walk};
use crate::stages::Shared;

/// Creates an empty repository and names it in the manifest.
pub(crate) fn create(shared: &Arc<Shared>) -> Result<()> {
    let mut bytes = layout::encode_head().to_vec();
    bytes.extend_from_slice(&head_bytes());
    let extent = shared.pool.alloc(bytes.len() as u64)?;
    if let Some(mut claim) = extent.claim(0, bytes.len()) {
        claim.write_streaming(0, &bytes, Purpose::Drain);
    }
    // PERSIST: the head before the edit that names it.
    extent.region().fence(Purpose::Drain);
    extent
        .region()
        .sync(extent.off(), bytes.len())
        .map_err(|e| {
            Error::new(
                crate::error::ErrorKind::Io,
                format!("cannot sync the repository: {e}"),
            )
            .because(e)
        })?;
    let created = Change::added(ExtentMeta::Head(extent.span()));
    Ok(shared.manifest.commit(Edit::of(created))?)
}

/// Opens the repository that the manifest names. `rebuild` is called with the bytes done and the
/// total if the list must be built from its nodes.
pub(crate) fn recover(
    shared: &Arc<Shared>,
    links_lost: bool,
    rebuild: &mut dyn FnMut(u64, u64),
) -> Result<Repository> {
    let named: Vec<ExtentMeta> = shared
        .manifest
        .with_state(|state| state.items().copied().collect());
    let head = named.iter().find(|extent| !extent.has_entries());
    let head = head.ok_or_else(|| {
        Error::corruption(
            "the manifest names no repository, but every database of this design has one; restore \
             the database from a copy, or recover the readable data with \"terrace repair\"",
        )
    })?;
    let region = shared.pool.region().clone();
    let head = shared.pool.adopt(head.span())?;
    layout::check_head(
        region.bytes(head.off(), HEADER_BYTES).unwrap_or_default(),
        head.off(),
    )?;
    let mut space = Space::default();
    for nodes in named.iter().filter(|extent| extent.has_entries()) {
        let extent = shared.pool.adopt(nodes.span())?;
        let bytes = region.bytes(extent.off(), HEADER_BYTES).unwrap_or_default();
        layout::check_extent(bytes, extent.off(), extent.len())?;
        let (used, dead) = (read(&extent, USED_AT), read(&extent, DEAD_AT));
        if !(HEADER_BYTES as u64..=extent.len()).contains(&used) {
            return Err(Error::corruption(format!(
                "the header of the repository extent at pool offset {:#x} claims {used} used \
                 bytes, but the extent has {}; restore the database from a copy, or recover the \
                 readable data with \"terrace repair\"",
                extent.off(),
                extent.len()
            )));
        }
        let expiring = read(&extent, EXPIRING_AT);
        space.adopt(extent, used, dead, expiring);
    }
    let list = SkipList::new(region, head.off() + HEADER_BYTES as u64);
    let mut entries = read(&head, ENTRIES_AT);
    if links_lost {
        entries = rebuild_links(&list, &mut space, rebuild)?;
    }
    let reclaiming_word = read(&head, RECLAIMING_AT);
    let mut moved = HashMap::new();
    let interrupted = space.extents.get(&reclaiming_word).filter(|_| !links_lost);
    let resume = match interrupted {
        Some(usage) => {
            find_moved(&list, &usage.extent, usage.used, &mut moved)?;
            Some(reclaiming_word)
        }
        None => None,
    };
    let found = in_list(&list)?;
    let drained = shared.manifest.with_state(|state| {
        // Its own extents record no numbers, so these are of the buffer above.
        let buffered = state.all_items().filter_map(|item| item.seqs());
        let oldest = buffered.map(|(first, _)| first).min();
        oldest.map_or(state.last_seq, |oldest| oldest.saturating_sub(1))
    });
    let slot = shared
        .redo
        .slot(Purpose::Drain)
        .ok_or_else(|| Error::invalid("every redo slot is taken before the repository is open"))?;
    let repository = Repository {
        inner: Arc::new(Inner {
            shared: Arc::clone(shared),
            list,
            latch: Latch::default(),
            seq_bound: Arc::new(SeqBound::new(
                shared.manifest.with_state(|s| s.last_seq),
                None,
            )),
            ranges: Swept::over(found, drained),
            requests: Mutex::default(),
            awaited: AtomicU64::new(0),
            relinker: Mutex::new(Relinker {
                slot,
                space,
                entries,
                batches: 0,
                fresh: Fresh::default(),
                reclaiming: None,
                reclaiming_word,
                resume,
                moved,
                moved_dead: Vec::new(),
                purged: 0,
            }),
            head,
        }),
    };
    repository.inner.keep_synced()?;
    Ok(repository)
}

impl Inner {
    /// Ensures that extents have the word `synced` on `Mapped`, and on no other medium.
    fn keep_synced(&self) -> Result<()> {
        failpoint!(SyncedStale => return Ok(()));
        let relinker = self.relinker.lock();
        let region = self.list.region();
        let has_word = |off: u64| {
            let word = region.word(off + SYNCED_AT);
            word.is_some_and(|word| word.load(Ordering::Acquire) != 0)
        };
        let mut extents = relinker.space.extents.keys().copied();
        if self.shared.pool.medium() == Medium::Mapped {
            // CRASH: some extents have it and others do not. Nothing was added to the latter, so
            // `used` is right.
            return match extents.all(has_word) {
                true => Ok(()),
                false => self.sync(&relinker),
            };
        }
        for off in extents.filter(|off| has_word(*off)) {
            // PERSIST: before anything is added to the extent. Reversed, a later power loss on
            // `Mapped` would lose nodes that were added on this medium. `used` as set by a rebuild
            // is in the same line, whose stores become durable in their order.
            region.publish(off + SYNCED_AT, 0, Purpose::Drain);
        }
        Ok(())
    }
}

/// Finds the nodes of an extent that have copies in the list, as left by an interrupted reclaim.
fn find_moved(
    list: &SkipList,
    extent: &Extent,
    used: u64,
    moved: &mut HashMap<u64, u64>,
) -> Result<()> {
    let start = extent.off() + HEADER_BYTES as u64;
    let mut walk = Walk::new(list.region(), start, extent.off() + used);
    while let Some(node) = walk.next_node()? {
        if walk::is_dead(list.region(), node.off)? {
            continue;
        }
        let found = list.seek(&node.target())?.node;
        let is_copy = found != 0
            && found != node.off
            && list.node(found)?.compare(&node.target()) == std::cmp::Ordering::Equal;
        if is_copy {
            moved.insert(found, node.off);
        }
    }
    Ok(())
}

fn read(extent: &Extent, at: u64) -> u64 {
    extent
        .region()
        .word(extent.off() + at)
        .map_or(0, |word| word.load(Ordering::Acquire))
}

/// Builds the list from its nodes; returns their number.
fn rebuild_links(
    list: &SkipList,
    space: &mut Space,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64> {
    let region = list.region().clone();
    let total: u64 = space.extents.values().map(|usage| usage.used).sum();
    let mut nodes = Vec::new();
    let mut done = 0;
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for (&off, usage) in &mut space.extents {
        // Nodes after that are still in the buffer, or in the extent they were copied from. `used`
        // vouches for nothing: its page may be newer than the pages of the nodes that it counts,
        // which then have nodes of an earlier use of the space.
        let end = off
            + match read(&usage.extent, SYNCED_AT) {
                // Nothing was added to the extent on `Mapped`.
                0 => usage.used,
                synced => synced.clamp(HEADER_BYTES as u64, usage.extent.len()),
            };
        let mut walk = Walk::new(&region, off + HEADER_BYTES as u64, end);
        usage.forget_expiring();
        let mut expiring = 0;
        loop {
            let Some(node) = walk.next_node()? else {
                usage.used = walk.position() - off;
                break;
            };
            node.checked_value()?;
            if !walk::is_dead(&region, node.off)? {
                nodes.push(node.off);
                let expiry = expiry_of(&node)?;
                if expiry != 0 {
                    let bytes = node.header.node_bytes() as u64;
                    expiring = usage.count_expiring(bytes, expiry);
                }
            }
            done += node.header.node_bytes() as u64;
            if nodes.len().is_multiple_of(4096) {
                progress(done, total);
            }
        }
        store(&region, off + EXPIRING_AT, expiring);
    }
    for (twin, kept) in sort_by_key(list, &mut nodes)? {
        let extent_of = |node| {
            space
                .extents
                .range(..=node)
                .next_back()
                .map(|(&off, _)| off)
        };
        if extent_of(twin) == extent_of(kept) {
            // A reclaim copies from one extent to others. Here a page is in the place of another,
            // whose contents are lost.
            let found = format!("another at {twin:#x}");
            let expected = "the only node of its version in the extent";
            return Err(DecodeError::new("node of the repository", kept, expected, found).into());
        }
        // Never linked again, so it must not come back at the next rebuild either.
        store(&region, link_at(twin, 0), LINK_DEAD);
    }
    for &off in &nodes {
        if let Some((&at, _)) = space.extents.range(..=off).next_back() {
            *live.entry(at).or_insert(0) += list.node(off)?.header.node_bytes() as u64;
        }
    }
    for (off, usage) in &mut space.extents {
        let nodes_bytes = usage.used - HEADER_BYTES as u64;
        usage.dead = nodes_bytes.saturating_sub(live.get(off).copied().unwrap_or(0));
        store(&region, off + USED_AT, usage.used);
        store(&region, off + DEAD_AT, usage.dead);
    }
    let count = nodes.len() as u64;
    walk::relink_sorted(&region, list.head(), nodes.into_iter())?;
    let head = list.head() - HEADER_BYTES as u64;
    store(&region, head + ENTRIES_AT, count);
    store(&region, head + RECLAIMING_AT, 0);
    progress(total, total);
    Ok(count)
}

fn store(region: &terrace_media::Region, at: u64, value: u64) {
    if let Some(word) = region.word(at) {
        word.store(value, Ordering::Release);
    }
}

/// Sorts nodes by key and drops second copies, which an interrupted reclaim leaves; returns those,
/// each with the one that is kept.
fn sort_by_key(list: &SkipList, nodes: &mut Vec<u64>) -> Result<Vec<(u64, u64)>> {
    let mut problem = None;
    let mut compare = |a: u64, b: u64| match (list.node(a), list.node(b)) {
        (Ok(a), Ok(b)) => a.compare(&b.target()),
        (Err(e), _) | (_, Err(e)) => {
            problem = Some(e);
            std::cmp::Ordering::Equal
        }
    };
    nodes.sort_by(|&a, &b| compare(a, b));
    let mut twins = Vec::new();
    nodes.dedup_by(|later, kept| {
        let twin = compare(*later, *kept) == std::cmp::Ordering::Equal;
        if twin {
            twins.push((*later, *kept));
        }
        twin
    });
    problem.map_or(Ok(twins), |problem| Err(problem.into()))
}
