//! Verification of a whole table: every checksum, every order, and every fact that it states.

use std::sync::Arc;

use super::block::Block;
use super::fetch::ReadCounts;
use super::layout::{BlockKind, EntryHead, FOOTER_BYTES, Handle, kind, split_key};
use super::properties::{Place, Properties};
use super::ranges::RangeDeletes;
use super::reader::SsTable;
use super::walk::BlockCursor;
use crate::error::{Error, Result};
use crate::parts::filter::FilterBlock;
use crate::types::{EntryKind, KEY_BYTES_MAX, key_hash};

/// The maximum number of problems to report. Further ones are only counted.
const PROBLEMS_MAX: usize = 20;

/// The result of a walk over a table.
#[derive(Debug, Default, Clone)]
pub(crate) struct Verified {
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
    /// The number of bytes of the file that were read.
    pub(crate) bytes: u64,
    /// The first problems, as text without the path of the file, which the caller adds.
    pub(crate) problems: Vec<String>,
    pub(crate) problem_count: u64,
    /// The first failure that is no fact about the data: not all of the table was checked.
    pub(crate) failure: Option<Error>,
}

/// An entry whose value is in a value file.
pub(crate) struct PointerEntry<'a> {
    pub(crate) key: (u32, &'a [u8]),
    pub(crate) pointer: &'a [u8],
}

/// Checks the value of an entry, and returns the number of bytes that it read.
pub(crate) type CheckApart<'a> = &'a mut dyn FnMut(PointerEntry<'_>) -> Result<u64>;

impl Verified {
    /// Returns whether all of the table was checked, and has no problem.
    pub(crate) fn is_sound(&self) -> bool {
        self.problem_count == 0 && self.failure.is_none()
    }

    /// Adds a problem.
    pub(crate) fn problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        }
    }
}

/// A verification in progress.
struct Walk<'a> {
    table: &'a SsTable,
    apart: CheckApart<'a>,
    apart_bytes: u64,
    found: Verified,
    counts: ReadCounts,
    /// The properties that the table should have.
    properties: Properties,
    filter: Option<Arc<FilterBlock>>,
    /// The last entry or separator, which everything after it must not precede.
    last: Option<(Vec<u8>, u64)>,
    /// The last entry.
    last_entry: Option<(Vec<u8>, u64)>,
    /// The offset at which the next block must begin.
    next_offset: u64,
}

impl SsTable {
    /// Reads the whole table, bypassing the cache, and checks everything that can be checked. Calls
    /// `visited` with the number of bytes as they are read, and `apart` for each value in a value
    /// file.
    pub(crate) fn verify(&self, visited: &mut dyn FnMut(u64), apart: CheckApart<'_>) -> Verified {
        let mut walk = Walk {
            table: self,
            apart,
            apart_bytes: 0,
            found: Verified::default(),
            counts: ReadCounts::default(),
            properties: Properties {
                compression: self.properties().compression,
                ..Properties::default()
            },
            filter: None,
            last: None,
            last_entry: None,
            next_offset: 0,
        };
        walk.filter = walk.read_filter();
        let mut reported = 0;
        walk.index(&mut |bytes| {
            visited(bytes - reported);
            reported = bytes;
        });
        walk.rest();
        visited(walk.bytes() - reported);
        walk.found.bytes = walk.bytes();
        walk.found
    }
}

impl Walk<'_> {
    /// Returns the result of a step, or notes its error as a problem and returns `None`.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|e| self.failed(e)).ok()
    }

    /// Notes an error without the path, which is at its start or, if a read failed, before its
    /// cause.
    fn failed(&mut self, e: Error) {
        if !e.is_of_data() {
            self.found.failure = self.found.failure.take().or(Some(e));
            return;
        }
        let path = self.table.path().display();
        let text = e.to_string();
        let text = text.strip_prefix(&format!("{path}: ")).unwrap_or(&text);
        let text = text.replacen(&format!(" of {path}: "), ": ", 1);
        self.found.problem(text);
    }

    fn problem(&mut self, offset: u64, text: &str) {
        self.found.problem(format!("{text} at offset {offset}"));
    }

    fn read_filter(&mut self) -> Option<Arc<FilterBlock>> {
        let handle = self.table.footer().filter?;
        let file = &self.table.file;
        let content = file.read_content(handle, BlockKind::Filter, &mut self.counts);
        let content = self.note(content)?;
        let filter = FilterBlock::new(content, handle.offset).map_err(|e| file.damaged(e));
        self.note(filter).map(Arc::new)
    }

    /// Returns the number of bytes read.
    fn bytes(&self) -> u64 {
        self.counts.file_bytes + self.apart_bytes
    }

    /// Walks the index and every data block.
    fn index(&mut self, visited: &mut dyn FnMut(u64)) {
        let upper = Arc::clone(self.table.upper());
        let uppers = self.handles(&upper);
        let mut index_bytes = self.table.footer().index.stored_bytes() as u64;
        for (stored, seq, handle) in uppers {
            if !self.table.has_two_levels() {
                self.data(handle);
                self.separator(handle, stored, seq);
                visited(self.bytes());
                continue;
            }
            index_bytes += handle.stored_bytes() as u64;
            let kind = BlockKind::Index;
            let lower = self.table.load_uncached(handle, kind, &mut self.counts);
            let Some(lower) = self.note(lower) else {
                continue;
            };
            let lowers = self.handles(&lower);
            let ends = lowers.last().map(|(stored, seq, _)| (stored.clone(), *seq));
            if ends != Some((stored, seq)) {
                self.problem(
                    handle.offset,
                    "an index block does not end at its separator",
                );
            }
            for (stored, seq, handle) in lowers {
                self.data(handle);
                self.separator(handle, stored, seq);
                visited(self.bytes());
            }
        }
        self.properties.index_bytes = index_bytes;
    }

    /// Returns the separators and handles of an index block.
    fn handles(&mut self, index: &Arc<Block>) -> Vec<(Vec<u8>, u64, Handle)> {
        let checked = index.check(&mut |_, _, _| {});
        self.note(checked.map_err(|e| self.table.file.damaged(e)));
        let mut handles = Vec::new();
        let mut cursor = BlockCursor::default();
        cursor.enter(Arc::clone(index));
        while let Ok(true) = cursor.advance() {
            let seq = cursor.head().map_or(0, |head| head.tag.seq());
            let handle = self.table.handle(index, cursor.value());
            if let Some(handle) = self.note(handle) {
                handles.push((cursor.stored_key().to_vec(), seq, handle));
            }
        }
        handles
    }

    /// Checks that the data block at `handle` ends at or before its separator.
    fn separator(&mut self, handle: Handle, stored: Vec<u8>, seq: u64) {
        let fits = self.last.as_ref().is_none_or(|last| {
            // Equal only if the separator is the last entry.
            (&last.0, std::cmp::Reverse(last.1)) <= (&stored, std::cmp::Reverse(seq))
        });
        if !fits {
            self.problem(
                handle.offset,
                "a separator is less than the last key of its block",
            );
        }
        self.last = Some((stored, seq));
    }

    fn data(&mut self, handle: Handle) {
        if handle.offset != self.next_offset {
            self.problem(
                handle.offset,
                "a data block does not start where the previous one ends",
            );
        }
        self.next_offset = handle.end();
        self.properties.data_block_count += 1;
        self.properties.data_bytes += handle.stored_bytes() as u64;
        let file = &self.table.file;
        let content = file.read_content(handle, BlockKind::Data, &mut self.counts);
        let Some(content) = self.note(content) else {
            return;
        };
        self.properties.content_bytes += content.len() as u64;
        let block = file.parse(handle, content);
        let Some(block) = self.note(block) else {
            return;
        };
        let checked = block.check(&mut |stored, head, value| {
            self.entry(handle, stored, head, value);
        });
        self.note(checked.map_err(|e| file.damaged(e)));
    }

    fn entry(&mut self, handle: Handle, stored: &[u8], head: &EntryHead, value: &[u8]) {
        let (seq, kind) = (head.tag.seq(), head.tag.kind());
        let later = self.last.as_ref().is_none_or(|last| {
            (last.0.as_slice(), std::cmp::Reverse(last.1)) < (stored, std::cmp::Reverse(seq))
        });
        if !later {
            self.problem(
                handle.offset,
                "an entry is not greater than the previous one",
            );
        }
        let Some((keyspace, key)) = split_key(stored) else {
            return;
        };
        let known = EntryKind::from_raw(kind).is_some() || kind == kind::VALUE_POINTER;
        if !known || key.len() > KEY_BYTES_MAX {
            self.problem(
                handle.offset,
                "an entry has an unknown kind or a key that is too long",
            );
        }
        let new_key = self.last_entry.as_ref().is_none_or(|last| last.0 != stored);
        let p = &mut self.properties;
        p.entry_count += 1;
        p.tombstone_count += u64::from(kind == EntryKind::Delete as u8);
        p.value_pointer_count += u64::from(kind == kind::VALUE_POINTER);
        p.key_count += u64::from(new_key);
        p.key_bytes += key.len() as u64;
        p.value_bytes += value.len() as u64;
        p.count_seq(seq);
        if head.expiry != 0 {
            p.count_expiry(head.expiry);
        }
        let place = Place {
            keyspace,
            key: key.to_vec(),
            seq,
        };
        let first = match p.entries.take() {
            Some((first, _)) => first,
            None => place.clone(),
        };
        p.entries = Some((first, place));
        self.found.entries += 1;
        self.found.tombstones += u64::from(kind == EntryKind::Delete as u8);
        let hash = key_hash(keyspace, key);
        if self.filter.as_ref().is_some_and(|f| !f.may_contain(hash)) {
            self.problem(handle.offset, "the filter does not have a key");
        }
        self.last = Some((stored.to_vec(), seq));
        self.last_entry = self.last.clone();
        if kind == kind::VALUE_POINTER {
            let key = (keyspace, key);
            let read = (self.apart)(PointerEntry {
                key,
                pointer: value,
            });
            self.apart_bytes += self.note(read).unwrap_or(0);
        }
    }

    /// Checks everything except data: range deletes, filter, offsets in the file, properties.
    fn rest(&mut self) {
        let footer = *self.table.footer();
        let mut next = self.next_offset;
        if let Some(handle) = footer.range_deletes {
            next = self.follows(next, handle);
            let kind = BlockKind::RangeDeletes;
            let block = self.table.load_uncached(handle, kind, &mut self.counts);
            let ranges = block.and_then(|block| {
                RangeDeletes::decode(block).map_err(|e| self.table.file.damaged(e))
            });
            if let Some(ranges) = self.note(ranges) {
                self.properties.count_ranges(ranges.fragments());
            }
        }
        if let Some(handle) = footer.filter {
            next = self.follows(next, handle);
            self.properties.filter_bytes = handle.stored_bytes() as u64;
        }
        let index_end = next + self.properties.index_bytes;
        if footer.index.end() != index_end {
            self.problem(
                footer.index.offset,
                "the index is not at the expected offset",
            );
        }
        let end = self.follows(index_end, footer.properties);
        if end + FOOTER_BYTES as u64 != self.table.file_bytes() {
            self.problem(end, "the footer is not at the expected offset");
        }
        let filtered = self.filter.as_ref().map(|filter| filter.key_count());
        if filtered.is_some_and(|count| count != self.properties.key_count) {
            self.problem(next, "the filter has another number of keys");
        }
        let (stated, found) = (self.table.properties(), &self.properties);
        if stated != found && self.found.problem_count == 0 {
            let text = format!("the properties are {stated:?}, but the table has {found:?}");
            self.problem(footer.properties.offset, &text);
        }
    }

    /// Checks that a block begins at `next`, and returns its end.
    fn follows(&mut self, next: u64, handle: Handle) -> u64 {
        if handle.offset != next {
            self.problem(
                handle.offset,
                "a block does not start where the previous one ends",
            );
        }
        handle.end()
    }
}
