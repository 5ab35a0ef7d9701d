//! Tests of the reserve on small disks.

use terrace_media::{OsFs, QuotaFs};

use super::*;

const KIB: u64 = 1 << 10;
const ROWS: Rows = Rows {
    manifest: 16 * KIB,
    ranges: 4 * KIB,
    log: 4 * KIB,
    drains: 0,
    tables: 32 * KIB,
    memtables: 0,
};

/// Returns a disk of `kib` that a reserve and other files fill.
fn full_disk(dir: &Path, kib: u64) -> (QuotaFs, Arc<dyn FileSystem>, Arc<Reserve>) {
    let quota = QuotaFs::new(Arc::new(OsFs), kib * KIB);
    let fs: Arc<dyn FileSystem> = Arc::new(quota.clone());
    let reserve = Reserve::open(&fs, dir, DbId([7; 16]));
    reserve.keep(ROWS);
    quota.set_room(quota.used());
    (quota, fs, reserve)
}

fn written(fs: &dyn FileSystem, path: &Path, kib: u64) -> bool {
    let file = fs.open(path, OpenMode::Create).unwrap();
    match file.write_at(0, &vec![1; (kib * KIB) as usize]) {
        Ok(()) => true,
        Err(e) if is_full(&e) => false,
        Err(e) => panic!("{e}"),
    }
}

/// A power loss can leave the file at any length. The reserve is refilled once the disk has space.
#[test]
fn a_reserve_of_an_odd_length_becomes_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (quota, fs, reserve) = full_disk(folder.path(), 100);
    let path = reserve.place.as_ref().unwrap().path.clone();
    drop(reserve);
    let file = fs.open(&path, OpenMode::Write).unwrap();
    file.set_len(53 * KIB + 1000).unwrap();
    quota.set_room(quota.used());
    let reserve = Reserve::open(&fs, folder.path(), DbId([7; 16]));
    reserve.keep(ROWS);
    quota.set_room(100 * KIB);
    assert!(reserve.refill());
    assert_eq!(reserve.held_bytes(), 56 * KIB);
}

/// On a full disk each step gets its row and the following ones, and no more; other steps get
/// nothing.
#[test]
fn a_row_is_for_its_own_steps() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (_, fs, reserve) = full_disk(folder.path(), 100);
    assert_eq!(reserve.held_bytes(), 56 * KIB);
    assert!(!written(&*fs, &at("put"), 4));
    let lender = |row| reserve.lender(&fs, row);
    assert!(written(&lender(Row::Tables), &at("table"), 32));
    assert!(!written(&lender(Row::Tables), &at("table2"), 4));
    assert!(reserve.is_short() && !reserve.refill());
    assert!(written(&lender(Row::Log), &at("log"), 4));
    assert!(!written(&lender(Row::Log), &at("log2"), 4));
    assert!(written(&lender(Row::Ranges), &at("ranges"), 4));
    assert!(!written(&lender(Row::Ranges), &at("ranges2"), 4));
    fs.remove(&at("log")).unwrap();
    fs.remove(&at("ranges")).unwrap();
    fs.remove(&at("table")).unwrap();
    assert!(reserve.refill(), "all of the reserve is restored");
    assert!(written(&lender(Row::Manifest), &at("manifest"), 56));
    assert!(!written(&lender(Row::Manifest), &at("manifest2"), 4));
    assert_eq!(reserve.held_bytes(), 0);
    let lent = lender(Row::Manifest);
    let file = fs.open(&at("manifest"), OpenMode::Write).unwrap();
    file.set_len(20 * KIB).unwrap();
    assert!(!reserve.refill(), "part of the reserve is restored");
    assert_eq!(reserve.held_bytes(), 36 * KIB);
    lent.end().store(true, Ordering::Relaxed);
    assert!(!written(&lent, &at("late"), 4), "the loan is returned");
}

/// Logs of single deletes cannot take space that tables have given up and get back.
#[test]
fn logs_do_not_take_the_row_of_tables() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (_, fs, reserve) = full_disk(folder.path(), 100);
    let lender = |row| reserve.lender(&fs, row);
    for log in 0..4 {
        assert!(written(&lender(Row::Tables), &at("table"), 32), "{log}");
        let fits = written(&lender(Row::Log), &at(&format!("log{log}")), 4);
        assert_eq!(fits, log == 0);
        fs.remove(&at("table")).unwrap();
        assert!(!reserve.refill(), "the share for logs is short");
        assert_eq!(reserve.held_for_tables(), 32 * KIB);
        assert!(written(&lender(Row::Ranges), &at("ranges"), 4), "{log}");
        fs.remove(&at("ranges")).unwrap();
        reserve.refill();
    }
}

/// Deletes that drain from a pool leave the row of tables to the compactions that free their space.
#[test]
fn deletes_from_a_pool_do_not_take_the_row_of_tables() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (quota, fs, reserve) = full_disk(folder.path(), 100);
    quota.set_room(quota.used() + 8 * KIB);
    reserve.keep(Rows {
        drains: 8 * KIB,
        ..ROWS
    });
    let lender = |row| reserve.lender(&fs, row);
    assert!(written(&lender(Row::Deletes), &at("deletes"), 8));
    assert!(!written(&lender(Row::Deletes), &at("deletes2"), 4));
    assert_eq!(reserve.held_for_tables(), 32 * KIB);
    assert!(reserve.has_room_for_table(32 * KIB));
    assert!(!reserve.has_room_for_table(36 * KIB));
    quota.set_room(quota.used() + 4 * KIB);
    assert!(
        reserve.has_room_for_table(36 * KIB),
        "the disk has the rest"
    );
}

/// An open finds the reserve of an earlier process at any length and resizes it as wanted.
#[test]
fn it_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let (quota, fs, reserve) = full_disk(folder.path(), 100);
    drop(reserve);
    let reserve = Reserve::open(&fs, folder.path(), DbId([7; 16]));
    assert_eq!(reserve.held_bytes(), 56 * KIB);
    reserve.keep(ROWS);
    assert!(!reserve.is_short());
    let other = Reserve::open(&fs, folder.path(), DbId([8; 16]));
    assert_eq!(other.held_bytes(), 0, "the reserve of another database");
    reserve.keep(Rows { tables: 0, ..ROWS });
    assert_eq!(quota.used(), 24 * KIB, "it frees its excess");
    reserve.keep(Rows::default());
    assert_eq!(
        (quota.used(), fs.list(folder.path()).unwrap().len()),
        (0, 0)
    );
}

/// The rest of what an open has found is divided among the rows, and no row exceeds its size while
/// others lack space.
#[test]
fn what_an_opening_leaves_is_for_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (_, fs, reserve) = full_disk(folder.path(), 100);
    drop(reserve);
    let reserve = Reserve::open(&fs, folder.path(), DbId([7; 16]));
    let lender = |row| reserve.lender(&fs, row);
    assert!(written(&lender(Row::Ranges), &at("first"), 4));
    reserve.keep(ROWS);
    assert_eq!(reserve.held_bytes(), 52 * KIB);
    assert_eq!(reserve.held_for_tables(), 32 * KIB);
    assert!(!written(&lender(Row::Log), &at("log"), 4), "it is the last");
    assert!(written(&lender(Row::Tables), &at("table"), 32));
    assert!(written(&lender(Row::Ranges), &at("ranges"), 4));
}

/// Only the prefix with a database id is the name of a reserve.
#[test]
fn a_name_is_exact() {
    let db = DbId([0xab; 16]);
    assert_eq!(reserve_owner(&name_of(db)), Some(db));
    for name in ["RESERVE", "RESERVE-", "RESERVE-0", "reserve-x"] {
        assert_eq!(reserve_owner(name), None, "{name}");
    }
}
