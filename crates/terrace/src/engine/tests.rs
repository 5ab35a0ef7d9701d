//! Tests of the engine as a whole, with steps run by hand.

use crate::parts::sstable::FileMeta;
use crate::{Db, Design, Options, Workers};

/// Returns a database whose bottom has an extent that is worth emptying only when space is short.
fn with_some_dead() -> (tempfile::TempDir, Db) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options {
        design: Some(Design::MioDb),
        ..Options::default()
    };
    options.pool.path = None;
    options.pool.size_bytes = 2 << 20;
    options.front.memtable_bytes = 8 << 10;
    options.bottom.extent_bytes = 16 << 10;
    options.background.workers = Workers::Manual;
    let db = Db::open(folder.path(), options).unwrap();
    // The second time a quarter of it, spread over all extents.
    for count in [200, 50u32] {
        for n in 0..count {
            db.put((n * 37 % 200).to_be_bytes(), vec![1; 900]).unwrap();
        }
        db.drain().unwrap();
    }
    (folder, db)
}

/// While a job exists that no thread has looked for, callers are not told that nothing can free
/// space.
#[test]
fn a_job_without_a_search_is_found() {
    let (_folder, db) = with_some_dead();
    let engine = db.engine();
    let usage = engine.shared.pool.usage();
    // Space is short from here on, and no thread has looked for a job since.
    let taken = engine.shared.pool.alloc(usage.largest_free - (300 << 10));
    assert!(engine.goes_on(true).unwrap());
    // BOUND: each step of a job frees space or comes closer to it.
    while engine.step(0).unwrap() {}
    assert!(!engine.goes_on(true).unwrap());
    drop(taken);
}

/// A moment is walked completely and without later entries, whatever moves down meanwhile: into
/// files if there were none, and out of tables that are merged and drained.
#[test]
fn a_moment_stays_as_it_was() {
    use crate::parts::iter::Cursor;
    use crate::parts::key::Target;
    use crate::types::DEFAULT_KEYSPACE;

    for design in crate::Design::ALL {
        let folder = tempfile::tempdir().unwrap();
        let mut options = crate::testing::small_options();
        options.design = Some(design);
        // The first time all entries are in the memtable, in more than one chunk.
        options.front.memtable_bytes = 512 << 10;
        options.pool.size_bytes = 32 << 20;
        let db = Db::open(folder.path(), options).unwrap();
        for drained in [false, true] {
            for n in 0..3000u32 {
                let value = [u8::from(drained); 30];
                db.put(n.to_be_bytes(), value).unwrap();
                match n {
                    1000 if drained => db.drain().unwrap(),
                    2000 if drained => db.flush().unwrap(),
                    _ => {}
                }
            }
            let frozen = db.engine().freeze().unwrap();
            let in_files = !frozen.files().is_empty();
            let mut cursor = frozen.cursor();
            cursor.seek(&Target::first_of(0, &[])).unwrap();
            let mut beside_files = 0;
            while let Some(entry) = cursor.entry().unwrap() {
                let later = cursor.value().unwrap().bytes != [u8::from(drained); 30];
                assert!(!later || entry.keyspace != DEFAULT_KEYSPACE, "{design}");
                beside_files += u32::from(entry.keyspace == DEFAULT_KEYSPACE);
                if beside_files == 100 {
                    for n in 0..6000u32 {
                        db.put(n.to_be_bytes(), "later").unwrap();
                    }
                    db.drain().unwrap();
                }
                cursor.advance().unwrap();
            }
            match in_files {
                false => assert_eq!(beside_files, 3000, "{design}"),
                true => assert!(drained && (900..2100).contains(&beside_files), "{design}"),
            }
            for n in 0..6000u32 {
                db.delete(n.to_be_bytes()).unwrap();
            }
            drop(cursor);
        }
    }
}

/// While the pool is short and level 0 is not, a compaction gives way to a drain, and only then.
#[test]
fn compactions_give_way_to_drains() {
    use crate::stages::{JobKind, Urgency};

    let folder = tempfile::tempdir().unwrap();
    let mut options = crate::testing::small_options();
    options.design = Some(Design::MioDbSsd);
    options.pool.path = None;
    options.pool.medium = crate::MediumChoice::Auto;
    options.front.memtable_bytes = 64 << 10;
    // Enough levels that no merge is due.
    options.buffer.levels = 8;
    let db = Db::open(folder.path(), options).unwrap();
    let engine = db.engine();
    let mut seen = [0, 0];
    for n in 0..10_000u32 {
        db.put(n.wrapping_mul(0x9E37_79B9).to_be_bytes(), vec![1; 500])
            .unwrap();
        let short = engine.headroom().urgency() == Urgency::Space;
        let expected = [
            short && engine.stages.bottom.need().part == 0.0,
            false,
            false,
        ];
        if engine.stages.bottom.need().part == 0.0 {
            let kinds = [JobKind::Compact, JobKind::Drain, JobKind::Merge];
            assert_eq!(kinds.map(|kind| engine.should_give_way(kind)), expected);
            seen[usize::from(short)] += 1;
        }
    }
    assert!(
        seen[0] > 100 && seen[1] > 100,
        "{seen:?} {:?}",
        engine.headroom()
    );
}

/// No number is given out twice, whenever the process ends: the run of an ingest has a number that
/// is drawn after those of its tables, and reusing it would mix it up with a later run.
#[test]
fn numbers_of_runs_are_given_out_once() {
    for design in Design::ALL.into_iter().filter(|d| d.keeps_table_files()) {
        let folder = tempfile::tempdir().unwrap();
        let mut options = crate::testing::small_options();
        options.design = Some(design);
        let db = Db::open(folder.path(), options).unwrap();
        let mut ingest = db.ingest().unwrap();
        for n in 100..200u32 {
            ingest.add(n.to_be_bytes(), "v").unwrap();
        }
        // Draws numbers between the tables of an ingest and its end.
        db.put("a", "b").unwrap();
        db.flush().unwrap();
        ingest.finish().unwrap();
        let state = &db.engine().shared.manifest;
        let (next, last) = state.with_state(|state| {
            let files = state.items::<FileMeta>();
            let last = files.map(|file| file.number.max(file.run)).max();
            (state.next_id, last)
        });
        assert!(last.is_some_and(|last| next > last), "{next}, {last:?}");
    }
}

/// While a table is larger than usual, the space for its drain is not given to puts.
#[test]
fn the_reserve_follows_the_largest_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = crate::testing::small_options();
    options.design = Some(Design::MioDb);
    options.pool.size_bytes = 12 << 20;
    options.front.memtable_bytes = 32 << 10;
    options.buffer.levels = 8;
    options.background.workers = Workers::Manual;
    let usual = options.table_bytes_max();
    let db = Db::open(folder.path(), options).unwrap();
    let engine = db.engine();
    let spare = engine.stages.spare_bytes(None);
    // The least free space with which puts get another memtable, in pieces of 16 KiB.
    const PIECE: u64 = 16 << 10;
    let least = || {
        let mut taken = Vec::new();
        // BOUND: each turn takes a piece of the pool.
        while engine.headroom().allows(spare) {
            taken.push(engine.shared.pool.alloc(PIECE).unwrap());
        }
        engine.shared.pool.usage().free
    };
    let before = least();
    for n in 0..2200u32 {
        db.put(n.to_be_bytes(), vec![n as u8; 1000]).unwrap();
        // BOUND: each step does some of the work.
        while n % 31 == 0 && engine.step(0).unwrap() {}
    }
    while engine.step(0).unwrap() {}
    let largest = engine.stages.table_bytes_largest();
    assert!(largest > usual + usual / 4, "{largest}");
    let more = least() - before;
    assert!(
        (largest - usual).abs_diff(more) <= PIECE,
        "{more} for {largest}"
    );
}

/// Deletes in memory are flushed even if no piece of the pool is as long as a memtable: otherwise
/// they free nothing, and no caller can do anything about it.
#[test]
fn deletes_are_flushed_into_short_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = crate::testing::small_options();
    options.design = Some(Design::MioDb);
    options.front.memtable_bytes = 40 << 10;
    let db = Db::open(folder.path(), options).unwrap();
    for n in 0..30u32 {
        db.put(n.to_be_bytes(), vec![1; 900]).unwrap();
    }
    db.drain().unwrap();
    for n in 0..30u32 {
        db.delete(n.to_be_bytes()).unwrap();
    }
    let pool = &db.engine().shared.pool;
    let pieces: Vec<_> = std::iter::from_fn(|| pool.alloc(16 << 10).ok()).collect();
    let (kept, freed): (Vec<_>, Vec<_>) =
        (pieces.into_iter().enumerate()).partition(|(at, _)| at % 2 == 0);
    drop(freed);
    assert!(pool.usage().free > 500 << 10 && pool.usage().largest_free < 40 << 10);
    db.flush().unwrap();
    db.delete([1]).unwrap();
    db.flush().unwrap();
    drop(kept);
    db.drain().unwrap();
    assert_eq!(db.iter().unwrap().count(), 0);
}

/// A row whose flush had to let the older row go, since the pool was full, has pointers up to there
/// and none after it. It is sound, and its keys are found.
#[test]
fn a_row_without_all_pointers_is_sound() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = crate::testing::small_options();
    options.design = Some(Design::MatrixKv);
    options.front.memtable_bytes = 512 << 10;
    options.pool.size_bytes = 8 << 20;
    let db = Db::open(folder.path(), options).unwrap();
    let fill = |round: u8| {
        for n in 0..300u32 {
            db.put(n.to_be_bytes(), [round; 1000]).unwrap();
        }
    };
    fill(1);
    db.flush().unwrap();
    fill(2);
    // Enough for the next memtable, and for a part of the row.
    let pool = &db.engine().shared.pool;
    let least = (512 << 10) / 4 * 5 + (200 << 10);
    let pieces = std::iter::from_fn(|| {
        let is_left = pool.usage().free > least + (64 << 10);
        is_left.then(|| pool.alloc(64 << 10).unwrap())
    });
    let pieces: Vec<_> = pieces.collect();
    let _ = db.flush();
    drop(pieces);
    db.flush().unwrap();
    let verified = db.verify(&mut |_| {}).unwrap();
    assert_eq!(verified.problems, Vec::<String>::new());
    for n in 0..300u32 {
        assert_eq!(db.get(n.to_be_bytes()).unwrap(), Some(vec![2; 1000]));
    }
}
