//! The writers: every operation that writes, preserving what must hold at each instant.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use terrace::{Durability, ErrorKind, WriteBatch};

use super::comers::Comer;
use super::roster::{
    ACCOUNTS, BRIEF, GROUP_KEYS, Place, Register, TOTAL, account, always_key, brief, fact,
    group_key, mark, numbered, owned, owned_key, shared, value,
};
use super::seen::{Seen, Span};
use super::{Stage, failed};
use crate::oracle::Outcome;
use crate::watchdog;

/// A time longer than any run.
const LONG: Duration = Duration::from_secs(3600);
/// The longest time to live that ends within a run, and the longest jump of the clock, in
/// milliseconds.
const SHORT: u64 = 8;

/// A writing thread.
pub(super) struct Writer<'a> {
    pub(super) stage: &'a Stage<'a>,
    pub(super) id: u64,
    pub(super) rng: fastrand::Rng,
    /// The number of values made.
    count: u64,
    balances: [u64; ACCOUNTS as usize],
    pub(super) comer: Option<Arc<Comer>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(stage: &'a Stage<'a>, id: u64) -> Writer<'a> {
        Writer {
            stage,
            id,
            rng: fastrand::Rng::with_seed(stage.run.seed ^ (id + 1) << 40),
            count: 0,
            balances: [TOTAL / ACCOUNTS; ACCOUNTS as usize],
            comer: None,
        }
    }

    /// Returns the number of a value not yet written.
    pub(super) fn next(&mut self, balance: u64) -> u64 {
        self.count += 1;
        numbered(self.id, balance, self.count)
    }

    pub(super) fn durability(&mut self) -> Durability {
        match self.rng.u8(0..16) {
            0 => Durability::Sync,
            1 => Durability::Volatile,
            _ => Durability::Buffered,
        }
    }

    pub(super) fn write(&mut self, batch: &WriteBatch) -> Outcome<Span> {
        let durability = self.durability();
        let write = || self.stage.db.write(batch.clone(), durability);
        self.stage.call("a batch", write)
    }

    fn put(&self, batch: &mut WriteBatch, (space, key): &Place, number: u64) {
        batch.put_in(&self.stage.spaces[*space], key, value(number));
    }

    fn put_for(&self, batch: &mut WriteBatch, (space, key): &Place, number: u64, ttl: Duration) {
        batch.put_with_ttl_in(&self.stage.spaces[*space], key, value(number), ttl);
    }

    /// Clears a key in a batch that may put it afterwards: with a delete, a range delete of this
    /// key, or one of more keys.
    fn clear(&mut self, batch: &mut WriteBatch, (space, key): &Place) {
        let space = &self.stage.spaces[*space];
        match self.rng.u8(0..4) {
            0 => batch.delete_in(space, key),
            1 => batch.delete_range_in(space, key.clone()..=key.clone()),
            2 => {
                let behind = [key.as_slice(), b"\0"].concat();
                batch.delete_range_in(space, key.clone()..behind)
            }
            _ => batch,
        };
    }

    /// Writes the keys that must exist before any read.
    pub(super) fn begin(&mut self, seen: &mut Seen) -> Outcome {
        for n in 0..ACCOUNTS {
            let number = self.next(self.balances[n as usize]);
            let mut batch = WriteBatch::new();
            self.put(&mut batch, &account(self.id, n), number);
            let span = self.write(&batch)?;
            seen.wrote(Register::Account(self.id, n), span, Some(number), "start");
        }
        self.renew(seen)
    }

    pub(super) fn go_on(&mut self, seen: &mut Seen) -> Outcome {
        for turn in 0..self.stage.run.writes {
            if self.stage.has_failed() {
                break;
            }
            let _operation = watchdog::operation(("turn of a writer", turn));
            match self.rng.u8(0..60) {
                0..14 => self.write_shared(seen)?,
                14..26 => self.write_owned(seen)?,
                26..36 => self.write_group(seen)?,
                36..42 => self.transfer(seen)?,
                42..47 => self.renew(seen)?,
                47..51 => self.write_brief(seen)?,
                51..55 => self.write_mark(seen)?,
                55 | 56 => self.jump(),
                57 => self.write_beside(seen)?,
                58 => self.come_or_go(seen)?,
                _ => self.keep_house()?,
            }
            if self.rng.u8(0..4) == 0 {
                self.stage.get(&mut self.rng, seen)?;
            }
        }
        Ok(())
    }

    fn jump(&mut self) {
        let millis = self.rng.u64(1..=SHORT);
        self.stage.clock.jump(millis, || self.stage.tick());
    }

    /// Flushes, drains or compacts a range; without threads, runs background steps.
    fn keep_house(&mut self) -> Outcome {
        let db = self.stage.db;
        let kept = match self.rng.u8(0..6) {
            0 => db.flush(),
            1 if self.rng.u8(..4) == 0 => db.drain(),
            2 => {
                let places = &self.stage.roster.places;
                let from = &places[self.rng.usize(..places.len())].1;
                db.compact_range(from.clone()..)
            }
            3 if self.id == 0 => Ok(()),
            _ => return self.stage.step(&mut self.rng),
        };
        match kept {
            Err(e) if e.kind() == ErrorKind::Full && self.stage.is_manual() => Ok(()),
            kept => kept.map_err(failed("a flush, a drain or a compaction")),
        }
    }

    fn write_shared(&mut self, seen: &mut Seen) -> Outcome {
        let n = self.rng.u64(0..self.stage.run.shared());
        let place = shared(n);
        let number = self.next(0);
        let space = &self.stage.spaces[place.0];
        let (span, how) = match self.rng.u8(0..6) {
            0 => {
                let put = || space.put_with_ttl(&place.1, value(number), LONG);
                (self.stage.call("a put", put)?, "put with a time to live")
            }
            1 | 2 => {
                let mut batch = WriteBatch::new();
                self.clear(&mut batch, &place);
                self.put(&mut batch, &place, number);
                (self.write(&batch)?, "batch")
            }
            _ => {
                let put = || space.put(&place.1, value(number));
                (self.stage.call("a put", put)?, "put")
            }
        };
        seen.wrote(Register::Shared(n), span, Some(number), how);
        Ok(())
    }

    fn write_owned(&mut self, seen: &mut Seen) -> Outcome {
        if self.id == 0 && self.rng.u8(0..12) == 0 {
            return self.ingest(seen);
        }
        let n = self.rng.u64(0..self.stage.run.owned());
        let (at, key) = owned(self.id, n);
        let space = &self.stage.spaces[at];
        let number = self.next(0);
        let (span, written, how) = match self.rng.u8(0..14) {
            0..5 => return self.write_many(n, seen),
            5 | 6 => {
                let span = self.stage.call("a delete", || space.delete(&key))?;
                (span, None, "delete")
            }
            7 => {
                // An expiry in the past makes this put a delete.
                let put = || space.put_with_expiry(&key, value(number), UNIX_EPOCH);
                (self.stage.call("a put", put)?, None, "put that is past")
            }
            8 => {
                let put = || space.put_with_ttl(&key, value(number), LONG);
                let span = self.stage.call("a put", put)?;
                (span, Some(number), "put with a time to live")
            }
            _ => {
                let span = self
                    .stage
                    .call("a put", || space.put(&key, value(number)))?;
                (span, Some(number), "put")
            }
        };
        seen.wrote(Register::Owned(self.id, n), span, written, how);
        Ok(())
    }

    /// Deletes keys from the `n`-th on with ranges of both keyspaces, putting some of them before
    /// and some after, in one batch; or deletes those of one keyspace only.
    fn write_many(&mut self, n: u64, seen: &mut Seen) -> Outcome {
        let most = (self.stage.run.owned() - n).min(40);
        let end = n + 1 + self.rng.u64(0..most);
        let id = self.id;
        let range = || owned_key(id, n)..owned_key(id, end);
        if self.rng.u8(0..3) == 0 {
            let at = self.rng.usize(..2);
            let space = &self.stage.spaces[at];
            let delete = || space.delete_range(range());
            let span = self.stage.call("a range delete", delete)?;
            for n in (n..end).filter(|n| *n as usize % 2 == at) {
                seen.wrote(Register::Owned(self.id, n), span, None, "range delete");
            }
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        let before = self.next(0);
        for n in n..end {
            if self.rng.u8(..4) == 0 {
                self.put(&mut batch, &owned(self.id, n), before);
            }
        }
        for space in &self.stage.spaces {
            batch.delete_range_in(space, range());
        }
        let mut written = Vec::new();
        for n in n..end {
            let put = self.rng.bool();
            let number = put.then(|| self.next(0));
            match number {
                Some(number) => self.put(&mut batch, &owned(self.id, n), number),
                None if self.rng.u8(..4) == 0 => {
                    self.clear(&mut batch, &owned(self.id, n));
                }
                None => {}
            }
            written.push((n, number));
        }
        let span = self.write(&batch)?;
        for (n, number) in written {
            seen.wrote(Register::Owned(self.id, n), span, number, "mixed batch");
        }
        Ok(())
    }

    /// Bulk loads some of this writer's keys of one keyspace.
    fn ingest(&mut self, seen: &mut Seen) -> Outcome {
        let at = self.rng.usize(..2);
        let mut loaded = Vec::new();
        for n in (0..self.stage.run.owned()).filter(|n| *n as usize % 2 == at) {
            if self.rng.bool() {
                loaded.push((n, self.next(0)));
            }
        }
        let called = self.stage.tick();
        let ingested = self.stage.spaces[at].ingest().and_then(|mut ingest| {
            for (n, number) in &loaded {
                ingest.add(owned_key(self.id, *n), value(*number))?;
            }
            ingest.finish()
        });
        match ingested {
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Full && self.stage.is_manual() => return Ok(()),
            ingested => ingested.map_err(failed("an ingest"))?,
        };
        let span = (called, self.stage.tick());
        for (n, number) in loaded {
            seen.wrote(Register::Owned(self.id, n), span, Some(number), "ingest");
        }
        Ok(())
    }

    fn write_group(&mut self, seen: &mut Seen) -> Outcome {
        let group = self.rng.u64(0..self.stage.run.groups());
        let number = self.next(0);
        let mut batch = WriteBatch::new();
        for n in 0..GROUP_KEYS {
            for at in 0..2 {
                let place = (at, group_key(group, n));
                self.clear(&mut batch, &place);
                self.put(&mut batch, &place, number);
            }
        }
        let span = self.write(&batch)?;
        seen.wrote(Register::Group(group), span, Some(number), "batch");
        Ok(())
    }

    /// Transfers some of the balance of one account to another. An account without a balance may be
    /// absent.
    fn transfer(&mut self, seen: &mut Seen) -> Outcome {
        let from = self.rng.usize(..ACCOUNTS as usize);
        let to = (from + self.rng.usize(1..ACCOUNTS as usize)) % ACCOUNTS as usize;
        let amount = self.rng.u64(0..=self.balances[from]);
        self.balances[from] -= amount;
        self.balances[to] += amount;
        let mut batch = WriteBatch::new();
        let all = self.rng.u8(..3) == 0;
        if all {
            for n in 0..ACCOUNTS {
                let (space, key) = account(self.id, n);
                batch.delete_range_in(&self.stage.spaces[space], key.clone()..=key);
            }
        }
        let mut written = Vec::new();
        for n in 0..ACCOUNTS as usize {
            if !all && n != from && n != to {
                continue;
            }
            let balance = self.balances[n];
            let number = self.next(balance);
            let place = account(self.id, n as u64);
            if balance == 0 && self.rng.bool() {
                batch.delete_in(&self.stage.spaces[place.0], &place.1);
                written.push((n as u64, None));
                continue;
            }
            if !all {
                self.clear(&mut batch, &place);
            }
            self.put(&mut batch, &place, number);
            written.push((n as u64, Some(number)));
        }
        let span = self.write(&batch)?;
        for (n, number) in written {
            seen.wrote(Register::Account(self.id, n), span, number, "transfer");
        }
        Ok(())
    }

    /// Rewrites the key that is always present: clears and puts it in one batch, or puts it for a
    /// short time and again before it expires.
    fn renew(&mut self, seen: &mut Seen) -> Outcome {
        let register = Register::Always(self.id);
        let places = [0, 1].map(|space| (space, always_key(self.id)));
        let (held, _) = self.stage.clock.hold();
        let ttl = self.rng.u64(1..=SHORT);
        if self.rng.bool() {
            let number = self.next(0);
            let mut batch = WriteBatch::new();
            for place in &places {
                self.put_for(&mut batch, place, number, Duration::from_millis(ttl));
            }
            let span = self.write(&batch)?;
            seen.wrote(register, span, Some(number), "put for a short time");
        }
        let number = self.next(0);
        let lasts = self.rng.u8(..4) == 0;
        let mut batch = WriteBatch::new();
        for place in &places {
            self.clear(&mut batch, place);
            match lasts {
                true => self.put_for(&mut batch, place, number, LONG),
                false => self.put(&mut batch, place, number),
            }
        }
        let span = self.write(&batch)?;
        seen.wrote(register, span, Some(number), "put again in time");
        drop(held);
        if self.rng.bool() {
            self.stage.clock.jump(ttl, || self.stage.tick());
        }
        Ok(())
    }

    /// Puts a key for a short time or permanently, or deletes it.
    fn write_brief(&mut self, seen: &mut Seen) -> Outcome {
        let n = self.rng.u64(..BRIEF);
        let place = brief(self.id, n);
        let (held, now) = self.stage.clock.hold();
        let number = self.next(0);
        let ttl = self.rng.u64(1..=SHORT);
        let mut batch = WriteBatch::new();
        self.clear(&mut batch, &place);
        let space = &self.stage.spaces[place.0];
        let mut expires = None;
        let mut written = Some(number);
        match self.rng.u8(0..8) {
            0 => {
                batch.delete_in(space, &place.1);
                written = None;
            }
            1 => self.put(&mut batch, &place, number),
            2 | 3 => {
                let at = UNIX_EPOCH + Duration::from_millis(now + ttl);
                batch.put_with_expiry_in(space, &place.1, value(number), at);
                expires = Some(now + ttl);
            }
            _ => {
                self.put_for(&mut batch, &place, number, Duration::from_millis(ttl));
                expires = Some(now + ttl);
            }
        }
        let span = self.write(&batch)?;
        drop(held);
        let register = Register::Brief(self.id, n);
        seen.wrote(register, span, written, "put for a short time");
        if let Some(at) = expires {
            seen.expires(register, at);
        }
        Ok(())
    }

    /// Writes a fact and then its mark, or deletes the mark and then the fact.
    fn write_mark(&mut self, seen: &mut Seen) -> Outcome {
        let puts = self.rng.u8(..4) > 0;
        let number = puts.then(|| self.next(0));
        let mut both = [
            (Register::Fact(self.id), fact(self.id)),
            (Register::Mark(self.id), mark(self.id)),
        ];
        if !puts {
            both.reverse();
        }
        for (register, place) in both {
            let mut batch = WriteBatch::new();
            match number {
                Some(number) => {
                    self.clear(&mut batch, &place);
                    self.put(&mut batch, &place, number);
                }
                None => {
                    let space = &self.stage.spaces[place.0];
                    match self.rng.bool() {
                        true => batch.delete_in(space, &place.1),
                        false => batch.delete_range_in(space, place.1.clone()..=place.1.clone()),
                    };
                }
            }
            let span = self.write(&batch)?;
            seen.wrote(register, span, number, "one after the other");
        }
        Ok(())
    }
}
