//! This file is what a repair says of its work.

use std::path::PathBuf;
use std::time::Duration;

use crate::canary::failpoint;
use crate::db::inspect::LostKeys;

/// What a repair found, what it used, and what is lost.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RepairReport {
    /// How much of the database there is again.
    pub outcome: RepairOutcome,
    /// Every part of the database that was looked at, or looked for, in the order of their kinds and
    /// numbers.
    pub parts: Vec<RepairPart>,
    /// What could not be read. Keys that are missing, or that have an older value than the last one, are
    /// in one of these.
    pub losses: Vec<Loss>,
    /// The keyspaces of the new database.
    pub keyspaces: Vec<RepairedKeyspace>,
    /// Entries that were read, superseded versions and tombstones included.
    pub entries: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// How much of the database there is again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum RepairOutcome {
    /// Nothing that could be read is left, so no database was made.
    #[default]
    Nothing,
    /// Something is lost, or the manifest is, so that nobody can know whether something is.
    Partly,
    /// All that the manifest names was read, and nothing is known to be lost. But nothing proves either
    /// that a log had no more records: those of [`RepairReport::losses`], none of them certain.
    Uncertain,
    /// Everything that the manifest names was whole, and nothing is or may be lost.
    Whole,
}

impl RepairOutcome {
    /// The outcome in one lower-case word.
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
    /// The file that it is in.
    pub path: PathBuf,
    /// Where in the file it begins, for what is in a pool.
    pub offset: Option<u64>,
    /// Its number among those of its kind; 0 for one that has none.
    pub number: u64,
    /// What became of it.
    pub state: PartState,
    /// Entries that were read from it.
    pub entries: u64,
    /// Why it is in that state, as a sentence without its end; empty where it is simply used.
    pub note: String,
}

/// What became of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartState {
    /// It is whole and was used.
    Used,
    /// What is sound of it was used.
    Damaged,
    /// The manifest names it, and it is not there.
    Missing,
    /// It was not needed.
    Ignored,
}

impl PartState {
    /// The state in one lower-case word.
    pub fn name(self) -> &'static str {
        match self {
            PartState::Used => "used",
            PartState::Damaged => "damaged",
            PartState::Missing => "missing",
            PartState::Ignored => "ignored",
        }
    }
}

/// Something that could not be read, and which keys that may concern: each of them may be missing,
/// have an older value, or be there although it was deleted. Where nothing was written for a key,
/// nothing is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// What kind of part it was in, as [`RepairPart::kind`] has it.
    pub kind: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Where in it, in bytes.
    pub offset: u64,
    /// What is wrong, as a sentence without its end.
    pub problem: String,
    /// The keys.
    pub keys: LostKeys,
    /// Entries were there. Else nothing tells whether there were: a log's end may be where its writer
    /// stopped, and may be damage.
    pub certain: bool,
}

/// A keyspace of the new database.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairedKeyspace {
    /// Its name.
    pub name: String,
    /// Its number, which is what reports of lost keys name.
    pub id: u32,
    /// Pairs in it.
    pub pairs: u64,
    /// The name it had is lost, and this one was made up.
    pub renamed: bool,
}

/// What is gathered for the report on the way.
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
