//! This file drains: a sorted stream becomes a run of level 0.
//!
//! CRASH: tables that no edit names are removed when the database is opened; the drain begins again.

use std::sync::Arc;

use super::Body;
use super::hidden::{Hidden, Progress};
use super::output::Output;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Workers;
use crate::parts::ranges::layout::SHADOW;
use crate::stages::{Completion, Credit, Drain, Job, JobKind, Step, retired};
use crate::types::key_hash;

/// After so many tries on a full disk a job gives its sources back, so that another one is chosen by what is there
/// then. No fewer than the engine counts before it refuses those who wait.
const REFUSED_MAX: u32 = 2;

/// Entries and bytes of one step.
const STEP_ENTRIES: u32 = 1024;
const STEP_BYTES: usize = 1 << 20;

/// One drain.
pub(super) struct Absorb {
    body: Arc<Body>,
    drain: Option<Drain>,
    run: u64,
    /// `None` until all entries are in place: what snapshots read is asked then.
    output: Option<Output>,
    /// That of the drain, once its entries are written: it goes with the job, when the pool has its space
    /// back.
    credit: Credit,
    finished: bool,
    /// How often the disk had no room for it.
    refused: u32,
    /// The rewriting of a table that makes room for the drains after this one, which is given back.
    hidden: Option<Hidden>,
    /// The bottom takes no drain for now, so this one makes room only.
    waits: bool,
}

impl Absorb {
    /// `waits`: the bottom takes no drain for now, so it is used to make room, and given back.
    pub(super) fn begin(body: &Arc<Body>, drain: Drain, waits: bool) -> Absorb {
        // Runs of level 0 are ordered by these; drains come one after the other.
        let run = body.ground.next_id();
        Absorb {
            body: Arc::clone(body),
            drain: Some(drain),
            run,
            output: None,
            credit: Credit::default(),
            finished: false,
            refused: 0,
            hidden: None,
            waits,
        }
    }

    /// Writes one step's worth. True when the stream is at its end and its last table closed.
    fn write_some(&mut self, drain: &mut Drain) -> Result<bool> {
        let mut ranges = Vec::new();
        if self.output.is_none() {
            drain.start()?;
            drain.credit.restart();
            ranges = drain.range_deletes()?;
        }
        // The snapshots are looked at now and not before: those that a writer of the last moment
        // came after must be among them.
        let durable = drain.durable.max(self.body.ground.ranges.durable());
        let begin = || {
            let version = self.body.version();
            let live = &self.body.ground.ranges;
            let hides = live.applicable(durable, version.ranges.clone());
            let hides = hides.into_iter().collect();
            let mut output = Output::new(&self.body, version, (0, self.run), ranges, hides);
            if self.body.ground.pool_outlives() {
                output.lend_to_deletes();
            }
            output
        };
        let output = self.output.get_or_insert_with(begin);
        let (mut entries, mut bytes) = (0, 0);
        let done = loop {
            // Behind everything else are the range deletes, which go with the tables.
            let entry = drain
                .cursor
                .entry()?
                .filter(|entry| entry.keyspace < SHADOW);
            let Some(entry) = entry else {
                output.close_table(None)?;
                break true;
            };
            if !output.same_key(&entry) {
                if output.is_full() {
                    output.close_table(Some((entry.keyspace, entry.key)))?;
                    break false;
                }
                if entries >= STEP_ENTRIES || bytes >= STEP_BYTES {
                    break false;
                }
            }
            // A version that a newer table hides would be written only to be dropped.
            let hash = key_hash(entry.keyspace, entry.key);
            let newer = drain.newest(entry.keyspace, entry.key, hash)?;
            if !output.is_superseded(newer, entry.seq) {
                bytes += output.offer(&entry, drain.cursor.value()?)?;
            }
            entries += 1;
            drain.advance()?;
        };
        if done {
            drain.finish()?;
        }
        drain.credit.pass(u64::from(entries));
        Ok(done)
    }

    /// Returns the number of tries after which the job gives its sources back.
    fn tries(&self) -> u32 {
        match self.body.ground.options.background.workers {
            // Without threads each try is another call.
            Workers::Manual => 1,
            _ => REFUSED_MAX,
        }
    }

    fn refuse(&mut self, why: Error) -> Step {
        self.refused += 1;
        Step::Retry(why)
    }

    /// Makes room by rewriting a table. Once that is done, the drain is given back, and the next one finds the room.
    fn make_room(&mut self, mut hidden: Hidden, drain: Drain) -> Result<Step> {
        let progress = match hidden.step(&drain) {
            Err(e) if e.kind() == ErrorKind::Full => {
                hidden.pass_over(e);
                Progress::More
            }
            progress => progress?,
        };
        match progress {
            Progress::Rewritten(completion) => {
                // Its table is busy until the job has ended.
                self.hidden = Some(hidden);
                Ok(give_back(drain, completion))
            }
            Progress::Nothing(None) => Ok(give_back(drain, Completion::nothing())),
            Progress::Nothing(Some(why)) => {
                self.drain = Some(drain);
                Ok(self.refuse(why))
            }
            Progress::More => {
                (self.hidden, self.drain) = (Some(hidden), Some(drain));
                Ok(Step::More)
            }
        }
    }
}

/// Ends the job, and gives its drain back. Less at a time may fit, or newer tables may hide more of it by then.
fn give_back(mut drain: Drain, completion: Completion) -> Step {
    let put_back = drain.put_back.take();
    drop(drain);
    put_back.into_iter().for_each(|put_back| put_back());
    Step::Done(completion)
}

impl Job for Absorb {
    fn kind(&self) -> JobKind {
        JobKind::Drain
    }

    fn step(&mut self) -> Result<Step> {
        let Some(mut drain) = self.drain.take() else {
            return Ok(Step::More);
        };
        if self.refused >= self.tries() && drain.put_back.is_some() {
            return Ok(give_back(drain, Completion::nothing()));
        }
        if std::mem::take(&mut self.waits) {
            self.hidden = Some(Hidden::begin(&self.body, &mut drain, None)?);
        }
        if let Some(hidden) = self.hidden.take() {
            return self.make_room(hidden, drain);
        }
        let written = if self.finished {
            Ok(true)
        } else {
            self.write_some(&mut drain)
        };
        match written {
            Ok(false) => {
                self.drain = Some(drain);
                return Ok(Step::More);
            }
            Ok(true) => self.finished = true,
            Err(e) if e.kind() == ErrorKind::Full => {
                // Nothing is lost: the source stays until this has succeeded.
                self.output = None;
                if drain.put_back.is_none() {
                    self.body.rewrites_hidden()?;
                    self.drain = Some(drain);
                    return Ok(self.refuse(e));
                }
                // Callers are told of the refusal only if no table can be rewritten for room.
                self.hidden = Some(Hidden::begin(&self.body, &mut drain, Some(e))?);
                self.drain = Some(drain);
                return Ok(Step::More);
            }
            Err(e) => return Err(e),
        }
        let (entries, (tables, changes)) = match &mut self.output {
            Some(output) => (output.entries(), output.finish()),
            None => Default::default(),
        };
        let body = Arc::clone(&self.body);
        self.credit = drain.credit;
        let mut edit = drain.edit;
        edit.changes.extend(changes);
        // What the logs had is in named files from this edit on.
        edit.changes.extend(retired(&drain.logs));
        let (forget, seq_last) = (drain.forget, drain.seq_last);
        Ok(Step::Done(Completion {
            edit,
            apply: Box::new(move || {
                body.install(&[], &tables);
                forget();
                // Not before what they cover is forgotten above.
                let ground = &body.ground;
                ground.ranges.trim(seq_last, &ground.readable());
            }),
            garbage: Vec::new(),
            entries,
        }))
    }
}
