//! Tests of the changes of table files: errors of decoding and effects on the state.

use super::{Change, DB, Editor, FileMeta, Reader, State, one};
use crate::parts::codec::{self, DecodeError};
use crate::parts::manifest::Manifest;
use crate::types::{KEY_BYTES_MAX, SEQ_MAX};

impl Editor {
    pub(super) fn file(&mut self) -> FileMeta {
        let (one, other) = (self.place(), self.place());
        let level = self.rng.u32(..8);
        let (first, last) = (one.clone().min(other.clone()), one.max(other));
        let range_deletes = self.rng.u64(..3);
        let reach = (range_deletes > 0).then(|| {
            let (low, high) = (self.place(), self.place());
            (low.min(first.clone()), high.max(last.clone()))
        });
        FileMeta {
            number: self.id(),
            level,
            run: if level == 0 { self.id() } else { 0 },
            bytes: self.rng.u64(..=1 << 48),
            entries: self.rng.u64(..=1 << 48),
            tombstones: self.rng.u64(..=1 << 48),
            seq_first: self.rng.u64(..1 << 50),
            seq_last: self.rng.u64(..1 << 50),
            first,
            last,
            range_deletes,
            reach,
            expiring: self.rng.u64(..5),
            expiry_last: self.rng.u64(..),
        }
    }
}

fn encoded(file: &FileMeta) -> Vec<u8> {
    let mut bytes = Vec::new();
    Change::FileAdded(file.clone()).encode(&mut bytes);
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Change, DecodeError> {
    let mut r = Reader::new("change", 0, bytes);
    let change = Change::decode(&mut r)?;
    r.end().map(|()| change)
}

/// Keys of every length up to the longest decode to themselves, including an empty key and the same
/// key twice.
#[test]
fn keys_up_to_the_longest_round_trip() {
    let mut editor = Editor::new(91);
    for len in [0, 1, 127, 128, KEY_BYTES_MAX - 1, KEY_BYTES_MAX] {
        let key = (7, vec![b'k'; len]);
        let file = FileMeta {
            first: key.clone(),
            last: key.clone(),
            range_deletes: 1,
            reach: Some((key.clone(), key)),
            ..editor.file()
        };
        let change = decoded(&encoded(&file)).unwrap();
        assert_eq!(change, Change::FileAdded(file));
    }
}

/// A key above the maximum length is refused by its length, whether or not its bytes are present,
/// and a length without bytes allocates nothing.
#[test]
fn keys_that_are_too_long_are_refused() {
    let mut editor = Editor::new(92);
    let long = FileMeta {
        first: (0, Vec::new()),
        last: (1, vec![b'k'; KEY_BYTES_MAX + 1]),
        range_deletes: 0,
        reach: None,
        ..editor.file()
    };
    let refused = decoded(&encoded(&long)).unwrap_err();
    assert!(refused.to_string().contains("length of a key"), "{refused}");

    let short = FileMeta {
        first: (0, Vec::new()),
        last: (1, Vec::new()),
        range_deletes: 0,
        reach: None,
        expiring: 0,
        expiry_last: 0,
        ..editor.file()
    };
    let bytes = encoded(&short);
    // The numbers of expiring entries and of range deletes follow.
    let (end, start) = (bytes.len() - 3, bytes.len() - 4);
    assert_eq!(bytes[start..end], [0], "the length of the last key");
    for claimed in [1, KEY_BYTES_MAX as u64, 1 << 40, u64::MAX] {
        let mut hostile = bytes[..start].to_vec();
        codec::put_varint(&mut hostile, claimed);
        assert!(decoded(&hostile).is_err(), "{claimed} bytes are not there");
    }
}

/// A file whose first key is after its last is refused: by keyspace first, then by key.
#[test]
fn keys_in_the_wrong_order_are_refused() {
    let mut editor = Editor::new(93);
    let place = |keyspace: u32, key: &[u8]| (keyspace, key.to_vec());
    for (first, last) in [
        (place(0, b"b"), place(0, b"a")),
        (place(0, b"aa"), place(0, b"a")),
        (place(2, b"a"), place(1, b"b")),
    ] {
        let file = FileMeta {
            first,
            last,
            ..editor.file()
        };
        let refused = decoded(&encoded(&file)).unwrap_err();
        assert!(refused.to_string().contains("first key"), "{refused}");
    }
}

/// The bytes of each change of files are stable: tags and field order are the format.
#[test]
fn the_bytes_of_changes_are_pinned() {
    let file = FileMeta {
        number: 9,
        level: 2,
        run: 0,
        bytes: 300,
        entries: 5,
        tombstones: 1,
        seq_first: 6,
        seq_last: 7,
        first: (1, b"a".to_vec()),
        last: (1, b"bc".to_vec()),
        range_deletes: 0,
        reach: None,
        expiring: 2,
        expiry_last: 4,
    };
    let added = [
        &[14, 9, 2, 0, 0xac, 2, 5, 1, 6, 7][..],
        &[1, 1, b'a', 1, 2, b'b', b'c', 2, 4, 0],
    ];
    assert_eq!(encoded(&file), added.concat());
    let reaching = FileMeta {
        range_deletes: 3,
        reach: Some(((1, Vec::new()), (2, Vec::new()))),
        ..file.clone()
    };
    let added = [
        &[14, 9, 2, 0, 0xac, 2, 5, 1, 6, 7][..],
        &[1, 1, b'a', 1, 2, b'b', b'c', 2, 4, 3, 1, 0, 2, 0],
    ];
    assert_eq!(encoded(&reaching), added.concat());
    assert_eq!(
        decoded(&added.concat()).unwrap(),
        Change::FileAdded(reaching)
    );
    let short = [&added.concat()[..19], &[3, 1, 0, 1, 0]].concat();
    assert!(
        decoded(&short).is_err(),
        "a reach that ends before the table does"
    );
    let bytes = |change: Change| {
        let mut bytes = Vec::new();
        change.encode(&mut bytes);
        bytes
    };
    assert_eq!(bytes(Change::FileRemoved { number: 9 }), [15, 9]);
    assert_eq!(bytes(Change::Time { time: 300 }), [17, 0xac, 2]);
    let moved = Change::FileMoved {
        number: 9,
        level: 3,
    };
    assert_eq!(bytes(moved), [16, 9, 3]);
    assert_eq!(bytes(Change::Closed), [32]);
    assert_eq!(bytes(Change::Created), [33]);
}

/// Changes of files that contradict the state are refused and change nothing; a file that moves to
/// another level leaves its run.
#[test]
fn contradictions_about_files_are_refused() {
    let mut editor = Editor::new(94);
    let mut state = State::default();
    let file = FileMeta {
        level: 0,
        run: 4,
        ..editor.file()
    };
    let number = file.number;
    state.apply(&Change::FileAdded(file.clone())).unwrap();
    for change in [
        Change::FileAdded(file.clone()),
        Change::FileRemoved { number: number + 1 },
        Change::FileMoved {
            number: number + 1,
            level: 1,
        },
    ] {
        let before = state.clone();
        assert!(state.apply(&change).is_err(), "{change:?}");
        assert_eq!(state, before);
    }
    state
        .apply(&Change::FileMoved { number, level: 3 })
        .unwrap();
    let moved = &state.files[&number];
    assert_eq!((moved.level, moved.run), (3, 0));
    assert_eq!(moved.first, file.first);
    assert!(state.spans().is_empty(), "a file takes nothing of the pool");
    state.apply(&Change::FileRemoved { number }).unwrap();
    assert_eq!(state, State::default());
}

/// A reopened manifest has its files.
#[test]
fn files_are_remembered() {
    let pool = super::pool(16 << 20);
    let manifest = Manifest::create(&pool, DB, 16 << 10).unwrap();
    let file = Editor::new(95).file();
    let number = file.number;
    manifest.commit(one(Change::FileAdded(file))).unwrap();
    let moved = Change::FileMoved { number, level: 5 };
    manifest.commit(one(moved)).unwrap();
    let state = manifest.state();
    drop(manifest);
    let manifest = Manifest::open(&pool).unwrap();
    assert_eq!(manifest.state(), state);
    assert_eq!(manifest.with_state(|state| state.files[&number].level), 5);
}

/// Arbitrary bytes decode to a change of files or to an error; a decoded change encodes to bytes
/// that decode to the same change.
#[test]
fn hostile_files_are_refused() {
    let mut rng = fastrand::Rng::with_seed(96);
    let mut editor = Editor::new(97);
    let mut refused = 0;
    for _ in 0..30_000 {
        let mut bytes = encoded(&editor.file());
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        match decoded(&bytes) {
            Ok(Change::FileAdded(file)) => {
                assert!(file.first <= file.last);
                assert_eq!(decoded(&encoded(&file)).unwrap(), Change::FileAdded(file));
            }
            Ok(_) => {}
            Err(e) => {
                assert!(e.offset <= bytes.len() as u64);
                refused += 1;
            }
        }
    }
    assert!(refused > 3000, "{refused} were refused");
}

/// Impossible levels, ids, sequence numbers and amounts are refused: readers have a slot for each
/// level, count up from ids and numbers, and add up amounts.
#[test]
fn impossible_numbers_are_refused() {
    let sound = Editor::new(17).file();
    let with = |change: fn(&mut FileMeta)| {
        let mut file = sound.clone();
        change(&mut file);
        Change::FileAdded(file)
    };
    let refused = [
        with(|file| file.level = 64),
        with(|file| file.level = u32::MAX),
        with(|file| file.run = u64::MAX),
        with(|file| file.number = u64::MAX),
        with(|file| file.seq_last = SEQ_MAX + 1),
        with(|file| file.bytes = u64::MAX),
        with(|file| file.entries = (1 << 48) + 1),
        Change::FileMoved {
            number: 1,
            level: 64,
        },
        Change::TableMoved { id: 1, level: 64 },
        Change::LastSeq { seq: SEQ_MAX + 1 },
        Change::NextId { id: u64::MAX },
    ];
    for change in refused {
        let mut bytes = Vec::new();
        change.encode(&mut bytes);
        let error = decoded(&bytes).expect_err("an impossible number");
        assert!(error.expected.starts_with("at most"), "{change:?}: {error}");
    }
    let all = [
        with(|file| (file.level, file.bytes) = (63, 1 << 48)),
        Change::LastSeq { seq: SEQ_MAX },
    ];
    for change in all {
        let mut bytes = Vec::new();
        change.encode(&mut bytes);
        assert_eq!(decoded(&bytes), Ok(change));
    }
}
