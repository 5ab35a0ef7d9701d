//! The writer of a value file: it makes the file durable before it gets its name.

use std::path::Path;
use std::sync::Arc;

use terrace_media::FileSystem;

use super::layout::{Pointer, RecordHeader, VALUE_BYTES_MAX, encode_header};
use super::meta::ValueMeta;
use crate::error::{Error, Result};
use crate::parts::codec;
use crate::parts::compress::Compressor;
use crate::parts::draft::Draft;
use crate::types::{Compression, DbId, KEY_BYTES_MAX, SEQ_MAX, SeqNo};

/// The memory for compressed values that is kept for the next value.
const KEEP_BYTES: usize = 1 << 20;

/// The options for writing a value file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ValueOptions {
    /// The database that the file belongs to.
    pub(crate) db: DbId,
    pub(crate) compression: Compression,
    /// Whether writes bypass the operating system's cache, if the file system supports it.
    pub(crate) direct: bool,
    /// The number of bytes per write to the file.
    pub(crate) write_bytes: usize,
}

/// A value to write, with the place of its entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewValue<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
    /// The expiry, or 0 for never.
    pub(crate) expiry: u64,
    pub(crate) value: &'a [u8],
}

/// Writes one value file, on one thread.
pub(crate) struct ValueWriter {
    file: Draft,
    number: u64,
    compressor: Compressor,
    values: u64,
    failed: bool,
}

impl ValueWriter {
    /// Starts file `number` in a draft, which must not exist yet. `finish` names it `path`.
    pub(crate) fn create(
        fs: &Arc<dyn FileSystem>,
        path: &Path,
        number: u64,
        options: ValueOptions,
    ) -> Result<ValueWriter> {
        let compressor = Compressor::new(options.compression)?;
        let mut file = Draft::create(fs, path, options.db, options.direct, options.write_bytes)?;
        if let Err(e) = file.out.append(&encode_header(options.db, number)) {
            let e = file.failed(e);
            let _ = file.abandon();
            return Err(e);
        }
        Ok(ValueWriter {
            file,
            number,
            compressor,
            values: 0,
            failed: false,
        })
    }

    /// Returns the number of bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.out.position()
    }

    /// Appends a value. Returns its place.
    ///
    /// # Errors
    /// `Invalid` if a file cannot contain the value, which is then skipped. After any other error
    /// nothing more can be appended.
    pub(crate) fn append(&mut self, new: &NewValue<'_>) -> Result<Pointer> {
        if self.failed {
            return Err(self.file.has_failed());
        }
        if new.key.len() > KEY_BYTES_MAX || new.value.len() > VALUE_BYTES_MAX || new.seq > SEQ_MAX {
            return Err(Error::invalid(format!(
                "a value file holds keys of up to {KEY_BYTES_MAX} bytes and values of up to \
                 {VALUE_BYTES_MAX} bytes, but this entry has a key of {} bytes and a value of {}",
                new.key.len(),
                new.value.len()
            )));
        }
        let (stored, compression) = self.compressor.payload(new.value);
        let header = RecordHeader {
            value_crc: codec::checksum(stored),
            seq: new.seq,
            compression,
            expiry: new.expiry,
            keyspace: new.keyspace,
            key_bytes: new.key.len() as u32,
            value_bytes: stored.len() as u32,
        };
        let offset = self.file.out.position();
        let head = header.encode(new.key, self.number, offset);
        let written = [&head[..], new.key, stored]
            .into_iter()
            .try_for_each(|bytes| self.file.out.append(bytes));
        if let Err(e) = written {
            self.failed = true;
            return Err(self.file.failed(e));
        }
        self.compressor.shrink(KEEP_BYTES);
        self.values += 1;
        Ok(Pointer {
            file: self.number,
            offset,
            bytes: header.record_bytes() as u32,
            value_bytes: new.value.len() as u32,
        })
    }

    /// Makes the file durable, first its contents and then its name. Never replaces an existing
    /// file. After an error no file remains, if it can be removed.
    pub(crate) fn finish(self) -> Result<ValueMeta> {
        if self.failed {
            let e = self.file.has_failed();
            let _ = self.file.abandon();
            return Err(e);
        }
        Ok(ValueMeta {
            number: self.number,
            bytes: self.file.finish()?,
            values: self.values,
        })
    }

    /// Abandons the file and removes it. A file that cannot be removed is left for recovery.
    pub(crate) fn abandon(self) -> Result<()> {
        self.file.abandon()
    }
}
