//! Source contract: sources, which readers search, and their operations.
//!
//! Every stage shows its data as sources. A view lists them from the newest to the oldest, and the
//! first one that has a key answers for it.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use terrace_media::prefetch;

use crate::error::{Error, Result};
use crate::metrics::FilterLevel;
use crate::parts::expiry::{Millis, Value};
use crate::parts::iter::Cursor;
use crate::parts::key::{Place, Target};
use crate::parts::manifest::item::Item;
use crate::parts::skiplist::search::Found;
use crate::parts::skiplist::{GROUP_MAX, Node, SkipList};
use crate::types::{EntryKind, SEQ_MAX, SeqNo};

/// A point read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) hash: u64,
    /// The newest sequence number that the read may see.
    pub(crate) at: SeqNo,
    /// Whether the read wants the newest version there is. Then sources below the front ignore
    /// `at`, since a merge may just have dropped the version that was newest at `at`; the newest
    /// one that they return may be above `at`, and the read then restarts with a newer number.
    pub(crate) latest: bool,
}

impl<'a> Probe<'a> {
    /// Returns the place of the newest version that a source below the front may return.
    #[inline]
    pub(crate) fn target_below_front(&self) -> Target<'a> {
        let seq = if self.latest { SEQ_MAX } else { self.at };
        Target {
            keyspace: self.keyspace,
            key: self.key,
            seq,
        }
    }

    /// Returns the place of the newest version that a front may return.
    #[inline]
    pub(crate) fn front_target(&self) -> Target<'a> {
        Target {
            keyspace: self.keyspace,
            key: self.key,
            seq: self.at,
        }
    }
}

/// The answer of the newest source that has a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Valid unless a range delete is newer than the number, or the expiry, if it is not 0, has
    /// passed.
    Value {
        value: Vec<u8>,
        seq: SeqNo,
        expiry: Millis,
    },
    Deleted,
}

impl Lookup {
    /// Converts an entry of the sought key, whose expiry is separate from its value, to an answer;
    /// `None` if its kind is unknown.
    pub(crate) fn of(kind: u8, seq: SeqNo, value: Value<'_>) -> Option<Lookup> {
        match EntryKind::from_raw(kind)? {
            EntryKind::Put => Some(Lookup::Value {
                value: value.bytes.to_vec(),
                seq,
                expiry: value.expiry,
            }),
            EntryKind::Delete => Some(Lookup::Deleted),
            EntryKind::RangeDelete | EntryKind::PutExpiring => None,
        }
    }

    /// Converts the node of the sought key to an answer, after checking its checksum.
    pub(crate) fn from_node(node: &Node<'_>) -> Result<Lookup> {
        // All of it will be read, for its checksum and then to be copied.
        prefetch(node.value()?);
        let value = node.checked_entry()?;
        let kind = EntryKind::without_expiry(node.header.kind);
        Lookup::of(kind, node.header.seq, value).ok_or_else(|| {
            crate::error::Error::corruption(format!(
                "the node at pool offset {:#x} has the unknown kind {}; restore the database \
                 from a copy, or recover the readable data with \"terrace repair\"",
                node.off, node.header.kind
            ))
        })
    }
}

/// One of many point reads.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    pub(crate) probe: Probe<'a>,
    /// The answer of the newest source that has the key; `None`: an older source is searched.
    pub(crate) answer: Option<Lookup>,
}

/// The bytes of each value that a group of reads prefetches before it copies the first of them.
const VALUE_AHEAD: usize = 256;

/// The rules of reading the keys of a list: one at a time, or many in groups, whose cache misses
/// overlap.
pub(crate) trait ListReads {
    fn list(&self) -> &SkipList;
    /// Returns the place to search for, or `None` if the list cannot have the key; counts either.
    fn begin<'a>(&self, probe: &Probe<'a>, stats: &mut ReadStats) -> Option<Target<'a>>;
    /// Returns the first node at or after a target, or 0, where a search found it.
    fn node_of(&self, _: &Target<'_>, found: Found, _: &mut ReadStats) -> Result<u64> {
        Ok(found.node)
    }
    /// Converts the node of a sought key to an answer.
    fn answer(&self, node: &Node<'_>) -> Result<Lookup> {
        Lookup::from_node(node)
    }

    /// Answers one read.
    #[inline]
    fn read_one(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        let Some(target) = self.begin(probe, stats) else {
            return Ok(None);
        };
        let found = self.list().seek(&target)?;
        let off = self.node_of(&target, found, stats)?;
        if off == 0 {
            return Ok(None);
        }
        let node = self.list().node(off)?;
        if !node.same_key(probe.keyspace, probe.key) {
            return Ok(None);
        }
        self.answer(&node).map(Some)
    }

    /// Answers those of many reads that have no answer yet, as single reads would.
    fn read_groups(&self, reads: &mut [Read<'_>], stats: &mut ReadStats) -> Result<()> {
        let list = self.list();
        let mut targets = Vec::with_capacity(GROUP_MAX);
        let mut group = Vec::with_capacity(GROUP_MAX);
        let mut open = reads.iter_mut().filter(|read| read.answer.is_none());
        // BOUND: each iteration takes reads from a finite number.
        loop {
            targets.clear();
            group.clear();
            while targets.len() < GROUP_MAX
                && let Some(read) = open.next()
            {
                if let Some(target) = self.begin(&read.probe, stats) {
                    targets.push(target);
                    group.push(read);
                }
            }
            if group.is_empty() {
                return Ok(());
            }
            let mut nodes = [None; GROUP_MAX];
            let found = list.seek_group(&targets)?;
            for ((target, found), node) in targets.iter().zip(found).zip(&mut nodes) {
                let off = self.node_of(target, found, stats)?;
                if off == 0 {
                    continue;
                }
                let first = list.node(off)?;
                if first.same_key(target.keyspace, target.key) {
                    let value = first.value()?;
                    prefetch(&value[..value.len().min(VALUE_AHEAD)]);
                    *node = Some(first);
                }
            }
            for (read, node) in group.iter_mut().zip(&nodes) {
                if let Some(node) = node {
                    read.answer = Some(self.answer(node)?);
                }
            }
        }
    }
}

/// Counts of one point read, which are added to the counters at its end.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ReadStats {
    pub(crate) sources: u64,
    pub(crate) filter_saved: u64,
    /// Searches that read workers took part in.
    pub(crate) parallel: u64,
    pub(crate) relink_retries: u64,
    /// Blocks that came from the cache, and from files.
    pub(crate) cache_hits: u64,
    pub(crate) blocks_read: u64,
}

impl ReadStats {
    /// Adds the counts of another thread.
    pub(crate) fn add(&mut self, other: &ReadStats) {
        self.sources += other.sources;
        self.filter_saved += other.filter_saved;
        self.parallel += other.parallel;
        self.relink_retries += other.relink_retries;
        self.cache_hits += other.cache_hits;
        self.blocks_read += other.blocks_read;
    }
}

/// The findings of a walk over everything.
#[derive(Debug, Default, Clone)]
pub(crate) struct Census {
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    pub(crate) bytes: u64,
    pub(crate) tables: u64,
    /// The filters of the elastic buffer by level.
    pub(crate) filters: BTreeMap<u32, FilterLevel>,
    pub(crate) problems: Vec<String>,
    /// The first failure that is no fact about the data, so that not all of it was checked.
    pub(crate) failure: Option<Error>,
    /// Keyspaces whose entries are invisible: filters need not know them.
    pub(crate) dropped: Arc<Vec<u32>>,
}

impl Census {
    /// Adds a failed read of `part`: as a problem if it is one of the data.
    pub(crate) fn failed(&mut self, part: impl Display, e: Error) {
        match e.is_of_data() {
            true => self.problems.push(format!("{part}{e}")),
            false => self.failure = self.failure.take().or(Some(e)),
        }
    }
}

/// Answers those of many reads that have no answer yet, one after another.
pub(crate) fn read_each<S: Source + ?Sized>(
    source: &S,
    reads: &mut [Read<'_>],
    stats: &mut ReadStats,
) -> Result<()> {
    for read in reads.iter_mut().filter(|read| read.answer.is_none()) {
        read.answer = source.get(&read.probe, stats)?;
    }
    Ok(())
}

/// The prediction of a filter for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prediction {
    /// Certain.
    Miss,
    /// Wrong for one absent key in a hundred or less.
    Hit,
    /// There is no filter.
    Unknown,
}

impl Prediction {
    /// Returns the prediction of a filter that may have the key or not.
    pub(crate) fn of(may_contain: bool) -> Prediction {
        match may_contain {
            true => Prediction::Hit,
            false => Prediction::Miss,
        }
    }
}

/// A sorted set of entries that a reader may consult.
pub(crate) trait Source: Send + Sync {
    /// Returns the newest entry for the probe's key that the probe may see.
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>>;
    /// Predicts whether a search finds a key of this hash, by filters in memory or in the pool.
    fn predict(&self, _hash: u64) -> Prediction {
        Prediction::Unknown
    }
    /// Does the same as `get` for those of many reads, ascending by key, that have no answer yet.
    fn multi_get(&self, reads: &mut [Read<'_>], stats: &mut ReadStats) -> Result<()> {
        read_each(self, reads, stats)
    }
    /// Returns an unpositioned cursor.
    fn cursor(&self) -> Box<dyn Cursor>;
    /// Returns about how many entries, and bytes of them, are between two places.
    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)>;
    /// Returns about `count` ascending entries, with about as many others between any two. A source
    /// that does not know them returns none.
    fn spread(&self, _count: usize) -> Result<Vec<(Place, SeqNo)>> {
        Ok(Vec::new())
    }
    /// Checks everything that can be checked, calling `visited` with the number of bytes of each
    /// read.
    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64));
    /// Returns about how many bytes `verify` will read.
    fn verify_bytes(&self) -> u64;
    /// Returns bounds of the sequence numbers of its entries, both inclusive.
    fn seqs(&self) -> (SeqNo, SeqNo) {
        (0, SEQ_MAX)
    }
    /// Returns the files that the source consists of, for copying; empty for a source in memory or
    /// in the pool. They stay as long as the source is held.
    fn files(&self) -> Vec<NamedFile> {
        Vec::new()
    }
}

/// A file and its item in the manifest.
pub(crate) struct NamedFile {
    pub(crate) path: PathBuf,
    pub(crate) item: Arc<dyn Item>,
    /// The numbers that it takes go up to this one.
    pub(crate) last_id: u64,
}

/// Sources, newest first.
pub(crate) type Sources = Vec<Arc<dyn Source>>;
