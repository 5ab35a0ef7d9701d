//! The runs of a comparison and their order.
//!
//! Runs are ordered by workload and size, so that results to compare are measured close together in
//! time; within each by repeat, and within a repeat by store: A B A B. A machine that slows down
//! over an hour is slower for all stores.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use toml::{Spanned, Value};

use super::model::{Comparison, Settings};
use crate::results::Planned;
use crate::store::StoreKind;
use crate::units;

/// The default size of a key in bytes; that of `terrace bench`.
const KEY_BYTES: u64 = 16;

/// One run of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The place of the run, which its results carry.
    pub planned: Planned,
    /// The arguments of `terrace bench`, without those for location and output format.
    pub args: Vec<String>,
    /// The index of its store.
    pub store: usize,
}

/// Returns all runs of `comparison`, in order. `program` identifies the build of this program.
pub fn runs(comparison: &Comparison, program: &str) -> Vec<Run> {
    let mut runs = Vec::new();
    let data: Vec<Option<u64>> = match comparison.data_sizes.as_slice() {
        [] => vec![None],
        sizes => sizes.iter().map(|size| Some(size.0)).collect(),
    };
    for workload in 0..comparison.workload.len() {
        for value in comparison.value_sizes.get_ref() {
            for data in &data {
                for repeat in 0..*comparison.repeats.get_ref() {
                    for store in 0..comparison.store.len() {
                        let at = (workload, store, repeat);
                        runs.push(run(comparison, program, at, value.0, *data));
                    }
                }
            }
        }
    }
    runs
}

fn run(
    comparison: &Comparison,
    program: &str,
    (workload, store, repeat): (usize, usize, u32),
    value_bytes: u64,
    data_bytes: Option<u64>,
) -> Run {
    let (at, store) = (store, comparison.store[store].get_ref());
    let workload = comparison.workload[workload].get_ref();
    let kind = store.kind().unwrap_or_default();
    let mut settings: BTreeMap<&str, &Spanned<Value>> = BTreeMap::new();
    let mut add = |more| {
        let more: &Settings = more;
        settings.extend(more.iter().map(|(name, value)| (name.as_str(), value)));
    };
    add(&comparison.settings);
    if kind == StoreKind::Terrace {
        add(&comparison.terrace);
    }
    add(&workload.settings);
    add(&store.settings);
    let phases: Vec<&str> = workload.phases().map(|p| p.get_ref().as_str()).collect();
    let mut args = vec![
        "--store".to_string(),
        kind.to_string(),
        "--benchmarks".to_string(),
        phases.join(","),
        "--value-size".to_string(),
        value_bytes.to_string(),
        "--report-interval".to_string(),
        "1".to_string(),
    ];
    if let Some(data) = data_bytes.filter(|_| !settings.contains_key("num")) {
        let key = settings.get("key-size").map(|key| key.get_ref());
        let key_bytes = match key {
            Some(Value::Integer(bytes)) => u64::try_from(*bytes).unwrap_or(KEY_BYTES),
            Some(Value::String(text)) => units::parse_bytes(text).unwrap_or(KEY_BYTES),
            _ => KEY_BYTES,
        };
        let num = (data / (key_bytes + value_bytes).max(1)).max(1);
        args.extend(["--num".to_string(), num.to_string()]);
    }
    for (name, value) in settings {
        let arguments = argument(name, value.get_ref()).into_iter().flatten();
        let value = value_bytes.to_string();
        args.extend(arguments.map(|text| text.replace(VALUE_SIZE, &value)));
    }
    let mut hasher = DefaultHasher::new();
    (program, &args, repeat).hash(&mut hasher);
    if comparison.warm_memory.0 > 0 {
        comparison.warm_memory.0.hash(&mut hasher);
    }
    Run {
        planned: Planned {
            hash: format!("{:016x}", hasher.finish()),
            store: store.name.clone(),
            workload: workload.name.clone(),
            value_bytes,
            data_bytes,
            repeat,
            prepare_count: workload.prepare.len(),
            command: format!("terrace bench {}", args.join(" ")),
        },
        args,
        store: at,
    }
}

/// Returns the identity of this build: a hash of the running executable.
pub fn program_id() -> std::io::Result<String> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(std::env::current_exe()?)?);
    Ok(format!("{:016x}", hasher.finish()))
}

/// The placeholder in a setting for the size of the run's values in bytes.
pub(super) const VALUE_SIZE: &str = "{value_size}";

/// Options that take "true" or "false", since they are on by default.
const SWITCHES: [&str; 3] = ["hints", "columns", "flattened"];

/// Returns a setting as arguments of the command line, one for each value of a list; `None` if its
/// type is unsupported.
pub(super) fn argument(name: &str, value: &Value) -> Option<Vec<String>> {
    let option = format!("--{name}");
    Some(match value {
        Value::String(text) => vec![option, text.clone()],
        Value::Integer(number) => vec![option, number.to_string()],
        Value::Float(number) => vec![option, number.to_string()],
        Value::Boolean(on) if SWITCHES.contains(&name) => vec![option, on.to_string()],
        Value::Boolean(true) => vec![option],
        Value::Boolean(false) => Vec::new(),
        Value::Array(values) => {
            let each = values.iter().filter(|value| !value.is_array());
            let arguments: Option<Vec<Vec<String>>> = each.map(|v| argument(name, v)).collect();
            arguments?.concat()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const FILE: &str = r#"
title = "t"
repeats = 2
value_sizes = ["100", 4096]
data_sizes = ["1MiB"]
settings = { threads = 2, sync = true, property = ["a=1", "b={value_size}"] }
terrace = { emulate = "optane", memtable-size = "1MiB" }
[[store]]
name = "a"
settings = { memtable-size = "2MiB" }
[[store]]
name = "b"
store = "empty"
[[workload]]
name = "w"
prepare = ["fillseq"]
measure = ["readrandom"]
settings = { threads = 3 }
"#;

    fn plan(text: &str, program: &str) -> Vec<Run> {
        let comparison = Comparison::parse(Path::new("f.toml"), text, &|_, _| Ok(0));
        runs(&comparison.expect("a comparison"), program)
    }

    /// Stores alternate within a repeat, repeats within a size, and settings override one another.
    #[test]
    fn runs_are_interleaved() {
        let runs = plan(FILE, "");
        let order: Vec<(u64, u32, &str)> = runs
            .iter()
            .map(|run| {
                let planned = &run.planned;
                (planned.value_bytes, planned.repeat, planned.store.as_str())
            })
            .collect();
        let expected = [(100, 0), (100, 1), (4096, 0), (4096, 1)];
        let expected = expected.map(|(value, repeat)| [(value, repeat, "a"), (value, repeat, "b")]);
        assert_eq!(order, expected.concat());
        let line = |run: &Run| run.args.join(" ");
        assert_eq!(
            line(&runs[0]),
            "--store terrace --benchmarks fillseq,readrandom --value-size 100 --report-interval 1 \
             --num 9039 --emulate optane --memtable-size 2MiB --property a=1 --property b=100 --sync \
             --threads 3"
        );
        assert!(!line(&runs[1]).contains("emulate"), "{}", line(&runs[1]));
        assert!(line(&runs[4]).contains("--num 255 "), "{}", line(&runs[4]));
        // A switch is given with its value, a flag only if it is true.
        let text = FILE.replace("sync = true", "sync = false, hints = false, columns = true");
        let switched = line(&plan(&text, "")[0]);
        assert!(switched.contains("--columns true"), "{switched}");
        assert!(switched.contains("--hints false"), "{switched}");
        assert!(!switched.contains("--sync"), "{switched}");
        assert_eq!(runs[0].planned.prepare_count, 1);
    }

    /// Another program, setting or repeat gives another run; equal ones give the same run.
    #[test]
    fn runs_are_known_again() {
        let hashes = |text: &str, program: &str| -> Vec<String> {
            plan(text, program)
                .into_iter()
                .map(|run| run.planned.hash)
                .collect()
        };
        let first = hashes(FILE, "p");
        assert_eq!(first, hashes(FILE, "p"));
        let mut all = first.clone();
        all.extend(hashes(FILE, "q"));
        all.extend(hashes(&FILE.replace("optane", "cxl"), "p"));
        all.sort();
        all.dedup();
        // Emulation does not apply to the second store, so its runs are the same.
        assert_eq!(all.len(), 8 + 8 + 4);
    }
}
