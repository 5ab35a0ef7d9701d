//! FlatLSM: logs are tables, which drain together, and nobody notices.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use terrace::{Db, Design, Durability, ErrorKind, Options, StallReason, Workers};
use terrace_media::{Image, Machine, Medium, Survive};
use terrace_testkit::crash::{Case, Tally};
use terrace_testkit::oracle::Oracle;
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::script::{Op, overwrites};
use terrace_testkit::world::World;
use terrace_testkit::{seeds, settings};

use crate::buffer_only::{crashes_of, random_calls_of};

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];

/// After random calls, with manual steps and with threads, the store equals an ordered map.
#[test]
fn random_calls_agree_with_a_map() {
    random_calls_of(Design::FlatLsm, 24, &MEDIA, 1, |_| {});
}

/// After a crash at any point of short scripts, between the steps of a drain too, nothing
/// acknowledged is lost.
#[test]
fn crashes_lose_nothing() {
    crashes_of(Design::FlatLsm, &MEDIA, |_| {});
}

/// The same where logs are long enough to be shortened by openings, which a crash may interrupt.
#[test]
fn crashes_of_openings_that_shorten_logs_lose_nothing() {
    crashes_of(Design::FlatLsm, &[Medium::Dax, Medium::Mapped], |options| {
        options.pool.size_bytes = 16 << 20;
        options.buffer.tables.table_bytes = Some(512 << 10);
    });
}

/// The same where most writes are small and `Volatile`, so that logs gather them.
#[test]
fn crashes_among_gathered_writes_lose_nothing() {
    let mut sum = Tally::default();
    for (seed, medium) in seeds::in_turns(6, &[Medium::Dax, Medium::Mapped]) {
        let (case, script) = Case::gathering(seed, medium);
        match case.of(Design::FlatLsm).run(&script) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => panic!("gathering on {medium}, seed {seed}: {failure}"),
        }
    }
    println!("{sum:?}");
}

/// An image of a crash: what it is, and the writes that it must have.
struct Taken {
    image: Image,
    what: String,
    least: u32,
}

/// After a crash at any point, the writes that survive are the first ones, whatever their
/// durability, with all up to the last that was acknowledged and is not `Volatile`. A killed
/// process loses none. What an opening has found survives the next crash.
#[test]
fn what_survives_of_gathered_writes_is_a_prefix() {
    for seed in seeds::seeds(3) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let machine = Machine::new(seed, Medium::Dax);
        // Tables of 4 KiB are full after about 30 writes.
        let options = settings::varied(&settings::small_of(Design::FlatLsm, Medium::Dax), 1);
        let db = Place::machine(&machine).open(&options).unwrap();
        // The writes that each crash must leave, and those that a process crash must.
        let known = Arc::new(Mutex::new((0, 0)));
        let taken = Arc::new(Mutex::new(Vec::new()));
        let (hooked, least) = (Arc::clone(&taken), Arc::clone(&known));
        let take = move |machine: &Machine, at: u64| {
            let (least, written) = *least.lock().unwrap();
            let mut taken = hooked.lock().unwrap();
            for survive in [Survive::None, Survive::All, Survive::Random(at)] {
                taken.push(Taken {
                    image: machine.crash_image(survive),
                    what: format!("power loss at {at}, {survive:?}"),
                    least,
                });
            }
            taken.push(Taken {
                image: machine.process_image(),
                what: format!("process crash at {at}"),
                least: written,
            });
        };
        let at_points = take.clone();
        machine.on_persist(Some(Box::new(move |machine, point| {
            at_points(machine, point.index);
        })));
        let (mut lost, mut crashes) = (0, 0);
        for n in 0..150u32 {
            let durability = match rng.u8(0..10) {
                0 => Durability::Sync,
                1..3 => Durability::Buffered,
                _ => Durability::Volatile,
            };
            let bytes_max = [100, 300][usize::from(rng.u8(0..8) == 0)];
            let value = vec![n as u8; rng.usize(..bytes_max)];
            db.put_with(n.to_be_bytes(), &value, durability).unwrap();
            {
                let mut known = known.lock().unwrap();
                known.1 = n + 1;
                if durability != Durability::Volatile {
                    known.0 = n + 1;
                }
            }
            take(&machine, u64::from(1 << 20 | n));
            match rng.u8(0..40) {
                0 => {
                    db.flush().unwrap();
                    known.lock().unwrap().0 = n + 1;
                }
                1 => db.drain().unwrap(),
                _ => {}
            }
            for Taken { image, what, least } in std::mem::take(&mut *taken.lock().unwrap()) {
                let what = format!("seed {seed}, write {n}, {what}");
                let after = Machine::boot(image, seed);
                let found = numbers(&after, &options, &what);
                assert!(found >= least, "{what}: {found} of {least} writes");
                lost += (n + 1).saturating_sub(found);
                crashes += 1;
                if crashes % 4 == 0 {
                    let again = Machine::boot(after.crash_image(Survive::None), seed);
                    assert_eq!(numbers(&again, &options, &what), found, "{what}, twice");
                }
            }
        }
        machine.on_persist(None);
        println!("seed {seed}: {crashes} crashes");
        assert!(lost > 0, "a power loss takes gathered writes");
    }
}

/// Opens the store of a machine and returns how many writes it has, which are the first ones.
fn numbers(machine: &Machine, options: &Options, what: &str) -> u32 {
    let db = Place::machine(machine).open(options);
    let db = db.unwrap_or_else(|e| panic!("{what}: {e}"));
    let keys = db.iter().unwrap().map(|pair| pair.unwrap().into_pair().0);
    let keys: Vec<_> = keys.collect();
    let first = (0..keys.len() as u32).map(|n| n.to_be_bytes().to_vec());
    assert!(first.eq(keys.iter().cloned()), "{what}: {keys:?}");
    keys.len() as u32
}

/// Returns small tables of a design with a pool, with steps by hand.
fn options() -> Options {
    let mut options = settings::small_of(Design::FlatLsm, Medium::Dax);
    options.pool.size_bytes = 16 << 20;
    options.buffer.tables.table_bytes = Some(1 << 20);
    options.bottom.leveled.table_bytes = 64 << 10;
    options.bottom.leveled.level1_bytes = 1 << 20;
    options
}

fn key(n: u32) -> [u8; 4] {
    n.wrapping_mul(2_654_435_761).to_be_bytes()
}

fn value(n: u32, turn: u8) -> Vec<u8> {
    let mut value = vec![turn; 300 + n as usize % 700];
    value[..4].copy_from_slice(&n.to_le_bytes());
    value
}

/// After a crash the logs are the tables again: nothing is copied, in the pool or to files, and
/// overwritten, deleted, expired and ingested keys are as before, whatever the order of the logs.
#[test]
fn an_opening_after_a_crash_copies_nothing() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options()).unwrap();
    let mut model = BTreeMap::new();
    for turn in 0..3u8 {
        for n in (0..1500).filter(|n| n % 3 >= u32::from(turn)) {
            db.put(key(n), value(n, turn)).unwrap();
            model.insert(key(n).to_vec(), value(n, turn));
        }
        // Its log has a higher number than that of the memtable which takes the next writes.
        let mut keys: Vec<_> = (0..1500).filter(|n| n % 7 == 0).map(key).collect();
        keys.sort_unstable();
        let mut ingest = db.ingest().unwrap();
        for key in keys {
            ingest.add(key, [turn + 100; 40]).unwrap();
            model.insert(key.to_vec(), vec![turn + 100; 40]);
        }
        ingest.finish().unwrap();
        for n in (0..1500).filter(|n| n % 11 == 0) {
            db.delete(key(n)).unwrap();
            model.remove(&key(n)[..]);
        }
    }
    db.delete_range(key(1).to_vec()..[key(1), [0xff; 4]].concat())
        .unwrap();
    model.remove(&key(1)[..]);
    let tables = db
        .metrics()
        .levels
        .iter()
        .map(|l| l.table_count)
        .sum::<u64>();
    assert!(tables >= 3, "{}", db.metrics());
    // A copy of the folder is what a killed process leaves.
    let copy = scratch().unwrap();
    for entry in std::fs::read_dir(folder.path())
        .unwrap()
        .map(Result::unwrap)
    {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let again = Db::open(copy.path(), options()).unwrap();
    let report = *again.recovery();
    assert!(!report.clean && report.entries_replayed > 3000, "{report}");
    let metrics = again.metrics();
    assert!(metrics.pm.total().bytes < 256 << 10, "{metrics}");
    assert!(metrics.files.is_empty(), "{metrics}");
    let found: BTreeMap<Vec<u8>, Vec<u8>> = again
        .iter()
        .unwrap()
        .map(|pair| pair.unwrap().into_pair())
        .collect();
    assert!(found == model);
    for n in 0..1500 {
        assert_eq!(
            again.get(key(n)).unwrap().as_ref(),
            model.get(&key(n)[..]),
            "{n}"
        );
    }
    again.drain().unwrap();
    for n in 0..1500 {
        assert_eq!(
            again.get(key(n)).unwrap().as_ref(),
            model.get(&key(n)[..]),
            "{n}"
        );
    }
}

/// Writers that are ahead of drains wait for them by name, and there are never more tables than
/// permitted.
#[test]
fn writers_wait_for_drains() {
    let folder = scratch().unwrap();
    let mut options = options();
    options.buffer.tables.table_bytes = Some(128 << 10);
    options.background.workers = Workers::Threads(1);
    let db = Db::open(folder.path(), options.clone()).unwrap();
    let mut most = 0;
    for n in 0..20_000u32 {
        db.put(key(n % 5000), value(n, 1)).unwrap();
        if n % 100 == 0 {
            let metrics = db.metrics();
            let tables: u64 = metrics.levels.iter().map(|level| level.table_count).sum();
            most = most.max(tables + metrics.sealed_count + 1);
        }
    }
    // One that is taken over while the metrics are read may be counted twice.
    let max = options.buffer.tables.count_max as u64 + 1;
    assert!((5..=max).contains(&most), "{most} tables");
    let metrics = db.metrics();
    let waits = metrics
        .stalls
        .iter()
        .find(|it| it.reason == StallReason::TablesUndrained);
    assert!(waits.is_some_and(|it| it.count > 0), "{metrics}");
}

/// Keys in ascending order are written to level 1 once: tables of it that a drain does not reach
/// stay as they are.
#[test]
fn ascending_keys_are_written_once() {
    let folder = scratch().unwrap();
    let mut options = options();
    options.bottom.leveled.level1_bytes = 64 << 20;
    options.bottom.leveled.values_apart_from = Some(1 << 20);
    let db = Db::open(folder.path(), options).unwrap();
    for n in 0..40_000u32 {
        db.put(n.to_be_bytes(), value(n, 1)).unwrap();
    }
    db.drain().unwrap();
    let metrics = db.metrics();
    let (users, files) = (
        metrics.life.user_written_bytes,
        metrics.life.table_file_bytes,
    );
    assert!(files < users + users / 4, "{metrics}");
}

/// Drains on several threads, with snapshots and range deletes, lose and revive nothing.
#[test]
fn drains_in_parts_agree_with_a_map() {
    for workers in [Workers::Threads(3), Workers::Manual] {
        let folder = scratch().unwrap();
        let mut options = options();
        options.background.workers = workers;
        options.bottom.leveled.subcompactions_max = 4;
        options.bottom.leveled.table_bytes = 16 << 10;
        options.buffer.tables.table_bytes = Some(256 << 10);
        let db = Db::open(folder.path(), options).unwrap();
        let mut model = BTreeMap::new();
        let mut held = Vec::new();
        for turn in 0..8u8 {
            for n in (0..2000).filter(|n| n % 8 >= u32::from(turn) / 2) {
                db.put(key(n), value(n, turn)).unwrap();
                model.insert(key(n).to_vec(), value(n, turn));
            }
            let (from, to) = (key(u32::from(turn) + 1), key(u32::from(turn) + 2));
            let (from, to) = (from.min(to), from.max(to));
            db.delete_range(from..to).unwrap();
            model.retain(|key, _| key.as_slice() < &from[..] || key.as_slice() >= &to[..]);
            if turn % 3 == 0 {
                held.push((db.snapshot().unwrap(), model.clone()));
            }
        }
        db.drain().unwrap();
        for (snapshot, expected) in &held {
            let mut found = BTreeMap::new();
            for pair in snapshot.iter().unwrap() {
                let (key, value) = pair.unwrap().into_pair();
                found.insert(key, value);
            }
            assert!(found == *expected, "{workers:?}: a snapshot has changed");
        }
        let all = db.iter().unwrap().map(|pair| pair.unwrap().into_pair());
        assert!(all.collect::<BTreeMap<_, _>>() == model, "{workers:?}");
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{report:#?}");
    }
}

/// Openings give back what logs of earlier ones have not used: a store that is opened for a few
/// writes again and again needs no space for whole tables.
#[test]
fn an_opening_gives_back_the_rest_of_logs() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let folder = scratch().unwrap();
        let mut options = settings::on(medium, &options());
        options.buffer.tables.flush_count = 24;
        options.buffer.tables.count_max = 28;
        options.buffer.tables.table_bytes = Some(500 << 10);
        for n in 0..20u32 {
            let db = Db::open(folder.path(), options.clone()).unwrap();
            for before in 0..n {
                let found = db.get(key(before)).unwrap();
                assert_eq!(found, Some(value(before, 7)), "{medium}, {before} of {n}");
            }
            db.put(key(n), value(n, 7)).unwrap();
            let metrics = db.metrics();
            // The logs of the active memtable and of a spare are whole.
            let most = (u64::from(n) + 4) * (64 << 10) + 3 * (512 << 10) + (1 << 20);
            assert!(
                metrics.pool.allocated_bytes < most,
                "{medium}, {n}: {metrics}"
            );
            match n % 2 {
                0 => db.close().unwrap(),
                _ => drop(db),
            }
        }
        let db = Db::open(folder.path(), options).unwrap();
        db.drain().unwrap();
        assert_eq!(db.iter().unwrap().count(), 20);
        let report = db.verify(&mut |_| {}).unwrap();
        assert!(report.problems.is_empty(), "{report:#?}");
    }
}

/// Returns how many logs a store has rewritten since it was opened.
fn rewrites(db: &Db) -> u64 {
    let metrics = db.metrics();
    let rewrites = metrics.jobs.iter().find(|job| job.kind == "rewrite");
    rewrites.unwrap().count
}

/// A few keys that are overwritten all the time, with deletes of keys and ranges, values that
/// expire, snapshots and dropped keyspaces, above older versions in table files, are those of an
/// ordered map while their logs are rewritten, and after openings.
#[test]
fn rewritten_logs_agree_with_a_map() {
    let mut count = 0;
    for (seed, medium) in seeds::in_turns(36, &[Medium::Dax, Medium::Mapped]) {
        let mut options = settings::small_of(Design::FlatLsm, medium);
        let is_threaded = seed % 5 == 4;
        if is_threaded {
            options.background.workers = Workers::Threads(1 + seed as usize % 2);
        }
        let folder = scratch().unwrap();
        let oracle = Oracle::new(medium).of(Design::FlatLsm);
        let mut world = World::open(Place::folder(folder.path()), options, 0, oracle).unwrap();
        let mut script = overwrites(seed, 40);
        script.retain(|op| !is_threaded || !matches!(op, Op::Step(..)));
        for op in &script {
            if let Op::Reopen(..) = op {
                count += rewrites(world.db().unwrap());
            }
            let ran = world.run(op);
            ran.unwrap_or_else(|e| panic!("{medium}, seed {seed}: {op:?}: {e}"));
        }
        let checked = world.check_all().and_then(|()| world.check_space());
        checked.unwrap_or_else(|e| panic!("{medium}, seed {seed}: {e}"));
        count += rewrites(world.db().unwrap());
    }
    assert!(count > 200, "{count} rewrites");
}

/// The same after a crash at any point: nothing acknowledged is lost, and nothing deleted is back.
#[test]
fn crashes_of_rewrites_lose_nothing() {
    let mut sum = Tally::default();
    for (seed, medium) in seeds::in_turns(8, &[Medium::Dax, Medium::Mapped]) {
        let (mut case, _) = Case::every_point(seed, medium);
        case.options = settings::small_of(Design::FlatLsm, medium);
        match case.run(&overwrites(seed, 6)) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => panic!("{medium}, seed {seed}: {failure}"),
        }
    }
    println!("{sum:?}");
}

/// Keys that are overwritten for ever stay in the pool: after the first tables, nothing is written
/// to table files, and the pool's use is bounded.
#[test]
fn overwritten_keys_never_reach_files() {
    // A twelfth of a table: with the table of the previous rewrite there is less than eight times
    // as much as both need apart.
    for (hot, workers) in [
        (100, Workers::Manual),
        (200, Workers::Manual),
        (100, Workers::Threads(1)),
        (100, Workers::Threads(3)),
    ] {
        let folder = scratch().unwrap();
        let mut options = options();
        options.background.workers = workers;
        let db = Db::open(folder.path(), options.clone()).unwrap();
        for n in 0..5000 {
            db.put(key(n), value(n, 0)).unwrap();
        }
        db.drain().unwrap();
        let before = db.metrics().life.table_file_bytes;
        for turn in 0..200u8 {
            for n in (0..hot).cycle().take(300) {
                db.put(key(n), value(n, turn)).unwrap();
            }
            let metrics = db.metrics();
            let most = (options.buffer.tables.count_max as u64 + 2) << 20;
            assert!(
                metrics.pool.allocated_bytes < most,
                "{workers:?}: {metrics}"
            );
        }
        let metrics = db.metrics();
        assert_eq!(
            metrics.life.table_file_bytes, before,
            "{workers:?}: {metrics}"
        );
        // Slow threads rewrite several tables at once.
        assert!(rewrites(&db) > 0, "{workers:?}: {metrics}");
        // That many live values of 350 bytes a time, for tables of 1 MiB.
        let merged = metrics.pm.get(terrace_media::Purpose::Merge).bytes;
        assert!(
            merged < metrics.life.user_written_bytes / 6,
            "{workers:?}: {metrics}"
        );
        for n in 0..5000 {
            let turn = if n < hot { 199 } else { 0 };
            assert_eq!(db.get(key(n)).unwrap(), Some(value(n, turn)), "{n}");
        }
    }
}

/// Ends readers when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While logs are rewritten, a reader never finds a version older than one that was found before.
#[test]
fn reads_beside_rewrites_never_go_back() {
    let folder = scratch().unwrap();
    let mut options = options();
    options.buffer.tables.table_bytes = Some(64 << 10);
    options.background.workers = Workers::Threads(1);
    let db = Db::open(folder.path(), options).unwrap();
    let found = |n: u32| {
        let value = db.get(key(n)).unwrap().unwrap();
        u32::from_le_bytes(value[4..8].try_into().unwrap())
    };
    let put = |n: u32, turn: u32| {
        let mut value = value(n, 0);
        value[4..8].copy_from_slice(&turn.to_le_bytes());
        db.put(key(n), value).unwrap();
    };
    (0..4).for_each(|n| put(n, 0));
    db.drain().unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = [0; 4];
                while !ended.load(Ordering::Relaxed) {
                    for n in 0..4 {
                        let turn = found(n);
                        assert!(
                            turn >= last[n as usize],
                            "{turn} after {}",
                            last[n as usize]
                        );
                        last[n as usize] = turn;
                    }
                }
            });
        }
        // Also if a put fails.
        let _end = End(&ended);
        for turn in 1..20_000 {
            put(turn % 4, turn);
        }
    });
    assert!(rewrites(&db) > 20, "{}", db.metrics());
}

/// Within a budget of memory, whose indexes have a limit, logs are rewritten too, and no write is
/// refused for it, even if readers hold replaced tables.
#[test]
fn rewrites_stay_within_a_budget_of_memory() {
    let folder = scratch().unwrap();
    let mut options = options().within(16 << 20, Default::default());
    options.background.workers = Workers::Threads(1);
    let db = Db::open(folder.path(), options).unwrap();
    let mut held = Vec::new();
    for turn in 0..100u8 {
        for n in (0..20).cycle().take(300) {
            db.put(key(n), value(n, turn)).unwrap();
        }
        if turn % 30 == 0 {
            held.push((turn, db.snapshot().unwrap()));
        }
    }
    assert!(rewrites(&db) > 0, "{}", db.metrics());
    for n in 0..20 {
        assert_eq!(db.get(key(n)).unwrap(), Some(value(n, 99)), "{n}");
        for (turn, snapshot) in &held {
            assert_eq!(snapshot.get(key(n)).unwrap(), Some(value(n, *turn)), "{n}");
        }
    }
}

/// A value that the pool may have no space for is invalid, and one up to the limit is written,
/// with default sizes in a pool that is small for them.
#[test]
fn values_larger_than_the_pool_allows_are_invalid() {
    let folder = scratch().unwrap();
    let mut options = settings::default_of(Design::FlatLsm, Medium::Dax);
    options.pool.size_bytes = 128 << 20;
    let db = Db::open(folder.path(), options).unwrap();
    for turn in 0..20u8 {
        let refused = db.put("large", vec![turn; 17 << 20]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        db.put("large", vec![turn; 15 << 20]).unwrap();
    }
    let value = db.get("large").unwrap().unwrap();
    assert!(value == vec![19; 15 << 20]);
}

/// The smallest pool that is accepted takes writes for ever.
#[test]
fn the_smallest_pool_takes_writes() {
    for count_max in [5, 6, 16, 64] {
        let mut options = settings::small_of(Design::FlatLsm, Medium::Mapped);
        options.background.workers = Workers::Threads(1);
        options.buffer.tables = Default::default();
        options.buffer.tables.count_max = count_max;
        let folder = scratch().unwrap();
        let db = (16..).find_map(|pages| {
            options.pool.size_bytes = pages << 12;
            match Db::open(folder.path(), options.clone()) {
                Ok(db) => Some(db),
                Err(e) => {
                    assert!(e.to_string().contains("buffer.tables.count_max"), "{e}");
                    None
                }
            }
        });
        let db = db.unwrap();
        for n in 0..3000 {
            db.put(key(n % 1000), [n as u8; 100])
                .unwrap_or_else(|e| panic!("{count_max} tables, put {n}: {e}"));
        }
        assert_eq!(db.iter().unwrap().count(), 1000);
    }
}

/// Flushes of a few entries take little of a large pool, also after full tables.
#[test]
fn flushes_of_few_entries_take_small_tables() {
    let folder = scratch().unwrap();
    let mut options = settings::default_of(Design::FlatLsm, Medium::Dax);
    options.pool.size_bytes = 2 << 30;
    options.background.workers = Workers::Threads(1);
    let db = Db::open(folder.path(), options).unwrap();
    // Tables that have drained give their space back when their job ends.
    let takes_little = |db: &Db| {
        let ends = Instant::now() + Duration::from_secs(60);
        while db.metrics().pool.allocated_bytes >= 512 << 20 {
            assert!(Instant::now() < ends, "{}", db.metrics());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let flush_few = |db: &Db, turn: u32| {
        for n in 0..6 {
            db.put([turn as u8, n], b"few").unwrap();
            db.flush().unwrap();
        }
    };
    flush_few(&db, 0);
    takes_little(&db);
    for n in 0..300u32 {
        db.put(n.to_be_bytes(), vec![n as u8; 1 << 20]).unwrap();
    }
    db.drain().unwrap();
    for turn in 1..3 {
        flush_few(&db, turn);
    }
    takes_little(&db);
    assert_eq!(db.iter().unwrap().count(), 318);
}

/// The bytes of logs include those of tables, which an opening replays, and the bytes of users
/// include no expiry.
#[test]
fn tables_are_logs_and_expiries_are_not_written_by_users() {
    let folder = scratch().unwrap();
    let db = Db::open(
        folder.path(),
        settings::small_of(Design::FlatLsm, Medium::Dax),
    )
    .unwrap();
    for n in 0..100u8 {
        db.put_with_ttl([n], [n; 200], Duration::from_secs(9000))
            .unwrap();
    }
    db.flush().unwrap();
    let metrics = db.metrics();
    assert!(metrics.log_bytes > 100 * 200, "{metrics}");
    assert_eq!(metrics.user_written_bytes, 100 * 201, "{metrics}");
}
