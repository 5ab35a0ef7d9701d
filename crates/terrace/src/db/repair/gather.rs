//! Reading the sound data of tables and logs in files, and reporting the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{File, OpenMode, Span};

use super::report::{Findings, PartState};
use super::source::Source;
use super::values::ValueFiles;
use crate::db::inspect::LostKeys;
use crate::error::{Error, ErrorKind, Result};
use crate::parts::expiry::layout as expiring;
use crate::parts::external_sort::{ExternalSort, SortedEntry};
use crate::parts::log::salvage as log;
use crate::parts::log::{LogEntry, RecordView};
use crate::parts::manifest::LogPlace;
use crate::parts::ranges::RangeDelete;
use crate::parts::ranges::layout::RANGE_DELETE_BIT;
use crate::parts::sstable;
use crate::parts::sstable::{FileMeta, TABLE_FILE};
use crate::stages::file_names::log_file_name;
use crate::types::{EntryKind, SeqNo};

/// Takes the number of bytes that were read.
pub(super) type Watch<'a> = &'a mut dyn FnMut(u64);

/// All data that was read.
pub(super) struct Gathered {
    pub(super) sort: ExternalSort,
    pub(super) ranges: Vec<RangeDelete>,
    /// The largest number.
    pub(super) seq_last: SeqNo,
    pub(super) entries: u64,
    /// Whether any entry expires.
    pub(super) expires: bool,
    /// Whether a part was found whose bytes verify.
    pub(super) any: bool,
}

impl Gathered {
    pub(super) fn new(sort: ExternalSort) -> Gathered {
        Gathered {
            sort,
            ranges: Vec::new(),
            seq_last: 0,
            entries: 0,
            expires: false,
            any: false,
        }
    }

    /// Takes an entry whose expiry, if it has one, is separate from its value.
    fn take(&mut self, entry: &SortedEntry<'_>) -> Result<()> {
        self.seq_last = self.seq_last.max(entry.seq);
        self.expires |= entry.expiry != 0;
        self.entries += 1;
        self.sort.push(entry)
    }

    fn take_range(&mut self, range: RangeDelete) {
        self.seq_last = self.seq_last.max(range.seq);
        self.entries += 1;
        self.ranges.push(range);
    }

    /// Takes an entry in the form of logs and the pool. Returns false if its kind is unknown to
    /// this version.
    pub(super) fn take_raw(&mut self, entry: &LogEntry<'_>, seq: SeqNo, at: u64) -> Result<bool> {
        let (mut deletes, mut expiry, mut value) = (false, 0, entry.value);
        match EntryKind::from_raw(entry.kind) {
            Some(EntryKind::Put) => {}
            Some(EntryKind::Delete) => deletes = true,
            Some(EntryKind::PutExpiring) => match expiring::decode(entry.value, at) {
                Ok(decoded) => (expiry, value) = decoded,
                Err(_) => return Ok(false),
            },
            Some(EntryKind::RangeDelete) => {
                let range = RangeDelete::from_entry(entry.keyspace, entry.key, seq, at);
                return Ok(range.map(|range| self.take_range(range)).is_ok());
            }
            None => return Ok(false),
        }
        if entry.keyspace >= RANGE_DELETE_BIT {
            return Ok(false);
        }
        self.take(&SortedEntry {
            keyspace: entry.keyspace,
            key: entry.key,
            seq,
            deletes,
            expiry,
            value,
        })?;
        Ok(true)
    }
}

/// A failure to store what was read, which no walk over damaged bytes may take for damage.
#[derive(Default)]
struct Failed(Option<Error>);

impl Failed {
    fn note(&mut self, result: Result<()>) -> Result<()> {
        result.inspect_err(|e| self.0 = Some(e.clone()))
    }
}

/// Returns the keys that a table file covers.
fn keys_of(meta: &FileMeta) -> LostKeys {
    let (first, last) = meta.reach.clone().unwrap_or_else(|| {
        let (first, last) = (meta.first.clone(), meta.last.clone());
        (first, last)
    });
    LostKeys {
        after: Some(first),
        up_to: Some(last),
    }
}

/// Reads all table files that are used.
pub(super) fn tables(
    source: &Source,
    gathered: &mut Gathered,
    findings: &mut Findings,
    watch: Watch<'_>,
) -> Result<()> {
    let mut values = ValueFiles::of(source);
    for (number, name) in &source.tables {
        let place = (source.dir.join(name), None, *number);
        match source.ignores_table(*number) {
            Some(why) => findings.part("table", place, PartState::Ignored, 0, why),
            None => {
                let place = (*number, place.0);
                table(source, place, &mut values, gathered, findings, watch)?;
            }
        }
    }
    values.finish(findings);
    let there = |number: u64| source.tables.iter().any(|(n, _)| *n == number);
    for meta in source
        .state
        .items()
        .filter(|m: &&FileMeta| !there(m.number))
    {
        let path = source
            .dir
            .join(crate::stages::file_names::table_file_name(meta.number));
        let note = "the manifest names this file, but it does not exist";
        let place = (path.clone(), None, meta.number);
        findings.part("table", place, PartState::Missing, 0, note);
        findings.lose(
            ("table", path, 0),
            "the table is missing",
            keys_of(meta),
            true,
        );
    }
    Ok(())
}

fn table(
    source: &Source,
    (number, path): (u64, PathBuf),
    values: &mut ValueFiles<'_>,
    gathered: &mut Gathered,
    findings: &mut Findings,
    watch: Watch<'_>,
) -> Result<()> {
    let meta = source.state.item::<FileMeta>(&TABLE_FILE, number);
    // An unnamed file may be a table that a crash left unfinished, and is no loss.
    let certain = meta.is_some();
    let (mut failed, mut first, mut entries) = (Failed::default(), None, 0);
    let visit = &mut |piece: sstable::Piece<'_>| match piece {
        sstable::Piece::Entry(entry) => {
            entries += 1;
            let mut apart = None;
            let mut entry = *entry;
            if entry.kind == sstable::kind::VALUE_POINTER {
                let Some(value) = values.read(number, entry.value, (entry.keyspace, entry.key))
                else {
                    return Ok(());
                };
                watch(value.len() as u64);
                entry.kind = EntryKind::Put as u8;
                entry.value = apart.insert(value);
            }
            let taken = take_table_entry(&entry, gathered);
            let taken = taken.map(|known| {
                if !known {
                    let text = format!("an entry has the unknown kind {}", entry.kind);
                    first.get_or_insert((0, text, true));
                }
            });
            failed.note(taken)
        }
        sstable::Piece::RangeDelete(range) => {
            entries += 1;
            gathered.take_range(range.clone());
            Ok(())
        }
        sstable::Piece::Block { stored_bytes, .. } => {
            watch(stored_bytes);
            Ok(())
        }
        sstable::Piece::Problem(problem) => {
            let mut keys = problem.lost;
            if let Some(keys) = &mut keys {
                narrow(keys, meta.map(keys_of));
            }
            first.get_or_insert((problem.offset, problem.text.clone(), false));
            if let Some(keys) = keys {
                let keys = LostKeys {
                    after: keys.after,
                    up_to: keys.up_to,
                };
                findings.lose(
                    ("table", path.clone(), problem.offset),
                    problem.text,
                    keys,
                    certain,
                );
            }
            Ok(())
        }
    };
    let walked = sstable::salvage(&*source.fs, &path, Some(number), visit);
    if let Some(e) = failed.0 {
        return Err(e);
    }
    let keys = meta.map_or(LostKeys::ALL, keys_of);
    let place = (path.clone(), None, number);
    let found = match walked {
        Ok(found) => found,
        Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
        Err(e) => {
            findings.part("table", place, PartState::Damaged, 0, e.to_string());
            findings.lose(
                ("table", path, 0),
                "the table cannot be read",
                keys,
                certain,
            );
            return Ok(());
        }
    };
    gathered.any |= found.blocks > 0;
    if meta.is_some() && found.number.is_some_and(|other| other != number) {
        let problem = "another table is in the place of the table";
        findings.lose(("table", path.clone(), 0), problem, keys.clone(), true);
    }
    let unlike = meta.filter(|meta| {
        found.problems == 0 && (found.entries, found.file_bytes) != (meta.entries, meta.bytes)
    });
    if let Some(meta) = unlike {
        let note = format!(
            "the file has {} entries in {} bytes, but the manifest records {} in {}: it is a \
             different file",
            found.entries, found.file_bytes, meta.entries, meta.bytes
        );
        findings.part("table", place, PartState::Damaged, entries, note.clone());
        findings.lose(("table", path, 0), note, keys, true);
        return Ok(());
    }
    let (state, note) = match first {
        Some((offset, text, unknown)) => {
            if unknown {
                findings.lose(("table", path, offset), text.clone(), keys, certain);
            }
            (PartState::Damaged, text)
        }
        None => (PartState::Used, String::new()),
    };
    findings.part("table", place, state, entries, note);
    Ok(())
}

/// Restricts the keys of a block to those of its table.
fn narrow(keys: &mut sstable::LostKeys, table: Option<LostKeys>) {
    if let Some(LostKeys { after, up_to }) = table {
        keys.after = keys.after.take().or(after);
        keys.up_to = keys.up_to.take().or(up_to);
    }
}

/// Returns false if the entry has a kind that this version does not write.
fn take_table_entry(entry: &sstable::SalvagedEntry<'_>, gathered: &mut Gathered) -> Result<bool> {
    let deletes = match EntryKind::from_raw(entry.kind) {
        Some(EntryKind::Put) => false,
        Some(EntryKind::Delete) => true,
        Some(EntryKind::RangeDelete | EntryKind::PutExpiring) | None => return Ok(false),
    };
    if entry.keyspace >= RANGE_DELETE_BIT {
        return Ok(false);
    }
    gathered.take(&SortedEntry {
        keyspace: entry.keyspace,
        key: entry.key,
        seq: entry.seq,
        deletes,
        expiry: entry.expiry,
        value: entry.value,
    })?;
    Ok(true)
}

/// A log and the results of a first walk over it.
pub(super) struct FoundLog {
    id: u64,
    path: PathBuf,
    file: Arc<dyn File>,
    span: Span,
    in_pool: bool,
    found: log::Salvaged,
    problem: Option<(u64, String)>,
    /// The number of the first entry, and the number after the last, of the records that a replay
    /// returns.
    seqs: Option<(SeqNo, SeqNo)>,
    /// The offsets of records after damage, and the numbers of their first entry and after their
    /// last.
    stranded: Vec<(u64, SeqNo, SeqNo)>,
    /// Whether anything other than zeros is where the next record would be.
    tail: bool,
    /// Whether it contains all records that it ever had, if it has no problem.
    ended: bool,
}

/// Walks the logs in files that are used.
pub(super) fn log_files(source: &Source, findings: &mut Findings) -> Vec<FoundLog> {
    let mut logs = Vec::new();
    for (id, name) in &source.logs {
        let path = source.dir.join(name);
        if let Some(why) = source.ignores_log(*id) {
            findings.part("log", (path, None, *id), PartState::Ignored, 0, why);
            continue;
        }
        let opened = source.fs.open(&path, OpenMode::Read);
        let sized = opened.and_then(|file| Ok((file.len()?, file)));
        let walked = match sized {
            Ok((len, file)) => {
                let span = Span { off: 0, len };
                let end = source.log_end(*id);
                FoundLog::walk((*id, end), path.clone(), file.into(), span, false)
            }
            Err(e) => Err(Error::io("open", &path, e)),
        };
        note_walked(walked, (path, None, *id), findings, &mut logs);
    }
    let there = |id: u64| source.logs.iter().any(|(n, _)| *n == id);
    for (&id, log) in &source.state.logs {
        if log.place != LogPlace::File || there(id) {
            continue;
        }
        let path = source.dir.join(log_file_name(id));
        let note = "the manifest names this file, but it does not exist";
        findings.part("log", (path.clone(), None, id), PartState::Missing, 0, note);
        findings.lose(("log", path, 0), "the log is missing", LostKeys::ALL, true);
    }
    logs
}

/// Adds a log that was walked, or the loss of it.
pub(super) fn note_walked(
    walked: Result<FoundLog>,
    (path, offset, id): (PathBuf, Option<u64>, u64),
    findings: &mut Findings,
    logs: &mut Vec<FoundLog>,
) {
    match walked {
        Ok(log) => logs.push(log),
        Err(e) => {
            let place = (path.clone(), offset, id);
            findings.part("log", place, PartState::Damaged, 0, e.to_string());
            let at = ("log", path, offset.unwrap_or(0));
            findings.lose(at, "the log cannot be read", LostKeys::ALL, true);
        }
    }
}

impl FoundLog {
    pub(super) fn walk(
        (id, end): (u64, Option<u64>),
        path: PathBuf,
        file: Arc<dyn File>,
        span: Span,
        in_pool: bool,
    ) -> Result<FoundLog> {
        let (mut seqs, mut stranded, mut problem) = (None::<(u64, u64)>, Vec::new(), None);
        let ids = (Some(id), end);
        let found = log::salvage(&*file, &path, span, ids, &mut |piece| {
            match piece {
                log::Piece::Record {
                    view, stranded: s, ..
                } => {
                    let (first, end) = (view.first_seq, behind(&view));
                    match s {
                        true => stranded.push((view.offset, first, end)),
                        false => {
                            let (begin, last) = seqs.unwrap_or((first, end));
                            seqs = Some((begin.min(first), last.max(end)));
                        }
                    }
                }
                log::Piece::Problem { offset, text } => {
                    problem.get_or_insert((offset, text));
                }
            }
            Ok(())
        })?;
        let mut next = [0; 64];
        let room = span.len.saturating_sub(found.end).min(64) as usize;
        let read = file.read_exact_at(span.off + found.end, &mut next[..room]);
        Ok(FoundLog {
            tail: read.is_err() || next.iter().any(|b| *b != 0),
            ended: found.sealed || end == Some(found.end),
            id,
            path,
            file,
            span,
            in_pool,
            found,
            problem,
            seqs,
            stranded,
        })
    }

    fn offset(&self) -> Option<u64> {
        self.in_pool.then_some(self.span.off)
    }
}

fn behind(view: &RecordView<'_>) -> SeqNo {
    view.seq_end()
}

/// Takes the trusted records of all logs.
///
/// Those that a replay returns are trusted. After a gap a record verifies, but the gap may be where
/// a crash ended the log: then the database continued without the record and gave its numbers to
/// others, and the record never took effect. So it is trusted unless a later log has numbers that
/// are not above it.
pub(super) fn take_logs(
    mut logs: Vec<FoundLog>,
    gathered: &mut Gathered,
    findings: &mut Findings,
    watch: Watch<'_>,
) -> Result<()> {
    // By age: that of an ingest is made after the log of the writes that follow it.
    logs.sort_by_key(|log| (log.seqs.map_or(SeqNo::MAX, |seqs| seqs.0), log.id));
    for at in 0..logs.len() {
        let later = &logs[at + 1..];
        let first_later = later.iter().filter_map(|log| log.seqs).map(|s| s.0).min();
        let log = &logs[at];
        let believed = |end: SeqNo| first_later.is_none_or(|first| end <= first);
        let cut = log
            .stranded
            .iter()
            .filter(|s| believed(s.2))
            .map(|s| s.0)
            .max();
        let entries = take_log(log, cut, gathered, findings)?;
        watch(log.span.len);
        gathered.any |= log.found.records > 0;
        let at = ("log", log.path.clone(), log.span.off + log.found.end);
        let used = log.stranded.iter().filter(|s| believed(s.2)).count();
        let mut state = PartState::Used;
        let mut note = String::new();
        if let Some((_, text)) = &log.problem {
            (state, note) = (PartState::Damaged, text.clone());
        }
        if used > 0 {
            let proven = log.problem.is_some();
            let text = format!("{used} records follow a gap in which others are lost");
            findings.lose(at.clone(), text.clone(), LostKeys::ALL, proven);
            state = PartState::Damaged;
            note = if note.is_empty() { text } else { note };
        } else if log.problem.is_some() {
            let text = "records from here on are lost";
            findings.lose(at.clone(), text, LostKeys::ALL, true);
        }
        // Numbers continue in the next log if nothing is missing in between.
        let end = log.stranded.iter().filter(|s| believed(s.2)).map(|s| s.2);
        let end = end.chain(log.seqs.map(|s| s.1)).max();
        let goes_on = log.ended || first_later.is_some() && first_later == end;
        if !goes_on && log.problem.is_none() {
            let text = match log.found.torn || log.tail {
                true => "the record here is incomplete or damaged",
                false => "more records may have followed the last one",
            };
            findings.lose(at, text, LostKeys::ALL, false);
        }
        let place = (log.path.clone(), log.offset(), log.id);
        findings.part("log", place, state, entries, note);
    }
    Ok(())
}

/// Takes the records of a log; after a gap, those up to the one at `cut`.
fn take_log(
    log: &FoundLog,
    cut: Option<u64>,
    gathered: &mut Gathered,
    findings: &mut Findings,
) -> Result<u64> {
    let (mut failed, mut entries, mut unknown) = (Failed::default(), 0, None);
    let visit = &mut |piece: log::Piece<'_>| {
        let log::Piece::Record { view, stranded, .. } = piece else {
            return Ok(());
        };
        if stranded && cut.is_none_or(|cut| view.offset > cut) {
            return Ok(());
        }
        for (seq, entry) in view.entries() {
            let taken = entry
                .map_err(Error::from)
                .and_then(|entry| gathered.take_raw(&entry, seq, view.offset));
            match taken {
                Ok(true) => entries += 1,
                Ok(false) => unknown = Some(view.offset),
                Err(e) => return failed.note(Err(e)),
            }
        }
        Ok(())
    };
    let walked = log::salvage(&*log.file, &log.path, log.span, (Some(log.id), None), visit);
    if let Some(e) = failed.0 {
        return Err(e);
    }
    if let Err(e) = walked {
        findings.lose(
            ("log", log.path.clone(), log.span.off),
            e.to_string(),
            LostKeys::ALL,
            true,
        );
    }
    if let Some(offset) = unknown {
        let text = "an entry has a kind that this version does not know";
        findings.lose(("log", log.path.clone(), offset), text, LostKeys::ALL, true);
    }
    Ok(entries)
}

/// Returns the approximate number of bytes that a walk over the files will read.
pub(super) fn bytes_of(source: &Source) -> u64 {
    let len = |name: &String| {
        let path: &Path = &source.dir.join(name);
        let file = source.fs.open(path, OpenMode::Read);
        file.and_then(|file| file.len()).unwrap_or(0)
    };
    let tables = source
        .tables
        .iter()
        .filter(|t| source.ignores_table(t.0).is_none());
    let logs = source
        .logs
        .iter()
        .filter(|l| source.ignores_log(l.0).is_none());
    let values = source.values.iter();
    tables
        .chain(logs)
        .chain(values)
        .map(|(_, name)| len(name))
        .sum()
}
