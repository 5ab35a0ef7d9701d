//! Written bytes by tier and cause, and their ratio to users' bytes.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use terrace::{Counts, Purpose};

use crate::machine::ProcessIo;
use crate::store::Counters;

/// Bytes written to the pool, by purpose, to files, by cause, and by users.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Key and value bytes that users wrote.
    pub user_bytes: u64,
    /// Bytes, cache lines, flushes and fences of each purpose.
    pub purposes: Vec<PurposeReport>,
    /// Bytes of all purposes.
    pub pool_bytes: u64,
    /// Bytes to files by cause, as the store counts them; if it does not count, the bytes that the
    /// process passed to write calls.
    pub files: Vec<CauseReport>,
    /// Bytes of all causes.
    pub file_bytes: u64,
    /// Bytes that the process passed to write calls, including the harness's own output (wchar of
    /// /proc/self/io). Writes through mappings are not included.
    pub process_write_bytes: u64,
    /// Bytes that the process sent to block devices (write_bytes of /proc/self/io); 0 on a tmpfs.
    pub process_device_bytes: u64,
    /// Bytes to the pool for each byte that users wrote; `None` if they wrote none.
    pub write_amp_pool: Option<f64>,
    /// Bytes to files for each byte that users wrote; `None` if they wrote none.
    pub write_amp_files: Option<f64>,
}

/// Bytes that one cause wrote to files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseReport {
    /// The store's name for it.
    pub cause: Cow<'static, str>,
    /// Bytes.
    pub bytes: u64,
}

/// The cost of one purpose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PurposeReport {
    /// Its name.
    pub purpose: Cow<'static, str>,
    /// Bytes made durable, in whole cache lines.
    pub bytes: u64,
    /// Cache lines.
    pub lines: u64,
    /// Calls that flushed or streamed.
    pub flushes: u64,
    /// Fences.
    pub fences: u64,
}

impl PurposeReport {
    fn of(purpose: Purpose, counts: &Counts) -> PurposeReport {
        let c = counts.get(purpose);
        PurposeReport {
            purpose: purpose.name().into(),
            bytes: c.bytes,
            lines: c.lines,
            flushes: c.flushes,
            fences: c.fences,
        }
    }
}

/// The cause for the bytes of a store that counts none itself.
pub(crate) const PROCESS: &str = "write calls";

impl Written {
    /// Returns the bytes written between two points in time of one store. `user_bytes` is the
    /// amount that the harness had it write, for stores that do not count it.
    pub(crate) fn between(
        before: &(Counters, ProcessIo),
        after: &(Counters, ProcessIo),
        user_bytes: u64,
    ) -> Written {
        let (io_before, io_after) = (&before.1, &after.1);
        let (before, after) = (&before.0, &after.0);
        let counts = after.pm - before.pm;
        let counted = before.user_bytes.zip(after.user_bytes);
        let process_write_bytes = io_after.write_bytes.saturating_sub(io_before.write_bytes);
        let mut files: Vec<CauseReport> = after
            .files
            .iter()
            .map(|(cause, bytes)| {
                let earlier = before.files.iter().find(|(name, _)| name == cause);
                CauseReport {
                    cause: (*cause).into(),
                    bytes: bytes.saturating_sub(earlier.map_or(0, |(_, bytes)| *bytes)),
                }
            })
            .collect();
        if after.files.is_empty() && counted.is_none() {
            files.push(CauseReport {
                cause: PROCESS.into(),
                bytes: process_write_bytes,
            });
        }
        let mut written = Written {
            user_bytes: counted.map_or(user_bytes, |(before, after)| after.saturating_sub(before)),
            purposes: Purpose::ALL
                .map(|purpose| PurposeReport::of(purpose, &counts))
                .to_vec(),
            pool_bytes: counts.total().bytes,
            file_bytes: files.iter().map(|file| file.bytes).sum(),
            files,
            process_write_bytes,
            process_device_bytes: io_after.device_bytes.saturating_sub(io_before.device_bytes),
            ..Written::default()
        };
        written.amplify();
        written
    }

    /// Sets the fields derived from the others.
    fn amplify(&mut self) {
        let user = self.user_bytes as f64;
        self.write_amp_pool = (user > 0.0).then(|| self.pool_bytes as f64 / user);
        self.write_amp_files = (user > 0.0).then(|| self.file_bytes as f64 / user);
    }

    /// Adds the bytes that another step of the same database wrote.
    pub fn add(&mut self, other: &Written) {
        self.user_bytes += other.user_bytes;
        self.pool_bytes += other.pool_bytes;
        self.file_bytes += other.file_bytes;
        self.process_write_bytes += other.process_write_bytes;
        self.process_device_bytes += other.process_device_bytes;
        self.amplify();
        for more in &other.files {
            match self.files.iter_mut().find(|sum| sum.cause == more.cause) {
                Some(sum) => sum.bytes += more.bytes,
                None => self.files.push(more.clone()),
            }
        }
        if self.purposes.is_empty() {
            self.purposes = other.purposes.clone();
            return;
        }
        for (sum, more) in self.purposes.iter_mut().zip(&other.purposes) {
            sum.bytes += more.bytes;
            sum.lines += more.lines;
            sum.flushes += more.flushes;
            sum.fences += more.fences;
        }
    }

    /// Returns whether nothing was written.
    pub fn is_nothing(&self) -> bool {
        self.user_bytes + self.pool_bytes + self.file_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(write_bytes: u64) -> ProcessIo {
        ProcessIo {
            write_bytes,
            device_bytes: 0,
        }
    }

    /// A store's own counts are used; without them, the process's write calls are.
    #[test]
    fn who_counts_is_believed() {
        let counting = |log, tables| Counters {
            user_bytes: Some(log),
            files: vec![("log files", log), ("table files", tables)],
            ..Counters::default()
        };
        let written = Written::between(
            &(counting(100, 5), io(7)),
            &(counting(150, 105), io(1007)),
            99,
        );
        assert_eq!((written.user_bytes, written.file_bytes), (50, 150));
        assert_eq!(written.write_amp_files, Some(3.0));
        let silent = || Counters::default();
        let written = Written::between(&(silent(), io(7)), &(silent(), io(1007)), 500);
        assert_eq!((written.user_bytes, written.file_bytes), (500, 1000));
        assert_eq!(written.files[0].cause, PROCESS);
    }
}
