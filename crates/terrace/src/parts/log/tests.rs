//! Tests of the log's bytes: round trips, truncation, damage, and reused space.

mod crash;
mod gather;
mod list;
mod salvage;
mod seal;

use std::path::Path;
use std::sync::Arc;

use terrace_media::{
    Backing, Extent, FaultFs, FileSystem, Machine, Medium, OpenMode, Pool, PoolConfig, Prefault,
};

use super::layout::{LOG_HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader};
use super::record::{Verdict, judge};
use super::replay::ReplayEnd;
use super::{FileLog, Log, LogOf, Payload, PoolLog, replay_file, replay_pool};
use crate::parts::codec::DecodeError;
use crate::types::{DbId, SEQ_MAX};

const FILE: &str = "/db/000001.log";
/// The database of the logs.
const DB: DbId = DbId(*b"sixteen bytes id");

/// The expected contents of one record: its first sequence number and its entries.
#[derive(Clone, PartialEq, Eq)]
struct Batch {
    first_seq: u64,
    entries: Vec<(u8, u32, Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes: Vec<_> = self
            .entries
            .iter()
            .map(|e| (e.2.len(), e.3.len()))
            .collect();
        write!(f, "{}: {sizes:?}", self.first_seq)
    }
}

impl Batch {
    fn random(rng: &mut fastrand::Rng, first_seq: u64, value_bytes_max: usize) -> Batch {
        let entries = (0..rng.usize(1..4)).map(|_| {
            let key = (0..rng.usize(..20)).map(|_| rng.u8(..)).collect();
            let value = (0..rng.usize(..=value_bytes_max))
                .map(|_| rng.u8(..))
                .collect();
            (rng.u8(1..3), rng.u32(..), key, value)
        });
        Batch {
            first_seq,
            entries: entries.collect(),
        }
    }

    fn payload(&self) -> Payload {
        let mut payload = Payload::new();
        for (kind, keyspace, key, value) in &self.entries {
            let crc = payload.push(*kind, *keyspace, key, value);
            assert_eq!(crc, crc32c::crc32c(value));
        }
        payload
    }

    fn append(&self, log: &dyn Log) {
        let mut payload = self.payload();
        let slot = log.reserve(payload.len_bytes()).unwrap();
        log.append(slot, self.first_seq, &mut payload).unwrap();
    }
}

fn batches(rng: &mut fastrand::Rng, count: usize, value_bytes_max: usize) -> Vec<Batch> {
    let mut seq = 1;
    let make = |_| {
        let batch = Batch::random(rng, seq, value_bytes_max);
        seq += batch.entries.len() as u64;
        batch
    };
    (0..count).map(make).collect()
}

fn pool() -> Pool {
    Pool::create(PoolConfig {
        prefault: Prefault::None,
        grow_bytes: 1 << 20,
        ..PoolConfig::new(Backing::Anonymous, 64 << 20)
    })
    .unwrap()
}

/// Collects the records of a replay; the entries must decode.
fn collect(into: &mut Vec<Batch>) -> impl FnMut(super::RecordView<'_>) -> Result<(), Failure> {
    |record| {
        let mut entries = Vec::new();
        for (_, entry) in record.entries() {
            let e = entry.map_err(Failure::Damage)?;
            assert_eq!(e.value_crc, crc32c::crc32c(e.value));
            entries.push((e.kind, e.keyspace, e.key.to_vec(), e.value.to_vec()));
        }
        assert_eq!(entries.len(), record.entry_count as usize);
        into.push(Batch {
            first_seq: record.first_seq,
            entries,
        });
        Ok(())
    }
}

#[derive(Debug)]
enum Failure {
    Damage(DecodeError),
    Io,
}

impl From<DecodeError> for Failure {
    fn from(e: DecodeError) -> Failure {
        Failure::Damage(e)
    }
}

type Replayed = (Vec<Batch>, Result<ReplayEnd, Failure>);

fn read_pool(extent: &Extent, id: u64) -> Replayed {
    let mut found = Vec::new();
    let end = replay_pool(extent, log_of(id, None), &mut collect(&mut found));
    (found, end)
}

fn log_of(id: u64, end: Option<u64>) -> LogOf {
    LogOf {
        db: DB,
        id,
        end,
        from: None,
    }
}

fn read_file(fs: &Arc<dyn FileSystem>, id: u64) -> Replayed {
    read_file_to(fs, log_of(id, None))
}

fn read_file_to(fs: &Arc<dyn FileSystem>, log: LogOf) -> Replayed {
    let mut found = Vec::new();
    let fault = |_| Failure::Io;
    let end = replay_file(fs, Path::new(FILE), log, &fault, &mut collect(&mut found));
    (found, end)
}

/// Writes `bytes` to the start of the extent and `fill` to the rest of it.
fn overwrite(extent: &Arc<Extent>, bytes: &[u8], fill: impl FnMut() -> u8) {
    let mut all = bytes.to_vec();
    all.resize_with(extent.len() as usize, fill);
    extent.claim(0, all.len()).unwrap().write(0, &all);
}

fn bytes_of(extent: &Extent, len: u64) -> Vec<u8> {
    extent
        .region()
        .bytes(extent.off(), len as usize)
        .unwrap()
        .to_vec()
}

/// Creates a log of a few records in an extent of 16 KiB; returns where each record and its entries
/// end.
fn small_log(pool: &Pool, seed: u64) -> (Arc<Extent>, Vec<Batch>, Vec<u64>, u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let extent = pool.alloc(16 << 10).unwrap();
    overwrite(&extent, &[], || 0);
    let log = PoolLog::create(Arc::clone(&extent), (DB, 7), Medium::Dram).unwrap();
    let all = batches(&mut rng, 5, 90);
    let mut ends = Vec::new();
    for batch in &all {
        ends.push(log.bytes() + (RECORD_HEADER_BYTES + batch.payload().len_bytes()) as u64);
        batch.append(&log);
    }
    (extent, all, ends, log.bytes())
}

/// A payload returns the entries that were pushed, and a cleared payload equals a new one.
#[test]
fn payloads_round_trip() {
    let mut rng = fastrand::Rng::with_seed(31);
    let mut payload = Payload::new();
    for round in 0..300 {
        let batch = Batch::random(&mut rng, 1, 300);
        payload.clear();
        assert_eq!(payload.len_bytes(), 0);
        let mut bytes = 0;
        for (kind, keyspace, key, value) in &batch.entries {
            payload.push(*kind, *keyspace, key, value);
            bytes += Payload::entry_bytes(key.len(), value.len());
        }
        assert_eq!(payload.len_bytes(), bytes);
        let entry = |e: super::LogEntry<'_>| (e.kind, e.keyspace, e.key.to_vec(), e.value.to_vec());
        assert_eq!(
            payload.iter().map(entry).collect::<Vec<_>>(),
            batch.entries,
            "round {round}"
        );
    }
    assert!(payload.capacity_bytes() < 4096);
}

/// Replay returns the records appended to a pool or a file, in order.
#[test]
fn logs_round_trip() {
    let (pool, machine) = (pool(), Machine::new(1, Medium::Dax));
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let mut rng = fastrand::Rng::with_seed(32);
    for round in 0..60 {
        let id = rng.u64(1..);
        let all = batches(&mut rng, round, if round % 3 == 0 { 5000 } else { 60 });
        let extent = pool.alloc(1 << 20).unwrap();
        overwrite(&extent, &[], || rng.u8(..));
        let in_pool = PoolLog::create(Arc::clone(&extent), (DB, id), Medium::Dram).unwrap();
        let _ = fs.remove(Path::new(FILE));
        let in_file = FileLog::create(&fs, Path::new(FILE), (DB, id), 1 << 20, None).unwrap();
        let logs: [&dyn Log; 2] = [&in_pool, &in_file];
        for log in logs {
            all.iter().for_each(|batch| batch.append(log));
            log.sync().unwrap();
        }
        let expected = ReplayEnd {
            records: all.len() as u64,
            bytes: in_pool.bytes(),
            sealed: false,
            torn: false,
            stranded: 0,
        };
        for (found, end) in [read_pool(&extent, id), read_file(&fs, id)] {
            assert_eq!(end.unwrap(), expected);
            assert_eq!(found, all, "round {round}");
        }
        assert_eq!(in_file.bytes(), in_pool.bytes());
    }
}

/// A log takes nothing beyond its extent or capacity, and keeps what it took.
#[test]
fn full_logs_refuse() {
    let pool = pool();
    let extent = pool.alloc(16 << 10).unwrap();
    let machine = Machine::new(2, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let in_pool = PoolLog::create(Arc::clone(&extent), (DB, 1), Medium::Dram).unwrap();
    let in_file = FileLog::create(&fs, Path::new(FILE), (DB, 1), 16 << 10, None).unwrap();
    let mut rng = fastrand::Rng::with_seed(33);
    let logs: [&dyn Log; 2] = [&in_pool, &in_file];
    for log in logs {
        assert!(log.reserve(16 << 10).is_none());
        assert!(log.reserve(usize::MAX).is_none());
        let mut records = 0;
        while let Some(slot) = log.reserve(200) {
            let mut payload = Payload::new();
            let value: Vec<u8> = (0..176).map(|_| rng.u8(..)).collect();
            payload.push(1, 0, &[0; 8], &value);
            assert_eq!(slot.bytes(), 256);
            log.append(slot, records + 1, &mut payload).unwrap();
            records += 1;
        }
        assert_eq!(records, ((16 << 10) - LOG_HEADER_BYTES as u64) / 256);
    }
    for (found, end) in [read_pool(&extent, 1), read_file(&fs, 1)] {
        let end = end.unwrap();
        assert!(!end.torn);
        assert_eq!(end.records, found.len() as u64);
        assert_eq!(end.records, 63);
    }
}

/// After a log is cut off at any byte and followed by zeros or noise, replay returns exactly the
/// records that were whole before the cut; a cut header is an error.
#[test]
fn truncation_leaves_a_prefix() {
    let pool = pool();
    let (extent, all, ends, len) = small_log(&pool, 34);
    let bytes = bytes_of(&extent, len);
    let machine = Machine::new(3, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let mut rng = fastrand::Rng::with_seed(35);
    for cut in 0..=bytes.len() {
        let whole = ends.iter().filter(|&&end| end <= cut as u64).count();
        for noise in [false, true] {
            overwrite(
                &extent,
                &bytes[..cut],
                || if noise { rng.u8(..) } else { 0 },
            );
            let (found, end) = read_pool(&extent, 7);
            let header = cut < LOG_HEADER_BYTES && bytes_of(&extent, 64) != bytes[..64];
            match end {
                // A record may end in zeros, which the fill replaces.
                Ok(end) => {
                    assert!(found.len() >= whole && !header, "cut at {cut}");
                    assert_eq!(found, all[..found.len()], "cut at {cut}");
                    assert!(noise || found.len() <= whole + 1);
                    assert_eq!(end.stranded, 0);
                }
                Err(Failure::Damage(e)) => {
                    assert!(header, "cut at {cut}: {e}");
                    assert!((extent.off()..extent.off() + 64).contains(&e.offset));
                }
                Err(Failure::Io) => panic!("no file is read"),
            }
        }
        let _ = fs.remove(Path::new(FILE));
        let file = fs.open(Path::new(FILE), OpenMode::CreateNew).unwrap();
        file.write_at(0, &bytes[..cut]).unwrap();
        let (found, end) = read_file(&fs, 7);
        assert_eq!(found, all[..whole], "cut at {cut}");
        // The header was durable before the log had a name.
        assert_eq!(end.is_err(), cut < LOG_HEADER_BYTES, "cut at {cut}");
        // With its end known, a shorter log is an error.
        let (found, end) = read_file_to(&fs, log_of(7, Some(len)));
        assert_eq!(found, all[..whole], "cut at {cut}");
        match end {
            Ok(end) => assert_eq!((whole, end.bytes), (all.len(), len), "cut at {cut}"),
            Err(Failure::Damage(e)) => {
                assert!(whole < all.len() && e.offset < cut as u64 + 64, "{e}")
            }
            Err(Failure::Io) => panic!("cut at {cut}"),
        }
    }
}

/// After any byte of a settled log changes, replay returns all records, or all but a damaged last
/// one, or an error that names an offset in the log.
#[test]
fn flipped_bytes_are_found() {
    let pool = pool();
    let (extent, all, ends, len) = small_log(&pool, 36);
    let bytes = bytes_of(&extent, len);
    let last = (ends[3] as usize).next_multiple_of(64);
    let mut rng = fastrand::Rng::with_seed(37);
    let machine = Machine::new(4, Medium::Dax);
    let fs = machine.fs();
    fs.create_dir_all(Path::new("/db")).unwrap();
    let file = fs.open(Path::new(FILE), OpenMode::CreateNew).unwrap();
    let mut errors = 0;
    for at in 0..bytes.len() {
        for mask in [1 << rng.u32(..8), 0xff, rng.u8(1..)] {
            let mut changed = bytes.clone();
            changed[at] ^= mask;
            overwrite(&extent, &changed, || 0);
            file.write_at(0, &changed).unwrap();
            for (base, (found, end)) in [
                (extent.off(), read_pool(&extent, 7)),
                (0, read_file(&fs, 7)),
            ] {
                match end {
                    Ok(end) if found.len() == all.len() => {
                        assert_eq!(found, all);
                        assert!(!end.torn && at >= LOG_HEADER_BYTES);
                    }
                    Ok(_) => {
                        assert_eq!(found, all[..4], "byte {at}");
                        assert!(at >= last, "byte {at} is not of the last record");
                    }
                    Err(Failure::Damage(e)) => {
                        errors += 1;
                        assert!(at < last, "byte {at}: {e}");
                        assert!((base..base + len).contains(&e.offset), "byte {at}: {e}");
                        assert_eq!(found, all[..found.len()]);
                    }
                    Err(Failure::Io) => panic!("reading does not fail"),
                }
            }
        }
    }
    assert!(errors > 3 * last, "most bytes are covered");
}

/// However many bytes of a log change at random, replay neither panics nor invents a record.
#[test]
fn hostile_bytes_invent_nothing() {
    let pool = pool();
    let (extent, all, _, len) = small_log(&pool, 38);
    let bytes = bytes_of(&extent, len);
    let mut rng = fastrand::Rng::with_seed(39);
    for _ in 0..6000 {
        let mut changed = bytes.clone();
        for _ in 0..rng.usize(1..6) {
            let at = rng.usize(..changed.len());
            match rng.u8(..4) {
                0 => changed[at] = rng.u8(..),
                1 => changed[at..].iter_mut().take(4).for_each(|b| *b = 0xff),
                2 => {
                    let (from, len) = (rng.usize(..len as usize), rng.usize(..200));
                    let piece = bytes[from..].iter().take(len).copied().collect::<Vec<_>>();
                    changed.truncate(at);
                    changed.extend(piece);
                    changed.extend_from_slice(bytes.get(changed.len()..).unwrap_or(&[]));
                }
                _ => changed[at..].iter_mut().take(64).for_each(|b| *b = 0),
            }
        }
        changed.truncate(extent.len() as usize);
        overwrite(&extent, &changed, || 0);
        let (found, _) = read_pool(&extent, 7);
        assert!(found.len() <= all.len());
        assert_eq!(found, all[..found.len()]);
    }
}

/// After an extent is used for another log, no record of the earlier one is replayed.
#[test]
fn earlier_users_leave_nothing() {
    let pool = pool();
    let mut rng = fastrand::Rng::with_seed(40);
    for round in 0..200 {
        let (first, second) = (2 * round + 1, 2 * round + 2);
        let extent = pool.alloc(32 << 10).unwrap();
        let old = PoolLog::create(Arc::clone(&extent), (DB, first), Medium::Dram).unwrap();
        let count = rng.usize(20..60);
        batches(&mut rng, count, 200)
            .iter()
            .for_each(|b| b.append(&old));
        let new = PoolLog::create(Arc::clone(&extent), (DB, second), Medium::Dram).unwrap();
        let count = rng.usize(..20);
        let all = batches(&mut rng, count, 200);
        all.iter().for_each(|b| b.append(&new));
        let (found, end) = read_pool(&extent, second);
        assert_eq!(found, all, "round {round}");
        let end = end.unwrap();
        assert!(!end.torn);
        assert_eq!(end.stranded, 0);
        let (found, end) = read_pool(&extent, first);
        assert!(found.is_empty() && end.is_err(), "the old log is gone");
    }
}

/// A value that is an image of the log's own records stays data, even after a torn record.
#[test]
fn images_of_records_are_data() {
    let pool = pool();
    let (extent, mut all, _, len) = small_log(&pool, 41);
    let image = bytes_of(&extent, len);
    // The value of the next record starts at a multiple of 64, as records do.
    let log = PoolLog::create(Arc::clone(&extent), (DB, 7), Medium::Dram).unwrap();
    all.iter().for_each(|b| b.append(&log));
    let at = log.bytes();
    let entry = (1, 0, vec![9; 16], image);
    all.push(Batch {
        first_seq: 100,
        entries: vec![entry],
    });
    all[5].append(&log);
    let (found, end) = read_pool(&extent, 7);
    assert_eq!(found, all);
    assert!(!end.unwrap().torn);
    let was = bytes_of(&extent, extent.len())[at as usize];
    extent.claim(at, 1).unwrap().write(0, &[was ^ 1]);
    let (found, end) = read_pool(&extent, 7);
    assert_eq!(found, all[..5]);
    let end = end.unwrap();
    assert!(end.torn);
    assert_eq!(end.stranded, 0, "the image is not taken for records");
}

/// The file of a new log is prefaulted up to its end. A recycled file is not: the system would read
/// evicted pages.
#[test]
fn only_new_files_are_prefaulted() {
    let machine = Machine::new(3, Medium::Mapped);
    machine.fs().create_dir_all(Path::new("/db")).unwrap();
    let faults = FaultFs::new(machine.fs());
    let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
    let operations = |log: &FileLog, at, len| {
        let before = faults.operations();
        log.prefault(at, len);
        faults.operations() - before
    };
    let new = FileLog::create(&fs, Path::new(FILE), (DB, 1), 16 << 10, None).unwrap();
    assert!(new.is_cold());
    assert_eq!(operations(&new, 0, 1 << 20), 1);
    assert_eq!(operations(&new, 16 << 10, 1), 0);
    assert_eq!(operations(&new, u64::MAX, u64::MAX), 0);
    faults.fail_at(1, std::io::ErrorKind::Other, false);
    new.prefault(0, 1);
    new.sync().unwrap();
    drop(new);
    let path = Path::new("/db/000002.log");
    let old = FileLog::create(&fs, path, (DB, 2), 16 << 10, Some(Path::new(FILE))).unwrap();
    assert!(!old.is_cold());
}

/// A record whose sequence numbers exceed 56 bits is rejected even if its checksum is valid, since
/// readers count up from them.
#[test]
fn impossible_sequence_numbers_are_refused() {
    for (first_seq, whole) in [(SEQ_MAX, true), (SEQ_MAX + 1, false), (u64::MAX, false)] {
        let mut bytes = vec![0; LOG_HEADER_BYTES];
        let mut payload = Payload::new();
        payload.push(1, 1, b"key", b"value");
        let at = LOG_HEADER_BYTES as u64;
        payload.with_record(7, at, first_seq, 0, |record| {
            bytes.extend_from_slice(record)
        });
        let record = &bytes[LOG_HEADER_BYTES..];
        let header = RecordHeader::decode(record.first_chunk().unwrap());
        let len = RECORD_HEADER_BYTES + header.payload_bytes as usize;
        let judged = judge(&header, &record[..len], 0, at);
        assert_eq!(matches!(judged, Verdict::Whole(_)), whole, "{first_seq:#x}");
    }
}

/// The entries of a record have the numbers that the writer has chosen: consecutive ones, or all
/// the same. The largest number is not exceeded by the one or the other.
#[test]
fn entries_count_up_or_share_a_number() {
    let pool = pool();
    for (one, first, expected) in [
        (false, 7, vec![7, 8, 9]),
        (true, 7, vec![7, 7, 7]),
        (true, SEQ_MAX, vec![SEQ_MAX; 3]),
    ] {
        let extent = pool.alloc(4096).unwrap();
        let log = PoolLog::create(Arc::clone(&extent), (DB, 7), Medium::Dram).unwrap();
        let mut payload = Payload::new();
        for key in [b"a", b"b", b"c"] {
            payload.push(1, 0, key, b"value");
        }
        if one {
            payload = payload.with_one_number();
        }
        let slot = log.reserve(payload.len_bytes()).unwrap();
        let payload_at = extent.off() + slot.payload_at();
        log.append(slot, first, &mut payload).unwrap();
        let at: Vec<u64> = payload
            .iter()
            .map(|entry| payload_at + entry.value_at)
            .collect();
        let (mut numbers, mut places) = (Vec::new(), Vec::new());
        let of = LogOf {
            db: DB,
            id: 7,
            end: None,
            from: None,
        };
        let end = replay_pool(&extent, of, &mut |record| {
            assert_eq!(record.seq_end(), expected[2] + 1);
            for (seq, entry) in record.entries() {
                let entry = entry.map_err(Failure::Damage)?;
                numbers.push(seq);
                places.push(entry.value_at);
                assert_eq!(pool.region().bytes(entry.value_at, 5), Some(&b"value"[..]));
            }
            Ok::<(), Failure>(())
        });
        assert_eq!((end.unwrap().records, numbers), (1, expected));
        assert_eq!(places, at, "a writer knows where its values are");
    }
}
