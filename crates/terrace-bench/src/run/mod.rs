//! One run from its first step to its last: makes databases, starts threads and watches them.

use std::io::Write;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use terrace::{Options, Prefault};
use terrace_media::Stopwatch;

use crate::config::BenchConfig;
use crate::error::BenchError;
use crate::files::BlockReads;
use crate::known::Known;
use crate::latency::{Latency, LatencyReport};
use crate::limit::Limits;
use crate::machine::{Memory, ProcessIo, bytes_under};
use crate::measure::watch::{PoolPeak, flushes_between, spinner, stalls_between, watch};
use crate::measure::{KindReport, OpKind, RecoveryReport, SpaceReport, Usage, kill};
use crate::meter::{Meter, Tally};
use crate::out::Out;
use crate::place::Place;
use crate::records::Records;
use crate::report::{Conditions, HEADING, Report, StepReport, TargetReport, Written};
use crate::space::Space;
use crate::step::{Contents, Step};
use crate::store::{Counters, Settle, Setup, Store, StoreKind};
use crate::values::Values;
use crate::workload::{Replay, Role, Work, Ycsb};

/// Runs every step of `config`. Writes lines for people to `out`, if given, as they come.
pub fn run<'a>(
    config: &'a BenchConfig,
    out: Option<&'a mut dyn Write>,
) -> Result<Report, BenchError> {
    run_and_show(config, out, &mut |_, _| Ok(()))
}

/// Runs every step like [`run`], and passes each step's report to `see` as soon as it has ended. An
/// error of `see` ends the run.
pub fn run_and_show<'a>(
    config: &'a BenchConfig,
    out: Option<&'a mut dyn Write>,
    see: &mut dyn FnMut(&Conditions, &StepReport) -> std::io::Result<()>,
) -> Result<Report, BenchError> {
    config.validate().map_err(BenchError::Invalid)?;
    // The first one calibrates the processor's counter, which must not happen in a workload.
    Stopwatch::start();
    let options = config.store_options();
    options.validate()?;
    let place = Place::find(config, &options)?;
    let limits = match place.beside()? {
        Some(beside) if config.store != StoreKind::Empty => {
            Limits::measure(config, &options, &beside)?
        }
        _ => Limits::default(),
    };
    let begun = Instant::now();
    let store = open(config, &options, &place, config.use_existing_db)?;
    let open_s = begun.elapsed().as_secs_f64();
    let conditions = Conditions::of(config, &options, &place, store.as_ref(), &limits, open_s);
    let mut run = Run {
        config,
        options,
        place,
        limits,
        values: Values::mixed(config.value_bytes_min(), config.value_bytes, config.seed),
        out: Out::to(out),
        store: Some(store),
        known: Known::none_of(config.num),
        records: None,
        open_s: Some(open_s),
        is_empty: !config.use_existing_db,
        checks: !config.use_existing_db && config.store != StoreKind::Empty,
    };
    run.out.line(format_args!("{conditions}"));
    run.out.line(format_args!("\n{HEADING}"));
    let mut steps = Vec::new();
    for (i, step) in config.steps.iter().enumerate() {
        for mut report in run.step(*step, i as u64)? {
            report.index = i;
            see(&conditions, &report).map_err(BenchError::Output)?;
            run.out.line(format_args!("{report}"));
            if let Some(chart) = &report.chart {
                run.out.line(format_args!("{}", chart.trim_end()));
            }
            steps.push(report);
        }
        run.out.check()?;
    }
    let report = Report {
        conditions,
        steps,
        space: run.space()?,
        memory: Memory::read(),
    };
    run.out
        .line(format_args!("{}", report.to_string().trim_end()));
    if config
        .steps
        .iter()
        .any(|step| matches!(step, Step::ReadSeq | Step::ReadReverse))
    {
        run.out.line(format_args!(
            "latencies   of readseq and readreverse are for {} entries at a time",
            crate::workload::SCAN_GROUP
        ));
    }
    run.out.check()?;
    run.close()?;
    Ok(report)
}

struct Run<'a> {
    config: &'a BenchConfig,
    options: Options,
    place: Place,
    limits: Limits,
    values: Values,
    out: Out<'a>,
    store: Option<Box<dyn Store>>,
    /// A sample of the keys that must exist.
    known: Known,
    /// The records of YCSB, once there are any.
    records: Option<Records>,
    /// The time of an open that the next step has to report.
    open_s: Option<f64>,
    is_empty: bool,
    /// Whether this run wrote every value in the database, into a store that keeps any.
    checks: bool,
}

fn open(
    config: &BenchConfig,
    options: &Options,
    place: &Place,
    existing: bool,
) -> Result<Box<dyn Store>, BenchError> {
    let folder = place.store_folder(existing)?;
    config.store.open(&Setup {
        folder: &folder,
        existing,
        options: &config.options_in(&folder, options)?,
        data_bytes: config.data_bytes().saturating_mul(config.threads as u64),
    })
}

impl Run<'_> {
    fn open_store(&self) -> Result<&dyn Store, BenchError> {
        let missing = || BenchError::Invalid("cannot reopen the database".to_string());
        self.store.as_deref().ok_or_else(missing)
    }

    fn close(&mut self) -> Result<(), BenchError> {
        match self.store.take() {
            Some(store) => store.close(),
            None => Ok(()),
        }
    }

    fn counters(&self) -> Result<(Counters, ProcessIo), BenchError> {
        Ok((self.open_store()?.counters(), ProcessIo::read()))
    }

    /// Replaces the database by an empty one, unless it is empty.
    fn make_fresh(&mut self) -> Result<(), BenchError> {
        if self.is_empty {
            return Ok(());
        }
        // Its data is about to be removed, so a failure to close does not matter.
        drop(self.store.take());
        self.place.remove()?;
        let begun = Instant::now();
        self.store = Some(open(self.config, &self.options, &self.place, false)?);
        self.known = Known::none_of(self.config.num);
        self.records = None;
        self.open_s = Some(begun.elapsed().as_secs_f64());
        self.is_empty = true;
        self.checks = self.config.store != StoreKind::Empty;
        Ok(())
    }

    /// Runs one step; returns more than one report if a workload has threads of two kinds.
    fn step(&mut self, step: Step, index: u64) -> Result<Vec<StepReport>, BenchError> {
        if step.is_fresh() && !self.config.use_existing_db {
            if step == Step::KillReopen {
                return Ok(vec![self.kill_and_reopen()?]);
            }
            self.make_fresh()?;
        } else if step.is_fresh() && step != Step::Replay {
            let skipped = Some("it needs a fresh database, unlike --use-existing-db".to_string());
            return Ok(vec![StepReport {
                name: step.name().into(),
                skipped,
                ..Default::default()
            }]);
        }
        let before = self.counters()?;
        let pool = PoolPeak::default();
        pool.sample(&before.0);
        let usage = Usage::begin();
        let (mut reports, user_bytes) = match Role::of(step) {
            Some(role) => self.workload(step, role, index, &pool)?,
            None => (vec![self.settle(step, &pool)?], 0),
        };
        let (usage, after) = (usage.end(), self.counters()?);
        pool.sample(&after.0);
        if step.puts() {
            self.is_empty = false;
        }
        let space = SpaceReport {
            pool_peak_bytes: pool.bytes(),
            ..self.space_used()?
        };
        if let Some(report) = reports.first_mut() {
            report.written = Written::between(&before, &after, user_bytes);
            report.blocks = BlockReads::between(before.0.blocks, after.0.blocks);
            report.stalls = stalls_between(&before.0, &after.0);
            report.flushes = flushes_between(&before.0, &after.0);
            report.open_s = self.open_s.take();
            (report.usage, report.space) = (usage, space);
        }
        Ok(reports)
    }

    /// Returns the bytes of the database by tier.
    fn space(&self) -> Result<Space, BenchError> {
        let mut space = self.open_store()?.space();
        space.folder_bytes = bytes_under(self.place.db());
        Ok(space)
    }

    /// Returns the space that the database takes against its live data.
    fn space_used(&self) -> Result<SpaceReport, BenchError> {
        let entry_bytes = (self.config.key_bytes + self.config.value_bytes) as u64;
        // The live bytes of YCSB's records, and of values of mixed sizes, are unknown.
        let same_size =
            self.records.is_none() && self.config.value_bytes_min() == self.config.value_bytes;
        let known = Some(&self.known).filter(|_| self.checks && same_size);
        let pool = self.place.pool_file();
        Ok(SpaceReport::of(&self.space()?, pool, known, entry_bytes))
    }

    /// Lets another process fill a fresh database, kills it, and opens the database.
    fn kill_and_reopen(&mut self) -> Result<StepReport, BenchError> {
        let name = Step::KillReopen.name();
        let report = StepReport {
            name: name.into(),
            ..StepReport::default()
        };
        let skipped = match (self.config.store, &self.config.victim_args) {
            (StoreKind::Empty, _) => Some("the store keeps no data to recover"),
            (_, None) => Some("this program cannot start itself as a second process"),
            _ => None,
        };
        if let Some(why) = skipped {
            let skipped = Some(why.to_string());
            return Ok(StepReport { skipped, ..report });
        }
        let bar = spinner(name);
        drop(self.store.take());
        self.place.remove()?;
        kill::kill_a_victim(self.config, &self.place.store_folder(false)?)?;
        // As users open a pool: faulting in all of it is not part of recovery.
        let mut options = self.options.clone();
        options.pool.prefault = Prefault::Ahead;
        let usage = Usage::begin();
        let begun = Instant::now();
        let store = open(self.config, &options, &self.place, true)?;
        let open_s = begun.elapsed().as_secs_f64();
        self.known = Known::none_of(self.config.num);
        self.records = None;
        let (verified, verify_s) = kill::verify(self.config, store.as_ref(), &self.known)?;
        let usage = usage.end();
        store.close()?;
        self.store = Some(open(self.config, &self.options, &self.place, true)?);
        (self.is_empty, self.checks) = (false, true);
        bar.finish_and_clear();
        Ok(StepReport {
            elapsed_s: open_s,
            checked: verified,
            open_s: self.open_s.take(),
            recovery: Some(RecoveryReport {
                open_s,
                verified,
                verify_s,
            }),
            usage,
            space: self.space_used()?,
            ..report
        })
    }

    fn settle(&mut self, step: Step, pool: &PoolPeak) -> Result<StepReport, BenchError> {
        let bar = spinner(step.name());
        let store = self.open_store()?;
        let how = match step {
            Step::Drain => Settle::Drain,
            Step::Flush => Settle::Flush,
            _ => Settle::Rest,
        };
        let elapsed = pool.while_doing(&|| store.counters(), || {
            let begun = Instant::now();
            store.settle(how).map(|()| begun.elapsed())
        })?;
        bar.finish_and_clear();
        Ok(StepReport {
            name: step.name().into(),
            elapsed_s: elapsed.as_secs_f64(),
            ..StepReport::default()
        })
    }

    /// Runs one workload; returns its reports, and the key and value bytes that its threads wrote.
    fn workload(
        &mut self,
        step: Step,
        role: Role,
        index: u64,
        pool: &PoolPeak,
    ) -> Result<(Vec<StepReport>, u64), BenchError> {
        let clients = self.config.threads;
        let writers = usize::from(step.has_writer());
        let workload = self.config.workload_of(step).map_err(BenchError::Invalid)?;
        // Records may be longer than the values of numbers; a step needs only those of its own
        // kind.
        let values = match step.contents() {
            Some(Contents::Records | Contents::Trace) => {
                Values::mixed(0, self.config.value_bytes_max(), self.config.seed)
            }
            _ => self.values.clone(),
        };
        let requests = workload.as_ref().map(|workload| {
            let records = Records::of_step(&mut self.records, step, workload);
            records.requests(workload)
        });
        let trace = self.config.trace.as_ref().filter(|_| step == Step::Replay);
        let replay = trace.map(|trace| Replay::of(Arc::clone(trace)));
        let meter = Meter::new(clients, writers, self.config.report_interval);
        let missing = || BenchError::Invalid("cannot reopen the database".to_string());
        let work = Work {
            config: self.config,
            store: self.store.as_deref().ok_or_else(missing)?,
            meter: &meter,
            values: &values,
            known: &self.known,
            checks: self.checks,
            replay: replay.as_ref(),
            ycsb: Ycsb::of(workload.as_ref(), self.records.as_ref(), requests.as_ref()),
        };
        let start = Barrier::new(clients + writers);
        let readers_left = std::sync::atomic::AtomicUsize::new(clients);
        let mut intervals = Vec::new();
        let out = &mut self.out;
        let results: Vec<Result<Tally, BenchError>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..clients + writers)
                .map(|thread| {
                    let (work, start, left) = (&work, &start, &readers_left);
                    let role = if thread < clients {
                        role
                    } else {
                        Role::WriteUntilStopped
                    };
                    let seed = thread_seed(work.config, index, thread as u64);
                    scope.spawn(move || {
                        let tally = crate::workload::run(work, role, thread, seed, start);
                        let last = thread < clients
                            && left.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1;
                        if last {
                            work.meter.stop();
                        }
                        tally
                    })
                })
                .collect();
            let total = work.total_ops(role);
            let counters = || work.store.counters();
            intervals = watch(
                step,
                &meter,
                total,
                work.config.report_interval,
                &counters,
                pool,
                &mut |bar, report| {
                    bar.suspend(|| out.line(format_args!("{}", report.line(step.name()))));
                },
            );
            let died = || BenchError::WrongValue("a client thread panicked".to_string());
            workers
                .into_iter()
                .map(|worker| worker.join().map_err(|_| died())?)
                .collect()
        });
        let tallies = results
            .into_iter()
            .collect::<Result<Vec<Tally>, BenchError>>()?;
        let (readers, others) = tallies.split_at(clients);
        let kind = OpKind::of(step);
        let limit = self.limits.of(step);
        let mut report = self.report(step.name(), kind, readers, limit, self.config.rate);
        report.intervals = intervals;
        if let Some(records) = &mut self.records {
            records.settle();
        }
        if role.finds() {
            report.found = Some(readers.iter().map(|tally| tally.found).sum());
        }
        let mut reports = vec![report];
        reports.extend(StepReport::of_kinds(readers));
        if !others.is_empty() {
            let (kind, limit) = (Some(OpKind::Write), self.limits.of(Step::Overwrite));
            let rate = self.config.writer_rate;
            reports.push(self.report("  (writer)", kind, others, limit, rate));
        }
        Ok((
            reports,
            tallies.iter().map(|tally| tally.written_bytes).sum(),
        ))
    }

    fn report(
        &self,
        name: &str,
        kind: Option<OpKind>,
        tallies: &[Tally],
        limit: Option<f64>,
        rate: Option<f64>,
    ) -> StepReport {
        let mut latency = Latency::default();
        let (mut ops, mut bytes, mut checked) = (0, 0, 0);
        let mut elapsed = Duration::ZERO;
        for tally in tallies {
            latency.merge(&tally.latency);
            ops += tally.ops;
            bytes += tally.bytes;
            checked += tally.checked;
            elapsed = elapsed.max(tally.elapsed);
        }
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let behind = tallies.iter().filter_map(|tally| tally.behind).max();
        let target = rate.zip(behind).map(|(rate, behind)| {
            TargetReport::of(rate, behind.as_secs_f64(), elapsed.as_secs_f64())
        });
        let ops_per_s = ops as f64 / seconds;
        StepReport {
            name: name.to_string(),
            ops,
            elapsed_s: elapsed.as_secs_f64(),
            ops_per_s,
            mb_per_s: bytes as f64 / 1e6 / seconds,
            checked,
            latency: Some(LatencyReport::of(&latency).unwrap_or_default()),
            kinds: KindReport::of_all(kind, tallies, &latency),
            target,
            limit_ops_per_s: limit,
            limit_fraction: limit
                .filter(|limit| *limit > 0.0)
                .map(|limit| ops_per_s / limit),
            chart: self.config.histogram.then(|| latency.chart()),
            ..StepReport::default()
        }
    }
}

/// Returns a seed for each thread of each step, the same in every run. Steps over an existing
/// database get other seeds than those of the run that filled it: otherwise reads would find each
/// key, in the order written.
fn thread_seed(config: &BenchConfig, step: u64, thread: u64) -> u64 {
    let run = u64::from(config.use_existing_db);
    config.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (run << 60) ^ (step << 40) ^ (thread << 20)
}

#[cfg(test)]
mod tests;
