//! Reads of runs: a point read searches one table of each, a cursor walks one table after the
//! other.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;

use super::version::{Run, Table};
use crate::error::{Error, Result};
use crate::parts::expiry::{Millis, Value};
use crate::parts::iter::{Cursor, EntryView, Stored};
use crate::parts::key::Target;
use crate::parts::ranges::Newer;
use crate::parts::sstable::{Answer, MultiRead, ReadCounts, SstCursor, kind};
use crate::parts::values::{Pointer, ValueReader};
use crate::stages::{Census, Lookup, NamedFile, Probe, Read, ReadStats, Source};
use crate::types::{EntryKind, SEQ_MAX, SeqNo};

/// A run as a source.
pub(super) struct RunSource(pub(super) Arc<Run>);

/// The answer of a table, whose value may have to be read from a value file.
enum Answered {
    Found(Lookup),
    Apart(Pointer, SeqNo, Millis),
}

impl Answered {
    /// Reads the value of a key if it is apart. The caller holds no permit to read: two callers
    /// that hold one and wait for another would wait for each other.
    fn lookup(self, table: &Table, key: (u32, &[u8])) -> Result<Lookup> {
        match self {
            Answered::Found(lookup) => Ok(lookup),
            Answered::Apart(pointer, seq, expiry) => Ok(Lookup::Value {
                value: table.read_value(pointer, key)?,
                seq,
                expiry,
            }),
        }
    }
}

/// Converts the answer of a table.
fn answered(answer: &Answer, table: &Table) -> Result<Answered> {
    let Answer::Entry(found) = answer else {
        return Ok(Answered::Found(Lookup::Deleted));
    };
    if found.kind == kind::VALUE_POINTER {
        let pointer = table.pointer(found.value())?;
        return Ok(Answered::Apart(pointer, found.seq, found.expiry));
    }
    // The table stores the expiry of any put alongside it.
    let value = Value {
        bytes: found.value(),
        expiry: found.expiry,
    };
    let lookup = Lookup::of(found.kind, found.seq, value).ok_or_else(|| {
        Error::corruption(format!(
            "{} has an entry of the unknown kind {}; restore the database from a copy, or \
             recover the readable data with \"terrace repair\"",
            table.path().display(),
            found.kind
        ))
    });
    lookup.map(Answered::Found)
}

impl ReadStats {
    /// Adds the counts of `reads` reads of one table.
    fn count(&mut self, counts: &ReadCounts, reads: u64) {
        self.filter_saved += counts.filter_saved;
        self.sources += reads - counts.filter_saved.min(reads);
        self.blocks_read += counts.blocks_read;
        self.cache_hits += counts.cache_hits;
    }
}

impl Source for RunSource {
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        let at = self.0.position(probe.keyspace, probe.key);
        let Some(table) = self.0.tables.get(at) else {
            return Ok(None);
        };
        if table.first() > (probe.keyspace, probe.key) {
            return Ok(None);
        }
        let mut counts = ReadCounts::default();
        let answer = table
            .open()?
            .get(&probe.target_below_front(), probe.hash, &mut counts)?;
        stats.count(&counts, 1);
        let key = (probe.keyspace, probe.key);
        let lookup = |answer: Answer| answered(&answer, table)?.lookup(table, key);
        answer.map(lookup).transpose()
    }

    fn multi_get(&self, reads: &mut [Read<'_>], stats: &mut ReadStats) -> Result<()> {
        // The reads of one table are done together: neighbours share a block, and the file is read
        // in few pieces. With a memory budget, only as many together as may be held.
        let Some(first) = self.0.tables.first() else {
            return Ok(());
        };
        let at_once = first.memory().limits.reads_at_once();
        let mut open = Vec::with_capacity(reads.len());
        for (index, read) in reads.iter().enumerate() {
            let place = (read.probe.keyspace, read.probe.key);
            let at = self.0.position(place.0, place.1);
            let table = self.0.tables.get(at);
            if read.answer.is_none() && table.is_some_and(|t| t.first() <= place) {
                open.push((at, index));
            }
        }
        for group in open
            .chunk_by(|a, b| a.0 == b.0)
            .flat_map(|all| all.chunks(at_once))
        {
            let table = &self.0.tables[group[0].0];
            let probes = group.iter().map(|&(_, index)| &reads[index].probe);
            let mut asked: Vec<MultiRead<'_>> = probes
                .map(|probe| MultiRead::new(probe.target_below_front(), probe.hash))
                .collect();
            let mut counts = ReadCounts::default();
            // Blocks of many reads are held until their values are copied.
            let held = 1 + group.len() as u64;
            let turn = match group.len() {
                1 => None,
                _ => {
                    let entry_bytes = table.memory().limits.entry_bytes;
                    table.memory().read(held.saturating_mul(entry_bytes))
                }
            };
            table.open()?.multi_get(&mut asked, &mut counts)?;
            stats.count(&counts, asked.len() as u64);
            let answers: Result<Vec<_>> = asked
                .into_iter()
                .map(|asked| {
                    let answer = asked.answer.map(|answer| answered(&answer, table));
                    answer.transpose()
                })
                .collect();
            drop(turn);
            for (&(_, index), answer) in group.iter().zip(answers?) {
                let read = &mut reads[index];
                let key = (read.probe.keyspace, read.probe.key);
                read.answer = answer.map(|it| it.lookup(table, key)).transpose()?;
            }
        }
        Ok(())
    }

    fn cursor(&self) -> Box<dyn Cursor> {
        Box::new(RunCursor::new(Arc::clone(&self.0), true))
    }

    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        let begin = self.0.position(from.keyspace, from.key);
        for table in &self.0.tables[begin..] {
            if table.first() >= (to.keyspace, to.key) {
                break;
            }
            let inside =
                table.first() >= (from.keyspace, from.key) && table.last() < (to.keyspace, to.key);
            let (entries, bytes) = if inside {
                (table.meta.entries, table.meta.bytes)
            } else {
                let mut counts = ReadCounts::default();
                table.open()?.approximate(from, to, &mut counts)?
            };
            let apart = u128::from(table.values_bytes()) * u128::from(entries)
                / u128::from(table.meta.entries.max(1));
            sum = (sum.0 + entries, sum.1 + bytes + apart as u64);
        }
        Ok(sum)
    }

    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) {
        if let Some((one, other)) = self.0.overlap() {
            census.problems.push(format!(
                "the key ranges of {} and {} overlap, although both are in one sorted run",
                one.path().display(),
                other.path().display()
            ));
        }
        for table in &self.0.tables {
            census.tables += 1;
            let open = match table.open() {
                Ok(open) => open,
                Err(e) => {
                    census.failed("", e);
                    continue;
                }
            };
            let verified = table.verify(&open, visited);
            census.entries += verified.entries;
            census.tombstones += verified.tombstones;
            census.bytes += verified.bytes;
            let path = table.path();
            let named = |problem: String| format!("{}: {problem}", path.display());
            census
                .problems
                .extend(verified.problems.into_iter().map(named));
            if let Some(e) = verified.failure {
                census.failed("", e);
                continue;
            }
            let meta = &table.meta;
            if verified.entries != meta.entries || open.file_bytes() != meta.bytes {
                census.problems.push(named(format!(
                    "{} entries in {} bytes, but the manifest records {} in {}",
                    verified.entries,
                    open.file_bytes(),
                    meta.entries,
                    meta.bytes
                )));
            }
        }
    }

    fn verify_bytes(&self) -> u64 {
        let apart: u64 = self.0.tables.iter().map(Table::values_bytes).sum();
        self.0.bytes() + apart
    }

    fn files(&self) -> Vec<NamedFile> {
        let mut values: Vec<_> = self.0.tables.iter().flat_map(|t| t.values.iter()).collect();
        values.sort_by_key(|file| file.meta.number);
        values.dedup_by_key(|file| file.meta.number);
        let values = values.into_iter().map(|file| NamedFile {
            path: file.path(),
            item: Arc::new(file.meta.clone()),
            last_id: file.meta.number,
        });
        let tables = self.0.tables.iter().map(|table| NamedFile {
            path: table.path(),
            item: Arc::clone(&table.meta) as _,
            last_id: table.number().max(table.meta.run),
        });
        values.chain(tables).collect()
    }
}

/// A position in a run.
pub(super) struct RunCursor {
    run: Arc<Run>,
    /// The position of the table that the cursor is in.
    at: usize,
    cursor: Option<SstCursor>,
    fill_cache: bool,
    /// The maximum bytes of a read ahead, if it is not the default.
    ahead_bytes: Option<usize>,
    /// The reader of values apart, from the first one on.
    values: RefCell<Option<ValueReader>>,
    /// The value of the current entry, if it is apart and was read.
    value: OnceCell<Vec<u8>>,
    /// The memory of an earlier value.
    spare: Cell<Vec<u8>>,
}

impl RunCursor {
    /// Creates an unpositioned cursor. `fill_cache`: blocks that it reads are cached.
    pub(super) fn new(run: Arc<Run>, fill_cache: bool) -> RunCursor {
        RunCursor {
            run,
            at: 0,
            cursor: None,
            fill_cache,
            ahead_bytes: None,
            values: RefCell::default(),
            value: OnceCell::new(),
            spare: Cell::default(),
        }
    }

    /// Reads up to `bytes` ahead: for compactions, which read everything.
    pub(super) fn read_ahead(mut self, bytes: usize) -> RunCursor {
        self.ahead_bytes = Some(bytes);
        self
    }

    /// Enters the table at a position, before its entries; the cursor is exhausted if there is
    /// none.
    fn enter(&mut self, at: usize) -> Result<bool> {
        if self.at == at && self.cursor.is_some() {
            return Ok(true);
        }
        self.at = at;
        self.cursor = None;
        let Some(table) = self.run.tables.get(at) else {
            return Ok(false);
        };
        let mut cursor = SstCursor::new(table.open()?, self.fill_cache);
        if let Some(bytes) = self.ahead_bytes {
            cursor.read_ahead(bytes);
        }
        self.cursor = Some(cursor);
        Ok(true)
    }

    /// Forgets the value of the entry that the cursor leaves.
    #[inline]
    fn leave_value(&mut self) {
        if let Some(value) = self.value.take() {
            self.spare.set(value);
        }
    }

    /// Reads the value that the current entry points to.
    fn read_apart(&self, pointer: Pointer, key: (u32, &[u8])) -> Result<&[u8]> {
        if let Some(value) = self.value.get() {
            return Ok(value);
        }
        let Some(table) = self.run.tables.get(self.at) else {
            return Ok(&[]);
        };
        let file = table.value_file(pointer)?.open()?;
        let mut values = self.values.borrow_mut();
        let values = values.get_or_insert_with(|| {
            let memory = table.memory();
            let lease = memory.is_limited().then(|| memory.iterators.lease());
            ValueReader::new(memory.limits.scan_ahead_bytes, lease)
        });
        let mut value = self.spare.take();
        value.clear();
        value.extend_from_slice(values.read(&file, pointer, key)?);
        Ok(self.value.get_or_init(|| value))
    }

    /// Moves from the end of a table to the first entry after it.
    fn skip_ends(&mut self) -> Result<()> {
        // BOUND: each iteration passes a table.
        while let Some(cursor) = &self.cursor {
            if cursor.entry()?.is_some() {
                return Ok(());
            }
            let next = self.at + 1;
            if self.enter(next)?
                && let Some(cursor) = &mut self.cursor
            {
                cursor.seek_to_first()?;
            }
        }
        Ok(())
    }
}

impl Cursor for RunCursor {
    fn hold(&mut self) -> bool {
        // Tables never change.
        true
    }

    fn release(&mut self) {}

    fn seek(&mut self, target: &Target<'_>) -> Result<()> {
        self.leave_value();
        let at = self.run.position(target.keyspace, target.key);
        if self.enter(at)?
            && let Some(cursor) = &mut self.cursor
        {
            cursor.seek(target)?;
        }
        self.skip_ends()
    }

    fn seek_before(&mut self, target: &Target<'_>, breadth: usize) -> Result<()> {
        self.leave_value();
        let run = Arc::clone(&self.run);
        let tables = &run.tables;
        // The last table with an entry before the target.
        let after = tables.partition_point(|t| t.first() < (target.keyspace, target.key));
        // BOUND: each iteration goes one table back.
        for at in (0..after).rev() {
            if !self.enter(at)? {
                break;
            }
            let Some(cursor) = &mut self.cursor else {
                break;
            };
            cursor.seek_before(target, breadth)?;
            if cursor.entry()?.is_some() {
                return Ok(());
            }
            // Fewer entries than asked for: the start of this table is before the target, unless an
            // earlier table has more.
            if at > 0 {
                cursor.seek_to_first()?;
                return Ok(());
            }
        }
        self.cursor = None;
        self.at = tables.len();
        Ok(())
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.leave_value();
        let Some(cursor) = &mut self.cursor else {
            return Ok(());
        };
        cursor.advance()?;
        if cursor.entry()?.is_none() {
            return self.skip_ends();
        }
        Ok(())
    }

    fn newer(&self, from: &Target<'_>, to: &Target<'_>, than: SeqNo, last: bool) -> Newer {
        let (low, high) = ((from.keyspace, from.key), (to.keyspace, to.key));
        let tables = &self.run.tables[self.run.position(low.0, low.1)..];
        // A place after the first version of a key has that key before it.
        let before = |place: (u32, &[u8])| place < high || place == high && to.seq < SEQ_MAX;
        let inside = tables.iter().take_while(|t| before(t.first()));
        let mut newer = inside.filter(|t| t.meta.seq_last > than);
        let found = if last { newer.last() } else { newer.next() };
        match found {
            None => Newer::No,
            Some(table) if last && before(table.last()) => Newer::Key(table.last().1.to_vec()),
            Some(table) if !last && table.first() > low => Newer::Key(table.first().1.to_vec()),
            // In the middle of a table: which of its entries are newer is not known.
            Some(_) => Newer::Unknown,
        }
    }

    #[inline]
    fn entry(&self) -> Result<Option<EntryView<'_>>> {
        let Some(cursor) = &self.cursor else {
            return Ok(None);
        };
        let entry = cursor.entry()?;
        Ok(entry.map(|entry| EntryView {
            kind: match entry.kind {
                kind::VALUE_POINTER => EntryKind::Put as u8,
                kind => kind,
            },
            ..entry
        }))
    }

    #[inline]
    fn value(&self) -> Result<Value<'_>> {
        match self.stored()? {
            Stored::Inline(value) => Ok(value),
            Stored::Apart(pointer, expiry) => {
                let entry = self.entry()?;
                let key = entry.map_or((0, [].as_slice()), |entry| (entry.keyspace, entry.key));
                let bytes = self.read_apart(pointer, key)?;
                Ok(Value { bytes, expiry })
            }
        }
    }

    #[inline]
    fn stored(&self) -> Result<Stored<'_>> {
        let Some(cursor) = &self.cursor else {
            return Ok(Stored::Inline(Value::default()));
        };
        let value = cursor.value()?;
        if !cursor.is_apart() {
            return Ok(Stored::Inline(value));
        }
        let table = &self.run.tables[self.at];
        Ok(Stored::Apart(table.pointer(value.bytes)?, value.expiry))
    }
}
