//! Appending results to a file: whole lines, one at a time, each of them durable.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::read::{Results, read};
use super::record::Record;
use crate::error::BenchError;

/// A file of results open for appending. Another process that tries to append meanwhile is refused.
#[derive(Debug)]
pub struct Appender {
    path: PathBuf,
    file: File,
}

impl Appender {
    /// Opens or creates the file at `path` and reads its results. Removes a line torn by a crash.
    pub fn open(path: &Path) -> Result<(Appender, Results), BenchError> {
        let io = |what: &str, e| BenchError::io(what, path, e);
        let mut open = OpenOptions::new();
        let mut file = open
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| io("open the results", e))?;
        if file.try_lock().is_err() {
            return Err(BenchError::Invalid(format!(
                "another comparison is writing to {}: wait for it, or use another file",
                path.display()
            )));
        }
        let results = read(path).map_err(|e| BenchError::Invalid(e.to_string()))?;
        if results.is_torn {
            file.set_len(results.whole_bytes)
                .map_err(|e| io("cut off an incomplete line of", e))?;
        }
        file.seek(SeekFrom::End(0)).map_err(|e| io("read", e))?;
        let path = path.to_path_buf();
        Ok((Appender { path, file }, results))
    }

    /// Appends one record and waits until it is on disk.
    pub fn append(&mut self, record: &Record) -> Result<(), BenchError> {
        let io = |e| BenchError::io("add a result to", &self.path, e);
        let mut line =
            serde_json::to_vec(record).map_err(|e| io(std::io::Error::other(e.to_string())))?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(io)?;
        self.file.sync_data().map_err(io)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Failure, RunId};
    use super::*;

    fn record(how: &str) -> Record {
        Record::Failed(Box::new(Failure {
            terrace_bench: super::super::VERSION,
            run: RunId::begin(),
            how: how.to_string(),
            ..Failure::default()
        }))
    }

    /// Records are appended after whole ones, replace a torn one, and only one process may append
    /// at a time.
    #[test]
    fn records_are_added() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("results.jsonl");
        let (mut appender, results) = Appender::open(&path).expect("a new file");
        assert!(results.records.is_empty());
        appender.append(&record("one")).expect("a line");
        let refused = Appender::open(&path).map(drop).expect_err("it is taken");
        assert!(
            refused.to_string().contains("another comparison"),
            "{refused}"
        );
        drop(appender);
        let mut text = std::fs::read_to_string(&path).expect("a file");
        text.push_str("{\"record\":\"fai");
        std::fs::write(&path, &text).expect("a file");
        let (mut appender, results) = Appender::open(&path).expect("the file");
        assert!(results.is_torn);
        appender.append(&record("two")).expect("a line");
        let all = read(&path).expect("results").records;
        let hows: Vec<&str> = all
            .iter()
            .map(|record| match record {
                Record::Failed(failure) => failure.how.as_str(),
                _ => "",
            })
            .collect();
        assert_eq!(hows, ["one", "two"]);
    }
}
