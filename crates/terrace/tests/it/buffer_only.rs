//! A design whose buffer keeps all data passes the suites of the other designs: the engine works
//! without a bottom.

use terrace::{Db, Design, Options, Workers};
use terrace_media::Medium;
use terrace_testkit::crash::{Case, Tally};
use terrace_testkit::model::run;
use terrace_testkit::place::scratch;
use terrace_testkit::script::{Op, Profile};
use terrace_testkit::{seeds, settings};

const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];

/// After random calls, with manual steps and with threads, the store equals an ordered map.
#[test]
fn random_calls_agree_with_a_map() {
    // Nothing releases space.
    random_calls_of(Design::BufferOnly, 36, &MEDIA, 1, |options| {
        options.pool.size_bytes = 32 << 20;
    });
}

/// Compares a design with an ordered map after random calls, in a third of the cases with
/// `threads`. `set` changes the options of a case.
pub(crate) fn random_calls_of(
    design: Design,
    cases: u64,
    media: &[Medium],
    threads: usize,
    set: impl Fn(&mut Options),
) {
    for (seed, medium) in seeds::in_turns(cases, media) {
        let mut options = settings::varied(&settings::small_of(design, medium), seed as u8);
        set(&mut options);
        let mut script = Profile::everything(800).generate(seed);
        if seed % 3 == 2 {
            options.background.workers = Workers::Threads(threads);
            script.retain(|op| !matches!(op, Op::Step(..)));
        }
        run(&options, medium, &script)
            .unwrap_or_else(|failure| panic!("{design} on {medium}, seed {seed}: {failure}"));
    }
}

/// After a crash at any point of short scripts, nothing acknowledged is lost.
#[test]
fn crashes_lose_nothing() {
    crashes_of(Design::BufferOnly, &MEDIA, |options| {
        options.pool.size_bytes = 8 << 20;
    });
}

/// Crashes short scripts on a design at every point. `set` changes the options of a case.
pub(crate) fn crashes_of(design: Design, media: &[Medium], set: impl Fn(&mut Options)) {
    let mut sum = Tally::default();
    for (seed, medium) in seeds::in_turns(6, media) {
        let (mut case, script) = Case::every_point(seed, medium);
        set(&mut case.options);
        match case.of(design).run(&script) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => panic!("{design} on {medium}, seed {seed}: {failure}"),
        }
    }
    println!("{sum:?}");
}

/// Calls that need a bottom return: a drain and a compaction do nothing, and a checkpoint, a copy
/// of it and a repair contain everything.
#[test]
fn calls_that_move_data_down_end() {
    for medium in MEDIA {
        let folder = scratch().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut options = settings::small_of(Design::BufferOnly, medium);
        options.pool.size_bytes = 16 << 20;
        options.background.workers = Workers::Threads(1);
        let db = Db::open(at("db"), options.clone()).unwrap();
        let events = db.create_keyspace("events").unwrap();
        for n in 0..3000u32 {
            db.put(n.to_be_bytes(), [n as u8; 100]).unwrap();
            events.put(n.to_be_bytes(), b"event").unwrap();
        }
        db.delete_range(500u32.to_be_bytes()..1000u32.to_be_bytes())
            .unwrap();
        for n in 1000..1200u32 {
            db.delete(n.to_be_bytes()).unwrap();
        }
        db.flush().unwrap();
        db.drain().unwrap();
        db.compact_range::<&[u8]>(..).unwrap();
        let metrics = db.metrics();
        assert!(metrics.levels.iter().any(|level| level.table_count > 0));
        assert_eq!(metrics.bottom.used_bytes, 0);
        let all = |db: &Db| -> Vec<(Vec<u8>, Vec<u8>)> {
            let pairs = db.iter().unwrap().map(|pair| pair.unwrap());
            pairs
                .map(|pair| (pair.key().to_vec(), pair.value().to_vec()))
                .collect()
        };
        let before = all(&db);
        assert_eq!(before.len(), 3000 - 500 - 200, "{medium}");
        db.checkpoint(at("copy")).unwrap();
        db.close().unwrap();
        let copy = Db::open(at("copy"), options.clone()).unwrap();
        assert_eq!(all(&copy), before, "the checkpoint on {medium}");
        let events = copy.keyspace("events").unwrap().unwrap();
        assert_eq!(events.iter().unwrap().count(), 3000);
        let verified = copy.verify(&mut |_| {}).unwrap();
        assert_eq!(verified.problems, Vec::<String>::new());
        copy.close().unwrap();
        let db = Db::open(at("db"), options).unwrap();
        assert_eq!(all(&db), before, "reopened on {medium}");
    }
}
