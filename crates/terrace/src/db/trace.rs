//! The recorder of traces: the calls of users to a database, one line each, for a replay.
//!
//! The format is in docs/trace.md. A call is recorded when it has succeeded, a scan when its
//! iterator is dropped, so that the line includes its length. Values are recorded by their length.
//! Recording is a branch on an `Option` while it is off; while it is on, lines go through one
//! mutex.
//!
//! Invariants
//!   X1  Lines are written whole, in the order in which calls took the mutex. After an error
//!       nothing more is written, and the close returns that error.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::bounds::Bounds;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::batch::Batch;
use crate::parts::expiry::layout as expiring;
use crate::parts::ranges::layout::{self as ranges, RANGE_DELETE_BIT};
use crate::types::EntryKind;

/// The first line of a trace.
const HEADER: &str = "terrace-trace\t1\n";

/// Records calls.
pub(super) struct Trace {
    started: Instant,
    sink: Mutex<Sink>,
}

struct Sink {
    out: Box<dyn Write + Send>,
    /// The line or lines being composed.
    line: Vec<u8>,
    failed: Option<io::Error>,
}

impl Trace {
    /// Creates a trace that is written to `out`.
    pub(super) fn to(out: Box<dyn Write + Send>) -> Trace {
        let mut sink = Sink {
            out,
            line: HEADER.as_bytes().to_vec(),
            failed: None,
        };
        sink.write();
        Trace {
            started: Instant::now(),
            sink: Mutex::new(sink),
        }
    }

    /// Records a call of one line.
    fn record(&self, keyspace: u32, call: &str, key: &[u8], count: Option<u64>) {
        let time = self.started.elapsed().as_micros();
        // LOCK: held while the line is written to a buffer or a file; nothing else is taken under
        // it.
        let mut sink = self.sink.lock();
        sink.add(time, keyspace, call, key, count);
        sink.write();
    }

    /// Records a read of `key`.
    pub(super) fn get(&self, keyspace: u32, key: &[u8]) {
        self.record(keyspace, "get", key, None);
    }

    /// Records a write of one entry.
    pub(super) fn write(&self, kind: EntryKind, keyspace: u32, key: &[u8], value: &[u8]) {
        match kind {
            EntryKind::Delete => self.record(keyspace, "delete", key, None),
            _ => self.record(keyspace, "put", key, Some(value.len() as u64)),
        }
    }

    /// Records the entries of `batch` as one call.
    pub(super) fn batch(&self, batch: &Batch) {
        let time = self.started.elapsed().as_micros();
        // LOCK: as in `record`.
        let mut sink = self.sink.lock();
        let count = batch.payload.iter().count();
        if count != 1 {
            sink.add(time, 0, "batch", &[], Some(count as u64));
        }
        for entry in batch.payload.iter() {
            let keyspace = entry.keyspace & !RANGE_DELETE_BIT;
            let (key, value) = (entry.key, entry.value);
            match EntryKind::from_raw(entry.kind) {
                Some(EntryKind::Delete) => sink.add(time, keyspace, "delete", key, None),
                Some(EntryKind::RangeDelete) => {
                    // The entry was made by this process a moment ago: its key can be read.
                    if let Ok((from, to)) = ranges::decode(key, 0) {
                        sink.add_range(time, keyspace, from, to);
                    }
                }
                Some(EntryKind::PutExpiring) => {
                    let len = expiring::decode(value, 0).map_or(0, |(_, value)| value.len());
                    sink.add(time, keyspace, "put", key, Some(len as u64));
                }
                Some(EntryKind::Put) | None => {
                    sink.add(time, keyspace, "put", key, Some(value.len() as u64));
                }
            }
        }
        sink.write();
    }

    /// Flushes buffered lines. Returns the first error of all, once.
    pub(super) fn finish(&self) -> Result<()> {
        let mut sink = self.sink.lock();
        if sink.failed.is_none() {
            sink.failed = sink.out.flush().err();
        }
        match sink.failed.take() {
            None => Ok(()),
            Some(e) => Err(Error::new(
                ErrorKind::Io,
                format!("the trace of calls is incomplete, because a write to it failed: {e}"),
            )),
        }
    }
}

impl Sink {
    fn add(&mut self, time: u128, keyspace: u32, call: &str, key: &[u8], count: Option<u64>) {
        // A `Vec` takes every byte.
        let _ = write!(self.line, "{time}\t{keyspace}\t{call}\t");
        escape(key, &mut self.line);
        if let Some(count) = count {
            let _ = write!(self.line, "\t{count}");
        }
        self.line.push(b'\n');
    }

    fn add_range(&mut self, time: u128, keyspace: u32, from: &[u8], to: &[u8]) {
        let _ = write!(self.line, "{time}\t{keyspace}\tdelete-range\t");
        escape(from, &mut self.line);
        self.line.push(b'\t');
        escape(to, &mut self.line);
        self.line.push(b'\n');
    }

    fn write(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.write_all(&self.line).err();
        }
        self.line.clear();
    }
}

/// Writes printable ASCII as it is, except the backslash; every other byte as `\xNN`.
fn escape(key: &[u8], line: &mut Vec<u8>) {
    for byte in key {
        match byte {
            b' '..=b'~' if *byte != b'\\' => line.push(*byte),
            _ => {
                // A `Vec` takes every byte.
                let _ = write!(line, "\\x{byte:02x}");
            }
        }
    }
}

/// A scan in progress, which is recorded when it is dropped.
pub(super) struct ScanTrace {
    trace: Arc<Trace>,
    keyspace: u32,
    /// The start of a forward scan and the end of a backward one; empty for that of the keyspace.
    from: Vec<u8>,
    /// The start of a backward scan.
    to: Vec<u8>,
    pub(super) forward: u64,
    pub(super) backward: u64,
}

impl ScanTrace {
    /// Creates the record of a scan of `bounds`; `None` if no key can be in them.
    pub(super) fn of(trace: &Arc<Trace>, keyspace: u32, bounds: &Bounds) -> Option<ScanTrace> {
        let (from, to) = bounds.half_open()?;
        Some(ScanTrace {
            trace: Arc::clone(trace),
            keyspace,
            from,
            to,
            forward: 0,
            backward: 0,
        })
    }
}

impl Drop for ScanTrace {
    fn drop(&mut self) {
        if self.forward > 0 || self.backward == 0 {
            let (from, count) = (&self.from, Some(self.forward));
            self.trace.record(self.keyspace, "scan", from, count);
        }
        if self.backward > 0 {
            let (to, count) = (&self.to, Some(self.backward));
            self.trace.record(self.keyspace, "scan-back", to, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink that tests can look into, and that fails after a number of writes.
    #[derive(Clone)]
    pub(super) struct Shared(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.1 -= 1;
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines without their times, which only have to ascend.
    fn lines_of(bytes: &[u8]) -> Vec<String> {
        let text = String::from_utf8(bytes.to_vec()).expect("ASCII");
        let mut last = 0;
        let lines = text.strip_prefix(HEADER).expect("the header").lines();
        lines
            .map(|line| {
                let (time, rest) = line.split_once('\t').expect("a time");
                let time: u64 = time.parse().expect("a number");
                assert!(time >= last, "{line}");
                last = time;
                rest.to_string()
            })
            .collect()
    }

    /// Every kind of call is recorded once, as documented, and failed ones are not.
    #[test]
    fn every_call_has_its_line() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let shared = Shared(Arc::default(), usize::MAX);
        let db = crate::Db::builder(folder.path())
            .options(crate::testing::small_options())
            .trace(shared.clone())
            .open()
            .expect("it opens");
        db.put("a key", "12345").expect("a put");
        db.put(b"\\\x00\xff\t", "").expect("a put");
        db.get("a key").expect("a get");
        db.get_with_expiry("nothing").expect("a get");
        db.delete("a key").expect("a delete");
        db.multi_get(&["x", "y"]).expect("a multi_get");
        let other = db.create_keyspace("other").expect("a keyspace");
        other.put("k", "v").expect("a put");
        other.get("k").expect("a get");
        let mut batch = crate::WriteBatch::new();
        batch.put("b1", "22");
        batch.delete_in(&other, "b2");
        db.write(batch, crate::Durability::Buffered)
            .expect("a batch");
        db.put_with_ttl("t", "333", std::time::Duration::from_secs(60))
            .expect("a put");
        db.delete_range("c".."d").expect("a delete of a range");
        assert_eq!(db.iter().expect("a scan").take(2).count(), 2);
        let mut both = db.range("a".."c").expect("a scan");
        assert!(both.next().is_some() && both.next_back().is_none());
        drop(both);
        let mut back = db.range(..="t".to_string()).expect("a scan");
        assert!(back.next_back().is_some());
        drop(back);
        db.put([0; 70_000], "").expect_err("the key is too long");
        db.close().expect("it closes");
        let expected = [
            "1\tput\ta key\t5",
            "1\tput\t\\x5c\\x00\\xff\\x09\t0",
            "1\tget\ta key",
            "1\tget\tnothing",
            "1\tdelete\ta key",
            "1\tget\tx",
            "1\tget\ty",
            "2\tput\tk\t1",
            "2\tget\tk",
            "0\tbatch\t\t2",
            "1\tput\tb1\t2",
            "2\tdelete\tb2",
            "1\tput\tt\t3",
            "1\tdelete-range\tc\td",
            "1\tscan\t\t2",
            "1\tscan\ta\t1",
            "1\tscan-back\tt\\x00\t1",
        ];
        assert_eq!(lines_of(&shared.0.lock()), expected);
    }

    /// A trace that cannot be written ends there, without disturbing a call, and the close reports
    /// it; the database is closed all the same.
    #[test]
    fn a_failed_trace_is_reported() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let shared = Shared(Arc::default(), 2);
        let open = || crate::Db::builder(folder.path()).options(crate::testing::small_options());
        let db = open().trace(shared.clone()).open().expect("it opens");
        for key in ["a", "b", "c"] {
            db.put(key, "1").expect("a put");
        }
        let problem = db.close().expect_err("the trace is not complete");
        assert_eq!(problem.kind(), ErrorKind::Io);
        assert!(problem.to_string().contains("trace"), "{problem}");
        assert_eq!(lines_of(&shared.0.lock()), ["1\tput\ta\t1"]);
        drop(db);
        let db = open().open().expect("it is closed");
        assert_eq!(db.iter().expect("a scan").count(), 3);
    }
}
