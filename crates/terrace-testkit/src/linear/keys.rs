//! This file names the keys of a run, and makes values that tell who wrote them.

use crate::oracle::Outcome;

pub(super) fn shared_key(n: u64) -> Vec<u8> {
    format!("s{n:05}").into_bytes()
}

pub(super) fn owned_key(writer: u64, n: u64) -> Vec<u8> {
    format!("o{writer}{n:05}").into_bytes()
}

pub(super) fn group_key(group: u64, n: u64) -> Vec<u8> {
    // Spread over the key space, so that a scan takes a while from one to the next.
    format!(
        "{}g{group}{n}",
        [b'a', b'h', b'p', b't', b'x'][n as usize] as char
    )
    .into_bytes()
}

pub(super) fn steady_key(n: u64) -> Vec<u8> {
    format!("{}k{n:03}", (b'a' + (n % 26) as u8) as char).into_bytes()
}

/// A value that begins with its number and has a length of its own.
pub(super) fn value(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // Now and then one that fills a memtable, or a group of them that fits none.
    let most = if mixed.is_multiple_of(40) { 5000 } else { 120 };
    bytes.resize(8 + (mixed / 40 % most) as usize, number as u8);
    bytes
}

pub(super) fn number(bytes: Option<&[u8]>) -> Outcome<Option<u64>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let tag = bytes.first_chunk::<8>().map(|tag| u64::from_le_bytes(*tag));
    match tag {
        Some(tag) if bytes == value(tag) => Ok(Some(tag)),
        _ => Err(format!(
            "a value that nobody wrote: {}",
            bytes.escape_ascii()
        )),
    }
}
