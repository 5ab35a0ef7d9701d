//! The writer of a table: it packs entries into blocks, and makes the file durable before it gets
//! its name.
//!
//! The writer's memory is one block, one compressed block, the index, 8 bytes per key for the
//! filter, the range deletes, and a write buffer.

use std::path::Path;
use std::sync::Arc;

use terrace_media::{Appender, FileSystem};

use super::build::{BlockBuilder, RawEntry};
use super::index::{IndexBuilder, separator};
use super::layout::{
    self, BlockKind, Compression, Features, Footer, Handle, KEYSPACE_BYTES, VALUE_BYTES_MAX,
    encode_trailer, keyspace_bytes, kind,
};
use super::properties::{Place, Properties};
use super::ranges::{self, RangeDelete};
use crate::error::{Error, Result};
use crate::parts::compress::Compressor;
use crate::parts::draft::Draft;
use crate::parts::filter::FilterBuilder;
use crate::parts::ranges::{Keep, fragment};
use crate::types::{DbId, EntryKind, KEY_BYTES_MAX, SEQ_MAX, SeqNo, key_hash};

/// The memory that a block buffer keeps for the next block. A large value may need more, which is
/// freed after its block.
const KEEP_BYTES: usize = 1 << 20;

/// The options for writing a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SstOptions {
    /// The database that the table belongs to.
    pub(crate) db: DbId,
    /// The content size at which a data block is closed. Larger blocks are denser and need fewer
    /// index entries, but more bytes are read per key.
    pub(crate) block_bytes: usize,
    /// The number of entries from one restart to the next. A larger interval is denser, but slower
    /// to search.
    pub(crate) restart_interval: usize,
    /// The size at which an index block is closed. An index of more than one block has two levels.
    pub(crate) index_block_bytes: usize,
    /// The filter's bits per key, or 0 for no filter.
    pub(crate) filter_bits_per_key: u32,
    pub(crate) compression: Compression,
    /// Whether writes bypass the operating system's cache, if the file system supports it.
    pub(crate) direct: bool,
    /// The number of bytes per write to the file.
    pub(crate) write_bytes: usize,
}

impl Default for SstOptions {
    fn default() -> SstOptions {
        SstOptions {
            db: DbId::default(),
            block_bytes: 4 << 10,
            restart_interval: 16,
            index_block_bytes: 32 << 10,
            filter_bits_per_key: 10,
            compression: Compression::Lz4,
            direct: false,
            write_bytes: 1 << 20,
        }
    }
}

/// An entry to write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    pub(crate) keyspace: u32,
    pub(crate) key: &'a [u8],
    pub(crate) seq: SeqNo,
    /// Put, delete or value pointer. Range deletes have their own method.
    pub(crate) kind: u8,
    /// The time in milliseconds since 1970 after which the entry counts as deleted; 0 for never.
    pub(crate) expiry: u64,
    pub(crate) value: &'a [u8],
}

/// A table whose file and name are durable, so that a manifest may refer to it.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    pub(crate) properties: Properties,
}

/// Writes one table, on one thread.
pub(crate) struct SstWriter {
    file: Draft,
    number: u64,
    options: SstOptions,
    compressor: Compressor,
    data: BlockBuilder,
    index: IndexBuilder,
    /// The last finished block, which enters the index when the key that follows it is known.
    pending: Option<Handle>,
    /// The stored key and the number of the last entry.
    last_key: Vec<u8>,
    last_seq: SeqNo,
    /// The stored key of the entry being added.
    next_key: Vec<u8>,
    /// The hashes of all distinct keys, for the filter.
    hashes: Vec<u64>,
    ranges: Vec<RangeDelete>,
    properties: Properties,
    failed: bool,
}

/// Writes the payload and the trailer of a block to the file.
fn write_block(
    out: &mut Appender,
    (payload, compression): (&[u8], Compression),
    kind: BlockKind,
    number: u64,
) -> std::io::Result<Handle> {
    let offset = out.position();
    let trailer = encode_trailer(payload, compression, kind, number, offset);
    out.append(payload)?;
    out.append(&trailer)?;
    Ok(Handle {
        offset,
        size: payload.len() as u32,
    })
}

impl SstWriter {
    /// Starts table `number` in a draft, which must not exist yet. `finish` names it `path`.
    pub(crate) fn create(
        fs: &Arc<dyn FileSystem>,
        path: &Path,
        number: u64,
        options: SstOptions,
    ) -> Result<SstWriter> {
        let compressor = Compressor::new(options.compression)?;
        let file = Draft::create(fs, path, options.db, options.direct, options.write_bytes)?;
        Ok(SstWriter {
            file,
            number,
            compressor,
            data: BlockBuilder::new(options.restart_interval),
            index: IndexBuilder::new(options.index_block_bytes),
            pending: None,
            last_key: Vec::new(),
            last_seq: 0,
            next_key: Vec::new(),
            hashes: Vec::new(),
            ranges: Vec::new(),
            properties: Properties {
                compression: options.compression,
                ..Properties::default()
            },
            options,
            failed: false,
        })
    }

    /// Adds an entry, which must follow the one before it (T2).
    ///
    /// # Errors
    /// `Invalid` if a table cannot contain the entry, which is then skipped. After any other error
    /// nothing more can be added.
    pub(crate) fn add(&mut self, entry: &NewEntry<'_>) -> Result<()> {
        self.check(entry)?;
        self.next_key.clear();
        self.next_key
            .extend_from_slice(&keyspace_bytes(entry.keyspace));
        self.next_key.extend_from_slice(entry.key);
        let first = self.properties.entry_count == 0;
        let new_key = first || self.next_key != self.last_key;
        if !first && (self.next_key < self.last_key || !new_key && entry.seq >= self.last_seq) {
            return Err(self.out_of_order(entry));
        }
        if self.data.entry_count() > 0 && self.full_with(entry) {
            self.close_block()?;
        }
        self.index_pending(new_key);
        self.count(entry, new_key);
        self.data.push(&RawEntry {
            stored: &self.next_key,
            seq: entry.seq,
            kind: entry.kind,
            expiry: entry.expiry,
            value: entry.value,
        });
        std::mem::swap(&mut self.last_key, &mut self.next_key);
        self.last_seq = entry.seq;
        if self.data.len_bytes() >= self.options.block_bytes {
            self.close_block()?;
        }
        Ok(())
    }

    /// Returns whether the block should be closed before `entry`. An entry that does not fit goes
    /// to the next block if this one is at least half full or would become much too large, so that
    /// large values get their own blocks.
    #[inline]
    fn full_with(&self, entry: &NewEntry<'_>) -> bool {
        let before = self.data.len_bytes();
        let after = before + entry.key.len() + entry.value.len();
        let full = self.options.block_bytes;
        after > full && (before >= full / 2 || after > full + full / 2)
    }

    fn check(&self, entry: &NewEntry<'_>) -> Result<()> {
        if self.failed {
            return Err(self.file.has_failed());
        }
        let known = match EntryKind::from_raw(entry.kind) {
            Some(EntryKind::Put | EntryKind::Delete) => true,
            // Range deletes have a separate block; a put that expires is a `Put` with an expiry.
            Some(EntryKind::RangeDelete | EntryKind::PutExpiring) => false,
            None => entry.kind == kind::VALUE_POINTER,
        };
        if entry.key.len() > KEY_BYTES_MAX
            || entry.value.len() > VALUE_BYTES_MAX
            || entry.seq > SEQ_MAX
            || !known
        {
            return Err(Error::invalid(format!(
                "a table holds known kinds, keys of up to {KEY_BYTES_MAX} bytes and values of up \
                 to {VALUE_BYTES_MAX} bytes, but this entry has a key of {} bytes, a value of {} \
                 bytes and kind {}",
                entry.key.len(),
                entry.value.len(),
                entry.kind
            )));
        }
        Ok(())
    }

    #[cold]
    fn out_of_order(&mut self, entry: &NewEntry<'_>) -> Error {
        self.failed = true;
        Error::corruption(format!(
            "entries for {} are out of order: a key of {} bytes at {} in keyspace {} follows a \
             greater one; verify the database",
            self.file.path().display(),
            entry.key.len(),
            entry.seq,
            entry.keyspace
        ))
    }

    fn count(&mut self, entry: &NewEntry<'_>, new_key: bool) {
        let p = &mut self.properties;
        p.entry_count += 1;
        p.tombstone_count += u64::from(entry.kind == EntryKind::Delete as u8);
        p.value_pointer_count += u64::from(entry.kind == kind::VALUE_POINTER);
        p.key_bytes += entry.key.len() as u64;
        p.value_bytes += entry.value.len() as u64;
        p.count_seq(entry.seq);
        if entry.expiry != 0 {
            p.count_expiry(entry.expiry);
        }
        if new_key {
            p.key_count += 1;
            if self.options.filter_bits_per_key > 0 {
                self.hashes.push(key_hash(entry.keyspace, entry.key));
            }
        }
        if p.entry_count == 1 {
            let place = Place {
                keyspace: entry.keyspace,
                key: entry.key.to_vec(),
                seq: entry.seq,
            };
            // `write_rest` replaces the second one with the last entry.
            p.entries = Some((place.clone(), place));
        }
    }

    /// Adds a range delete, in any order. Fails with `Invalid` if the range is empty.
    pub(crate) fn add_range_delete(&mut self, range: RangeDelete) -> Result<()> {
        if self.failed {
            return Err(self.file.has_failed());
        }
        let too_long = range.begin.len().max(range.end.len()) > KEY_BYTES_MAX;
        if too_long || range.seq > SEQ_MAX || !range.is_some() {
            return Err(Error::invalid(format!(
                "a range delete covers keys of at most {KEY_BYTES_MAX} bytes, and at least one"
            )));
        }
        self.ranges.push(range);
        Ok(())
    }

    /// Adds the last finished block to the index, now that the next key is known.
    #[inline]
    fn index_pending(&mut self, new_key: bool) {
        let Some(handle) = self.pending.take() else {
            return;
        };
        if new_key {
            let between = separator(&self.last_key, &self.next_key);
            self.index.push(between, 0, handle);
        } else {
            // The same key is on both sides, so only the last entry itself separates them (T3).
            self.index.push(&self.last_key, self.last_seq, handle);
        }
    }

    fn close_block(&mut self) -> Result<()> {
        let content = self.data.finish();
        self.properties.content_bytes += content.len() as u64;
        let payload = self.compressor.payload(content);
        let written = write_block(&mut self.file.out, payload, BlockKind::Data, self.number);
        let handle = match written {
            Ok(handle) => handle,
            Err(e) => return Err(self.fail(e)),
        };
        self.properties.data_block_count += 1;
        self.properties.data_bytes += handle.stored_bytes() as u64;
        self.pending = Some(handle);
        self.data.reset(KEEP_BYTES);
        self.compressor.shrink(KEEP_BYTES);
        Ok(())
    }

    #[cold]
    fn fail(&mut self, e: std::io::Error) -> Error {
        self.failed = true;
        self.file.failed(e)
    }

    /// Estimates the length of the file if the table were finished now.
    pub(crate) fn estimated_bytes(&self) -> u64 {
        let filter = self.hashes.len() as u64 * u64::from(self.options.filter_bits_per_key) / 8;
        self.file.out.position()
            + self.data.len_bytes() as u64
            + self.index.len_bytes() as u64
            + filter
            + layout::FOOTER_BYTES as u64
    }

    /// Returns an upper bound on the memory of hashes and index until the table is finished: of the
    /// hashes while their vector grows or the filter is built from them, and of the index while its
    /// last block is copied.
    pub(crate) fn keys_bytes(&self) -> u64 {
        3 * 8 * self.hashes.len() as u64 + 3 * self.index.len_bytes() as u64
    }

    /// Returns the keyspace and key of the first entry, if there is one.
    pub(crate) fn first_entry(&self) -> Option<(u32, &[u8])> {
        let (first, _) = self.properties.entries.as_ref()?;
        Some((first.keyspace, &first.key))
    }

    /// Returns the number of entries, without range deletes.
    pub(crate) fn entry_count(&self) -> u64 {
        self.properties.entry_count
    }

    /// Writes the remaining data and makes the table durable, first the file and then its name.
    /// Never replaces an existing file. After an error no file remains, if it can be removed.
    pub(crate) fn finish(mut self) -> Result<Finished> {
        if let Err(e) = self.write_rest() {
            let _ = self.file.abandon();
            return Err(e);
        }
        Ok(Finished {
            number: self.number,
            file_bytes: self.file.finish()?,
            properties: self.properties,
        })
    }

    /// Writes the remaining data.
    fn write_rest(&mut self) -> Result<()> {
        if self.failed {
            return Err(self.file.has_failed());
        }
        if self.data.entry_count() > 0 {
            self.close_block()?;
        }
        if let Some(handle) = self.pending.take() {
            self.index.push(&self.last_key, 0, handle);
        }
        if let (Some((_, last)), Some((keyspace, key))) = (
            &mut self.properties.entries,
            layout::split_key(&self.last_key),
        ) {
            *last = Place {
                keyspace,
                key: key.to_vec(),
                seq: self.last_seq,
            };
        }
        self.write_end().map_err(|e| self.fail(e))
    }

    /// Writes everything after the data blocks.
    fn write_end(&mut self) -> std::io::Result<()> {
        let number = self.number;
        let mut features = 0;
        let fragments = fragment(std::mem::take(&mut self.ranges), Keep::All);
        self.properties.count_ranges(&fragments);
        let mut range_deletes = None;
        if !fragments.is_empty() {
            features |= Features::RANGE_DELETES;
            let mut block = ranges::encode(&fragments, self.options.restart_interval);
            let payload = self.compressor.payload(block.finish());
            let written =
                write_block(&mut self.file.out, payload, BlockKind::RangeDeletes, number)?;
            range_deletes = Some(written);
        }
        let mut filter = None;
        if !self.hashes.is_empty() {
            let bits_per_key = self.options.filter_bits_per_key;
            let mut builder = FilterBuilder::new(self.hashes.len() as u64, bits_per_key);
            for hash in std::mem::take(&mut self.hashes) {
                builder.insert(hash);
            }
            // The bits of a filter are nearly random, so compression saves nothing.
            let payload = (&builder.into_bytes()[..], Compression::None);
            let handle = write_block(&mut self.file.out, payload, BlockKind::Filter, number)?;
            self.properties.filter_bytes = handle.stored_bytes() as u64;
            filter = Some(handle);
        }
        let mut index_bytes = 0;
        let builder = std::mem::replace(&mut self.index, IndexBuilder::new(0));
        let (out, compressor) = (&mut self.file.out, &mut self.compressor);
        let (index, two_levels) = builder.finish(|content| {
            let payload = compressor.payload(content);
            let handle = write_block(out, payload, BlockKind::Index, number)?;
            index_bytes += handle.stored_bytes() as u64;
            std::io::Result::Ok(handle)
        })?;
        self.properties.index_bytes = index_bytes;
        if two_levels {
            features |= Features::TWO_LEVELS;
        }
        if self.properties.expiring_count > 0 {
            features |= Features::EXPIRIES;
        }
        if self.properties.value_pointer_count > 0 {
            features |= Features::VALUE_POINTERS;
        }
        let payload = (&self.properties.encode()[..], Compression::None);
        let properties = write_block(&mut self.file.out, payload, BlockKind::Properties, number)?;
        let footer = Footer {
            db: self.options.db,
            number,
            file_bytes: self.file.out.position() + layout::FOOTER_BYTES as u64,
            features: Features(features),
            index,
            filter,
            range_deletes,
            properties,
        };
        self.file.out.append(&footer.encode())
    }

    /// Abandons the table and removes its file. A file that cannot be removed is left for recovery.
    pub(crate) fn abandon(self) -> Result<()> {
        self.file.abandon()
    }
}

const _: () = assert!(KEYSPACE_BYTES == size_of::<u32>(), "a keyspace is a number");
