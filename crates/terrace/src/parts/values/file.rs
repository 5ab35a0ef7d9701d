//! Reads of value files: one value by its pointer, or one after another with read-ahead.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{Advice, File, FileSystem, OpenMode};

use super::layout::{
    self, HEADER_BYTES, HeaderError, KNOWN, Pointer, RECORD_HEADER_BYTES, Record, VALUE_BYTES_MAX,
    decode_header, decode_record,
};
use crate::error::{Error, ErrorKind, Result};
use crate::parts::codec::DecodeError;
use crate::parts::compress::decompress;
use crate::parts::memory::Lease;
use crate::types::{Compression, DbId};

/// The files in which a walk remembers its place. A level that was compacted often has its values
/// in several, each of which it passes in order.
const WINDOWS_MAX: usize = 8;
/// The size of the first span to read ahead.
const AHEAD_BYTES_MIN: usize = 16 << 10;
/// A walk that skips fewer bytes than this reads them with its span.
const GAP_BYTES_MAX: u64 = 16 << 10;

/// A record and its value.
type Walked<'a> = (Record<'a>, &'a [u8]);

/// An open value file, shared by any number of threads.
pub(crate) struct ValueFile {
    file: Box<dyn File>,
    path: PathBuf,
    number: u64,
    bytes: u64,
    db: DbId,
}

impl ValueFile {
    /// Opens file `number`, and reads its header.
    pub(crate) fn open(
        fs: &dyn FileSystem,
        path: &Path,
        number: u64,
        direct: bool,
    ) -> Result<ValueFile> {
        let mode = match direct {
            true => OpenMode::ReadDirect,
            false => OpenMode::Read,
        };
        let file = fs
            .open(path, mode)
            .map_err(|e| Error::io("open", path, e))?;
        let bytes = file
            .len()
            .map_err(|e| Error::io("get the length of", path, e))?;
        let mut file = ValueFile {
            file,
            path: path.to_owned(),
            number,
            bytes,
            db: DbId::default(),
        };
        let mut header = [0; HEADER_BYTES];
        file.read_at(0, &mut header)?;
        let (db, found) = decode_header(&header).map_err(|e| match e {
            HeaderError::Damaged(e) => file.damaged(e),
            HeaderError::Newer(version) => Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has version {version}, but this version knows {KNOWN}: open it with the \
                     version that wrote it",
                    path.display()
                ),
            ),
        })?;
        if found != number {
            let expected = format!("the header of file {number}");
            let e = DecodeError::new("value file", 8, expected, format!("file {found}"));
            return Err(file.damaged(e));
        }
        file.db = db;
        // For speed only.
        let _ = file.file.advise(0, bytes, Advice::Random);
        Ok(file)
    }

    /// Returns the id of the database that wrote the file.
    pub(crate) fn db(&self) -> DbId {
        self.db
    }

    /// Returns the length of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cold]
    fn damaged(&self, e: DecodeError) -> Error {
        self.in_file(Error::from(e))
    }

    #[cold]
    fn in_file(&self, e: Error) -> Error {
        Error::new(e.kind(), format!("{}: {e}", self.path.display())).because(e)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file
            .read_exact_at(offset, bytes)
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    let expected = format!("{} bytes", bytes.len());
                    let found = "the end of the file";
                    self.damaged(DecodeError::new("value file", offset, expected, found))
                }
                _ => {
                    let what = format!("read {} bytes at offset {offset} of", bytes.len());
                    Error::io(&what, &self.path, e)
                }
            })
    }

    /// Accepts only pointers into the file. Called before anything is allocated.
    fn check(&self, pointer: Pointer) -> Result<()> {
        let end = pointer.offset + u64::from(pointer.bytes);
        if end > self.bytes {
            let expected = format!("a record inside {} bytes", self.bytes);
            let found = format!("one that ends at {end}");
            let e = DecodeError::new("value file", pointer.offset, expected, found);
            return Err(self.damaged(e));
        }
        Ok(())
    }

    /// Returns the record of a key, whose bytes are `bytes`.
    fn record<'b>(
        &self,
        bytes: &'b [u8],
        pointer: Pointer,
        key: (u32, &[u8]),
    ) -> Result<Record<'b>> {
        let record = decode_record(bytes, self.number, pointer.offset);
        let record = record.map_err(|e| self.damaged(e))?;
        if (record.header.keyspace, record.key) != key {
            let what = "record of a value file";
            let (expected, found) = ("the key that points to it", "another key");
            let e = DecodeError::new(what, pointer.offset, expected, found);
            return Err(self.damaged(e));
        }
        let exact = record.header.record_bytes() == u64::from(pointer.bytes);
        let len = record.stored.len();
        let plain = record.header.compression == Compression::None;
        if !exact || plain && len != pointer.value_bytes as usize {
            let expected = format!("{} bytes for a value", pointer.value_bytes);
            let what = "record of a value file";
            let found = format!("{len} in a record of {}", record.header.record_bytes());
            let e = DecodeError::new(what, pointer.offset, expected, found);
            return Err(self.damaged(e));
        }
        Ok(record)
    }

    /// Returns the value of a compressed record, in `memory`.
    fn unpack(&self, record: &Record<'_>, pointer: Pointer, memory: Vec<u8>) -> Result<Vec<u8>> {
        let compression = record.header.compression;
        let wanted = (pointer.value_bytes as usize).min(VALUE_BYTES_MAX);
        let value = decompress(record.stored, compression, pointer.offset, wanted, memory);
        let value = value.map_err(|e| self.in_file(e))?;
        if value.len() != pointer.value_bytes as usize {
            let expected = format!("{} bytes", pointer.value_bytes);
            let found = value.len().to_string();
            let e = DecodeError::new("value", pointer.offset, expected, found);
            return Err(self.damaged(e));
        }
        Ok(value)
    }

    /// Reads the value of a key.
    pub(crate) fn read(&self, pointer: Pointer, key: (u32, &[u8])) -> Result<Vec<u8>> {
        self.check(pointer)?;
        let mut bytes = vec![0; pointer.bytes as usize];
        self.read_at(pointer.offset, &mut bytes)?;
        let record = self.record(&bytes, pointer, key)?;
        if record.header.compression != Compression::None {
            return self.unpack(&record, pointer, Vec::new());
        }
        let before = RECORD_HEADER_BYTES + record.key.len();
        bytes.drain(..before);
        Ok(bytes)
    }

    /// Walks all records. A record whose header does not lead to the next one ends the walk.
    /// `visit` gets the record and its value, or what is wrong at its offset.
    pub(crate) fn walk(
        &self,
        visit: &mut dyn FnMut(u64, Result<Walked<'_>>) -> Result<()>,
    ) -> Result<()> {
        let mut at = HEADER_BYTES as u64;
        let mut bytes = Vec::new();
        // BOUND: each iteration passes a record.
        while at < self.bytes {
            let mut header = [0; RECORD_HEADER_BYTES];
            let left = self.bytes - at;
            let wanted = self.read_at(at, &mut header).and_then(|()| {
                let wanted = layout::record_bytes(&header, at).map_err(|e| self.damaged(e))?;
                if wanted > left {
                    let what = "record of a value file";
                    let expected = format!("at most {left} bytes");
                    let e = DecodeError::new(what, at, expected, wanted.to_string());
                    return Err(self.damaged(e));
                }
                Ok(wanted)
            });
            let wanted = match wanted {
                Ok(wanted) => wanted,
                Err(e) => return visit(at, Err(e)),
            };
            bytes.resize(wanted as usize, 0);
            self.read_at(at, &mut bytes)?;
            let record = decode_record(&bytes, self.number, at);
            let mut unpacked = Vec::new();
            let value = record.map_err(|e| self.damaged(e)).and_then(|record| {
                let compression = record.header.compression;
                if compression == Compression::None {
                    return Ok((record, record.stored));
                }
                unpacked = decompress(record.stored, compression, at, VALUE_BYTES_MAX, Vec::new())
                    .map_err(|e| self.in_file(e))?;
                Ok((record, unpacked.as_slice()))
            });
            visit(at, value)?;
            at += wanted;
        }
        Ok(())
    }
}

/// A part of a file in memory, and where a walk is in the file.
struct Window {
    file: Arc<ValueFile>,
    at: u64,
    /// The first `len` bytes are the part; the rest is memory for longer ones.
    bytes: Vec<u8>,
    len: usize,
    /// The size of the next span; 0 before the second read.
    next_bytes: usize,
    /// The end of the last record that was read.
    expected: u64,
}

impl Window {
    /// Returns where the record is in `bytes`, if it is there.
    fn position(&self, pointer: Pointer) -> Option<usize> {
        let from = usize::try_from(pointer.offset.checked_sub(self.at)?).ok()?;
        let end = from.checked_add(pointer.bytes as usize)?;
        (end <= self.len).then_some(from)
    }
}

/// Reads the values of a walk in key order.
pub(crate) struct ValueReader {
    /// The files of the walk, the last one used first.
    windows: Vec<Window>,
    ahead_bytes_max: usize,
    /// The value of the last read, if it was compressed.
    unpacked: Vec<u8>,
    /// The memory of the windows, if there is a budget.
    lease: Option<Lease>,
}

impl ValueReader {
    /// Creates a reader that reads up to `ahead_bytes_max` at once.
    pub(crate) fn new(ahead_bytes_max: usize, lease: Option<Lease>) -> ValueReader {
        ValueReader {
            windows: Vec::new(),
            ahead_bytes_max,
            unpacked: Vec::new(),
            lease,
        }
    }

    /// Returns the value of a key.
    pub(crate) fn read(
        &mut self,
        file: &Arc<ValueFile>,
        pointer: Pointer,
        key: (u32, &[u8]),
    ) -> Result<&[u8]> {
        file.check(pointer)?;
        let of_file = |window: &Window| Arc::ptr_eq(&window.file, file);
        match self.windows.iter().position(of_file) {
            Some(at) => self.windows[..=at].rotate_right(1),
            None => {
                self.windows.truncate(WINDOWS_MAX - 1);
                let window = Window {
                    file: Arc::clone(file),
                    at: 0,
                    bytes: Vec::new(),
                    len: 0,
                    next_bytes: 0,
                    expected: 0,
                };
                self.windows.insert(0, window);
            }
        }
        if self.windows[0].position(pointer).is_none() {
            self.fetch(pointer)?;
        }
        let window = &mut self.windows[0];
        window.expected = pointer.offset + u64::from(pointer.bytes);
        let from = window.position(pointer).unwrap_or(0);
        let bytes = &window.bytes[from..from + pointer.bytes as usize];
        let record = file.record(bytes, pointer, key)?;
        if record.header.compression == Compression::None {
            return Ok(record.stored);
        }
        let memory = std::mem::take(&mut self.unpacked);
        self.unpacked = file.unpack(&record, pointer, memory)?;
        Ok(&self.unpacked)
    }

    /// Reads the record into the first window, and what follows if the walk goes on there.
    fn fetch(&mut self, pointer: Pointer) -> Result<()> {
        let window = &mut self.windows[0];
        let goes_on = window.expected > 0
            && (window.expected..window.expected + GAP_BYTES_MAX).contains(&pointer.offset);
        window.next_bytes = match goes_on {
            true => (window.next_bytes * 2)
                .max(AHEAD_BYTES_MIN)
                .min(self.ahead_bytes_max),
            false => 0,
        };
        let record = pointer.bytes as usize;
        let left = usize::try_from(window.file.bytes - pointer.offset).unwrap_or(usize::MAX);
        let mut len = window.next_bytes.min(left).max(record);
        let capacity = window.bytes.capacity();
        let others = self.windows[1..].iter().map(|w| w.bytes.capacity());
        let held = others.sum::<usize>() + len.max(capacity);
        if let Some(lease) = &mut self.lease
            && !lease.set(held as u64)
        {
            // Without memory for spans, one record at a time. It is bounded, and the only one.
            len = record;
            self.windows.truncate(1);
            self.windows[0].bytes = Vec::new();
            let _ = lease.set(len as u64);
        }
        let window = &mut self.windows[0];
        if window.bytes.len() < len {
            // Frees the old bytes first.
            window.bytes = Vec::new();
            window.bytes.resize(len, 0);
        }
        window.len = 0;
        window
            .file
            .read_at(pointer.offset, &mut window.bytes[..len])?;
        (window.at, window.len) = (pointer.offset, len);
        Ok(())
    }
}
