//! Recovery of the front: it finds the logs, which replay.rs then replays into sealed memtables.
//!
//! A crash can leave
//!   - logs whose memtables had not been flushed: replayed, oldest first;
//!   - a spare's log without records: retired;
//!   - records after the first one that is not whole: their writers had not been answered.
//!
//! Nothing is appended to a replayed log. Its memtable is flushed like any other, and the edit that
//! names the new place of its entries retires the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrace_media::Prefault;

use super::fault_in::Cold;
use super::files::LogFiles;
use super::memtable::Arenas;
use super::replay::{FoundLog, FoundPlace, retire_empty};
use super::spare::{Size, log_bytes, new_memtable};
use super::{FlushTo, Shown, Tables, WalMemtable};
use crate::error::{ErrorKind, Result};
use crate::parts::manifest::{LogMeta, LogPlace, State};
use crate::parts::reserve::Row;
use crate::stages::{Folder, Ground};

/// Finds the logs and creates the front; replay.rs replays them.
pub(crate) fn recover(
    ground: &Arc<Ground>,
    files: Folder,
    flush_to: FlushTo,
) -> Result<WalMemtable> {
    let memtable = ground.options.front.memtable_bytes;
    let log_files = Arc::new(LogFiles::new(
        ground,
        files,
        log_bytes(memtable),
        ground.options.front.log_bytes_max,
    ));
    let logs = ground.manifest.with_state(|state| state.logs.clone());
    let is_file = |log: &LogMeta| log.place == LogPlace::File;
    let in_files = logs.iter().filter(|(_, log)| is_file(log));
    let named: Vec<u64> = in_files.map(|(id, _)| *id).collect();
    if !ground.pool_outlives() {
        log_files.find(&named, ground)?;
    }
    let mut found = VecDeque::new();
    for (id, log) in logs {
        ground.skip_ids(id + 1);
        let place = match log.place {
            LogPlace::Pool(span) => FoundPlace::Pool(ground.pool.adopt(span)?),
            LogPlace::File => FoundPlace::File,
        };
        found.push_back(FoundLog::new((id, log.end), place, &log_files));
    }
    retire_empty(ground, &mut found)?;
    let arenas = Arc::new(Arenas::new(&ground.memory));
    if ground.options.pool.prefault == Prefault::All && ground.pool_outlives() {
        // The active one, the spare, and those that wait for their flush.
        arenas.stock(2 + ground.options.front.sealed_count_max, memtable)?;
    }
    // Without a pool the memory of a memtable is its extent.
    let anchor = match flush_to {
        FlushTo::Bottom if ground.pool_outlives() => Some(ground.pool.alloc(1)?),
        FlushTo::Bottom | FlushTo::Pool => None,
    };
    // A database that is being created has no reserve, and its creator wants to put.
    let small = ground.manifest.with_state(State::has_data);
    let small = small.then(|| Size::on_reserve(ground, None));
    let logs: Vec<u64> = match anchor {
        Some(_) => Vec::new(),
        None => found.iter().map(|log| log.bytes).collect(),
    };
    let size = Size::first(ground, &logs);
    let make =
        |size, small| new_memtable(ground, &log_files, &arenas, anchor.as_ref(), size, small);
    let active = match make(size, small) {
        // The previous opening may have had smaller memtables, and kept space for one of those in
        // the pool. On a disk, kills may have left logs of openings that took all of the reserve
        // but a few blocks.
        Err(e) if e.kind() == ErrorKind::Full && small.is_some() => {
            make(Size::least().on(Row::Ranges), None)?
        }
        made => made?,
    };
    let active = Arc::new(active);
    let cold = Cold::new(ground);
    cold.add_table(&active);
    let shown = Shown {
        active: Arc::clone(&active),
        sealed: Vec::new(),
    };
    Ok(WalMemtable {
        anchor,
        flush_to,
        ground: Arc::clone(ground),
        tables: Arc::new(Tables(Mutex::new(shown))),
        commit: Mutex::new(()),
        active: ArcSwap::new(active),
        closed: AtomicBool::new(false),
        spare: Mutex::new(None),
        making: Mutex::new(()),
        for_next_opening: Mutex::default(),
        cold,
        arenas,
        log_files,
        found: Arc::new(Mutex::new(found)),
    })
}
