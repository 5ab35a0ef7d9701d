//! All decoders of bytes that stages and parts keep on media, for fuzzing.

use terrace_media::decoder::Decoder;

use crate::parts::{codec, expiry, filter, log, manifest, ranges, redo, skiplist, sstable};
use crate::stages::bottom::repository;

pub(crate) fn decoders() -> Vec<Decoder> {
    [
        codec::decoders::decoders(),
        log::decoders::decoders(),
        manifest::decoders::decoders(),
        redo::decoders::decoders(),
        expiry::decoders::decoders(),
        ranges::decoders::decoders(),
        filter::decoders::decoders(),
        skiplist::decoders::decoders(),
        sstable::decoders::decoders(),
        repository::decoders::decoders(),
    ]
    .concat()
}
