//! The report of a repair.

use std::path::PathBuf;
use std::time::Duration;

use crate::canary::failpoint;
use crate::db::inspect::LostKeys;

/// What a repair found, what it used, and what is lost.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// How much of the database was recovered.
    pub outcome: RepairOutcome,
    /// Every part of the database that was found or expected, ordered by kind and number.
    pub parts: Vec<RepairPart>,
    /// The parts that could not be read. Each key that is missing, or that has an older value than
    /// its last one, is in one of these.
    pub losses: Vec<Loss>,
    /// The keyspaces of the new database.
    pub keyspaces: Vec<RepairedKeyspace>,
    /// Entries that were read, including superseded versions and tombstones.
    pub entries: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// How much of the database was recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RepairOutcome {
    /// Nothing readable is left, so no database was made.
    #[default]
    Nothing,
    /// Something is lost, or the manifest is, so that losses cannot be excluded.
    Partly,
    /// Everything that the manifest names was read, and nothing is known to be lost. But it is not
    /// proved that a log had no more records: those of [`RepairReport::losses`], none of them
    /// certain.
    Uncertain,
    /// Everything that the manifest names was whole, and nothing is or may be lost.
    Whole,
}

impl RepairOutcome {
    /// Returns the outcome in one lower-case word.
    pub fn name(self) -> &'static str {
        match self {
            RepairOutcome::Nothing => "nothing",
            RepairOutcome::Partly => "partly",
            RepairOutcome::Uncertain => "uncertain",
            RepairOutcome::Whole => "whole",
        }
    }
}

/// A part of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairPart {
    /// "options", "pool", "manifest", "table", "log", "buffer" or "repository".
    pub kind: &'static str,
    /// The file that contains it.
    pub path: PathBuf,
    /// Its offset in the file, for a part in a pool.
    pub offset: Option<u64>,
    /// Its number among the parts of its kind; 0 if it has no number.
    pub number: u64,
    /// The state of the part.
    pub state: PartState,
    /// Entries that were read from it.
    pub entries: u64,
    /// Why it is in that state, as a sentence without its period; empty if it is simply used.
    pub note: String,
}

/// The state of a part after a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartState {
    /// It is whole and was used.
    Used,
    /// Its sound contents were used.
    Damaged,
    /// The manifest names it, and it does not exist.
    Missing,
    /// It was not needed.
    Ignored,
}

impl PartState {
    /// Returns the state in one lower-case word.
    pub fn name(self) -> &'static str {
        match self {
            PartState::Used => "used",
            PartState::Damaged => "damaged",
            PartState::Missing => "missing",
            PartState::Ignored => "ignored",
        }
    }
}

/// A part that could not be read, and the keys that it may affect: each of them may be missing,
/// have an older value, or exist although it was deleted. A key that was never written is no loss.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The kind of the part, as in [`RepairPart::kind`].
    pub kind: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The offset in it, in bytes.
    pub offset: u64,
    /// What is wrong, as a sentence without its period.
    pub problem: String,
    /// The keys.
    pub keys: LostKeys,
    /// Whether there were certainly entries. Otherwise it cannot be known: a log's end may be where
    /// its writer stopped, or may be damage.
    pub certain: bool,
}

/// A keyspace of the new database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedKeyspace {
    /// Its name.
    pub name: String,
    /// Its number, as used in reports of lost keys.
    pub id: u32,
    /// Pairs in it.
    pub pairs: u64,
    /// Whether its name is lost, and this one was made up.
    pub renamed: bool,
}

/// Collects the parts and losses for the report.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) parts: Vec<RepairPart>,
    pub(super) losses: Vec<Loss>,
}

impl Findings {
    /// Adds a part.
    pub(super) fn part(
        &mut self,
        kind: &'static str,
        (path, offset, number): (PathBuf, Option<u64>, u64),
        state: PartState,
        entries: u64,
        note: impl Into<String>,
    ) {
        self.parts.push(RepairPart {
            kind,
            path,
            offset,
            number,
            state,
            entries,
            note: note.into(),
        });
    }

    /// Adds a loss.
    pub(super) fn lose(
        &mut self,
        (kind, path, offset): (&'static str, PathBuf, u64),
        problem: impl Into<String>,
        keys: LostKeys,
        certain: bool,
    ) {
        failpoint!(LossUnsaid if !certain => return);
        self.losses.push(Loss {
            kind,
            path,
            offset,
            problem: problem.into(),
            keys,
            certain,
        });
    }
}
