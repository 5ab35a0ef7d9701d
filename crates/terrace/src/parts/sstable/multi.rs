//! Batched point reads: the blocks that a batch misses in the cache are read in few spans.

use std::borrow::Cow;
use std::sync::Arc;

use terrace_media::Advice;

use super::block::{Block, Sought};
use super::fetch::ReadCounts;
use super::layout::{BlockKind, Handle};
use super::reader::{Answer, SsTable};
use crate::error::Result;
use crate::parts::key::Target;

/// The maximum gap between blocks that are read together with the bytes in between.
const GAP_BYTES: u64 = 8 << 10;
/// The maximum size of a span, unless it is a single block.
const SPAN_BYTES_MAX: u64 = 1 << 20;

/// One point read of a batch.
#[derive(Debug, Clone)]
pub(crate) struct MultiRead<'a> {
    pub(crate) target: Target<'a>,
    pub(crate) hash: u64,
    /// The answer, set by `multi_get`; `None` if an older source must be searched.
    pub(crate) answer: Option<Answer>,
}

impl<'a> MultiRead<'a> {
    /// Creates a read without an answer.
    pub(crate) fn new(target: Target<'a>, hash: u64) -> MultiRead<'a> {
        MultiRead {
            target,
            hash,
            answer: None,
        }
    }
}

/// A block that a batch needs, and the reads that need it.
struct Wanted {
    handle: Handle,
    reads: Vec<usize>,
}

impl SsTable {
    /// Answers every read as `get` would. After an error, only some reads may have answers.
    pub(crate) fn multi_get(
        &self,
        reads: &mut [MultiRead<'_>],
        counts: &mut ReadCounts,
    ) -> Result<()> {
        let mut wanted: Vec<Wanted> = Vec::new();
        // Fetched once: if the budget does not hold the filter, every lookup would read it.
        let filter = self.filter(counts)?;
        for (index, read) in reads.iter_mut().enumerate() {
            read.answer = self.answer(&read.target, None);
            if filter.as_ref().is_some_and(|f| !f.may_contain(read.hash)) {
                counts.filter_saved += 1;
                continue;
            }
            let handle = Sought::with(&read.target, |s| self.block_of(&s, counts))?;
            match (handle, wanted.last_mut()) {
                (Some(handle), Some(last)) if last.handle == handle => last.reads.push(index),
                (Some(handle), _) => wanted.push(Wanted {
                    handle,
                    reads: vec![index],
                }),
                (None, _) => {}
            }
        }
        let mut missing = Vec::new();
        for wanted in wanted {
            match self.file.cached(wanted.handle, counts) {
                Some(block) => self.answer_from(&block, &wanted.reads, reads)?,
                None => missing.push(wanted),
            }
        }
        self.read_missing(missing, reads, counts)
    }

    fn answer_from(
        &self,
        block: &Arc<Block>,
        indexes: &[usize],
        reads: &mut [MultiRead<'_>],
    ) -> Result<()> {
        for index in indexes {
            let Some(read) = reads.get_mut(*index) else {
                continue;
            };
            let block = Arc::clone(block);
            let found = Sought::with(&read.target, |s| self.find_in(block, &s))?;
            read.answer = self.answer(&read.target, found);
        }
        Ok(())
    }

    fn read_missing(
        &self,
        mut missing: Vec<Wanted>,
        reads: &mut [MultiRead<'_>],
        counts: &mut ReadCounts,
    ) -> Result<()> {
        for wanted in &missing {
            self.file.check_handle(wanted.handle)?;
        }
        missing.sort_by_key(|wanted| wanted.handle.offset);
        let mut spans: Vec<Vec<Wanted>> = Vec::new();
        for wanted in missing {
            match spans.last_mut() {
                Some(span) if joins(span, wanted.handle) => match span.last_mut() {
                    Some(last) if last.handle == wanted.handle => last.reads.extend(wanted.reads),
                    _ => span.push(wanted),
                },
                _ => spans.push(vec![wanted]),
            }
        }
        if spans.len() > 1 {
            // The system starts reading all spans before the first one is waited for.
            for span in &spans {
                let (from, to) = bounds(span);
                self.file.advise(from, to - from, Advice::WillNeed);
            }
        }
        let mut bytes = Vec::new();
        for span in spans {
            let (from, to) = bounds(&span);
            bytes.resize((to - from) as usize, 0);
            self.file.read(from, &mut bytes, counts)?;
            for wanted in span {
                let at = (wanted.handle.offset - from) as usize;
                let stored = &bytes[at..at + wanted.handle.stored_bytes()];
                let stored = Cow::Borrowed(stored);
                let content =
                    self.file
                        .open_block(wanted.handle, BlockKind::Data, stored, Vec::new())?;
                let block = self.file.parse(wanted.handle, content)?;
                counts.blocks_read += 1;
                self.file.keep(wanted.handle, &block);
                self.answer_from(&block, &wanted.reads, reads)?;
            }
        }
        Ok(())
    }
}

/// Returns whether a block is read with the span before it.
fn joins(span: &[Wanted], handle: Handle) -> bool {
    let (from, to) = bounds(span);
    handle.offset.saturating_sub(to) <= GAP_BYTES && handle.end() - from <= SPAN_BYTES_MAX
}

/// Returns the start and end offset of a span.
fn bounds(span: &[Wanted]) -> (u64, u64) {
    let from = span.first().map_or(0, |wanted| wanted.handle.offset);
    let to = span.iter().map(|wanted| wanted.handle.end()).max();
    (from, to.unwrap_or(from))
}
