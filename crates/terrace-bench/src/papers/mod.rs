//! The published comparison with papers: a summary of each comparison's results, and one page.
//!
//! Raw results are too large to be kept. [`Summary`] has the figures that a paper's are compared
//! with, and their conditions; it is committed next to the page. [`page`] makes the page of
//! comparisons and summaries alone, so that anyone can remake it without measuring again.

mod page;
mod summary;
#[cfg(test)]
mod tests;

pub use page::{Entry, page};
pub use summary::{Build, StoreSummary, Summary};
