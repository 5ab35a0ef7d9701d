//! Looks, the results of one read for several keys at one instant: checks them and records single
//! registers in histories.

use std::collections::BTreeMap;

use super::roster::{ACCOUNTS, Place, Register, Role, Roster, TOTAL, balance, number};
use super::time::Expiry;
use crate::history::{Event, History};
use crate::oracle::Outcome;

/// The times of a call and of its return.
pub(super) type Span = (u64, u64);

/// The values that a read returned for some keys, at one instant within its span.
pub(super) struct Look {
    pub(super) how: &'static str,
    pub(super) span: Span,
    pub(super) at: BTreeMap<Place, Option<u64>>,
}

impl Look {
    pub(super) fn new(how: &'static str, span: Span) -> Look {
        Look {
            how,
            span,
            at: BTreeMap::new(),
        }
    }

    /// Records the value of a key. A second value within a look must be the same.
    pub(super) fn note(&mut self, place: Place, found: Option<&[u8]>) -> Outcome {
        let found = number(found)?;
        match self.at.get(&place) {
            Some(before) if *before != found => Err(format!(
                "{}: {:?} shows {found:x?} after {before:x?}",
                self.how,
                place.1.escape_ascii().to_string()
            )),
            _ => {
                self.at.insert(place, found);
                Ok(())
            }
        }
    }
}

/// The results of one thread.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) histories: BTreeMap<Register, History>,
    /// Writes that expire.
    pub(super) expiries: BTreeMap<Register, Vec<Expiry>>,
    pub(super) scans: u64,
    /// The number of keyspaces dropped.
    pub(super) drops: u64,
}

impl Seen {
    pub(super) fn wrote(
        &mut self,
        register: Register,
        (called, returned): Span,
        value: Option<u64>,
        how: &'static str,
    ) {
        let history = self.histories.entry(register).or_default();
        history.writes.push(Event {
            called,
            returned,
            value,
            how,
        });
    }

    /// Records that the last recorded write expires at a time.
    pub(super) fn expires(&mut self, register: Register, at: u64) {
        let history = self.histories.entry(register).or_default();
        let write = history.writes.len().saturating_sub(1);
        let expiries = self.expiries.entry(register).or_default();
        expiries.push(Expiry { write, at });
    }

    /// Checks what must hold at any instant, and records each register in its history.
    pub(super) fn judge(&mut self, roster: &Roster, look: &Look) -> Outcome {
        self.judged(roster, look).map_err(|e| {
            let (called, returned) = look.span;
            format!("{} between {called} and {returned}: {e}", look.how)
        })
    }

    fn judged(&mut self, roster: &Roster, look: &Look) -> Outcome {
        let mut shown: BTreeMap<Register, Option<u64>> = BTreeMap::new();
        for (place, found) in &look.at {
            let name = || format!("{} in keyspace {}", place.1.escape_ascii(), place.0);
            let Some(role) = roster.roles.get(place) else {
                return Err(format!("{} exists, but was never written", name()));
            };
            match role {
                Role::Steady(n) if *found == Some(*n) => {}
                Role::Steady(_) => return Err(format!("{} shows {found:x?}", name())),
                Role::Of(register) => {
                    let first = *shown.entry(*register).or_insert(*found);
                    if first != *found {
                        return Err(format!(
                            "a part of a batch: {} shows {found:x?} and another key {first:x?}",
                            name()
                        ));
                    }
                }
            }
        }
        for (register, found) in &shown {
            match register {
                Register::Always(_) if found.is_none() => {
                    return Err(format!("{register:?} is absent"));
                }
                Register::Account(writer, 0) => check_sum(*writer, &shown)?,
                Register::Mark(writer) if found.is_some() => {
                    let fact = shown.get(&Register::Fact(*writer));
                    if fact.is_some_and(|fact| fact < found) {
                        return Err(format!("{register:?} shows {found:x?}, its fact {fact:x?}"));
                    }
                }
                _ => {}
            }
        }
        let (called, returned) = look.span;
        for (register, value) in shown {
            let history = self.histories.entry(register).or_default();
            history.reads.push(Event {
                called,
                returned,
                value,
                how: look.how,
            });
        }
        Ok(())
    }
}

/// Checks that the accounts of a writer have their initial sum, if the look has all of them.
fn check_sum(writer: u64, shown: &BTreeMap<Register, Option<u64>>) -> Outcome {
    let numbers: Vec<Option<u64>> = (0..ACCOUNTS)
        .filter_map(|n| shown.get(&Register::Account(writer, n)).copied())
        .collect();
    let sum: u64 = numbers.iter().flatten().copied().map(balance).sum();
    match numbers.len() as u64 == ACCOUNTS && sum != TOTAL {
        true => Err(format!(
            "the accounts of writer {writer} have {sum} of {TOTAL}: {numbers:x?}"
        )),
        false => Ok(()),
    }
}
