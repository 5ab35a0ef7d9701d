//! This file takes the nodes of extents that may be damaged.
//!
//! From the first node on each ends where the next begins, up to one that is not sound. Behind that
//! only those count that a sound node leads to, directly or by others: an image of a node in somebody's
//! value is none.

use std::collections::{BTreeMap, BTreeSet};

use terrace_media::Span;

use super::gather::{Gathered, Watch};
use super::report::{Findings, PartState};
use super::source::SourcePool;
use crate::db::inspect::LostKeys;
use crate::error::Result;
use crate::parts::log::LogEntry;
use crate::parts::skiplist::layout::{HEAD_BYTES, HEADER_BYTES, LINK_DEAD, LINK_OFFSET};
use crate::parts::skiplist::salvage::{SoundNode, front, hashed_key, head_links, sound_node};

/// Bytes read at once.
const WINDOW_BYTES: u64 = 1 << 20;

/// A stretch of the pool with nodes in it.
pub(super) struct Area {
    kind: &'static str,
    id: u64,
    span: Span,
    /// Where nodes begin and end; both in the pool.
    start: u64,
    end: u64,
    /// The offset of a head node.
    head: Option<u64>,
    /// Where nodes end is not known.
    open_end: bool,
    /// Nodes may be marked dead: bytes of those.
    dead: Option<u64>,
    problem: Option<String>,
    /// What the walk has found.
    stop: u64,
    live: u64,
    dead_bytes: u64,
    taken: u64,
}

impl Area {
    pub(super) fn new(kind: &'static str, id: u64, span: Span) -> Area {
        Area {
            kind,
            id,
            span,
            start: span.off,
            end: span.off,
            head: None,
            open_end: false,
            dead: None,
            problem: None,
            stop: span.off,
            live: 0,
            dead_bytes: 0,
            taken: 0,
        }
    }

    /// Nodes lie between these two, from the start of the area.
    pub(super) fn nodes(mut self, from: u64, to: u64) -> Area {
        self.start = self.span.off + from;
        self.end = (self.span.off + to).max(self.start);
        self.stop = self.start;
        self
    }

    pub(super) fn head(mut self, head: Option<u64>) -> Area {
        self.head = head;
        self
    }

    pub(super) fn open_end(mut self) -> Area {
        self.open_end = true;
        self
    }

    pub(super) fn with_dead(mut self, bytes: u64) -> Area {
        self.dead = Some(bytes);
        self
    }
}

/// A piece of the pool in memory.
struct Window<'a> {
    pool: &'a SourcePool,
    start: u64,
    buffer: Vec<u8>,
}

impl Window<'_> {
    /// `len` bytes at `at`; `None` where the pool has none, or they cannot be read.
    fn get(&mut self, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len).filter(|end| *end <= self.pool.bytes)?;
        if at < self.start || end > self.start + self.buffer.len() as u64 {
            let size = len.max(WINDOW_BYTES).min(self.pool.bytes - at);
            self.start = at;
            self.buffer.resize(usize::try_from(size).ok()?, 0);
            let read = self.pool.file.read_exact_at(at, &mut self.buffer);
            if read.is_err() && len < size {
                // What is not readable may be behind what is asked for.
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

    /// The node at `at` if it is sound and ends before `end`.
    fn node(&mut self, at: u64, end: u64) -> Option<SoundNode<'_>> {
        let left = end.checked_sub(at)?;
        let front = front(self.get(at, (HEADER_BYTES as u64).min(left))?)?;
        if front.bytes > left {
            return None;
        }
        // The key first: it tells whether the size is worth anything.
        hashed_key(self.get(at, front.key_end)?)?;
        sound_node(self.get(at, front.bytes)?)
    }
}

/// The nodes of a pool on their way out.
pub(super) struct Rescue<'a> {
    window: Window<'a>,
    /// Words as interrupted batches of links will have them.
    words: BTreeMap<u64, u64>,
    links_hold: bool,
    areas: Vec<Area>,
    /// Nodes of the repository's list, if that is known.
    repository: Option<u64>,
    /// Behind damage: nodes that were taken, and where they end.
    behind: BTreeMap<u64, u64>,
    /// Nodes behind damage that links lead to.
    targets: BTreeSet<u64>,
}

impl<'a> Rescue<'a> {
    pub(super) fn new(
        pool: &'a SourcePool,
        words: BTreeMap<u64, u64>,
        links_hold: bool,
    ) -> Rescue<'a> {
        Rescue {
            window: Window {
                pool,
                start: 0,
                buffer: Vec::new(),
            },
            words,
            links_hold,
            areas: Vec::new(),
            repository: None,
            behind: BTreeMap::new(),
            targets: BTreeSet::new(),
        }
    }

    pub(super) fn bytes(&mut self, at: u64, len: u64) -> Option<&[u8]> {
        self.window.get(at, len)
    }

    /// The word at an offset, as it will be when interrupted batches are finished.
    pub(super) fn word(&self, at: u64) -> Option<u64> {
        let mut word = [0; 8];
        let read = self.window.pool.file.read_exact_at(at, &mut word);
        let stored = read.ok().map(|()| u64::from_le_bytes(word));
        self.words.get(&at).copied().or(stored)
    }

    pub(super) fn expect_repository(&mut self, entries: Option<u64>) {
        self.repository = entries;
    }

    /// Adds an area; `problem` says what is wrong with what says where its nodes are.
    pub(super) fn add(&mut self, mut area: Area, problem: Option<&str>) {
        area.problem = problem.map(str::to_owned);
        self.areas.push(area);
    }

    /// Takes all nodes, and says what is lost.
    pub(super) fn run(
        mut self,
        gathered: &mut Gathered,
        findings: &mut Findings,
        watch: Watch<'_>,
    ) -> Result<()> {
        for index in 0..self.areas.len() {
            let from = self.areas[index].start;
            self.areas[index].stop = self.walk(index, from, Some(gathered), &mut |_, _| {})?;
            watch(self.areas[index].span.len);
        }
        if self.links_hold && self.areas.iter().any(|area| area.stop < area.end) {
            self.follow_links(gathered)?;
        }
        self.report_gaps(findings);
        self.report_areas(gathered, findings);
        Ok(())
    }

    /// Walks nodes of an area from one that is known to begin at `at`, up to one that is not sound or that
    /// was taken before; returns where it ends. With `gathered` they are taken.
    fn walk(
        &mut self,
        index: usize,
        mut at: u64,
        mut gathered: Option<&mut Gathered>,
        visit: &mut dyn FnMut(u64, u64),
    ) -> Result<u64> {
        let area = &mut self.areas[index];
        // BOUND: every node takes bytes of the area.
        while at < area.end && !self.behind.contains_key(&at) {
            let Some(node) = self.window.node(at, area.end) else {
                break;
            };
            let mut is_dead = false;
            for (level, stored) in (0..).zip(node.links()) {
                let word_at = at + HEADER_BYTES as u64 + 8 * level;
                let word = self.words.get(&word_at).copied().unwrap_or(stored);
                is_dead |= level == 0 && word & LINK_DEAD != 0;
                visit(at, word & LINK_OFFSET);
            }
            let next = at + node.bytes();
            if let Some(gathered) = gathered.as_deref_mut() {
                if is_dead && area.dead.is_some() {
                    area.dead_bytes += node.bytes();
                } else {
                    area.live += 1;
                    let entry = LogEntry {
                        kind: node.header.kind,
                        keyspace: node.header.keyspace,
                        key: node.key,
                        value: node.value,
                        value_crc: 0,
                    };
                    gathered.any = true;
                    if gathered.take_raw(&entry, node.header.seq, at)? {
                        area.taken += 1;
                    } else {
                        let text = "an entry of a kind that this version does not know";
                        area.problem.get_or_insert(text.to_owned());
                    }
                }
            }
            at = next;
        }
        Ok(at)
    }

    /// Takes the nodes behind damage that others lead to.
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
        // BOUND: a place that was tried is not tried again, since it is taken or not sound.
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

    /// Says what is lost between nodes.
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
            if at < area.end && !area.open_end {
                gaps.push((at, area.end));
            }
            for (from, to) in gaps {
                let keys = self.keys_of(from, to);
                let area = &mut self.areas[index];
                let text = format!("{} bytes of nodes are damaged", to - from);
                area.problem.get_or_insert(text.clone());
                let place = (area.kind, self.window.pool.path.clone(), from);
                findings.lose(place, text, keys, true);
            }
        }
    }

    /// The keys of the nodes between two places: the one key if it can be known.
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
            // A range delete concerns others than its own key.
            (keyspace < crate::parts::ranges::layout::SHADOW).then(|| (keyspace, key.to_vec()))
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

    /// Says what became of the tables and of the repository, and holds their counts against it.
    fn report_areas(&mut self, gathered: &mut Gathered, findings: &mut Findings) {
        let path = &self.window.pool.path;
        let in_list: u64 = self
            .areas
            .iter()
            .filter(|a| a.kind == "repository")
            .map(|a| a.live)
            .sum();
        let gaps = self
            .areas
            .iter()
            .any(|a| a.kind == "repository" && a.problem.is_some());
        let counted = self.repository.filter(|_| self.links_hold && !gaps);
        if let Some(expected) = counted.filter(|expected| *expected != in_list) {
            let text = format!(
                "the repository says that it has {expected} entries, and {in_list} are found"
            );
            if let Some(area) = self.areas.iter_mut().find(|a| a.kind == "repository") {
                area.problem.get_or_insert(text.clone());
                let place = ("repository", path.clone(), area.span.off);
                findings.lose(place, text, LostKeys::ALL, true);
            }
        }
        for area in &mut self.areas {
            let differs = area.dead.is_some_and(|dead| dead != area.dead_bytes);
            if differs && counted.is_some() && area.problem.is_none() {
                let text = "the marks of superseded nodes do not agree with their count";
                area.problem = Some(text.to_owned());
                let place = ("repository", path.clone(), area.span.off);
                findings.lose(place, text, LostKeys::ALL, true);
            }
        }
        gathered.any |= !self.areas.is_empty() && self.areas.iter().all(|a| a.problem.is_none());
        let mut at = 0;
        // Extents of one table, and those of the repository, are one part.
        while at < self.areas.len() {
            let first = &self.areas[at];
            let same = |area: &&Area| (area.kind, area.id) == (first.kind, first.id);
            let group: Vec<&Area> = self.areas[at..].iter().take_while(same).collect();
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
