//! Elastic buffer: n levels of skip lists in the pool, any number a level (MioDB, 4.2 and 4.3).
//!
//! A flush copies a memtable in one piece and the copy is a table. Whenever a level holds two tables
//! that no job owns, its two oldest are merged by relinking and the result moves down one level.
//! Levels merge beside each other and never wait for one another, so nothing ever blocks a flush.
//! The oldest table of the last level drains to the bottom; when space is needed, the oldest
//! table of any level does.
//!
//! Invariants
//!   B1  Tables are ordered by age: every sequence number in a newer table is above every one in an
//!       older table. A deeper level holds only older tables.
//!   B2  A table belongs to at most one job.
//!
//! Two tables whose merge would make one larger than `table_bytes_max` are not merged: the older
//! moves down instead, so that the space which one drain needs stays bounded.
//!
//! After a crash: recover.rs. Callers: jobs on any thread; readers through [`Source`].

mod copy_in;
mod merge;
pub(crate) mod recover;
mod table;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Result;
use crate::metrics::{LevelMetrics, Metrics};
use crate::parts::manifest::{Change, Edit};
use crate::parts::skiplist::Target;
use crate::stages::{
    Buffer, Completion, Drain, Ground, Job, JobKind, NewerVersions, SealedTable, Source, Sources,
    Step, Urgency,
};
use crate::types::SeqNo;

use table::Table;

/// The buffer of one database.
pub(crate) struct Elastic {
    ground: Arc<Ground>,
    tables: Arc<Tables>,
}

/// All tables, newest first.
#[derive(Default)]
pub(super) struct Tables(Mutex<Vec<Arc<Table>>>);

impl Tables {
    /// Adds a table at its place by age.
    fn insert(&self, table: Arc<Table>) {
        let mut tables = self.0.lock();
        let seq = table.body.lock().seq_last;
        let at = tables.partition_point(|t| t.body.lock().seq_last > seq);
        tables.insert(at, table);
    }

    fn remove(&self, id: u64) {
        self.0.lock().retain(|t| t.id != id);
    }
}

impl Elastic {
    /// A buffer over tables found at recovery.
    fn over(ground: Arc<Ground>, tables: Vec<Arc<Table>>) -> Elastic {
        let all = Tables::default();
        for table in tables {
            all.insert(table);
        }
        // Reopened with another number of levels, a table may be on a deeper one than an older table.
        let mut deepest = u32::MAX;
        for table in all.0.lock().iter().rev() {
            let mut body = table.body.lock();
            body.level = body.level.min(deepest);
            deepest = body.level;
        }
        Elastic {
            ground,
            tables: Arc::new(all),
        }
    }

    fn last_level(&self) -> u32 {
        self.ground.options.buffer.levels - 1
    }

    /// The two oldest tables of `level`, newer first, when they are neighbours by age and no job
    /// owns either.
    fn oldest_pair(tables: &[Arc<Table>], level: u32) -> Option<(Arc<Table>, Arc<Table>)> {
        let at = tables.iter().rposition(|t| t.body.lock().level == level)?;
        let (older, newer) = (&tables[at], tables.get(at.checked_sub(1)?)?);
        let fit = |t: &Table| {
            let body = t.body.lock();
            body.level == level && !body.busy && body.merging_into.is_none()
        };
        (fit(older) && fit(newer)).then(|| (Arc::clone(newer), Arc::clone(older)))
    }

    /// A merge that a crash or a close has interrupted.
    fn interrupted(tables: &[Arc<Table>]) -> Option<(Arc<Table>, Arc<Table>)> {
        tables.iter().find_map(|newer| {
            let body = newer.body.lock();
            let into = body.merging_into.filter(|_| !body.busy)?;
            drop(body);
            let older = tables.iter().find(|t| t.id == into)?;
            Some((Arc::clone(newer), Arc::clone(older)))
        })
    }

    /// Begins the merge of a pair that no job owns; `None` when no redo slot is free.
    fn begin_merge(&self, newer: &Arc<Table>, older: &Arc<Table>) -> Result<Option<Box<dyn Job>>> {
        let Some(slot) = self.ground.redo.slot(terrace_media::Purpose::Merge) else {
            return Ok(None);
        };
        newer.body.lock().busy = true;
        older.body.lock().busy = true;
        let merge = merge::Merge::begin(
            Arc::clone(&self.ground),
            Arc::clone(&self.tables),
            Arc::clone(newer),
            Arc::clone(older),
            slot,
        )?;
        Ok(Some(Box::new(merge)))
    }
}

impl Buffer for Elastic {
    fn admit(&self, sealed: SealedTable) -> Result<Box<dyn Job>> {
        let ground = Arc::clone(&self.ground);
        Ok(Box::new(copy_in::CopyIn::begin(
            ground,
            Arc::clone(&self.tables),
            sealed,
        )))
    }

    fn next_job(&self) -> Result<Option<Box<dyn Job>>> {
        let tables = self.tables.0.lock().clone();
        if let Some((newer, older)) = Elastic::interrupted(&tables) {
            return self.begin_merge(&newer, &older);
        }
        for level in 0..self.last_level() {
            let Some((newer, older)) = Elastic::oldest_pair(&tables, level) else {
                continue;
            };
            let bytes = newer.body.lock().bytes + older.body.lock().bytes;
            if bytes <= self.ground.options.table_bytes_max() {
                return self.begin_merge(&newer, &older);
            }
            older.body.lock().busy = true;
            return Ok(Some(Box::new(MoveDown {
                table: older,
                level: level + 1,
            })));
        }
        Ok(None)
    }

    fn next_drain(&self, urgency: Urgency) -> Result<Option<Drain>> {
        let tables = self.tables.0.lock();
        let Some(oldest) = tables.last() else {
            return Ok(None);
        };
        {
            let mut body = oldest.body.lock();
            let due = body.level == self.last_level() || urgency > Urgency::None;
            if body.busy || !due || body.merging_into.is_some() {
                return Ok(None);
            }
            body.busy = true;
        }
        let oldest = Arc::clone(oldest);
        let seq_last = oldest.body.lock().seq_last;
        let seq_max = tables.first().map_or(0, |t| t.body.lock().seq_last);
        let newer = NewerTables {
            seq_max,
            tables: tables[..tables.len() - 1].to_vec(),
        };
        let all = Arc::clone(&self.tables);
        let id = oldest.id;
        Ok(Some(Drain {
            settle: None,
            cursor: oldest.cursor(),
            newer: Some(Box::new(newer)),
            seq_last,
            durable: seq_max,
            edit: Edit {
                changes: vec![Change::TableRemoved { id }],
            },
            forget: Box::new(move || all.remove(id)),
        }))
    }

    fn sources(&self) -> Sources {
        self.tables
            .0
            .lock()
            .iter()
            .map(|t| Arc::clone(t) as Arc<dyn Source>)
            .collect()
    }

    fn table_count(&self) -> usize {
        self.tables.0.lock().len()
    }

    fn drain_bytes_max(&self) -> u64 {
        self.ground.options.table_bytes_max()
    }

    fn measure(&self, metrics: &mut Metrics) {
        for table in self.tables.0.lock().iter() {
            let body = table.body.lock();
            let at = metrics.levels.partition_point(|l| l.level < body.level);
            if metrics.levels.get(at).is_none_or(|l| l.level != body.level) {
                metrics.levels.insert(
                    at,
                    LevelMetrics {
                        level: body.level,
                        ..Default::default()
                    },
                );
            }
            let level = &mut metrics.levels[at];
            level.table_count += 1;
            level.merging_count += u64::from(body.merging_into.is_some());
            level.entry_count += body.entries;
            level.bytes += body.extents.iter().map(|(e, _)| e.len()).sum::<u64>();
        }
    }
}

/// The tables that are newer than one that drains, newest first, as they were when the drain began.
/// They may merge meanwhile, with one another and with tables that are newer still.
struct NewerTables {
    tables: Vec<Arc<Table>>,
    /// Versions above it came later: a snapshot that the drain does not know of may hide them.
    seq_max: SeqNo,
}

impl NewerVersions for NewerTables {
    fn newest(&self, keyspace: u32, key: &[u8], hash: u64) -> Result<Option<SeqNo>> {
        let target = Target {
            keyspace,
            key,
            seq: self.seq_max,
        };
        for table in &self.tables {
            if let Some(seq) = table.newest_version(&target, hash)? {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }
}

/// Moves a table down that is too large to merge: an edit and nothing else.
struct MoveDown {
    table: Arc<Table>,
    level: u32,
}

impl Job for MoveDown {
    fn kind(&self) -> JobKind {
        JobKind::Merge
    }

    fn step(&mut self) -> Result<Step> {
        let (table, level) = (Arc::clone(&self.table), self.level);
        Ok(Step::Done(Completion {
            edit: Edit {
                changes: vec![Change::TableMoved {
                    id: table.id,
                    level,
                }],
            },
            apply: Box::new(move || {
                let mut body = table.body.lock();
                body.level = level;
                body.busy = false;
            }),
            garbage: Vec::new(),
            entries: 0,
        }))
    }
}
