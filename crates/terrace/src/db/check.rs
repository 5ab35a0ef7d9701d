//! Verification: a walk over all data of a database.

use crate::db::bounds::Bounds;
use crate::db::{Db, KeyValue, Keyspace, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::events::{Count, event};
use crate::metrics::FilterLevel;
use crate::parts::codec;
use crate::stages::Census;
use crate::types::DEFAULT_KEYSPACE;

/// The progress of a long operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// The current step, such as "verifying".
    pub what: &'static str,
    /// The amount done.
    pub done: u64,
    /// The approximate total.
    pub total: u64,
    /// The unit: "bytes" or "entries".
    pub unit: &'static str,
}

/// The result of [`Db::verify`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Entries in all sources, including superseded versions and tombstones.
    pub entries: u64,
    /// Pairs that scans of all keyspaces return.
    pub live_entries: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Memtables and tables.
    pub tables: u64,
    /// Bytes of the entries.
    pub bytes: u64,
    /// The filters of each level of the elastic buffer, from level 0 on.
    pub filters: Vec<FilterLevel>,
    /// A sentence for each problem; empty if the database is sound.
    pub problems: Vec<String>,
}

/// Bytes between two reports of progress.
const REPORT_BYTES: u64 = 1 << 20;

impl Db {
    /// Walks every source: order, towers, checksums, hashes, filters; then scans each keyspace both
    /// ways and compares. Reads the whole database once and its pairs twice. Writes may continue.
    ///
    /// # Errors
    /// Damage is listed in the report. `Io` if something else prevents reads, such as too few file
    /// descriptors, and no damage was found before. `Full`: other iterators hold all the memory
    /// that scans may have; drop some, and verify again. `Closed`.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.engine().check_open()?;
        let view = self.engine().views.hold();
        let dropped = self.engine().shared.dropped.all();
        let mut census = Census {
            dropped,
            ..Census::default()
        };
        let total: u64 = view
            .sources
            .iter()
            .map(|source| source.verify_bytes())
            .sum();
        let mut done = 0;
        let mut reported = 0;
        for source in &view.sources {
            source.verify(&mut census, &mut |bytes| {
                done += bytes;
                if done - reported >= REPORT_BYTES {
                    reported = done;
                    progress(Progress {
                        what: "verifying",
                        done,
                        total,
                        unit: "bytes",
                    });
                }
            });
        }
        if let Err(e) = self.engine().shared.manifest.verify() {
            census.failed("manifest: ", e.into());
        }
        let mut report = VerifyReport {
            entries: census.entries,
            live_entries: 0,
            tombstones: census.tombstones,
            tables: census.tables,
            bytes: census.bytes,
            filters: census.filters.into_values().collect(),
            problems: census.problems,
        };
        if let Some(e) = census.failure {
            note(&mut report, e, "cannot check everything")?;
        }
        self.verify_scans(&mut report)?;
        if !report.problems.is_empty() {
            let problems = Count(report.problems.len() as u64, "problem");
            event!(
                warn,
                "terrace::failure",
                self.engine().shared.db,
                "verify found {problems}; see its report"
            );
        }
        progress(Progress {
            what: "verifying",
            done: total,
            total,
            unit: "bytes",
        });
        Ok(report)
    }

    /// Scans each keyspace forward and backward at one moment, and compares the pairs.
    fn verify_scans(&self, report: &mut VerifyReport) -> Result<()> {
        let snapshot = self.snapshot()?;
        let names = match self.list_keyspaces() {
            Ok(names) => names,
            Err(e) => {
                note(report, e, "cannot list the keyspaces")?;
                vec![self.default_keyspace().name().to_owned()]
            }
        };
        for name in names {
            let scanned = match self.keyspace(&name) {
                // It was dropped meanwhile.
                Ok(None) => continue,
                Ok(Some(keyspace)) => scan_both_ways(&snapshot, &keyspace),
                Err(e) => Err(e),
            };
            match scanned {
                Ok((forward, backward)) => {
                    report.live_entries += forward.count;
                    if forward != backward {
                        report.problems.push(format!(
                            "scans of the keyspace {name:?} differ: {} pairs forward, {} backward",
                            forward.count, backward.count
                        ));
                    }
                }
                Err(e)
                    if e.kind() == ErrorKind::Invalid
                        && matches!(self.keyspace(&name), Ok(None)) => {}
                Err(e) => note(report, e, &format!("cannot scan the keyspace {name:?}"))?,
            }
        }
        match self.approximate(DEFAULT_KEYSPACE, &Bounds::all()) {
            Err(e) => note(report, e, "cannot estimate sizes"),
            Ok(_) => Ok(()),
        }
    }
}

/// Adds an error to the problems unless the walk has found its cause, or returns it if it is not
/// about the data. Problems found before take precedence.
fn note(report: &mut VerifyReport, e: Error, what: &str) -> Result<()> {
    if !e.is_of_data() && report.problems.is_empty() {
        return Err(e);
    }
    let text = e.to_string();
    // Advice follows.
    let fact = text.split("; ").next().unwrap_or(&text);
    if !report.problems.iter().any(|problem| problem.contains(fact)) {
        report.problems.push(format!("{what}: {text}"));
    }
    Ok(())
}

/// The result of a scan, independent of its order.
#[derive(Default, PartialEq, Eq)]
struct Scanned {
    count: u64,
    /// The sum of the pairs' checksums.
    sum: u32,
}

impl Scanned {
    fn of(pairs: impl Iterator<Item = Result<KeyValue>>) -> Result<Scanned> {
        let mut scanned = Scanned::default();
        for pair in pairs {
            let pair = pair?;
            let sum = codec::checksum_append(codec::checksum(pair.key()), pair.value());
            scanned.count += 1;
            scanned.sum = scanned.sum.wrapping_add(sum);
        }
        Ok(scanned)
    }
}

fn scan_both_ways(snapshot: &Snapshot, keyspace: &Keyspace) -> Result<(Scanned, Scanned)> {
    let forward = Scanned::of(snapshot.iter_in(keyspace)?)?;
    let backward = Scanned::of(snapshot.iter_in(keyspace)?.rev())?;
    Ok((forward, backward))
}
