//! After a power loss a repair yields the same as an open: without what was lost, and without
//! earlier content of the space.

use std::path::Path;
use std::sync::{Arc, Mutex};

use terrace::{Db, Design, Durability, WriteBatch};
use terrace_media::{Image, Machine, ManualClock, Medium, OpenMode, PersistPoint, Survive};
use terrace_testkit::place::scratch;
use terrace_testkit::{lists, seeds, settings};

use super::specimen::{Pairs, Specimen};

/// The content before the write in flight, and after it.
type Known = (Pairs, Pairs);
type Lost = Vec<(PersistPoint, Image, Known)>;

/// Opens a database on a machine. Also returns a place for its files after a crash.
fn begin(machine: &Machine, design: Design) -> (Db, Specimen) {
    let mut options = settings::small_of(design, machine.medium());
    options.pool.size_bytes = 4 << 20;
    let db = Db::builder("db")
        .machine(machine.clone())
        .options(options.clone())
        .open()
        .unwrap();
    let specimen = Specimen {
        folder: scratch().unwrap(),
        options,
        clock: ManualClock::new(),
        written: Default::default(),
    };
    (db, specimen)
}

/// Writes the files of an image, with which another machine starts.
fn put_down(image: Image, folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("pool"), image.pool()).unwrap();
    let fs = Machine::boot(image, 1).fs();
    for name in fs.list(Path::new("db")).unwrap() {
        let file = fs
            .open(&Path::new("db").join(&name), OpenMode::Read)
            .unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(0, &mut bytes).unwrap();
        std::fs::write(folder.join(&name), bytes).unwrap();
    }
}

/// Writes to a database, and returns what power losses at some points would have left.
fn losses(db: &Db, machine: &Machine, seed: u64) -> Lost {
    let mut rng = fastrand::Rng::with_seed(seed);
    let known = Arc::new(Mutex::new(Known::default()));
    let lost = Arc::new(Mutex::new(Lost::new()));
    let look = {
        let (known, lost) = (Arc::clone(&known), Arc::clone(&lost));
        let mut rng = rng.fork();
        move |machine: &Machine, point: PersistPoint| {
            if rng.u32(..150) == 0 {
                let image = machine.crash_image(Survive::Random(rng.u64(..)));
                let known = known.lock().unwrap().clone();
                lost.lock().unwrap().push((point, image, known));
            }
        }
    };
    machine.on_persist(Some(Box::new(look)));
    for _ in 0..600 {
        // There are so few keys that most writes replace something, and space is reused.
        let key = vec![rng.u8(..24)];
        let mut batch = WriteBatch::new();
        let mut now = known.lock().unwrap();
        if rng.u8(..3) > 0 {
            let value = vec![rng.u8(..); rng.usize(..2000)];
            batch.put(&key, &value);
            now.1.insert((1, key), value);
        } else {
            batch.delete(&key);
            now.1.remove(&(1, key));
        }
        drop(now);
        db.write(batch, Durability::Sync).unwrap();
        let mut now = known.lock().unwrap();
        now.0 = now.1.clone();
        drop(now);
        if rng.u8(..20) == 0 {
            db.drain().unwrap();
        }
    }
    machine.on_persist(None);
    std::mem::take(&mut *lost.lock().unwrap())
}

#[test]
fn what_a_power_loss_left_is_repaired_as_it_is_opened() {
    let mut repaired = 0;
    let kinds = [
        (Design::MioDb, Medium::Mapped),
        (Design::MioDb, Medium::Dax),
        (Design::MioDbSsd, Medium::Mapped),
    ];
    for (seed, (design, medium)) in seeds::in_turns(18, &kinds) {
        let machine = Machine::new(seed, medium);
        let (db, specimen) = begin(&machine, design);
        for (point, image, (before, after)) in losses(&db, &machine, seed) {
            put_down(image, &specimen.source());
            let report = specimen.repair().unwrap();
            // Only the end of a log or of the manifest may look damaged.
            assert!(
                report.losses.iter().all(|loss| !loss.certain),
                "{report:#?}"
            );
            let shown = specimen.shown(&report);
            assert!(
                shown == before || shown == after,
                "{design} on {medium}, seed {seed:#x}, {point:?}: {report:#?}"
            );
            repaired += 1;
        }
    }
    println!("{repaired} repaired");
}

/// On `Dax` a power loss loses nothing of the repository, so damage there is a loss and is
/// reported.
#[test]
fn damage_on_dax_is_reported_after_a_power_loss() {
    let machine = Machine::new(3, Medium::Dax);
    let (db, specimen) = begin(&machine, Design::MioDb);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut written = Pairs::new();
    for key in 0..40u8 {
        let value: Vec<u8> = (0..50).map(|_| rng.u8(..)).collect();
        db.put([key], &value).unwrap();
        written.insert((1, vec![key]), value);
    }
    db.drain().unwrap();
    put_down(machine.crash_image(Survive::None), &specimen.source());
    let report = specimen.repair().unwrap();
    // The end of a log looks like damage.
    let in_log = |loss: &terrace::Loss| loss.kind == "log" && !loss.certain;
    assert!(report.losses.iter().all(in_log), "{report:#?}");
    assert!(specimen.shown(&report) == written);
    let pool = specimen.source().join("pool");
    let whole = std::fs::read(&pool).unwrap();
    let mut lost = 0;
    for (place, value) in &written {
        let places = whole.windows(value.len()).enumerate();
        let found: Vec<_> = places
            .filter(|(_, bytes)| bytes == value)
            .map(|(at, _)| at)
            .collect();
        // Damages the value, and the head and key of the node before it.
        for shift in [0, 20, 49, -1, -2, -20] {
            let mut bytes = whole.clone();
            // The log and the buffer may have copies.
            for at in &found {
                bytes[at.checked_add_signed(shift).unwrap()] ^= 0x10;
            }
            std::fs::write(&pool, &bytes).unwrap();
            let report = specimen.repair().unwrap();
            let shown = specimen.shown(&report);
            for other in written.keys() {
                let told = || {
                    let mut losses = report.losses.iter();
                    losses.any(|loss| loss.certain && loss.keys.has(other.0, &other.1))
                };
                assert!(
                    shown.get(other) == written.get(other) || told(),
                    "{place:?}, {shift}: {other:?} is missing: {report:#?}"
                );
            }
            assert!(shown.keys().all(|shown| written.contains_key(shown)));
            lost += u64::from(shown != written);
        }
    }
    assert!(lost >= 120, "{lost}");
}

/// The same of a list that is its own log: what is lost before its last mark is lost for certain.
#[test]
fn damage_of_lists_is_reported_after_a_power_loss() {
    let machine = Machine::new(4, Medium::Dax);
    let (db, specimen) = begin(&machine, Design::NoveLsm);
    let mut rng = fastrand::Rng::with_seed(4);
    lists::begin_list(&db, 1).unwrap();
    let mut written = Vec::new();
    for key in 100..140u8 {
        let value: Vec<u8> = (0..50).map(|_| rng.u8(..)).collect();
        db.put([key], &value).unwrap();
        written.push((vec![key], value));
    }
    put_down(machine.crash_image(Survive::None), &specimen.source());
    let all = specimen.shown(&specimen.repair().unwrap());
    assert!(
        written
            .iter()
            .all(|(key, value)| all.get(&(1, key.clone())) == Some(value))
    );
    let pool = specimen.source().join("pool");
    let whole = std::fs::read(&pool).unwrap();
    // The last ones may be behind the last mark, where damage looks like the end of the list.
    let marked = &written[..30];
    for (at, (_, value)) in marked.iter().enumerate() {
        let mut bytes = whole.clone();
        let place = whole.windows(50).position(|bytes| bytes == value).unwrap();
        bytes[place] ^= 0x10;
        std::fs::write(&pool, &bytes).unwrap();
        let report = specimen.repair().unwrap();
        let shown = specimen.shown(&report);
        for (n, (key, value)) in marked.iter().enumerate() {
            let mut losses = report.losses.iter();
            let is_told = losses.any(|loss| loss.certain && loss.keys.has(1, key));
            let is_there = shown.get(&(1, key.clone())) == Some(value);
            assert!(is_there || is_told, "{at}: {key:?} is missing: {report:#?}");
            assert!(is_there || n >= at, "{at}: {key:?} is before the damage");
        }
    }
}
