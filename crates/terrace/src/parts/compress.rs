//! Compression of single blocks and values, from content to payload and back. A compressed payload
//! is the size of the content (4 bytes) and the compressed content.

use crate::error::{Error, ErrorKind, Result};
use crate::parts::codec::DecodeError;
use crate::types::Compression;

/// The size of the content's size, before compressed content.
const WORD_BYTES: usize = 4;
/// The maximum compression ratio of LZ4.
pub(crate) const LZ4_RATIO_MAX: usize = 256;

/// A block is stored compressed if that saves at least one part in this many.
const SAVES_ONE_IN: usize = 8;

#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 3;

/// Compresses blocks one after another, in reused memory.
pub(crate) struct Compressor {
    wanted: Compression,
    lz4: lz4_flex::block::CompressTable,
    #[cfg(feature = "zstd")]
    zstd: Option<zstd::bulk::Compressor<'static>>,
    payload: Vec<u8>,
}

impl Compressor {
    /// Creates a compressor of this kind. Fails with `Unsupported` if the library was built without
    /// it.
    pub(crate) fn new(wanted: Compression) -> Result<Compressor> {
        #[cfg(not(feature = "zstd"))]
        if wanted == Compression::Zstd {
            return Err(without_zstd());
        }
        #[cfg(feature = "zstd")]
        let zstd = match wanted {
            Compression::Zstd => Some(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(refused)?),
            Compression::None | Compression::Lz4 => None,
        };
        Ok(Compressor {
            wanted,
            lz4: lz4_flex::block::CompressTable::default(),
            #[cfg(feature = "zstd")]
            zstd,
            payload: Vec::new(),
        })
    }

    /// Returns the payload of a block with this content, and the compression used.
    pub(crate) fn payload<'a>(&'a mut self, content: &'a [u8]) -> (&'a [u8], Compression) {
        let bound = match self.wanted {
            Compression::None => return (content, Compression::None),
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(content.len()),
            #[cfg(feature = "zstd")]
            Compression::Zstd => zstd::zstd_safe::compress_bound(content.len()),
            #[cfg(not(feature = "zstd"))]
            Compression::Zstd => return (content, Compression::None),
        };
        let bound = bound + WORD_BYTES;
        if self.payload.len() < bound {
            self.payload.resize(bound, 0);
        }
        let out = &mut self.payload[WORD_BYTES..];
        let size = match self.wanted {
            Compression::Lz4 => {
                lz4_flex::block::compress_into_with_table(content, out, &mut self.lz4).ok()
            }
            #[cfg(feature = "zstd")]
            Compression::Zstd => {
                let zstd = self.zstd.as_mut();
                zstd.and_then(|zstd| zstd.compress_to_buffer(content, out).ok())
            }
            _ => None,
        };
        match size.map(|size| size + WORD_BYTES) {
            Some(size) if size + content.len() / SAVES_ONE_IN <= content.len() => {
                let raw = (content.len() as u32).to_le_bytes();
                self.payload[..WORD_BYTES].copy_from_slice(&raw);
                (&self.payload[..size], self.wanted)
            }
            _ => (content, Compression::None),
        }
    }

    /// Frees memory beyond `keep_bytes`.
    pub(crate) fn shrink(&mut self, keep_bytes: usize) {
        if self.payload.len() > keep_bytes {
            self.payload.truncate(keep_bytes);
            self.payload.shrink_to_fit();
        }
    }
}

/// Decompresses a payload at `offset`, whose checksum must be verified, into `memory`, whose
/// contents are overwritten. Returns the content, which must have at most `content_max` bytes.
pub(crate) fn decompress(
    payload: &[u8],
    compression: Compression,
    offset: u64,
    content_max: usize,
    memory: Vec<u8>,
) -> Result<Vec<u8>> {
    let damaged = |expected: String, found: String| {
        Error::from(DecodeError::new(
            "compressed content",
            offset,
            expected,
            found,
        ))
    };
    let Some((size, packed)) = payload.split_first_chunk::<WORD_BYTES>() else {
        return Err(damaged("a size".into(), format!("{} bytes", payload.len())));
    };
    let size = u32::from_le_bytes(*size) as usize;
    let size_max = match compression {
        Compression::Lz4 => packed.len().saturating_mul(LZ4_RATIO_MAX),
        Compression::None | Compression::Zstd => content_max,
    };
    if size > size_max.min(content_max) {
        let found = format!("{size} from {}", packed.len());
        return Err(damaged(format!("at most {size_max} bytes"), found));
    }
    let mut content = memory;
    // The old contents are overwritten, so only added bytes are zeroed.
    content.resize(size, 0);
    let unpacked = match compression {
        Compression::None => Err("a block that is not compressed".to_owned()),
        Compression::Lz4 => {
            lz4_flex::block::decompress_into(packed, &mut content).map_err(|e| e.to_string())
        }
        #[cfg(feature = "zstd")]
        Compression::Zstd => {
            zstd::bulk::decompress_to_buffer(packed, &mut content[..]).map_err(|e| e.to_string())
        }
        #[cfg(not(feature = "zstd"))]
        Compression::Zstd => return Err(without_zstd()),
    };
    match unpacked {
        Ok(unpacked) if unpacked == size => Ok(content),
        Ok(unpacked) => Err(damaged(format!("{size} bytes"), format!("{unpacked}"))),
        Err(e) => Err(damaged("content that decompresses".into(), e)),
    }
}

#[cfg(not(feature = "zstd"))]
#[cold]
fn without_zstd() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "this build does not support Zstandard: build it with the feature `zstd`, or choose LZ4",
    )
}

#[cfg(feature = "zstd")]
#[cold]
fn refused(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot start Zstandard: {e}")).because(e)
}
