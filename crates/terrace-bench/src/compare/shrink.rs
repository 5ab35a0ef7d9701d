//! Scaling a comparison down, to see that all of it runs before hours are spent on it.
//!
//! Data and operations shrink; memtables, caches and pools stay, since stores have a minimum size
//! for each. So such a comparison only shows that everything runs; its figures do not stand for
//! those of the full one.

use toml::{Spanned, Value};

use super::model::{Comparison, Settings};
use super::scale::Scale;
use super::size::Size;
use crate::config::BenchConfig;

impl Scale {
    /// Scales a count among `settings` down; returns whether it is present.
    fn shrink(&self, settings: &mut Settings, name: &str) -> Result<bool, String> {
        let Some(value) = settings.get_mut(name) else {
            return Ok(false);
        };
        let count = match value.get_ref() {
            Value::Integer(count) => u64::try_from(*count).ok(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let count = count.ok_or_else(|| format!("{name} must be an integer to be scaled"))?;
        *value = Spanned::new(value.span(), self.value(count));
        Ok(true)
    }

    fn value(&self, count: u64) -> Value {
        Value::Integer(i64::try_from(self.of(count)).unwrap_or(i64::MAX))
    }

    /// Scales the counts among YCSB's properties down.
    fn shrink_properties(&self, settings: &mut Settings) {
        let Some(value) = settings.get_mut("ycsb-property") else {
            return;
        };
        let shrunk = |text: &str| {
            let (name, count) = text.split_once('=')?;
            let is_count = ["recordcount", "operationcount", "insertcount"].contains(&name.trim());
            let count = count.trim().parse().ok().filter(|_| is_count)?;
            Some(format!("{name}={}", self.of(count)))
        };
        let new = match value.get_ref() {
            Value::String(text) => shrunk(text).map(Value::String),
            Value::Array(all) => {
                let each = all.iter().map(|one| {
                    let new = one.as_str().and_then(shrunk).map(Value::String);
                    new.unwrap_or_else(|| one.clone())
                });
                Some(Value::Array(each.collect()))
            }
            _ => None,
        };
        if let Some(new) = new {
            *value = Spanned::new(value.span(), new);
        }
    }
}

impl Comparison {
    /// Scales down the data and operations of every run, and the sizes by which a paper's figures
    /// are found.
    ///
    /// Fails if a count is not a number.
    pub fn shrink(&mut self, scale: &Scale) -> Result<(), String> {
        for Size(bytes) in &mut self.data_sizes {
            *bytes = scale.of(*bytes);
        }
        for value in self.paper.iter_mut().flat_map(|paper| &mut paper.value) {
            let value = value.get_mut();
            let than = value.than.as_mut().and_then(|than| than.data_size.as_mut());
            for Size(bytes) in value.data_size.iter_mut().chain(than) {
                *bytes = scale.of(*bytes);
            }
        }
        let stores = self.store.iter_mut().map(|s| &mut s.get_mut().settings);
        let workloads = self.workload.iter_mut().map(|w| &mut w.get_mut().settings);
        let tables = [&mut self.terrace]
            .into_iter()
            .chain(stores)
            .chain(workloads);
        for settings in tables {
            scale.shrink(settings, "num")?;
            scale.shrink(settings, "reads")?;
            scale.shrink_properties(settings);
        }
        scale.shrink(&mut self.settings, "reads")?;
        scale.shrink_properties(&mut self.settings);
        // Without a stated amount of data, a run uses its default.
        if !scale.shrink(&mut self.settings, "num")? && self.data_sizes.is_empty() {
            let num = scale.value(BenchConfig::default().num);
            self.settings
                .insert("num".to_string(), Spanned::new(0..0, num));
        }
        self.scaled = Some(scale.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::plan::runs;
    use super::*;

    const FILE: &str = r#"
title = "t"
data_sizes = ["64MiB", "128MiB"]
[settings]
reads = 6400
ycsb-property = ["operationcount=1280", "fieldcount=1"]
[[store]]
name = "a"
[[store]]
name = "b"
settings = { num = 64000 }
[[workload]]
name = "w"
measure = ["fillrandom"]
[paper]
title = "p"
scale = 64
says = "s"
[[paper.value]]
what = "w"
source = "s"
paper = ["x", "y"]
data_size = "64MiB"
than = { data_size = "128MiB" }
"#;

    fn plan(text: &str, scale: &str) -> (Comparison, Vec<String>) {
        let comparison = Comparison::parse(Path::new("f.toml"), text, &|_, _| Ok(0));
        let mut comparison = comparison.expect("a comparison");
        let scale = scale.parse().expect("a scale");
        comparison.shrink(&scale).expect("it can be scaled down");
        let lines = runs(&comparison, "").into_iter();
        let lines = lines.map(|run| run.args.join(" ")).collect();
        (comparison, lines)
    }

    /// A scale divides data and operations everywhere; a paper's figures are found by the smaller
    /// size, and nothing else changes.
    #[test]
    fn data_and_operations_shrink() {
        let (comparison, lines) = plan(FILE, "1/64");
        assert_eq!(comparison.data_sizes, [Size(1 << 20), Size(2 << 20)]);
        let paper = comparison.paper.as_ref().expect("a paper");
        let value = paper.value[0].get_ref();
        assert_eq!(value.data_size, Some(Size(1 << 20)));
        let than = value.than.as_ref().expect("another place");
        assert_eq!(than.data_size, Some(Size(2 << 20)));
        assert_eq!(paper.scale, 64.0);
        assert!(lines[0].contains("--num 1008 "), "{}", lines[0]);
        for part in [
            "--num 1000 ",
            "--reads 100 ",
            "operationcount=20",
            "fieldcount=1",
        ] {
            assert!(lines[1].contains(part), "{part} in {}", lines[1]);
        }
        let whole =
            Comparison::parse(Path::new("f.toml"), FILE, &|_, _| Ok(0)).expect("a comparison");
        let hashes = |comparison: &Comparison| -> Vec<String> {
            let runs = runs(comparison, "").into_iter();
            runs.map(|run| run.planned.hash).collect()
        };
        let (small, large) = (hashes(&comparison), hashes(&whole));
        assert!(small.iter().all(|hash| !large.contains(hash)));
        // If a file states no amount of data, the default number of keys is scaled.
        let plain = "title = \"t\"\n[[store]]\nname = \"a\"\n[[workload]]\nname = \"w\"\n\
                     measure = [\"fillseq\"]\n";
        let (_, lines) = plan(plain, "0.01");
        assert!(lines[0].contains("--num 3000"), "{}", lines[0]);
    }

    /// Scales that are not in range and counts that are not numbers are refused.
    #[test]
    fn bad_scales_are_refused() {
        for bad in ["", "0", "2", "-1/2", "1/0", "x", "1/x", "0/4"] {
            let problem = bad.parse::<Scale>().expect_err(bad);
            assert!(problem.contains("write one as 1/64"), "{problem}");
        }
        let text = FILE.replace("reads = 6400", "reads = \"many\"");
        let comparison = Comparison::parse(Path::new("f.toml"), &text, &|_, _| Ok(0));
        let scale = "1/2".parse().expect("a scale");
        let problem = comparison.expect("a comparison").shrink(&scale);
        assert!(problem.is_err_and(|e| e.contains("reads must be")));
    }
}
