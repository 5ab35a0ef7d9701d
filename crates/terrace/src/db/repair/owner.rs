//! Keeping the files of other databases out of a repair.
//!
//! A log or a table carries the id of its database under a checksum. One without a sound id may be
//! the rest of a file of the damaged database, and is judged by its other contents.

use std::collections::BTreeMap;
use std::path::Path;

use terrace_media::{FileSystem, OpenMode};

use super::report::{Findings, PartState};
use super::source::Source;
use crate::parts::log::layout::{LOG_HEADER_BYTES, check_log_header, log_database, log_id};
use crate::parts::sstable::layout::{FOOTER_BYTES, Footer, table_owner};
use crate::types::DbId;

/// Returns the database of the log at `path`, if its header is sound.
fn log_owner(fs: &dyn FileSystem, path: &Path) -> Option<DbId> {
    let file = fs.open(path, OpenMode::Read).ok()?;
    let mut head = [0; LOG_HEADER_BYTES];
    file.read_exact_at(0, &mut head).ok()?;
    check_log_header(&head, None, log_id(&head)?, 0).ok()?;
    log_database(&head)
}

/// Returns the database of the table at `path`, if its footer is sound.
fn sound_table_owner(fs: &dyn FileSystem, path: &Path) -> Option<DbId> {
    let file = fs.open(path, OpenMode::Read).ok()?;
    let len = file.len().ok()?;
    let mut footer = [0; FOOTER_BYTES];
    let at = len.checked_sub(FOOTER_BYTES as u64)?;
    file.read_exact_at(at, &mut footer).ok()?;
    let (_, number) = table_owner(&footer)?;
    Footer::decode(&footer, number, len).ok().map(|f| f.db)
}

impl Source {
    /// Decides which database is to be repaired, and leaves out the files of others.
    ///
    /// The manifest and OPTIONS name it. If they differ, one of them came from elsewhere, and the
    /// id that more files carry is right; without both, the id that most files carry.
    pub(super) fn leave_out_others(&mut self, manifest: Option<DbId>, findings: &mut Findings) {
        let fs = &*self.fs;
        let (mut tables, mut logs) = (BTreeMap::new(), BTreeMap::new());
        for (number, name) in &self.tables {
            if let Some(owner) = sound_table_owner(fs, &self.dir.join(name)) {
                tables.insert((*number, name.clone()), owner);
            }
        }
        for (id, name) in &self.logs {
            if let Some(owner) = log_owner(fs, &self.dir.join(name)) {
                logs.insert((*id, name.clone()), owner);
            }
        }
        let mut counts = BTreeMap::<DbId, usize>::new();
        for owner in tables.values().chain(logs.values()) {
            *counts.entry(*owner).or_default() += 1;
        }
        let count = |id: DbId| counts.get(&id).copied().unwrap_or(0);
        let options = self.fixed.as_ref().map(|fixed| fixed.id);
        let (db, by) = match (manifest, options) {
            (Some(manifest), Some(options)) if count(options) > count(manifest) => {
                (options, "by OPTIONS and most files")
            }
            (Some(manifest), _) => (manifest, "by the manifest"),
            (None, Some(options)) => (options, "by OPTIONS"),
            (None, None) => match counts.iter().max_by_key(|(_, count)| **count) {
                Some((id, _)) => (*id, "by most files, without OPTIONS and manifest"),
                None => return,
            },
        };
        let note = |owner: DbId| {
            format!("not used: it belongs to database {owner}, but this is database {db}, {by}")
        };
        if let Some(other) = options.filter(|id| *id != db) {
            self.fixed = None;
            for part in findings.parts.iter_mut().filter(|p| p.kind == "options") {
                (part.state, part.note) = (PartState::Ignored, note(other));
            }
        }
        if let Some(other) = manifest.filter(|id| *id != db) {
            self.forget_manifest();
            for part in findings.parts.iter_mut().filter(|p| p.kind == "manifest") {
                (part.state, part.note) = (PartState::Ignored, note(other));
            }
        }
        for (kind, owners, all) in [
            ("table", tables, &mut self.tables),
            ("log", logs, &mut self.logs),
        ] {
            for (file, owner) in owners.into_iter().filter(|(_, owner)| *owner != db) {
                let place = (self.dir.join(&file.1), None, file.0);
                findings.part(kind, place, PartState::Ignored, 0, note(owner));
                all.remove(&file);
            }
        }
    }
}
