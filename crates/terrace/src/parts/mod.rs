//! Parts: building blocks of the stages. A part uses media and other parts, nothing above.

pub(crate) mod batch;
pub(crate) mod btree;
pub(crate) mod cache;
pub(crate) mod codec;
pub(crate) mod compress;
pub(crate) mod draft;
pub(crate) mod expiry;
pub(crate) mod external_sort;
pub(crate) mod filter;
pub(crate) mod iter;
pub(crate) mod key;
pub(crate) mod latch;
pub(crate) mod log;
pub(crate) mod manifest;
pub(crate) mod memory;
pub(crate) mod ranges;
pub(crate) mod rate_limiter;
pub(crate) mod redo;
pub(crate) mod reserve;
pub(crate) mod retain;
pub(crate) mod segments;
pub(crate) mod sequence;
pub(crate) mod skiplist;
pub(crate) mod snapshots;
pub(crate) mod sstable;
pub(crate) mod values;
