//! A benchmark of tables: building, point reads from cached blocks and from the file, and scans in
//! both directions. `TERRACE_RATES_MIB` sets the size of the table; the default is small enough for
//! every test run.
//!
//! `TERRACE_RATES_MIB=256 cargo test --release -p terrace rates -- --nocapture`

use std::time::Instant;

use super::super::MultiRead;
use super::*;

fn key(i: u64) -> [u8; 16] {
    let mut key = [b'0'; 16];
    let digits = format!("{i:016}");
    key.copy_from_slice(digits.as_bytes());
    key
}

/// Returns a value that compresses to half its length, like those of db_bench.
fn value(rng: &mut fastrand::Rng, bytes: usize) -> Vec<u8> {
    let mut value: Vec<u8> = (0..bytes / 2).map(|_| rng.u8(..)).collect();
    let half = value.clone();
    value.extend(half);
    value.resize(bytes, 0);
    value
}

/// Returns the processor time of this thread, or 0 if unknown. Unlike the elapsed time, it excludes
/// the load of others on a shared machine.
fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = stat.split(' ').next().map(str::parse);
    first.and_then(Result::ok).unwrap_or(0)
}

/// A table with the keys 0 to `count`, exclusive.
struct Rates {
    table: Arc<SsTable>,
    count: u64,
    rng: fastrand::Rng,
}

impl Rates {
    /// Prints the mean time of the `count` operations in `run`.
    fn timed(what: &str, count: u64, run: impl FnOnce()) {
        let (start, cpu) = (Instant::now(), cpu_ns());
        run();
        let each = start.elapsed().as_nanos() as f64 / count.max(1) as f64;
        let cpu = (cpu_ns() - cpu) as f64 / count.max(1) as f64;
        println!("  {what:<24} {each:>7.0} ns, {cpu:>7.0} ns of processor");
    }

    fn gets(&mut self, what: &str, count: u64) {
        let mut counts = ReadCounts::default();
        let keys: Vec<[u8; 16]> = (0..count)
            .map(|_| key(self.rng.u64(..self.count)))
            .collect();
        Rates::timed(what, count, || {
            for key in &keys {
                let at = target(1, key, SEQ_MAX);
                let found = self.table.get(&at, key_hash(1, key), &mut counts).unwrap();
                assert!(found.is_some());
            }
        });
        println!("    {counts:?}");
    }

    fn absent(&mut self, count: u64) {
        let mut counts = ReadCounts::default();
        let keys: Vec<[u8; 16]> = (0..count).map(|i| key(self.count + i)).collect();
        Rates::timed("get absent", count, || {
            for key in &keys {
                let at = target(1, key, SEQ_MAX);
                let found = self.table.get(&at, key_hash(1, key), &mut counts).unwrap();
                assert!(found.is_none());
            }
        });
    }

    fn multi_gets(&mut self, count: u64) {
        let mut counts = ReadCounts::default();
        let keys: Vec<[u8; 16]> = (0..count)
            .map(|_| key(self.rng.u64(..self.count)))
            .collect();
        Rates::timed("multi_get of 64", count, || {
            for keys in keys.chunks(64) {
                let mut reads: Vec<_> = keys
                    .iter()
                    .map(|key| MultiRead::new(target(1, key, SEQ_MAX), key_hash(1, key)))
                    .collect();
                self.table.multi_get(&mut reads, &mut counts).unwrap();
            }
        });
    }

    fn scan(&self, what: &str, forward: bool, fill_cache: bool) {
        let mut cursor = SstCursor::new(Arc::clone(&self.table), fill_cache);
        let mut bytes = 0;
        Rates::timed(what, self.count, || {
            if forward {
                cursor.seek_to_first().unwrap();
            } else {
                cursor.seek_to_last().unwrap();
            }
            let mut count = 0;
            while let Some(entry) = cursor.entry().unwrap() {
                count += 1;
                bytes += entry.key.len() + cursor.value().unwrap().bytes.len();
                if forward {
                    cursor.advance().unwrap();
                } else {
                    cursor.retreat().unwrap();
                }
            }
            assert_eq!(count, self.count);
        });
        // Used, so that no read of a value can be left out.
        assert!(bytes > 0);
    }
}

fn measure(value_bytes: usize, table_bytes: u64, compression: Compression) {
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let path = dir.path().join("table");
    let fs: Arc<dyn FileSystem> = Arc::new(terrace_media::OsFs);
    let mut rng = fastrand::Rng::with_seed(71);
    let values: Vec<Vec<u8>> = (0..64).map(|_| value(&mut rng, value_bytes)).collect();
    let count = table_bytes / (value_bytes as u64 + 16);
    println!("{value_bytes} B values, {count} entries, {compression:?}");
    let options = SstOptions {
        compression,
        ..SstOptions::default()
    };
    Rates::timed("build", count, || {
        let mut writer = SstWriter::create(&fs, &path, NUMBER, options).unwrap();
        for i in 0..count {
            let entry = NewEntry {
                keyspace: 1,
                key: &key(i),
                seq: i + 1,
                kind: EntryKind::Put as u8,
                expiry: 0,
                value: &values[i as usize % values.len()],
            };
            writer.add(&entry).unwrap();
        }
        let finished = writer.finish().unwrap();
        assert_eq!(finished.properties.entry_count, count);
    });
    let cache = Arc::new(SstCache::new(4 * table_bytes.max(8 << 20)));
    let table = open(&*fs, &path, &cache).unwrap();
    let gets = (count * 2).clamp(1000, 400_000);
    let mut rates = Rates { table, count, rng };
    rates.gets("get, cache filling", gets);
    rates.scan("scan, cache filling", true, true);
    rates.gets("get cached", gets);
    rates.absent(gets);
    rates.multi_gets(gets);
    rates.scan("scan cached", true, false);
    rates.scan("scan back cached", false, false);
    // Most reads miss a cache of 5% of the table.
    let small = Arc::new(SstCache::new(table_bytes / 20));
    rates.table = open(&*fs, &path, &small).unwrap();
    rates.gets("get uncached", gets / 2);
    rates.multi_gets(gets / 2);
    rates.scan("scan uncached", true, false);
    rates.scan("scan uncached, filling", true, true);
}

/// Every kind of read succeeds at every size of value. The rates are printed and not checked.
#[test]
fn rates() {
    let mib = std::env::var("TERRACE_RATES_MIB").ok();
    let mib: u64 = mib.and_then(|mib| mib.parse().ok()).unwrap_or(1);
    for compression in [Compression::None, Compression::Lz4] {
        for value_bytes in [100, 1024, 4096] {
            measure(value_bytes, mib << 20, compression);
        }
    }
}
