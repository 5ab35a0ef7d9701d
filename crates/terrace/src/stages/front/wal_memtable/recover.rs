//! Recovery of the front: it finds the logs, which replay.rs then replays into sealed memtables.
//!
//! A crash can leave
//!   - logs whose memtables had not been flushed: replayed, oldest first;
//!   - a spare's log without records: retired;
//!   - records after the first one that is not whole: their writers had not been answered;
//!   - a list that is its own log, with nodes behind the first one that is not whole, and links in
//!     any state: its nodes up to there are linked again, in place.
//!
//! Nothing is appended to a replayed log. Its memtable is flushed like any other, and the edit that
//! names the new place of its entries retires the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_media::{Prefault, Shutdown};

use super::files::LogFiles;
use super::in_log::Values;
use super::memtable::Arenas;
use super::prefault::Unfaulted;
use super::replay::{FoundLog, FoundPlace, retire_empty};
use super::spare::{Size, log_bytes, new_memtable};
use super::{FlushTo, Shown, Tables, WalMemtable};
use crate::canary::failpoint;
use crate::error::{ErrorKind, Result};
use crate::parts::manifest::{Change, Edit, LogMeta, LogPlace, State};
use crate::parts::reserve::Row;
use crate::parts::skiplist;
use crate::stages::{Folder, Shared};
use crate::types::SEQ_MAX;

/// More numbers than an unclean end can leave unknown in addition to one for each node in the pool:
/// an ingest takes 2^32 at once.
const LOST_NUMBERS: u64 = 1 << 33;

/// After an unclean end, lets numbers go on above all that may have been used. The pool may have
/// nodes with numbers that nothing else knows any more: behind the end of a list, in the copy of a
/// memtable, on pages that were not synced. With these numbers, they would be taken for entries of
/// a list that has their space (N2 of parts/log/list.rs).
fn skip_lost_numbers(shared: &Shared) -> Result<()> {
    if !shared.pool_outlives() || shared.pool.shutdown() == Shutdown::Clean {
        return Ok(());
    }
    let nodes = shared.pool.usage().limit / skiplist::layout::HEADER_BYTES as u64;
    let seq = (shared.sequencer.last_taken() + LOST_NUMBERS + nodes).min(SEQ_MAX);
    // PERSIST: the number, before a list is named that has a higher one. Reversed, a second crash
    // would let numbers begin again where the first one did.
    shared.manifest.commit(Edit::of(Change::LastSeq { seq }))?;
    shared.sequencer.start_after(seq);
    Ok(())
}

/// Finds the logs and creates the front; replay.rs replays them.
pub(crate) fn recover(
    shared: &Arc<Shared>,
    files: Folder,
    flush_to: FlushTo,
) -> Result<WalMemtable> {
    let memtable = shared.options.front.memtable_bytes;
    let log_files = Arc::new(LogFiles::new(
        shared,
        files,
        log_bytes(memtable),
        shared.options.front.log_bytes_max,
    ));
    let logs = shared.manifest.with_state(|state| state.logs.clone());
    let is_file = |log: &LogMeta| log.place == LogPlace::File;
    let in_files = logs.iter().filter(|(_, log)| is_file(log));
    let named: Vec<u64> = in_files.map(|(id, _)| *id).collect();
    if !shared.pool_outlives() {
        log_files.find(&named, shared)?;
    }
    let mut found = VecDeque::new();
    for (id, log) in logs {
        shared.skip_ids(id + 1);
        let place = match log.place {
            LogPlace::Pool(span) => FoundPlace::Pool(shared.pool.adopt(span)?),
            LogPlace::List(span) => FoundPlace::List(shared.pool.adopt(span)?),
            LogPlace::File => FoundPlace::File,
        };
        found.push_back(FoundLog::new((id, log.end), place, &log_files));
    }
    if flush_to == FlushTo::PoolInTurns {
        failpoint!(ListNumbers skips skip_lost_numbers(shared)?);
    }
    retire_empty(shared, &mut found)?;
    let arenas = Arc::new(Arenas::new(&shared.memory, &shared.options));
    let whole = flush_to != FlushTo::Tables;
    if shared.options.pool.prefault == Prefault::All && shared.pool_outlives() && whole {
        // The active one, the spare, and those that wait for their flush.
        arenas.preallocate(2 + shared.options.front.sealed_count_max, memtable)?;
    }
    // Without a pool the memory of a memtable is its extent.
    let anchor = match flush_to {
        FlushTo::Buffer | FlushTo::Bottom | FlushTo::Tables if shared.pool_outlives() => {
            Some(shared.pool.alloc(1)?)
        }
        FlushTo::Pool
        | FlushTo::PoolInTurns
        | FlushTo::Buffer
        | FlushTo::Bottom
        | FlushTo::Tables => None,
    };
    let values = flush_to.values(shared);
    let in_log = matches!(values, Values::InLog { .. });
    // A database that is being created has no reserve, and its creator wants to put.
    let small = shared.manifest.with_state(State::has_data);
    let small = small.then(|| Size::on_reserve(shared, None, in_log));
    let logs: Vec<u64> = match anchor {
        Some(_) => Vec::new(),
        None => found.iter().map(FoundLog::bytes_to_replay).collect(),
    };
    let size = Size::first(shared, &logs, in_log);
    let make = |size, small| {
        let place = (anchor.as_ref(), values.clone());
        new_memtable(shared, &log_files, &arenas, place, size, small)
    };
    let active = match make(size, small) {
        // The previous opening may have had smaller memtables, and kept space for one of those in
        // the pool. On a disk, kills may have left logs of openings that took all of the reserve
        // but a few blocks.
        Err(e) if e.kind() == ErrorKind::Full && small.is_some() => {
            make(Size::least(in_log).on(Row::Ranges), None)?
        }
        made => made?,
    };
    let active = Arc::new(active);
    let unfaulted = Unfaulted::new(shared);
    match in_log {
        true => unfaulted.add_log_table(&active, None),
        false => unfaulted.add_table(&active),
    }
    let shown = Shown {
        active: Arc::clone(&active),
        sealed: Vec::new(),
    };
    Ok(WalMemtable {
        anchor,
        flush_to,
        in_log,
        shared: Arc::clone(shared),
        tables: Arc::new(Tables(Mutex::new(shown))),
        commit: Mutex::new(()),
        active: ArcSwap::new(active),
        closed: AtomicBool::new(false),
        logs_all: AtomicBool::new(false),
        spare: Mutex::new(None),
        making: Mutex::new(()),
        for_next_opening: Mutex::default(),
        unfaulted,
        arenas,
        log_files,
        found: Arc::new(Mutex::new(found)),
    })
}
