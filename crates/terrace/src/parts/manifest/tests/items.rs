//! The owners of the manifest's tests: one in the pool, whose items may lead to one another, and
//! one of files.

use std::sync::Arc;

use terrace_media::Span;

use super::{Editor, State};
use crate::parts::codec::{DecodeError, Reader};
use crate::parts::key::Place;
use crate::parts::manifest::item::{self, Field, Item, Owner, Owners, put_numbers, put_place};
use crate::parts::manifest::refuse;

pub(super) static OWNERS: Owners = &[&SLAB, &SHEET];

/// In the pool.
pub(super) static SLAB: Owner = Owner {
    tag: 200,
    name: "slab",
    in_pool: true,
    numbered: true,
    decode: |id, r| Ok(Arc::new(Slab::decode(id, r)?)),
    check: |state| {
        let mut next = state.items::<Slab>().filter_map(|slab| slab.next);
        match next.find(|id| !state.has_item(&SLAB, *id)) {
            Some(id) => refuse("a slab to lead to", format!("slab {id}")),
            None => Ok(()),
        }
    },
    #[cfg(feature = "decoders")]
    samples: Vec::new,
};

/// In files.
pub(super) static SHEET: Owner = Owner {
    tag: 7,
    name: "sheet",
    in_pool: false,
    numbered: true,
    decode: |id, r| {
        let place = item::place(r)?;
        Ok(Arc::new(Sheet { id, place }))
    },
    check: |_| Ok(()),
    #[cfg(feature = "decoders")]
    samples: Vec::new,
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slab {
    pub(super) id: u64,
    pub(super) spans: Vec<Span>,
    /// The slab that it leads to, which must exist.
    pub(super) next: Option<u64>,
}

impl Slab {
    fn decode(id: u64, r: &mut Reader<'_>) -> Result<Slab, DecodeError> {
        let next = item::id(r)?.checked_sub(1);
        let mut spans = Vec::new();
        while r.remaining() > 0 {
            spans.push(item::span(r)?);
        }
        Ok(Slab { id, spans, next })
    }
}

impl Item for Slab {
    fn owner(&self) -> &'static Owner {
        &SLAB
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_numbers(out, &[self.next.map_or(0, |id| id + 1)]);
        for span in &self.spans {
            put_numbers(out, &[span.off, span.len]);
        }
    }

    fn spans(&self) -> Vec<Span> {
        self.spans.clone()
    }

    fn fields(&self) -> Vec<(&'static str, Field)> {
        Vec::new()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sheet {
    pub(super) id: u64,
    pub(super) place: Place,
}

impl Item for Sheet {
    fn owner(&self) -> &'static Owner {
        &SHEET
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_place(out, &self.place);
    }

    fn fields(&self) -> Vec<(&'static str, Field)> {
        Vec::new()
    }
}

impl Editor {
    pub(super) fn slab(&mut self, id: u64, state: &State) -> Slab {
        let ids: Vec<u64> = state.items().map(|slab: &Slab| slab.id).collect();
        Slab {
            id,
            spans: (0..self.rng.usize(1..4)).map(|_| self.span()).collect(),
            next: self.pick(&ids).filter(|_| self.rng.bool()),
        }
    }

    pub(super) fn sheet(&mut self, id: u64) -> Sheet {
        let key = (0..self.rng.usize(..40)).map(|_| self.rng.u8(..));
        let key = key.collect();
        let keyspace = self.rng.u32(..) >> self.rng.u32(..32);
        Sheet {
            id,
            place: (keyspace, key),
        }
    }
}
