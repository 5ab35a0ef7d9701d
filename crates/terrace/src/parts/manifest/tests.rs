//! Tests of the manifest: edits and their bytes, compaction, damage, full pools and faults.

mod crash;
mod file;
mod items;

use std::sync::Arc;

use terrace_media::{AllocError, Backing, Extent, Pool, PoolConfig, Prefault, Span};

use super::item::Owners;
use super::layout::{HEADER_BYTES, RECORD_HEADER_BYTES, RecordHeader};
use super::replay::replay;
use super::salvage::salvage;
use super::state::State;
use super::{Change, Edit, LogPlace, Manifest, ManifestError, Totals};
use crate::parts::codec::{DecodeError, Reader};
use crate::types::{DbId, SEQ_MAX};

use items::{OWNERS, SHEET, SLAB, Sheet, Slab};

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

/// Generates edits that are legal for the state, from a seed.
struct Editor {
    rng: fastrand::Rng,
    next: u64,
    /// The offset of the next extent, far above those of the pool.
    space: u64,
    /// The maximum number of slabs.
    slabs_max: usize,
}

impl Editor {
    fn new(seed: u64) -> Editor {
        Editor {
            rng: fastrand::Rng::with_seed(seed),
            next: 1,
            space: 1 << 30,
            slabs_max: 12,
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

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.usize(..of.len())])
    }

    /// Returns a change that the state accepts.
    fn change(&mut self, state: &State) -> Change {
        let slabs: Vec<u64> = state.items().map(|slab: &Slab| slab.id).collect();
        let led_to = |id: &u64| state.items().any(|slab: &Slab| slab.next == Some(*id));
        let free: Vec<u64> = slabs.iter().copied().filter(|id| !led_to(id)).collect();
        let sheets: Vec<u64> = state.items().map(|sheet: &Sheet| sheet.id).collect();
        let logs: Vec<u64> = state.logs.keys().copied().collect();
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
            2 | 3 if slabs.len() < self.slabs_max => {
                let id = self.id();
                Some(Change::added(self.slab(id, state)))
            }
            4 if slabs.len() > 4 => {
                let owner = &SLAB;
                self.pick(&free).map(|id| Change::Removed { owner, id })
            }
            5 | 6 => self
                .pick(&slabs)
                .map(|id| Change::changed(self.slab(id, state))),
            8 => Some(Change::Totals(Totals {
                user: self.rng.u64(..) >> self.rng.u32(..64),
                ..Totals::default()
            })),
            9 => Some(Change::NextId { id: self.next }),
            10 if sheets.len() < 8 => {
                let id = self.id();
                Some(Change::added(self.sheet(id)))
            }
            11 => self.pick(&sheets).map(|id| Change::changed(self.sheet(id))),
            12 if sheets.len() > 4 => {
                let owner = &SHEET;
                self.pick(&sheets).map(|id| Change::Removed { owner, id })
            }
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
            assert_eq!(&Change::decode(&mut r, OWNERS).unwrap(), change);
            r.end().unwrap();
            bytes.truncate(editor.rng.usize(..bytes.len()));
            assert!(Change::decode(&mut Reader::new("change", 0, &bytes), OWNERS).is_err());
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
        let slab = editor.slab(9, &State::default());
        Change::added(slab).encode(&mut bytes);
        for _ in 0..rng.usize(..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        let mut state = State::default();
        let mut r = Reader::new("change", 5, &bytes);
        while r.remaining() > 0 {
            match Change::decode(&mut r, OWNERS) {
                Ok(change) => drop(state.apply(&change)),
                Err(ManifestError::Corrupt(e)) => {
                    assert!((5..=5 + bytes.len() as u64).contains(&e.offset));
                    break;
                }
                Err(ManifestError::UnknownOwner { tag }) => {
                    assert!(OWNERS.iter().all(|owner| owner.tag != tag));
                    break;
                }
                Err(e) => panic!("{e}"),
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
    let empty = State::default();
    let log = Change::LogCreated {
        id: 1,
        place: LogPlace::File,
    };
    state.apply(&log).unwrap();
    for id in [10, 11] {
        let slab = editor.slab(id, &empty);
        state.apply(&Change::added(slab)).unwrap();
    }
    // Ids are unique for an owner only.
    state.apply(&Change::added(editor.sheet(10))).unwrap();
    let refused = [
        log,
        Change::LogRetired { id: 2 },
        Change::LogEnded { id: 2, end: 5 },
        Change::added(editor.slab(10, &empty)),
        Change::added(editor.sheet(10)),
        Change::changed(editor.slab(12, &empty)),
        Change::changed(editor.sheet(11)),
        Change::Removed {
            owner: &SLAB,
            id: 12,
        },
        Change::Removed {
            owner: &SHEET,
            id: 11,
        },
    ];
    for change in refused {
        let before = state.clone();
        assert!(state.apply(&change).is_err(), "{change:?}");
        assert_eq!(state, before);
    }
    let changed = editor.slab(10, &empty);
    state.apply(&Change::changed(changed.clone())).unwrap();
    assert_eq!(state.item(&SLAB, 10), Some(&changed));
    state.apply(&Change::LastSeq { seq: 9 }).unwrap();
    state.apply(&Change::LastSeq { seq: 3 }).unwrap();
    assert_eq!(state.last_seq, 9);
    let spans: usize = state.items().map(|slab: &Slab| slab.spans.len()).sum();
    assert_eq!(state.spans().len(), spans);
    let removed = Change::Removed {
        owner: &SHEET,
        id: 10,
    };
    state.apply(&removed).unwrap();
    assert_eq!(state.items::<Sheet>().count(), 0);
    assert_eq!(state.items::<Slab>().count(), 2);
}

/// An edit after which the items of an owner contradict each other is refused and changes nothing;
/// the order of the changes in an edit does not matter.
#[test]
fn contradicting_items_are_refused() {
    let pool = pool(16 << 20);
    let manifest = Manifest::create(&pool, DB, 16 << 10, OWNERS).unwrap();
    let slab = |id, next| {
        let spans = vec![Span {
            off: id << 32,
            len: 4096,
        }];
        Change::added(Slab { id, spans, next })
    };
    let both = Edit {
        changes: vec![slab(2, Some(1)), slab(1, None)],
    };
    manifest.commit(both).unwrap();
    let before = manifest.state();
    let removed = Change::Removed {
        owner: &SLAB,
        id: 1,
    };
    for change in [slab(3, Some(9)), removed] {
        let refused = manifest.commit(Edit::of(change));
        assert!(matches!(refused, Err(ManifestError::Corrupt(_))));
        assert_eq!(manifest.state(), before);
    }
    manifest.verify().unwrap();
}

/// A manifest with an item whose owner is not known is refused as such, and salvage does not skip
/// the item either.
#[test]
fn unknown_owners_are_refused() {
    const FEWER: Owners = &[&SLAB];
    let pool = pool(16 << 20);
    let manifest = Manifest::create(&pool, DB, 16 << 10, OWNERS).unwrap();
    let sheet = Editor::new(83).sheet(4);
    manifest.commit(Edit::of(Change::added(sheet))).unwrap();
    let span = manifest.spans()[0];
    let bytes = pool.region().bytes(span.off, span.len as usize).unwrap();
    let refused = replay(bytes, span.off, 1, FEWER).unwrap_err();
    assert!(matches!(refused, ManifestError::UnknownOwner { tag: 7 }));
    assert!(refused.is_final());
    let e = crate::error::Error::from(refused);
    assert_eq!(e.kind(), crate::error::ErrorKind::Unsupported, "{e}");
    let salvaged = salvage(bytes, span.off, Some(1), FEWER, &mut |_| Ok(()));
    let e = salvaged.unwrap_err();
    assert_eq!(e.kind(), crate::error::ErrorKind::Unsupported, "{e}");
    let salvaged = salvage(bytes, span.off, Some(1), OWNERS, &mut |_| Ok(())).unwrap();
    assert_eq!((salvaged.state, salvaged.problems), (manifest.state(), 0));
}

/// The bytes of each change are stable: tags and field order are the format.
#[test]
fn the_bytes_of_changes_are_pinned() {
    let bytes = |change: Change| {
        let mut bytes = Vec::new();
        change.encode(&mut bytes);
        bytes
    };
    let sheet = Sheet {
        id: 300,
        place: (2, b"ab".to_vec()),
    };
    let item = [7, 0xac, 2, 4, 2, 2, b'a', b'b'];
    assert_eq!(bytes(Change::added(sheet.clone()))[1..], item);
    assert_eq!(bytes(Change::added(sheet.clone()))[0], 5);
    assert_eq!(bytes(Change::changed(sheet))[0], 6);
    let owner = &SHEET;
    assert_eq!(bytes(Change::Removed { owner, id: 9 }), [7, 7, 9]);
    let place = LogPlace::Pool(Span { off: 5, len: 6 });
    assert_eq!(bytes(Change::LogCreated { id: 4, place }), [1, 4, 5, 6]);
    let place = LogPlace::File;
    assert_eq!(bytes(Change::LogCreated { id: 4, place }), [2, 4]);
    assert_eq!(bytes(Change::LogEnded { id: 4, end: 9 }), [3, 4, 9]);
    assert_eq!(bytes(Change::LogRetired { id: 4 }), [4, 4]);
    assert_eq!(bytes(Change::LastSeq { seq: 3 }), [8, 3]);
    assert_eq!(bytes(Change::NextId { id: 3 }), [9, 3]);
    assert_eq!(bytes(Change::Closed), [10]);
    assert_eq!(bytes(Change::Created), [11]);
    let totals = Totals {
        user: 1,
        pool: 2,
        log_files: 3,
        table_files: 4,
    };
    assert_eq!(bytes(Change::Totals(totals)), [12, 1, 2, 3, 4]);
    assert_eq!(bytes(Change::Time { time: 300 }), [13, 0xac, 2]);
}

/// After any number of edits and compactions, a replay of the medium yields the state.
#[test]
fn compaction_keeps_the_state() {
    let pool = pool(16 << 20);
    let manifest = Manifest::create(&pool, DB, 16 << 10, OWNERS).unwrap();
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
    let manifest = Manifest::create(&pool, DB, 16 << 10, OWNERS).unwrap();
    let first = Change::LogCreated {
        id: 4,
        place: LogPlace::File,
    };
    manifest.commit(Edit::of(first.clone())).unwrap();
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
    manifest
        .commit(Edit::of(Change::LogRetired { id: 4 }))
        .unwrap();
    manifest.verify().unwrap();
}

/// In a full pool edits succeed while the state fits; a larger state is refused as full, and
/// accepted once there is space.
#[test]
fn full_pools_take_edits() {
    let pool = pool(1 << 20);
    let manifest = Manifest::create(&pool, DB, 4 << 10, OWNERS).unwrap();
    let mut hog = Vec::new();
    while let Ok(extent) = pool.alloc(4 << 10) {
        hog.push(extent);
    }
    let mut editor = Editor::new(76);
    editor.slabs_max = usize::MAX;
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
    manifest
        .commit(Edit::of(Change::LogRetired { id }))
        .unwrap();
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
    let manifest = Manifest::create(pool, DB, 16 << 10, OWNERS).unwrap();
    let span = manifest.spans()[0];
    let mut editor = Editor::new(seed);
    let mut states = Vec::new();
    for i in 0..8 {
        let bytes = pool.region().bytes(span.off, span.len as usize).unwrap();
        let tail = replay(bytes, span.off, 1, OWNERS).unwrap().tail as usize;
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
    let replayed = replay(&all, extent.off(), 1, OWNERS).map_err(|e| match e {
        ManifestError::Corrupt(e) => e,
        // An owner's tag was changed. The error has no offset.
        e => DecodeError::new("manifest", extent.off(), "a known owner", e.to_string()),
    });
    replayed.map(|r| (r.tail as usize, r.state))
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
