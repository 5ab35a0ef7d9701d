//! The state that the manifest's edits result in: the live logs and items.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_media::Span;

use crate::parts::codec::DecodeError;
use crate::parts::manifest::edit::{Change, LogPlace, Totals, refuse};
use crate::parts::manifest::item::{Item, Owner};

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
    /// The items by owner and id. Shared, since every edit copies the state.
    items: BTreeMap<(u8, u64), Arc<dyn Item>>,
    pub(crate) last_seq: u64,
    pub(crate) time: u64,
    pub(crate) next_id: u64,
    /// Whether the database was closed cleanly and nothing has happened since.
    pub(crate) closed: bool,
    /// Whether the creation of the database has completed. Used for a database without a pool.
    pub(crate) created: bool,
    pub(crate) totals: Totals,
}

impl State {
    /// Returns whether the database existed before this open. With a pool, the database also
    /// contains something.
    pub(crate) fn has_data(&self) -> bool {
        self.created || !self.logs.is_empty() || self.all_items().any(|item| item.has_entries())
    }

    /// Returns all items, those of an owner together, by ascending id.
    pub(crate) fn all_items(&self) -> impl Iterator<Item = &dyn Item> {
        self.items.values().map(|item| &**item)
    }

    /// Returns the items of type `T` by ascending id.
    pub(crate) fn items<T: Item>(&self) -> impl Iterator<Item = &T> {
        self.all_items().filter_map(|item| item.downcast())
    }

    /// Returns the item of an owner with the given id.
    pub(crate) fn item<T: Item>(&self, owner: &Owner, id: u64) -> Option<&T> {
        self.items.get(&(owner.tag, id))?.downcast()
    }

    /// Returns whether an owner has an item with the given id.
    pub(crate) fn has_item(&self, owner: &Owner, id: u64) -> bool {
        self.items.contains_key(&(owner.tag, id))
    }

    /// Applies a change, or refuses one that contradicts the state and leaves the state unchanged.
    ///
    /// The offset of such an error is 0: the caller knows the record.
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), DecodeError> {
        let closed = matches!(change, Change::Closed);
        match change {
            Change::LogCreated { id, place } => {
                if self.logs.contains_key(id) {
                    return refuse("a new log", format!("log {id}"));
                }
                let place = *place;
                self.logs.insert(*id, LogMeta { place, end: None });
            }
            Change::LogEnded { id, end } => match self.logs.get_mut(id) {
                Some(log) if log.end.is_none_or(|known| known == *end) => log.end = Some(*end),
                Some(_) => return refuse("a log without a recorded end", format!("log {id}")),
                None => return refuse("an existing log", format!("log {id}")),
            },
            Change::LogRetired { id } => {
                if self.logs.remove(id).is_none() {
                    return refuse("an existing log", format!("log {id}"));
                }
            }
            Change::Added(item) | Change::Changed(item) => {
                let (owner, id) = (item.owner(), item.id());
                let exists = matches!(change, Change::Changed(_));
                if self.has_item(owner, id) != exists {
                    let expected = ["a new item", "an existing item"];
                    let found = format!("{} {id}", owner.name);
                    return refuse(expected[usize::from(exists)], found);
                }
                self.items.insert((owner.tag, id), Arc::clone(item));
            }
            Change::Removed { owner, id } => {
                if self.items.remove(&(owner.tag, *id)).is_none() {
                    return refuse("an existing item", format!("{} {id}", owner.name));
                }
            }
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

    /// Fails if items contradict each other after `changes`.
    pub(super) fn check(&self, changes: &[Change]) -> Result<(), DecodeError> {
        let mut owners: Vec<_> = changes.iter().filter_map(Change::owner).collect();
        owners.sort_by_key(|owner| owner.tag);
        owners.dedup();
        owners.iter().try_for_each(|owner| (owner.check)(self))
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
        changes.extend(self.items.values().cloned().map(Change::Added));
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
        let logs = self.logs.values().filter_map(|log| log.place.span());
        let items = self.all_items().flat_map(|item| item.spans());
        logs.chain(items).collect()
    }
}
