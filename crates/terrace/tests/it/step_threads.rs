//! Jobs whose steps run on several threads leave durable bytes.

use terrace::{Db, Workers};
use terrace_media::{Machine, Medium, Survive};
use terrace_testkit::place::Place;
use terrace_testkit::settings;

/// Runs every step of background work on another thread. Returns the number of steps.
fn step_apart(db: &Db) -> u64 {
    let mut steps = 0;
    let step = || {
        let stepped = std::thread::scope(|scope| scope.spawn(|| db.step(0)).join());
        stepped.expect("a step does not panic").unwrap()
    };
    // BOUND: work ends if nothing is written.
    while step() {
        steps += 1;
        assert!(steps < 100_000, "work does not end");
    }
    steps
}

/// A loss of power after flushes, merges, drains and reclaims takes nothing that was acknowledged,
/// whichever threads ran their steps.
#[test]
fn steps_on_several_threads_are_durable() {
    for design in settings::designs_in_pool() {
        let machine = Machine::new(7, Medium::Dax);
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 12 << 20;
        // A flush takes several steps.
        options.front.memtable_bytes = 1 << 20;
        options.background.workers = Workers::Manual;
        let db = Place::machine(&machine).open(&options).unwrap();
        let key = |n: u32| (n * 7 % 900).to_be_bytes();
        let mut steps = 0;
        for n in 0..6000u32 {
            db.put(key(n), [n as u8; 1000]).unwrap();
            if n % 1000 == 999 {
                steps += step_apart(&db);
                let next = Machine::boot(machine.crash_image(Survive::None), 0);
                let again = Place::machine(&next).open(&options).unwrap();
                let last = |k: u32| (0..=n).rev().find(|m| key(*m) == key(k));
                for k in 0..900.min(n + 1) {
                    let found = again.get(key(k)).unwrap();
                    let wanted = last(k).map(|m| vec![m as u8; 1000]);
                    assert_eq!(found, wanted, "{design}: key {k} after {n}");
                }
                let problems = again.verify(&mut |_| {}).unwrap().problems;
                assert!(problems.is_empty(), "{design}: {problems:?}");
            }
        }
        assert!(steps > 30, "{design}: {steps} steps");
    }
}
