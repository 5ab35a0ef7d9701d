//! The decoder of OPTIONS, for tests with arbitrary bytes.

use std::path::Path;

use terrace_media::decoder::{Decoder, Seen, kind_of, same};

use super::Options;
use super::file::OptionsFile;
use crate::types::DbId;

pub(crate) fn decoders() -> Vec<Decoder> {
    vec![Decoder {
        name: "options",
        seeds: || {
            let text = |pool: Option<&str>| {
                let mut options = Options::default();
                options.pool.path = pool.map(Into::into);
                OptionsFile::of(&options, DbId(*b"0123456789abcdef"), "00ff".into())
                    .print()
                    .into_bytes()
            };
            vec![text(None), text(Some("pool = with spaces"))]
        },
        mend: |bytes| {
            let name = b"checksum = ";
            let found = bytes.windows(name.len()).rposition(|window| window == name);
            if let Some(at) = found {
                let (body, line) = bytes.split_at_mut(at);
                let crc = format!("{:08x}\n", crc_fast::crc32_iscsi(body));
                if let Some(place) = line[name.len()..].get_mut(..crc.len()) {
                    place.copy_from_slice(crc.as_bytes());
                }
            }
        },
        run: |bytes| {
            let path = Path::new("OPTIONS");
            match OptionsFile::parse(&String::from_utf8_lossy(bytes), path) {
                Ok(fixed) => {
                    let again = OptionsFile::parse(&fixed.print(), path);
                    let again = again.map_err(|e| format!("its printed text: {e}"))?;
                    same("what is fixed", &again, &fixed)?;
                    let options = fixed.options(Path::new("db"));
                    Ok(Seen::Accepted(u64::from(options.is_ok())))
                }
                Err(e) => {
                    let said = e.to_string();
                    let said = said.rsplit(['(', ':']).next().unwrap_or("");
                    Ok(Seen::Refused(kind_of(
                        "options",
                        said.split('"').next().unwrap_or(""),
                    )))
                }
            }
        },
    }]
}
