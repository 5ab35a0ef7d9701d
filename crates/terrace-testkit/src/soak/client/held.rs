//! The snapshots that a client holds.

use std::time::Instant;

use terrace::{Db, Keyspace, Snapshot};

use super::{Client, begun};
use crate::oracle::Outcome;
use crate::soak::Weather;
use crate::soak::book::{Book, Moment, SPACES, compare};
use crate::soak::keys::{key, owner};
use crate::soak::watch::{Kind, Watch};

/// The maximum number of snapshots that a client holds.
const SNAPSHOTS: usize = 4;

/// A snapshot, and the books at the time it was taken.
pub(super) struct Held {
    snapshot: Snapshot,
    book: Book,
    moment: Moment,
    pub(super) until: Instant,
    /// The bytes that all clients had written when it was taken.
    pub(super) written: u64,
    /// Identifies the client's own keyspace at that time.
    births: u64,
}

impl Client {
    pub(super) fn take_snapshot(&mut self, db: &Db, watch: &Watch, weather: Weather) -> Outcome {
        if self.held.len() >= SNAPSHOTS {
            return Ok(());
        }
        let (snapshot, moment) = Moment::of(|| db.snapshot());
        // Few snapshots are held for long.
        let most = weather.held_for();
        let span = [most / 1000, most / 30, most][self.rng.usize(..3)];
        self.held.push(Held {
            snapshot: snapshot.map_err(|e| format!("a snapshot: {e:?}"))?,
            book: self.book.clone(),
            moment,
            until: Instant::now() + span.mul_f64(self.rng.f64()),
            written: watch.written(),
            births: self.births,
        });
        self.tell(watch);
        Ok(())
    }

    /// Draws one of the snapshots, and a keyspace that existed when it was taken.
    fn some_held(&mut self) -> Option<(usize, usize, Keyspace)> {
        if self.held.is_empty() {
            return None;
        }
        let at = self.rng.usize(..self.held.len());
        let space = self.rng.usize(..SPACES);
        if space == 2 && self.held[at].births != self.births {
            return None;
        }
        let handle = self.spaces[space].clone()?;
        Some((at, space, handle))
    }

    pub(super) fn get_held(&mut self, watch: &Watch) -> Outcome {
        let Some((at, space, handle)) = self.some_held() else {
            return Ok(());
        };
        let key = key(space, self.id, self.number());
        let held = &self.held[at];
        let found = watch.timed(Kind::Read, || held.snapshot.get_in(&handle, &key))?;
        let found = found.map_err(|e| format!("a get in a snapshot fails: {e:?}"))?;
        held.book
            .check_get((space, &key), found.as_deref(), held.moment)
            .map_err(|e| format!("a get in a snapshot: {e}"))
    }

    pub(super) fn scan_held(&mut self, watch: &Watch) -> Outcome {
        let Some((at, space, handle)) = self.some_held() else {
            return Ok(());
        };
        let back = self.rng.bool();
        let held = &self.held[at];
        let mine = |key: &[u8]| space == 2 || owner(space, key) == Some(self.id);
        let whole = watch.timed(Kind::Scan, || {
            let Some(iter) = begun(held.snapshot.iter_in(&handle))? else {
                return Ok(false);
            };
            let pairs = held.book.pairs(space);
            match back {
                true => compare(pairs.rev(), iter.rev(), held.moment, &mine),
                false => compare(pairs, iter, held.moment, &mine),
            }
        })?;
        let whole = whole.map_err(|e| format!("in a snapshot, {e}"));
        self.unless_refused(watch, whole)
    }
}
