//! Metamorphic runs: one history on every design at once, each with its own options that are
//! hostile in several ways. All of them show the same to users at every step.
//!
//! There is no oracle: the stores are compared with one another, so an error of the oracle that the
//! other suites share does not matter. Background work and the placement of data differ. Pools are
//! large enough that none of them ever fills up.

use std::time::Duration;

use terrace::{
    Compression, Db, Design, Durability, ErrorKind, Iter, Keyspace, Options, Snapshot, Workers,
    WriteBatch,
};
use terrace_media::Medium;

use crate::calls::{bounds, compact, half_open, ttl};
use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::script::{Entry, Key, Op, Profile, Range, space_name};
use crate::sizes::{Edges, KEY_MAX};
use crate::value::{Value, shown};
use crate::{settings, shrink, watchdog};

/// The number of operations between two comparisons of everything.
const LOOK_EVERY: usize = 25;

/// The stores of a case: name, design and medium.
const CAST: [(&str, Design, Medium); 14] = [
    ("miodb", Design::MioDb, Medium::Dax),
    ("miodb on dram", Design::MioDb, Medium::Dram),
    ("miodb-ssd", Design::MioDbSsd, Medium::Dax),
    ("miodb-ssd on mapped", Design::MioDbSsd, Medium::Mapped),
    ("miodb-ssd on dram", Design::MioDbSsd, Medium::Dram),
    ("matrixkv", Design::MatrixKv, Medium::Dax),
    ("flatlsm", Design::FlatLsm, Medium::Dax),
    ("flatlsm on mapped", Design::FlatLsm, Medium::Mapped),
    ("novelsm", Design::NoveLsm, Medium::Dax),
    (
        "novelsm-nosst on mapped",
        Design::NoveLsmNoSst,
        Medium::Mapped,
    ),
    ("novelsm-hier", Design::NoveLsmHier, Medium::Dax),
    ("leveled", Design::Leveled, Medium::Dax),
    ("leveled on dram", Design::Leveled, Medium::Dram),
    ("leveled on mapped", Design::Leveled, Medium::Mapped),
];

/// Returns options drawn from a seed, of which many are as unfavorable as possible. Any two are
/// valid for the same database.
pub fn hostile(design: Design, medium: Medium, seed: u64) -> Options {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut options = settings::small_of(design, medium);
    options.pool.size_bytes = 16 << 20;
    options.front.memtable_bytes = [4 << 10, 4 << 10, 8 << 10, 64 << 10][rng.usize(..4)];
    options.front.sealed_count_max = [1, 1, 2][rng.usize(..3)];
    options.buffer.levels = [1, 2, 3, 8][rng.usize(..4)];
    options.buffer.filter_bits_per_key = [0, 16][rng.usize(..2)];
    options.buffer.table_bytes_max = [None, Some(16 << 10)][rng.usize(..2)];
    options.buffer.matrix = settings::matrix(seed);
    options.buffer.tables = settings::tables(seed);
    let leveled = &mut options.bottom.leveled;
    leveled.cache_bytes = [1, 4 << 10, 1 << 20][rng.usize(..3)];
    leveled.open_files_max = [4, 100][rng.usize(..2)];
    leveled.filter_bits_per_key = [0, 10][rng.usize(..2)];
    leveled.table_bytes = [4 << 10, 4 << 10, 32 << 10][rng.usize(..3)];
    leveled.level1_bytes = leveled.table_bytes * [1, 2, 8][rng.usize(..3)];
    leveled.growth = [2, 3, 10][rng.usize(..3)];
    leveled.levels = [4, 5, 7][rng.usize(..3)];
    leveled.dynamic_sizes = rng.bool();
    leveled.block_bytes = [256, 1024][rng.usize(..2)];
    leveled.subcompactions_max = [1, 2, 16][rng.usize(..3)];
    let compressions = [Compression::None, Compression::Lz4];
    leveled.compression_upper = compressions[rng.usize(..2)];
    leveled.compression = compressions[rng.usize(..2)];
    leveled.direct_reads = rng.u8(0..4) == 0;
    // With the first choice, a second run blocks drains, and writers wait for compactions.
    let runs = [(1, 1, 2), (2, 4, 8), (4, 12, 36)][rng.usize(..3)];
    (leveled.runs_compact, leveled.runs_slow, leveled.runs_stop) = runs;
    options.background = settings::background(seed);
    options
}

/// Returns the script of a seed: all operations of users, with some drains turned into compactions
/// of ranges and some scans into copies.
pub fn script(seed: u64, len: usize) -> Vec<Op> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6d65_7461);
    let script = Profile::everything(len).generate(seed);
    let mut script = Edges::of_memtables(&[4 << 10, 8 << 10, 64 << 10]).widen(script, seed);
    for op in &mut script {
        if matches!(op, Op::Drain | Op::Flush) && rng.bool() {
            let key = |rng: &mut fastrand::Rng| Key(vec![b"abc\x00\xff"[rng.usize(..5)]]);
            let range = match rng.u8(0..3) {
                0 => Range::All,
                1 => Range::Prefix(key(&mut rng)),
                _ => {
                    let (one, other) = (key(&mut rng), key(&mut rng));
                    let (low, high) = (one.clone().min(other.clone()), one.max(other));
                    let low = std::ops::Bound::Included(low);
                    Range::Between(low, std::ops::Bound::Excluded(high))
                }
            };
            *op = Op::Compact(rng.u8(0..2), range);
        } else if matches!(op, Op::Scan(..)) && rng.u8(0..60) == 0 {
            *op = Op::Checkpoint;
        }
    }
    script
}

fn failed(what: &str) -> impl Fn(terrace::Error) -> String {
    move |e| format!("{what}: {e:?}")
}

/// One store with its open snapshots and iterators.
struct Player {
    name: &'static str,
    design: Design,
    medium: Medium,
    seed: u64,
    /// Whether it uses default options.
    by_default: bool,
    place: Place,
    _folder: tempfile::TempDir,
    db: Option<Db>,
    snapshots: Vec<Snapshot>,
    iters: Vec<Iter>,
}

/// Formats all pairs of an iterator. The bits of `moves` choose the end for each.
fn taken(iter: Iter, moves: u64) -> Outcome<String> {
    let (mut front, mut back) = (String::new(), Vec::new());
    let mut iter = iter;
    // BOUND: each iteration takes a pair.
    for turn in 0u32.. {
        let from_back = moves.rotate_right(turn) & 1 == 1;
        let Some(text) = next(&mut iter, from_back)? else {
            break;
        };
        match from_back {
            true => back.push(text),
            false => front.push_str(&text),
        }
    }
    back.reverse();
    Ok(front + &back.concat())
}

/// Formats the next pair of an iterator.
fn next(iter: &mut Iter, from_back: bool) -> Outcome<Option<String>> {
    let pair = if from_back {
        iter.next_back()
    } else {
        iter.next()
    };
    let pair = pair.transpose().map_err(failed("an iterator"))?;
    Ok(pair.map(|pair| {
        let key = Key(pair.key().to_vec());
        format!("{key:?}={} ", shown(Some(pair.value())))
    }))
}

/// Ingests sorted pairs, bypassing log and memtables, if the store supports it.
fn ingest(db: &Db, space: &Keyspace, pairs: &[(Key, Value)]) -> terrace::Result<()> {
    // Every store skips keys that are too long.
    let pairs = || pairs.iter().filter(|(key, _)| key.0.len() <= KEY_MAX);
    let ingested = space.ingest().and_then(|mut ingest| {
        for (key, value) in pairs() {
            ingest.add(key, value.bytes())?;
        }
        ingest.finish()
    });
    match ingested {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            let mut batch = WriteBatch::new();
            for (key, value) in pairs() {
                batch.put_in(space, key, value.bytes());
            }
            db.write(batch, Durability::Buffered)
        }
        other => other.map(|_| ()),
    }
}

impl Player {
    fn new(at: usize, seed: u64) -> Outcome<Player> {
        let (name, design, medium) = CAST[at];
        let folder = scratch()?;
        let mut player = Player {
            name,
            design,
            medium,
            seed: seed ^ (at as u64) << 32,
            by_default: seed % (2 * CAST.len() as u64) == at as u64,
            place: Place::folder(folder.path()),
            _folder: folder,
            db: None,
            snapshots: Vec::new(),
            iters: Vec::new(),
        };
        player.open(0)?;
        Ok(player)
    }

    fn open(&mut self, variation: u8) -> Outcome {
        let seed = self.seed ^ u64::from(variation) << 8;
        let options = match self.by_default {
            true => settings::default_of(self.design, self.medium),
            false => hostile(self.design, self.medium, seed),
        };
        let db = self.place.open(&options).map_err(failed("opening"))?;
        self.db = Some(db);
        Ok(())
    }

    fn db(&self) -> Outcome<&Db> {
        self.db.as_ref().ok_or_else(|| "the store is closed".into())
    }

    fn space(&self, space: u8) -> Outcome<Option<Keyspace>> {
        let space = self.db()?.keyspace(&space_name(space));
        space.map_err(failed("a keyspace"))
    }

    /// Runs an operation and formats all that it shows.
    fn play(&mut self, op: &Op) -> Outcome<String> {
        let done =
            |result: terrace::Result<()>| result.map_err(failed("a call")).map(|()| String::new());
        let _operation = watchdog::operation((self.name, op.clone()));
        match op {
            Op::Write(entries, durability) => {
                let mut batch = WriteBatch::new();
                for entry in entries {
                    let Some(space) = self.space(entry.space)? else {
                        continue;
                    };
                    let key = &entry.key;
                    match (&entry.value, &entry.until) {
                        (Some(value), _) if entry.ttl.is_some() => {
                            batch.put_with_ttl_in(&space, key, value.bytes(), ttl(entry))
                        }
                        (Some(value), _) => batch.put_in(&space, key, value.bytes()),
                        (None, None) => batch.delete_in(&space, key),
                        (None, Some(end)) => batch.delete_range_in(&space, half_open(key, end)),
                    };
                }
                let mut text = match self.db()?.write(batch, *durability) {
                    Err(e) if e.kind() == ErrorKind::Invalid => "invalid; ".to_owned(),
                    written => written.map(|()| String::new()).map_err(failed("a write"))?,
                };
                for Entry { space, key, .. } in entries {
                    text += &self.get(*space, key)?;
                }
                Ok(text)
            }
            Op::Get(space, key) => self.get(*space, key),
            Op::MultiGet(space, keys) => {
                let Some(space) = self.space(*space)? else {
                    return Ok("no keyspace".into());
                };
                let many = space.multi_get(keys).map_err(failed("a multi-get"))?;
                let texts: Vec<String> = many.iter().map(|v| shown(v.as_deref())).collect();
                for (key, text) in keys.iter().zip(&texts) {
                    let single = space.get(key).map_err(failed("a get"))?;
                    if shown(single.as_deref()) != *text {
                        return Err(format!("{key:?}: a multi-get says {text}, a get does not"));
                    }
                }
                Ok(texts.join(" "))
            }
            Op::Ingest(space, pairs) => match self.space(*space)? {
                Some(space) => done(ingest(self.db()?, &space, pairs)),
                None => Ok("no keyspace".into()),
            },
            Op::Scan(space, range, moves) => match self.space(*space)? {
                Some(space) => taken(scan(&space, range)?, *moves),
                None => Ok("no keyspace".into()),
            },
            Op::Step(pick, count) => {
                let db = self.db()?;
                let is_manual = db.options().background.workers == Workers::Manual;
                for turn in 0..u32::from(*count).min(if is_manual { u32::MAX } else { 0 }) {
                    let pick = pick.rotate_left(turn) as usize;
                    db.step(pick).map_err(failed("a step"))?;
                }
                Ok(String::new())
            }
            Op::Wait(millis) => {
                let time = Duration::from_millis(u64::from(*millis));
                self.place.clock.advance(time);
                Ok(String::new())
            }
            Op::Flush => done(self.db()?.flush()),
            Op::Drain => done(self.db()?.drain()),
            Op::Compact(space, range) => match self.space(*space)? {
                Some(space) => done(compact(&space, range)),
                None => Ok("no keyspace".into()),
            },
            Op::TakeSnapshot => {
                if self.snapshots.len() < 3 {
                    let snapshot = self.db()?.snapshot().map_err(failed("a snapshot"))?;
                    self.snapshots.push(snapshot);
                }
                Ok(String::new())
            }
            Op::GetIn(..) | Op::ScanIn(..) | Op::DropSnapshot(_) => self.at_snapshot(op),
            Op::OpenIter(..) | Op::MoveIter(..) | Op::DropIter(_) => self.with_iter(op),
            Op::CreateSpace(space) => {
                let made = self.db()?.create_keyspace(&space_name(*space));
                done(made.map(|_| ()))
            }
            Op::DropSpace(space) => {
                // The later results of its iterators depend on what they have read before.
                self.iters.clear();
                let dropped = self.db()?.drop_keyspace(&space_name(*space));
                dropped
                    .map(|there| there.to_string())
                    .map_err(failed("a drop"))
            }
            Op::Reopen(close, variation) => {
                self.snapshots.clear();
                self.iters.clear();
                if let Some(db) = self.db.take()
                    && *close
                {
                    db.close().map_err(failed("closing"))?;
                }
                self.open(*variation)?;
                self.everything()
            }
            Op::Checkpoint => self.copy(),
            Op::Verify => self.everything(),
        }
    }

    /// Formats the content of a copy.
    fn copy(&self) -> Outcome<String> {
        let folder = scratch()?;
        let place = Place {
            folder: folder.path().join("copy"),
            ..self.place.clone()
        };
        let db = self.db()?;
        db.checkpoint(&place.folder).map_err(failed("a copy"))?;
        let copy = place.open(db.options()).map_err(failed("opening a copy"))?;
        everything(&copy)
    }

    fn get(&self, space: u8, key: &Key) -> Outcome<String> {
        let Some(space) = self.space(space)? else {
            return Ok("no keyspace".into());
        };
        let found = space.get(key).map_err(failed("a get"))?;
        Ok(format!("{key:?}={} ", shown(found.as_deref())))
    }

    fn at_snapshot(&mut self, op: &Op) -> Outcome<String> {
        let count = self.snapshots.len();
        let (Op::GetIn(which, ..) | Op::ScanIn(which, ..) | Op::DropSnapshot(which)) = op else {
            return Ok(String::new());
        };
        if count == 0 {
            return Ok("no snapshot".into());
        }
        let which = usize::from(*which) % count;
        match op {
            Op::GetIn(_, space, key) => {
                let Some(space) = self.space(*space)? else {
                    return Ok("no keyspace".into());
                };
                let snapshot = &self.snapshots[which];
                let found = snapshot
                    .get_in(&space, key)
                    .map_err(failed("a get in a snapshot"))?;
                let many = snapshot
                    .multi_get_in(&space, &[key, key])
                    .map_err(failed("a multi-get in a snapshot"))?;
                if many != [found.clone(), found.clone()] {
                    return Err(format!("{key:?}: gets and multi-gets of a snapshot differ"));
                }
                Ok(shown(found.as_deref()))
            }
            Op::ScanIn(_, space, range, moves) => {
                let Some(space) = self.space(*space)? else {
                    return Ok("no keyspace".into());
                };
                let snapshot = &self.snapshots[which];
                let iter = match range {
                    Range::All => snapshot.iter_in(&space),
                    Range::Prefix(prefix) => snapshot.prefix_in(&space, prefix),
                    Range::Between(..) => snapshot.range_in(&space, bounds(range)),
                };
                taken(iter.map_err(failed("a scan of a snapshot"))?, *moves)
            }
            _ => {
                self.snapshots.swap_remove(which);
                Ok(String::new())
            }
        }
    }

    fn with_iter(&mut self, op: &Op) -> Outcome<String> {
        if let Op::OpenIter(space, range) = op {
            if self.iters.len() < 3
                && let Some(space) = self.space(*space)?
            {
                self.iters.push(scan(&space, range)?);
            }
            return Ok(String::new());
        }
        if self.iters.is_empty() {
            return Ok("no iterator".into());
        }
        let count = self.iters.len();
        match op {
            Op::MoveIter(which, times, moves) => {
                let iter = &mut self.iters[usize::from(*which) % count];
                let mut text = String::new();
                for turn in 0..u32::from(*times) {
                    let pair = next(iter, moves.rotate_right(turn) & 1 == 1)?;
                    text += pair.as_deref().unwrap_or("end ");
                }
                Ok(text)
            }
            Op::DropIter(which) => {
                self.iters.swap_remove(usize::from(*which) % count);
                Ok(String::new())
            }
            _ => Ok(String::new()),
        }
    }

    fn everything(&self) -> Outcome<String> {
        everything(self.db()?)
    }
}

/// Verifies the store and formats its content: every keyspace in both directions, with counts.
fn everything(db: &Db) -> Outcome<String> {
    let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
    if !report.problems.is_empty() {
        return Err(format!("verify finds: {}", report.problems.join("; ")));
    }
    let mut text = format!("{} live; ", report.live_entries);
    for name in db.list_keyspaces().map_err(failed("the keyspaces"))? {
        let space = db.keyspace(&name).map_err(failed("a keyspace"))?;
        let Some(space) = space else {
            return Err(format!("{name} is listed and not there"));
        };
        let forward = taken(space.iter().map_err(failed("a scan"))?, 0)?;
        let backward = taken(space.iter().map_err(failed("a scan"))?, u64::MAX)?;
        if forward != backward {
            return Err(format!("{name} forward {forward} and backward {backward}"));
        }
        text += &format!("{name}: {forward}");
    }
    Ok(text)
}

fn scan(space: &Keyspace, range: &Range) -> Outcome<Iter> {
    let iter = match range {
        Range::All => space.iter(),
        Range::Prefix(prefix) => space.prefix(prefix),
        Range::Between(..) => space.range(bounds(range)),
    };
    iter.map_err(failed("a scan"))
}

/// Returns the part of a differing text that is printed.
fn cut(text: &str) -> &str {
    text.get(..600).unwrap_or(text)
}

/// Runs a script on all stores.
fn play(seed: u64, script: &[Op]) -> Outcome {
    let players: Outcome<Vec<Player>> = (0..CAST.len()).map(|at| Player::new(at, seed)).collect();
    let mut players = players?;
    for (at, op) in script.iter().enumerate() {
        let looks = (at + 1) % LOOK_EVERY == 0 || at + 1 == script.len();
        let mut first: Option<(&'static str, String)> = None;
        for player in &mut players {
            let name = player.name;
            let blame = |e: String| format!("{op:?} on {name}: {e}");
            let mut text = player.play(op).map_err(blame)?;
            if looks {
                text += &player.everything().map_err(blame)?;
            }
            match &first {
                Some((other, expected)) if *expected != text => {
                    let differ = expected.bytes().zip(text.bytes());
                    let same = differ
                        .take_while(|(a, b)| a == b)
                        .count()
                        .saturating_sub(30);
                    return Err(format!(
                        "after {op:?}, {other} shows\n{}\nand {name} shows\n{}",
                        cut(expected.get(same..).unwrap_or(expected)),
                        cut(text.get(same..).unwrap_or(&text)),
                    ));
                }
                Some(_) => {}
                None => first = Some((name, text)),
            }
        }
    }
    Ok(())
}

/// Runs the case of a seed without shrinking.
pub fn once(seed: u64, len: usize) -> Outcome {
    let _case = watchdog::case(format!("metamorphic, seed {seed:#x}"));
    play(seed, &script(seed, len))
}

/// Runs the case of a seed, and shrinks its script on failure.
pub fn run(seed: u64, len: usize) -> Outcome {
    let script = script(seed, len);
    shrink::check("metamorphic", seed, &script, &mut |script| {
        play(seed, script)
    })
}
