//! Stores whose pool or OPTIONS was truncated or changed: reads fail or are right. They never panic
//! and never return a value that was not written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace::{Db, Design, ErrorKind, RepairSource, Workers};
use terrace_media::Medium;
use terrace_testkit::damage::{Class, Specimen, Tally, restart};
use terrace_testkit::place::scratch;
use terrace_testkit::{seeds, settings};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Makes a small store with data in every component, and closes it.
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

/// Returns the files of a directory.
fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| {
        let file = file.unwrap();
        let name = file.file_name().to_string_lossy().into_owned();
        (name, std::fs::read(file.path()).unwrap())
    });
    files.collect()
}

/// Makes a directory with these files and another pool.
fn copy_with(files: &BTreeMap<String, Vec<u8>>, pool: &[u8]) -> tempfile::TempDir {
    let folder = scratch().unwrap();
    for (name, bytes) in files {
        let bytes = if name == "pool" { pool } else { bytes };
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// Reads everything. The result must be what was written, unless verify reports a problem.
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

/// Every changed bit is found or harmless.
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

/// A truncated pool is refused, or read up to the damage.
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

/// With any change of any file of databases with data in every component, nothing panics or hangs,
/// and no wrong result remains undetected.
#[test]
fn damage_of_any_kind_is_found_or_harmless() {
    let mut tally = Tally::default();
    for seed in seeds::seeds(8) {
        let specimen = Specimen::make(seed).unwrap();
        specimen.repair_undamaged().unwrap();
        for case in 0..100 * seeds::times() {
            match specimen.run(case) {
                Ok((kind, class)) => tally.count(kind, class),
                Err(failure) => panic!("{failure}\nrepeat with TERRACE_SEED={seed:#x}"),
            }
        }
    }
    println!("{tally}");
}

/// A lost link looks like the end of its list. Jobs that move entries count them, and so do not
/// lose those after it.
#[test]
fn drains_and_merges_miss_lost_entries() {
    let original = scratch().unwrap();
    let pairs = make(original.path());
    let files = files_of(original.path());
    let pool = &files["pool"];
    let mut refused = 0;
    // The link of a node of one level is right before its key.
    let is_link = |at: usize| {
        let link = at.checked_sub(8).map(|from| &pool[from..at]);
        let link = link.and_then(|link| link.try_into().ok());
        let link = link.map_or(0, u64::from_le_bytes);
        link > 0 && link < pool.len() as u64 && link.is_multiple_of(8)
    };
    for key in pairs.keys().rev().take(12) {
        let places = pool.windows(2).enumerate();
        let places = places.filter(|(at, bytes)| *bytes == key.as_slice() && is_link(*at));
        for (at, _) in places.take(4) {
            let mut damaged = pool.clone();
            damaged[at - 8..at].fill(0);
            let folder = copy_with(&files, &damaged);
            let Ok(db) = Db::open(folder.path(), settings::small(Medium::Dax)) else {
                continue;
            };
            match db.drain() {
                Ok(()) => {
                    let found = |(key, value): (&Vec<u8>, &Vec<u8>)| {
                        db.get(key).unwrap().as_ref() == Some(value)
                    };
                    assert!(pairs.iter().all(found), "{key:?}");
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    refused += usize::from(e.to_string().contains("entries were found"));
                }
            }
        }
    }
    assert!(refused > 0);
}

/// Merges and drains that start, continue and end during verify do not change its result: no
/// problems.
#[test]
fn verify_during_merges_finds_nothing() {
    for design in settings::designs_in_pool() {
        let folder = scratch().unwrap();
        let mut options = settings::small_of(design, Medium::Dax);
        options.pool.size_bytes = 16 << 20;
        options.background.workers = Workers::Threads(2);
        let db = Db::open(folder.path(), options).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(5);
                while !over.load(Ordering::Relaxed) {
                    // Some entries replace others, so merges drop some.
                    let key = rng.u16(0..600).to_be_bytes();
                    db.put(key, vec![7; rng.usize(..300)]).unwrap();
                }
            });
            let verified = (0..6).try_for_each(|_| {
                let problems = db.verify(&mut |_| {}).unwrap().problems;
                problems.is_empty().then_some(()).ok_or(problems)
            });
            over.store(true, Ordering::Relaxed);
            assert_eq!(verified, Ok(()), "{design}");
        });
    }
}

/// If the first page of an extent of the repository is that of another, it states the used length
/// of that one. Opening refuses it: a drain would overwrite the nodes after that length.
#[test]
fn extents_with_the_first_page_of_another_are_refused() {
    const PAGE: usize = 4096;
    let original = scratch().unwrap();
    let mut options = settings::small(Medium::Dax);
    options.pool.size_bytes = 8 << 20;
    let db = Db::open(original.path(), options.clone()).unwrap();
    let mut pairs = Pairs::new();
    for n in 0..2000u16 {
        let (key, value) = (n.to_be_bytes().to_vec(), vec![n as u8; 100]);
        db.put(&key, &value).unwrap();
        pairs.insert(key, value);
    }
    db.drain().unwrap();
    db.close().unwrap();
    let files = files_of(original.path());
    let pool = &files["pool"];
    let is_extent = |at: &usize| pool[*at..].starts_with(b"TREX");
    let extents: Vec<usize> = (0..pool.len()).step_by(PAGE).filter(is_extent).collect();
    assert!(extents.len() > 3, "{extents:x?}");
    for (at, from) in extents
        .iter()
        .zip(extents.iter().cycle().skip(1))
        .flat_map(|(&a, &b)| [(a, b), (b, a)])
    {
        let mut damaged = pool.clone();
        damaged.copy_within(from..from + PAGE, at);
        let folder = copy_with(&files, &damaged);
        let refused = Db::open(folder.path(), options.clone()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains(&format!("{at:#x}")) && text.contains(&format!("{from:#x}")),
            "{text}"
        );
        let beside = scratch().unwrap();
        let repaired = beside.path().join("repaired");
        let report = Db::builder(&repaired)
            .options(options.clone())
            .repair_of(&RepairSource::new(folder.path()))
            .unwrap();
        let any = &[][..];
        assert!(
            report
                .losses
                .iter()
                .any(|loss| loss.certain && loss.keys.has(1, any))
        );
        // At most the content of that extent is lost: that after the page, unless links of others
        // lead to it.
        let db = Db::open(&repaired, options.clone()).unwrap();
        let found = pairs
            .iter()
            .filter(|(key, value)| db.get(key).unwrap().as_ref() == Some(value));
        let lost = pairs.len() - found.count();
        assert!((1..200).contains(&lost), "{lost} are lost");
        // The header of an extent of an earlier build does not contain its position.
        let mut older = pool.clone();
        for at in &extents {
            older[at + 24..at + 32].fill(0);
        }
        std::fs::write(folder.path().join("pool"), &older).unwrap();
        let db = Db::open(folder.path(), options.clone()).unwrap();
        assert_eq!(
            db.verify(&mut |_| {}).unwrap().problems,
            Vec::<String>::new()
        );
        assert_eq!(db.iter().unwrap().count(), pairs.len());
    }
}

/// Returns the offsets of nodes without a tower in a pool, by key, for one size of keys and values.
fn nodes_of(pool: &[u8], pairs: &Pairs) -> BTreeMap<Vec<u8>, Vec<usize>> {
    let mut found = BTreeMap::new();
    for (key, value) in pairs {
        let entry = [&key[..], value].concat();
        let sizes = [key.len() as u8, 0, 0, 1, value.len() as u8, 0, 0, 0];
        let is_node = |&at: &usize| {
            let front = at
                .checked_sub(16)
                .and_then(|sizes_at| pool.get(sizes_at..sizes_at + 8));
            let keyspace = at.checked_sub(36).and_then(|at| pool.get(at..at + 4));
            (front, keyspace) == (Some(&sizes[..]), Some(&[1, 0, 0, 0][..]))
                && pool[at..].starts_with(&entry)
        };
        let places = (0..pool.len()).step_by(8).filter(is_node);
        let places: Vec<usize> = places.map(|at| at - 40).collect();
        if !places.is_empty() {
            found.insert(key.clone(), places);
        }
    }
    found
}

/// A node in the place of another one is sound. A list that is rebuilt after a power loss is
/// refused because of it, verify finds it in one that is not rebuilt, and a repair reports the
/// loss.
#[test]
fn nodes_in_the_place_of_others_are_found() {
    const NODE: usize = 64;
    for drained in [false, true] {
        let original = scratch().unwrap();
        let mut options = settings::small(Medium::Mapped);
        options.pool.size_bytes = 4 << 20;
        let db = Db::open(original.path(), options.clone()).unwrap();
        let mut pairs = Pairs::new();
        for n in 0..120u16 {
            let (key, value) = (format!("{n:04}").into_bytes(), vec![n as u8 + 1; 20]);
            db.put(&key, &value).unwrap();
            pairs.insert(key, value);
            if n % 60 == 59 {
                db.flush().unwrap();
            }
        }
        if drained {
            db.drain().unwrap();
        }
        // Takes the files as a process crash leaves them.
        let files = files_of(original.path());
        drop(db);
        let pool = &files["pool"];
        let nodes = nodes_of(pool, &pairs);
        // The first two nodes of the first table, and the last two of the second.
        let keys: Vec<&Vec<u8>> = nodes.keys().collect();
        let [older, beside, .., behind, newer] = keys[..] else {
            panic!("{keys:?}");
        };
        for (to, from) in [
            (older, beside),
            (beside, older),
            (older, newer),
            (newer, older),
            (newer, behind),
        ] {
            let mut damaged = pool.clone();
            for at in &nodes[to] {
                let node = nodes[from][0];
                damaged.copy_within(node..node + NODE, *at);
            }
            for restarted in [false, true] {
                if restarted {
                    restart(&mut damaged);
                }
                let folder = copy_with(&files, &damaged);
                let text =
                    format!("{from:?} at {to:?}, drained: {drained}, restarted: {restarted}");
                let beside = scratch().unwrap();
                let report = Db::builder(beside.path().join("repaired"))
                    .options(options.clone())
                    .repair_of(&RepairSource::new(folder.path()))
                    .unwrap();
                let told = report.losses.iter().any(|l| l.certain && l.keys.has(1, to));
                assert!(told, "{text}: {report:#?}");
                match Db::open(folder.path(), options.clone()) {
                    Ok(db) => {
                        let problems = db.verify(&mut |_| {}).unwrap().problems;
                        assert!(!problems.is_empty() && !restarted, "{text}: {problems:?}");
                    }
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Corruption, "{text}: {e}");
                        let what =
                            ["node of a table", "node of the repository"][usize::from(drained)];
                        assert!(restarted && e.to_string().contains(what), "{text}: {e}");
                    }
                }
            }
        }
    }
}

/// The damage of cases of campaigns that once failed is found. Each comment gives the former cause.
#[test]
fn cases_of_damage_that_once_failed() {
    // A lost link after the last node of more than one level: the list ended there, and verify did
    // not count.
    let behind = (0xf4266, 37);
    // The same in the older of two tables that were being merged when the process stopped: the
    // number of entries that the merge had dropped until then was unknown, so nothing was counted,
    // and the merge continued without the lost ones.
    let merged = (0x2dc75f, 336);
    for (seed, case) in [behind, merged] {
        let (_, class) = Specimen::make(seed).unwrap().run(case).unwrap();
        assert_eq!(class, Class::Found, "{seed:#x}");
    }
    // In these cases the repair failed to report a loss. In this one the first page of an extent of
    // the repository was replaced with that of another one, whose length was trusted.
    let extent = (0x4c4bbf, 135, Class::Refused);
    // An entry of the repository was marked dead while space was reclaimed, without a count.
    let marked = (0x27465, 737, Class::Found);
    // Pages of nodes replaced with others in which nodes start at the same offsets: of a table, and
    // of the repository.
    let table = (0x2748d, 961, Class::Refused);
    let repository = (0x274dd, 893, Class::Refused);
    for (seed, case, expected) in [extent, marked, table, repository] {
        let (_, class) = Specimen::make(seed).unwrap().run(case).unwrap();
        assert_eq!(class, expected, "{seed:#x}");
    }
}

/// If any byte of a table file or of OPTIONS changes, opening or verify reports it: neither
/// contains padding or unused bytes.
#[test]
fn every_byte_of_tables_and_options_counts() {
    for (turn, design) in Design::ALL.into_iter().enumerate() {
        let specimen = Specimen::closed_of(design, 5).unwrap();
        let mut flipped = 0;
        for (name, bytes) in specimen.files() {
            let (first, stride) = match name {
                "pool" => continue,
                // Each design has some of the bytes.
                "OPTIONS" => (turn, Design::ALL.len()),
                // Coprime to all sizes of fields, so that every offset of each is changed in some
                // table. The campaign `flips` changes every byte.
                _ => (0, 71),
            };
            for at in (first..bytes).step_by(stride) {
                let mask = [0x01, 0x80, 0xff][at % 3];
                let class = specimen.flip(name, at, mask).unwrap();
                assert!(
                    [Class::Refused, Class::Found].contains(&class),
                    "{design}, {mask:#x} in byte {at:#x} of {name}: {class:?}"
                );
                flipped += 1;
            }
        }
        assert!(flipped > 100, "{design}: {flipped}");
        let tables = specimen.files().filter(|(name, _)| name.ends_with(".sst"));
        assert_eq!(tables.count() > 0, design.keeps_table_files(), "{design}");
    }
}

/// If any byte of a log file changes, opening or verify reports it, or reads are unaffected: the
/// byte is padding, or after the end of the log. Only writes after the last sync of a database that
/// was not closed may be lost, as after a slightly earlier crash.
#[test]
fn every_byte_of_log_files_counts_or_is_dead() {
    for (design, closed) in [
        (Design::MioDb, true),
        (Design::MioDb, false),
        (Design::MioDbSsd, false),
    ] {
        let specimen = Specimen::of_logs(design, closed, 7).unwrap();
        let (mut logs, mut found, mut shorter) = (0, 0, 0);
        let names: Vec<String> = specimen.files().map(|(name, _)| name.to_owned()).collect();
        for name in names.iter().filter(|name| name.ends_with(".log")) {
            logs += 1;
            for (turn, line) in specimen.used(name).iter().enumerate() {
                // Changes another byte of some lines, in headers of records as often as in entries.
                // The unit tests of seals change every byte.
                let stride = seeds::stride(9);
                if turn % stride != 0 {
                    continue;
                }
                let at = (turn / stride) * 11 % 64;
                let mask = [0x01, 0x80, 0xff][turn % 3];
                match specimen.flip(name, line + at, mask).unwrap() {
                    Class::Refused | Class::Found => found += 1,
                    Class::Harmless | Class::FoundLater => {}
                    Class::Shorter => shorter += 1,
                }
            }
        }
        assert!(
            logs > 1 && found > 50,
            "{design}: {logs} logs, {found} found"
        );
        assert_eq!(shorter == 0, closed, "{design}: {shorter} shorter");
    }
}

/// If any byte in a nonzero line of the pool changes, opening or verify reports it, or reads are
/// unaffected: such lines are padding, or belong to unreferenced data.
#[test]
fn every_byte_of_the_pool_counts_or_is_dead() {
    for (kind, design) in Design::ALL.into_iter().enumerate() {
        let specimen = Specimen::closed_of(design, 6).unwrap();
        let stride = match design.keeps_data_in_pool() {
            // Odd, so that the lines of a design have every offset.
            true => seeds::stride(5),
            // There are few lines.
            false => 1,
        };
        let mut found = 0;
        for (turn, line) in specimen.used("pool").iter().enumerate() {
            // Changes one byte of each line, at increasing offsets, but every third byte of the
            // first page. Each design has one in five of the other lines of its data.
            if *line >= 4096 && turn % stride != kind % stride {
                continue;
            }
            let bytes = if *line < 4096 {
                0..64
            } else {
                turn % 64..turn % 64 + 1
            };
            for byte in bytes.step_by(if *line < 4096 { 3 } else { 1 }) {
                let class = specimen.flip("pool", line + byte, 0x10).unwrap();
                found += usize::from(class != Class::Harmless);
            }
        }
        assert!(found > 50, "{design}: {found} found");
    }
}
