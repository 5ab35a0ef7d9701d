//! A database whose medium changes from one open to the next: a pool that is copied to another file
//! system, or opened with another choice of medium.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use terrace::{Db, Design, Durability, WriteBatch};
use terrace_media::{Image, Machine, Medium, PersistPoint, Survive};
use terrace_testkit::{seeds, settings};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The content before the write in flight, and after it.
#[derive(Default, Clone)]
struct Known {
    before: Pairs,
    after: Pairs,
}

/// Writes a few batches, all durable against power loss.
fn write(db: &Db, rng: &mut fastrand::Rng, known: &Mutex<Known>) {
    for _ in 0..rng.usize(1..120) {
        let mut batch = WriteBatch::new();
        let key = rng.u16(..200).to_be_bytes().to_vec();
        let value = (rng.u8(..4) > 0).then(|| vec![rng.u8(..); rng.usize(..600)]);
        {
            let mut known = known.lock().unwrap();
            match value {
                None => {
                    batch.delete(&key);
                    known.after.remove(&key);
                }
                Some(value) => {
                    batch.put(&key, &value);
                    known.after.insert(key, value);
                }
            }
        }
        db.write(batch, Durability::Sync).unwrap();
        let mut known = known.lock().unwrap();
        known.before = known.after.clone();
        drop(known);
        match rng.u8(..40) {
            0 => db.drain().unwrap(),
            1 => db.flush().unwrap(),
            _ => {}
        }
    }
}

/// Ends a life in a random way.
fn stop(machine: &Machine, rng: &mut fastrand::Rng) -> Image {
    match rng.u8(..5) {
        0 | 1 => machine.process_image(),
        2 => machine.crash_image(Survive::None),
        _ => machine.crash_image(Survive::Random(rng.u64(..))),
    }
}

/// Ends the life at one of its persist points, possibly one of the open, if it reaches that many.
fn stop_at(
    machine: &Machine,
    rng: &mut fastrand::Rng,
    known: &Arc<Mutex<Known>>,
) -> Arc<Mutex<Option<(Image, Known)>>> {
    let ended = Arc::new(Mutex::new(None));
    let mut left = 1 << rng.u32(..12);
    let mut rng = rng.fork();
    let look = {
        let (machine, known, ended) = (machine.clone(), Arc::clone(known), Arc::clone(&ended));
        move |_: &Machine, _: PersistPoint| {
            left -= 1;
            if left == 0 {
                let image = stop(&machine, &mut rng);
                *ended.lock().unwrap() = Some((image, known.lock().unwrap().clone()));
            }
        }
    };
    machine.on_persist(Some(Box::new(look)));
    ended
}

/// On any medium, after any medium at the time the process or the machine stopped, nothing is lost,
/// nothing reappears, and every part is sound.
#[test]
fn the_medium_may_change() {
    let mut lives = 0;
    for (seed, design) in seeds::in_turns(130, &Design::ALL) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let any = |rng: &mut fastrand::Rng| match rng.bool() {
            true => Medium::Dax,
            false => Medium::Mapped,
        };
        let mut machine = Machine::new(seed, any(&mut rng));
        let known = Arc::new(Mutex::new(Known::default()));
        for life in 0..8 {
            let ended = stop_at(&machine, &mut rng, &known);
            let mut options = settings::small_of(design, machine.medium());
            options.pool.size_bytes = 4 << 20;
            let db = Db::builder("db")
                .machine(machine.clone())
                .options(options)
                .open()
                .unwrap();
            let say = || format!("{design}, seed {seed:#x}, life {life}");
            let shown = db.iter().unwrap().map(|pair| pair.unwrap().into_pair());
            let shown: Pairs = shown.collect();
            {
                let mut known = known.lock().unwrap();
                assert!(shown == known.before || shown == known.after, "{}", say());
                *known = Known {
                    before: shown.clone(),
                    after: shown,
                };
            }
            let problems = db.verify(&mut |_| {}).unwrap().problems;
            assert!(problems.is_empty(), "{}: {problems:?}", say());
            if rng.u8(..4) > 0 {
                write(&db, &mut rng, &known);
            }
            let mut image = stop(&machine, &mut rng);
            if rng.u8(..6) == 0 {
                db.close().unwrap();
                image = machine.crash_image(Survive::None);
            }
            machine.on_persist(None);
            if let Some((earlier, then)) = ended.lock().unwrap().take() {
                image = earlier;
                *known.lock().unwrap() = then;
            }
            machine = Machine::boot_on(image, seed, any(&mut rng));
            lives += 1;
        }
    }
    println!("{lives} lives");
}
