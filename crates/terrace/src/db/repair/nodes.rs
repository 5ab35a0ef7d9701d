//! Recovering the nodes of extents that may be damaged.
//!
//! From the first node on each ends where the next begins, up to one that is not sound. After that,
//! only nodes count that a sound node leads to, directly or indirectly: an image of a node in a
//! user's value does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use super::evidence::{Links, Versions};
use super::gather::{Gathered, Watch};
use super::report::{Findings, PartState};
use super::source::SourcePool;
use crate::db::inspect::LostKeys;
use crate::error::Result;
use crate::parts::log::LogEntry;
use crate::parts::skiplist::layout::{HEAD_BYTES, HEADER_BYTES, LINK_DEAD, LINK_OFFSET};
use crate::parts::skiplist::salvage::{SoundNode, front, hashed_key, head_links, sound_node};
use crate::stages::salvage::{Area, DamagedBytes, DamagedPool, EntryForm, Found, ReadRecord};
use crate::types::{SeqNo, key_hash};

const UNKNOWN_KIND: &str = "an entry has a kind that this version does not know";

/// Bytes read at once.
const WINDOW_BYTES: u64 = 1 << 20;

/// An area, and the results of walking it.
struct Walked {
    area: Area,
    stop: u64,
    live: u64,
    /// Nodes with numbers outside `seqs`.
    foreign: u64,
    taken: u64,
}

impl Deref for Walked {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.area
    }
}

impl Walked {
    fn note(&mut self, problem: String) {
        self.area.problem.get_or_insert(problem);
    }

    /// Counts a node. Returns whether it is an entry of the area.
    fn has(&mut self, seq: SeqNo, is_dead: bool) -> bool {
        if is_dead && self.may_be_dead {
            return false;
        }
        let is_own = self
            .seqs
            .is_none_or(|(first, last)| (first..=last).contains(&seq));
        match is_own {
            true => self.live += 1,
            false => self.foreign += 1,
        }
        is_own
    }
}

/// The unique identity of a node in a list: keyspace, number, key.
type Version = (u32, SeqNo, Box<[u8]>);

/// A piece of the pool in memory.
struct Window<'a> {
    pool: &'a SourcePool,
    start: u64,
    buffer: Vec<u8>,
}

impl Window<'_> {
    /// Returns `len` bytes at `at`; `None` if they are beyond the pool or cannot be read.
    fn get(&mut self, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len).filter(|end| *end <= self.pool.bytes)?;
        if at < self.start || end > self.start + self.buffer.len() as u64 {
            let size = len.max(WINDOW_BYTES).min(self.pool.bytes - at);
            self.start = at;
            self.buffer.resize(usize::try_from(size).ok()?, 0);
            let read = self.pool.file.read_exact_at(at, &mut self.buffer);
            if read.is_err() && len < size {
                // The unreadable part may be after the requested bytes.
                self.buffer.truncate(len as usize);
                if self.pool.file.read_exact_at(at, &mut self.buffer).is_err() {
                    self.buffer.clear();
                }
            } else if read.is_err() {
                self.buffer.clear();
            }
        }
        let from = (at - self.start) as usize;
        self.buffer.get(from..from + len as usize)
    }

    /// Returns the node at `at` if it is sound and ends before `end`.
    fn node(&mut self, at: u64, end: u64) -> Option<SoundNode<'_>> {
        let left = end.checked_sub(at)?;
        let front = front(self.get(at, (HEADER_BYTES as u64).min(left))?)?;
        if front.bytes > left {
            return None;
        }
        // The key first: it shows whether the size can be trusted.
        hashed_key(self.get(at, front.key_end)?)?;
        sound_node(self.get(at, front.bytes)?)
    }
}

/// The recovery of the nodes of a pool.
pub(super) struct NodeSalvage<'a> {
    window: Window<'a>,
    /// The words that interrupted batches of links will write.
    words: BTreeMap<u64, u64>,
    links_hold: bool,
    areas: Vec<Walked>,
    /// The number of nodes in the repository's list, if known, and the offset of the extent that
    /// was being emptied, or 0.
    repository: Option<u64>,
    reclaiming: u64,
    /// Live nodes of that extent that were not found elsewhere yet, with their places and links.
    /// Those that were found are copied, and not in the list.
    originals: BTreeMap<Version, (u64, u64)>,
    twins: u64,
    /// The versions of the current table or extent of the repository.
    versions: Versions,
    /// The links of the repository.
    links: Links,
    /// Nodes after damage that were recovered, and their ends.
    behind: BTreeMap<u64, u64>,
    /// Nodes after damage that links lead to.
    targets: BTreeSet<u64>,
}

impl DamagedBytes for Window<'_> {
    fn bytes(&mut self, at: u64, len: u64) -> Option<&[u8]> {
        self.get(at, len)
    }
}

impl DamagedBytes for NodeSalvage<'_> {
    fn bytes(&mut self, at: u64, len: u64) -> Option<&[u8]> {
        self.window.get(at, len)
    }
}

impl DamagedPool for NodeSalvage<'_> {
    fn word(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        let read = self.window.pool.file.read_exact_at(at, &mut word);
        let stored = read.ok().map(|()| u64::from_le_bytes(word));
        self.words.get(&at).copied().or(stored)
    }

    fn power_lost(&self) -> bool {
        !self.links_hold
    }
}

impl<'a> NodeSalvage<'a> {
    pub(super) fn new(
        pool: &'a SourcePool,
        words: BTreeMap<u64, u64>,
        links_hold: bool,
    ) -> NodeSalvage<'a> {
        NodeSalvage {
            window: Window {
                pool,
                start: 0,
                buffer: Vec::new(),
            },
            words,
            links_hold,
            areas: Vec::new(),
            repository: None,
            reclaiming: 0,
            originals: BTreeMap::new(),
            twins: 0,
            versions: Versions::default(),
            links: Links::new(),
            behind: BTreeMap::new(),
            targets: BTreeSet::new(),
        }
    }

    /// Adds the entries of a stage.
    pub(super) fn add(&mut self, found: Found) {
        if let Some(list) = found.list {
            self.repository = list.entries;
            self.reclaiming = list.reclaiming;
        }
        self.areas
            .extend(found.areas.into_iter().map(|area| Walked {
                stop: area.start,
                area,
                live: 0,
                foreign: 0,
                taken: 0,
            }));
    }

    /// Recovers all nodes, and reports losses.
    pub(super) fn run(
        mut self,
        gathered: &mut Gathered,
        findings: &mut Findings,
        watch: Watch<'_>,
    ) -> Result<()> {
        let mut order: Vec<usize> = (0..self.areas.len()).collect();
        // Copies are recognized by their originals.
        order.sort_by_key(|&index| self.areas[index].span.off != self.reclaiming);
        for index in order {
            let from = self.areas[index].start;
            self.areas[index].stop = self.walk(index, from, Some(gathered), &mut |_, _| {})?;
            self.report_foreign(index, findings);
            watch(self.areas[index].span.len);
        }
        if self.links_hold && self.areas.iter().any(|area| area.stop < area.end) {
            self.follow_links(gathered)?;
        }
        self.report_gaps(findings);
        self.report_areas(gathered, findings);
        Ok(())
    }

    /// Walks nodes of an area from one that begins at `at`, up to one that is not sound or that was
    /// recovered before. Returns where it ends. With `gathered` the nodes are recovered.
    fn walk(
        &mut self,
        index: usize,
        mut at: u64,
        mut gathered: Option<&mut Gathered>,
        visit: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        if let EntryForm::Records(read) = self.areas[index].form {
            return match gathered {
                Some(gathered) => self.walk_records(index, at, read, gathered),
                None => Ok(at),
            };
        }
        let area = &mut self.areas[index];
        // BOUND: every node takes bytes of the area.
        while at < area.end && !self.behind.contains_key(&at) {
            let Some(node) = self.window.node(at, area.end) else {
                break;
            };
            let (mut is_dead, mut to) = (false, 0);
            for (level, stored) in (0..).zip(node.links()) {
                let word_at = at + HEADER_BYTES as u64 + 8 * level;
                let word = self.words.get(&word_at).copied().unwrap_or(stored);
                if level == 0 {
                    (is_dead, to) = (word & LINK_DEAD != 0, word & LINK_OFFSET);
                }
                visit(at, word & LINK_OFFSET);
            }
            let next = at + node.bytes();
            if let Some(gathered) = gathered.as_deref_mut() {
                let seq = node.header.seq;
                if !area.has(seq, is_dead) {
                    at = next;
                    continue;
                }
                if !area.open_end {
                    self.versions.add(node.header.hash, seq);
                }
                if area.in_one_list {
                    let version = || (node.header.keyspace, seq, Box::from(node.key));
                    if area.span.off == self.reclaiming {
                        self.originals.insert(version(), (at, to));
                    } else {
                        self.links.node(at);
                        self.links.link(to);
                        let twin = !self.originals.is_empty()
                            && self.originals.remove(&version()).is_some();
                        self.twins += u64::from(twin);
                    }
                }
                let entry = LogEntry {
                    kind: node.header.kind,
                    keyspace: node.header.keyspace,
                    key: node.key,
                    value: node.value,
                    value_crc: 0,
                    value_at: 0,
                };
                gathered.any = true;
                if gathered.take_raw(&entry, seq, at)? {
                    area.taken += 1;
                } else {
                    area.note(UNKNOWN_KIND.to_owned());
                }
            }
            at = next;
        }
        Ok(at)
    }

    /// Recovers the records of an area from `at` on, up to one that is not sound. Returns where it
    /// ends.
    fn walk_records(
        &mut self,
        index: usize,
        mut at: u64,
        read: ReadRecord,
        gathered: &mut Gathered,
    ) -> Result<u64> {
        let area = &mut self.areas[index];
        // BOUND: every record takes bytes of the area.
        while let Some(record) = read(&mut self.window, at, area.end) {
            let place = at;
            at += record.bytes.max(1);
            if !area.has(record.seq, false) {
                continue;
            }
            self.versions
                .add(key_hash(record.keyspace, record.key), record.seq);
            let entry = LogEntry {
                kind: record.kind,
                keyspace: record.keyspace,
                key: record.key,
                value: &record.value,
                value_crc: 0,
                value_at: 0,
            };
            gathered.any = true;
            match gathered.take_raw(&entry, record.seq, place)? {
                true => area.taken += 1,
                false => area.note(UNKNOWN_KIND.to_owned()),
            }
        }
        Ok(at)
    }

    /// Recovers the nodes after damage that others lead to.
    fn follow_links(&mut self, gathered: &mut Gathered) -> Result<()> {
        let zones: Vec<_> = self.areas.iter().map(|area| area.stop..area.end).collect();
        let zone_of = |at: u64| zones.iter().position(|zone| zone.contains(&at));
        let mut targets = std::mem::take(&mut self.targets);
        for index in 0..self.areas.len() {
            let head = self.areas[index].head;
            let bytes = head.and_then(|head| self.window.get(head, HEAD_BYTES as u64));
            let links = bytes.map(head_links).unwrap_or_default();
            let words = links.iter().zip(0u64..).map(|(stored, level)| {
                let at = head.unwrap_or(0) + HEADER_BYTES as u64 + 8 * level;
                self.words.get(&at).copied().unwrap_or(*stored) & LINK_OFFSET
            });
            targets.extend(words.filter(|at| zone_of(*at).is_some()));
            let from = self.areas[index].start;
            self.walk(index, from, None, &mut |_, to| {
                if zone_of(to).is_some() {
                    targets.insert(to);
                }
            })?;
        }
        // BOUND: each place is tried once, since it is recovered or not sound.
        let mut tried = BTreeSet::new();
        while let Some(at) = targets.pop_first() {
            let Some(index) = zone_of(at).filter(|_| tried.insert(at)) else {
                continue;
            };
            let mut starts = vec![at];
            let end = self.walk(index, at, Some(gathered), &mut |node, to| {
                if starts.last() != Some(&node) {
                    starts.push(node);
                }
                if zone_of(to).is_some() && !tried.contains(&to) {
                    targets.insert(to);
                }
            })?;
            if end > at {
                let ends = starts[1..].iter().copied().chain([end]);
                self.behind.extend(starts.iter().copied().zip(ends));
            }
        }
        Ok(())
    }

    /// Reports losses between nodes.
    fn report_gaps(&mut self, findings: &mut Findings) {
        for index in 0..self.areas.len() {
            let area = &self.areas[index];
            let (mut at, mut gaps) = (area.stop, Vec::new());
            for (&start, &end) in self.behind.range(area.stop..area.end) {
                if start > at {
                    gaps.push((at, start));
                }
                at = end;
            }
            let end = match area.open_end {
                true => area.known_end,
                false => area.end,
            };
            if at < end {
                gaps.push((at, end));
            }
            for (from, to) in gaps {
                let keys = match self.areas[index].form {
                    EntryForm::Nodes => self.keys_of(from, to),
                    EntryForm::Records(_) => LostKeys::ALL,
                };
                let area = &mut self.areas[index];
                let text = format!("{} bytes of entries are damaged", to - from);
                area.note(text.clone());
                let place = (area.kind, self.window.pool.path.clone(), from);
                findings.lose(place, text, keys, true);
            }
        }
    }

    /// Returns the keys of the nodes between two places: a single key if it can be known.
    fn keys_of(&mut self, from: u64, to: u64) -> LostKeys {
        let key = || {
            let front = front(
                self.window
                    .get(from, (HEADER_BYTES as u64).min(to - from))?,
            )?;
            if front.bytes != to - from {
                return None;
            }
            let (keyspace, key) = hashed_key(self.window.get(from, front.key_end)?)?;
            // A range delete affects other keys than its own.
            (keyspace < crate::parts::ranges::layout::RANGE_DELETE_BIT)
                .then(|| (keyspace, key.to_vec()))
        };
        let mut key = key;
        match key() {
            Some(key) => LostKeys {
                after: Some(key.clone()),
                up_to: Some(key),
            },
            None => LostKeys::ALL,
        }
    }

    /// Reports nodes of an area that are sound and in a wrong place.
    fn report_foreign(&mut self, index: usize, findings: &mut Findings) {
        let area = &self.areas[index];
        // While space of the repository is reclaimed a version may be in two of its extents, never
        // in one twice.
        let goes_on = !area.in_one_list
            && self
                .areas
                .get(index + 1)
                .is_some_and(|next| (next.kind, next.id) == (area.kind, area.id));
        let twice = !goes_on && self.versions.any_twice();
        let text = match area.foreign {
            0 if area.replaced => "the first page belongs to something else".to_owned(),
            0 if !twice => return,
            0 => "a version of a key exists twice: a page is in the wrong place".to_owned(),
            count => {
                format!("{count} nodes belong to something else: a page is in the wrong place")
            }
        };
        self.lose_all(index, text, findings);
    }

    /// Reports that any key may be lost with an area.
    fn lose_all(&mut self, index: usize, text: String, findings: &mut Findings) {
        let area = &mut self.areas[index];
        area.note(text.clone());
        let place = (area.kind, self.window.pool.path.clone(), area.span.off);
        findings.lose(place, text, LostKeys::ALL, true);
    }

    /// Compares the repository's head and links with the nodes that were found.
    fn report_repository(&mut self, findings: &mut Findings) {
        let in_repository = |area: &&Walked| area.in_one_list;
        let mut areas = self.areas.iter().filter(in_repository);
        let gaps = areas.any(|area| area.problem.is_some());
        let Some(expected) = self.repository.filter(|_| self.links_hold && !gaps) else {
            return;
        };
        let Some(first) = self.areas.iter().position(|area| area.in_one_list) else {
            return;
        };
        let live: u64 = self
            .areas
            .iter()
            .filter(in_repository)
            .map(|a| a.live)
            .sum();
        let found = live - self.twins;
        if found != expected {
            let text =
                format!("the repository should have {expected} entries, but {found} were found");
            return self.lose_all(first, text, findings);
        }
        let link_of = |head: u64| self.word(head + HEADER_BYTES as u64).unwrap_or(0) & LINK_OFFSET;
        let heads: Vec<u64> = self.areas[first].head.map(link_of).into_iter().collect();
        heads.into_iter().for_each(|to| self.links.link(to));
        for (at, to) in self.originals.values() {
            self.links.node(*at);
            self.links.link(*to);
        }
        if self.links.are_mixed_up() {
            let text = "the links of the repository do not match its nodes: a page is in the wrong \
                        place";
            self.lose_all(first, text.to_owned(), findings);
        }
    }

    /// Reports the state of the tables and of the repository.
    fn report_areas(&mut self, gathered: &mut Gathered, findings: &mut Findings) {
        self.report_repository(findings);
        let path = &self.window.pool.path;
        gathered.any |= !self.areas.is_empty() && self.areas.iter().all(|a| a.problem.is_none());
        for area in self.areas.iter().filter(|area| area.may_go_on) {
            let text = "more entries may have followed the last one";
            findings.lose(
                (area.kind, path.clone(), area.end),
                text,
                LostKeys::ALL,
                false,
            );
        }
        let mut at = 0;
        // Extents of one table, and those of the repository, are one part.
        while at < self.areas.len() {
            let first = &self.areas[at];
            let same = |area: &&Walked| (area.kind, area.id) == (first.kind, first.id);
            let group: Vec<&Walked> = self.areas[at..].iter().take_while(same).collect();
            let problem = group.iter().find_map(|area| area.problem.clone());
            let state = match problem {
                Some(_) => PartState::Damaged,
                None => PartState::Used,
            };
            let taken = group.iter().map(|area| area.taken).sum();
            let place = (path.clone(), Some(first.span.off), first.id);
            findings.part(first.kind, place, state, taken, problem.unwrap_or_default());
            at += group.len();
        }
    }
}
