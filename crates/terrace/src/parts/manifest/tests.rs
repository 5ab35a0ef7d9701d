//! Tests of the manifest: edits and their bytes, compaction, damage, full pools and faults.

mod crash;
mod file;
mod files;

use std::sync::Arc;

use terrace_media::{AllocError, Backing, Extent, Pool, PoolConfig, Prefault, Span};

use super::layout::{HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader};
use super::replay::replay;
use super::state::State;
use super::{Change, Edit, FileMeta, LogPlace, Manifest, ManifestError, TableExtent, TableMeta};
use crate::parts::codec::{DecodeError, Reader};
use crate::types::{DbId, SEQ_MAX};

/// The database of the manifests.
const DB: DbId = DbId(*b"sixteen bytes id");

fn pool(cap_bytes: u64) -> Pool {
    Pool::create(PoolConfig {
        prefault: Prefault::None,
        grow_bytes: 64 << 10,
        granule: 4 << 10,
        ..PoolConfig::new(Backing::Anonymous, cap_bytes)
    })
    .unwrap()
}

fn one(change: Change) -> Edit {
    Edit {
        changes: vec![change],
    }
}

/// Generates edits that are legal for the state, from a seed.
struct Editor {
    rng: fastrand::Rng,
    next: u64,
    /// The offset of the next extent, far above those of the pool.
    space: u64,
    /// The maximum number of tables.
    tables_max: usize,
}

impl Editor {
    fn new(seed: u64) -> Editor {
        Editor {
            rng: fastrand::Rng::with_seed(seed),
            next: 1,
            space: 1 << 30,
            tables_max: 12,
        }
    }

    fn id(&mut self) -> u64 {
        self.next += self.rng.u64(1..3);
        self.next
    }

    fn span(&mut self) -> Span {
        let gap = self.rng.u64(..) >> self.rng.u32(20..64);
        let len = 1 + (self.rng.u64(..) >> self.rng.u32(20..64));
        let off = self.space + gap;
        self.space = off + len;
        Span { off, len }
    }

    fn table(&mut self) -> TableMeta {
        let extent = |editor: &mut Editor| {
            let span = editor.span();
            TableExtent {
                span,
                used: editor.rng.u64(..=span.len),
            }
        };
        let extents = (0..self.rng.usize(1..4)).map(|_| extent(self)).collect();
        TableMeta {
            id: self.id(),
            level: self.rng.u32(..8),
            head: self.rng.u64(..),
            extents,
            filter: self.rng.bool().then(|| self.span()),
            entries: self.rng.u64(..=1 << 48),
            bytes: self.rng.u64(..=1 << 48),
            seq_first: self.rng.u64(..1 << 50),
            seq_last: self.rng.u64(..1 << 50),
            merging_into: None,
        }
    }

    fn place(&mut self) -> (u32, Vec<u8>) {
        let key = (0..self.rng.usize(..24)).map(|_| self.rng.u8(..));
        let key = key.collect();
        (self.rng.u32(..) >> self.rng.u32(..32), key)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.usize(..of.len())])
    }

    /// Returns a change that the state accepts.
    fn change(&mut self, state: &State) -> Change {
        let ids: Vec<u64> = state.tables.keys().copied().collect();
        let merging: Vec<(u64, u64)> = state
            .tables
            .values()
            .filter_map(|t| Some((t.id, t.merging_into?)))
            .collect();
        let free: Vec<u64> = ids
            .iter()
            .copied()
            .filter(|id| !merging.iter().any(|(a, b)| a == id || b == id))
            .collect();
        let logs: Vec<u64> = state.logs.keys().copied().collect();
        let files: Vec<u64> = state.files.keys().copied().collect();
        let change = match self.rng.u8(..16) {
            0 => {
                let file = self.rng.bool();
                let place = if file {
                    LogPlace::File
                } else {
                    LogPlace::Pool(self.span())
                };
                Some(Change::LogCreated {
                    id: self.id(),
                    place,
                })
            }
            1 if logs.len() > 2 => self.pick(&logs).map(|id| Change::LogRetired { id }),
            15 => self.pick(&logs).map(|id| {
                let end = state.logs[&id].end;
                let end = end.unwrap_or_else(|| self.rng.u64(1..1 << 40));
                Change::LogEnded { id, end }
            }),
            2 | 3 if ids.len() < self.tables_max => Some(Change::TableAdded(self.table())),
            4 if ids.len() > 4 => self.pick(&free).map(|id| Change::TableRemoved { id }),
            5 => self.pick(&ids).map(|id| Change::TableMoved {
                id,
                level: self.rng.u32(..64),
            }),
            6 if free.len() > 1 => Some(Change::MergeBegun {
                newer: free[1],
                older: free[0],
            }),
            7 => self
                .pick(&merging)
                .map(|(newer, older)| Change::MergeEnded {
                    newer,
                    older,
                    level: self.rng.u32(..9),
                    filter: self.rng.bool().then(|| self.span()),
                    entries: self.rng.u64(..=1 << 48),
                    bytes: self.rng.u64(..=1 << 48),
                }),
            8 => match &state.repository {
                None => Some(Change::RepositoryCreated { head: self.span() }),
                Some(r) if r.extents.len() < 20 => {
                    let span = self.span();
                    Some(Change::RepositoryExtentAdded { span })
                }
                Some(r) => {
                    let off = self.pick(&r.extents).map(|s| s.off);
                    off.map(|off| Change::RepositoryExtentRemoved { off })
                }
            },
            9 => Some(Change::NextId { id: self.next }),
            10 if files.len() < 8 => Some(Change::FileAdded(self.file())),
            11 => self.pick(&files).map(|number| Change::FileMoved {
                number,
                level: self.rng.u32(..64),
            }),
            12 if files.len() > 4 => self
                .pick(&files)
                .map(|number| Change::FileRemoved { number }),
            13 => Some(Change::Closed),
            14 => Some(Change::Created),
            _ => None,
        };
        change.unwrap_or(Change::LastSeq {
            seq: self.rng.u64(..=SEQ_MAX) >> self.rng.u32(..56),
        })
    }

    /// Returns an edit of one to five changes, and the state after them.
    fn edit(&mut self, state: &State) -> (Edit, State) {
        let (mut edit, mut after) = (Edit::default(), state.clone());
        for _ in 0..self.rng.usize(1..6) {
            let change = self.change(&after);
            after.apply(&change).unwrap();
            edit.changes.push(change);
        }
        (edit, after)
    }
}

/// An encoded change decodes to itself and consumes all its bytes.
#[test]
fn changes_round_trip() {
    let mut editor = Editor::new(71);
    let mut state = State::default();
    for _ in 0..4000 {
        let (edit, after) = editor.edit(&state);
        for change in &edit.changes {
            let mut bytes = Vec::new();
            change.encode(&mut bytes);
            let mut r = Reader::new("change", 0, &bytes);
            assert_eq!(&Change::decode(&mut r).unwrap(), change);
            r.end().unwrap();
            bytes.truncate(editor.rng.usize(..bytes.len()));
            assert!(Change::decode(&mut Reader::new("change", 0, &bytes)).is_err());
        }
        state = after;
        let mut again = State::default();
        state
            .to_changes()
            .iter()
            .for_each(|change| again.apply(change).unwrap());
        assert_eq!(again, state);
    }
}

/// Arbitrary bytes decode to changes or to an error, and sizes in them alone allocate nothing.
#[test]
fn hostile_changes_are_refused() {
    let mut rng = fastrand::Rng::with_seed(72);
    let mut editor = Editor::new(73);
    for _ in 0..30_000 {
        let mut bytes = Vec::new();
        Change::TableAdded(editor.table()).encode(&mut bytes);
        for _ in 0..rng.usize(..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        let mut state = State::default();
        let mut r = Reader::new("change", 5, &bytes);
        while r.remaining() > 0 {
            match Change::decode(&mut r) {
                Ok(change) => drop(state.apply(&change)),
                Err(e) => {
                    assert!((5..=5 + bytes.len() as u64).contains(&e.offset));
                    break;
                }
            }
        }
        assert!(
            state
                .spans()
                .iter()
                .all(|s| s.off.checked_add(s.len).is_some())
        );
    }
}

/// A change that contradicts the state is refused and changes nothing.
#[test]
fn contradictions_are_refused() {
    let mut editor = Editor::new(74);
    let mut state = State::default();
    let table = |id| TableMeta {
        id,
        ..Editor::new(id).table()
    };
    for id in [10, 11, 12, 13] {
        state.apply(&Change::TableAdded(table(id))).unwrap();
    }
    state
        .apply(&Change::LogCreated {
            id: 1,
            place: LogPlace::File,
        })
        .unwrap();
    state
        .apply(&Change::MergeBegun {
            newer: 11,
            older: 10,
        })
        .unwrap();
    let span = editor.span();
    let ended = |newer, older| Change::MergeEnded {
        newer,
        older,
        level: 1,
        filter: None,
        entries: 0,
        bytes: 0,
    };
    let refused = [
        Change::LogCreated {
            id: 1,
            place: LogPlace::File,
        },
        Change::LogRetired { id: 2 },
        Change::TableAdded(table(10)),
        Change::TableAdded(TableMeta {
            merging_into: Some(12),
            ..table(20)
        }),
        Change::TableRemoved { id: 14 },
        Change::TableRemoved { id: 10 },
        Change::TableRemoved { id: 11 },
        Change::TableMoved { id: 14, level: 1 },
        Change::MergeBegun {
            newer: 12,
            older: 12,
        },
        Change::MergeBegun {
            newer: 12,
            older: 14,
        },
        Change::MergeBegun {
            newer: 14,
            older: 12,
        },
        Change::MergeBegun {
            newer: 12,
            older: 11,
        },
        Change::MergeBegun {
            newer: 12,
            older: 10,
        },
        Change::MergeBegun {
            newer: 10,
            older: 12,
        },
        ended(12, 10),
        ended(11, 12),
        ended(14, 10),
        Change::RepositoryExtentAdded { span },
        Change::RepositoryExtentRemoved { off: 1 },
    ];
    for change in refused {
        let before = state.clone();
        assert!(state.apply(&change).is_err(), "{change:?}");
        assert_eq!(state, before);
    }
    let (a, b) = (state.tables[&10].clone(), state.tables[&11].clone());
    state.apply(&ended(11, 10)).unwrap();
    let merged = &state.tables[&10];
    assert_eq!(merged.extents, [a.extents, b.extents].concat());
    assert_eq!(merged.seq_first, a.seq_first.min(b.seq_first));
    assert_eq!(merged.seq_last, a.seq_last.max(b.seq_last));
    assert_eq!(
        (merged.level, merged.head, merged.filter),
        (1, a.head, None)
    );
    assert!(!state.tables.contains_key(&11));
    state
        .apply(&Change::RepositoryCreated { head: span })
        .unwrap();
    assert!(
        state
            .apply(&Change::RepositoryCreated { head: span })
            .is_err()
    );
    state.apply(&Change::LastSeq { seq: 9 }).unwrap();
    state.apply(&Change::LastSeq { seq: 3 }).unwrap();
    assert_eq!(state.last_seq, 9);
    let tables: usize = state.tables.values().map(|t| t.extents.len()).sum();
    let filters = state.tables.values().filter(|t| t.filter.is_some()).count();
    assert_eq!(state.spans().len(), tables + filters + 1);
}

/// After any number of edits and compactions, a replay of the medium yields the state.
#[test]
fn compaction_keeps_the_state() {
    let pool = pool(16 << 20);
    let manifest = Manifest::create(&pool, DB, 16 << 10).unwrap();
    let mut editor = Editor::new(75);
    let mut state = State::default();
    for i in 0..3000 {
        let (edit, after) = editor.edit(&state);
        manifest.commit(edit).unwrap();
        state = after;
        assert!(manifest.with_state(|s| s == &state));
        if i % 50 == 0 {
            manifest.verify().unwrap();
        }
    }
    manifest.commit(Edit::default()).unwrap();
    assert_eq!(manifest.state(), state);
    manifest.verify().unwrap();
    assert!(manifest.generation() > 10);
    let (current, spare) = (manifest.spans()[0], manifest.spans()[1]);
    assert_eq!((current.len, spare.len), (16 << 10, 16 << 10));
    assert_eq!(pool.usage().allocated, 32 << 10, "compaction leaks nothing");
}

/// A refused edit leaves the state and the medium unchanged, and the next edit succeeds.
#[test]
fn refused_edits_change_nothing() {
    let pool = pool(16 << 20);
    let manifest = Manifest::create(&pool, DB, 16 << 10).unwrap();
    let first = Change::LogCreated {
        id: 4,
        place: LogPlace::File,
    };
    manifest.commit(one(first.clone())).unwrap();
    let before = manifest.state();
    let bad = Edit {
        changes: vec![Change::LastSeq { seq: 50 }, first],
    };
    assert!(matches!(
        manifest.commit(bad),
        Err(ManifestError::Corrupt(_))
    ));
    assert_eq!(manifest.state(), before);
    manifest.verify().unwrap();
    manifest.commit(one(Change::LogRetired { id: 4 })).unwrap();
    manifest.verify().unwrap();
}

/// In a full pool edits succeed while the state fits; a larger state is refused as full, and
/// accepted once there is space.
#[test]
fn full_pools_take_edits() {
    let pool = pool(1 << 20);
    let manifest = Manifest::create(&pool, DB, 4 << 10).unwrap();
    let mut hog = Vec::new();
    while let Ok(extent) = pool.alloc(4 << 10) {
        hog.push(extent);
    }
    let mut editor = Editor::new(76);
    editor.tables_max = usize::MAX;
    let mut refused = 0;
    for _ in 0..4000 {
        let (edit, _) = editor.edit(&manifest.state());
        let before = manifest.state();
        match manifest.commit(edit) {
            Ok(()) => {}
            Err(ManifestError::Alloc(AllocError::Full { .. })) => {
                assert_eq!(manifest.state(), before);
                refused += 1;
                if refused == 20 {
                    break;
                }
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert_eq!(refused, 20, "the state outgrows its extent");
    assert!(manifest.generation() > 3);
    manifest.verify().unwrap();
    // An edit that shrinks the state is accepted.
    let id = manifest
        .with_state(|s| s.logs.keys().copied().next())
        .unwrap();
    manifest.commit(one(Change::LogRetired { id })).unwrap();
    hog.clear();
    for _ in 0..200 {
        let (edit, after) = editor.edit(&manifest.state());
        manifest.commit(edit).unwrap();
        assert_eq!(manifest.state(), after);
    }
    manifest.verify().unwrap();
    let (current, spare) = (manifest.spans()[0], manifest.spans()[1]);
    assert!(current.len > 4 << 10);
    assert_eq!(
        pool.usage().allocated,
        current.len + spare.len,
        "the old extents are free"
    );
}

/// Creates a manifest of a few records; returns its extent, its bytes, and the state after each
/// record.
fn small_manifest(pool: &Pool, seed: u64) -> (Arc<Extent>, Vec<u8>, Vec<(usize, State)>) {
    let manifest = Manifest::create(pool, DB, 16 << 10).unwrap();
    let span = manifest.spans()[0];
    let mut editor = Editor::new(seed);
    let mut states = Vec::new();
    for i in 0..8 {
        let bytes = pool.region().bytes(span.off, span.len as usize).unwrap();
        let tail = replay(bytes, span.off, 1).unwrap().tail as usize;
        states.push((tail, manifest.state()));
        if i < 7 {
            let (edit, _) = editor.edit(&manifest.state());
            manifest.commit(edit).unwrap();
        }
    }
    let len = states.last().unwrap().0;
    let bytes = pool.region().bytes(span.off, len).unwrap().to_vec();
    // The copy has its own extent, which the test may overwrite.
    (pool.alloc(16 << 10).unwrap(), bytes, states)
}

fn read(
    extent: &Arc<Extent>,
    bytes: &[u8],
    fill: impl FnMut() -> u8,
) -> Result<(usize, State), DecodeError> {
    let mut all = bytes.to_vec();
    all.resize_with(extent.len() as usize, fill);
    replay(&all, extent.off(), 1).map(|r| (r.tail as usize, r.state))
}

/// After the manifest is cut off at any byte, replay returns exactly the state of the complete
/// records, or an error if not even the first is complete.
#[test]
fn truncation_leaves_a_prefix() {
    let pool = pool(16 << 20);
    let (extent, bytes, states) = small_manifest(&pool, 77);
    let mut rng = fastrand::Rng::with_seed(78);
    for cut in 0..=bytes.len() {
        let whole = states.iter().filter(|(tail, _)| *tail <= cut).count();
        for noise in [false, true] {
            match read(
                &extent,
                &bytes[..cut],
                || if noise { rng.u8(..) } else { 0 },
            ) {
                // Padding, and zeros at the end of a record, may be after the cut.
                Ok(found) => {
                    let at = states.iter().position(|s| s == &found).unwrap();
                    assert!(at + 1 >= whole && at <= whole, "cut at {cut}");
                    assert!(at < whole || cut + 16 > states[at].0, "cut at {cut}");
                }
                Err(e) => {
                    assert_eq!(whole, 0, "cut at {cut}: {e}");
                    assert!((extent.off()..extent.off() + 200).contains(&e.offset));
                }
            }
        }
    }
}

/// After any byte changes, replay returns the whole state, or the one before a damaged last record,
/// or an error that names an offset in the manifest.
#[test]
fn flipped_bytes_are_found() {
    let pool = pool(16 << 20);
    let (extent, bytes, states) = small_manifest(&pool, 79);
    let mut rng = fastrand::Rng::with_seed(80);
    let last = states[states.len() - 2].0;
    for at in 0..bytes.len() {
        for mask in [1 << rng.u32(..8), 0xff, rng.u8(1..)] {
            let mut changed = bytes.clone();
            changed[at] ^= mask;
            match read(&extent, &changed, || 0) {
                Ok(found) if found == states[states.len() - 1] => {
                    assert!(
                        at >= HEADER_BYTES + RECORD_HEADER_BYTES,
                        "byte {at} is covered"
                    );
                }
                Ok(found) => {
                    assert_eq!(found, states[states.len() - 2]);
                    assert!(at >= last, "byte {at} is not of the last record");
                }
                Err(e) => {
                    assert!(at < last, "byte {at}: {e}");
                    let offsets = extent.off()..extent.off() + bytes.len() as u64;
                    assert!(offsets.contains(&e.offset), "byte {at}: {e}");
                }
            }
        }
    }
}

/// Records with valid checksums and arbitrary changes yield a state or an error, never a panic.
#[test]
fn hostile_records_are_refused() {
    let pool = pool(16 << 20);
    let (extent, bytes, states) = small_manifest(&pool, 81);
    let mut rng = fastrand::Rng::with_seed(82);
    let mut errors = 0;
    for _ in 0..20_000 {
        let mut changed = bytes.clone();
        let i = rng.usize(1..states.len());
        let (start, end) = (states[i - 1].0, states[i].0);
        let old = RecordHeader::decode(&changed[start..], 0).unwrap();
        let payload = old.payload_bytes as usize;
        for _ in 0..rng.usize(..4) {
            changed[start + RECORD_HEADER_BYTES + rng.usize(..payload)] = rng.u8(..);
        }
        let count = if rng.bool() {
            old.change_count
        } else {
            rng.u32(..) >> rng.u32(..32)
        };
        let record = start + RECORD_HEADER_BYTES + payload;
        RecordHeader::finish(&mut changed[start..record], 1, old.number, count);
        if let Err(e) = read(&extent, &changed, || 0) {
            errors += 1;
            let offsets = extent.off()..=extent.off() + bytes.len() as u64;
            assert!(offsets.contains(&e.offset), "{start}..{end}: {e}");
        }
    }
    assert!(errors > 5000);
}
