//! Tests of the engine as a whole, with steps run by hand.

use crate::{Db, Design, Options, Workers};

/// A database whose bottom has an extent that is worth emptying only when space is short.
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

/// A job that nobody has looked for yet is no reason to say that nothing can free space.
#[test]
fn a_job_nobody_has_looked_for_is_found() {
    let (_folder, db) = with_some_dead();
    let engine = db.engine();
    let usage = engine.ground.pool.usage();
    // Space is short from here on, and no job has been looked for since.
    let taken = engine.ground.pool.alloc(usage.largest_free - (300 << 10));
    assert!(!engine.is_stuck().unwrap());
    // BOUND: each step of a job frees space or comes closer to it.
    while engine.step(0).unwrap() {}
    assert!(engine.is_stuck().unwrap());
    drop(taken);
}
