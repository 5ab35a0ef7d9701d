//! The decoders of value files for fuzzing.

use terrace_media::decoder::{Decoder, Seen, same, seal};

use super::layout::{
    HEADER_BYTES, HeaderError, Pointer, RECORD_HEADER_BYTES, RecordHeader, decode_header,
    decode_record, encode_header,
};
use crate::parts::codec;
use crate::parts::codec::decoders::refused;
use crate::types::{Compression, DbId};

const NUMBER: u64 = 7;
const OFFSET: u64 = 64;
const DB: DbId = DbId(*b"0123456789abcdef");

/// Returns a record.
fn record(key: &[u8], value: &[u8], expiry: u64) -> Vec<u8> {
    let header = RecordHeader {
        value_crc: codec::checksum(value),
        seq: 12,
        compression: Compression::None,
        expiry,
        keyspace: 1,
        key_bytes: key.len() as u32,
        value_bytes: value.len() as u32,
    };
    [&header.encode(key, NUMBER, OFFSET)[..], key, value].concat()
}

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![
        Decoder {
            name: "value-file-header",
            seeds: || {
                vec![
                    encode_header(DB, NUMBER).to_vec(),
                    encode_header(DbId::default(), u64::MAX).to_vec(),
                ]
            },
            mend: |bytes| seal(bytes, HEADER_BYTES - 4),
            run: |bytes| match decode_header(bytes) {
                Ok((db, number)) => {
                    let again = encode_header(db, number);
                    let head = bytes.get(..HEADER_BYTES).unwrap_or(bytes);
                    // Zero bytes are ignored, so only the meaning has to be the same.
                    let same_meaning = decode_header(&again).ok();
                    same("the header", &same_meaning, &Some((db, number)))?;
                    same("its length", &head.len(), &HEADER_BYTES)?;
                    Ok(Seen::Accepted(0))
                }
                Err(HeaderError::Damaged(e)) => Ok(refused(&e)),
                Err(HeaderError::Newer(_)) => Ok(Seen::Accepted(1)),
            },
        },
        Decoder {
            name: "value-record",
            seeds: || vec![record(b"key", b"value", 0), record(b"", &[7; 300], 99)],
            mend: |bytes| {
                // A record with right checksums, so that what follows them is reached too.
                if bytes.len() < RECORD_HEADER_BYTES {
                    return;
                }
                let word = |at: usize| {
                    let bytes = bytes[at..].first_chunk::<4>();
                    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize
                };
                let key_end = RECORD_HEADER_BYTES.saturating_add(word(28));
                let end = key_end.saturating_add(word(32));
                if end > bytes.len() {
                    return;
                }
                let crc = codec::checksum(&bytes[key_end..end]);
                bytes[4..8].copy_from_slice(&crc.to_le_bytes());
                let crc = codec::checksum(&bytes[4..RECORD_HEADER_BYTES]);
                let crc = codec::checksum_append(crc, &bytes[RECORD_HEADER_BYTES..key_end]);
                let place = [NUMBER.to_le_bytes(), OFFSET.to_le_bytes()].concat();
                let crc = codec::checksum_append(crc, &place);
                bytes[..4].copy_from_slice(&crc.to_le_bytes());
            },
            run: |bytes| match decode_record(bytes, NUMBER, OFFSET) {
                Ok(record) => {
                    let again = [
                        &record.header.encode(record.key, NUMBER, OFFSET)[..],
                        record.key,
                        record.stored,
                    ];
                    let again = again.concat();
                    same("the record", &&again[..], &&bytes[..again.len()])?;
                    Ok(Seen::Accepted(record.header.compression as u64))
                }
                Err(e) => Ok(refused(&e)),
            },
        },
        Decoder {
            name: "value-pointer",
            seeds: || {
                let pointer = Pointer {
                    file: 300,
                    offset: 70_000,
                    bytes: 4_500,
                    value_bytes: 4_096,
                };
                vec![pointer.encode().bytes().to_vec()]
            },
            mend: |_| {},
            run: |bytes| match Pointer::decode(bytes, OFFSET) {
                Ok(pointer) => {
                    same("the pointer", &pointer.encode().bytes(), &bytes)?;
                    Ok(Seen::Accepted(0))
                }
                Err(e) => Ok(refused(&e)),
            },
        },
    ]
}
