//! The reader of results files, and its errors for invalid lines.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::record::{Record, VERSION};

/// The contents of a file of results.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Results {
    /// Its records, in order.
    pub records: Vec<Record>,
    /// The length of all whole lines in bytes; the rest is a torn line.
    pub whole_bytes: u64,
    /// Whether the last line lacks its newline.
    pub is_torn: bool,
}

/// The reason that a file of results cannot be read.
#[derive(Debug)]
pub struct ReadError {
    path: PathBuf,
    /// The line, from 1; `None` if the error concerns the whole file.
    line: Option<usize>,
    what: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for ReadError {}

/// Reads all records of the file at `path`. A file that does not exist has none.
///
/// A last line without a newline is torn, as by a crash of its writer: it is omitted and reported
/// in `is_torn`. Blank lines are skipped. Any other line that is not a record of this format or an
/// earlier one is an error, which names the line.
pub fn read(path: &Path) -> Result<Results, ReadError> {
    let error = |line, what| ReadError {
        path: path.to_path_buf(),
        line,
        what,
    };
    let bytes = match fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Results::default()),
        read => read.map_err(|e| error(None, format!("cannot read it: {e}")))?,
    };
    let last_newline = bytes.iter().rposition(|byte| *byte == b'\n');
    let whole_bytes = last_newline.map_or(0, |at| at + 1);
    let mut records = Vec::new();
    for (index, line) in bytes[..whole_bytes]
        .split(|byte| *byte == b'\n')
        .enumerate()
    {
        let in_line = |what| error(Some(index + 1), what);
        let line = std::str::from_utf8(line).map_err(|_| in_line("it is not text".to_string()))?;
        if !line.trim().is_empty() {
            records.push(read_line(line).map_err(in_line)?);
        }
    }
    Ok(Results {
        records,
        whole_bytes: whole_bytes as u64,
        is_torn: whole_bytes < bytes.len(),
    })
}

/// Parses a line as a record, or returns the reason that it cannot be one.
pub fn read_line(line: &str) -> Result<Record, String> {
    let value: Value = serde_json::from_str(line)
        .map_err(|e| format!("this is not JSON ({e}); expected one object per line"))?;
    let Some(version) = value.get("terrace_bench") else {
        if value.get("conditions").is_some() && value.get("steps").is_some() {
            return Err(
                "this is a whole run in one object, as terrace bench --json wrote it before format \
                 1: measure it again"
                    .to_string(),
            );
        }
        return Err(
            "this has no field \"terrace_bench\", so it is not a result of terrace bench"
                .to_string(),
        );
    };
    let Some(version) = version.as_u64() else {
        return Err(format!(
            "\"terrace_bench\" is {version}, but must be a format number"
        ));
    };
    if version == 0 || version > u64::from(VERSION) {
        return Err(format!(
            "this has format {version}, but this program reads 1 to {VERSION}: use the version \
             that wrote it"
        ));
    }
    serde_json::from_value(value)
        .map_err(|e| format!("this is not a record of format {version}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::super::record::{End, Failure, Phase, Planned, RunId};
    use super::*;
    use crate::machine::Memory;
    use crate::report::{Conditions, StepReport};
    use crate::space::Space;

    fn records() -> Vec<Record> {
        let run = RunId {
            planned: Some(Planned {
                store: "a".to_string(),
                ..Planned::default()
            }),
            ..RunId::begin()
        };
        let phase = StepReport {
            name: "fillrandom".to_string(),
            ops_per_s: 1234.5,
            stalls: vec![crate::report::StallReport {
                reason: "log-cap".into(),
                count: 2,
                seconds: 0.25,
            }],
            flushes: Some(crate::report::FlushReport {
                count: 3,
                entries: 300,
                seconds: 0.5,
            }),
            ..StepReport::default()
        };
        vec![
            Record::Phase(Box::new(Phase {
                terrace_bench: VERSION,
                run: run.clone(),
                conditions: Conditions::default(),
                phase,
            })),
            Record::End(Box::new(End {
                terrace_bench: VERSION,
                run: run.clone(),
                space: Space::default(),
                memory: Memory::default(),
            })),
            Record::Failed(Box::new(Failure {
                terrace_bench: VERSION,
                run,
                how: "signal 6".to_string(),
                ..Failure::default()
            })),
        ]
    }

    fn line(record: &Record) -> String {
        serde_json::to_string(record).expect("a record is JSON")
    }

    /// A written record is read back unchanged.
    #[test]
    fn records_come_back() {
        for record in records() {
            assert_eq!(read_line(&line(&record)).expect("a record"), record);
        }
    }

    /// A line that is not a result is refused with its number and the reason.
    #[test]
    fn foreign_lines_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("results.jsonl");
        let good = line(&records()[0]);
        let newer = good.replacen("\"terrace_bench\":1", "\"terrace_bench\":2", 1);
        let without = good.replacen("\"name\"", "\"eman\"", 1);
        assert!(newer != good && without != good);
        for (bad, said) in [
            ("{\"terr", "not JSON"),
            ("{\"a\":1}", "not a result of terrace bench"),
            ("{\"conditions\":{},\"steps\":[]}", "measure it again"),
            (newer.as_str(), "format 2"),
            (without.as_str(), "name"),
            ("[1]", "not a result"),
        ] {
            fs::write(&path, format!("{good}\n\n{bad}\n{good}\n")).expect("a file");
            let problem = read(&path).expect_err(bad).to_string();
            assert!(problem.contains(said), "{problem}");
            assert!(problem.contains("results.jsonl:3: "), "{problem}");
        }
        fs::write(&path, [0xFF, b'\n']).expect("a file");
        assert!(read(&path).is_err_and(|e| e.to_string().contains("not text")));
    }

    /// A line torn at any byte is omitted, and the rest is read.
    #[test]
    fn a_torn_line_is_left_out() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("results.jsonl");
        assert_eq!(
            read(&path).expect("no file, no records"),
            Results::default()
        );
        let lines: Vec<String> = records().iter().map(|r| line(r) + "\n").collect();
        let whole = lines[0].len() + lines[1].len();
        for cut in 1..lines[2].len() {
            let text = lines[..2].concat() + &lines[2][..cut];
            fs::write(&path, text).expect("a file");
            let results = read(&path).expect("whole lines are read");
            assert_eq!(results.records.len(), 2);
            assert_eq!((results.whole_bytes, results.is_torn), (whole as u64, true));
        }
    }

    /// A changed line is either a record, which is written and read back unchanged, or refused with
    /// a reason.
    #[test]
    fn changed_lines_are_records_or_refused() {
        let mut rng = fastrand::Rng::with_seed(6);
        let seeds: Vec<Vec<u8>> = records().iter().map(|r| line(r).into_bytes()).collect();
        let mut accepted = 0;
        for turn in 0..20_000 {
            let mut bytes = seeds[turn % seeds.len()].clone();
            for _ in 0..rng.usize(1..3) {
                let at = rng.usize(..bytes.len());
                let piece = at..bytes.len().min(at + rng.usize(1..20));
                match rng.u8(0..4) {
                    0 => bytes[at] = rng.u8(b' '..=b'~'),
                    1 => bytes[at] = b"{}[]\",:0-e."[rng.usize(..11)],
                    2 => drop(bytes.splice(piece, [b'0'])),
                    _ => {
                        let copy = bytes[piece].to_vec();
                        bytes.splice(at..at, copy);
                    }
                }
            }
            match read_line(&String::from_utf8_lossy(&bytes)) {
                Ok(record) => {
                    accepted += 1;
                    assert_eq!(read_line(&line(&record)).as_ref(), Ok(&record));
                }
                Err(problem) => assert!(!problem.is_empty()),
            }
        }
        assert!(
            accepted > 100,
            "{accepted} of the changed lines are records"
        );
    }
}
