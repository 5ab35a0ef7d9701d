//! Finding the data to recover in a pool: logs, and the nodes of the stages' items.
//!
//! Everything that the manifest names is recovered. If edits of it are lost, unnamed data that its
//! own header identifies is recovered too; the nodes of free extents are old ones, and lose by
//! their numbers unless the entries that deleted them are gone.

use std::collections::BTreeMap;

use terrace_media::{OpenMode, PoolHeader, Span};

use super::gather::{FoundLog, Gathered, Watch, note_walked};
use super::nodes::NodeSalvage;
use super::report::{Findings, PartState};
use super::source::{Source, SourcePool, Trust};
use crate::db::inspect::LostKeys;
use crate::db::open::REDO_ROOTS;
use crate::designs::SALVAGES;
use crate::error::{Error, Result};
use crate::parts::log::layout::{check_log_header, log_id};
use crate::parts::manifest::LogPlace;
use crate::parts::manifest::item::Owner;
use crate::parts::redo::layout as redo;
use crate::stages::salvage::Unnamed;

/// An unnamed part of the pool that its own header identifies.
enum Identified {
    Log(u64),
    Item(&'static Owner, u64),
}

/// Returns what the header of an unnamed part identifies, and the part's length if it is recorded.
fn identify(head: &[u8; 64], off: u64) -> Option<(Identified, Option<u64>)> {
    match log_id(head) {
        Some(id) if check_log_header(head, None, id, off).is_ok() => {
            Some((Identified::Log(id), None))
        }
        _ => SALVAGES.iter().find_map(|salvage| {
            let (id, len) = (salvage.identify)(head, off)?;
            Some((Identified::Item(salvage.owner, id), len))
        }),
    }
}

/// Returns unnamed parts identified by their headers, with the space up to the next part.
fn unnamed(source: &Source, pool: &SourcePool) -> Vec<(Span, Identified)> {
    if let Trust::Whole | Trust::MaybeCut = source.trust {
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
        if !inside(off)
            && let Some((told, len)) = identify(head, off)
        {
            found.push((off, len, told));
        }
    });
    let starts: Vec<u64> = found.iter().map(|(off, ..)| *off).collect();
    let end_of = |off: u64| {
        let next = starts.iter().copied().filter(|at| *at > off).min();
        let named = named
            .iter()
            .map(|span| span.off)
            .filter(|at| *at > off)
            .min();
        next.into_iter().chain(named).min().unwrap_or(pool.bytes)
    };
    let sized = found.into_iter().map(|(off, len, told)| {
        let len = len.unwrap_or_else(|| end_of(off) - off);
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
            // Nodes of lists are found with those of tables.
            LogPlace::List(_) | LogPlace::File => None,
        });
    let told = unnamed(source, pool)
        .into_iter()
        .filter_map(|(span, told)| match told {
            Identified::Log(id) if source.wants_unnamed_log(id) => Some((id, span)),
            _ => None,
        });
    for (id, span) in named.chain(told) {
        let len = pool.bytes.saturating_sub(span.off).min(span.len);
        let place = (pool.path.clone(), Some(span.off), id);
        if len == 0 {
            let note = "the pool file ends before this log";
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
    let mut nodes = NodeSalvage::new(pool, words, !power_lost);
    let mut extents = Vec::new();
    for (span, told) in unnamed(source, pool) {
        if let Identified::Item(owner, id) = told
            && source.wants_unnamed(owner, id)
        {
            extents.push(Unnamed { owner, id, span });
        }
    }
    for salvage in SALVAGES {
        let own: Vec<_> = extents
            .extract_if(.., |f| f.owner == salvage.owner)
            .collect();
        let found = (salvage.find)(&source.state, &own, &mut nodes);
        nodes.add(found);
    }
    nodes.run(gathered, findings, watch)
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
