//! Value files in the manifest.

use std::sync::Arc;

use crate::parts::codec::{DecodeError, Reader};
use crate::parts::manifest::item::{self, Field, Item, Owner, number_fields, put_numbers};

/// Value files as items of the manifest. The id is the file's number.
pub(crate) static VALUE_FILE: Owner = Owner {
    tag: 5,
    name: "value-file",
    in_pool: false,
    numbered: true,
    decode: |number, r| Ok(Arc::new(ValueMeta::decode(number, r)?)),
    check: |_| Ok(()),
    #[cfg(feature = "decoders")]
    samples,
};

/// A value file, named after its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueMeta {
    pub(crate) number: u64,
    /// The length of the file.
    pub(crate) bytes: u64,
    /// The number of its records.
    pub(crate) values: u64,
}

impl Item for ValueMeta {
    fn owner(&self) -> &'static Owner {
        &VALUE_FILE
    }

    fn id(&self) -> u64 {
        self.number
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_numbers(out, &[self.bytes, self.values]);
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its keys are in tables.
    fn has_entries(&self) -> bool {
        false
    }

    fn fields(&self) -> Vec<(&'static str, Field)> {
        number_fields(&[("bytes", self.bytes), ("values", self.values)])
    }
}

impl ValueMeta {
    pub(super) fn decode(number: u64, r: &mut Reader<'_>) -> Result<ValueMeta, DecodeError> {
        Ok(ValueMeta {
            number,
            bytes: item::amount(r)?,
            values: item::amount(r)?,
        })
    }
}

#[cfg(feature = "decoders")]
fn samples() -> Vec<Arc<dyn Item>> {
    vec![Arc::new(ValueMeta {
        number: 9,
        bytes: 70_000,
        values: 17,
    })]
}
