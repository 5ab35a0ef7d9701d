//! Tests of salvage from damaged tables: it returns every intact entry and nothing else, and
//! reports every range in which entries may be missing.

use super::super::layout::{BlockKind, FOOTER_BYTES};
use super::super::{LostKeys, Piece, Salvaged, salvage};
use super::damage::{bytes_of, overwrite};
use super::*;

/// The result of a walk over a damaged table.
#[derive(Default)]
struct Found {
    rows: Rows,
    ranges: Vec<RangeDelete>,
    lost: Vec<LostKeys>,
    problems: Vec<String>,
    blocks: Vec<(BlockKind, u64, u64)>,
}

fn salvage_all(fs: &dyn FileSystem, named: Option<u64>) -> (Found, Salvaged) {
    let mut all = Found::default();
    let found = salvage(fs, file(), named, &mut |piece| {
        match piece {
            Piece::Entry(entry) => {
                let place = (entry.keyspace, entry.key.to_vec(), Reverse(entry.seq));
                let row = Row {
                    kind: entry.kind,
                    expiry: entry.expiry,
                    value: entry.value.to_vec(),
                };
                all.rows.insert(place, row);
            }
            Piece::RangeDelete(range) => all.ranges.push(range.clone()),
            Piece::Block {
                kind,
                offset,
                stored_bytes,
                ..
            } => all.blocks.push((kind, offset, stored_bytes)),
            Piece::Problem(problem) => {
                all.lost.extend(problem.lost);
                all.problems.push(problem.text);
            }
        }
        Ok(())
    });
    (all, found.unwrap())
}

impl Found {
    /// Checks that nothing is invented and every missing entry is reported.
    fn check(&self, model: &Model, what: &str) {
        let is_lost = |keyspace: u32, key: &[u8]| {
            self.lost.iter().any(|lost| {
                let place = (keyspace, key.to_vec());
                lost.after.as_ref().is_none_or(|after| *after <= place)
                    && lost.up_to.as_ref().is_none_or(|up_to| place <= *up_to)
            })
        };
        for (place, row) in &self.rows {
            assert_eq!(model.rows.get(place), Some(row), "{what}: made up");
        }
        for place in model.rows.keys() {
            let told = self.rows.contains_key(place) || is_lost(place.0, &place.1);
            assert!(told, "{what}: {place:?} is missing: {:?}", self.problems);
        }
        for range in &self.ranges {
            assert!(model.ranges.contains(range), "{what}: made up");
        }
        let all_may_be = self.lost.contains(&LostKeys {
            after: None,
            up_to: None,
        });
        assert!(
            self.ranges == model.ranges || all_may_be,
            "{what}: range deletes are missing: {:?}",
            self.problems
        );
    }
}

/// Returns entries for several blocks; with `ranges`, also two range deletes.
fn model(ranges: bool) -> Model {
    let mut model = Model::default();
    let mut rng = fastrand::Rng::with_seed(5);
    for i in 0..160u64 {
        let mut value = vec![b'v'; 20];
        value.extend((0..rng.usize(..60)).map(|_| rng.u8(..)));
        model.put(1, format!("key{:03}", i / 2).as_bytes(), 900 - i, &value);
    }
    if ranges {
        for (begin, end) in [("key003", "key006"), ("key040", "key070")] {
            model.ranges.push(RangeDelete {
                keyspace: 1,
                begin: begin.into(),
                end: end.into(),
                seq: 1000,
            });
        }
    }
    model
}

/// Runs `case` for all ways of writing the model that differ in layout.
fn each(mut case: impl FnMut(&dyn FileSystem, &Model, &str)) {
    for compression in compressions() {
        for (ranges, filter_bits) in [(false, 0), (true, 10), (true, 0), (false, 10)] {
            for block_bytes in [256, 64 << 10] {
                let options = SstOptions {
                    filter_bits_per_key: filter_bits,
                    block_bytes,
                    ..tiny(compression)
                };
                let (fs, model) = (machine(), model(ranges));
                write(&fs, file(), options, &model).unwrap();
                let what = format!("{compression}, {filter_bits}, {block_bytes}, {ranges}");
                case(&*fs, &model, &what);
            }
        }
    }
}

/// Changes bytes at the given offsets, with the given lengths.
fn damage(fs: &dyn FileSystem, good: &[u8], spots: &[(usize, usize)]) {
    let mut bytes = good.to_vec();
    for &(at, len) in spots {
        let spot = bytes[at..at + len].iter_mut();
        spot.for_each(|byte| *byte ^= 0x5a);
    }
    overwrite(fs, file(), &bytes);
}

/// If only the footer, an index block or another block without entries is damaged, every entry is
/// salvaged and none is reported lost.
#[test]
fn entries_need_no_footer_and_no_index() {
    each(|fs, model, what| {
        let good = bytes_of(fs, file());
        let (whole, found) = salvage_all(fs, Some(NUMBER));
        assert_eq!((whole.problems.len(), found.problems), (0, 0), "{what}");
        assert_eq!((&whole.rows, &whole.ranges), (&model.rows, &model.ranges));
        let footer = (good.len() - FOOTER_BYTES, FOOTER_BYTES);
        let mut spots = vec![footer];
        let others = whole.blocks.iter().filter(|(kind, ..)| {
            matches!(
                kind,
                BlockKind::Index | BlockKind::Filter | BlockKind::Properties
            )
        });
        spots.extend(
            others.map(|(_, offset, stored_bytes)| (*offset as usize, *stored_bytes as usize)),
        );
        for spot in spots {
            damage(fs, &good, &[(spot.0 + spot.1 / 2, 1)]);
            let (all, found) = salvage_all(fs, Some(NUMBER));
            assert!(found.problems > 0, "{what}: {spot:?}");
            assert_eq!(all.rows, model.rows, "{what}: {spot:?}");
            assert_eq!(all.ranges, model.ranges, "{what}: {spot:?}");
            assert_eq!(all.lost, [], "{what}: {:?}", all.problems);
        }
    });
}

/// With the footer and any other part damaged too, intact data is salvaged, and the key ranges in
/// which data is missing are reported.
#[test]
fn intact_data_next_to_damage_is_recovered() {
    each(|fs, model, what| {
        let good = bytes_of(fs, file());
        let (whole, _) = salvage_all(fs, Some(NUMBER));
        let data = whole
            .blocks
            .iter()
            .filter(|b| b.0 == BlockKind::Data)
            .count();
        let footer = (good.len() - 3, 3);
        for at in (0..good.len() - FOOTER_BYTES).step_by(131) {
            damage(fs, &good, &[(at, 1), footer]);
            let (all, _) = salvage_all(fs, Some(NUMBER));
            all.check(model, &format!("{what}: byte {at}"));
            let blocks = all.blocks.iter().filter(|b| b.0 == BlockKind::Data);
            assert!(blocks.count() + 1 >= data, "{what}: byte {at} costs more");
        }
        // Two adjacent blocks, an index block and a data block, and so on.
        let mut rng = fastrand::Rng::with_seed(1);
        for turn in 0..15 {
            let spots: Vec<_> = (0..rng.usize(1..4))
                .map(|_| {
                    let at = rng.usize(..good.len());
                    (at, (good.len() - at).min([1, 64, 700][rng.usize(..3)]))
                })
                .collect();
            damage(fs, &good, &spots);
            let (all, _) = salvage_all(fs, Some(NUMBER));
            all.check(model, &format!("{what}: turn {turn}, {spots:?}"));
        }
    });
}

/// If the end or the start of a table is missing, the rest is salvaged.
#[test]
fn a_part_of_a_table_comes_back() {
    each(|fs, model, what| {
        let good = bytes_of(fs, file());
        for len in (0..good.len()).step_by(167) {
            overwrite(fs, file(), &good[..len]);
            let (all, _) = salvage_all(fs, Some(NUMBER));
            all.check(model, &format!("{what}: cut off at {len}"));
            let mut bytes = good.clone();
            bytes[..len].fill(0);
            overwrite(fs, file(), &bytes);
            let (all, _) = salvage_all(fs, Some(NUMBER));
            all.check(model, &format!("{what}: zeros up to {len}"));
        }
        // Blocks of another table are not taken for this table's.
        let (other, _) = {
            damage(fs, &good, &[(good.len() - 3, 3)]);
            salvage_all(fs, Some(NUMBER + 1))
        };
        assert!(other.rows.is_empty() && !other.lost.is_empty(), "{what}");
    });
}
