//! Scripts: operations as plain data, generated from a seed, that any store can run.
//!
//! Every operation is valid in any state, so that a script stays valid when a shrinker removes
//! operations: an operation on a missing keyspace or snapshot does nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use terrace::Durability;

use crate::value::Value;

/// A key that prints as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub Vec<u8>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.len() > 40 {
            return write!(f, "\"{}..{}\"", self.0[..16].escape_ascii(), self.0.len());
        }
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The number of keyspaces that a script may use. 0 is the default one.
pub const SPACES: u8 = 4;

/// The number of entries in the largest batches, more than one step of a job processes.
const BULK_MAX: usize = 400;

/// Returns the name of keyspace `space`.
pub fn space_name(space: u8) -> String {
    match space {
        0 => "default".into(),
        _ => format!("space-{space}"),
    }
}

/// One entry of a batch. An entry without a value deletes the key, or with `until` a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The keyspace.
    pub space: u8,
    /// The key.
    pub key: Key,
    /// The new value.
    pub value: Option<Value>,
    /// The end of a range delete, exclusive. An empty key stands for the end of the keyspace.
    pub until: Option<Key>,
    /// The time to live in milliseconds.
    pub ttl: Option<u32>,
}

impl Entry {
    /// Returns whether the entry affects a key.
    pub fn touches(&self, key: &Key) -> bool {
        match &self.until {
            Some(end) => *key >= self.key && (end.0.is_empty() || key < end),
            None => *key == self.key,
        }
    }
}

/// The keys of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Range {
    /// All keys.
    All,
    /// Keys with a prefix.
    Prefix(Key),
    /// Keys between two bounds.
    Between(Bound<Key>, Bound<Key>),
}

impl Range {
    /// Returns whether the range contains `key`.
    pub fn contains(&self, key: &Key) -> bool {
        match self {
            Range::All => true,
            Range::Prefix(prefix) => key.0.starts_with(&prefix.0),
            Range::Between(low, high) => {
                let above = match low {
                    Bound::Included(low) => key >= low,
                    Bound::Excluded(low) => key > low,
                    Bound::Unbounded => true,
                };
                let below = match high {
                    Bound::Included(high) => key <= high,
                    Bound::Excluded(high) => key < high,
                    Bound::Unbounded => true,
                };
                above && below
            }
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes entries together. A single entry is written by the call for single entries.
    Write(Vec<Entry>, Durability),
    /// Bulk loads sorted pairs of one keyspace.
    Ingest(u8, Vec<(Key, Value)>),
    /// Reads one key.
    Get(u8, Key),
    /// Reads several keys at one instant.
    MultiGet(u8, Vec<Key>),
    /// Scans, taking from front or back according to the bits of the number.
    Scan(u8, Range, u64),
    /// Runs background steps: the choice of step, and the number of steps.
    Step(u32, u8),
    /// Flushes every memtable into the buffer.
    Flush,
    /// Drains everything into the bottom.
    Drain,
    /// Compacts a range as deep as possible.
    Compact(u8, Range),
    /// Takes a snapshot.
    TakeSnapshot,
    /// Reads a key in one of the snapshots.
    GetIn(u8, u8, Key),
    /// Scans one of the snapshots.
    ScanIn(u8, u8, Range, u64),
    /// Releases one of the snapshots.
    DropSnapshot(u8),
    /// Opens an iterator that is kept across other operations.
    OpenIter(u8, Range),
    /// Takes some pairs from one of the open iterators.
    MoveIter(u8, u8, u64),
    /// Closes one of the open iterators.
    DropIter(u8),
    /// Creates or opens a keyspace.
    CreateSpace(u8),
    /// Drops a keyspace.
    DropSpace(u8),
    /// Reopens the database, after a close or a drop of it, with the n-th variation of the options.
    Reopen(bool, u8),
    /// Makes a checkpoint, opens it, and compares it.
    Checkpoint,
    /// Advances the clock by this many milliseconds.
    Wait(u32),
    /// Verifies the database and compares all of it.
    Verify,
}

/// The parameters of a generated script.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The number of operations.
    pub len: usize,
    /// The maximum length of a value in bytes.
    pub value_max: u32,
    /// The percentage of writes that are `Sync`.
    pub sync_percent: u8,
    /// The percentage of writes that are `Volatile`.
    pub volatile_percent: u8,
    /// The percentage of operations that read.
    pub read_percent: u8,
    /// Whether keyspaces other than the default one are used.
    pub spaces: bool,
    /// Whether the database is reopened in between.
    pub reopen: bool,
    /// Whether snapshots and held iterators are used.
    pub snapshots: bool,
    /// Whether some batches have hundreds of entries. Tables of that many keys take several steps
    /// to merge and to drain, so that other operations see them half done.
    pub bulk: bool,
}

impl Profile {
    /// Returns the profile of a script of `len` operations that uses everything.
    pub fn everything(len: usize) -> Profile {
        Profile {
            len,
            value_max: 6000,
            sync_percent: 10,
            volatile_percent: 0,
            read_percent: 45,
            spaces: true,
            reopen: true,
            snapshots: true,
            bulk: true,
        }
    }

    /// Returns the profile of a script of `len` operations for a crash driver, which does the reads
    /// itself.
    pub fn crash(len: usize, rng: &mut fastrand::Rng) -> Profile {
        Profile {
            len,
            value_max: [100, 600, 6000][rng.usize(..3)],
            sync_percent: [0, 20, 60][rng.usize(..3)],
            volatile_percent: [0, 0, 20][rng.usize(..3)],
            read_percent: 5,
            spaces: rng.bool(),
            reopen: rng.bool(),
            snapshots: rng.bool(),
            bulk: rng.u8(0..12) == 0,
        }
    }

    /// Generates the script of `seed`.
    pub fn generate(&self, seed: u64) -> Vec<Op> {
        let mut make = Generator {
            profile: self,
            rng: fastrand::Rng::with_seed(seed),
            ranges: range_deletes(seed),
            expiries: expiries(seed),
            tag: 1,
        };
        (0..self.len).map(|_| make.op()).collect()
    }
}

/// Generates a script that moves open iterators between the single steps of large merges and
/// drains.
pub fn scans_beside_steps(seed: u64) -> Vec<Op> {
    let profile = Profile {
        spaces: false,
        ..Profile::everything(0)
    };
    let mut make = Generator {
        profile: &profile,
        rng: fastrand::Rng::with_seed(seed),
        ranges: range_deletes(seed),
        expiries: expiries(seed),
        tag: 1,
    };
    let mut script = Vec::new();
    for _ in 0..8 {
        let batch = (0..BULK_MAX).map(|_| make.entry()).collect();
        script.push(Op::Write(batch, Durability::Buffered));
        script.push(Op::Flush);
        script.push(Op::OpenIter(0, Range::All));
        for _ in 0..40 {
            script.push(Op::Step(make.rng.u32(..), 1));
            let moves = if make.rng.bool() { 0 } else { make.rng.u64(..) };
            script.push(Op::MoveIter(make.rng.u8(..), make.rng.u8(1..40), moves));
        }
        script.push(Op::DropIter(make.rng.u8(..)));
    }
    script
}

/// Generates a script that overwrites a few keys again and again, above older versions of them on a
/// disk. Its writes are batches, so that it passes few points at which a crash could happen. Each
/// round fills about one table of [`crate::settings::small`].
pub fn overwrites(seed: u64, rounds: usize) -> Vec<Op> {
    let profile = Profile {
        spaces: seed.is_multiple_of(3),
        value_max: 160,
        ..Profile::everything(0)
    };
    let mut make = Generator {
        profile: &profile,
        rng: fastrand::Rng::with_seed(seed),
        ranges: range_deletes(seed),
        expiries: expiries(seed),
        tag: 1,
    };
    let all: Vec<Key> = (0..12).map(|_| make.key()).collect();
    let mut script = vec![Op::CreateSpace(1), Op::CreateSpace(2)];
    for key in &all {
        let put = Entry {
            key: key.clone(),
            value: Some(make.value()),
            until: None,
            ttl: None,
            ..make.entry()
        };
        script.push(Op::Write(vec![put], Durability::Buffered));
    }
    script.push(Op::Drain);
    for round in 0..rounds {
        // Most keys are left alone for a few rounds, with a tombstone or a value.
        let hot = &all[round / 3 % 4 * 3..][..3];
        for _ in 0..2 {
            let count = make.rng.usize(40..90);
            let mut entry = || Entry {
                key: hot[make.rng.usize(..3)].clone(),
                ..make.entry()
            };
            let batch = (0..count).map(|_| entry()).collect();
            script.push(Op::Write(batch, make.durability()));
        }
        script.push(match make.rng.u8(0..12) {
            0..3 => Op::TakeSnapshot,
            3..6 => Op::DropSnapshot(make.rng.u8(..)),
            6 => Op::OpenIter(make.space(), Range::All),
            7 => Op::DropIter(make.rng.u8(..)),
            8 => Op::Wait(100),
            9 => Op::Reopen(make.rng.bool(), 0),
            10 if make.profile.spaces => Op::DropSpace(make.rng.u8(1..3)),
            11 if make.profile.spaces => Op::CreateSpace(make.rng.u8(1..3)),
            _ => Op::Scan(0, Range::All, make.rng.u64(..)),
        });
        script.push(Op::Flush);
        script.push(Op::Step(make.rng.u32(..), make.rng.u8(1..12)));
        for _ in 0..4 {
            script.push(make.read());
        }
        if make.rng.u8(0..8) == 0 {
            script.push(Op::Drain);
        }
    }
    script.push(Op::Scan(0, Range::All, 0));
    script
}

/// Returns how many entries in a thousand of a seed's script delete ranges, and a separate random
/// stream for their ends. One script in three has no range deletes.
fn range_deletes(seed: u64) -> (u32, fastrand::Rng) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x72616e676573);
    ([0, 20, 120][rng.usize(..3)], rng)
}

/// Returns likewise how many puts in a thousand expire. If any do, the script advances the clock.
fn expiries(seed: u64) -> (u32, fastrand::Rng) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6578_7069_7279);
    ([0, 50, 400][rng.usize(..3)], rng)
}

struct Generator<'a> {
    profile: &'a Profile,
    rng: fastrand::Rng,
    ranges: (u32, fastrand::Rng),
    expiries: (u32, fastrand::Rng),
    tag: u64,
}

impl Generator<'_> {
    fn key(&mut self) -> Key {
        let len = match self.rng.u8(0..40) {
            0 => self.rng.usize(0..300),
            _ => self.rng.usize(0..5),
        };
        let letters = b"abc\x00\xff";
        Key((0..len).map(|_| letters[self.rng.usize(..5)]).collect())
    }

    fn value(&mut self) -> Value {
        let max = self.profile.value_max;
        let len = match self.rng.u8(0..20) {
            0 => self.rng.u32(0..=max),
            1 => 0,
            2 => self.rng.u32(1..8),
            _ => self.rng.u32(8..=max.min(160)),
        };
        self.tag += 1;
        Value { tag: self.tag, len }
    }

    fn space(&mut self) -> u8 {
        if self.profile.spaces && self.rng.u8(0..3) == 0 {
            self.rng.u8(1..SPACES)
        } else {
            0
        }
    }

    fn entry(&mut self) -> Entry {
        let (space, key) = (self.space(), self.key());
        let value = if self.rng.u8(0..4) == 0 {
            None
        } else {
            Some(self.value())
        };
        let mut entry = Entry {
            space,
            key,
            value,
            until: None,
            ttl: None,
        };
        let (share, rng) = &mut self.expiries;
        if entry.value.is_some() && rng.u32(0..1000) < *share {
            entry.ttl = Some([0, 1, 50, 300, 2000][rng.usize(..5)]);
        }
        self.widen(&mut entry);
        entry
    }

    /// Turns some entries into range deletes.
    fn widen(&mut self, entry: &mut Entry) {
        let (share, rng) = &mut self.ranges;
        if rng.u32(0..1000) >= *share {
            return;
        }
        let letters = b"abc\x00\xff";
        let len = [1, 1, 2, 3, 4][rng.usize(..5)];
        // Most ranges are short. Some cover all keys after the first one, and some are empty.
        let mut end: Vec<u8> = (0..len).map(|_| letters[rng.usize(..5)]).collect();
        match rng.u8(0..8) {
            0 => end.clear(),
            1..6 => {
                end = [entry.key.0.as_slice(), &end].concat();
            }
            _ => {}
        }
        entry.value = None;
        entry.ttl = None;
        entry.until = Some(Key(end));
    }

    fn durability(&mut self) -> Durability {
        let at = self.rng.u8(0..100);
        if at < self.profile.sync_percent {
            Durability::Sync
        } else if at < self.profile.sync_percent + self.profile.volatile_percent {
            Durability::Volatile
        } else {
            Durability::Buffered
        }
    }

    fn bound(&mut self) -> Bound<Key> {
        match self.rng.u8(0..5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(self.key()),
            _ => Bound::Excluded(self.key()),
        }
    }

    fn range(&mut self) -> Range {
        match self.rng.u8(0..4) {
            0 => Range::All,
            1 => Range::Prefix(self.key()),
            _ => Range::Between(self.bound(), self.bound()),
        }
    }

    fn read(&mut self) -> Op {
        let snapshots = self.profile.snapshots;
        match self.rng.u8(0..12) {
            0..4 => Op::Get(self.space(), self.key()),
            4 => {
                let count = self.rng.usize(0..8);
                Op::MultiGet(self.space(), (0..count).map(|_| self.key()).collect())
            }
            5 | 6 => Op::Scan(self.space(), self.range(), self.rng.u64(..)),
            7 if snapshots => Op::GetIn(self.rng.u8(..), self.space(), self.key()),
            8 if snapshots => Op::ScanIn(
                self.rng.u8(..),
                self.space(),
                self.range(),
                self.rng.u64(..),
            ),
            9..12 if snapshots => {
                Op::MoveIter(self.rng.u8(..), self.rng.u8(1..20), self.rng.u64(..))
            }
            _ => Op::Get(self.space(), self.key()),
        }
    }

    fn op(&mut self) -> Op {
        let (share, rng) = &mut self.expiries;
        if *share > 0 && rng.u8(0..20) == 0 {
            return Op::Wait([1, 10, 100, 1000][rng.usize(..4)]);
        }
        if self.rng.u8(0..100) < self.profile.read_percent {
            return self.read();
        }
        match self.rng.u8(0..100) {
            0..60 => Op::Write(vec![self.entry()], self.durability()),
            60..70 => {
                let bulk = self.profile.bulk && self.rng.u8(0..6) == 0;
                let count = self.rng.usize(if bulk { 100..BULK_MAX } else { 0..12 });
                Op::Write(
                    (0..count).map(|_| self.entry()).collect(),
                    self.durability(),
                )
            }
            70 => {
                let bulk = self.profile.bulk && self.rng.u8(0..3) == 0;
                let count = self.rng.usize(if bulk { 100..BULK_MAX } else { 0..12 });
                let pairs = (0..count).map(|_| (self.key(), self.value()));
                let pairs: BTreeMap<Key, Value> = pairs.collect();
                Op::Ingest(self.space(), pairs.into_iter().collect())
            }
            71..84 => {
                // Few steps leave large jobs unfinished.
                let few = self.profile.bulk && self.rng.bool();
                Op::Step(self.rng.u32(..), self.rng.u8(1..if few { 3 } else { 20 }))
            }
            84 | 85 => Op::Flush,
            86 => Op::Drain,
            87..90 if self.profile.snapshots => Op::TakeSnapshot,
            90 | 91 if self.profile.snapshots => Op::DropSnapshot(self.rng.u8(..)),
            92 | 93 if self.profile.snapshots => Op::OpenIter(self.space(), self.range()),
            94 if self.profile.snapshots => Op::DropIter(self.rng.u8(..)),
            95 | 96 if self.profile.spaces => Op::CreateSpace(self.rng.u8(1..SPACES)),
            97 if self.profile.spaces => Op::DropSpace(self.rng.u8(1..SPACES)),
            98 if self.profile.reopen => Op::Reopen(self.rng.bool(), self.rng.u8(..)),
            99 if self.rng.u8(0..4) == 0 => Op::Verify,
            _ => Op::Write(vec![self.entry()], self.durability()),
        }
    }
}
