//! Value files as segments of the levels: their paths, and their open files.

use std::path::PathBuf;
use std::sync::Arc;

use super::TableStore;
use crate::error::{Error, Result};
use crate::parts::segments::{Held, Segment, Segments, Space};
use crate::parts::values::layout::HEADER_BYTES;
use crate::parts::values::{ValueFile, ValueMeta};

/// The memory of a value file: its metadata in two versions and in two states of the manifest.
pub(super) const NAME_BYTES: u64 =
    (2 * size_of::<(Arc<ValueHandle>, u64)>() + 3 * size_of::<ValueMeta>()) as u64 + 128;

/// A value file, while a version or a table holds it.
pub(super) type ValueHandle = Held<ValueSpace>;

/// The value files of a version.
pub(super) type Values = Segments<ValueSpace>;

/// A value file that is named.
pub(super) struct ValueSpace {
    store: Arc<TableStore>,
    pub(super) meta: ValueMeta,
}

impl Space for ValueSpace {
    fn give_back(&mut self) {
        self.store.open_values.forget(self.meta.number);
        // CRASH: no edit names a file that stays; opening the database removes it.
        let _ = self.store.fs.remove(&self.path());
    }
}

impl Segment for ValueSpace {
    fn number(&self) -> u64 {
        self.meta.number
    }

    fn bytes(&self) -> u64 {
        self.meta.bytes
    }

    fn record_bytes(&self) -> u64 {
        self.meta.bytes.saturating_sub(HEADER_BYTES as u64)
    }
}

impl ValueSpace {
    pub(super) fn held(store: &Arc<TableStore>, meta: ValueMeta) -> Arc<ValueHandle> {
        let store = Arc::clone(store);
        Held::new(ValueSpace { store, meta })
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> PathBuf {
        self.store.value_path(self.meta.number)
    }

    /// Returns the open file.
    pub(super) fn open(&self) -> Result<Arc<ValueFile>> {
        let store = &self.store;
        let number = self.meta.number;
        store.open_values.get_or_open(number, || {
            let path = self.path();
            let file = ValueFile::open(&*store.fs, &path, number, store.options.direct_reads)?;
            if file.db() != store.db {
                return Err(Error::corruption(format!(
                    "{} is a value file of another database, {}, and this one is {}: restore the \
                     file from a copy, or recover the readable data with \"terrace repair\"",
                    path.display(),
                    file.db(),
                    store.db
                )));
            }
            Ok(Arc::new(file))
        })
    }
}
