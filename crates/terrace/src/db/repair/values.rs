//! Values in value files, for the tables that point to them.
//!
//! A value file alone proves nothing: only a pointer in a table tells that a value was not deleted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::report::{Findings, PartState};
use super::source::Source;
use crate::db::inspect::LostKeys;
use crate::error::Result;
use crate::parts::values::{Pointer, ValueFile, ValueMeta};
use crate::stages::file_names::value_file_name;

/// The value files of a damaged database.
pub(super) struct ValueFiles<'a> {
    source: &'a Source,
    files: BTreeMap<u64, Found>,
    /// The losses by table and value file.
    lost: BTreeMap<(u64, u64), Lost>,
}

/// A value file that a table points into.
struct Found {
    open: Result<Arc<ValueFile>, String>,
    values: u64,
    problem: Option<String>,
}

/// The values of a table that cannot be read.
struct Lost {
    count: u64,
    offset: u64,
    text: String,
    first: (u32, Vec<u8>),
    last: (u32, Vec<u8>),
}

impl<'a> ValueFiles<'a> {
    pub(super) fn of(source: &'a Source) -> ValueFiles<'a> {
        ValueFiles {
            source,
            files: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.source.dir.join(value_file_name(number))
    }

    /// Reads the value that an entry of a table points to. Notes the loss if that is impossible.
    pub(super) fn read(
        &mut self,
        table: u64,
        pointer: &[u8],
        (keyspace, key): (u32, &[u8]),
    ) -> Option<Vec<u8>> {
        let (number, offset, read) = match Pointer::decode(pointer, 0) {
            Err(e) => (0, 0, Err(e.to_string())),
            Ok(pointer) => {
                let number = pointer.file;
                let path = self.path(number);
                let fs = &*self.source.fs;
                let db = self.source.fixed.as_ref().map(|fixed| fixed.id);
                let found = self.files.entry(number).or_insert_with(|| {
                    let open = ValueFile::open(fs, &path, number, false);
                    let open = open.map_err(|e| e.to_string()).and_then(|file| {
                        match db.is_some_and(|db| db != file.db()) {
                            true => Err(format!(
                                "{} belongs to database {}",
                                path.display(),
                                file.db()
                            )),
                            false => Ok(Arc::new(file)),
                        }
                    });
                    Found {
                        problem: open.as_ref().err().cloned(),
                        open,
                        values: 0,
                    }
                });
                let read = match &found.open {
                    Ok(file) => file
                        .read(pointer, (keyspace, key))
                        .map_err(|e| e.to_string()),
                    Err(text) => Err(text.clone()),
                };
                match &read {
                    Ok(_) => found.values += 1,
                    Err(text) => {
                        found.problem.get_or_insert_with(|| text.clone());
                    }
                }
                (number, pointer.offset, read)
            }
        };
        read.map_err(|text| {
            let place = (keyspace, key.to_vec());
            let lost = self.lost.entry((table, number)).or_insert_with(|| Lost {
                count: 0,
                offset,
                text,
                first: place.clone(),
                last: place.clone(),
            });
            lost.count += 1;
            lost.first = lost.first.clone().min(place.clone());
            lost.last = lost.last.clone().max(place);
        })
        .ok()
    }

    /// Reports the files, and what is lost.
    pub(super) fn finish(self, findings: &mut Findings) {
        let missing = |number: u64| !self.source.values.iter().any(|(n, _)| *n == number);
        for (number, found) in &self.files {
            let state = match (&found.problem, missing(*number)) {
                (_, true) => PartState::Missing,
                (Some(_), _) => PartState::Damaged,
                (None, _) => PartState::Used,
            };
            let note = found.problem.clone().unwrap_or_default();
            let place = (self.path(*number), None, *number);
            findings.part("value file", place, state, found.values, note);
        }
        let mut named: BTreeMap<u64, ()> = BTreeMap::new();
        let of_manifest = self
            .source
            .state
            .items()
            .map(|meta: &ValueMeta| meta.number);
        let there = self.source.values.iter().map(|(number, _)| *number);
        named.extend(of_manifest.chain(there).map(|number| (number, ())));
        for number in named.into_keys().filter(|n| !self.files.contains_key(n)) {
            let place = (self.path(number), None, number);
            let note = "not needed: no table that was read points into it";
            let state = match missing(number) {
                true => PartState::Missing,
                false => PartState::Ignored,
            };
            findings.part("value file", place, state, 0, note);
        }
        for ((table, number), lost) in self.lost {
            let path = self.source.dir.join(value_file_name(number));
            let text = format!(
                "{} values of table {table} cannot be read: {}",
                lost.count, lost.text
            );
            let keys = LostKeys {
                after: Some(lost.first),
                up_to: Some(lost.last),
            };
            findings.lose(("value file", path, lost.offset), text, keys, true);
        }
    }
}
