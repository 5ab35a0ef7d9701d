//! Tests of gathered records: crashes, costs, and the states that they must not reach.

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrace_media::{Machine, Medium, Pool, Purpose, Survive};

use super::crash::{config, reopen, survivals};
use super::{Batch, DB, batches, bytes_of, read_pool};
use crate::parts::log::layout::LOG_HEADER_BYTES;
use crate::parts::log::{Log, PoolLog};

/// Appends a record that a power loss may take.
fn append_gathered(batch: &Batch, log: &dyn Log) {
    let mut payload = batch.payload();
    let slot = log.reserve_gathered(payload.len_bytes()).unwrap();
    log.append(slot, batch.first_seq, &mut payload).unwrap();
}

/// Returns a record of 64 bytes.
fn small(first_seq: u64) -> Batch {
    Batch {
        first_seq,
        entries: vec![(1, 1, b"key".to_vec(), b"value".to_vec())],
    }
}

/// After a crash at any fence, with any choice of surviving bytes, replay returns a prefix with
/// every record up to the last durable one, and reports no damage. A process crash takes nothing,
/// and what a replay has returned stays.
#[test]
fn gathered_records_survive_as_a_prefix() {
    for seed in 0..4 {
        let machine = Machine::new(81 + seed, Medium::Dax);
        let pool = Pool::create(config(&machine)).unwrap();
        let extent = pool.alloc(64 << 10).unwrap();
        let span = extent.span();
        let log = PoolLog::create(extent, (DB, 3), Medium::Dax).unwrap();
        let mut rng = fastrand::Rng::with_seed(85 + seed);
        let all = batches(&mut rng, 80, [20, 300][seed as usize % 2]);
        let durable = Arc::new(AtomicU64::new(0));
        let lost = Arc::new(AtomicU64::new(0));
        let written = Arc::new(AtomicU64::new(0));
        let (expected, known) = (all.clone(), Arc::clone(&durable));
        let (count, so_far) = (Arc::clone(&lost), Arc::clone(&written));
        let check = move |machine: &Machine, index: u64| {
            for survive in survivals(index) {
                let after = Machine::boot(machine.crash_image(survive), index);
                let (found, end) = read_pool(&reopen(&after, span), 3);
                let end = end.unwrap_or_else(|e| panic!("{index} {survive:?}: {e:?}"));
                assert_eq!(found, expected[..found.len()], "{index} {survive:?}");
                assert!(
                    end.records >= known.load(Ordering::Relaxed),
                    "{index} {survive:?}"
                );
                let missing = so_far.load(Ordering::Relaxed).saturating_sub(end.records);
                count.fetch_add(missing, Ordering::Relaxed);
            }
            let after = Machine::boot(machine.process_image(), index);
            let (found, _) = read_pool(&reopen(&after, span), 3);
            assert!(
                found.len() as u64 >= so_far.load(Ordering::Relaxed),
                "{index}"
            );
            let lost = Machine::boot(after.crash_image(Survive::None), index);
            let (again, _) = read_pool(&reopen(&lost, span), 3);
            assert_eq!(again, found, "records found once stay");
        };
        let hooked = check.clone();
        machine.on_persist(Some(Box::new(move |machine, point| {
            hooked(machine, point.index);
        })));
        for (at, batch) in all.iter().enumerate() {
            let is_durable = rng.u8(0..4) == 0;
            match is_durable {
                true => batch.append(&log),
                false => append_gathered(batch, &log),
            }
            if rng.u8(0..16) == 0 {
                log.sync().unwrap();
                assert_eq!(log.durable_end(), Some(log.bytes()));
            }
            if is_durable || log.is_synced() {
                durable.store(at as u64 + 1, Ordering::Relaxed);
            }
            written.store(at as u64 + 1, Ordering::Relaxed);
            check(&machine, 1000 + at as u64);
        }
        assert!(
            lost.load(Ordering::Relaxed) > 0,
            "a power loss takes gathered records"
        );
        machine.on_persist(None);
    }
}

/// Gathered records cost one flush and one fence for each 256 bytes; others cost one more flush
/// after gathered ones, and nothing more otherwise. Where a flush has no effect, none is gathered.
#[test]
fn gathered_records_share_a_fence() {
    let machine = Machine::new(91, Medium::Dax);
    let pool = Pool::create(config(&machine)).unwrap();
    let extent = pool.alloc(64 << 10).unwrap();
    let log = PoolLog::create(extent, (DB, 3), Medium::Dax).unwrap();
    let start = pool.counts().get(Purpose::Log);
    let costs = |append: &dyn Fn()| {
        let before = pool.counts().get(Purpose::Log);
        append();
        let cost = pool.counts().get(Purpose::Log) - before;
        (cost.lines, cost.flushes, cost.fences)
    };
    let gathered = || costs(&|| append_gathered(&small(1), &log));
    let durable = || costs(&|| small(1).append(&log));
    assert_eq!(durable(), (1, 1, 1));
    for _ in 0..3 {
        for _ in 0..3 {
            assert_eq!(gathered(), (0, 0, 0));
            assert!(!log.is_synced());
        }
        assert_eq!(gathered(), (4, 1, 1));
        assert!(log.is_synced());
        assert_eq!(durable(), (1, 1, 1));
    }
    assert_eq!(gathered(), (0, 0, 0));
    assert_eq!(durable(), (2, 2, 1));
    assert_eq!(durable(), (1, 1, 1));
    assert_eq!(costs(&|| log.sync().unwrap()), (0, 0, 0));
    assert_eq!(gathered(), (0, 0, 0));
    assert_eq!(costs(&|| log.sync().unwrap()), (1, 1, 1));
    assert_eq!(gathered(), (0, 0, 0));
    assert_eq!(costs(&|| log.end_gathering()), (1, 1, 1));
    assert_eq!(costs(&|| log.end_gathering()), (0, 0, 0));
    // Each line was flushed once.
    let all = pool.counts().get(Purpose::Log) - start;
    assert_eq!(all.bytes, log.bytes() - LOG_HEADER_BYTES as u64);

    let machine = Machine::new(92, Medium::Mapped);
    let pool = Pool::create(config(&machine)).unwrap();
    let extent = pool.alloc(64 << 10).unwrap();
    let log = PoolLog::create(extent, (DB, 3), Medium::Mapped).unwrap();
    append_gathered(&small(1), &log);
    log.end_gathering();
    assert!(!log.is_synced() && log.durable_end().is_none());
    log.sync().unwrap();
    assert!(log.is_synced());
}

/// A record of 256 bytes or more is written at once, with what is gathered before it.
#[test]
fn only_small_records_are_gathered() {
    let machine = Machine::new(93, Medium::Dax);
    let pool = Pool::create(config(&machine)).unwrap();
    let extent = pool.alloc(512 << 10).unwrap();
    let log = PoolLog::create(extent, (DB, 3), Medium::Dax).unwrap();
    for value_bytes in 0..400 {
        append_gathered(&small(1), &log);
        let before = log.bytes();
        let mut batch = small(2);
        batch.entries[0].3 = vec![7; value_bytes];
        append_gathered(&batch, &log);
        let (bytes, gathered) = (log.bytes() - before, !log.is_synced());
        assert_eq!(gathered, bytes + 64 < 256, "{bytes} bytes");
        log.sync().unwrap();
    }
}

/// A seal calls everything before it settled, so it is not written while a record is gathered.
#[test]
fn no_seal_follows_a_gathered_record() {
    let machine = Machine::new(94, Medium::Dax);
    let pool = Pool::create(config(&machine)).unwrap();
    let extent = pool.alloc(64 << 10).unwrap();
    let log = PoolLog::create(Arc::clone(&extent), (DB, 3), Medium::Dax).unwrap();
    append_gathered(&small(1), &log);
    let before = bytes_of(&extent, 4096);
    log.seal(2).unwrap();
    assert!(bytes_of(&extent, 4096) == before);
    log.sync().unwrap();
    log.seal(2).unwrap();
    assert!(read_pool(&extent, 3).1.unwrap().sealed);
}

/// With writers on several threads, each durable record and all before it survive a power loss that
/// follows its acknowledgement, and what survives is a prefix without damage.
#[test]
fn durable_writers_wait_for_gathered_records_of_others() {
    const THREADS: u64 = 4;
    for seed in 0..6 {
        let machine = Machine::new(95 + seed, Medium::Dax);
        let pool = Pool::create(config(&machine)).unwrap();
        let extent = pool.alloc(64 << 10).unwrap();
        let span = extent.span();
        let log = PoolLog::create(extent, (DB, 3), Medium::Dax).unwrap();
        let (next, published) = (Mutex::new(0), AtomicU64::new(0));
        let write = |gathers: bool, value_bytes: usize| {
            let mut reserved = next.lock();
            let number: u64 = *reserved;
            *reserved += 1;
            let mut batch = small(number + 1);
            batch.entries[0].3 = vec![number as u8; value_bytes];
            let mut payload = batch.payload();
            let slot = match gathers {
                true => log.reserve_gathered(payload.len_bytes()),
                false => log.reserve(payload.len_bytes()),
            };
            drop(reserved);
            log.append(slot.unwrap(), number + 1, &mut payload).unwrap();
            // BOUND: the writers of smaller numbers only have to settle.
            while published.load(Ordering::Acquire) < number {
                std::thread::yield_now();
            }
            published.store(number + 1, Ordering::Release);
            number
        };
        let crash = |least: u64, survive: Survive| {
            let after = Machine::boot(machine.crash_image(survive), least);
            let (found, end) = read_pool(&reopen(&after, span), 3);
            let end = end.unwrap();
            assert!(end.records >= least, "{} of {least}", end.records);
            let seqs = found.iter().map(|batch| batch.first_seq);
            assert!(seqs.eq(1..=end.records), "a prefix");
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (write, crash) = (&write, &crash);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed * THREADS + thread);
                    for _ in 0..40 {
                        let gathers = rng.u8(0..4) > 0;
                        let number = write(gathers, rng.usize(..120));
                        if !gathers {
                            crash(number + 1, Survive::None);
                            crash(number + 1, Survive::Random(number));
                        }
                    }
                });
            }
        });
        log.sync().unwrap();
        crash(40 * THREADS, Survive::None);
    }
}
