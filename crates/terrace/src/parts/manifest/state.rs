//! The state that the manifest's edits result in: the live logs, tables and extents.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_media::Span;

use crate::parts::codec::DecodeError;
use crate::parts::manifest::edit::{Change, FileMeta, LogPlace, TableMeta, Totals};

/// The extents of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepositoryMeta {
    /// The extent of the head node.
    pub(crate) head: Span,
    /// The extents of all other nodes, in the order in which they were added.
    pub(crate) extents: Vec<Span>,
}

/// A log that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogMeta {
    pub(crate) place: LogPlace,
    /// The end of the log, if it takes no more records and all of them are durable.
    pub(crate) end: Option<u64>,
}

/// Everything that is live. Space that it does not name is free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) logs: BTreeMap<u64, LogMeta>,
    pub(crate) tables: BTreeMap<u64, TableMeta>,
    pub(crate) repository: Option<RepositoryMeta>,
    /// Shared, since the keys make them long and every edit copies the state.
    pub(crate) files: BTreeMap<u64, Arc<FileMeta>>,
    pub(crate) last_seq: u64,
    pub(crate) time: u64,
    pub(crate) next_id: u64,
    /// Whether the database was closed cleanly and nothing has happened since.
    pub(crate) closed: bool,
    /// Whether the creation of the database has completed. Used for a database without a pool.
    pub(crate) created: bool,
    pub(crate) totals: Totals,
}

/// Refuses a change that contradicts the state.
fn refuse<T>(expected: &str, found: impl Into<String>) -> Result<T, DecodeError> {
    Err(DecodeError::new("manifest edit", 0, expected, found))
}

impl State {
    /// Returns whether the database existed before this open. With a pool, the database also
    /// contains something.
    pub(crate) fn has_data(&self) -> bool {
        let has_extents = |repository: &RepositoryMeta| !repository.extents.is_empty();
        self.created
            || !self.logs.is_empty()
            || !self.tables.is_empty()
            || !self.files.is_empty()
            || self.repository.as_ref().is_some_and(has_extents)
    }

    /// Applies a change, or refuses one that contradicts the state and leaves the state unchanged.
    ///
    /// The offset of such an error is 0: the caller knows the record.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), DecodeError> {
        let closed = matches!(change, Change::Closed);
        match change {
            Change::LogCreated { id, place } => {
                if self.logs.contains_key(id) {
                    return refuse("a log that is new", format!("log {id}"));
                }
                let place = *place;
                self.logs.insert(*id, LogMeta { place, end: None });
            }
            Change::LogEnded { id, end } => match self.logs.get_mut(id) {
                Some(log) if log.end.is_none_or(|known| known == *end) => log.end = Some(*end),
                Some(_) => return refuse("a log that has not ended", format!("log {id}")),
                None => return refuse("a log that exists", format!("log {id}")),
            },
            Change::LogRetired { id } => {
                if self.logs.remove(id).is_none() {
                    return refuse("a log that exists", format!("log {id}"));
                }
            }
            Change::TableAdded(table) => self.add_table(table)?,
            Change::TableRemoved { id } => {
                self.unmerged(*id)?;
                self.tables.remove(id);
            }
            Change::TableMoved { id, level } => match self.tables.get_mut(id) {
                Some(table) => table.level = *level,
                None => return refuse("a table that exists", format!("table {id}")),
            },
            Change::MergeBegun { newer, older } => {
                self.unmerged(*older)?;
                self.unmerged(*newer)?;
                if newer == older {
                    return refuse("two tables to merge", format!("table {newer} twice"));
                }
                if let Some(table) = self.tables.get_mut(newer) {
                    table.merging_into = Some(*older);
                }
            }
            Change::MergeEnded {
                newer,
                older,
                level,
                filter,
                entries,
                bytes,
            } => {
                let merged = self.end_merge(*newer, *older)?;
                merged.level = *level;
                merged.filter = *filter;
                merged.entries = *entries;
                merged.bytes = *bytes;
            }
            Change::RepositoryCreated { head } => {
                if self.repository.is_some() {
                    return refuse("no repository yet", "a second one");
                }
                self.repository = Some(RepositoryMeta {
                    head: *head,
                    extents: Vec::new(),
                });
            }
            Change::RepositoryExtentAdded { span } => {
                let extents = self.repository_extents()?;
                if extents.iter().any(|e| e.off == span.off) {
                    return refuse("an extent that is new", format!("extent {}", span.off));
                }
                extents.push(*span);
            }
            Change::RepositoryExtentRemoved { off } => {
                let extents = self.repository_extents()?;
                match extents.iter().position(|e| e.off == *off) {
                    Some(i) => extents.remove(i),
                    None => return refuse("an extent that exists", format!("extent {off}")),
                };
            }
            Change::FileAdded(file) => {
                if self.files.contains_key(&file.number) {
                    return refuse("a file that is new", format!("file {}", file.number));
                }
                self.files.insert(file.number, Arc::new(file.clone()));
            }
            Change::FileRemoved { number } => {
                if self.files.remove(number).is_none() {
                    return refuse("a file that exists", format!("file {number}"));
                }
            }
            Change::FileMoved { number, level } => match self.files.get_mut(number) {
                Some(file) => {
                    let file = Arc::make_mut(file);
                    file.level = *level;
                    file.run = 0;
                }
                None => return refuse("a file that exists", format!("file {number}")),
            },
            Change::LastSeq { seq } => self.last_seq = self.last_seq.max(*seq),
            Change::Time { time } => self.time = self.time.max(*time),
            Change::NextId { id } => self.next_id = self.next_id.max(*id),
            Change::Closed => {}
            Change::Created => self.created = true,
            Change::Totals(totals) => self.totals = self.totals.max(*totals),
        }
        if !change.is_of_pool() {
            // A change of the pool may not be written, so it must not affect the flag.
            self.closed = closed;
        }
        Ok(())
    }

    fn add_table(&mut self, table: &TableMeta) -> Result<(), DecodeError> {
        if self.tables.contains_key(&table.id) {
            return refuse("a table that is new", format!("table {}", table.id));
        }
        if let Some(older) = table.merging_into {
            let found = format!("table {} merging into {older}", table.id);
            return refuse("a table outside of merges", found);
        }
        self.tables.insert(table.id, table.clone());
        Ok(())
    }

    /// Fails unless the table exists and is part of no merge.
    fn unmerged(&self, id: u64) -> Result<(), DecodeError> {
        let Some(table) = self.tables.get(&id) else {
            return refuse("a table that exists", format!("table {id}"));
        };
        let into = self.tables.values().any(|t| t.merging_into == Some(id));
        if into || table.merging_into.is_some() {
            return refuse("a table outside of merges", format!("table {id}"));
        }
        Ok(())
    }

    /// Moves the extents and sequence numbers of `newer` into `older` and returns `older`.
    fn end_merge(&mut self, newer: u64, older: u64) -> Result<&mut TableMeta, DecodeError> {
        let found = || format!("tables {newer} and {older}");
        if self.tables.get(&newer).and_then(|t| t.merging_into) != Some(older) {
            return refuse("a merge that has begun", found());
        }
        let taken = match self.tables.contains_key(&older) {
            true => self.tables.remove(&newer),
            false => None,
        };
        let (Some(taken), Some(table)) = (taken, self.tables.get_mut(&older)) else {
            return refuse("a merge of two tables", found());
        };
        table.extents.extend(taken.extents);
        table.seq_first = table.seq_first.min(taken.seq_first);
        table.seq_last = table.seq_last.max(taken.seq_last);
        Ok(table)
    }

    fn repository_extents(&mut self) -> Result<&mut Vec<Span>, DecodeError> {
        match &mut self.repository {
            Some(repository) => Ok(&mut repository.extents),
            None => refuse("a repository", "none"),
        }
    }

    /// Returns the changes that build this state from an empty one.
    pub(crate) fn to_changes(&self) -> Vec<Change> {
        let mut changes = vec![
            Change::LastSeq { seq: self.last_seq },
            Change::NextId { id: self.next_id },
        ];
        if self.totals != Totals::default() {
            changes.push(Change::Totals(self.totals));
        }
        if self.time > 0 {
            changes.push(Change::Time { time: self.time });
        }
        for (&id, log) in &self.logs {
            let place = log.place;
            changes.push(Change::LogCreated { id, place });
            changes.extend(log.end.map(|end| Change::LogEnded { id, end }));
        }
        for table in self.tables.values() {
            let table = TableMeta {
                merging_into: None,
                ..table.clone()
            };
            changes.push(Change::TableAdded(table));
        }
        for table in self.tables.values() {
            if let Some(older) = table.merging_into {
                changes.push(Change::MergeBegun {
                    newer: table.id,
                    older,
                });
            }
        }
        if let Some(repository) = &self.repository {
            changes.push(Change::RepositoryCreated {
                head: repository.head,
            });
            for &span in &repository.extents {
                changes.push(Change::RepositoryExtentAdded { span });
            }
        }
        let files = self.files.values().map(|file| FileMeta::clone(file));
        changes.extend(files.map(Change::FileAdded));
        if self.created {
            changes.push(Change::Created);
        }
        if self.closed {
            changes.push(Change::Closed);
        }
        changes
    }

    /// Returns the state that results from the changes for which `keeps` holds.
    pub(crate) fn restricted(&self, keeps: impl Fn(&Change) -> bool) -> State {
        let mut state = State::default();
        for change in self.to_changes().iter().filter(|change| keeps(change)) {
            // `keeps` selects changes by kind, and no selected kind depends on one left out.
            let applied = state.apply(change);
            debug_assert!(applied.is_ok(), "{applied:?}");
        }
        state
    }

    /// Returns every extent in use, for recovery to adopt.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for log in self.logs.values() {
            if let LogPlace::Pool(span) = log.place {
                spans.push(span);
            }
        }
        for table in self.tables.values() {
            spans.extend(table.extents.iter().map(|e| e.span));
            spans.extend(table.filter);
        }
        if let Some(repository) = &self.repository {
            spans.push(repository.head);
            spans.extend(&repository.extents);
        }
        spans
    }
}
