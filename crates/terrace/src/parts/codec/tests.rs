//! Tests of the codec: round trips, hostile bytes, and error messages.

use super::*;

/// Every number reads back as written and consumes all its bytes.
#[test]
fn numbers_round_trip() {
    let mut rng = fastrand::Rng::with_seed(1);
    for i in 0..2000 {
        let value = match i {
            0 => 0,
            1 => u64::MAX,
            2..66 => 1 << (i - 2),
            _ => rng.u64(..) >> rng.u32(..64),
        };
        let mut out = Vec::new();
        put_varint(&mut out, value);
        assert!(out.len() <= VARINT_BYTES_MAX);
        put_u8(&mut out, value as u8);
        out.extend_from_slice(&(value as u32).to_le_bytes());
        out.extend_from_slice(&value.to_le_bytes());
        let mut r = Reader::new("number", 100, &out);
        assert_eq!(r.varint().unwrap(), value);
        assert_eq!(r.u8().unwrap(), value as u8);
        assert_eq!(r.u32().unwrap(), value as u32);
        assert_eq!(r.u64().unwrap(), value);
        assert_eq!(r.offset(), 100 + out.len() as u64);
        r.end().unwrap();
    }
}

/// Arbitrary bytes decode to a number or to an error that names an offset inside them.
#[test]
fn hostile_varints_are_refused() {
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..rng.usize(..12)).map(|_| rng.u8(..) | 0x80).collect();
        let mut bytes = bytes;
        if let Some(last) = bytes.last_mut()
            && rng.bool()
        {
            *last &= 0x7f;
        }
        let mut r = Reader::new("number", 7, &bytes);
        match r.varint() {
            Ok(value) => {
                let mut again = Vec::new();
                put_varint(&mut again, value);
                assert_eq!(again, &bytes[..again.len()], "each number has one encoding");
            }
            Err(e) => assert!((7..=7 + bytes.len() as u64).contains(&e.offset)),
        }
    }
    assert!(Reader::new("number", 0, &[0x80, 0]).varint().is_err());
    assert!(Reader::new("number", 0, &[0xff; 10]).varint().is_err());
    let mut big = Vec::new();
    put_varint(&mut big, 1 << 32);
    assert!(Reader::new("number", 0, &big).varint_u32().is_err());
}

/// A short slice is an error with the wanted length and the offset.
#[test]
fn short_slices_are_errors() {
    let mut r = Reader::new("thing", 40, &[1, 2, 3]);
    assert_eq!(r.u8().unwrap(), 1);
    let e = r.u32().unwrap_err();
    assert_eq!((e.what, e.offset), ("thing", 41));
    assert_eq!(
        e.to_string(),
        "thing at offset 41 is damaged: expected 4 bytes, found 2 bytes"
    );
    assert_eq!(r.bytes(3).unwrap_err().offset, 41);
    assert_eq!(r.bytes(2).unwrap(), &[2, 3]);
    r.end().unwrap();
    assert_eq!(checksum_append(checksum(b"12345"), b"6789"), 0xe306_9283);
    assert_eq!(hex(0xe306_9283), "0xe3069283");
}

/// Checksums equal those of another implementation, whole and in pieces, at any length and
/// alignment.
#[test]
fn checksums_are_crc32c() {
    let mut rng = fastrand::Rng::with_seed(11);
    let bytes: Vec<u8> = (0..20_000).map(|_| rng.u8(..)).collect();
    let lens = (0..600).chain((600..20_000).step_by(97));
    for len in lens {
        let from = rng.usize(..=(bytes.len() - len).min(100));
        let all = &bytes[from..from + len];
        let expected = crc32c::crc32c(all);
        assert_eq!(checksum(all), expected, "{len} bytes at {from}");
        let (front, rest) = all.split_at(rng.usize(..=len));
        assert_eq!(checksum_append(checksum(front), rest), expected, "{len}");
    }
    assert_eq!(checksum(b"123456789"), 0xe306_9283);
}
