//! Parsing of RocksDB's text properties, which are counted even without statistics.
//!
//! `rocksdb.dbstats` has the bytes of the log and the time of all stalls, `rocksdb.cfstats` the
//! stalls by cause. The other figures are rounded to tenths of a GiB and too coarse, so the bytes
//! of tables are those of the process less those of the log.

use std::time::Duration;

use crate::machine::ProcessIo;
use crate::store::Counters;

/// Stalls as RocksDB names them.
const STALLS: [&str; 6] = [
    "l0-file-count-limit-delays",
    "l0-file-count-limit-stops",
    "memtable-limit-delays",
    "memtable-limit-stops",
    "pending-compaction-bytes-delays",
    "pending-compaction-bytes-stops",
];

/// Returns the counters from those two properties and the process's write calls.
pub(super) fn counters(db: &str, cf: &str, io: ProcessIo) -> Counters {
    let log_bytes = log_bytes(db).unwrap_or(0);
    let stalls = STALLS.into_iter().filter_map(|name| {
        let count = number_after(cf, &format!("{name}: "))?;
        Some((name, count as u64, Duration::ZERO))
    });
    let all = stall_time(db).map(|time| ("all of them", 0, time));
    Counters {
        files: vec![
            ("log", log_bytes),
            (
                "tables and others",
                io.write_bytes.saturating_sub(log_bytes),
            ),
        ],
        stalls: stalls.chain(all).collect(),
        ..Counters::default()
    }
}

/// Returns the bytes of the log from a line such as
/// `Cumulative WAL: 2000 writes, 0 syncs, 2000.00 writes per sync, written: 0.12 GB, 1.2 MB/s`.
fn log_bytes(db: &str) -> Option<u64> {
    let line = db
        .lines()
        .find(|line| line.starts_with("Cumulative WAL:"))?;
    let gib = number_after(line, "written: ")?;
    Some((gib * f64::from(1 << 30)) as u64)
}

/// Returns the time of a line such as `Cumulative stall: 00:01:2.345 H:M:S, 0.1 percent`.
fn stall_time(db: &str) -> Option<Duration> {
    let line = db
        .lines()
        .find_map(|line| line.strip_prefix("Cumulative stall: "))?;
    let mut parts = line.split_whitespace().next()?.split(':');
    let [hours, minutes, seconds] = [(); 3].map(|()| parts.next()?.parse::<f64>().ok());
    Some(Duration::from_secs_f64(
        hours? * 3600.0 + minutes? * 60.0 + seconds?,
    ))
}

fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = &text[text.find(name)? + name.len()..];
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of version 11 are parsed.
    #[test]
    fn what_rocksdb_says_is_understood() {
        let db = "\n** DB Stats **\nUptime(secs): 1.0 total, 1.0 interval\n\
                  Cumulative writes: 12K writes, 12K keys, 12K commit groups, 1.0 writes per commit \
                  group, ingest: 0.50 GB, 1.00 MB/s\n\
                  Cumulative WAL: 12K writes, 0 syncs, 12000.00 writes per sync, written: 0.25 GB, \
                  1.00 MB/s\n\
                  Cumulative stall: 01:02:3.500 H:M:S, 0.1 percent\n";
        let cf = "Write Stall (count): cf-l0-file-count-limit-delays-with-ongoing-compaction: 9, \
                  l0-file-count-limit-delays: 7, l0-file-count-limit-stops: 0, \
                  memtable-limit-delays: 3, total-delays: 10\n";
        let io = ProcessIo {
            write_bytes: 1 << 30,
            device_bytes: 0,
        };
        let counters = counters(db, cf, io);
        assert_eq!(counters.files[0], ("log", 1 << 28));
        assert_eq!(counters.files[1].1, 3 << 28);
        let of = |name| counters.stalls.iter().find(|stall| stall.0 == name);
        assert_eq!(
            of("l0-file-count-limit-delays").map(|stall| stall.1),
            Some(7)
        );
        assert_eq!(of("memtable-limit-delays").map(|stall| stall.1), Some(3));
        assert_eq!(of("memtable-limit-stops"), None);
        let time = of("all of them").map(|stall| stall.2);
        assert_eq!(time, Some(Duration::from_millis(3_723_500)));
    }
}
