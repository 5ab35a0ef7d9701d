//! Worlds: a store with its oracle and everything that a script keeps open, run one operation at a
//! time.

mod bulk;
mod emptied;

use std::collections::VecDeque;
use std::time::Duration;

use terrace::{Db, Durability, ErrorKind, Iter, Keyspace, Options, Snapshot, Workers, WriteBatch};

use crate::calls::{agree, bounds, compact, expected, half_open, take, take_all, ttl};
pub use crate::calls::{count_pairs, verify};
use crate::oracle::{Live, Oracle, Outcome};
use crate::place::{Place, scratch};
use crate::script::{Entry, Key, Op, Range, space_name};
use crate::settings;
use crate::sizes;
use crate::value::Value;
use crate::watchdog::{self, watched};

struct Held {
    space: u8,
    birth: u64,
    iter: Iter,
    /// The pairs that the iterator has yet to return.
    left: VecDeque<(Key, Value)>,
}

/// Called after an operation was done and before it counts as answered.
pub type Unanswered<'a> = &'a mut dyn FnMut(&Oracle) -> Outcome;

/// See the module documentation.
pub struct World {
    place: Place,
    /// The options that are varied.
    base: Options,
    db: Option<Db>,
    /// The expected content of the store.
    pub oracle: Oracle,
    snapshots: Vec<(Snapshot, Live)>,
    iters: Vec<Held>,
    /// The messages of all calls that the store refused because something was full.
    pub refused: Vec<String>,
    /// The length of the longest key that was written.
    key_bytes: usize,
}

fn failed(what: &str) -> impl Fn(terrace::Error) -> String {
    move |e| format!("{what}: {e:?}")
}

impl World {
    /// Opens a store that is assumed to hold the content of `oracle`.
    pub fn open(place: Place, base: Options, variation: u8, oracle: Oracle) -> Outcome<World> {
        let place = place.at(oracle.now());
        let db = place
            .open(&settings::varied(&base, variation))
            .map_err(failed("opening"))?;
        Ok(World::over(place, base, db, oracle))
    }

    /// Makes a world of a store that is already open.
    pub fn over(place: Place, base: Options, db: Db, oracle: Oracle) -> World {
        World {
            place,
            base,
            db: Some(db),
            oracle,
            snapshots: Vec::new(),
            iters: Vec::new(),
            refused: Vec::new(),
            key_bytes: 0,
        }
    }

    /// Returns the number of calls refused because something was full.
    pub fn refusals(&self) -> u64 {
        self.refused.len() as u64
    }

    /// Returns the store.
    pub fn db(&self) -> Outcome<&Db> {
        self.db
            .as_ref()
            .ok_or_else(|| "the store is not open".into())
    }

    fn space(&self, space: u8) -> Outcome<Option<Keyspace>> {
        let db = self.db()?;
        if space == 0 {
            return Ok(Some(db.default_keyspace()));
        }
        let found = db
            .keyspace(&space_name(space))
            .map_err(failed("a keyspace"))?;
        if found.is_some() != self.oracle.has_space(space) {
            return Err(format!("keyspace {} is there or not", space_name(space)));
        }
        Ok(found)
    }

    /// Runs one operation and compares its result.
    pub fn run(&mut self, op: &Op) -> Outcome {
        self.run_hooked(op, &mut |_| Ok(()))
    }

    /// Runs one operation. `unanswered` sees the oracle while the operation is in flight.
    pub fn run_hooked(&mut self, op: &Op, unanswered: Unanswered<'_>) -> Outcome {
        let _operation = watchdog::operation(op.clone());
        match op {
            Op::Write(entries, durability) => self.write(entries, *durability, unanswered),
            Op::Ingest(space, pairs) => self.ingest(*space, pairs, unanswered),
            Op::Get(space, key) => self.get(*space, key),
            Op::MultiGet(space, keys) => self.multi_get(*space, keys),
            Op::Scan(space, range, moves) => self.scan(*space, range, *moves),
            Op::Step(pick, count) => {
                let is_manual = self.base.background.workers == Workers::Manual;
                for turn in 0..u32::from(*count) {
                    match is_manual {
                        true => {
                            let pick = pick.rotate_left(turn) as usize;
                            self.db()?.step(pick).map_err(failed("a step"))?;
                        }
                        // The store's threads run on their own schedule.
                        false => std::thread::yield_now(),
                    }
                }
                unanswered(&self.oracle)
            }
            Op::Flush => {
                let flushed = self.allow_full(|db| db.flush())?;
                unanswered(&self.oracle)?;
                if flushed {
                    self.oracle.flushed();
                }
                Ok(())
            }
            Op::Drain => {
                // Held versions keep a full drain from completing only if space is short.
                let drained = self.allow_full(|db| db.drain())?;
                unanswered(&self.oracle)?;
                if drained {
                    self.oracle.drained();
                }
                Ok(())
            }
            Op::Compact(space, range) => {
                let Some(handle) = self.space(*space)? else {
                    return Ok(());
                };
                let flushed = self.allow_full(|_| compact(&handle, range))?;
                unanswered(&self.oracle)?;
                if flushed {
                    self.oracle.flushed();
                }
                Ok(())
            }
            Op::TakeSnapshot => {
                if self.snapshots.len() < 3 {
                    let snapshot = self.db()?.snapshot().map_err(failed("a snapshot"))?;
                    self.snapshots.push((snapshot, self.oracle.live()));
                }
                Ok(())
            }
            Op::GetIn(which, space, key) => self.get_in(*which, *space, key),
            Op::ScanIn(which, space, range, moves) => self.scan_in(*which, *space, range, *moves),
            Op::DropSnapshot(which) => {
                if !self.snapshots.is_empty() {
                    self.snapshots
                        .swap_remove(usize::from(*which) % self.snapshots.len());
                }
                Ok(())
            }
            Op::OpenIter(space, range) => self.open_iter(*space, range),
            Op::MoveIter(which, count, moves) => self.move_iter(*which, *count, *moves),
            Op::DropIter(which) => {
                if !self.iters.is_empty() {
                    self.iters
                        .swap_remove(usize::from(*which) % self.iters.len());
                }
                Ok(())
            }
            Op::CreateSpace(space) => self.create_space(*space, unanswered),
            Op::DropSpace(space) => self.drop_space(*space, unanswered),
            Op::Reopen(close, variation) => self.reopen(*close, *variation, unanswered),
            Op::Wait(millis) => {
                let time = Duration::from_millis(u64::from(*millis));
                self.place.clock.advance(time);
                self.oracle.wait(time);
                Ok(())
            }
            Op::Checkpoint => self.checkpoint(),
            Op::Verify => self.check_all(),
        }
    }

    /// Returns whether the call succeeded. A full pool is not a failure of the test.
    fn allow_full(&mut self, call: impl FnOnce(&Db) -> terrace::Result<()>) -> Outcome<bool> {
        match call(self.db()?) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::Full => {
                self.refused.push(e.to_string());
                Ok(false)
            }
            Err(e) => Err(format!("a call fails: {e:?}")),
        }
    }

    fn write(
        &mut self,
        entries: &[Entry],
        durability: Durability,
        hook: Unanswered<'_>,
    ) -> Outcome {
        let known: Vec<Entry> = entries
            .iter()
            .filter(|entry| self.oracle.has_space(entry.space))
            .cloned()
            .collect();
        if known.len() < entries.len() && entries.len() == 1 {
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        for entry in &known {
            let Some(space) = self.space(entry.space)? else {
                continue;
            };
            match (entry.value, &entry.until) {
                (Some(value), _) if entry.ttl.is_some() => {
                    batch.put_with_ttl_in(&space, &entry.key, value.bytes(), ttl(entry))
                }
                (Some(value), _) => batch.put_in(&space, &entry.key, value.bytes()),
                (None, None) => batch.delete_in(&space, &entry.key),
                (None, Some(end)) => batch.delete_range_in(&space, half_open(&entry.key, end)),
            };
        }
        let single = match entries {
            [entry] => self.space(entry.space)?.map(|space| (space, entry)),
            _ => None,
        };
        let longest = known.iter().map(|entry| entry.key.0.len()).max();
        self.key_bytes = self.key_bytes.max(longest.unwrap_or(0));
        let write = self.oracle.begin(&known);
        let db = self.db()?;
        let result = match single {
            Some((space, entry)) => match (entry.value, &entry.until) {
                (Some(_), _) if entry.ttl.is_some() => db.write(batch, durability),
                (Some(value), _) => space.put_with(&entry.key, value.bytes(), durability),
                (None, None) => space.delete_with(&entry.key, durability),
                (None, Some(end)) => {
                    space.delete_range_with(half_open(&entry.key, end), durability)
                }
            },
            None => db.write(batch, durability),
        };
        hook(&self.oracle)?;
        let invalid = sizes::is_invalid(&known, self.db()?.options());
        match result {
            Ok(()) if invalid == Some(true) => {
                return Err("a write beyond the limits of sizes is taken".into());
            }
            Ok(()) => self.oracle.acknowledged(write, durability),
            Err(e) if e.kind() == ErrorKind::Invalid && invalid != Some(false) => {
                self.oracle.refused(write);
            }
            Err(e) if e.kind() == ErrorKind::Full => {
                self.refused.push(e.to_string());
                self.oracle.refused(write);
            }
            Err(e) => return Err(format!("a write fails: {e:?}")),
        }
        Ok(())
    }

    fn get(&self, space: u8, key: &Key) -> Outcome {
        let Some(handle) = self.space(space)? else {
            return Ok(());
        };
        let found = handle.get(key).map_err(failed("a get"))?;
        agree(key, self.oracle.get(space, key), found.as_deref())
    }

    fn multi_get(&self, space: u8, keys: &[Key]) -> Outcome {
        let Some(handle) = self.space(space)? else {
            return Ok(());
        };
        let found = handle.multi_get(keys).map_err(failed("a multi-get"))?;
        if found.len() != keys.len() {
            return Err(format!("{} keys give {} answers", keys.len(), found.len()));
        }
        for (key, found) in keys.iter().zip(&found) {
            agree(key, self.oracle.get(space, key), found.as_deref())?;
        }
        Ok(())
    }

    fn scan(&self, space: u8, range: &Range, moves: u64) -> Outcome {
        let Some(handle) = self.space(space)? else {
            return Ok(());
        };
        let iter = match range {
            Range::All => handle.iter(),
            Range::Prefix(prefix) => handle.prefix(prefix),
            Range::Between(..) => handle.range(bounds(range)),
        };
        let mut left = expected(self.oracle.live_in(space), range);
        take_all(&mut iter.map_err(failed("a scan"))?, &mut left, moves)
    }

    fn snapshot(&self, which: u8) -> Option<&(Snapshot, Live)> {
        if self.snapshots.is_empty() {
            return None;
        }
        self.snapshots
            .get(usize::from(which) % self.snapshots.len())
    }

    fn get_in(&self, which: u8, space: u8, key: &Key) -> Outcome {
        let Some((snapshot, live)) = self.snapshot(which) else {
            return Ok(());
        };
        let Some(handle) = self.space(space)? else {
            return Ok(());
        };
        let then = match live.get(&space) {
            Some((birth, pairs)) if self.oracle.birth(space) == Some(*birth) => {
                pairs.get(key).copied()
            }
            _ => None,
        };
        let found = snapshot
            .get_in(&handle, key)
            .map_err(failed("a get in a snapshot"))?;
        agree(key, then, found.as_deref())
    }

    fn scan_in(&self, which: u8, space: u8, range: &Range, moves: u64) -> Outcome {
        let Some((snapshot, live)) = self.snapshot(which) else {
            return Ok(());
        };
        let Some(handle) = self.space(space)? else {
            return Ok(());
        };
        let then = match live.get(&space) {
            Some((birth, pairs)) if self.oracle.birth(space) == Some(*birth) => pairs.clone(),
            _ => Default::default(),
        };
        let iter = match range {
            Range::All => snapshot.iter_in(&handle),
            Range::Prefix(prefix) => snapshot.prefix_in(&handle, prefix),
            Range::Between(..) => snapshot.range_in(&handle, bounds(range)),
        };
        let mut left = expected(then, range);
        take_all(
            &mut iter.map_err(failed("a scan of a snapshot"))?,
            &mut left,
            moves,
        )
    }

    fn open_iter(&mut self, space: u8, range: &Range) -> Outcome {
        if self.iters.len() >= 3 {
            return Ok(());
        }
        let Some(handle) = self.space(space)? else {
            return Ok(());
        };
        let iter = match range {
            Range::All => handle.iter(),
            Range::Prefix(prefix) => handle.prefix(prefix),
            Range::Between(..) => handle.range(bounds(range)),
        };
        self.iters.push(Held {
            space,
            birth: self.oracle.birth(space).unwrap_or_default(),
            iter: iter.map_err(failed("an iterator"))?,
            left: expected(self.oracle.live_in(space), range),
        });
        Ok(())
    }

    fn move_iter(&mut self, which: u8, count: u8, moves: u64) -> Outcome {
        if self.iters.is_empty() {
            return Ok(());
        }
        let at = usize::from(which) % self.iters.len();
        let held = &mut self.iters[at];
        for turn in 0..u32::from(count) {
            take(
                &mut held.iter,
                &mut held.left,
                moves.rotate_right(turn) & 1 == 1,
            )?;
        }
        Ok(())
    }

    fn create_space(&mut self, space: u8, hook: Unanswered<'_>) -> Outcome {
        let existed = self.oracle.has_space(space);
        if !existed {
            self.oracle.creating(space);
        }
        let made = self.db()?.create_keyspace(&space_name(space)).map(|_| ());
        hook(&self.oracle)?;
        let success = self.answered(made)?;
        if !existed {
            self.oracle.catalog_answered(success);
        }
        Ok(())
    }

    fn drop_space(&mut self, space: u8, hook: Unanswered<'_>) -> Outcome {
        let existed = self.oracle.has_space(space);
        if existed {
            self.oracle.dropping(space);
        }
        let handle = self.space(space)?;
        let dropped = self.db()?.drop_keyspace(&space_name(space));
        hook(&self.oracle)?;
        let there = *dropped.as_ref().unwrap_or(&existed);
        let success = self.answered(dropped.map(|_| ()))?;
        if there != existed {
            return Err(format!("dropping {} says {there}", space_name(space)));
        }
        self.oracle.catalog_answered(success);
        if let (Some(handle), true) = (handle, success) {
            let put = handle.put("k", "v");
            // A thread may have stopped the store since the call.
            if let Err(e) = put.as_ref()
                && e.kind() == ErrorKind::Stopped
            {
                return Err(format!("a put into a dropped keyspace: {e:?}"));
            }
            let kinds = [
                handle.get("k").map(|_| ()).map_err(|e| e.kind()),
                put.map_err(|e| e.kind()),
                handle.iter().map(|_| ()).map_err(|e| e.kind()),
            ];
            if kinds != [Err(ErrorKind::Invalid); 3] {
                return Err(format!("a dropped keyspace answers {kinds:?}"));
            }
        }
        let oracle = &self.oracle;
        self.iters
            .retain(|held| oracle.birth(held.space) == Some(held.birth));
        Ok(())
    }

    fn answered(&mut self, result: terrace::Result<()>) -> Outcome<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::Full => {
                self.refused.push(e.to_string());
                Ok(false)
            }
            Err(e) => Err(format!("a call fails: {e:?}")),
        }
    }

    /// Compares a checkpoint, if the store is in a directory of the system.
    fn checkpoint(&self) -> Outcome {
        if self.place.machine.is_some() {
            return Ok(());
        }
        let folder = scratch()?;
        let place = Place {
            folder: folder.path().join("copy"),
            ..self.place.clone()
        };
        let db = self.db()?;
        db.checkpoint(&place.folder).map_err(failed("a copy"))?;
        let copy = place.open(db.options()).map_err(failed("opening a copy"))?;
        self.oracle.check_live(&copy)?;
        copy.close().map_err(failed("closing a copy"))
    }

    fn reopen(&mut self, close: bool, variation: u8, hook: Unanswered<'_>) -> Outcome {
        self.let_go();
        let Some(db) = self.db.take() else {
            return Ok(());
        };
        if close {
            let closed = db.close();
            match (&closed, db.get("a")) {
                (Ok(()), Err(e)) if e.kind() == ErrorKind::Closed => {}
                // The store stays open, since a close would lose data that is in memory only;
                // dropping it does lose it.
                (Err(e), Ok(_)) if e.kind() == ErrorKind::Full => self.refused.push(e.to_string()),
                (_, got) => return Err(format!("a close says {closed:?}, a get after it {got:?}")),
            }
        }
        drop(db);
        hook(&self.oracle)?;
        if self.refused.is_empty() {
            // A clean close makes everything durable. With a full pool it keeps the log.
            self.oracle.closed();
        }
        let whole = self.oracle.keeps_what_is_drained();
        let in_memory = self.oracle.medium() == terrace_media::Medium::Dram;
        let opened = self.place.open(&settings::varied(&self.base, variation));
        let opened = match opened {
            // Large values take more space in the repository than in memtables. The error asks to
            // enlarge the pool.
            Err(e) if e.kind() == ErrorKind::Full && in_memory && !whole => {
                self.base.pool.size_bytes += self.base.pool.size_bytes / 2;
                self.place.open(&settings::varied(&self.base, variation))
            }
            opened => opened,
        };
        self.db = Some(opened.map_err(failed("reopening"))?);
        hook(&self.oracle)?;
        if in_memory && (!whole || !self.refused.is_empty()) {
            // Only writes that were not logged may be lost, and only if they could not be written
            // out.
            self.oracle = self
                .oracle
                .check_after(crate::oracle::Crash::Process, self.db()?)?;
            return Ok(());
        }
        self.oracle.check_live(self.db()?)
    }

    /// Releases snapshots and iterators.
    pub fn let_go(&mut self) {
        self.snapshots.clear();
        self.iters.clear();
    }

    /// Drops the store without a close and returns the oracle.
    pub fn into_oracle(mut self) -> Oracle {
        let _operation = watchdog::operation("letting go of the store");
        self.let_go();
        self.db = None;
        self.oracle
    }

    /// Closes the store.
    pub fn close(mut self) -> Outcome {
        self.let_go();
        match self.db.take() {
            Some(db) => watched("closing", || db.close()).map_err(failed("closing")),
            None => Ok(()),
        }
    }

    /// Compares everything, including snapshots, and verifies.
    pub fn check_all(&self) -> Outcome {
        let db = self.db()?;
        self.oracle.check_live(db)?;
        for (which, (_, live)) in self.snapshots.iter().enumerate() {
            for &space in live.keys() {
                self.scan_in(which as u8, space, &Range::All, u64::MAX << 32)?;
            }
        }
        verify(db, Some(self.oracle.live_count()))
    }
}
