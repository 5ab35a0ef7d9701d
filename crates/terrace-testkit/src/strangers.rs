//! Strangers: a database next to foreign files, which stay unchanged while it is used, closed,
//! reopened and destroyed; one whose own files are missing, swapped or older; one that is opened
//! twice, by one process and by two; and one on a tiny device.

mod mixed;
pub mod processes;
mod tiny;

use std::collections::BTreeMap;
use std::path::Path;

use terrace::{Db, Design, ErrorKind, Options};
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::settings;
use crate::watchdog::{self, watched};

/// The number of keys written in each life.
const KEYS: u32 = 400;
/// How often the database is opened.
const LIVES: u32 = 3;

/// Runs the case of `seed`, which determines the kind of case, the design, how jobs run, and names
/// and contents.
pub fn once(seed: u64, medium: Medium) -> Outcome {
    let _case = watchdog::case(format!("strangers on {medium}, seed {seed:#x}"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let design = Design::ALL[rng.usize(..Design::ALL.len())];
    let mut options = settings::small_of(design, medium);
    if rng.bool() {
        options.background = settings::background(seed);
    }
    let told = |e: String| format!("{design}: {e}");
    match seed % 4 {
        1 => mixed::once(&mut rng, &options).map_err(told),
        2 => tiny::once(&mut rng, seed),
        3 => twice(&mut rng, &options).map_err(told),
        _ => beside(&mut rng, design, &options),
    }
}

/// Runs the case of a seed in which range deletes cover whole tables: their space must be released.
pub fn room(seed: u64, medium: Medium) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let design = [Design::Leveled, Design::MioDbSsd][rng.usize(..2)];
    tiny::covered(&mut rng, &settings::small_of(design, medium))
        .map_err(|e| format!("{design}: {e}"))
}

/// Checks that an open database cannot be opened, destroyed or repaired a second time, by any path,
/// including a relative one.
fn twice(rng: &mut fastrand::Rng, options: &Options) -> Outcome {
    let place = scratch()?;
    let (folder, link) = (place.path().join("db"), place.path().join("link"));
    let db = Db::open(&folder, options.clone()).map_err(|e| format!("opening: {e:?}"))?;
    std::os::unix::fs::symlink(&folder, &link).map_err(|e| format!("a link: {e}"))?;
    let paths = [
        folder.clone(),
        link,
        folder.join("../db/."),
        folder.join("."),
    ];
    for n in 0..KEYS {
        let written = db.put(n.to_be_bytes(), vec![7; rng.usize(10..300)]);
        written.map_err(|e| format!("key {n}: {e:?}"))?;
        if rng.u8(..40) > 0 {
            continue;
        }
        let path = &paths[rng.usize(..paths.len())];
        let mut options = options.clone();
        options.read_only = rng.bool();
        let second = match rng.bool() {
            true => watched("a second opening", || Db::open(path, options)).map(drop),
            false => watched("destroying", || Db::destroy(path)),
        };
        match second {
            Err(e) if e.kind() == ErrorKind::Locked => {}
            second => return Err(format!("{} is taken: {second:?}", path.display())),
        }
    }
    let there = db.iter().map_err(|e| format!("a scan: {e:?}"))?.count();
    if there != KEYS as usize {
        return Err(format!("{there} of {KEYS} keys are there"));
    }
    let report = db.verify(&mut |_| {}).map_err(|e| format!("{e:?}"))?;
    match report.problems.as_slice() {
        [] => Ok(()),
        problems => Err(problems.join("; ")),
    }
}

/// Runs a database next to foreign files.
fn beside(rng: &mut fastrand::Rng, design: Design, options: &Options) -> Outcome {
    let folder = scratch()?;
    let mut strangers = BTreeMap::new();
    for life in 0..LIVES {
        if life > 0 || rng.bool() {
            add(rng, life == 0, folder.path(), &mut strangers)?;
        }
        let opened = Db::open(folder.path(), options.clone());
        let db = opened.map_err(|e| format!("{design}, life {life}: {e}"))?;
        for n in 0..KEYS {
            let written = db.put(n.to_be_bytes(), vec![life as u8; rng.usize(10..300)]);
            written.map_err(|e| format!("{design}, life {life}, key {n}: {e}"))?;
        }
        db.drain().map_err(|e| format!("{design}, drain: {e}"))?;
        check(folder.path(), &strangers, "open")?;
        let closed = if rng.bool() { db.close() } else { Ok(()) };
        closed.map_err(|e| format!("{design}, close: {e}"))?;
        drop(db);
        check(folder.path(), &strangers, "closed")?;
    }
    Db::destroy(folder.path()).map_err(|e| format!("{design}, destroy: {e}"))?;
    check(folder.path(), &strangers, "destroyed")?;
    let left = std::fs::read_dir(folder.path()).map_or(0, Iterator::count);
    match left == strangers.len() {
        true => Ok(()),
        false => Err(format!("{left} files are left of {}", strangers.len())),
    }
}

/// Adds foreign files with unused names to the directory. The name of a log prevents creation.
fn add(
    rng: &mut fastrand::Rng,
    is_new: bool,
    folder: &Path,
    strangers: &mut BTreeMap<String, Vec<u8>>,
) -> Outcome {
    for _ in 0..rng.usize(1..12) {
        let number = match rng.u8(..4) {
            0 => rng.u64(..),
            _ => rng.u64(1..200),
        };
        let name = match rng.u8(..6) {
            0 => format!("{number:06}.sst"),
            1 => format!("wal-{}.log", number % 10_000),
            2 if !is_new => format!("wal-{number:016}.log"),
            3 => format!("notes-{number}"),
            _ => format!("{number:016}.sst"),
        };
        let path = folder.join(&name);
        if path.exists() {
            continue;
        }
        let content: Vec<u8> = match rng.bool() {
            true => vec![0; rng.usize(..2000)],
            false => (0..rng.usize(..2000)).map(|_| rng.u8(..)).collect(),
        };
        std::fs::write(&path, &content).map_err(|e| format!("{name}: {e}"))?;
        strangers.insert(name, content);
    }
    Ok(())
}

fn check(folder: &Path, strangers: &BTreeMap<String, Vec<u8>>, when: &str) -> Outcome {
    for (name, content) in strangers {
        match std::fs::read(folder.join(name)) {
            Ok(found) if found == *content => {}
            Ok(_) => return Err(format!("{when}: {name} was changed")),
            Err(e) => return Err(format!("{when}: {name} is gone: {e}")),
        }
    }
    Ok(())
}
