//! The names of keyspaces and keys, and the clients that own them.

use crate::oracle::Outcome;
use crate::value::{Value, shown};

/// The prefix of the keys of pairs that are written together. They sort after all other keys.
const PAIR: &[u8] = b"~pair.";

/// Returns the name of a keyspace of a client. The first is the default one.
pub(super) fn space_name(space: usize, client: u8) -> String {
    match space {
        0 => "default".into(),
        1 => "shared".into(),
        _ => format!("own-{client}"),
    }
}

/// Returns the owner of a key. In the default keyspace the keys of all clients are interleaved; in
/// the shared one each client has a range.
pub(super) fn owner(space: usize, key: &[u8]) -> Option<u8> {
    let digit = match space {
        _ if key.starts_with(PAIR) => key.last(),
        0 => key.get(6),
        1 => key.first().filter(|_| key.len() > 1),
        _ => return None,
    };
    digit.map(|digit| digit.wrapping_sub(b'a'))
}

pub(super) fn key(space: usize, client: u8, number: u32) -> Vec<u8> {
    let own = char::from(b'a' + client);
    let mut key = match space {
        0 => format!("{number:06}{own}"),
        _ => format!("{own}{number:06}"),
    }
    .into_bytes();
    if number.is_multiple_of(37) {
        key.resize(300, b'.');
    }
    key
}

pub(super) fn pair_key(client: u8) -> Vec<u8> {
    [PAIR, &[b'a' + client]].concat()
}

/// Checks that a value can be one that `client` wrote.
pub(super) fn check_foreign(client: u8, key: &[u8], bytes: &[u8]) -> Outcome {
    let tag = bytes.first_chunk::<8>().map(|tag| u64::from_le_bytes(*tag));
    let len = bytes.len() as u32;
    match tag {
        Some(tag) if tag >> 48 == u64::from(client) && Value { tag, len }.is(bytes) => Ok(()),
        _ => Err(format!(
            "{} of client {client} has a value that it never wrote: {}",
            key.escape_ascii(),
            shown(Some(bytes))
        )),
    }
}

/// Checks that the two values of a client that are always written together are equal at one
/// instant.
pub(super) fn check_pair(
    client: u8,
    get: impl Fn(usize, &[u8]) -> terrace::Result<Option<Vec<u8>>>,
) -> Outcome {
    let read = |space| get(space, &pair_key(client)).map_err(|e| format!("a get fails: {e:?}"));
    let (first, second) = (read(0)?, read(1)?);
    if first == second {
        return Ok(());
    }
    Err(format!(
        "a part of a batch of client {client}: {} next to {}",
        shown(first.as_deref()),
        shown(second.as_deref())
    ))
}
