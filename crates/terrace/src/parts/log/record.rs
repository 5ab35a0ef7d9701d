//! One record of the log: encoded while a batch is built, decoded by replay.
//!
//! A [`Payload`] reserves space for the record's header before its entries, so that the finished
//! record is contiguous and an append is one copy. Each value is hashed once, when it is pushed.

use crate::parts::codec::{self, DecodeError, Reader};
use crate::parts::log::layout::{
    ENTRY_HEADER_BYTES, EntryHeader, KEY_SIZE_MAX, PAYLOAD_BYTES_MAX, RECORD_ALIGN,
    RECORD_HEADER_BYTES, RecordHeader, numbers,
};
use crate::parts::skiplist::NewNode;
use crate::parts::skiplist::node::height_for;
use crate::types::{SEQ_MAX, SeqNo};

/// A put or delete of a record, borrowed from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogEntry<'a> {
    /// The stored `types::EntryKind`, which the log does not interpret.
    pub(crate) kind: u8,
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// The crc32c of `value`.
    pub(crate) value_crc: u32,
    /// The offset of the value: in the pool or the file of the record, or in the payload.
    pub(crate) value_at: u64,
}

impl<'a> LogEntry<'a> {
    /// Returns the skip list node of the entry with the number `seq`. `hash` is that of its key.
    #[inline]
    pub(crate) fn node(&self, hash: u64, seq: SeqNo) -> NewNode<'a> {
        NewNode {
            keyspace: self.keyspace,
            seq,
            kind: self.kind,
            hash,
            height: height_for(hash, seq),
            key: self.key,
            value: self.value,
            value_crc: self.value_crc,
            more: false,
        }
    }
}

/// The entries of one record, encoded as they are pushed. Reused across batches.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    /// Space for the record's header, followed by the entries.
    buffer: Vec<u8>,
    entry_count: u32,
    /// The crc32c of the headers and keys of all entries so far.
    meta_crc: u32,
    /// Whether all entries get one number.
    one_number: bool,
}

impl Default for Payload {
    fn default() -> Payload {
        Payload::new()
    }
}

impl Payload {
    /// Creates an empty payload.
    pub(crate) fn new() -> Payload {
        Payload {
            buffer: vec![0; RECORD_HEADER_BYTES],
            entry_count: 0,
            meta_crc: 0,
            one_number: false,
        }
    }

    /// Gives all entries the same number.
    pub(crate) fn with_one_number(self) -> Payload {
        Payload {
            one_number: true,
            ..self
        }
    }

    /// Returns the size in a payload of an entry with a key and a value of these sizes.
    pub(crate) fn entry_bytes(key_bytes: usize, value_bytes: usize) -> usize {
        (ENTRY_HEADER_BYTES + key_bytes + value_bytes).next_multiple_of(8)
    }

    /// Adds an entry and returns the crc32c of its value.
    ///
    /// # Panics
    ///
    /// If the key is longer than 16 MiB - 1, or the value or the payload than 4 GiB - 8: the store
    /// refuses such writes before it encodes them.
    #[inline]
    pub(crate) fn push(&mut self, kind: u8, keyspace: u32, key: &[u8], value: &[u8]) -> u32 {
        assert!(key.len() <= KEY_SIZE_MAX, "a key of {} bytes", key.len());
        assert!(
            value.len() <= PAYLOAD_BYTES_MAX,
            "a value of {} bytes",
            value.len()
        );
        let bytes = Payload::entry_bytes(key.len(), value.len());
        assert!(
            self.len_bytes() + bytes <= PAYLOAD_BYTES_MAX,
            "a payload over 4 GiB"
        );
        let value_crc = codec::checksum(value);
        let header = EntryHeader {
            key_bytes: key.len(),
            kind,
            value_bytes: value.len(),
            keyspace,
            value_crc,
        };
        let start = self.buffer.len();
        self.buffer.reserve(bytes);
        self.buffer.extend_from_slice(&header.encode());
        self.buffer.extend_from_slice(key);
        self.meta_crc = codec::checksum_append(self.meta_crc, &self.buffer[start..]);
        self.buffer.extend_from_slice(value);
        let padding = start + bytes - self.buffer.len();
        self.buffer.extend_from_slice(&[0; 8][..padding]);
        self.entry_count += 1;
        value_crc
    }

    /// Removes the entries and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.buffer.truncate(RECORD_HEADER_BYTES);
        self.entry_count = 0;
        self.meta_crc = 0;
    }

    /// Returns the size of the entries; a record adds its header and padding.
    #[inline]
    pub(crate) fn len_bytes(&self) -> usize {
        self.buffer.len() - RECORD_HEADER_BYTES
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Returns the entries in the order in which they were pushed.
    pub(crate) fn iter(&self) -> PayloadEntries<'_> {
        PayloadEntries(Entries::new(
            0,
            &self.buffer[RECORD_HEADER_BYTES..],
            self.entry_count,
        ))
    }

    /// Calls `write` with the bytes of the whole record at `position`, padded to a multiple of 64.
    pub(crate) fn with_record<T>(
        &mut self,
        log_id: u64,
        position: u64,
        first_seq: u64,
        unsettled: u32,
        write: impl FnOnce(&[u8]) -> T,
    ) -> T {
        let end = self.buffer.len();
        let header = RecordHeader {
            checksum: 0,
            payload_bytes: (end - RECORD_HEADER_BYTES) as u32,
            log_id,
            first_seq,
            entry_count: self.entry_count,
            one_number: self.one_number,
            unsettled,
        };
        let header = header.encode(self.meta_crc, position);
        self.buffer[..RECORD_HEADER_BYTES].copy_from_slice(&header);
        // Whole cache lines are written: a partial one would cost the medium a read.
        self.buffer.resize(end.next_multiple_of(RECORD_ALIGN), 0);
        let result = write(&self.buffer);
        self.buffer.truncate(end);
        result
    }
}

/// Returns the size in a log of a record with `payload_bytes` of entries.
#[inline]
pub(crate) fn record_bytes(payload_bytes: usize) -> u64 {
    (RECORD_HEADER_BYTES as u64 + payload_bytes as u64).next_multiple_of(RECORD_ALIGN as u64)
}

/// The entries of a payload.
#[derive(Debug, Clone)]
pub(crate) struct PayloadEntries<'a>(Entries<'a>);

impl<'a> Iterator for PayloadEntries<'a> {
    type Item = LogEntry<'a>;

    #[inline]
    fn next(&mut self) -> Option<LogEntry<'a>> {
        // A payload decodes its own encoding, so no error occurs; an error would end the iteration.
        self.0.next().and_then(Result::ok)
    }
}

/// The entries of a record, each checked against the record's bounds.
#[derive(Debug, Clone)]
pub(crate) struct Entries<'a> {
    reader: Reader<'a>,
    left: u32,
}

impl<'a> Entries<'a> {
    fn new(base: u64, bytes: &'a [u8], count: u32) -> Entries<'a> {
        Entries {
            reader: Reader::new("log record", base, bytes),
            left: count,
        }
    }

    #[inline]
    fn decode(&mut self) -> Result<LogEntry<'a>, DecodeError> {
        let start = self.reader.offset();
        let header = EntryHeader::decode(&mut self.reader)?;
        let key = self.reader.bytes(header.key_bytes)?;
        let value_at = self.reader.offset();
        let value = self.reader.bytes(header.value_bytes)?;
        let padding = (self.reader.offset() - start).wrapping_neg() & 7;
        self.reader.bytes(padding as usize)?;
        Ok(LogEntry {
            kind: header.kind,
            keyspace: header.keyspace,
            key,
            value,
            value_crc: header.value_crc,
            value_at,
        })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<LogEntry<'a>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Result<LogEntry<'a>, DecodeError>> {
        if self.left == 0 {
            return None;
        }
        let entry = self.decode();
        self.left = if entry.is_ok() { self.left - 1 } else { 0 };
        Some(entry)
    }
}

/// A record found by replay, with its checksums verified.
#[derive(Debug)]
pub(crate) struct RecordView<'a> {
    /// The sequence number of the first entry; the others count up from it, or have it too.
    pub(crate) first_seq: u64,
    pub(crate) entry_count: u32,
    one_number: bool,
    /// The record's offset in the pool or the file.
    pub(crate) offset: u64,
    payload: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// Returns whether the record is a seal, which marks the records before it as settled.
    pub(crate) fn is_seal(&self) -> bool {
        self.entry_count == 0
    }

    /// Returns the size of the record in the log.
    pub(crate) fn bytes(&self) -> u64 {
        record_bytes(self.payload.len())
    }

    /// Returns the number after the last.
    pub(crate) fn seq_end(&self) -> SeqNo {
        self.first_seq + numbers(self.entry_count, self.one_number)
    }

    /// Returns the entries in the order in which they were written, with their numbers.
    pub(crate) fn entries(
        &self,
    ) -> impl Iterator<Item = (SeqNo, Result<LogEntry<'a>, DecodeError>)> + use<'a> {
        let base = self.offset + RECORD_HEADER_BYTES as u64;
        let step = SeqNo::from(!self.one_number);
        let (first, entries) = (self.first_seq, self.entry_count);
        let entries = Entries::new(base, self.payload, entries);
        (0..)
            .zip(entries)
            .map(move |(at, entry)| (first + at * step, entry))
    }
}

/// The verdict on the bytes of a record.
pub(crate) enum Verdict<'a> {
    /// All checksums are valid.
    Whole(RecordView<'a>),
    /// Header and keys are valid, but the value of an entry is not.
    BadValue(DecodeError),
    /// Not a record, or an incomplete one.
    Bad(DecodeError),
}

/// Verifies `bytes`, of the length in `header`, at `position` of a log that starts at `base`.
pub(crate) fn judge<'a>(
    header: &RecordHeader,
    bytes: &'a [u8],
    base: u64,
    position: u64,
) -> Verdict<'a> {
    let offset = base + position;
    let Some((head, payload)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        return Verdict::Bad(DecodeError::new(
            "log record",
            offset,
            "a record",
            "too few bytes",
        ));
    };
    let first_entry = offset + RECORD_HEADER_BYTES as u64;
    let mut meta_crc = 0;
    let mut bad_value = None;
    let mut entries = Entries::new(first_entry, payload, header.entry_count);
    // BOUND: every entry consumes bytes of the payload.
    loop {
        let at = (entries.reader.offset() - first_entry) as usize;
        let entry = match entries.next() {
            None => break,
            Some(Err(e)) => return Verdict::Bad(e),
            Some(Ok(entry)) => entry,
        };
        let meta_end = at + ENTRY_HEADER_BYTES + entry.key.len();
        meta_crc = codec::checksum_append(meta_crc, &payload[at..meta_end]);
        if bad_value.is_none() {
            let computed = codec::checksum(entry.value);
            if computed != entry.value_crc {
                bad_value = Some(DecodeError::new(
                    "log record",
                    first_entry + meta_end as u64,
                    format!("a value with checksum {}", codec::hex(entry.value_crc)),
                    codec::hex(computed),
                ));
            }
        }
    }
    if let Err(e) = entries.reader.end() {
        return Verdict::Bad(e);
    }
    let computed = crate::parts::log::layout::record_checksum(head, meta_crc, position);
    if computed != header.checksum {
        let found = codec::hex(header.checksum);
        let expected = format!("checksum {}", codec::hex(computed));
        return Verdict::Bad(DecodeError::new("log record", offset, expected, found));
    }
    // Readers of the entries count up from the first number.
    let last = header.first_seq.checked_add(header.numbers());
    if last.is_none_or(|last| last > SEQ_MAX + 1) {
        let found = header.first_seq.to_string();
        let expected = "sequence numbers of 56 bits";
        return Verdict::Bad(DecodeError::new("log record", offset + 16, expected, found));
    }
    match bad_value {
        Some(e) => Verdict::BadValue(e),
        None => Verdict::Whole(RecordView {
            first_seq: header.first_seq,
            entry_count: header.entry_count,
            one_number: header.one_number,
            offset,
            payload,
        }),
    }
}
