//! Tests of salvage at the end of a replay.

use std::path::Path;

use terrace_media::{FileSystem, Machine, Medium, OpenMode, Span};

use super::{DB, FILE, Failure, read_file};
use crate::parts::log::Payload;
use crate::parts::log::layout::{LOG_HEADER_BYTES, RECORD_ALIGN, encode_log_header};
use crate::parts::log::salvage::{Piece, Salvaged, salvage};

/// Creates a log with one entry per record. With `settled`, the last record calls the others
/// settled.
fn log(records: u64, settled: bool) -> Vec<u8> {
    let mut bytes = encode_log_header(DB, 7).to_vec();
    for number in 1..=records {
        let mut payload = Payload::new();
        payload.push(1, 0, b"key", format!("value {number}").as_bytes());
        let at = bytes.len();
        let unsettled = match settled && number == records {
            true => 0,
            false => (at - LOG_HEADER_BYTES) / RECORD_ALIGN,
        };
        payload.with_record(7, at as u64, number, unsettled as u32, |record| {
            bytes.extend_from_slice(record);
        });
    }
    bytes.resize(bytes.len() + 256, 0);
    bytes
}

/// Changes the value of record `number`.
fn damage_value(bytes: &mut [u8], number: u64) {
    let value = format!("value {number}");
    let at = bytes
        .windows(value.len())
        .position(|b| b == value.as_bytes());
    bytes[at.unwrap()] ^= 1;
}

fn salvage_all(fs: &dyn FileSystem, bytes: &[u8]) -> (Salvaged, usize) {
    let file = fs.open(Path::new(FILE), OpenMode::CreateNew).unwrap();
    file.write_at(0, bytes).unwrap();
    let span = Span {
        off: 0,
        len: bytes.len() as u64,
    };
    let mut problems = 0;
    let found = salvage(
        &*file,
        Path::new(FILE),
        span,
        (Some(7), None),
        &mut |piece| {
            problems += usize::from(matches!(piece, Piece::Problem { .. }));
            Ok(())
        },
    );
    (found.unwrap(), problems)
}

/// Values in flight at a power loss are not damage, however many; a record that calls them settled
/// makes all of them damage. Replay agrees.
#[test]
fn values_in_flight_are_no_damage() {
    for (settled, bad) in [(false, 2), (true, 2), (false, 100), (true, 100)] {
        let machine = Machine::new(71, Medium::Dax);
        let fs = machine.fs();
        fs.create_dir_all(Path::new("/db")).unwrap();
        let mut bytes = log(bad + 2, settled);
        (2..bad + 2).for_each(|number| damage_value(&mut bytes, number));
        let (found, told) = salvage_all(&*fs, &bytes);
        assert_eq!(found.records, 1);
        assert_eq!(found.stranded, 1);
        let (replayed, end) = read_file(&fs, 7);
        assert_eq!(replayed.len(), 1);
        match settled {
            true => {
                assert_eq!(found.problems, bad);
                // The texts of the values after the first one are kept up to a limit.
                assert_eq!(told as u64, bad.min(65));
                assert!(!found.torn && matches!(end, Err(Failure::Damage(_))));
            }
            false => {
                assert_eq!((found.problems, told), (0, 0));
                assert!(found.torn && end.is_ok_and(|end| end.torn));
            }
        }
    }
}
