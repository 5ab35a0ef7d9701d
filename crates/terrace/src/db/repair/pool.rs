//! Finding the data to recover in a pool: logs, the extents of the buffer's tables, those of the
//! repository.
//!
//! Everything that the manifest names is recovered. If edits of it are lost, unnamed data that its
//! own header identifies is recovered too; the nodes of free extents are old ones, and lose by
//! their numbers unless the entries that deleted them are gone.

use std::collections::{BTreeMap, BTreeSet};

use terrace_media::{OpenMode, PoolHeader, Span};

use super::gather::{FoundLog, Gathered, Watch, note_walked};
use super::nodes::{Area, REPOSITORY, Rescue};
use super::report::{Findings, PartState};
use super::source::{Source, SourcePool, Trust};
use crate::db::inspect::LostKeys;
use crate::db::open::REDO_ROOTS;
use crate::designs::repository_extents as repository;
use crate::error::{Error, Result};
use crate::parts::log::layout::{check_log_header, log_id};
use crate::parts::manifest::LogPlace;
use crate::parts::redo::layout as redo;
use crate::parts::skiplist::layout::{TABLE_HEADER_BYTES, TABLE_NODES_AT, decode_table_header};

/// An unnamed part of the pool that its own header identifies.
enum Told {
    Log(u64),
    Table(u64),
    Extent(u64),
}

/// Returns unnamed parts identified by their headers, with the space up to the next part.
fn unnamed(source: &Source, pool: &SourcePool) -> Vec<(Span, Told)> {
    if source.trust == Trust::Whole {
        return Vec::new();
    }
    let mut named = source.state.spans();
    named.sort();
    let inside = |off: u64| {
        let before = named.partition_point(|span| span.off <= off);
        before
            .checked_sub(1)
            .is_some_and(|i| off < named[i].off + named[i].len)
    };
    let mut found = Vec::new();
    pool.places(&mut |off, head| {
        let told = match log_id(head) {
            Some(id) if check_log_header(head, None, id, off).is_ok() => Told::Log(id),
            _ => match (
                decode_table_header(head, off),
                repository::extent_length(head, off),
            ) {
                (Ok(id), _) => Told::Table(id),
                (_, Some(len)) => Told::Extent(len),
                _ => return,
            },
        };
        if !inside(off) {
            found.push((off, told));
        }
    });
    let starts: Vec<u64> = found.iter().map(|(off, _)| *off).collect();
    let end_of = |off: u64| {
        let next = starts.iter().copied().filter(|at| *at > off).min();
        let named = named
            .iter()
            .map(|span| span.off)
            .filter(|at| *at > off)
            .min();
        next.into_iter().chain(named).min().unwrap_or(pool.bytes)
    };
    let sized = found.into_iter().map(|(off, told)| {
        let len = end_of(off) - off;
        (Span { off, len }, told)
    });
    sized.collect()
}

/// Adds the logs in the pool that are used.
pub(super) fn find_logs(source: &Source, logs: &mut Vec<FoundLog>, findings: &mut Findings) {
    let Some(pool) = &source.pool else {
        return;
    };
    let named = source
        .state
        .logs
        .iter()
        .filter_map(|(&id, log)| match log.place {
            LogPlace::Pool(span) => Some((id, span)),
            LogPlace::File => None,
        });
    let told = unnamed(source, pool)
        .into_iter()
        .filter_map(|(span, told)| match told {
            Told::Log(id) if source.wants_unnamed_log(id) => Some((id, span)),
            _ => None,
        });
    for (id, span) in named.chain(told) {
        let len = pool.bytes.saturating_sub(span.off).min(span.len);
        let place = (pool.path.clone(), Some(span.off), id);
        if len == 0 {
            let note = "the pool's file ends before it";
            findings.part("log", place, PartState::Missing, 0, note);
            let at = ("log", pool.path.clone(), span.off);
            findings.lose(at, "the log is missing", LostKeys::ALL, true);
            continue;
        }
        let span = Span { off: span.off, len };
        let opened = source.fs.open(&pool.path, OpenMode::Read);
        let walked = opened
            .map_err(|e| Error::io("open", &pool.path, e))
            .and_then(|file| {
                let end = source.log_end(id);
                FoundLog::walk((id, end), pool.path.clone(), file.into(), span, true)
            });
        note_walked(walked, place, findings, logs);
    }
}

/// Recovers the nodes of the lists in the pool.
pub(super) fn take_nodes(
    source: &Source,
    gathered: &mut Gathered,
    findings: &mut Findings,
    watch: Watch<'_>,
) -> Result<()> {
    let Some(pool) = &source.pool else {
        return Ok(());
    };
    let header = pool.header.as_ref();
    // Mutable links and words are meaningless then, and rebuilt when the database is opened.
    let power_lost = header.is_some_and(|header| header.power_lost);
    let words = match header {
        Some(header) if !power_lost => redo_words(pool, header),
        _ => BTreeMap::new(),
    };
    let mut rescue = Rescue::new(pool, words, !power_lost);
    let mut headers = BTreeSet::new();
    for table in source.state.tables.values() {
        for (i, extent) in table.extents.iter().enumerate() {
            let head = (i == 0).then_some(table.head);
            let bytes = rescue.bytes(extent.span.off, TABLE_HEADER_BYTES as u64);
            let id = bytes.and_then(|bytes| decode_table_header(bytes, extent.span.off).ok());
            // Merged extents keep the headers of their own memtables, so no id occurs twice.
            let replaced = id.is_some_and(|id| i == 0 && id != table.id || !headers.insert(id));
            let area = Area::new("buffer", table.id, extent.span)
                .nodes(TABLE_NODES_AT as u64, extent.used.min(extent.span.len))
                .seqs(table.seq_first, table.seq_last)
                .replaced(replaced)
                .head(head);
            let problem = id.is_none().then_some("its header is damaged");
            rescue.add(area, problem);
        }
    }
    if let Some(meta) = &source.state.repository {
        let head = meta.head.off + repository::NODES_AT;
        let (entries, reclaiming) =
            repository::head_words(&|at| rescue.word(meta.head.off + at).unwrap_or(0));
        rescue.expect_repository(Some(entries), reclaiming);
        let area = Area::new(REPOSITORY, 0, meta.head).head(Some(head));
        rescue.add(area, None);
        for span in &meta.extents {
            add_extent(&mut rescue, *span, span.len, power_lost);
        }
    }
    for (span, told) in unnamed(source, pool) {
        match told {
            Told::Table(id) if source.wants_unnamed_table(id) => {
                let area = Area::new("buffer", id, span)
                    .nodes(TABLE_NODES_AT as u64, span.len)
                    .open_end()
                    .head(Some(span.off + TABLE_HEADER_BYTES as u64));
                rescue.add(area, None);
            }
            Told::Extent(len) if source.wants_unnamed_extent(span.off) => {
                rescue.expect_repository(None, 0);
                let span = Span { off: span.off, len };
                add_extent(&mut rescue, span, len, power_lost);
            }
            _ => {}
        }
    }
    rescue.run(gathered, findings, watch)
}

fn add_extent(rescue: &mut Rescue<'_>, span: Span, length: u64, power_lost: bool) {
    let words = repository::extent_words(&|at| rescue.word(span.off + at).unwrap_or(0));
    let head = rescue.bytes(span.off, repository::NODES_AT);
    let (known, placed) = head.map_or((false, false), |bytes| {
        let known = repository::is_extent(bytes, span.off, length);
        (known, known || repository::is_placed(bytes, span.off))
    });
    // The page with `used` may be newer than those that it counts, which then contain nodes of an
    // earlier use of the space; nodes after `synced` are still in the buffer, or in the extent that
    // they were copied from.
    let used = match words.synced {
        Some(synced) if power_lost => synced,
        synced => words.used.max(synced.unwrap_or(0)),
    };
    // A page from elsewhere may contain a wrong `used`.
    let fits = placed && (repository::NODES_AT..=span.len).contains(&used);
    let area = Area::new(REPOSITORY, 0, span)
        // Without `used` every node up to the end counts that another one leads to.
        .nodes(repository::NODES_AT, if fits { used } else { span.len })
        .replaced(!placed)
        .with_dead();
    let problem = match (known, fits) {
        (false, _) => Some("an extent has lost its header"),
        (true, false) => Some("an extent says that more of it is used than there is"),
        (true, true) => None,
    };
    rescue.add(area, problem);
}

/// Returns the words that interrupted batches of links write.
fn redo_words(pool: &SourcePool, header: &PoolHeader) -> BTreeMap<u64, u64> {
    let [off, len] = REDO_ROOTS.map(|root| header.roots[root]);
    let mut words = BTreeMap::new();
    let most = (redo::SLOT_BYTES * redo::SLOT_COUNT) as u64;
    let len = len.min(most);
    let bytes = pool.read(Span { off, len }).unwrap_or_default();
    for slot in bytes.chunks(redo::SLOT_BYTES) {
        let stores = redo::decode(slot).map(|(_, stores)| stores);
        words.extend(stores.into_iter().flatten());
    }
    words
}

/// Returns the approximate number of bytes that a walk over the pool will read.
pub(super) fn bytes_of(source: &Source) -> u64 {
    let spans = source.state.spans();
    spans.iter().map(|span| span.len).sum()
}
