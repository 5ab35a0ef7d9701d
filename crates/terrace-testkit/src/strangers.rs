//! Strangers: a database beside files of others, which stay byte for byte while it lives, is closed, is
//! opened again, and is destroyed.

use std::collections::BTreeMap;
use std::path::Path;

use terrace::{Db, Design, Workers};
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::settings;

/// Keys that are written in each life.
const KEYS: u32 = 400;
/// How often the database is opened.
const LIVES: u32 = 3;

/// Runs the case of `seed`: a design, how jobs run, and the names and contents of the strangers.
pub fn once(seed: u64, medium: Medium) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(seed);
    let design = Design::ALL[rng.usize(..Design::ALL.len())];
    let mut options = settings::small_of(design, medium);
    if rng.bool() {
        options.background.workers = Workers::Threads(2);
    }
    let folder = scratch()?;
    let mut strangers = BTreeMap::new();
    for life in 0..LIVES {
        if life > 0 || rng.bool() {
            add(&mut rng, life == 0, folder.path(), &mut strangers)?;
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

/// Puts files into the folder whose names nothing has there. The name of a log hinders a creation.
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
