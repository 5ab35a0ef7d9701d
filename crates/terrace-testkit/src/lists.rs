//! Memtables in the pool that are their own logs, in the states that random crashes seldom reach:
//! nodes of an earlier use behind the end of a list, and links that are missing after a kill.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use terrace::inspect::{self, LogPiece, LogPlace};
use terrace::{Db, Design, Durability};
use terrace_media::{Image, Machine, Medium, Survive};

use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::settings;

/// The bytes of the marks at the end of a list's extent (parts/log/layout.rs).
const MARKS: u64 = 2 * 64;

/// All pairs of a database.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Opens the database of a machine.
pub fn open(machine: &Machine) -> Outcome<Db> {
    let options = settings::small_of(Design::NoveLsm, machine.medium());
    let opened = Place::machine(machine).open(&options);
    opened.map_err(|e| format!("opening: {e:?}"))
}

/// Returns all pairs.
pub fn all(db: &Db) -> Outcome<Pairs> {
    let pairs = db.iter().map_err(|e| format!("an iterator: {e:?}"))?;
    pairs
        .map(|pair| {
            let pair = pair.map_err(|e| format!("a pair: {e:?}"))?;
            Ok((pair.key().to_vec(), pair.value().to_vec()))
        })
        .collect()
}

/// Collects what `take` returns at each persist point of `run`.
pub fn images(
    machine: &Machine,
    take: impl Fn(&Machine) -> Vec<Image> + Send + 'static,
    run: impl FnOnce() -> Outcome,
) -> Outcome<Vec<Image>> {
    let taken = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&taken);
    machine.on_persist(Some(Box::new(move |machine: &Machine, _| {
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(take(machine));
    })));
    let ran = run();
    machine.on_persist(None);
    let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
    ran.map(|()| std::mem::take(&mut *taken))
}

/// Writes `count` entries and flushes them, so that the memtable in the pool is next.
pub fn begin_list(db: &Db, count: u8) -> Outcome {
    for key in 0..count {
        let put = db.put([key; 8], [key; 40]);
        put.map_err(|e| format!("an entry before the list: {e:?}"))?;
    }
    db.flush().map_err(|e| format!("a flush: {e:?}"))
}

/// A batch of a list: its offset in the pool, its bytes, and its first number.
type Record = (u64, u64, u64);

/// Returns the batches of the only list that has some.
fn records(folder: &Path) -> Outcome<Vec<Record>> {
    let fail = |e| format!("inspecting a list: {e:?}");
    let mut found = Vec::new();
    for place in inspect::logs(folder).map_err(fail)? {
        let LogPlace::List { id, .. } = place else {
            continue;
        };
        let mut record = |piece: LogPiece<'_>| {
            if let LogPiece::Record {
                offset,
                bytes,
                entries,
                ..
            } = piece
            {
                found.push((offset, bytes, entries[0].seq));
            }
            Ok::<(), terrace::Error>(())
        };
        inspect::pool_log(folder, id, &mut record).map_err(fail)?;
    }
    Ok(found)
}

/// Copies what a process that is killed now leaves.
fn copy(from: &Path, to: &Path) -> Outcome {
    let fail = |e| format!("copying a database: {e}");
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).map_err(fail)?;
    for entry in std::fs::read_dir(from).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        std::fs::copy(entry.path(), to.join(entry.file_name())).map_err(fail)?;
    }
    Ok(())
}

/// A crash takes the first node of a list and leaves the others. A later list gets their space, and
/// ends where one of them begins that would have the next number if numbers were used again: it
/// must not take that for its own. Returns how many lists ended there.
///
/// While the marks of the list are there, the missing node is damage.
pub fn reused() -> Outcome<u64> {
    let folder = scratch()?;
    let at = |name: &str| folder.path().join(name);
    let mut options = settings::small_of(Design::NoveLsm, Medium::Mapped);
    // Memtables take the beginning of the old list's space, and a filter would be behind its end.
    options.buffer.filter_bits_per_key = 0;
    options.front.memtable_bytes = 16 << 10;
    options.front.pm_memtable_bytes = Some(256 << 10);
    let open = |name: &str| {
        let opened = Place::folder(at(name)).open(&options);
        opened.map_err(|e| format!("opening: {e:?}"))
    };
    let db = open("first")?;
    begin_list(&db, 1)?;
    for n in 0..200u8 {
        let put = db.put([n; 8], [n; 1000]);
        put.map_err(|e| format!("put {n}: {e:?}"))?;
    }
    copy(&at("first"), &at("lost"))?;
    let old = records(&at("lost"))?;
    let first = *old.first().ok_or("the first list has no entry")?;
    let pool = OpenOptions::new().write(true).open(at("lost").join("pool"));
    let pool = pool.map_err(|e| format!("opening the pool: {e}"))?;
    let zero = |off: u64, len: usize| {
        let written = pool.write_all_at(&vec![0; len], off);
        written.map_err(|e| format!("changing the pool: {e}"))
    };
    zero(first.0, 8)?;
    copy(&at("lost"), &at("next"))?;
    match open("next") {
        Err(e) if e.contains("a node that is not whole") => {}
        Err(e) => return Err(e),
        Ok(_) => return Err("a list without its first node is taken for an empty one".into()),
    }
    for place in inspect::logs(at("lost")).map_err(|e| format!("finding lists: {e:?}"))? {
        if let LogPlace::List { offset, bytes, .. } = place {
            zero(offset + bytes - MARKS, MARKS as usize)?;
        }
    }

    // Returns the place of the first node of the next list.
    let next_life = |before: u8, bytes: usize| -> Outcome<Record> {
        copy(&at("lost"), &at("next"))?;
        let db = open("next")?;
        if all(&db)?.len() != 1 {
            return Err("the list does not end before its first node".into());
        }
        begin_list(&db, before)?;
        db.put([0; 8], vec![1; bytes])
            .map_err(|e| format!("the entry of a list: {e:?}"))?;
        let expected = all(&db)?;
        copy(&at("next"), &at("after"))?;
        let found = all(&open("after")?)?;
        if found != expected {
            return Err(format!(
                "{} pairs behind a list of one entry, of {}",
                found.len(),
                expected.len()
            ));
        }
        copy(&at("next"), &at("after"))?;
        let found = records(&at("after"))?;
        found.first().copied().ok_or("a list has no entry".into())
    };
    let (place, least, _) = next_life(1, 0)?;
    let mut ended = 0;
    for (offset, _, seq) in old {
        let before = seq - first.2;
        let more = offset.checked_sub(place + least);
        let (Some(more @ ..1200), 2..150) = (more, before) else {
            continue;
        };
        // The height of the node depends on its number.
        for bytes in [
            more.saturating_sub(16),
            more.saturating_sub(8),
            more,
            more + 8,
        ] {
            let (found, len, _) = next_life(before as u8 - 1, bytes as usize)?;
            ended += u64::from(found + len == offset);
        }
    }
    Ok(ended)
}

/// A power loss takes pages with links, and the recovery after it is killed before it has made them
/// again: the next one must not rely on them. Returns the number of kills.
pub fn interrupted(seed: u64) -> Outcome<u64> {
    let machine = Machine::new(seed, Medium::Mapped);
    let db = open(&machine)?;
    begin_list(&db, 1)?;
    for n in 1..200u8 {
        // The middle of the list changes all the time.
        let put = db.put([n.wrapping_mul(77); 8], [n; 100]);
        put.map_err(|e| format!("put {n}: {e:?}"))?;
        if n % 16 == 0 {
            let put = db.put_with([n; 9], [n; 9], Durability::Sync);
            put.map_err(|e| format!("synced put {n}: {e:?}"))?;
        }
    }
    let mut kills = 0;
    for n in 0..6 {
        let survive = match n {
            0 => Survive::None,
            n => Survive::Random(seed << 8 | n),
        };
        let image = machine.crash_image(survive);
        let expected = all(&open(&Machine::boot(image.clone(), seed))?)?;
        let machine = Machine::boot(image, seed);
        let take = |machine: &Machine| vec![machine.process_image()];
        let killed = images(&machine, take, || open(&machine).map(drop))?;
        for image in killed {
            let found = all(&open(&Machine::boot(image, seed))?)?;
            if found != expected {
                return Err(format!(
                    "{} pairs after a kill of the recovery, of {}",
                    found.len(),
                    expected.len()
                ));
            }
            kills += 1;
        }
    }
    Ok(kills)
}
