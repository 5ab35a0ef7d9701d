//! Tests of the manifest in a file: crashes at every sync, faults at every call, damage, full
//! disks.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use terrace_media::{FaultFs, FileSystem, Machine, Medium, OpenMode, Survive};

use super::items::{OWNERS, SHEET, SLAB, Sheet};
use super::{DB, Editor};
use crate::parts::manifest::state::State;
use crate::parts::manifest::{Change, Edit, LogPlace, Manifest, ManifestError};
use crate::parts::reserve::Reserve;
use crate::types::SEQ_MAX;

const ROOM: u64 = 4 << 10;

fn dir() -> &'static Path {
    Path::new("db")
}

fn machine(seed: u64) -> (Machine, Arc<dyn FileSystem>) {
    let machine = Machine::new(seed, Medium::Mapped);
    let fs = machine.fs();
    fs.create_dir_all(dir()).unwrap();
    (machine, fs)
}

/// Returns an edit without logs in the pool, which this home never has, and the state after it.
fn edit(editor: &mut Editor, state: &State) -> (Edit, State) {
    let (mut edit, mut after) = (Edit::default(), state.clone());
    while edit.changes.len() < 3 {
        let change = editor.change(&after);
        let place = LogPlace::File;
        let change = match change {
            Change::LogCreated { id, .. } => Change::LogCreated { id, place },
            change => change,
        };
        after.apply(&change).unwrap();
        edit.changes.push(change);
    }
    (edit, after)
}

/// Returns the part of a state that outlives the process.
fn kept(state: &State) -> State {
    state.restricted(|change| !change.is_of_pool())
}

/// Opens the manifest of a machine, commits one more edit and reopens it; returns the state found
/// first.
fn recover(machine: &Machine) -> Result<State, ManifestError> {
    let fs = machine.fs();
    let manifest = Manifest::open_file(&fs, dir(), OWNERS)?;
    let found = manifest.state();
    let lost = Machine::boot(machine.crash_image(Survive::None), 1);
    let after = Manifest::open_file(&lost.fs(), dir(), OWNERS)
        .unwrap()
        .state();
    assert_eq!(after, found, "records found once stay");
    manifest
        .commit(Edit::of(Change::LastSeq { seq: SEQ_MAX }))
        .unwrap();
    manifest.verify().unwrap();
    drop(manifest);
    let again = Manifest::open_file(&fs, dir(), OWNERS).unwrap().state();
    let mut expected = found.clone();
    (expected.last_seq, expected.closed) = (SEQ_MAX, false);
    assert_eq!(again, expected);
    Ok(found)
}

fn images(machine: &Machine, index: u64) -> Vec<(String, terrace_media::Image)> {
    let mut survivals = vec![Survive::None, Survive::All];
    survivals.extend((0..4).map(|i| Survive::Random(index * 4 + i)));
    let mut images: Vec<_> = survivals
        .into_iter()
        .map(|s| (format!("{s:?}"), machine.crash_image(s)))
        .collect();
    images.push(("process".into(), machine.process_image()));
    images
}

/// After a crash at any sync or rename, with any surviving bytes, a reopened manifest has the kept
/// part of the state before or after the edit in flight and takes edits.
#[test]
fn edits_in_a_file_are_atomic() {
    let (machine, fs) = machine(191);
    let manifest = Manifest::create_small_file(&fs, dir(), DB, ROOM, OWNERS).unwrap();
    let between = Arc::new(Mutex::new((State::default(), State::default())));
    let crashes = Arc::new(AtomicU64::new(0));
    let (states, count) = (Arc::clone(&between), Arc::clone(&crashes));
    machine.on_persist(Some(Box::new(move |machine, point| {
        let (before, after) = &*states.lock().unwrap();
        for (survive, image) in images(machine, point.index) {
            let found = recover(&Machine::boot(image, point.index)).unwrap();
            assert!(
                &found == before || &found == after,
                "{point:?} {survive}: {found:?}"
            );
            count.fetch_add(1, Ordering::Relaxed);
        }
    })));
    let mut editor = Editor::new(192);
    let mut state = State::default();
    for _ in 0..200 {
        let (edit, after) = edit(&mut editor, &state);
        *between.lock().unwrap() = (kept(&state), kept(&after));
        manifest.commit(edit).unwrap();
        assert_eq!(manifest.state(), after, "in memory the pool is known too");
        state = after;
        *between.lock().unwrap() = (kept(&state), kept(&state));
    }
    machine.on_persist(None);
    manifest.verify().unwrap();
    assert!(manifest.generation() > 3, "replacements were crashed at");
    assert!(crashes.load(Ordering::Relaxed) > 1000);
    let image = machine.crash_image(Survive::None);
    let found = recover(&Machine::boot(image, 1)).unwrap();
    assert_eq!(found, kept(&state), "committed edits are durable");
}

/// After a crash anywhere in the creation there is no manifest, or an empty one.
#[test]
fn creation_of_the_file_is_atomic() {
    let (machine, fs) = machine(193);
    machine.on_persist(Some(Box::new(|machine, point| {
        for (_, image) in images(machine, point.index) {
            let machine = Machine::boot(image, 1);
            match recover(&machine) {
                Ok(found) => assert_eq!(found, State::default()),
                Err(ManifestError::Io(e)) => assert_eq!(e.kind(), ErrorKind::NotFound),
                Err(e) => panic!("{e}"),
            }
            let fs = machine.fs();
            if fs.exists(&dir().join("MANIFEST")).unwrap() {
                // A creation that restarts removes it: its header names the database.
                fs.remove(&dir().join("MANIFEST")).unwrap();
            }
            Manifest::create_file(&fs, dir(), DB, OWNERS)
                .unwrap()
                .verify()
                .unwrap();
            assert_eq!(recover(&machine).unwrap(), State::default());
        }
    })));
    Manifest::create_file(&fs, dir(), DB, OWNERS).unwrap();
    assert!(machine.points() >= 3);
}

/// If the n-th call of the file system fails, for every n, with a disk error or a full disk, the
/// edit did not happen, and the manifest either takes the next edit or reports that it cannot;
/// reopening finds the state before or after.
#[test]
fn failed_calls_lose_nothing() {
    for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
        let mut went_on = 0;
        let mut stopped = 0;
        // BOUND: the script makes a fixed number of calls.
        for n in 1.. {
            let (machine, inner) = machine(195);
            let faults = FaultFs::new(inner);
            let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
            let manifest = Manifest::create_small_file(&fs, dir(), DB, ROOM, OWNERS).unwrap();
            faults.fail_at(n, kind, false);
            let mut editor = Editor::new(196);
            let mut state = State::default();
            let mut failed = None;
            for _ in 0..150 {
                let (edit, after) = edit(&mut editor, &state);
                match manifest.commit(&edit) {
                    Ok(()) => {}
                    Err(ManifestError::Draft(e)) => {
                        assert_eq!(e.kind(), kind);
                        assert_eq!(manifest.state(), state);
                        went_on += 1;
                        manifest.commit(&edit).unwrap();
                    }
                    Err(ManifestError::Io(e)) => {
                        assert!(e.to_string().contains("MANIFEST"), "{e}");
                        failed = Some((kept(&state), kept(&after)));
                        break;
                    }
                    Err(e) => panic!("{e}"),
                }
                state = after;
            }
            let reached = faults.operations() >= n;
            let Some((before, after)) = failed else {
                if !reached {
                    break;
                }
                assert_eq!(recover(&machine).unwrap(), kept(&state));
                continue;
            };
            stopped += 1;
            let again = manifest.commit(Edit::of(Change::LastSeq { seq: 1 }));
            assert!(matches!(again, Err(ManifestError::Failed(_))), "{again:?}");
            drop(manifest);
            faults.reset();
            for (_, image) in images(&machine, n) {
                let found = recover(&Machine::boot(image, 1)).unwrap();
                assert!(found == before || found == after, "call {n}");
            }
        }
        assert!(went_on >= 3 && stopped >= 30, "{went_on}, {stopped}");
    }
}

/// On a full disk edits succeed until the file has to be replaced; that edit is refused without
/// effect, and succeeds once there is space.
#[test]
fn a_full_disk_refuses_and_comes_back() {
    let (_machine, inner) = machine(197);
    let faults = FaultFs::new(inner);
    let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
    let manifest = Manifest::create_small_file(&fs, dir(), DB, ROOM, OWNERS).unwrap();
    faults.fill_up(true);
    let create = |id| {
        let place = LogPlace::File;
        manifest.commit(Edit::of(Change::LogCreated { id, place }))
    };
    let count = (0..).find(|&id| create(id).is_err()).unwrap();
    assert!(count > 50, "only {count} edits fit the file");
    for _ in 0..3 {
        let Err(ManifestError::Draft(e)) = create(count) else {
            panic!("there is no space");
        };
        assert_eq!(e.kind(), ErrorKind::StorageFull);
    }
    assert_eq!(manifest.state().logs.len() as u64, count);
    faults.fill_up(false);
    create(count).unwrap();
    drop(manifest);
    let found = Manifest::open_file(&fs, dir(), OWNERS).unwrap().state();
    assert_eq!(found.logs.len() as u64, count + 1);
}

/// A copy that drops zeros has no space for later records. It is allocated before the next record
/// needs it.
#[cfg(unix)]
#[test]
fn a_copy_without_zeros_takes_its_space() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let fs: Arc<dyn FileSystem> = Arc::new(terrace_media::OsFs);
    drop(Manifest::create_file(&fs, folder.path(), DB, OWNERS).unwrap());
    let path = folder.path().join("MANIFEST");
    let bytes = std::fs::read(&path).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    std::fs::write(&path, &bytes[..used]).unwrap();
    let copy = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    copy.set_len(bytes.len() as u64).unwrap();
    let taken = || 512 * copy.metadata().unwrap().blocks();
    assert!(taken() < bytes.len() as u64);
    let manifest = Manifest::open_file(&fs, folder.path(), OWNERS).unwrap();
    manifest.lend(&Reserve::none());
    assert!(taken() >= bytes.len() as u64);
}

/// The end of a log is recorded by the next written edit, without a write of its own, unless that
/// edit retires the log. On a full disk the requested changes go first.
#[test]
fn ends_of_logs_ride_on_edits() {
    let (_machine, inner) = machine(200);
    let faults = FaultFs::new(inner);
    let fs: Arc<dyn FileSystem> = Arc::new(faults.clone());
    let manifest = Manifest::create_small_file(&fs, dir(), DB, ROOM, OWNERS).unwrap();
    let place = LogPlace::File;
    for id in 1..=200 {
        manifest
            .commit(Edit::of(Change::LogCreated { id, place }))
            .unwrap();
    }
    let end_of = |id: u64| manifest.state().logs.get(&id).map(|log| log.end);
    let before = contents(&fs).unwrap();
    manifest.note_log_end(1, 4096);
    manifest.note_log_end(2, 128);
    manifest.note_log_end(900, 64);
    manifest
        .commit(Edit::of(Change::Removed {
            owner: &SLAB,
            id: 1,
        }))
        .unwrap_err();
    manifest.commit(Edit::default()).unwrap();
    assert_eq!(contents(&fs).unwrap(), before);
    assert_eq!(end_of(1), Some(None));
    manifest
        .commit(Edit::of(Change::LogRetired { id: 2 }))
        .unwrap();
    assert_eq!((end_of(1), end_of(2)), (Some(Some(4096)), None));
    // An end is recorded once: another edit is as short as before.
    manifest.note_log_end(1, 4096);
    let edit = Edit::of(Change::LogEnded { id: 1, end: 4160 });
    assert!(matches!(
        manifest.commit(edit),
        Err(ManifestError::Corrupt(_))
    ));
    // There is no space for the ends of all other logs.
    let seq = |seq| manifest.commit(Edit::of(Change::LastSeq { seq }));
    let is_full = |bytes: Vec<u8>| bytes[ROOM as usize - 1000..].iter().any(|b| *b != 0);
    while !is_full(contents(&fs).unwrap()) {
        seq(1).unwrap();
    }
    faults.fill_up(true);
    for id in 3..=200 {
        manifest.note_log_end(id, 1 << 40);
    }
    let taken = (1..).find(|n| seq(*n).is_err()).unwrap();
    assert!(taken > 3, "{taken} edits were taken");
    assert_eq!(end_of(3), Some(None));
    faults.fill_up(false);
    seq(1000).unwrap();
    assert_eq!(end_of(3), Some(Some(1 << 40)));
    manifest.verify().unwrap();
    let after = manifest.state();
    drop(manifest);
    assert_eq!(
        Manifest::open_file(&fs, dir(), OWNERS).unwrap().state(),
        after
    );
}

/// Overwrites the manifest of a machine.
fn damage(fs: &Arc<dyn FileSystem>, bytes: &[u8]) {
    let path = dir().join("MANIFEST");
    let file = fs.open(&path, OpenMode::Truncate).unwrap();
    file.write_at(0, bytes).unwrap();
}

fn contents(fs: &Arc<dyn FileSystem>) -> io::Result<Vec<u8>> {
    let file = fs.open(&dir().join("MANIFEST"), OpenMode::Read)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// If any byte changes, the manifest is refused, or only the last edit is missing, as after a
/// crash; a truncated file is refused at any length.
#[test]
fn damage_in_the_file_is_found() {
    let (_machine, fs) = machine(198);
    let manifest = Manifest::create_small_file(&fs, dir(), DB, ROOM, OWNERS).unwrap();
    let mut editor = Editor::new(199);
    let mut states = vec![State::default()];
    let mut state = State::default();
    for _ in 0..8 {
        let (edit, after) = edit(&mut editor, &state);
        manifest.commit(edit).unwrap();
        state = after;
        states.push(kept(&state));
    }
    drop(manifest);
    states.dedup();
    let good = contents(&fs).unwrap();
    assert_eq!(good.len() as u64, ROOM, "its space was allocated ahead");
    let end = good.iter().rposition(|&b| b != 0).unwrap();
    let last_two = &states[states.len() - 2..];
    let mut refused = 0;
    for at in 0..=end {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        damage(&fs, &bad);
        match Manifest::open_file(&fs, dir(), OWNERS) {
            Ok(found) => assert!(last_two.contains(&found.state()), "byte {at}"),
            Err(ManifestError::Corrupt(_)) => refused += 1,
            Err(e) => panic!("byte {at}: {e}"),
        }
    }
    assert!(refused * 2 > end, "{refused} of {end}");
    for cut in (0..good.len()).step_by(61) {
        damage(&fs, &good[..cut]);
        let refused = Manifest::open_file(&fs, dir(), OWNERS);
        let e = refused.err().unwrap_or_else(|| panic!("cut at {cut}"));
        assert!(matches!(e, ManifestError::Corrupt(_)), "{e}");
    }
    // Another version is reported as such, with what to do.
    for (version, advice) in [(5, "dump the database"), (7, "use a later version")] {
        let mut other = good.clone();
        other[4] = version;
        let crc = crc32c::crc32c(&other[..60]);
        other[60..64].copy_from_slice(&crc.to_le_bytes());
        damage(&fs, &other);
        let refused = Manifest::open_file(&fs, dir(), OWNERS)
            .map(drop)
            .unwrap_err();
        assert!(matches!(refused, ManifestError::Version { .. }));
        assert!(refused.to_string().contains(advice), "{refused}");
        let e = crate::error::Error::from(refused);
        assert_eq!(e.kind(), crate::error::ErrorKind::Unsupported);
    }
}

/// A state that has become small gives its space back when the manifest is lent a reserve, as at
/// each opening; a crash at any sync of that keeps the state.
#[test]
fn space_comes_back() {
    let (machine, fs) = machine(201);
    let manifest = Manifest::create_small_file(&fs, dir(), DB, ROOM, OWNERS).unwrap();
    let sheet = |id| Sheet {
        id,
        place: (0, vec![b'k'; 2000]),
    };
    for id in 1..=60 {
        manifest.commit(Edit::of(Change::added(sheet(id)))).unwrap();
    }
    for id in 1..60 {
        let owner = &SHEET;
        manifest
            .commit(Edit::of(Change::Removed { owner, id }))
            .unwrap();
    }
    let large = contents(&fs).unwrap().len() as u64;
    assert_eq!(large, manifest.room());
    assert!(large > 100 << 10, "{large}");
    let expected = manifest.state();
    let points = Arc::new(AtomicU64::new(0));
    let (seen, state) = (Arc::clone(&points), expected.clone());
    machine.on_persist(Some(Box::new(move |machine, point| {
        seen.fetch_add(1, Ordering::Relaxed);
        for survive in [Survive::None, Survive::All, Survive::Random(point.index)] {
            let found = recover(&Machine::boot(machine.crash_image(survive), 1)).unwrap();
            assert_eq!(found, state, "{point:?} {survive:?}");
        }
    })));
    manifest.lend(&Reserve::none());
    machine.on_persist(None);
    assert!(points.load(Ordering::Relaxed) > 0);
    assert!(manifest.room() <= 16 << 10, "{}", manifest.room());
    assert_eq!(manifest.state(), expected);
    manifest.verify().unwrap();
    let small = manifest.room();
    manifest.lend(&Reserve::none());
    assert_eq!(manifest.room(), small, "once is enough");
    drop(manifest);
    let found = Manifest::open_file(&fs, dir(), OWNERS).unwrap().state();
    assert_eq!(found, expected);
}

/// An edit after which the manifest would be too long to be read is refused and changes nothing;
/// edits that remove data go on.
#[test]
fn a_manifest_that_would_be_too_long_is_refused() {
    let (_machine, fs) = machine(202);
    let manifest = Manifest::create_small_file(&fs, dir(), DB, ROOM, OWNERS).unwrap();
    let sheet = |id| Sheet {
        id,
        place: (0, vec![b'k'; 8000]),
    };
    let mut added = 0;
    let refused = loop {
        match manifest.commit(Edit::of(Change::added(sheet(added + 1)))) {
            Ok(()) => added += 1,
            Err(e) => break e,
        }
        assert!(added < 1000, "no manifest is too long");
    };
    assert!(matches!(refused, ManifestError::Draft(_)), "{refused}");
    assert!(refused.to_string().contains("larger tables"), "{refused}");
    assert!(added > 20, "{added}");
    assert_eq!(manifest.state().items::<Sheet>().count() as u64, added);
    manifest.verify().unwrap();
    let owner = &SHEET;
    for id in 1..=added {
        manifest
            .commit(Edit::of(Change::Removed { owner, id }))
            .unwrap();
    }
    manifest
        .commit(Edit::of(Change::added(sheet(added + 1))))
        .unwrap();
    let state = manifest.state();
    drop(manifest);
    let found = Manifest::open_file(&fs, dir(), OWNERS).unwrap().state();
    assert_eq!(found, state);
}
