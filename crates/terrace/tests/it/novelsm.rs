//! NoveLSM: every other memtable is in the pool and is its own log, and nobody notices.

use terrace::inspect::{self, LogPiece, LogPlace};
use terrace::{Db, Design, Durability, Options, RepairOutcome, RepairSource, WriteBatch};
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::{settings, space};

use crate::buffer_only::{crashes_of, random_calls_of};

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];
const DESIGNS: [Design; 2] = [Design::NoveLsm, Design::NoveLsmNoSst];

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
    assert_ne!(report.outcome, RepairOutcome::Partly, "{report:#?}");
    let repaired = Db::builder(at("repaired")).open().unwrap();
    assert_eq!(all(&repaired), expected);
    let opened = Db::builder(at("copy")).open().unwrap();
    assert_eq!(all(&opened), expected);
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
