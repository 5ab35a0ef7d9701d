//! `terrace bench`: converts its arguments to the configuration of the benchmark.

mod compare;
mod papers;

use std::ffi::OsString;
use std::io::Write;
use std::sync::Arc;

use terrace::{Durability, Options, Prefault, Workers};
use terrace_bench::results::{End, Phase, Record, RunId, VERSION};
use terrace_bench::{
    BenchConfig, Properties, Step, StoreKind, Trace, properties_of, run, run_and_show, victim,
};

use crate::args::{BenchArgs, BenchCommand, StoreArgs};
use crate::error::CliError;
use crate::store::{POOL_FILE, apply};

pub(super) fn bench(args: &BenchArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    match &args.command {
        Some(BenchCommand::Compare(compare)) => return compare::compare(compare),
        Some(BenchCommand::Report(report)) => return compare::report(report),
        Some(BenchCommand::Papers(papers)) => return papers::papers(papers),
        None => {}
    }
    let config = config(args, store)?;
    if let Some(folder) = &args.victim {
        return Ok(victim(&config, folder)?);
    }
    if !json {
        run(&config, Some(&mut std::io::stdout().lock()))?;
        return Ok(());
    }
    print_records(&config)
}

/// Prints each phase as a line as soon as it has ended, and then one for the run.
fn print_records(config: &BenchConfig) -> Result<(), CliError> {
    let run = RunId::begin();
    let print = |record: &Record| -> std::io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        // One write per line, so that a concurrent reader gets whole lines.
        let mut out = std::io::stdout().lock();
        out.write_all(&line)?;
        out.flush()
    };
    let report = run_and_show(config, None, &mut |conditions, phase| {
        print(&Record::Phase(Box::new(Phase {
            terrace_bench: VERSION,
            run: run.clone(),
            conditions: conditions.clone(),
            phase: phase.clone(),
        })))
    })?;
    print(&Record::End(Box::new(End {
        terrace_bench: VERSION,
        run,
        space: report.space,
        memory: report.memory,
    })))
    .map_err(CliError::output)
}

fn config(args: &BenchArgs, store: &StoreArgs) -> Result<BenchConfig, CliError> {
    if store.record_trace.is_some() {
        return Err(CliError::Usage(
            "bench does not record traces: use --record-trace with another command, or \
             DbBuilder::trace in a program"
                .to_string(),
        ));
    }
    if store.keyspace.is_some() {
        return Err(CliError::Usage(
            "bench works in the default keyspace only".to_string(),
        ));
    }
    let kind = args.store.unwrap_or_default();
    check_options_of(kind, args, store)?;
    let stored = match &args.db {
        Some(db) if args.use_existing_db && kind == StoreKind::Terrace => Options::load(db)?,
        _ => None,
    };
    let mut options = stored.unwrap_or_else(|| {
        let mut options = Options::default();
        options.pool.path = (kind == StoreKind::Terrace).then(|| POOL_FILE.into());
        options.pool.prefault = Prefault::All;
        options
    });
    apply(store, &mut options);
    let design = options.design_of_new();
    if kind == StoreKind::Terrace {
        check_options_of_buffer(design.buffer(), args).map_err(|what| {
            CliError::Usage(format!("{what}, which {design} does not have: omit it"))
        })?;
    }
    let matrix = &mut options.buffer.matrix;
    matrix.hints = args.hints.unwrap_or(matrix.hints);
    matrix.columns = args.columns.unwrap_or(matrix.columns);
    matrix.flattened = args.flattened.unwrap_or(matrix.flattened);
    let tables = &mut options.buffer.tables;
    tables.flush_count = args.flush_count.unwrap_or(tables.flush_count);
    tables.count_max = args.tables_max.unwrap_or(tables.count_max);
    options.buffer.levels = args.levels.unwrap_or(options.buffer.levels);
    if let Some(workers) = args.workers {
        options.background.workers = Workers::Threads(usize::from(workers));
    }
    let merge_threads = &mut options.background.merge_threads;
    *merge_threads = args.merge_threads.unwrap_or(*merge_threads);
    let read_workers = &mut options.background.read_workers;
    *read_workers = args.read_workers.unwrap_or(*read_workers);
    if args.sync {
        options.durability = Durability::Sync;
    }
    let bytes = |given: Option<u64>, default: usize| given.map_or(default, |bytes| bytes as usize);
    let defaults = BenchConfig::default();
    let steps = match (args.benchmarks.is_empty(), &args.ycsb) {
        (false, _) => args.benchmarks.clone(),
        (true, Some(_)) => vec![Step::YcsbLoad, Step::YcsbRun],
        (true, None) => defaults.steps,
    };
    let ycsb = args.ycsb.as_deref().map(properties_of).transpose();
    let ycsb = ycsb.map_err(CliError::Usage)?;
    let ycsb_over = properties_over(args).map_err(CliError::Usage)?;
    let trace = args.trace.as_deref().map(Trace::load).transpose();
    let trace = trace.map_err(CliError::Usage)?;
    // Threads and target come from the workload file, unless the command line gives them.
    let in_file = |name: &str| {
        let of_file = ycsb.as_ref().filter(|_| steps.contains(&Step::YcsbRun));
        ycsb_over
            .get(name)
            .or(of_file.and_then(|file| file.get(name)))
    };
    let threads = number_of("threadcount", in_file("threadcount"))?;
    let target = number_of("target", in_file("target"))?;
    Ok(BenchConfig {
        steps,
        num: args.num.unwrap_or(defaults.num),
        reads: args.reads,
        key_bytes: bytes(args.key_size, defaults.key_bytes),
        value_bytes: bytes(args.value_size, defaults.value_bytes),
        value_bytes_min: args.value_size_min.map(|bytes| bytes as usize),
        threads: args.threads.or(threads).unwrap_or(defaults.threads),
        batch_count: args.batch_size.unwrap_or(defaults.batch_count),
        seek_nexts: args.seek_nexts.unwrap_or(defaults.seek_nexts),
        read_percent: args.read_percent.unwrap_or(defaults.read_percent),
        queue_depth: args.queue_depth.unwrap_or(defaults.queue_depth),
        rate: args.rate.or(target),
        arrivals: args.arrivals.unwrap_or_default(),
        writer_rate: args.writer_rate,
        ycsb,
        ycsb_over,
        trace: trace.map(Arc::new),
        use_existing_db: args.use_existing_db,
        replace_db: args.replace_db,
        seed: args.seed.unwrap_or(defaults.seed),
        histogram: args.histogram,
        report_interval: args.report_interval,
        store: kind,
        db: args.db.clone(),
        options,
        pool_bytes: store.pool_size,
        level0: args.level0.clone(),
        level0_bytes: args.level0_size,
        victim_args: Some(std::env::args_os().skip(1).collect::<Vec<OsString>>()),
    })
}

/// Returns the properties of YCSB that the command line sets: counts and sizes of the benchmark,
/// and those given by name, which come last.
fn properties_over(args: &BenchArgs) -> Result<Properties, String> {
    let mut over = Properties::default();
    let mut set = |name: &str, value: Option<u64>, option: &str| {
        if let Some(value) = value {
            over.set(name, value, option);
        }
    };
    set("recordcount", args.num, "--num");
    set("operationcount", args.reads, "--reads");
    if args.value_size.is_some() || args.value_size_min.is_some() {
        let default = BenchConfig::default().value_bytes as u64;
        set("fieldcount", Some(1), "--value-size");
        set(
            "fieldlength",
            args.value_size.or(Some(default)),
            "--value-size",
        );
        set("minfieldlength", args.value_size_min, "--value-size-min");
    }
    if args.value_size_min.is_some() {
        over.set("fieldlengthdistribution", "uniform", "--value-size-min");
    }
    for pair in &args.ycsb_property {
        over.set_pair(pair)?;
    }
    Ok(over)
}

/// Parses a number from a workload file.
fn number_of<T: std::str::FromStr>(name: &str, text: Option<&str>) -> Result<Option<T>, CliError> {
    let parsed = text.map(|text| text.trim().parse());
    let bad = |_| {
        CliError::Usage(format!(
            "{name} is {:?}, but must be a number",
            text.unwrap_or("")
        ))
    };
    parsed.transpose().map_err(bad)
}

/// Refuses options of a buffer that the design does not have.
fn check_options_of_buffer(buffer: Option<&str>, args: &BenchArgs) -> Result<(), String> {
    let of_buffers = [
        ("--levels", Some("elastic"), args.levels.is_some()),
        (
            "--merge-threads",
            Some("elastic"),
            args.merge_threads.is_some(),
        ),
        ("--hints", Some("matrix"), args.hints.is_some()),
        ("--columns", Some("matrix"), args.columns.is_some()),
        ("--flattened", Some("matrix"), args.flattened.is_some()),
        ("--flush-count", Some("tables"), args.flush_count.is_some()),
        ("--tables-max", Some("tables"), args.tables_max.is_some()),
        ("--level0", None, args.level0.is_some()),
        ("--level0-size", None, args.level0_size.is_some()),
    ];
    let wrong = of_buffers
        .iter()
        .find(|(_, of, given)| *given && *of != buffer);
    match wrong {
        Some((name, Some(of), _)) => Err(format!("{name} is an option of the {of} buffer")),
        Some((name, None, _)) => Err(format!(
            "{name} is an option of a level 0 that takes flushes"
        )),
        None => Ok(()),
    }
}

/// Refuses options that a peer cannot follow: it has no design and no pool.
fn check_options_of(kind: StoreKind, args: &BenchArgs, store: &StoreArgs) -> Result<(), CliError> {
    if kind == StoreKind::Terrace {
        return Ok(());
    }
    let has_level0 = kind.name() == "rocksdb";
    let given = [
        ("--design", store.design.is_some()),
        ("--pool", store.pool.is_some()),
        ("--pool-size", store.pool_size.is_some()),
        ("--medium", store.medium.is_some()),
        ("--prefault", store.prefault.is_some()),
        ("--emulate", store.emulate.is_some()),
        ("--levels", args.levels.is_some()),
        ("--workers", args.workers.is_some()),
        ("--merge-threads", args.merge_threads.is_some()),
        ("--read-workers", args.read_workers.is_some()),
        ("--hints", args.hints.is_some()),
        ("--columns", args.columns.is_some()),
        ("--flattened", args.flattened.is_some()),
        ("--level0", args.level0.is_some() && !has_level0),
        ("--level0-size", args.level0_size.is_some() && !has_level0),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(CliError::Usage(format!(
            "{name} is an option of Terrace that {kind} does not have: omit it"
        ))),
        None => Ok(()),
    }
}
