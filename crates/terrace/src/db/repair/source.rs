//! The metadata of a damaged database: OPTIONS and the manifest, if they can be read.
//!
//! The state of the manifest decides which files of the directory are used. If all of it is sound,
//! it names everything there is: a file that it does not name may be one that compaction has
//! replaced, whose deleted keys would come back, or of an ingest that never ended. If a part of it
//! is lost, unnamed files are used too, unless the rest records that they were given up. Without it
//! everything that verifies is used.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrace_media::{File, FileSystem, OpenMode, PoolHeader, Span};

use super::report::{Findings, PartState};
use crate::db::inspect::LostKeys;
use crate::designs::OWNERS;
use crate::error::{Error, ErrorKind, Result};
use crate::options::file::OptionsFile;
use crate::parts::manifest::item::Owner;
use crate::parts::manifest::layout::{
    HEADER_BYTES, Roots, decode_header, other_version, version_text,
};
use crate::parts::manifest::salvage::{Piece, Salvaged, salvage};
use crate::parts::manifest::{Change, FILE_BYTES_MAX, FILE_NAME, LogPlace, State};
use crate::parts::sstable::{FileMeta, TABLE_FILE};
use crate::parts::values::ValueMeta;
use crate::stages::file_names::{log_file_id, table_file_number, value_file_number};
use crate::types::DbId;

/// Manifests in a pool begin at multiples of this, the smallest granule.
const GRANULE_MIN: u64 = 4096;
/// Bytes of a pool scanned at once.
const SCAN_BYTES: usize = 1 << 20;
/// BOUND: the longest manifest in a pool that is accepted without the superblock.
const POOL_MANIFEST_MAX: u64 = 64 << 20;

/// The soundness of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// All of it is sound, and what it names exists.
    Whole,
    /// The same, but there are newer files than those it names. Nearly always, a job was
    /// interrupted, and its files contain nothing that is needed, or pairs that were never
    /// acknowledged. Edits lost without a trace look the same only if they removed no file.
    MaybeCut,
    /// Some edits, or the name of one of its files, may be lost.
    Part,
    Nothing,
}

/// A pool, with its header if that is sound.
pub(super) struct SourcePool {
    pub(super) path: PathBuf,
    pub(super) file: Box<dyn File>,
    pub(super) bytes: u64,
    pub(super) header: Option<PoolHeader>,
}

/// The knowledge of a database before any of its data is read.
pub(super) struct Source {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) dir: PathBuf,
    /// Table files, log files and value files of the directory by number.
    pub(super) tables: BTreeSet<(u64, String)>,
    pub(super) logs: BTreeSet<(u64, String)>,
    pub(super) values: BTreeSet<(u64, String)>,
    pub(super) fixed: Option<OptionsFile>,
    pub(super) pool: Option<SourcePool>,
    pub(super) trust: Trust,
    pub(super) state: State,
    /// What edits that were read have given up, and the number below which everything unnamed was
    /// given up earlier.
    gone_logs: BTreeSet<u64>,
    gone_items: BTreeSet<(u8, u64)>,
    first_id: u64,
}

impl Source {
    /// Reads the metadata of the database in the directory `dir`, whose pool is at `pool` if it is
    /// not where OPTIONS says.
    pub(super) fn look(
        fs: &Arc<dyn FileSystem>,
        dir: &Path,
        pool: Option<&Path>,
        findings: &mut Findings,
    ) -> Result<Source> {
        let names = fs.list(dir).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                Error::invalid(format!(
                    "{} is not a directory: give the directory of the damaged database",
                    dir.display()
                ))
            }
            _ => Error::io("list", dir, e),
        })?;
        let numbered = |number: fn(&str) -> Option<u64>| {
            let numbered = names.iter().filter_map(|name| Some((number(name)?, name)));
            numbered.map(|(n, name)| (n, name.clone())).collect()
        };
        let fixed = read_fixed(fs, dir, findings)?;
        let mut source = Source {
            fs: Arc::clone(fs),
            dir: dir.to_owned(),
            tables: numbered(table_file_number),
            logs: numbered(log_file_id),
            values: numbered(value_file_number),
            pool: None,
            trust: Trust::Nothing,
            state: State::default(),
            gone_logs: BTreeSet::new(),
            gone_items: BTreeSet::new(),
            first_id: 0,
            fixed,
        };
        let in_options = source.fixed.as_ref().map(|fixed| fixed.pool_path.as_ref());
        let at = match (pool, in_options) {
            (Some(given), _) => Some(given.to_owned()),
            (None, Some(named)) => named.map(|named| dir.join(named)),
            // The usual location, unless OPTIONS records that there is no pool.
            (None, None) => names.iter().find(|n| *n == "pool").map(|n| dir.join(n)),
        };
        source.pool = match at {
            Some(at) => source.open_pool(at, findings)?,
            None => None,
        };
        let manifest = source.read_manifest(findings)?;
        source.leave_out_others(manifest, findings);
        source.check_named();
        source.lose_edits(findings);
        if pool.is_none() && !names.iter().any(|name| name == FILE_NAME) {
            source.suspect_pool(findings);
        }
        Ok(source)
    }

    /// Returns whether no part of a database was found.
    pub(super) fn is_empty(&self) -> bool {
        self.fixed.is_none()
            && self.tables.is_empty()
            && self.logs.is_empty()
            && self.pool.is_none()
            && self.trust == Trust::Nothing
    }

    /// Returns why table file `number` is not used; `None` if it is.
    pub(super) fn ignores_table(&self, number: u64) -> Option<&'static str> {
        self.ignores_item(&TABLE_FILE, number)
    }

    /// Returns why log `id` is not used; `None` if it is.
    pub(super) fn ignores_log(&self, id: u64) -> Option<&'static str> {
        let named = self.state.logs.contains_key(&id);
        self.ignores(named, self.gone_logs.contains(&id), id < self.first_id)
    }

    /// Returns where log `id` must end, if the manifest records it.
    pub(super) fn log_end(&self, id: u64) -> Option<u64> {
        self.state.logs.get(&id).and_then(|log| log.end)
    }

    /// Returns whether an unnamed item, found in the pool, is used.
    pub(super) fn wants_unnamed(&self, owner: &Owner, id: u64) -> bool {
        self.ignores_item(owner, id).is_none()
    }

    /// Returns whether an unnamed log, found in the pool, is used.
    pub(super) fn wants_unnamed_log(&self, id: u64) -> bool {
        self.ignores_log(id).is_none()
    }

    fn ignores_item(&self, owner: &Owner, id: u64) -> Option<&'static str> {
        let gone = self.gone_items.contains(&(owner.tag, id));
        let is_old = owner.numbered && id < self.first_id;
        self.ignores(self.state.has_item(owner, id), gone, is_old)
    }

    fn ignores(&self, named: bool, gone: bool, is_old: bool) -> Option<&'static str> {
        match self.trust {
            Trust::Nothing => None,
            _ if named => None,
            Trust::Whole => Some("not needed: the manifest does not name it"),
            Trust::MaybeCut => {
                Some("not needed, unless edits are lost: the manifest does not name it")
            }
            Trust::Part if gone => Some("not needed: the manifest removed it"),
            Trust::Part if is_old => Some("not needed: the manifest is newer and does not name it"),
            Trust::Part => None,
        }
    }

    /// Looks for signs of lost edits: something that is named and missing, or that exists and is
    /// newer than everything named, which a crash leaves too.
    fn check_named(&mut self) {
        let has = |all: &BTreeSet<(u64, String)>, n: u64| {
            let next = all.range((n, String::new())..).next();
            next.is_some_and(|(number, _)| *number == n)
        };
        let state = &self.state;
        let in_file = |id: &u64| state.logs[id].place == LogPlace::File;
        let there = state
            .items()
            .all(|file: &FileMeta| has(&self.tables, file.number))
            && state
                .items()
                .all(|file: &ValueMeta| has(&self.values, file.number))
            && state
                .logs
                .keys()
                .filter(|id| in_file(id))
                .all(|n| has(&self.logs, *n));
        let numbered = |tag: u8| OWNERS.iter().any(|o| o.tag == tag && o.numbered);
        let items = state.all_items().map(|item| (item.owner().tag, item.id()));
        let items = items.chain(self.gone_items.iter().copied());
        let items = items.filter(|(tag, _)| numbered(*tag)).map(|(_, id)| id);
        let logs = state.logs.keys().chain(&self.gone_logs).copied();
        let known = items.chain(logs).map(|id| id + 1).max();
        let next = known.unwrap_or(0).max(state.next_id);
        let last = |all: &BTreeSet<(u64, String)>| all.last().map_or(0, |(n, _)| *n);
        let files = [&self.tables, &self.logs, &self.values];
        let newer = files.into_iter().any(|all| last(all) >= next.max(1));
        if self.trust == Trust::Whole {
            self.trust = match (there, newer) {
                (false, _) => Trust::Part,
                (true, true) => Trust::MaybeCut,
                (true, false) => Trust::Whole,
            };
        }
    }

    /// Reports the consequences if the manifest is not whole.
    fn lose_edits(&self, findings: &mut Findings) {
        let text = match self.trust {
            Trust::Whole => return,
            Trust::MaybeCut => {
                "the manifest does not name the newest files: a job was interrupted, or edits are \
                 lost, and data may be missing"
            }
            Trust::Part => {
                "edits of the manifest may be lost: data may be missing, and deleted data may \
                 reappear"
            }
            Trust::Nothing => {
                "the manifest is lost: data may be missing, and deleted data may reappear"
            }
        };
        let path = match &self.pool {
            Some(pool) => pool.path.clone(),
            None => self.dir.join(FILE_NAME),
        };
        findings.lose(("manifest", path, 0), text, LostKeys::ALL, false);
    }

    /// Reports that there may be a pool: only a database with one has neither MANIFEST nor log
    /// files, unless they are lost like its OPTIONS.
    fn suspect_pool(&self, findings: &mut Findings) {
        let has_files = !self.tables.is_empty() || !self.values.is_empty();
        if self.fixed.is_some() || self.pool.is_some() || !self.logs.is_empty() || !has_files {
            return;
        }
        let text = "OPTIONS, MANIFEST and logs are missing, as in a database with a pool in another \
                    place: if it has one, name it with --pool (RepairSource::pool)";
        findings.lose(("pool", self.dir.clone(), 0), text, LostKeys::ALL, false);
    }

    fn open_pool(&self, path: PathBuf, findings: &mut Findings) -> Result<Option<SourcePool>> {
        let opened = self.fs.open(&path, OpenMode::Read);
        let sized = opened.and_then(|file| Ok((file.len()?, file)));
        let (bytes, file) = match sized {
            Ok(sized) => sized,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let place = (path.clone(), None, 0);
                findings.part(
                    "pool",
                    place,
                    PartState::Missing,
                    0,
                    "the file does not exist",
                );
                let problem = "the pool is missing, and all its data is lost";
                findings.lose(("pool", path, 0), problem, LostKeys::ALL, true);
                return Ok(None);
            }
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let header = match PoolHeader::read(&*file, &path) {
            Ok(header) => {
                if header.committed_bytes > bytes {
                    let text = format!(
                        "the pool file is truncated: it has {bytes} of {} bytes",
                        header.committed_bytes
                    );
                    let place = (path.clone(), None, 0);
                    findings.part("pool", place, PartState::Damaged, 0, text.clone());
                    findings.lose(("pool", path.clone(), bytes), text, LostKeys::ALL, true);
                }
                Some(header)
            }
            Err(e) => {
                let e = Error::from(e);
                if e.kind() == ErrorKind::Unsupported {
                    return Err(e);
                }
                let place = (path.clone(), None, 0);
                findings.part("pool", place, PartState::Damaged, 0, fact_of(&e));
                None
            }
        };
        Ok(Some(SourcePool {
            path,
            file,
            bytes,
            header,
        }))
    }

    /// Reads the manifest. Returns the id of its database, if it can be read.
    fn read_manifest(&mut self, findings: &mut Findings) -> Result<Option<DbId>> {
        let Some(pool) = &self.pool else {
            return self.read_manifest_file(findings);
        };
        let roots = pool.header.as_ref().map(|header| {
            let roots = Roots::read(|i| header.roots[i]);
            (roots.current, roots.generation)
        });
        let (span, generation, trust) = match roots.filter(|(_, generation)| *generation != 0) {
            Some((span, generation)) => (span, Some(generation), Trust::Whole),
            None => match pool.find_manifest()? {
                Some(span) => (span, None, Trust::Part),
                None => {
                    let place = (pool.path.clone(), None, 0);
                    let note = "the pool has no readable manifest";
                    findings.part("manifest", place, PartState::Missing, 0, note);
                    return Ok(None);
                }
            },
        };
        let bytes = match pool.read(span) {
            Ok(bytes) => bytes,
            Err(e) => {
                let place = (pool.path.clone(), Some(span.off), 0);
                findings.part("manifest", place, PartState::Damaged, 0, e.to_string());
                return Ok(None);
            }
        };
        let path = pool.path.clone();
        self.read_edits(&bytes, (path, span.off), generation, trust, findings)
    }

    fn read_manifest_file(&mut self, findings: &mut Findings) -> Result<Option<DbId>> {
        let path = self.dir.join(FILE_NAME);
        let read = self.fs.open(&path, OpenMode::Read).and_then(|file| {
            let len = file.len()?.min(FILE_BYTES_MAX);
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(0, &mut bytes).map(|()| bytes)
        });
        match read {
            Ok(bytes) => {
                let header = decode_header(bytes.get(..HEADER_BYTES).unwrap_or(&bytes), 0);
                // A file is written in whole steps; one that ends early has lost its last edits.
                let trust = match header {
                    Ok(header) if (bytes.len() as u64) < header.file_bytes => Trust::Part,
                    _ => Trust::Whole,
                };
                self.read_edits(&bytes, (path, 0), None, trust, findings)
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                // A database with a pool has none; then the pool is missing.
                if self.fixed.as_ref().is_none_or(|f| f.pool_path.is_none()) {
                    let note = "the file does not exist";
                    findings.part("manifest", (path, None, 0), PartState::Missing, 0, note);
                }
                Ok(None)
            }
            Err(e) => {
                let note = format!("cannot read it: {e}");
                findings.part("manifest", (path, None, 0), PartState::Damaged, 0, note);
                Ok(None)
            }
        }
    }

    fn read_edits(
        &mut self,
        bytes: &[u8],
        (path, offset): (PathBuf, u64),
        generation: Option<u64>,
        trust: Trust,
        findings: &mut Findings,
    ) -> Result<Option<DbId>> {
        if let Some(version) = other_version(bytes) {
            let text = format!("{}: {}", path.display(), version_text(version));
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let mut first = None;
        let mut problem = String::new();
        let Salvaged {
            state,
            records,
            problems,
            torn,
            ..
        } = salvage(bytes, offset, generation, OWNERS, &mut |piece| {
            match piece {
                Piece::Record {
                    number, changes, ..
                } => self.note_edit(number, changes),
                Piece::Problem { text, .. } => {
                    first.get_or_insert(text);
                }
            }
            Ok(())
        })?;
        let part_state = match (records, problems, torn) {
            (0, ..) => {
                self.trust = Trust::Nothing;
                PartState::Damaged
            }
            (_, 0, false) => {
                self.trust = trust;
                PartState::Used
            }
            (_, problems, _) => {
                self.trust = Trust::Part;
                match problems {
                    0 => PartState::Used,
                    _ => PartState::Damaged,
                }
            }
        };
        self.state = state;
        if let Some(text) = first {
            problem = text;
        } else if torn {
            problem = "its last edit is incomplete".into();
        } else if trust == Trust::Part {
            problem = match self.pool {
                Some(_) => "it was found without the superblock".into(),
                None => "the file is truncated".into(),
            };
        }
        let place = (path, Some(offset), 0);
        findings.part("manifest", place, part_state, records, problem);
        let header = decode_header(bytes.get(..HEADER_BYTES).unwrap_or(bytes), offset);
        Ok(header.ok().map(|header| header.db))
    }

    /// Continues as without a manifest, because it belongs to another database.
    pub(super) fn forget_manifest(&mut self) {
        self.trust = Trust::Nothing;
        self.state = State::default();
        self.first_id = 0;
        self.gone_logs.clear();
        self.gone_items.clear();
    }

    fn note_edit(&mut self, number: u64, changes: &[Change]) {
        for change in changes {
            match change {
                Change::LogRetired { id } => {
                    self.gone_logs.insert(*id);
                }
                Change::Removed { owner, id } => {
                    self.gone_items.insert((owner.tag, *id));
                }
                // The first record is the state with which the generation began.
                Change::NextId { id } if number == 0 => self.first_id = *id,
                _ => {}
            }
        }
    }
}

impl SourcePool {
    /// Returns the bytes of a part of the pool, up to the end of the file.
    pub(super) fn read(&self, span: Span) -> Result<Vec<u8>> {
        let len = self.bytes.saturating_sub(span.off).min(span.len);
        let mut bytes = vec![0; len as usize];
        let read = self.file.read_exact_at(span.off, &mut bytes);
        read.map_err(|e| Error::io("read", &self.path, e))?;
        Ok(bytes)
    }

    /// Calls `visit` with the places in the pool at which an extent may begin, and the first 64
    /// bytes there. Unreadable places are skipped.
    pub(super) fn places(&self, visit: &mut dyn FnMut(u64, &[u8; 64])) {
        let mut buffer = vec![0; SCAN_BYTES];
        let mut at = PoolHeader::BYTES;
        while at < self.bytes {
            let len = (self.bytes - at).min(SCAN_BYTES as u64) as usize;
            if self.file.read_exact_at(at, &mut buffer[..len]).is_ok() {
                for step in (0..len).step_by(GRANULE_MIN as usize) {
                    if let Some(head) = buffer[step..len].first_chunk() {
                        visit(at + step as u64, head);
                    }
                }
            }
            at += len as u64;
        }
    }

    /// Returns the newest manifest that is sound from its start, wherever it is.
    fn find_manifest(&self) -> Result<Option<Span>> {
        let mut found = Vec::new();
        self.places(&mut |off, head| {
            if decode_header(head, off).is_ok() {
                found.push(off);
            }
        });
        let mut newest: Option<((u64, u64, u64), Span)> = None;
        for off in found {
            let len = (self.bytes - off).min(POOL_MANIFEST_MAX);
            let span = Span { off, len };
            let bytes = self.read(span)?;
            let Salvaged {
                state,
                records,
                generation,
                ..
            } = salvage(&bytes, off, None, OWNERS, &mut |_| Ok(()))?;
            if records == 0 {
                continue;
            }
            // A generation that was written and never put into use knows less than the one before.
            let age = (state.next_id, state.last_seq, generation);
            if newest.as_ref().is_none_or(|(best, _)| *best < age) {
                newest = Some((age, span));
            }
        }
        Ok(newest.map(|(_, span)| span))
    }
}

/// Returns what is wrong, without the advice, since the repair follows it.
fn fact_of(e: &Error) -> String {
    let text = e.to_string();
    let fact = text.split("; restore").next();
    fact.unwrap_or_default().to_owned()
}

/// Returns the contents of OPTIONS, if it exists and is sound.
fn read_fixed(
    fs: &Arc<dyn FileSystem>,
    dir: &Path,
    findings: &mut Findings,
) -> Result<Option<OptionsFile>> {
    let place = (dir.join("OPTIONS"), None, 0);
    match OptionsFile::read(fs, dir) {
        Ok(Some(fixed)) => {
            findings.part("options", place, PartState::Used, 0, "");
            Ok(Some(fixed))
        }
        Ok(None) => {
            let note = "the file does not exist";
            findings.part("options", place, PartState::Missing, 0, note);
            Ok(None)
        }
        // A later version is detected by what is read next; here damage may look like one.
        Err(e) => {
            findings.part("options", place, PartState::Damaged, 0, fact_of(&e));
            Ok(None)
        }
    }
}
