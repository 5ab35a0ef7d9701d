//! A database with wrong files: files of another database, and its own missing, emptied, swapped or
//! replaced with older versions.
//!
//! Opening it fails, or all of it is readable. A failed open does no harm: with the right files
//! restored, everything is there. Files of another database stay unchanged.

use std::collections::BTreeMap;
use std::path::Path;

use terrace::{Db, ErrorKind, Options};

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::watchdog::watched;

/// The files of a directory with their contents.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

const KEYS: u32 = 300;

/// Returns all files of a directory except the lock, which is never read.
pub(super) fn files(folder: &Path) -> Outcome<Files> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files = Files::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("the directory: {e}"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_file() && name != "LOCK" {
            let content = std::fs::read(&path).map_err(|e| format!("{name}: {e}"))?;
            files.insert(name.into_owned(), content);
        }
    }
    Ok(files)
}

fn put_back(folder: &Path, files: &Files) -> Outcome {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir(folder).map_err(|e| format!("a directory: {e}"))?;
    for (name, content) in files {
        std::fs::write(folder.join(name), content).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(())
}

/// Returns the value of a key in a state. States are numbered, and each write makes the next one.
fn value(key: u32, state: u32) -> Vec<u8> {
    let mut value = state.to_be_bytes().to_vec();
    value.resize(
        4 + (key.wrapping_mul(2_654_435_761) >> 24) as usize,
        key as u8,
    );
    value
}

/// Writes one key in each state of the range. The write of each state is unique.
pub(super) fn work(db: &Db, states: std::ops::Range<u32>) -> Outcome {
    for state in states {
        let key = key_of(state);
        let put = db.put(key.to_be_bytes(), value(key, state));
        put.map_err(|e| format!("put {state}: {e:?}"))?;
    }
    Ok(())
}

fn key_of(state: u32) -> u32 {
    state.wrapping_mul(7919) % KEYS
}

/// Returns the state of the database, or `None` if a read or a verification reports a problem.
pub(super) fn state_of(db: &Db, last: u32) -> Outcome<Option<u32>> {
    let mut found: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let iter = match db.iter() {
        Ok(iter) => iter,
        Err(e) if e.kind() == ErrorKind::Corruption => return Ok(None),
        Err(e) => return Err(format!("a scan: {e:?}")),
    };
    for pair in iter {
        match pair.map(terrace::KeyValue::into_pair) {
            Ok((key, value)) => {
                let key = key.try_into().map_err(|_| "a key that was never written")?;
                found.insert(u32::from_be_bytes(key), value);
            }
            Err(e) if e.kind() == ErrorKind::Corruption => return Ok(None),
            Err(e) => return Err(format!("a scan: {e:?}")),
        }
    }
    let report = db.verify(&mut |_| {});
    if !report
        .map_err(|e| format!("verify: {e:?}"))?
        .problems
        .is_empty()
    {
        return Ok(None);
    }
    let newest = |value: &Vec<u8>| value.first_chunk().map_or(0, |n| u32::from_be_bytes(*n));
    let state = found.values().map(newest).max().map_or(0, |n| n + 1);
    let mut expected = BTreeMap::new();
    for state in 0..state {
        let key = key_of(state);
        expected.insert(key, value(key, state));
    }
    match found == expected && state <= last {
        true => Ok(Some(state)),
        false => Err(format!(
            "it opens without an error and shows {} keys, the newest of state {state} of {last}, \
             which match no state",
            found.len()
        )),
    }
}

/// A change of the files.
struct Change {
    what: String,
    files: Files,
    /// The names of files of another database, which must stay.
    foreign: Vec<String>,
    /// Whether the end of the last log may be lost, as after a crash, so that an earlier state may
    /// show.
    may_be_older: bool,
}

fn is_log(name: &str) -> bool {
    name.ends_with(".log")
}

/// Changes the files of a database. `older` are its files at an earlier time, `other` those of
/// another database.
fn change(rng: &mut fastrand::Rng, own: &Files, older: &Files, other: &Files) -> Change {
    let draw = |rng: &mut fastrand::Rng, files: &Files| {
        let names: Vec<&String> = files.keys().collect();
        names[rng.usize(..names.len())].clone()
    };
    let mut files = own.clone();
    let name = draw(rng, own);
    let mut foreign = Vec::new();
    // A pool contains logs, and an older one is a complete earlier state. So is an older manifest
    // whose files all still exist, unless a log has records that only a newer manifest accounts
    // for: tables that it does not name may be remains of a crash.
    let mut may_be_older = is_log(&name) || ["pool", "MANIFEST"].contains(&name.as_str());
    let what = match rng.u8(..6) {
        0 => {
            files.remove(&name);
            format!("{name} is gone")
        }
        1 => {
            files.insert(name.clone(), Vec::new());
            format!("{name} is empty")
        }
        2 => {
            let with = draw(rng, own);
            let (one, two) = (own[&name].clone(), own[&with].clone());
            files.insert(name.clone(), two);
            files.insert(with.clone(), one);
            may_be_older |= is_log(&with) || with == "pool";
            format!("{name} and {with} are swapped")
        }
        3 => match older.get(&name) {
            Some(content) => {
                files.insert(name.clone(), content.clone());
                format!("{name} is as it was before")
            }
            None => "nothing is wrong".to_owned(),
        },
        4 => match other.get(&name) {
            Some(content) => {
                files.insert(name.clone(), content.clone());
                format!("{name} is another database's")
            }
            None => "nothing is wrong".to_owned(),
        },
        _ => {
            for (name, content) in other {
                // Gives the file a name that the database itself may use later.
                let digits: String = name.chars().filter(char::is_ascii_digit).collect();
                let to = match digits.parse::<u64>() {
                    Ok(number) => {
                        let (from, to) = (format!("{number:016}"), number + rng.u64(..40));
                        name.replace(&from, &format!("{to:016}"))
                    }
                    Err(_) => name.clone(),
                };
                if !own.contains_key(&to) {
                    files.insert(to.clone(), content.clone());
                    foreign.push(to);
                }
            }
            format!("{} files of another database are there too", foreign.len())
        }
    };
    if foreign.is_empty() && files == *own {
        may_be_older = false;
    }
    Change {
        what,
        files,
        foreign,
        may_be_older,
    }
}

/// Creates two databases, and opens the first with its files changed in several ways.
pub(super) fn once(rng: &mut fastrand::Rng, options: &Options) -> Outcome {
    let place = scratch()?;
    let (folder, beside) = (place.path().join("db"), place.path().join("other"));
    let open = |folder: &Path| watched("opening", || Db::open(folder, options.clone()));
    let mut last = 0;
    let mut older = Files::new();
    for life in 0..2 {
        let db = open(&folder).map_err(|e| format!("life {life}: {e:?}"))?;
        let until = last + rng.u32(50..1500);
        work(&db, last..until)?;
        last = until;
        if rng.bool() {
            db.drain().map_err(|e| format!("drain: {e:?}"))?;
        }
        if rng.bool() {
            db.close().map_err(|e| format!("close: {e:?}"))?;
        }
        drop(db);
        if life == 0 {
            older = files(&folder)?;
        }
    }
    let own = files(&folder)?;
    let db = open(&beside).map_err(|e| format!("the other: {e:?}"))?;
    work(&db, 0..rng.u32(50..1500))?;
    drop(db);
    let other = files(&beside)?;
    for _ in 0..6 {
        let change = change(rng, &own, &older, &other);
        let opened = tried(&folder, &change, last, &open);
        let opened = opened.map_err(|e| format!("{} of {:?}: {e}", change.what, own.keys()))?;
        // In any case the right files are a whole database. A database that was opened may have
        // continued, in which case they are older than the rest.
        if rng.bool() {
            if opened {
                put_back(&folder, &Files::new())?;
            }
            restored(&folder, &own, last, &open).map_err(|e| format!("{}: {e}", change.what))?;
        }
    }
    Ok(())
}

type Open<'a> = &'a dyn Fn(&Path) -> terrace::Result<Db>;

/// Returns whether the database was opened.
fn tried(folder: &Path, change: &Change, last: u32, open: Open<'_>) -> Outcome<bool> {
    put_back(folder, &change.files)?;
    let stays = |when: &str| {
        let now = files(folder)?;
        let gone = change
            .foreign
            .iter()
            .find(|name| now.get(*name) != change.files.get(*name));
        match gone {
            Some(name) => Err(format!("{when}: {name} was changed")),
            None => Ok(now),
        }
    };
    match open(folder) {
        Ok(db) => {
            let state = state_of(&db, last)?;
            if let Some(state) = state
                && state != last
                && !change.may_be_older
            {
                return Err(format!("it shows state {state} of {last} without an error"));
            }
            stays("open")?;
            if state == Some(last) {
                work(&db, last..last + 300)?;
                let drained = db.drain();
                drained.map_err(|e| format!("drain: {e:?}"))?;
                match state_of(&db, last + 300)? {
                    Some(state) if state == last + 300 => {}
                    state => return Err(format!("after more writes: state {state:?}")),
                }
            }
            drop(db);
            stays("closed").map(|_| true)
        }
        Err(e)
            if [
                ErrorKind::Corruption,
                ErrorKind::Invalid,
                ErrorKind::Unsupported,
            ]
            .contains(&e.kind()) =>
        {
            let now = stays("refused")?;
            match change.files.keys().find(|name| !now.contains_key(*name)) {
                Some(name) => Err(format!("the opening is refused ({e}), and {name} is gone")),
                None => Ok(false),
            }
        }
        Err(e) => Err(format!("opening says {e:?}")),
    }
}

/// Opens the database with its own files restored over all that a failed open has left.
fn restored(folder: &Path, own: &Files, last: u32, open: Open<'_>) -> Outcome {
    let left = files(folder)?;
    let mut whole = left;
    whole.extend(
        own.iter()
            .map(|(name, content)| (name.clone(), content.clone())),
    );
    put_back(folder, &whole)?;
    let db = open(folder).map_err(|e| format!("with the right files again: {e:?}"))?;
    match state_of(&db, last)? {
        Some(state) if state == last => Ok(()),
        state => Err(format!(
            "with the right files again it shows {state:?} of {last}"
        )),
    }
}
