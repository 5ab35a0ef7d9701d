//! Appender: writes a file from front to back through a buffer, in few large writes.

use super::File;
use std::io;

/// The number of written bytes after which write-back is started, in parallel with the next writes.
/// Otherwise the sync at the end would have to write the whole file.
const BEHIND_BYTES: u64 = 1 << 20;

/// Writes a file from its start, in pieces of any size, from one thread.
///
/// After a failed write the content of the file is undefined, so every later call fails.
pub struct Appender {
    file: Box<dyn File>,
    /// Buffered bytes, which belong at offset `written`.
    buffer: Vec<u8>,
    buffer_bytes: usize,
    written: u64,
    /// The offset up to which write-back was started.
    begun: u64,
    failed: bool,
}

impl Appender {
    /// Returns an appender for an empty file that writes multiples of `buffer_bytes`.
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

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        let mut rest = bytes;
        // All writes but the last consist of whole buffers, so they start at block boundaries.
        // BOUND: each iteration consumes at least one byte.
        while !rest.is_empty() {
            let whole = rest.len() - rest.len() % self.buffer_bytes;
            if self.buffer.is_empty() && whole > 0 {
                // A long piece is written directly, without a copy into the buffer.
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

    /// Writes the buffer and makes everything durable, except the file's name.
    pub fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        self.write_out()?;
        let result = self.file.sync_data();
        self.note(result)
    }

    /// Returns the file, for its other operations. Reads do not see buffered bytes.
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
            // A failure is harmless: `sync` makes these bytes durable.
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
            return Err(io::Error::other("an earlier write to this file failed"));
        }
        Ok(())
    }
}
