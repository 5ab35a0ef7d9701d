//! The keys of a run and their roles, and values that identify their writer.

use std::collections::BTreeMap;

use super::Run;
use crate::oracle::Outcome;

/// The number of keys of a group in each keyspace.
pub(super) const GROUP_KEYS: u64 = 5;
/// The number of accounts of a writer.
pub(super) const ACCOUNTS: u64 = 4;
/// The sum of the balances of a writer's accounts, at any instant.
pub(super) const TOTAL: u64 = 200;
/// The number of keys of a writer that are put with a time to live.
pub(super) const BRIEF: u64 = 3;
const STEADY: u64 = 150;

/// A keyspace, 0 for the default one and 1 for the other, and a key in it.
pub(super) type Place = (usize, Vec<u8>);

/// A unit with a value that is written as a whole: one key, or several keys that a batch writes
/// together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Register {
    /// Written by every writer.
    Shared(u64),
    /// Written by one writer, which also deletes it.
    Owned(u64, u64),
    /// Keys in both keyspaces, written by every writer.
    Group(u64),
    /// Written by one writer, whose accounts have the same sum at any instant.
    Account(u64, u64),
    /// Written by one writer in both keyspaces, and never absent.
    Always(u64),
    /// Written by one writer, and absent after its time to live.
    Brief(u64, u64),
    /// Written by one writer, before its mark, and deleted after it.
    Fact(u64),
    /// Written by one writer. If it is present, its fact is present and at least as new.
    Mark(u64),
}

impl Register {
    /// Returns whether a single writer writes it.
    pub(super) fn has_one_writer(self) -> bool {
        !matches!(self, Register::Shared(_) | Register::Group(_))
    }
}

/// The role of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Written at the start and never again.
    Steady(u64),
    Of(Register),
}

pub(super) fn shared(n: u64) -> Place {
    (n as usize % 2, format!("s{n:05}").into_bytes())
}

pub(super) fn owned_key(writer: u64, n: u64) -> Vec<u8> {
    format!("o{writer}{n:05}").into_bytes()
}

pub(super) fn owned(writer: u64, n: u64) -> Place {
    (n as usize % 2, owned_key(writer, n))
}

pub(super) fn group_key(group: u64, n: u64) -> Vec<u8> {
    // Spread over the key space, so that a scan takes a while from one key to the next.
    format!(
        "{}g{group}{n}",
        [b'a', b'h', b'p', b't', b'x'][n as usize] as char
    )
    .into_bytes()
}

pub(super) fn account(writer: u64, n: u64) -> Place {
    (
        writer as usize % 2,
        format!("{}c{writer}{n}", ["b", "i", "r", "y"][n as usize]).into_bytes(),
    )
}

pub(super) fn always_key(writer: u64) -> Vec<u8> {
    format!("l{writer}").into_bytes()
}

pub(super) fn brief(writer: u64, n: u64) -> Place {
    (n as usize % 2, format!("q{writer}{n}").into_bytes())
}

pub(super) fn fact(writer: u64) -> Place {
    (writer as usize % 2, format!("f{writer}").into_bytes())
}

/// Returns the mark of a writer, which sorts before or after its fact.
pub(super) fn mark(writer: u64) -> Place {
    let letter = ["e", "w"][writer as usize / 2 % 2];
    (
        writer as usize % 2,
        format!("{letter}m{writer}").into_bytes(),
    )
}

pub(super) fn steady(n: u64) -> Place {
    (
        n as usize / 26 % 2,
        format!("{}k{n:03}", (b'a' + (n % 26) as u8) as char).into_bytes(),
    )
}

/// The keys of a run.
pub(super) struct Roster {
    pub(super) roles: BTreeMap<Place, Role>,
    /// The same keys, for drawing one.
    pub(super) places: Vec<Place>,
    /// Groups of keys with a common invariant.
    pub(super) families: Vec<Vec<Place>>,
}

impl Roster {
    pub(super) fn of(run: &Run) -> Roster {
        let mut families: Vec<Vec<(Place, Role)>> = Vec::new();
        let of = |place, register| (place, Role::Of(register));
        let both = |key: Vec<u8>, register| [0, 1].map(|space| of((space, key.clone()), register));
        families.push((0..STEADY).map(|n| (steady(n), Role::Steady(n))).collect());
        families.push(
            (0..run.shared())
                .map(|n| of(shared(n), Register::Shared(n)))
                .collect(),
        );
        for group in 0..run.groups() {
            let keys = (0..GROUP_KEYS).map(|n| group_key(group, n));
            families.push(
                keys.flat_map(|key| both(key, Register::Group(group)))
                    .collect(),
            );
        }
        for w in 0..run.writers {
            let all = (0..run.owned()).map(|n| of(owned(w, n), Register::Owned(w, n)));
            families.push(all.collect());
            let all = (0..ACCOUNTS).map(|n| of(account(w, n), Register::Account(w, n)));
            families.push(all.collect());
            families.push(both(always_key(w), Register::Always(w)).into());
            let all = (0..BRIEF).map(|n| of(brief(w, n), Register::Brief(w, n)));
            families.push(all.collect());
            let pair = [
                of(fact(w), Register::Fact(w)),
                of(mark(w), Register::Mark(w)),
            ];
            families.push(pair.into());
        }
        let roles: BTreeMap<Place, Role> = families.iter().flatten().cloned().collect();
        let place = |family: Vec<(Place, Role)>| family.into_iter().map(|(place, _)| place);
        Roster {
            places: roles.keys().cloned().collect(),
            roles,
            families: families.into_iter().map(|f| place(f).collect()).collect(),
        }
    }

    /// Returns the keys that are not written after the start, with their numbers.
    pub(super) fn steady(&self) -> impl Iterator<Item = (&Place, u64)> {
        self.roles.iter().filter_map(|(place, role)| match role {
            Role::Steady(n) => Some((place, *n)),
            Role::Of(_) => None,
        })
    }
}

/// Returns a number unique to a value: the writer, the balance of an account, and a count.
pub(super) fn numbered(writer: u64, balance: u64, count: u64) -> u64 {
    ((writer + 1) << 48) | (balance << 40) | count
}

/// Returns the balance in a number.
pub(super) fn balance(number: u64) -> u64 {
    (number >> 40) & 0xff
}

/// Returns a value that starts with its number. Its length depends on the number.
pub(super) fn value(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // Sometimes a value fills a memtable, or a group of values fits in none.
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
            "a value that was never written: {}",
            bytes.escape_ascii()
        )),
    }
}
