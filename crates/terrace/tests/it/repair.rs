//! Repair: the newest valid data is restored, whatever is damaged, and losses are reported.

mod power;
mod specimen;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use terrace::{Db, Design, ErrorKind, PartState, RepairOutcome, RepairReport, RepairSource};
use terrace_media::{FaultFs, Machine, Medium, OsFs, PersistPoint, Survive};
use terrace_testkit::place::scratch;
use terrace_testkit::{seeds, settings};

use specimen::{MEDIA, Pairs, Specimen, names, specimen};

/// Checks what must hold for any repair: nothing is invented, and every key that does not show its
/// last value is in a loss. Uncertain losses count only for `damaged`, and those of logs only for
/// keys that were in a log.
fn check(specimen: &Specimen, report: &RepairReport, damaged: &Path) {
    check_word(report);
    let shown = match report.outcome {
        RepairOutcome::Nothing => {
            assert!(!specimen.target().exists() || names(&specimen.target()).is_empty());
            Pairs::new()
        }
        _ => specimen.shown(report),
    };
    let written = &specimen.written;
    for (place, value) in &shown {
        let history = written.history.get(place);
        let known = history.is_some_and(|history| history.contains(&Some(value.clone())));
        assert!(
            known,
            "{place:?} has a value that nobody wrote: {report:#?}"
        );
    }
    for place in written.history.keys() {
        if shown.get(place) == written.last(place) {
            continue;
        }
        let told = report.losses.iter().any(|loss| {
            loss.keys.has(place.0, &place.1)
                && (loss.certain
                    || loss.path == damaged
                    || report.outcome == RepairOutcome::Partly && loss.kind == "manifest")
                && (loss.kind != "log" || written.in_log.contains(place))
        }) || report.keyspaces.is_empty();
        assert!(
            told,
            "{place:?} is {:?} and was {:?} last; damaged is {}: {report:#?}",
            shown.get(place),
            written.last(place),
            damaged.display()
        );
    }
}

/// Checks that the outcome of a report does not contradict its list.
fn check_word(report: &RepairReport) {
    let certain = report.losses.iter().any(|loss| loss.certain);
    match report.outcome {
        RepairOutcome::Whole => assert!(report.losses.is_empty(), "{report:#?}"),
        RepairOutcome::Uncertain => {
            assert!(!report.losses.is_empty() && !certain, "{report:#?}");
        }
        _ => {}
    }
}

fn each(mut case: impl FnMut(&Specimen, Design, Medium)) {
    each_closed(|specimen, design, medium, _| case(specimen, design, medium));
}

fn each_closed(mut case: impl FnMut(&Specimen, Design, Medium, bool)) {
    for design in Design::ALL {
        for medium in MEDIA {
            for closed in [true, false] {
                println!("{design} on {medium}, closed: {closed}");
                let specimen = specimen(design, medium, closed, 7);
                case(&specimen, design, medium, closed);
            }
        }
    }
}

/// An intact database is restored as it is, and reported as intact if a close has recorded the ends
/// of its logs: every keyspace, by its name, and nothing that was deleted, covered, dropped or has
/// expired. Its files are not touched.
#[test]
fn a_whole_database_comes_back() {
    each_closed(|specimen, _, _, closed| {
        let before: Vec<_> = names(&specimen.source())
            .iter()
            .map(|name| std::fs::read(specimen.source().join(name)).unwrap())
            .collect();
        let report = specimen.repair().unwrap();
        check_word(&report);
        assert_ne!(report.outcome, RepairOutcome::Partly, "{report:#?}");
        if closed {
            assert_eq!(report.outcome, RepairOutcome::Whole, "{report:#?}");
        }
        assert!(specimen.shown(&report) == specimen.written.pairs());
        let names_of: Vec<_> = report.keyspaces.iter().map(|k| k.name.as_str()).collect();
        assert_eq!(names_of, ["default", "named"]);
        let after: Vec<_> = names(&specimen.source())
            .iter()
            .map(|name| std::fs::read(specimen.source().join(name)).unwrap())
            .collect();
        assert!(before == after, "the damaged database was written");

        // The new database continues independently, with its sequence numbers and keyspace ids.
        let db = Db::open(specimen.target(), specimen.options.clone()).unwrap();
        db.put("later", "value").unwrap();
        let fresh = db.create_keyspace("fresh").unwrap();
        assert_eq!(fresh.iter().unwrap().count(), 0);
        assert_eq!(db.get("later").unwrap(), Some(b"value".to_vec()));
        db.close().unwrap();
    });
}

/// Of an intact database that was killed during an ingest, a repair takes nothing of the ingest. It
/// is not `Partly`.
#[test]
fn an_unfinished_ingest_is_left_out() {
    for design in settings::designs_with_files() {
        for medium in MEDIA {
            let folder = terrace_testkit::place::scratch().unwrap();
            let at = |name: &str| folder.path().join(name);
            let mut options = settings::small_of(design, medium);
            options.bottom.leveled.table_bytes = 16 << 10;
            options.bottom.leveled.level1_bytes = 16 << 10;
            let db = Db::open(at("db"), options.clone()).unwrap();
            db.put("0005", "old").unwrap();
            let mut ingest = db.ingest().unwrap();
            for n in 0..1000u32 {
                ingest.add(format!("{n:04}"), [7; 100]).unwrap();
            }
            // The database is idle, so a copy is what a killed process leaves.
            std::fs::create_dir(at("killed")).unwrap();
            for name in names(&at("db")) {
                std::fs::copy(at("db").join(&name), at("killed").join(&name)).unwrap();
            }
            let tables = names(&at("killed"));
            let tables = tables.iter().filter(|name| name.ends_with(".sst"));
            assert!(tables.count() > 2, "{design} on {medium}");
            let report = Db::builder(at("repaired"))
                .repair_of(&RepairSource::new(at("killed")))
                .unwrap();
            assert_ne!(report.outcome, RepairOutcome::Partly, "{report:#?}");
            let repaired = Db::builder(at("repaired")).open().unwrap();
            let pairs: Vec<_> = repaired.iter().unwrap().map(Result::unwrap).collect();
            assert_eq!(pairs.len(), 1, "{design} on {medium}");
            assert_eq!(pairs[0].value(), b"old");
            drop(ingest);
        }
    }
}

/// Without OPTIONS, or with damaged ones, everything else is used.
#[test]
fn options_may_be_lost() {
    each(|specimen, _, _| {
        let options = specimen.source().join("OPTIONS");
        std::fs::write(&options, "design = ?\n").unwrap();
        let report = specimen.repair().unwrap();
        assert_eq!(report.outcome, RepairOutcome::Partly);
        assert!(specimen.shown(&report) == specimen.written.pairs());
        std::fs::remove_file(&options).unwrap();
        let report = specimen.repair().unwrap();
        assert_eq!(report.outcome, RepairOutcome::Partly);
        assert!(specimen.shown(&report) == specimen.written.pairs());
    });
}

/// The design and the pool of the new database are those of the given options.
#[test]
fn another_design_takes_what_is_found() {
    for (from, to) in [
        (Design::MioDb, Design::Leveled),
        (Design::Leveled, Design::MioDb),
        (Design::MioDbSsd, Design::Leveled),
    ] {
        let mut specimen = specimen(from, Medium::Dax, false, 3);
        specimen.options = settings::small_of(to, Medium::Dram);
        specimen.options.pool.size_bytes = 8 << 20;
        let report = specimen.repair().unwrap();
        assert_eq!(report.outcome, RepairOutcome::Uncertain, "{report:#?}");
        assert!(specimen.shown(&report) == specimen.written.pairs());
    }
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Without the manifest every valid table counts, and every log. Keyspaces get their names from the
/// catalog.
#[test]
fn the_manifest_of_files_may_be_lost() {
    for design in Design::ALL {
        for closed in [true, false] {
            let specimen = specimen(design, Medium::Dram, closed, 5);
            let manifest = specimen.source().join("MANIFEST");
            std::fs::remove_file(&manifest).unwrap();
            let report = specimen.repair().unwrap();
            assert_eq!(report.outcome, RepairOutcome::Partly);
            assert!(
                specimen.shown(&report) == specimen.written.pairs(),
                "{report:#?}"
            );
        }
    }
}

/// Without the superblock, or the manifest after it, logs and lists in the pool are found by their
/// own headers.
#[test]
fn the_superblock_may_be_lost() {
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped] {
            let specimen = specimen(design, medium, true, 5);
            let pool = specimen.source().join("pool");
            let file = std::fs::OpenOptions::new().write(true).open(&pool).unwrap();
            file.write_all_at(&[0; 8192], 0).unwrap();
            let report = specimen.repair().unwrap();
            assert_eq!(report.outcome, RepairOutcome::Partly);
            check(&specimen, &report, &pool);
            let found: u64 = report.keyspaces.iter().map(|k| k.pairs).sum();
            assert_eq!(found, specimen.written.pairs().len() as u64, "{report:#?}");
        }
    }
}

/// Missing or partly damaged tables lose only their content, and that is reported.
#[test]
fn tables_may_be_lost() {
    for design in settings::designs_with_files() {
        for medium in MEDIA {
            let whole = specimen(design, medium, true, 11);
            let tables: Vec<_> = names(&whole.source())
                .into_iter()
                .filter(|n| n.ends_with(".sst"))
                .collect();
            assert!(!tables.is_empty());
            for name in &tables {
                let specimen = whole.copy();
                let table = specimen.source().join(name);
                let len = std::fs::metadata(&table).unwrap().len();
                for at in [0, len / 2, len - 100, len - 3] {
                    flip(&table, at);
                    let report = specimen.repair().unwrap();
                    assert_eq!(
                        report.outcome,
                        RepairOutcome::Partly,
                        "{name} at {at} of {len}"
                    );
                    check(&specimen, &report, &table);
                    if at > len - 128 {
                        // Blocks are found without the footer.
                        assert!(specimen.shown(&report) == specimen.written.pairs());
                        let mut losses = report.losses.iter();
                        assert!(losses.all(|loss| loss.path != table), "{report:#?}");
                    }
                    flip(&table, at);
                }
                std::fs::remove_file(&table).unwrap();
                let report = specimen.repair().unwrap();
                assert_eq!(report.outcome, RepairOutcome::Partly);
                let missing = report
                    .parts
                    .iter()
                    .filter(|p| p.state == PartState::Missing);
                assert_eq!(missing.count(), 1);
                check(&specimen, &report, &table);
                // Another table in its place verifies.
                if let Some(other) = tables.iter().find(|other| *other != name) {
                    std::fs::copy(specimen.source().join(other), &table).unwrap();
                    let report = specimen.repair().unwrap();
                    assert_eq!(report.outcome, RepairOutcome::Partly);
                    check(&specimen, &report, &table);
                    assert!(report.losses.iter().any(|loss| loss.path == table));
                }
            }
        }
    }
}

/// With any byte changed in any file, and any file truncated or removed, nothing is invented, and
/// every changed value is reported.
#[test]
fn random_damage_is_reported() {
    let mut outcomes = BTreeMap::new();
    for seed in seeds::seeds(2) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for design in Design::ALL {
            for medium in MEDIA {
                let whole = specimen(design, medium, rng.bool(), seed);
                for turn in 0..12 {
                    let specimen = whole.copy();
                    let path = damage(&specimen, &mut rng);
                    println!("seed {seed:#x}: {design} on {medium}, turn {turn}");
                    let report = specimen.repair().unwrap();
                    check(&specimen, &report, &path);
                    *outcomes.entry(report.outcome.name()).or_insert(0) += 1;
                }
            }
        }
    }
    println!("{outcomes:?}");
    assert!(outcomes.contains_key("partly"));
}

/// Damages a file, and returns its path.
fn damage(specimen: &Specimen, rng: &mut fastrand::Rng) -> PathBuf {
    let all: Vec<_> = names(&specimen.source())
        .into_iter()
        .filter(|n| n != "LOCK")
        .collect();
    let path = specimen.source().join(&all[rng.usize(..all.len())]);
    let mut bytes = std::fs::read(&path).unwrap();
    let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
    if used.is_empty() {
        return path;
    }
    let at = used[rng.usize(..used.len())];
    let what = match rng.u8(..10) {
        0 => {
            std::fs::remove_file(&path).unwrap();
            println!("{} removed", path.display());
            return path;
        }
        1 => {
            bytes.truncate(at);
            "cut off"
        }
        2 => {
            let line = at / 64 * 64;
            let end = bytes.len().min(line + 64);
            bytes[line..end].fill(0);
            "a line emptied"
        }
        3 => {
            let page = at / 4096 * 4096;
            let end = bytes.len().min(page + 4096);
            bytes[page..end].fill(0);
            "a page emptied"
        }
        _ => {
            bytes[at] ^= 1 << rng.u8(..8);
            "a bit changed"
        }
    };
    println!("{}: {what} at {at}", path.display());
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A lost catalog costs the names of keyspaces, and nothing else.
#[test]
fn keyspaces_without_a_name_get_one() {
    let specimen = specimen(Design::Leveled, Medium::Dram, true, 5);
    // The catalog is in the tables that start with it.
    let source = specimen.source();
    for name in names(&source).into_iter().filter(|n| n.ends_with(".sst")) {
        let path = source.join(&name);
        let mut catalog = false;
        terrace::inspect::table::<terrace::Error>(&path, &mut |piece| {
            if let terrace::inspect::TablePiece::Entry(entry) = piece {
                catalog |= entry.keyspace == 0;
            }
            Ok(())
        })
        .unwrap();
        if catalog {
            flip(&path, 2);
        }
    }
    let report = specimen.repair().unwrap();
    check(&specimen, &report, Path::new(""));
    let renamed: Vec<_> = report.keyspaces.iter().filter(|k| k.renamed).collect();
    assert!(
        renamed.iter().any(|k| k.name == "recovered-2"),
        "{report:#?}"
    );
}

/// Invalid requests are refused and leave nothing.
#[test]
fn wrong_calls_are_refused() {
    let specimen = specimen(Design::Leveled, Medium::Dram, true, 5);
    let repair = |from: &Path, to: &Path| {
        Db::builder(to)
            .options(specimen.options.clone())
            .repair_of(&RepairSource::new(from))
            .unwrap_err()
    };
    let nowhere = specimen.folder.path().join("nowhere");
    let empty = specimen.folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert_eq!(
        repair(&nowhere, &specimen.target()).kind(),
        ErrorKind::Invalid
    );
    assert_eq!(
        repair(&empty, &specimen.target()).kind(),
        ErrorKind::Invalid
    );
    assert_eq!(
        repair(&specimen.source(), &specimen.source()).kind(),
        ErrorKind::Invalid
    );
    let inside = specimen.source().join("inside");
    assert_eq!(
        repair(&specimen.source(), &inside).kind(),
        ErrorKind::Invalid
    );
    std::fs::write(empty.join("notes"), "mine").unwrap();
    assert_eq!(
        repair(&specimen.source(), &empty).kind(),
        ErrorKind::Invalid
    );
    assert!(!specimen.target().exists());
    let db = Db::open(specimen.source(), specimen.options.clone()).unwrap();
    let e = repair(&specimen.source(), &specimen.target());
    assert_eq!(e.kind(), ErrorKind::Locked, "{e}");
    db.close().unwrap();
}

/// Every failure of the new database's files is an error, and no database is left.
#[test]
fn every_failure_is_an_error_and_leaves_no_database() {
    for design in Design::ALL {
        let specimen = specimen(design, Medium::Dram, false, 2);
        for kind in [std::io::ErrorKind::Other, std::io::ErrorKind::StorageFull] {
            let mut n = 1;
            let mut failures = 0;
            loop {
                let _ = std::fs::remove_dir_all(specimen.target());
                let fs = Arc::new(FaultFs::new(Arc::new(OsFs)));
                fs.fail_at(n, kind, true);
                let made = Db::builder(specimen.target())
                    .options(specimen.options.clone())
                    .clock(Arc::new(specimen.clock.clone()))
                    .file_system(fs.clone())
                    .repair_of(&RepairSource::new(specimen.source()));
                let calls = fs.operations();
                match made {
                    // A failing read is damage like any other.
                    Ok(report) if report.outcome == RepairOutcome::Nothing => {}
                    Ok(_) => {
                        assert!(calls < n, "call {n} failed and nobody noticed");
                        break;
                    }
                    Err(e) => {
                        failures += 1;
                        assert!(e.to_string().len() > 20, "{e}");
                        let target = specimen.target();
                        if target.join("OPTIONS").exists()
                            && !target.join("UNFINISHED-REPAIR").exists()
                        {
                            // The very last step failed.
                            assert!(e.to_string().contains("UNFINISHED-REPAIR"), "call {n}: {e}");
                            let db = Db::open(&target, specimen.options.clone()).unwrap();
                            assert!(db.iter().unwrap().count() > 0);
                        }
                    }
                }
                n += 1 + n / 16;
            }
            assert!(failures > 20, "{failures}");
        }
    }
}

/// The remains of an interrupted repair are not opened.
#[test]
fn an_unfinished_repair_is_no_database() {
    let specimen = specimen(Design::Leveled, Medium::Dram, true, 5);
    specimen.repair().unwrap();
    std::fs::write(specimen.target().join("UNFINISHED-REPAIR"), "").unwrap();
    for read_only in [false, true] {
        let mut options = specimen.options.clone();
        options.read_only = read_only;
        let e = Db::open(specimen.target(), options).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains("has not finished"), "{e}");
    }
}

/// A power loss at any sync of a repair leaves no database or the whole one, and one after its end
/// leaves the whole one.
#[test]
fn a_crash_during_a_repair_leaves_all_or_nothing() {
    for design in Design::ALL {
        let options = settings::small_of(design, Medium::Dram);
        let machine = Machine::new(3, Medium::Dax);
        let on = |machine: &Machine, folder: &str| {
            Db::builder(folder)
                .machine(machine.clone())
                .options(options.clone())
        };
        let db = on(&machine, "old").open().unwrap();
        for n in 0..150u32 {
            db.put(n.to_be_bytes(), [n as u8; 100]).unwrap();
        }
        db.close().unwrap();
        let counts = Arc::new(Mutex::new((0, 0)));
        let look = {
            let (counts, options) = (Arc::clone(&counts), options.clone());
            move |machine: &Machine, point: PersistPoint| {
                for survive in [Survive::None, Survive::Random(point.index)] {
                    let left = Machine::boot(machine.crash_image(survive), 4);
                    let mut options = options.clone();
                    options.error_if_missing = true;
                    let opened = Db::builder("new").machine(left).options(options).open();
                    let mut counts = counts.lock().unwrap();
                    match opened {
                        Ok(db) => {
                            assert_eq!(db.iter().unwrap().count(), 150, "{point:?}");
                            counts.1 += 1;
                        }
                        Err(e) => {
                            assert!(e.to_string().len() > 20, "{e}");
                            counts.0 += 1;
                        }
                    }
                }
            }
        };
        machine.on_persist(Some(Box::new(look)));
        let report = on(&machine, "new")
            .repair_of(&RepairSource::new("old"))
            .unwrap();
        machine.on_persist(None);
        assert_eq!(report.outcome, RepairOutcome::Whole, "{report:#?}");
        let (unfinished, whole) = *counts.lock().unwrap();
        assert!(unfinished > 20, "{design}: {unfinished} and {whole}");
        let left = Machine::boot(machine.crash_image(Survive::None), 4);
        assert_eq!(
            on(&left, "new").open().unwrap().iter().unwrap().count(),
            150
        );
    }
}

/// Versions that only a snapshot reads count as dead and are in the list. After a crash with an
/// open snapshot that is not damage.
#[test]
fn what_a_snapshot_read_is_no_damage() {
    let original = tempfile::tempdir().unwrap();
    let options = settings::small_of(Design::MioDb, Medium::Dax);
    let db = Db::open(original.path(), options.clone()).unwrap();
    for n in 0..60u8 {
        db.put([n], [1; 100]).unwrap();
    }
    db.drain().unwrap();
    let snapshot = db.snapshot();
    for n in 0..30u8 {
        db.put([n], [2; 100]).unwrap();
    }
    db.drain().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in names(original.path()) {
        let copied = folder.path().join(&name);
        std::fs::copy(original.path().join(&name), copied).unwrap();
    }
    drop(snapshot);
    drop(db);
    let beside = tempfile::tempdir().unwrap();
    let to = beside.path().join("repaired");
    let report = Db::builder(&to)
        .options(options.clone())
        .repair_of(&RepairSource::new(folder.path()))
        .unwrap();
    assert!(
        report.losses.iter().all(|loss| !loss.certain),
        "{report:#?}"
    );
    let db = Db::open(&to, options).unwrap();
    for n in 0..60u8 {
        assert_eq!(
            db.get([n]).unwrap(),
            Some(vec![if n < 30 { 2 } else { 1 }; 100])
        );
    }
}

/// A repair into the directory that it reads is refused, also through a link.
#[test]
fn a_repair_does_not_write_where_it_reads() {
    let folder = scratch().unwrap();
    let at = |name: &str| folder.path().join(name);
    let options = settings::small(Medium::Dax);
    drop(Db::open(at("db"), options.clone()).unwrap());
    std::os::unix::fs::symlink("db", at("link")).unwrap();
    for target in ["db", "db/new", "link/new"] {
        let builder = Db::builder(at(target)).options(options.clone());
        let refused = builder.repair_of(&RepairSource::new(at("db"))).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
        let text = refused.to_string();
        assert!(text.contains("in the directory to be repaired"), "{text}");
    }
    assert!(!at("db/new").exists());
}
