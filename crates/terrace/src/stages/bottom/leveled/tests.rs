//! Tests of the choice of compactions: targets of levels, and picks.

use std::collections::HashSet;
use std::sync::Arc;

use terrace_media::{FileSystem, OsFs};

use super::column::Awaited;
use super::level0;
use super::pick::{debt, pick_table, targets};
use super::value_file::ValueSpace;
use super::version::{Table, Version};
use super::{Busy, Inner, LeveledOptions, Merging, TableStore};
use crate::options::{MIB, Options};
use crate::parts::key::{KeyRange, Place};
use crate::parts::memory::Memory;
use crate::parts::sstable::FileMeta;
use crate::parts::values::ValueMeta;
use crate::parts::values::layout::HEADER_BYTES;
use crate::stages::{Folder, FrontShape, Urgency, fixture};
use crate::types::DbId;

fn store() -> Arc<TableStore> {
    let fs: Arc<dyn FileSystem> = Arc::new(OsFs);
    let folder = Folder {
        fs,
        dir: "nowhere".into(),
    };
    let options = Options::default().bottom.leveled;
    Arc::new(TableStore::new(
        &folder,
        DbId::default(),
        &options,
        Memory::unlimited(),
    ))
}

fn table(store: &Arc<TableStore>, number: u64, level: u32, bytes: u64) -> Table {
    let key = number.to_be_bytes().to_vec();
    let meta = FileMeta {
        number,
        level,
        run: if level == 0 { number } else { 0 },
        bytes,
        entries: 1,
        tombstones: 0,
        older: 0,
        seq_first: number,
        seq_last: number,
        first: (1, key.clone()),
        last: (1, key),
        range_deletes: 0,
        reach: None,
        expiring: 0,
        expiry_last: 0,
        values: Vec::new(),
    };
    Table::new(store, meta, Vec::new(), Arc::default())
}

/// Returns a version with these bytes on the levels below level 0.
fn version(sizes: &[u64]) -> Version {
    let store = store();
    let sizes = sizes.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
    let tables: Vec<Table> = sizes
        .map(|(at, bytes)| table(&store, at as u64 + 1, at as u32 + 1, *bytes))
        .collect();
    Version::of(6, &tables, &[])
}

fn options() -> LeveledOptions {
    LeveledOptions::default()
}

/// Tables of one run that reach into one another are found, and no others.
#[test]
fn tables_of_a_run_that_overlap_are_found() {
    let store = store();
    let of = |keys: &[(u8, u8)]| {
        let tables = keys.iter().zip(1..).map(|(&(first, last), number)| {
            let mut meta = table(&store, number, 0, 1).meta.as_ref().clone();
            (meta.run, meta.first, meta.last) = (7, (1, vec![first]), (1, vec![last]));
            Table::new(&store, meta, Vec::new(), Arc::default())
        });
        let version = Version::of(6, &tables.collect::<Vec<_>>(), &[]);
        assert_eq!(version.runs.len(), 1);
        let overlap = version.runs[0].overlap();
        overlap.map(|(one, other)| (one.number(), other.number()))
    };
    assert_eq!(of(&[(1, 3), (4, 4), (6, 9)]), None);
    assert_eq!(of(&[(1, 3), (3, 4)]), Some((1, 2)));
    assert_eq!(of(&[(5, 5), (1, 9)]), Some((2, 1)));
}

/// An empty tree takes everything on its last level, so that no level is passed twice.
#[test]
fn an_empty_tree_begins_at_the_bottom() {
    let (base, _) = targets(&version(&[]), &options());
    assert_eq!(base, 6);
}

/// Targets go down by the growth factor from the last level, and the base is the first level that
/// is no larger than level 1 may be.
#[test]
fn targets_follow_from_the_last_level() {
    let gib = 1024 * MIB;
    let (base, targets_of) = targets(&version(&[0, 0, 0, 0, 0, 100 * gib]), &options());
    assert_eq!(base, 3);
    assert_eq!(targets_of[6], 100 * gib);
    assert_eq!(targets_of[5], 10 * gib);
    assert_eq!(targets_of[4], gib);
    assert_eq!(targets_of[3], gib / 10);
    assert_eq!((targets_of[1], targets_of[2]), (0, 0));
}

/// If the data has shrunk and an upper level still has some, level 0 does not pass it.
#[test]
fn level_0_never_passes_newer_data() {
    let version = version(&[0, 50 * MIB, 0, 0, 0, 10 * MIB]);
    let (base, targets_of) = targets(&version, &options());
    assert_eq!(base, 2);
    assert_eq!(targets_of[2], 0, "the existing data has to leave");
    assert_eq!(debt(&version, &options()), 50 * MIB);
}

/// Without dynamic sizes level 1 is the base, and targets go up from it.
#[test]
fn fixed_sizes_go_up_from_level_1() {
    let mut options = options();
    options.dynamic_sizes = false;
    options.level1_bytes = 8 << 30;
    let (base, targets_of) = targets(&version(&[0, 0, 0, 0, 0, MIB]), &options);
    assert_eq!(base, 1);
    assert_eq!(targets_of[1..3], [8 << 30, 80 << 30]);
}

/// Runs of level 0 stay newest first, in whatever order they are added, and a run without tables is
/// gone.
#[test]
fn runs_are_newest_first() {
    let store = store();
    let tables: Vec<Table> = [3, 9, 5].map(|n| table(&store, n, 0, 1)).to_vec();
    let version = Version::of(6, &tables, &[]);
    let ids = |version: &Version| version.runs.iter().map(|run| run.id).collect::<Vec<_>>();
    assert_eq!(ids(&version), [9, 5, 3]);
    let version = version.edited(&[5], &[table(&store, 12, 0, 1)], &[]);
    assert_eq!(ids(&version), [12, 9, 3]);
    let reaches = |level, n: u64| {
        let key = n.to_be_bytes();
        version.reaches_below(level, (1, &key), (1, &key))
    };
    assert!(reaches(0, 9));
    assert!(!reaches(0, 5));
    assert!(!reaches(1, 9), "level 0 is above");
}

/// If there are too many runs for one compaction, the oldest are compaction, and only all of them
/// together; none is left out that is older than one that moves.
#[test]
fn the_oldest_runs_are_picked_where_all_are_too_many() {
    let store = store();
    let tables: Vec<Table> = (1..=9).map(|number| table(&store, number, 0, 10)).collect();
    let version = Version::of(6, &tables, &[]);
    let compaction = |runs_max: usize, busy: &[u64]| {
        let busy = busy.iter().copied().collect();
        let compaction = level0::whole(&version, 6, runs_max, &busy)?;
        let mut numbers: Vec<u64> = compaction.tables().map(Table::number).collect();
        numbers.sort_unstable();
        Some(numbers)
    };
    assert_eq!(compaction(usize::MAX, &[]), Some((1..=9).collect()));
    assert_eq!(compaction(9, &[]), Some((1..=9).collect()));
    assert_eq!(compaction(4, &[]), Some(vec![1, 2, 3, 4]));
    assert_eq!(compaction(4, &[9]), Some(vec![1, 2, 3, 4]));
    // While the oldest is moving down nothing may pass it.
    assert_eq!(compaction(4, &[1]), None);
    assert_eq!(compaction(usize::MAX, &[9]), None);
}

/// A table: number, level, run, first and last key, and the end of its range deletes.
type Row = (u64, u32, u64, u8, u8, Option<u8>);

/// Returns the version of these tables.
fn pieces_of(tables: &[Row]) -> Version {
    let store = store();
    let tables = tables
        .iter()
        .map(|&(number, level, run, first, last, end)| {
            let mut meta = table(&store, number, level, 10).meta.as_ref().clone();
            (meta.run, meta.first, meta.last) = (run, (1, vec![first]), (1, vec![last]));
            meta.reach = end.map(|end| ((1, vec![first]), (1, vec![end])));
            Table::new(&store, meta, Vec::new(), Arc::default())
        });
    Version::of(6, &tables.collect::<Vec<_>>(), &[])
}

/// Returns the numbers of the tables that are compaction from level 0 if `fits` bytes fit.
fn numbers_of_piece(version: &Version, fits: u64, busy: &[u64]) -> Vec<u64> {
    let whole = level0::whole(version, 6, usize::MAX, &HashSet::new()).unwrap();
    let busy = busy.iter().copied().collect();
    let compaction = level0::fitting(whole, version, fits, &busy);
    let mut numbers: Vec<u64> = compaction.tables().map(Table::number).collect();
    numbers.sort_unstable();
    numbers
}

/// Runs that are cut at the same keys are compacted piece by piece, the largest that fits first; a
/// table whose range deletes end at the first key of another does not overlap it.
#[test]
fn level_0_is_compacted_in_pieces() {
    let version = pieces_of(&[
        (1, 0, 11, 0, 3, Some(4)),
        (2, 0, 11, 4, 7, None),
        (3, 0, 12, 1, 2, None),
        (4, 0, 12, 4, 5, None),
        (5, 0, 13, 6, 7, None),
        (6, 6, 0, 5, 9, None),
    ]);
    assert_eq!(numbers_of_piece(&version, 60, &[]), [1, 2, 3, 4, 5, 6]);
    assert_eq!(numbers_of_piece(&version, 59, &[]), [2, 4, 5, 6]);
    assert_eq!(numbers_of_piece(&version, 39, &[]), [1, 3]);
    assert_eq!(numbers_of_piece(&version, 59, &[5]), [1, 3]);
    // Of the oldest run alone, which may move below newer runs.
    assert_eq!(numbers_of_piece(&version, 19, &[]), [1]);
    // No piece fits: the smaller piece of all runs is to be cut.
    assert_eq!(numbers_of_piece(&version, 9, &[]), [1, 3]);
}

/// A new run that spans all pieces stays above, and the older ones go down in pieces below it.
#[test]
fn a_run_that_is_not_cut_stays_above() {
    let version = pieces_of(&[
        (1, 0, 11, 0, 3, None),
        (2, 0, 11, 4, 7, None),
        (3, 0, 12, 0, 3, None),
        (4, 0, 13, 0, 9, None),
    ]);
    assert_eq!(numbers_of_piece(&version, 40, &[]), [1, 2, 3, 4]);
    assert_eq!(numbers_of_piece(&version, 39, &[]), [1, 3]);
    // Never a newer run without an older one below it.
    assert_eq!(numbers_of_piece(&version, 39, &[1]), [2]);
    assert_eq!(numbers_of_piece(&version, 9, &[]), [2]);
}

/// Compactions of the level that columns are merged with take the tables that these reach last, and
/// none that a waiting column is going to reach.
#[test]
fn tables_that_columns_reach_last_go_first() {
    let store = store();
    let tables: Vec<Table> = (1..=6).map(|n| table(&store, n, 1, 100)).collect();
    let version = Version::of(6, &tables, &[]);
    let place = |n: u64| (1, n.to_be_bytes().to_vec());
    let taken = |swept: Option<&Place>, awaited: Option<&KeyRange>| -> Vec<u64> {
        let mut busy = Busy {
            next: vec![Some(place(3)); 7],
            ..Busy::default()
        };
        std::iter::from_fn(|| {
            let found = pick_table(&version, 1, swept, awaited, &busy)?;
            let number = found.upper[0].tables[0].number();
            busy.numbers.insert(number);
            Some(number)
        })
        .collect()
    };
    assert_eq!(taken(None, None), [4, 5, 6, 1, 2, 3]);
    assert_eq!(taken(Some(&place(3)), None), [2, 1, 6, 5, 4, 3]);
    assert_eq!(taken(Some(&Place::default()), None), [6, 5, 4, 3, 2, 1]);
    let rest = KeyRange {
        from: Some(place(3)),
        to: None,
    };
    assert_eq!(taken(Some(&place(3)), Some(&rest)), [2, 1]);
}

/// Which records of value files are live follows from the tables of a version.
#[test]
fn tables_tell_what_is_live_in_value_files() {
    let store = store();
    let files: Vec<_> = [100, 101, 102]
        .map(|number| {
            let meta = ValueMeta {
                number,
                bytes: HEADER_BYTES as u64 + 1000,
                values: 1,
            };
            ValueSpace::held(&store, meta)
        })
        .into();
    let pointing = |number: u64, values: &[(u64, u64)]| {
        let mut meta = table(&store, number, 1, 10).meta.as_ref().clone();
        meta.values = values.to_vec();
        let held = values
            .iter()
            .map(|(id, _)| Arc::clone(&files[*id as usize - 100]));
        Table::new(&store, meta, Vec::new(), held.collect())
    };
    let tables = [
        pointing(1, &[(100, 600), (101, 500)]),
        pointing(2, &[(100, 400), (101, 100), (102, 400)]),
    ];
    let version = Version::of(6, &tables, &files);
    // The headers are no garbage.
    let bytes = 3 * (HEADER_BYTES as u64 + 1000);
    assert_eq!(version.values.totals(), (3, bytes, 2000));
    assert_eq!(version.values.garbage(), (1000, 2000));
    // The first table is rewritten without some of its values.
    let next = version.edited(&[1], &[pointing(3, &[(100, 550), (101, 500)])], &[]);
    assert_eq!(next.values.totals().2, 1950);
    // A table that moves to another level changes nothing.
    let moved = next.edited(&[3], &[next.tables().last().unwrap().moved_to(2)], &[]);
    assert_eq!(moved.values.totals().2, 1950);
    let less = moved.edited(&[2], &[], &[]);
    assert_eq!(less.values.dead(), [102]);
    assert_eq!(less.without_values(&[102]).values.totals().0, 2);
}

/// Tables are left to a drain that waits for them, but not while garbage keeps drains from
/// beginning: neither would begin.
#[test]
fn nothing_is_left_to_a_drain_that_cannot_begin() {
    let shared = fixture::shared(&[]);
    let front = FrontShape {
        memtable_bytes: 4 << 10,
        sealed_count_max: 2,
        log_bytes_max: 1 << 20,
        batch_bytes_max: 4 << 10,
    };
    for garbage in [4, 1000] {
        let store = store();
        let meta = ValueMeta {
            number: 100,
            bytes: HEADER_BYTES as u64 + (10 + garbage) * MIB,
            values: 1,
        };
        let file = ValueSpace::held(&store, meta);
        let mut meta = table(&store, 1, 1, 10).meta.as_ref().clone();
        meta.values = vec![(100, 10 * MIB)];
        let table = Table::new(&store, meta, Vec::new(), [Arc::clone(&file)].into());
        let version = Version::of(6, &[table], &[file]);
        let merging = Some(Merging::Whole);
        let inner = Inner::new(Arc::clone(&shared), front, store, merging, version);
        inner.busy.lock().awaited = Some(Awaited::freed());
        let picked = inner.pick(Urgency::Space);
        assert_eq!(picked.is_some(), inner.need().stops(), "{garbage}");
        assert_eq!(inner.need().stops(), garbage == 1000);
        // Nothing waits: the garbage is compacted.
        drop(picked);
        *inner.busy.lock() = Busy {
            next: vec![None; 7],
            ..Busy::default()
        };
        assert!(inner.pick(Urgency::Space).is_some(), "{garbage}");
    }
}
