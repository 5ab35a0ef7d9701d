//! Filters of tables, in memory (FlatLSM, section 4.2.1): a read that finds a key in an old table
//! searches no index of the newer ones.

use std::sync::Arc;

use crate::error::Result;
use crate::parts::filter::{FilterBlock, FilterBuilder};
use crate::parts::iter::Cursor;
use crate::parts::key::{Place, Target};
use crate::stages::{Census, Lookup, Prediction, Probe, ReadStats, Shared, Source};
use crate::types::{SeqNo, key_hash};

/// A filter that is being built.
pub(super) struct Filling(Option<FilterBuilder>);

impl Filling {
    /// Begins the filter of a table of `entries`.
    pub(super) fn new(shared: &Shared, entries: u64) -> Filling {
        // A memory budget has no row for filters of tables.
        let bits = match shared.memory.is_limited() {
            true => 0,
            false => shared.options.buffer.filter_bits_per_key,
        };
        Filling((bits > 0).then(|| FilterBuilder::new(entries, bits)))
    }

    /// Returns whether the keys are needed.
    pub(super) fn wants_keys(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn insert(&mut self, keyspace: u32, key: &[u8]) {
        if let Some(filter) = &mut self.0 {
            filter.insert(key_hash(keyspace, key));
        }
    }

    /// Returns a source whose reads ask the filter first. It must have all keys of `source`.
    pub(super) fn finish(self, source: Arc<dyn Source>) -> Result<Arc<dyn Source>> {
        let Some(filter) = self.0 else {
            return Ok(source);
        };
        let filter = FilterBlock::new(filter.into_bytes(), 0)?;
        Ok(Arc::new(Filtered { source, filter }))
    }
}

struct Filtered {
    source: Arc<dyn Source>,
    filter: FilterBlock,
}

impl Source for Filtered {
    fn get(&self, probe: &Probe<'_>, stats: &mut ReadStats) -> Result<Option<Lookup>> {
        if !self.filter.may_contain(probe.hash) {
            stats.filter_saved += 1;
            return Ok(None);
        }
        self.source.get(probe, stats)
    }

    fn predict(&self, hash: u64) -> Prediction {
        Prediction::of(self.filter.may_contain(hash))
    }

    fn cursor(&self) -> Box<dyn Cursor> {
        self.source.cursor()
    }

    fn approximate(&self, from: &Target<'_>, to: &Target<'_>) -> Result<(u64, u64)> {
        self.source.approximate(from, to)
    }

    fn spread(&self, count: usize) -> Result<Vec<(Place, SeqNo)>> {
        self.source.spread(count)
    }

    fn verify(&self, census: &mut Census, visited: &mut dyn FnMut(u64)) {
        self.source.verify(census, visited);
    }

    fn verify_bytes(&self) -> u64 {
        self.source.verify_bytes()
    }

    fn seqs(&self) -> (SeqNo, SeqNo) {
        self.source.seqs()
    }
}
