//! Finding the nodes of the buffer's tables, and of lists that are their own logs, in a damaged
//! pool.

use std::collections::BTreeSet;

use terrace_media::Span;

use super::layout::{TABLE, TableMeta};
use crate::parts::codec::DecodeError;
use crate::parts::log::{ListBounds, list_known_end, replay_list};
use crate::parts::manifest::{LogPlace, State};
use crate::parts::skiplist::layout::{TABLE_HEADER_BYTES, TABLE_NODES_AT, decode_table_header};
use crate::stages::salvage::{Area, DamagedPool, Found, Salvage, Unnamed};
use crate::types::SEQ_MAX;

/// The name of the buffer in the report of a repair.
const NAME: &str = "buffer";

pub(crate) static SALVAGE: Salvage = Salvage {
    owner: &TABLE,
    identify: |head, off| Some((decode_table_header(head, off).ok()?, None)),
    find,
};

/// Returns the nodes of a list that is its own log.
fn list_area(pool: &mut dyn DamagedPool, id: u64, span: Span, end: Option<u64>) -> Area {
    let mut first = 0;
    let bounds = ListBounds {
        id,
        end,
        power_lost: pool.power_lost(),
    };
    let bytes = pool.bytes(span.off, span.len).unwrap_or_default();
    let walked = replay_list(bytes, span.off, bounds, &mut |_, node| {
        if first == 0 {
            first = node.header.seq;
        }
        Ok::<(), DecodeError>(())
    });
    let (until, problem) = match walked {
        Ok(found) => (found.bytes, None),
        Err(e) => (end.unwrap_or(span.len), Some(e.to_string())),
    };
    Area {
        head: Some(span.off + TABLE_HEADER_BYTES as u64),
        open_end: problem.is_some(),
        known_end: span.off + list_known_end(bytes, bounds),
        may_go_on: end.is_none(),
        // An earlier use of the space has left nodes with lower ones.
        seqs: Some((first, SEQ_MAX)),
        problem,
        ..Area::new(NAME, id, span).entries(TABLE_NODES_AT as u64, until)
    }
}

fn find(state: &State, unnamed: &[Unnamed], pool: &mut dyn DamagedPool) -> Found {
    let mut areas = Vec::new();
    let mut headers = BTreeSet::new();
    for table in state.items::<TableMeta>() {
        for (i, extent) in table.extents.iter().enumerate() {
            let bytes = pool.bytes(extent.span.off, TABLE_HEADER_BYTES as u64);
            let id = bytes.and_then(|bytes| decode_table_header(bytes, extent.span.off).ok());
            let used = extent.used.min(extent.span.len);
            areas.push(Area {
                head: (i == 0).then_some(table.head),
                seqs: Some((table.seq_first, table.seq_last)),
                // Merged extents keep the headers of their own memtables, so no id occurs twice.
                replaced: id.is_some_and(|id| i == 0 && id != table.id || !headers.insert(id)),
                problem: id.is_none().then(|| "its header is damaged".to_owned()),
                ..Area::new(NAME, table.id, extent.span).entries(TABLE_NODES_AT as u64, used)
            });
        }
    }
    let lists = state.logs.iter().filter_map(|(&id, log)| match log.place {
        LogPlace::List(span) => Some(list_area(pool, id, span, log.end)),
        LogPlace::Pool(_) | LogPlace::File => None,
    });
    areas.extend(lists);
    areas.extend(unnamed.iter().map(|found| Area {
        head: Some(found.span.off + TABLE_HEADER_BYTES as u64),
        open_end: true,
        ..Area::new(NAME, found.id, found.span).entries(TABLE_NODES_AT as u64, found.span.len)
    }));
    Found { areas, list: None }
}
