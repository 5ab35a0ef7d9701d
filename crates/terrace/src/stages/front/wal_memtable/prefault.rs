//! Faulting in of memory that memtables will write to, concurrently with writers and a piece at a
//! time.
//!
//! The first access to a page costs a writer ten times a write. This affects speed only: a writer
//! that is ahead of it takes the fault itself.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrace_media::{Pool, Prefault};

use super::memtable::Memtable;
use crate::error::Result;
use crate::stages::{Completion, Job, JobCounter, JobKind, Shared, Step};

/// The index of large values takes at least so many bytes for each 256 of its log.
const INDEX_BYTES_MIN: u64 = 8;

/// Bytes of one step: some milliseconds.
const STEP_BYTES: u64 = 4 << 20;

/// Pieces of memory that are still to be faulted in, the most urgent first.
pub(super) struct Unfaulted {
    shared: Arc<Shared>,
    pieces: Mutex<VecDeque<Piece>>,
}

struct Piece {
    /// A memtable that is gone needs nothing.
    memtable: Weak<Memtable>,
    part: Part,
    /// Bytes of the part that are done.
    done: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The table's memory, then its place in the pool. A list that is its own log has only that.
    Table,
    /// The file of its log.
    Log,
    /// Its log in the pool, which has its values, and memory of its index for each 256 bytes of
    /// that.
    LogTable { index_bytes: u64 },
}

impl Unfaulted {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<Unfaulted> {
        Arc::new(Unfaulted {
            shared: Arc::clone(shared),
            pieces: Mutex::default(),
        })
    }

    fn add(&self, memtable: &Arc<Memtable>, part: Part) {
        if self.shared.options.pool.prefault != Prefault::None {
            self.pieces.lock().push_back(Piece {
                memtable: Arc::downgrade(memtable),
                part,
                done: 0,
            });
        }
    }

    /// Adds the memory of the memtable that a database opens with, since opening does not wait for
    /// the system to clear two hundred megabytes, or of a list, which is as large.
    pub(super) fn add_table(&self, memtable: &Arc<Memtable>) {
        self.add(memtable, Part::Table);
    }

    /// Adds a memtable whose values are in its log: too much to wait for. `before` tells how much
    /// memory its index is going to need.
    pub(super) fn add_log_table(&self, memtable: &Arc<Memtable>, before: Option<&Memtable>) {
        // One with few entries tells nothing.
        let told = before.filter(|before| before.used_bytes() >= before.log_bytes_max / 16);
        let index = told.map_or(0, |before| {
            let logged = before.used_bytes().max(1);
            before.bump.used().saturating_mul(256) / logged
        });
        let index_bytes = index.clamp(INDEX_BYTES_MIN, 256);
        self.add(memtable, Part::LogTable { index_bytes });
    }

    /// Adds the log of a spare. A rarely written database makes none, so its log takes no memory
    /// ahead.
    pub(super) fn add_log(&self, memtable: &Arc<Memtable>) {
        if memtable.log.as_ref().is_some_and(|log| log.is_cold()) {
            self.add(memtable, Part::Log);
        }
    }

    /// Returns a job for the next piece.
    pub(super) fn next_job(self: &Arc<Self>) -> Option<Box<dyn Job>> {
        let mut pieces = self.pieces.lock();
        // BOUND: each iteration takes a piece away.
        while let Some(piece) = pieces.pop_front() {
            if piece.memtable.strong_count() > 0 {
                return Some(Box::new(PrefaultJob {
                    unfaulted: Arc::clone(self),
                    piece: Some(piece),
                }));
            }
        }
        None
    }
}

/// A job that does one step of a piece, so that other work waits no longer than that.
struct PrefaultJob {
    unfaulted: Arc<Unfaulted>,
    piece: Option<Piece>,
}

impl Job for PrefaultJob {
    fn kind(&self) -> JobKind {
        JobKind::Flush
    }

    fn counted_as(&self) -> JobCounter {
        JobCounter::Spare
    }

    fn step(&mut self) -> Result<Step> {
        let piece = self.piece.take();
        if let Some(rest) = piece.and_then(|piece| piece.prefault(&self.unfaulted.shared.pool)) {
            self.unfaulted.pieces.lock().push_front(rest);
        }
        Ok(Step::Done(Completion::nothing()))
    }
}

impl Piece {
    /// Does one step; returns the rest, if any.
    fn prefault(mut self, pool: &Pool) -> Option<Piece> {
        let memtable = self.memtable.upgrade()?;
        let end = match self.part {
            Part::Table => memtable.bump.capacity(),
            Part::Log | Part::LogTable { .. } => memtable.log_bytes_max,
        };
        match self.part {
            Part::Table if memtable.is_list() => {
                self.done = self.done.max(memtable.bump.used());
                if self.done >= end {
                    return None;
                }
                pool.prefault_part(&memtable.extent, self.done, STEP_BYTES);
            }
            Part::Table if self.done >= end => {
                memtable.prefault_extents(pool);
                return None;
            }
            Part::Table => memtable.populate(self.done, STEP_BYTES),
            Part::LogTable { index_bytes } => {
                if self.done >= end {
                    return None;
                }
                let index = |logged: u64| logged / 256 * index_bytes;
                memtable.populate(index(self.done), index(STEP_BYTES));
                if let Some(extent) = &memtable.log_extent {
                    pool.prefault_part(extent, self.done, STEP_BYTES);
                }
            }
            Part::Log => {
                let log = memtable.log.as_ref()?;
                self.done = self.done.max(log.bytes());
                if self.done >= end {
                    return None;
                }
                log.prefault(self.done, STEP_BYTES);
            }
        }
        self.done += STEP_BYTES;
        Some(self)
    }
}
