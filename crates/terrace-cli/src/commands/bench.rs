//! This file is `terrace bench`: its arguments become the settings of the benchmark.

use terrace::{Durability, Options, Prefault};
use terrace_bench::{BenchConfig, run};

use crate::args::{BenchArgs, StoreArgs};
use crate::error::CliError;
use crate::output::Output;
use crate::store::{POOL_FILE, apply};

pub(super) fn bench(args: &BenchArgs, store: &StoreArgs, json: bool) -> Result<(), CliError> {
    let config = config(args, store)?;
    if !json {
        run(&config, Some(&mut std::io::stdout().lock()))?;
        return Ok(());
    }
    let report = run(&config, None)?;
    let report = serde_json::to_string(&report)
        .map_err(|e| CliError::Failed(format!("the results cannot be written as JSON: {e}")))?;
    let mut out = Output::new();
    out.line(report)?;
    out.finish()
}

fn config(args: &BenchArgs, store: &StoreArgs) -> Result<BenchConfig, CliError> {
    if store.keyspace.is_some() {
        return Err(CliError::Usage(
            "bench works in the default keyspace only".to_string(),
        ));
    }
    let stored = match &args.db {
        Some(db) if args.use_existing_db => Options::load(db)?,
        _ => None,
    };
    let mut options = stored.unwrap_or_else(|| {
        let mut options = Options::default();
        options.pool.path = Some(POOL_FILE.into());
        options.pool.prefault = Prefault::All;
        options
    });
    apply(store, &mut options);
    if args.sync {
        options.durability = Durability::Sync;
    }
    let bytes = |given: Option<u64>, default: usize| given.map_or(default, |bytes| bytes as usize);
    let defaults = BenchConfig::default();
    let steps = if args.benchmarks.is_empty() {
        defaults.steps
    } else {
        args.benchmarks.clone()
    };
    Ok(BenchConfig {
        steps,
        num: args.num.unwrap_or(defaults.num),
        reads: args.reads,
        key_bytes: bytes(args.key_size, defaults.key_bytes),
        value_bytes: bytes(args.value_size, defaults.value_bytes),
        threads: args.threads.unwrap_or(defaults.threads),
        batch_count: args.batch_size.unwrap_or(defaults.batch_count),
        seek_nexts: args.seek_nexts.unwrap_or(defaults.seek_nexts),
        use_existing_db: args.use_existing_db,
        replace_db: args.replace_db,
        seed: args.seed.unwrap_or(defaults.seed),
        histogram: args.histogram,
        report_interval: args.report_interval,
        db: args.db.clone(),
        options,
        pool_bytes: store.pool_size,
    })
}
