//! Tests of segments in files and in a pool: shared ones, which tables count, and ones that a run
//! owns.

use std::fs;
use std::path::PathBuf;

use terrace_media::{Backing, Extent, Pool, PoolConfig};

use super::*;

/// Space in either place.
enum Place {
    Numbers,
    File(PathBuf),
    /// The extent gives its space back when it is dropped.
    Pool(Arc<Extent>),
}

struct Area {
    number: u64,
    records: u64,
    place: Place,
}

/// The bytes of a header, which are no records.
const HEADER: u64 = 16;

impl Space for Area {
    fn give_back(&mut self) {
        if let Place::File(path) = &self.place {
            fs::remove_file(path).unwrap();
        }
    }
}

impl Segment for Area {
    fn number(&self) -> u64 {
        self.number
    }

    fn bytes(&self) -> u64 {
        match &self.place {
            Place::Pool(extent) => extent.len(),
            _ => HEADER + self.records,
        }
    }

    fn record_bytes(&self) -> u64 {
        self.records
    }
}

fn area(number: u64, records: u64) -> Arc<Held<Area>> {
    Held::new(Area {
        number,
        records,
        place: Place::Numbers,
    })
}

/// Returns the segments to which tables, or runs, point.
fn pointed(all: &[Arc<Held<Area>>], by: &[&Pointed]) -> Arc<Segments<Area>> {
    Arc::new(Segments::default()).edited(std::iter::empty(), by.iter().copied(), all)
}

fn chosen(segments: &Segments<Area>, is_due: bool) -> Vec<u64> {
    segments.to_collect(is_due).into_iter().collect()
}

/// Shared segments are collected by their garbage, whatever their headers take; those into which
/// nothing points are only forgotten; and small ones are joined if they are far too many.
#[test]
fn shared_segments_are_collected_by_their_garbage() {
    let all: Vec<_> = [(1, 1000), (2, 1000), (3, 1000), (4, 1000), (5, 10)]
        .map(|(number, records)| area(number, records))
        .into();
    let tables: [&Pointed; 2] = [
        &[(1, 600), (2, 500), (5, 10)],
        &[(1, 400), (2, 100), (3, 400)],
    ];
    let segments = pointed(&all, &tables);
    assert_eq!(segments.totals(), (5, 4010 + 5 * HEADER, 2010));
    // Those of which nothing is live are no garbage that has to be collected.
    assert_eq!(segments.garbage(), (1000, 2010));
    assert_eq!(chosen(&segments, false), [3, 4]);
    assert_eq!(chosen(&segments, true), [3, 4]);
    assert_eq!(segments.dead(), [4]);
    // A table is written again without some of its records.
    let again: &Pointed = &[(1, 550), (2, 500)];
    let next = segments.edited([tables[0]].into_iter(), [again].into_iter(), &[]);
    assert_eq!(next.totals().2, 1950);
    assert_eq!(next.dead(), [4, 5]);
    assert_eq!(next.without(&[4, 5]).totals().0, 3);
    // Garbage that is due: of those with some, the one with the largest share.
    let whole = pointed(&all[..2], &[&[(1, 1000), (2, 900), (5, 10)]]);
    assert_eq!(chosen(&whole, false), [0; 0]);
    assert_eq!(chosen(&whole, true), [2]);
    assert_eq!(segments.small(16_000).count(), 0);
    let sizes = (0..101).map(|n| area(200 + n, if n < 100 { 500 } else { 4000 }));
    let many = pointed(&sizes.chain(all).collect::<Vec<_>>(), &[]);
    assert_eq!(many.small(16_000).count(), 105);
}

/// The choice is the segment with the most garbage among those whose live records fit.
#[test]
fn one_that_fits_frees_most() {
    let all = [(1, 1000), (2, 3000), (3, 9000), (4, 500), (5, 9000)];
    let all = all.map(|(number, records)| area(number, records));
    let live: &Pointed = &[(1, 900), (2, 400), (3, 2500), (5, 100)];
    let segments = pointed(&all, &[live]);
    let numbers = BTreeSet::from([1, 2, 3, 4]);
    let fitting = |room: u64| segments.one_of(&numbers, |_, live| live <= room);
    assert_eq!(fitting(5000), Some(3), "the fifth is not asked for");
    assert_eq!(fitting(1000), Some(2));
    assert_eq!(fitting(50), None, "one without live records is not copied");
}

/// Space in files and in a pool is given back once its name and then its last holder are gone. A
/// file that still has its name stays.
#[test]
fn space_outlives_its_name_while_it_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let pool = Pool::create(PoolConfig::new(Backing::Anonymous, 8 << 20)).unwrap();
    let used = || pool.usage().allocated;
    let before = used();
    let file = |number: u64| {
        let path = folder.path().join(number.to_string());
        fs::write(&path, [1; 100]).unwrap();
        Place::File(path)
    };
    let held = |number: u64, place: Place| {
        Held::new(Area {
            number,
            records: 100,
            place,
        })
    };
    let all = [
        held(1, file(1)),
        held(2, Place::Pool(pool.alloc(64 << 10).unwrap())),
        held(3, file(3)),
    ];
    let taken = used() - before;
    assert!(taken >= 64 << 10, "{taken}");
    let view = pointed(&all, &[&[(1, 100), (2, 100), (3, 100)]]);
    drop(all);
    // All that pointed there is gone, and then the names.
    let removed: &Pointed = &[(1, 100), (2, 100)];
    let mut next = view.edited([removed].into_iter(), std::iter::empty(), &[]);
    assert_eq!(next.dead(), [1, 2]);
    for number in next.dead() {
        next.get(number).unwrap().retire();
    }
    next = next.without(&[1, 2]);
    assert!(folder.path().join("1").exists(), "a view holds it");
    assert_eq!(used(), before + taken);
    drop(view);
    assert!(!folder.path().join("1").exists());
    assert_eq!(used(), before);
    drop(next);
    assert!(folder.path().join("3").exists(), "it still has its name");
}

/// A run owns its segments: a merge unites the sets, and moves the records of those that are mostly
/// garbage.
#[test]
fn a_merge_of_runs_unites_their_segments() {
    let all = [area(1, 1000), area(2, 1000), area(3, 1000)];
    let runs: [&Pointed; 2] = [&[(1, 1000), (2, 1000)], &[(3, 1000)]];
    let segments = pointed(&all, &runs);
    // The merge leaves records out, and finds which of them are still live.
    let found: &Pointed = &[(1, 700), (2, 300), (3, 1000)];
    let counted = segments.edited(runs.into_iter(), [found].into_iter(), &[]);
    assert_eq!(chosen(&counted, false), [2]);
    let moved: &Pointed = &[(1, 700), (3, 1000), (4, 300)];
    let result = segments.edited(runs.into_iter(), [moved].into_iter(), &[area(4, 300)]);
    assert_eq!(result.dead(), [2]);
    let result = result.without(&[2]);
    assert_eq!(result.totals(), (3, 2300 + 3 * HEADER, 2000));
    assert!(result.get(2).is_none() && segments.get(2).is_some());
}
