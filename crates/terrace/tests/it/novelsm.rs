//! NoveLSM: every other memtable is in the pool and is its own log, and nobody notices.

use std::os::unix::fs::FileExt;

use terrace::inspect::{self, LogPiece, LogPlace};
use terrace::{
    Db, Design, Durability, ErrorKind, Options, RepairOutcome, RepairSource, Sizes, WriteBatch,
};
use terrace_media::{Machine, Medium, Survive};
use terrace_testkit::damage::{Specimen, Tally};
use terrace_testkit::place::scratch;
use terrace_testkit::{lists, seeds, settings, space};

use crate::buffer_only::{crashes_of, random_calls_of};

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];
const DESIGNS: [Design; 3] = [Design::NoveLsm, Design::NoveLsmNoSst, Design::NoveLsmHier];

/// After random calls, with manual steps and with threads, the store equals an ordered map.
#[test]
fn random_calls_agree_with_a_map() {
    for design in DESIGNS {
        random_calls_of(design, 9, &MEDIA, 1, |_| {});
    }
}

/// After a crash at any point of short scripts, nothing acknowledged is lost.
#[test]
fn crashes_lose_nothing() {
    for design in DESIGNS {
        crashes_of(design, &MEDIA, |options| {
            options.front.memtable_bytes = 4 << 10;
        });
    }
}

fn options(medium: Medium) -> Options {
    settings::small_of(Design::NoveLsm, medium)
}

/// Returns all pairs.
fn all(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = db.iter().unwrap().map(|pair| pair.unwrap());
    pairs
        .map(|pair| (pair.key().to_vec(), pair.value().to_vec()))
        .collect()
}

/// A memtable in DRAM is followed by a list in the pool, and that by one in DRAM: the manifest
/// names both kinds of logs, and a database that was closed or dropped while either is active has
/// all of it, batches and deletes too.
#[test]
fn memtables_take_turns() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let folder = scratch().unwrap();
        let (mut lists, mut others) = (0, 0);
        let mut expected = std::collections::BTreeMap::new();
        for turn in 0..60u32 {
            let db = Db::open(folder.path(), options(medium)).unwrap();
            assert!(all(&db).into_iter().eq(expected.clone()), "{medium} {turn}");
            let active = |db: &Db| db.metrics().memtable_bytes;
            for n in 0..40 + turn {
                let mut batch = WriteBatch::new();
                for key in [n * 7 % 300, n * 11 % 300, 1000 + turn] {
                    let value = [turn as u8; 60];
                    batch.put(key.to_be_bytes(), value);
                    expected.insert(key.to_be_bytes().to_vec(), value.to_vec());
                }
                let gone = (n * 13 % 300).to_be_bytes();
                batch.delete(gone);
                expected.remove(&gone[..]);
                db.write(batch, Durability::Buffered).unwrap();
            }
            assert!(active(&db) > 0);
            for place in inspect::logs(folder.path()).unwrap() {
                match place {
                    LogPlace::List { .. } => lists += 1,
                    _ => others += 1,
                }
            }
            if turn % 2 == 0 {
                db.close().unwrap();
            }
        }
        assert!(
            lists > 10 && others > 10,
            "{lists} and {others} on {medium}"
        );
    }
}

/// Endless overwriting in a small pool goes on: the space of lists comes back, with table files and
/// without.
#[test]
fn space_comes_back() {
    for design in DESIGNS {
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 8 << 20;
        space::overwrite(&options, 27, 6000).unwrap_or_else(|e| panic!("{design}: {e}"));
    }
}

/// Inspection and repair find the entries that a list has at the moment of a crash.
#[test]
fn lists_are_inspected_and_repaired() {
    let folder = scratch().unwrap();
    let at = |name: &str| folder.path().join(name);
    let db = Db::open(at("db"), options(Medium::Dax)).unwrap();
    let mut in_lists = 0;
    let mut n = 0u32;
    // BOUND: one memtable in DRAM is full after a few hundred pairs.
    while in_lists < 20 {
        let mut batch = WriteBatch::new();
        for _ in 0..2 {
            batch.put(n.to_be_bytes(), [n as u8; 100]);
            n += 1;
        }
        db.write(batch, Durability::Buffered).unwrap();
        if n > 60 {
            in_lists = entries_in_lists(&at("db"));
        }
    }
    db.delete(7u32.to_be_bytes()).unwrap();
    let expected = all(&db);
    assert_eq!(expected.len() as u32, n - 1);
    std::fs::create_dir(at("copy")).unwrap();
    for entry in std::fs::read_dir(at("db")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "LOCK" {
            std::fs::copy(entry.path(), at("copy").join(entry.file_name())).unwrap();
        }
    }
    let report = Db::builder(at("repaired"))
        .repair_of(&RepairSource::new(at("copy")))
        .unwrap();
    // The list has no recorded end, and damage there looks like that of a crash.
    assert_eq!(report.outcome, RepairOutcome::Uncertain, "{report:#?}");
    let is_told = |loss: &terrace::Loss| {
        !loss.certain && loss.problem == "more entries may have followed the last one"
    };
    let mut of_lists = report.losses.iter().filter(|loss| loss.kind == "buffer");
    assert!(of_lists.all(is_told), "{report:#?}");
    assert!(
        report.losses.iter().any(|loss| loss.kind == "buffer"),
        "{report:#?}"
    );
    let repaired = Db::builder(at("repaired")).open().unwrap();
    assert_eq!(all(&repaired), expected);
    let mut options = Options::load(at("copy")).unwrap().unwrap();
    for read_only in [true, false] {
        options.read_only = read_only;
        let opened = Db::open(at("copy"), options.clone()).unwrap();
        assert_eq!(all(&opened), expected, "read-only: {read_only}");
    }
}

/// An inspection of a damaged list shows the records before the damage, and its place.
#[test]
fn an_inspection_shows_where_a_list_is_damaged() {
    let folder = scratch().unwrap();
    let db = Db::open(folder.path(), options(Medium::Dax)).unwrap();
    lists::begin_list(&db, 1).unwrap();
    for n in 0u32..100 {
        db.put(n.to_be_bytes(), [n as u8; 100]).unwrap();
    }
    let places = inspect::logs(folder.path()).unwrap();
    let list = places.iter().find_map(|place| match place {
        LogPlace::List { id, path, .. } => Some((*id, path.clone())),
        _ => None,
    });
    let (id, pool) = list.unwrap();
    let records_of = |pool: &std::path::Path| {
        let (mut records, mut problems) = (Vec::new(), Vec::new());
        inspect::pool_log::<terrace::Error>(pool, id, &mut |piece| {
            match piece {
                LogPiece::Record { offset, .. } => records.push(offset),
                LogPiece::Problem(found) => problems.push(found.offset),
                _ => {}
            }
            Ok(())
        })
        .unwrap();
        (records, problems)
    };
    let (records, problems) = records_of(&pool);
    assert_eq!((records.len(), problems), (100, vec![]));
    let damaged = folder.path().join("damaged");
    for at in [0, 1, 50] {
        std::fs::copy(&pool, &damaged).unwrap();
        let file = std::fs::File::options().write(true).open(&damaged).unwrap();
        file.write_all_at(&[0xa5; 8], records[at] + 64).unwrap();
        assert_eq!(
            records_of(&damaged),
            (records[..at].to_vec(), vec![records[at]])
        );
    }
}

/// Damage of lists that are logs, and of all else, is found or harmless, and repairs report what is
/// lost.
#[test]
fn damage_is_found_or_harmless() {
    let mut tally = Tally::default();
    // A page with the end of a list.
    let specimen = Specimen::of(Design::NoveLsmNoSst, 0x6b).unwrap();
    specimen.run(69).unwrap();
    for (seed, &design) in (0..6 * seeds::times()).zip(DESIGNS.iter().cycle()) {
        let specimen = Specimen::of(design, seed).unwrap();
        specimen.repair_undamaged().unwrap();
        for case in 0..40 {
            match specimen.run(case) {
                Ok((kind, class)) => tally.count(kind, class),
                Err(failure) => panic!("{design}: {failure}"),
            }
        }
    }
    println!("{tally}");
}

/// Returns the number of entries in lists that are logs, each in a batch of two.
fn entries_in_lists(folder: &std::path::Path) -> usize {
    let mut count = 0;
    for place in inspect::logs(folder).unwrap() {
        let LogPlace::List { id, .. } = place else {
            continue;
        };
        let found = inspect::pool_log::<terrace::Error>(folder, id, &mut |piece| {
            if let LogPiece::Record { entries, .. } = piece {
                assert_eq!(entries.len(), 2);
                count += entries.len();
            }
            Ok(())
        });
        assert_eq!(found.unwrap().problems, 0);
    }
    count
}

/// Entries that a killed process wrote and did not fence are there after a power loss too, once
/// a reader has seen them.
#[test]
fn what_is_read_after_a_kill_survives_a_power_loss() {
    let machine = Machine::new(71, Medium::Dax);
    let db = lists::open(&machine).unwrap();
    lists::begin_list(&db, 1).unwrap();
    db.put([1; 8], [1; 40]).unwrap();
    let take = |machine: &Machine| vec![machine.process_image()];
    let killed = lists::images(&machine, take, || {
        let mut batch = WriteBatch::new();
        for n in 2..9 {
            batch.put([n; 8], [n; 40]);
        }
        db.write(batch, Durability::Buffered).unwrap();
        Ok(())
    });
    let mut unfenced = 0;
    for (seed, image) in (0..).zip(killed.unwrap()) {
        let machine = Machine::boot(image, seed);
        let db = lists::open(&machine).unwrap();
        let seen = all(&db);
        unfenced += usize::from(seen.len() == 9);
        let after = Machine::boot(machine.crash_image(Survive::None), seed);
        assert_eq!(all(&lists::open(&after).unwrap()), seen);
    }
    assert!(unfenced > 0, "no image has the batch before its fence");
}

/// Nodes that a power loss left behind the end of a list are never taken for entries of another.
#[test]
fn numbers_of_lost_nodes_are_not_used_again() {
    assert!(lists::reused().unwrap() > 0, "no list ends at such a node");
}

/// Links that a power loss took are made although the recovery after it was killed.
#[test]
fn lost_links_are_made_after_a_kill() {
    let kills = lists::interrupted(73).unwrap();
    assert!(kills > 20, "{kills}");
}

/// In the hierarchical mode memtables are copied into one table in the pool, which leaves for files
/// when it is full, all at once.
#[test]
fn memtables_are_copied_into_one_table() {
    for medium in MEDIA {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(Design::NoveLsmHier, medium);
        options.pool.size_bytes = 16 << 20;
        options.front.log_bytes_max = 16 << 20;
        options.front.pm_memtable_bytes = Some(256 << 10);
        let mut largest = 0;
        let mut left = 0;
        let db = Db::open(folder.path(), options).unwrap();
        for n in 0..12_000u32 {
            db.put((n * 7919 % 12_000).to_be_bytes(), [n as u8; 100])
                .unwrap();
            if n % 60 > 0 {
                continue;
            }
            while db.step(0).unwrap() {}
            let metrics = db.metrics();
            let count: u64 = metrics.levels.iter().map(|level| level.table_count).sum();
            assert!(count <= 1, "{medium}: {metrics:#?}");
            let bytes = metrics.levels.iter().map(|level| level.bytes).sum();
            if bytes < largest {
                left += 1;
                assert!(largest > 200 << 10, "{medium}: left at {largest}");
                let files = &metrics.files;
                assert!(files.iter().any(|level| level.file_count > 0), "{medium}");
            }
            largest = bytes;
        }
        assert!(left >= 4, "{medium}: left {left} times");
        assert_eq!(all(&db).len(), 12_000);
    }
}

/// The memtable in the pool has the stated size, and sizes that the pool has no space for are
/// refused by name.
#[test]
fn the_size_of_the_memtable_in_the_pool_is_as_stated() {
    for bytes in [64 << 10, 192 << 10, 512 << 10] {
        let folder = scratch().unwrap();
        let mut options = options(Medium::Dax);
        options.front.pm_memtable_bytes = Some(bytes);
        let db = Db::open(folder.path(), options.clone()).unwrap();
        assert_eq!(db.options().front.pm_memtable_bytes, Some(bytes));
        lists::begin_list(&db, 1).unwrap();
        let mut largest = 0;
        let is_after = |db: &Db| {
            let metrics = db.metrics();
            metrics.memtable_bytes > metrics.pm_memtable_bytes
        };
        // BOUND: it is full before as many bytes of values are in it.
        for n in 0u32.. {
            db.put(n.to_be_bytes(), [7; 100]).unwrap();
            if is_after(&db) {
                break;
            }
            largest = db.metrics().pm_memtable_bytes;
        }
        assert!(
            (bytes - 1024..=bytes).contains(&largest),
            "{largest} of {bytes}"
        );
        drop(db);
        let stored = Options::load(folder.path()).unwrap().unwrap();
        assert_eq!(stored.front.pm_memtable_bytes, Some(bytes));
        for bad in [0, 4095, (options.pool.size_bytes / 4) + 1] {
            options.front.pm_memtable_bytes = Some(bad);
            let refused = Db::open(folder.path(), options.clone()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            let text = refused.to_string();
            for part in [
                "front.pm_memtable_bytes (--pm-memtable-size) is ",
                &bad.to_string(),
                "4 KiB to 524288",
                "--pool-size",
            ] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
    // In other designs it means nothing.
    let mut options = options(Medium::Dax);
    options.design = Some(Design::MioDb);
    options.front.pm_memtable_bytes = Some(1);
    options.validate().unwrap();
}

/// A budget of memory refuses no batch that a memtable in DRAM takes, even if the next memtable is
/// a list in the pool that is too small for it.
#[test]
fn a_budget_takes_what_fits_a_memtable_but_no_list() {
    for design in [Design::NoveLsm, Design::NoveLsmNoSst] {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 64 << 20;
        options = options.within(16 << 20, Sizes::default());
        options.front.pm_memtable_bytes = Some(16 << 10);
        let db = Db::open(folder.path(), options).unwrap();
        let value = |n: u32| vec![n as u8; 20_000];
        let mut lists = 0;
        for n in 0u32..4000 {
            db.put(n.to_be_bytes(), [n as u8; 100]).unwrap();
            lists += u32::from(db.metrics().pm_memtable_bytes > 0);
        }
        assert!(lists > 0, "{design:?}: no list was ever active");
        for n in 0u32..200 {
            db.put((n + 4000).to_be_bytes(), value(n)).unwrap();
        }
        for n in 0u32..200 {
            let read = db.get((n + 4000).to_be_bytes()).unwrap();
            assert_eq!(read, Some(value(n)), "{design:?} {n}");
        }
    }
}
