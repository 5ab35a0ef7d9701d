//! Faults: which call fails, during which activity, and how.

use std::io::ErrorKind as Io;
use std::str::FromStr;

use terrace_media::Effect;

use crate::oracle::Outcome;

/// The activity during which a call fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Act {
    /// A database is created, and a script runs on it.
    Life,
    /// The store is opened after a crash, and a script runs.
    Recovery,
    /// The store is opened read-only after a crash.
    ReadOnly,
}

/// The calls that are counted; one of them fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    /// All calls on files other than the pool.
    Files,
    /// Growing the pool.
    Growth,
    /// Syncing the pool.
    Syncs,
    /// All other calls on the file of the pool.
    PoolFile,
}

impl Act {
    pub(super) const ALL: [Act; 3] = [Act::Life, Act::Recovery, Act::ReadOnly];
}

impl Target {
    pub(super) const ALL: [Target; 4] = [
        Target::Files,
        Target::Growth,
        Target::Syncs,
        Target::PoolFile,
    ];
}

/// The ways a call fails: the error, whether all later calls fail too, and the part of its effect
/// that is done.
pub(super) const WAYS: [(Io, bool, Effect); 6] = [
    (Io::Other, false, Effect::Half),
    (Io::StorageFull, true, Effect::Half),
    (Io::Other, true, Effect::Half),
    (Io::Interrupted, false, Effect::Half),
    (Io::Other, false, Effect::All),
    (Io::StorageFull, false, Effect::Half),
];

/// The part of a case that `--only` names: act, target, call, way. The seed chooses who runs
/// background jobs, unless `,manual` follows, which uses no threads.
#[derive(Clone, Copy, Debug)]
pub struct Only {
    /// The activity.
    pub act: Act,
    /// The calls that are counted.
    pub target: Target,
    /// The number of the call that fails.
    pub call: u64,
    /// The index of the way it fails.
    pub way: usize,
    /// Whether background jobs run in the calls only, regardless of the seed.
    pub manual: bool,
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Outcome<Only> {
        let manual = text.strip_suffix(",manual");
        let parts: Vec<&str> = manual.unwrap_or(text).split(',').collect();
        let parsed = || {
            let [act, target, call, way] = parts.as_slice() else {
                return None;
            };
            let act = Act::ALL.into_iter().find(|a| format!("{a:?}") == *act)?;
            let target = Target::ALL
                .into_iter()
                .find(|t| format!("{t:?}") == *target)?;
            let way = way.parse().ok().filter(|way| *way < WAYS.len())?;
            Some(Only {
                act,
                target,
                call: call.parse().ok()?,
                way,
                manual: manual.is_some(),
            })
        };
        parsed().ok_or_else(|| format!("{text} is not a fault: write it like Life,Files,17,0"))
    }
}
