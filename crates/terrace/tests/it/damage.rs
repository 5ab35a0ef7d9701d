//! Stores whose pool or OPTIONS was cut off or changed: an error or the truth, never a panic, never
//! a value that nobody wrote.

use std::collections::BTreeMap;
use std::path::Path;

use terrace::Db;
use terrace_media::Medium;
use terrace_testkit::damage::{Specimen, Tally};
use terrace_testkit::place::scratch;
use terrace_testkit::{seeds, settings};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Makes a small store with something in every place, and closes it.
fn make(folder: &Path) -> Pairs {
    let db = Db::open(folder, settings::small(Medium::Dax)).unwrap();
    let mut pairs = Pairs::new();
    for n in 0..120u8 {
        let (key, value) = (vec![b'k', n], vec![n; 50 + usize::from(n)]);
        db.put(&key, &value).unwrap();
        pairs.insert(key, value);
        if n == 40 {
            db.drain().unwrap();
        }
        if n % 40 == 39 {
            db.flush().unwrap();
        }
    }
    db.close().unwrap();
    pairs
}

/// Reads everything. What comes back must be what was written, unless verify reports a problem.
fn read(folder: &Path, pairs: &Pairs) {
    let Ok(db) = Db::open(folder, settings::small(Medium::Dax)) else {
        return;
    };
    let mut wrong = Vec::new();
    for (key, value) in pairs {
        match db.get(key) {
            Ok(Some(found)) if found != *value => panic!("{key:?} has another value"),
            Ok(None) => wrong.push(format!("{key:?} is missing")),
            _ => {}
        }
    }
    let mut scanned = 0;
    for pair in db.iter().unwrap().take(10_000) {
        let Ok(pair) = pair else { break };
        assert_eq!(
            pairs.get(pair.key()).map(Vec::as_slice),
            Some(pair.value()),
            "a scan"
        );
        scanned += 1;
    }
    if scanned < pairs.len() {
        wrong.push(format!("a scan gives {scanned} pairs"));
    }
    let report = db.verify(&mut |_| {}).unwrap();
    if report.problems.is_empty() {
        assert_eq!(wrong, Vec::<String>::new(), "and verify finds nothing");
    }
}

/// Every bit of damage is found or harmless.
#[test]
fn changed_bytes_are_found_or_harmless() {
    let folder = scratch().unwrap();
    let pairs = make(folder.path());
    let pool = folder.path().join("pool");
    let options = folder.path().join("OPTIONS");
    let good = [
        std::fs::read(&pool).unwrap(),
        std::fs::read(&options).unwrap(),
    ];
    let mut rng = fastrand::Rng::with_seed(11);
    let written: Vec<usize> = (0..good[0].len()).filter(|&at| good[0][at] != 0).collect();
    for turn in 0..400 {
        let mut bytes = good.clone();
        let at = if turn % 4 == 0 {
            let at = rng.usize(..good[1].len());
            bytes[1][at] ^= 1 << rng.u8(..8);
            at
        } else {
            let at = written[rng.usize(..written.len())];
            bytes[0][at] ^= 1 << rng.u8(..8);
            at
        };
        println!("turn {turn}, byte {at}");
        std::fs::write(&pool, &bytes[0]).unwrap();
        std::fs::write(&options, &bytes[1]).unwrap();
        read(folder.path(), &pairs);
    }
}

/// A pool that was cut off is refused or read as far as it is sound.
#[test]
fn truncated_pools_are_found() {
    let folder = scratch().unwrap();
    let pairs = make(folder.path());
    let pool = folder.path().join("pool");
    let good = std::fs::read(&pool).unwrap();
    let mut lengths: Vec<usize> = (0..64).map(|n| n * good.len() / 64).collect();
    lengths.extend([1, 100, 4096, 8192, 16384, good.len() - 4096, good.len() - 1]);
    for len in lengths {
        println!("{len} bytes");
        std::fs::write(&pool, &good[..len]).unwrap();
        let opened = Db::open(folder.path(), settings::small(Medium::Dax));
        if let Err(e) = &opened {
            assert!(e.to_string().len() > 20, "{e}");
        }
        drop(opened);
        std::fs::write(&pool, &good[..len]).unwrap();
        read(folder.path(), &pairs);
    }
}

/// Whatever is changed in whatever file of databases with something in every place, nothing panics
/// or hangs, and nothing wrong is read that nobody finds.
#[test]
fn damage_of_any_kind_is_found_or_harmless() {
    let mut tally = Tally::default();
    for seed in seeds::seeds(8) {
        let specimen = Specimen::make(seed).unwrap();
        for case in 0..250 {
            match specimen.run(case) {
                Ok((kind, class)) => tally.count(kind, class),
                Err(failure) => panic!("{failure}\nrepeat with TERRACE_SEED={seed:#x}"),
            }
        }
    }
    println!("{tally}");
}
