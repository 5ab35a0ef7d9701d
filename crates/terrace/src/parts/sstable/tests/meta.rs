//! Tests of table files as items of the manifest.

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::key::Place;
use crate::parts::manifest::item::Item;
use crate::parts::sstable::FileMeta;
use crate::types::{KEY_BYTES_MAX, SEQ_MAX};

/// The number of the files.
const NUMBER: u64 = 9;

fn random(rng: &mut fastrand::Rng) -> FileMeta {
    let mut place = || -> Place {
        let key = (0..rng.usize(..24)).map(|_| rng.u8(..));
        let key = key.collect();
        (rng.u32(..) >> rng.u32(..32), key)
    };
    let mut keys = [place(), place(), place(), place()];
    keys.sort();
    let [low, first, last, high] = keys;
    let range_deletes = rng.u64(..3);
    FileMeta {
        number: NUMBER,
        level: rng.u32(..8),
        run: rng.u64(..1 << 40),
        bytes: rng.u64(..=1 << 48),
        entries: rng.u64(..=1 << 48),
        tombstones: rng.u64(..=1 << 48),
        older: rng.u64(..=1 << 48),
        seq_first: rng.u64(..1 << 50),
        seq_last: rng.u64(..1 << 50),
        first,
        last,
        range_deletes,
        reach: (range_deletes > 0).then_some((low, high)),
        expiring: rng.u64(..5),
        expiry_last: rng.u64(..),
        values: (0..rng.u64(..4)).map(|n| (n * 7, n + 1)).collect(),
    }
}

fn encoded(file: &FileMeta) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.encode(&mut bytes);
    bytes
}

fn decoded(bytes: &[u8]) -> Result<FileMeta, DecodeError> {
    let mut r = Reader::new("file", 0, bytes);
    let file = FileMeta::decode(NUMBER, &mut r)?;
    r.end().map(|()| file)
}

/// Keys of every length up to the longest decode to themselves, including an empty key and the same
/// key twice.
#[test]
fn keys_up_to_the_longest_round_trip() {
    let mut rng = fastrand::Rng::with_seed(91);
    for len in [0, 1, 127, 128, KEY_BYTES_MAX - 1, KEY_BYTES_MAX] {
        let key = (7, vec![b'k'; len]);
        let file = FileMeta {
            first: key.clone(),
            last: key.clone(),
            range_deletes: 1,
            reach: Some((key.clone(), key)),
            ..random(&mut rng)
        };
        assert_eq!(decoded(&encoded(&file)), Ok(file));
    }
}

/// A key above the maximum length is refused by its length, whether or not its bytes are present,
/// and a length without bytes allocates nothing.
#[test]
fn keys_that_are_too_long_are_refused() {
    let mut rng = fastrand::Rng::with_seed(92);
    let long = FileMeta {
        first: (0, Vec::new()),
        last: (1, vec![b'k'; KEY_BYTES_MAX + 1]),
        range_deletes: 0,
        reach: None,
        ..random(&mut rng)
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
        values: Vec::new(),
        ..random(&mut rng)
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
    let mut rng = fastrand::Rng::with_seed(93);
    let place = |keyspace: u32, key: &[u8]| (keyspace, key.to_vec());
    for (first, last) in [
        (place(0, b"b"), place(0, b"a")),
        (place(0, b"aa"), place(0, b"a")),
        (place(2, b"a"), place(1, b"b")),
    ] {
        let file = FileMeta {
            first,
            last,
            ..random(&mut rng)
        };
        let refused = decoded(&encoded(&file)).unwrap_err();
        assert!(refused.to_string().contains("first key"), "{refused}");
    }
}

/// The bytes are stable: the order of the fields is the format.
#[test]
fn the_bytes_of_files_are_pinned() {
    let file = FileMeta {
        number: NUMBER,
        level: 2,
        run: 0,
        bytes: 300,
        entries: 5,
        tombstones: 1,
        older: 3,
        seq_first: 6,
        seq_last: 7,
        first: (1, b"a".to_vec()),
        last: (1, b"bc".to_vec()),
        range_deletes: 0,
        reach: None,
        expiring: 2,
        expiry_last: 4,
        values: Vec::new(),
    };
    let numbers = [2, 0, 0xac, 2, 5, 1, 3, 6, 7];
    let keys = [1, 1, b'a', 1, 2, b'b', b'c', 2, 4];
    assert_eq!(encoded(&file), [&numbers[..], &keys, &[0]].concat());
    let reaching = FileMeta {
        range_deletes: 3,
        reach: Some(((1, Vec::new()), (2, Vec::new()))),
        ..file
    };
    let bytes = [&numbers[..], &keys, &[3, 1, 0, 2, 0]].concat();
    assert_eq!(encoded(&reaching), bytes);
    assert_eq!(decoded(&bytes), Ok(reaching));
    let short = [&numbers[..], &keys, &[3, 1, 0, 1, 0]].concat();
    assert!(
        decoded(&short).is_err(),
        "a reach that ends before the table does"
    );
    let pointing = FileMeta {
        range_deletes: 0,
        reach: None,
        values: vec![(5, 300), (8, 1)],
        ..decoded(&bytes).unwrap()
    };
    let bytes = [&numbers[..], &keys, &[0, 5, 0xac, 2, 8, 1]].concat();
    assert_eq!(encoded(&pointing), bytes);
    assert_eq!(decoded(&bytes), Ok(pointing));
    let twice = [&numbers[..], &keys, &[0, 5, 1, 5, 1]].concat();
    assert!(decoded(&twice).is_err(), "a value file that comes twice");
}

/// Arbitrary bytes decode to a file or to an error; a decoded file encodes to bytes that decode to
/// the same file.
#[test]
fn hostile_files_are_refused() {
    let mut rng = fastrand::Rng::with_seed(96);
    let mut refused = 0;
    for _ in 0..30_000 {
        let mut bytes = encoded(&random(&mut rng));
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        match decoded(&bytes) {
            Ok(file) => {
                assert!(file.first <= file.last);
                assert_eq!(decoded(&encoded(&file)), Ok(file));
            }
            Err(e) => {
                assert!(e.offset <= bytes.len() as u64);
                refused += 1;
            }
        }
    }
    assert!(refused > 3000, "{refused} were refused");
}

/// Impossible levels, runs, sequence numbers and amounts are refused: readers have a slot for each
/// level, count up from runs and numbers, and add up amounts.
#[test]
fn impossible_numbers_are_refused() {
    let sound = random(&mut fastrand::Rng::with_seed(17));
    let with = |change: fn(&mut FileMeta)| {
        let mut file = sound.clone();
        change(&mut file);
        file
    };
    let refused = [
        with(|file| file.level = 64),
        with(|file| file.level = u32::MAX),
        with(|file| file.run = u64::MAX),
        with(|file| file.seq_last = SEQ_MAX + 1),
        with(|file| file.bytes = u64::MAX),
        with(|file| file.entries = (1 << 48) + 1),
    ];
    for file in refused {
        let error = decoded(&encoded(&file)).expect_err("an impossible number");
        assert!(error.expected.starts_with("at most"), "{file:?}: {error}");
    }
    let largest = with(|file| (file.level, file.bytes) = (63, 1 << 48));
    assert_eq!(decoded(&encoded(&largest)), Ok(largest));
}
