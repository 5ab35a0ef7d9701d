//! Finding the nodes of the repository in a damaged pool.

use terrace_media::Span;

use super::layout::{
    self, ENTRIES_AT, EXTENT, ExtentMeta, HEADER_BYTES, RECLAIMING_AT, SYNCED_AT, USED_AT,
};
use crate::parts::manifest::State;
use crate::parts::manifest::item::Item;
use crate::stages::salvage::{Area, DamagedPool, Found, OneList, Salvage, Unnamed};

/// The name of the repository in the report of a repair.
const NAME: &str = "repository";
/// The offset of the first node in an extent, and of the head node in the head extent.
const NODES_AT: u64 = HEADER_BYTES as u64;

pub(crate) static SALVAGE: Salvage = Salvage {
    owner: &EXTENT,
    identify: |head, off| {
        let length = u64::from_le_bytes(*head[8..].first_chunk()?);
        let is_extent = layout::check_extent(head, off, length).is_ok();
        is_extent.then_some((off, Some(length)))
    },
    find,
};

fn find(state: &State, unnamed: &[Unnamed], pool: &mut dyn DamagedPool) -> Found {
    let mut found = Found::default();
    for extent in state.items::<ExtentMeta>() {
        let span = extent.span();
        if extent.has_entries() {
            found.areas.push(area(span, pool));
            continue;
        }
        let word = |at| pool.word(span.off + at).unwrap_or(0);
        found.list = Some(OneList {
            entries: Some(word(ENTRIES_AT)),
            reclaiming: word(RECLAIMING_AT),
        });
        let head = Area {
            head: Some(span.off + NODES_AT),
            in_one_list: true,
            ..Area::new(NAME, 0, span)
        };
        // Before the extents, whose nodes it leads to.
        found.areas.insert(0, head);
    }
    if !unnamed.is_empty() {
        // The head may be of another time than these extents.
        found.list = Some(OneList {
            entries: None,
            reclaiming: 0,
        });
    }
    let unnamed = unnamed.iter().map(|extent| area(extent.span, pool));
    found.areas.extend(unnamed);
    found
}

fn area(span: Span, pool: &mut dyn DamagedPool) -> Area {
    let word = |at| pool.word(span.off + at).unwrap_or(0);
    let (used, synced) = (word(USED_AT), word(SYNCED_AT));
    // 0: all of `used` survives a power loss.
    let synced = Some(synced).filter(|synced| *synced != 0);
    // The page with `used` may be newer than those that it counts, which then contain nodes of an
    // earlier use of the space; nodes after `synced` are still in the buffer, or in the extent that
    // they were copied from.
    let used = match synced {
        Some(synced) if pool.power_lost() => synced,
        synced => used.max(synced.unwrap_or(0)),
    };
    let (known, placed) = match pool.bytes(span.off, NODES_AT) {
        Some(head) => {
            let known = layout::check_extent(head, span.off, span.len).is_ok();
            (
                known,
                known || layout::extent_offset(head) == Some(span.off),
            )
        }
        None => (false, false),
    };
    // A page from elsewhere may contain a wrong `used`.
    let fits = placed && (NODES_AT..=span.len).contains(&used);
    let problem = match (known, fits) {
        (false, _) => Some("the header of an extent is lost"),
        (true, false) => Some("the header of an extent claims more used bytes than the extent has"),
        (true, true) => None,
    };
    Area {
        may_be_dead: true,
        in_one_list: true,
        replaced: !placed,
        problem: problem.map(str::to_owned),
        // Without `used` every node up to the end counts that another one leads to.
        ..Area::new(NAME, 0, span).entries(NODES_AT, if fits { used } else { span.len })
    }
}
