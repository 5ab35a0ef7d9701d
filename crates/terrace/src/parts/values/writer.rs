//! The writer of a value file: it makes the file durable before it gets its name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{Appender, FileSystem, OpenMode};

use super::layout::{Pointer, RecordHeader, VALUE_BYTES_MAX, encode_header};
use super::meta::ValueMeta;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::codec;
use crate::parts::compress::Compressor;
use crate::types::{Compression, DbId, KEY_BYTES_MAX, SEQ_MAX, SeqNo, draft_of};

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
    fs: Arc<dyn FileSystem>,
    path: PathBuf,
    /// The path of the file until it is complete.
    draft: PathBuf,
    number: u64,
    out: Appender,
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
        let mode = match options.direct {
            true => OpenMode::CreateNewDirect,
            false => OpenMode::CreateNew,
        };
        let draft = draft_of(path, options.db);
        let file = fs
            .open(&draft, mode)
            .map_err(|e| Error::io("create", &draft, e))?;
        let mut writer = ValueWriter {
            fs: Arc::clone(fs),
            path: path.to_owned(),
            draft,
            number,
            out: Appender::new(file, options.write_bytes),
            compressor,
            values: 0,
            failed: false,
        };
        let header = writer.out.append(&encode_header(options.db, number));
        match header {
            Ok(()) => Ok(writer),
            Err(e) => {
                let e = writer.fail("write", e);
                let _ = writer.abandon();
                Err(e)
            }
        }
    }

    /// Returns the number of bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.out.position()
    }

    /// Appends a value. Returns its place.
    ///
    /// # Errors
    /// `Invalid` if a file cannot contain the value, which is then skipped. After any other error
    /// nothing more can be appended.
    pub(crate) fn append(&mut self, new: &NewValue<'_>) -> Result<Pointer> {
        if self.failed {
            return Err(self.has_failed());
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
        let offset = self.out.position();
        let head = header.encode(new.key, self.number, offset);
        let written = [&head[..], new.key, stored]
            .into_iter()
            .try_for_each(|bytes| self.out.append(bytes));
        if let Err(e) = written {
            return Err(self.fail("write", e));
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

    #[cold]
    fn fail(&mut self, what: &str, e: std::io::Error) -> Error {
        self.failed = true;
        Error::io(what, &self.path, e)
    }

    #[cold]
    fn has_failed(&self) -> Error {
        Error::new(
            ErrorKind::Stopped,
            format!(
                "an earlier write of {} failed: write the whole file again",
                self.path.display()
            ),
        )
    }

    /// Makes the file durable, first its contents and then its name. Never replaces an existing
    /// file. After an error no file remains, if it can be removed.
    pub(crate) fn finish(mut self) -> Result<ValueMeta> {
        let meta = ValueMeta {
            number: self.number,
            bytes: self.out.position(),
            values: self.values,
        };
        let named = match self.failed {
            true => Err(self.has_failed()),
            // PERSIST: the file, then its name, and the manifest only after `finish` has returned.
            // Reversed, a crash could leave a manifest that refers to a short or missing file.
            false => self.out.sync().map_err(|e| self.fail("sync", e)),
        };
        let named = named.and_then(|()| {
            // CRASH: recovery finds a draft, or a value file whose header has the id of its
            // database. The manifest does not refer to it, so recovery removes it.
            let renamed = self.fs.rename_new(&self.draft, &self.path);
            renamed.map_err(|e| Error::io("rename the finished file to", &self.path, e))
        });
        named.inspect_err(|_| {
            let _ = self.fs.remove(&self.draft);
        })?;
        let dir = self.path.parent().unwrap_or(Path::new(".")).to_owned();
        if let Err(e) = self.fs.sync_dir(&dir) {
            let _ = self.fs.remove(&self.path);
            return Err(Error::unsynced_folder(&dir, e));
        }
        Ok(meta)
    }

    /// Abandons the file and removes it. A file that cannot be removed is left for recovery.
    pub(crate) fn abandon(self) -> Result<()> {
        let ValueWriter { fs, draft, out, .. } = self;
        drop(out);
        fs.remove(&draft)
            .map_err(|e| Error::io("remove", &draft, e))
    }
}
