//! This file is how a file is written from front to back: a buffer in front of few large writes.

use super::File;
use std::io;

/// The device begins with so many bytes while the next ones are written. Otherwise it would begin when the file
/// is synced, and that would take as long as all of it.
const BEHIND_BYTES: u64 = 1 << 20;

/// Writes a file from its start, in pieces of any size. One thread.
///
/// Nothing may be assumed of a file one of whose writes failed, so after a failure every call fails.
pub struct Appender {
    file: Box<dyn File>,
    /// What has not been written yet; goes to `written`.
    buffer: Vec<u8>,
    buffer_bytes: usize,
    written: u64,
    /// What the system was asked to make durable.
    begun: u64,
    failed: bool,
}

impl Appender {
    /// Appends to an empty file, in writes of `buffer_bytes` or a multiple.
    pub fn new(file: Box<dyn File>, buffer_bytes: usize) -> Appender {
        Appender {
            file,
            buffer: Vec::with_capacity(buffer_bytes),
            buffer_bytes: buffer_bytes.max(1),
            written: 0,
            begun: 0,
            failed: false,
        }
    }

    /// Where the next byte goes.
    pub fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Adds bytes to the end.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        let mut rest = bytes;
        // Each write but the last is of whole buffers, so it begins where a block of the device does.
        // BOUND: every turn takes at least one byte.
        while !rest.is_empty() {
            let whole = rest.len() - rest.len() % self.buffer_bytes;
            if self.buffer.is_empty() && whole > 0 {
                // A long piece need not pass through the buffer.
                let result = self.file.write_at(self.written, &rest[..whole]);
                self.note(result)?;
                self.wrote(whole);
                rest = &rest[whole..];
                continue;
            }
            let taken = rest.len().min(self.buffer_bytes - self.buffer.len());
            self.buffer.extend_from_slice(&rest[..taken]);
            rest = &rest[taken..];
            if self.buffer.len() == self.buffer_bytes {
                self.write_out()?;
            }
        }
        Ok(())
    }

    /// Writes what is buffered and makes everything durable, but not the file's name.
    pub fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        self.write_out()?;
        let result = self.file.sync_data();
        self.note(result)
    }

    /// The file, for its other operations. Reading it does not show what is buffered.
    pub fn file(&self) -> &dyn File {
        &*self.file
    }

    fn write_out(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let result = self.file.write_at(self.written, &self.buffer);
        self.note(result)?;
        self.wrote(self.buffer.len());
        self.buffer.clear();
        Ok(())
    }

    fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
        let behind = self.written - self.begun;
        if behind >= BEHIND_BYTES {
            // Nothing depends on it: `sync` makes durable what this has not.
            let _ = self.file.begin_sync(self.begun, behind);
            self.begun = self.written;
        }
    }

    fn note(&mut self, result: io::Result<()>) -> io::Result<()> {
        self.failed |= result.is_err();
        result
    }

    fn check(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier write of this file failed"));
        }
        Ok(())
    }
}
