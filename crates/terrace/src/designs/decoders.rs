//! All decoders of bytes that stages and parts keep on media, for fuzzing.

use terrace_media::decoder::Decoder;

use super::owners::OWNERS;
use crate::parts::manifest::item::Owners;
use crate::parts::{codec, expiry, filter, log, manifest, ranges, redo, skiplist, sstable, values};
use crate::stages::bottom::repository;

/// The owners of items in the manifest.
struct Registered;

impl manifest::decoders::Registry for Registered {
    const OWNERS: Owners = OWNERS;
}

pub(crate) fn decoders() -> Vec<Decoder> {
    [
        codec::decoders::decoders(),
        log::decoders::decoders(),
        manifest::decoders::decoders::<Registered>(),
        redo::decoders::decoders(),
        expiry::decoders::decoders(),
        ranges::decoders::decoders(),
        filter::decoders::decoders(),
        skiplist::decoders::decoders(),
        sstable::decoders::decoders(),
        values::decoders::decoders(),
        repository::decoders::decoders(),
    ]
    .concat()
}
