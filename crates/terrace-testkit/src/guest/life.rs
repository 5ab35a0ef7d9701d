//! One life of a store, in the guest: it is opened, compared with the board, and written to until
//! the power is cut.

use std::path::{Path, PathBuf};

use terrace::Db;
use terrace_media::Medium;

use super::board::{Board, Phase};
use super::{Orders, STORE};
use crate::oracle::{Crash, Oracle, Outcome};
use crate::place::Place;
use crate::script::{Entry, Key, SPACES, space_name};
use crate::value::Value;
use crate::watchdog::{self, watched};
use crate::world::{World, verify};
use crate::writes::{self, FUTURE, THREADS};

/// The keyspace that threads write to, in addition to the default one.
const OTHER: u8 = 1;

fn of_board(e: std::io::Error) -> String {
    format!("the board: {e}")
}

/// Runs a life by the orders on the board. Returns only at the end of the last life, or with an
/// error.
pub fn live(device: &Path) -> Outcome {
    let board = Board::open(device).map_err(of_board)?;
    let orders = Orders::parse(&board.orders().map_err(of_board)?)?;
    #[cfg(feature = "canary")]
    terrace::testing::set_canary(terrace::testing::Canary::parse(&orders.canary));
    let expected = expected(&board, &orders)?;
    let reach = |phase| board.reach(orders.life, phase).map_err(of_board);
    reach(Phase::Opening)?;
    let _case = watchdog::case(format!("{orders:?}"));
    let db = watched("opening", || Db::open(STORE, orders.options()));
    let db = db.map_err(|e| format!("opening: {e:?}"))?;
    check_medium(&db, orders.medium)?;
    let mut oracle = expected.check_after(Crash::Power, &db)?;
    verify(&db, Some(oracle.live_count()))?;
    if !oracle.has_space(OTHER) {
        oracle.creating(OTHER);
        db.create_keyspace(&space_name(OTHER))
            .map_err(|e| format!("a keyspace: {e:?}"))?;
        oracle.catalog_answered(true);
    }
    let state = to_text(&oracle);
    board.keep_state(orders.life, &state).map_err(of_board)?;
    if orders.last {
        let mut world = World::over(Place::folder(STORE), orders.options(), db, oracle);
        world.check_space()?;
        return world.close();
    }
    reach(Phase::Writing)?;
    let course = orders.course();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (db, course) = (&db, &course);
                let mut told = board.told(orders.life, thread);
                scope.spawn(move || writes::write(course, db, thread, &mut told))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread panicked".into()))
        })
    })?;
    Err("the power was not cut".into())
}

/// Returns what the store must and may hold: the newest state, and the writes answered in its life.
fn expected(board: &Board, orders: &Orders) -> Outcome<Oracle> {
    let mut oracle = Oracle::new(orders.medium).of(orders.design);
    let Some((life, text)) = board.state().map_err(of_board)? else {
        // This is the first life, or a repetition of it that was cut before it had compared.
        oracle.creating(OTHER);
        return Ok(oracle);
    };
    from_text(&text, &mut oracle)?;
    let course = Orders {
        life,
        ..orders.clone()
    }
    .course();
    for thread in 0..THREADS {
        let (done, refused) = board.progress(life, thread).map_err(of_board)?;
        writes::note(&course, thread, done, &refused, &mut oracle);
    }
    Ok(oracle)
}

/// Marks the line of a value that expires, though none expires during the test.
const EXPIRES: &str = "expires";

/// Returns a line for each live pair.
fn to_text(oracle: &Oracle) -> String {
    let mut text = String::new();
    for space in (0..SPACES).filter(|&space| oracle.has_space(space)) {
        for (key, value) in oracle.live_in(space) {
            let hex: String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
            text += &format!("{space} {hex} {} {}", value.tag, value.len);
            if oracle.expires(space, &key) {
                text += &format!(" {EXPIRES}");
            }
            text += "\n";
        }
    }
    text
}

fn from_text(text: &str, oracle: &mut Oracle) -> Outcome {
    oracle.creating(OTHER);
    oracle.catalog_answered(true);
    for line in text.lines() {
        let entry = entry_of(line).ok_or_else(|| format!("the state has a line {line:?}"))?;
        let write = oracle.begin(&[entry]);
        oracle.acknowledged(write, terrace::Durability::Sync);
    }
    Ok(())
}

fn entry_of(line: &str) -> Option<Entry> {
    let mut words = line.split(' ');
    let space = words.next()?.parse().ok()?;
    let hex = words.next()?;
    let byte = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    let key = Key((0..hex.len()).step_by(2).map(byte).collect::<Option<_>>()?);
    let value = Value {
        tag: words.next()?.parse().ok()?,
        len: words.next()?.parse().ok()?,
    };
    let ttl = match words.next() {
        None => None,
        Some(EXPIRES) => Some(FUTURE),
        Some(_) => return None,
    };
    Some(Entry {
        space,
        key,
        value: Some(value),
        until: None,
        ttl,
    })
}

/// Checks that the store has detected the medium, and that the mapping in the kernel agrees.
fn check_medium(db: &Db, medium: Medium) -> Outcome {
    if medium == Medium::Dram {
        return Ok(());
    }
    let found = db.metrics().pool.description;
    if !found.starts_with(&format!("{medium}, ")) {
        return Err(format!("the medium is {medium}, the store says: {found}"));
    }
    let pool = PathBuf::from(STORE).join("pool");
    let maps = std::fs::read_to_string("/proc/self/smaps")
        .map_err(|e| format!("what is mapped is unknown: {e}"))?;
    let synchronous = is_synchronous(&maps, &pool.display().to_string())
        .ok_or_else(|| format!("{} is not mapped", pool.display()))?;
    if synchronous != (medium == Medium::Dax) {
        return Err(format!(
            "the medium is {medium}, and MAP_SYNC of its mapping is {synchronous}: {found}"
        ));
    }
    Ok(())
}

/// Returns whether the mapping of `path` was made with `MAP_SYNC`, from the text of smaps, or
/// `None` if it is absent.
fn is_synchronous(smaps: &str, path: &str) -> Option<bool> {
    let mut ours = false;
    for line in smaps.lines() {
        match line.strip_prefix("VmFlags:") {
            Some(flags) if ours => return Some(flags.split_whitespace().any(|flag| flag == "sf")),
            Some(_) => {}
            None if line.ends_with(path) => ours = true,
            None if line.contains('/') => ours = false,
            None => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace::Durability;

    /// A parsed state equals the content of the oracle that made it, and must survive a crash.
    #[test]
    fn a_state_is_read_back() -> Outcome {
        let mut oracle = Oracle::new(Medium::Mapped);
        from_text("", &mut oracle)?;
        let value = Value { tag: 9, len: 40 };
        for space in 0..2 {
            let key = Key(vec![b'a' + space, 0, 0xff]);
            let (until, ttl) = (None, (space == 1).then_some(FUTURE));
            let entry = Entry {
                space,
                key,
                value: Some(value),
                until,
                ttl,
            };
            let write = oracle.begin(&[entry]);
            oracle.acknowledged(write, Durability::Sync);
        }
        let mut again = Oracle::new(Medium::Mapped);
        from_text(&to_text(&oracle), &mut again)?;
        assert_eq!(to_text(&again), to_text(&oracle));
        assert_eq!(again.live_in(1), oracle.live_in(1));
        for space in 0..2 {
            let key = Key(vec![b'a' + space, 0, 0xff]);
            assert_eq!(again.expires(space, &key), space == 1);
        }
        assert!(from_text("0 zz 1 1", &mut again).is_err());
        assert!(from_text("0 00 1 1 later", &mut again).is_err());
        Ok(())
    }

    /// The flag belongs to the mapping that it is listed under.
    #[test]
    fn synchronous_mappings_are_recognized() {
        let maps = "7f00-7f10 rw-s 00000000 103:00 12 /mnt/other\nSize: 4 kB\nVmFlags: rd wr sh sf\n\
                    7f20-7f30 rw-s 00000000 103:00 13 /mnt/pool\nVmFlags: rd wr sh mr\n";
        assert_eq!(is_synchronous(maps, "/mnt/other"), Some(true));
        assert_eq!(is_synchronous(maps, "/mnt/pool"), Some(false));
        assert_eq!(is_synchronous(maps, "/mnt/none"), None);
    }
}
