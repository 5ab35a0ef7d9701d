//! Examines a damaged database: opens it, reads it in every way, verifies it and continues to use
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrace::{Db, Error, ErrorKind, Iter, Options, RepairOutcome, RepairSource};

use super::{Class, failed};
use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::script::Key;
use crate::value::{Value, shown};

/// The subject of one case.
pub(super) struct Examination {
    pub(super) options: Options,
    pub(super) history: BTreeMap<Key, Vec<Option<Value>>>,
    pub(super) settled: BTreeMap<Key, usize>,
    pub(super) place: Place,
    /// Whether a database that seems harmless is used further.
    pub(super) uses: bool,
    /// Whether it is repaired even if it opens.
    pub(super) repairs: bool,
}

/// Findings of reads.
#[derive(Default)]
struct Findings {
    /// The number of failed calls.
    errors: u64,
    /// Keys that do not show their last value, though they must.
    wrong: Vec<String>,
    /// Keys that show an earlier value and may.
    earlier: BTreeSet<Key>,
    /// Keys that show an earlier value and must not.
    stale: BTreeSet<Key>,
}

impl Examination {
    pub(super) fn run(mut self) -> Outcome<Class> {
        if self.repairs {
            self.repair(false)?;
        }
        let db = match self.place.open(&self.options) {
            Ok(db) => db,
            Err(e) => {
                if !self.repairs {
                    self.repair(false)?;
                }
                return refused(&e);
            }
        };
        let mut findings = Findings::default();
        self.read(&db, &mut findings)?;
        let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
        let flagged = findings.errors > 0 || !report.problems.is_empty();
        if flagged {
            return Ok(Class::Found);
        }
        if let Some(wrong) = findings.wrong.first() {
            return Err(format!("{wrong}, but verify finds nothing"));
        }
        let class = match findings.earlier.is_empty() {
            true => Class::Harmless,
            false => Class::Shorter,
        };
        if !self.uses {
            return Ok(class);
        }
        self.use_on(db, class)
    }

    /// Records whether the value of a key is allowed. Fails if it was never written.
    fn judge(&self, key: &Key, found: Option<&[u8]>, findings: &mut Findings) -> Outcome {
        let none = Vec::new();
        let writes = self.history.get(key).unwrap_or(&none);
        let same = |value: Option<Value>| match (value, found) {
            (Some(value), Some(found)) => value.is(found),
            (None, None) => true,
            _ => false,
        };
        let last = writes.last().copied().flatten();
        if same(last) {
            return Ok(());
        }
        let settled = self.settled.get(key).copied().unwrap_or(0);
        let mut allowed = writes[settled.saturating_sub(1)..].to_vec();
        if settled == 0 {
            allowed.push(None);
        }
        if allowed.iter().any(|value| same(*value)) {
            findings.earlier.insert(key.clone());
            return Ok(());
        }
        let known = found.is_none() || writes.iter().any(|value| same(*value));
        let text = format!("{key:?}: expected {last:?}, found {}", shown(found));
        if !known {
            return Err(format!("{text}, which was never written"));
        }
        findings.wrong.push(text);
        findings.stale.insert(key.clone());
        Ok(())
    }

    /// Repairs the database into another directory and examines the result. If it is `sound`,
    /// nothing is reported as certainly lost, but files left by a crash can look as if the end of a
    /// log or an edit were missing.
    pub(super) fn repair(&self, sound: bool) -> Outcome {
        let folder = scratch()?;
        let place = Place {
            folder: folder.path().join("repaired"),
            ..self.place.clone()
        };
        let repaired = Db::builder(&place.folder)
            .options(self.options.clone())
            .clock(Arc::new(place.clock.clone()))
            .repair_of(&RepairSource::new(&self.place.folder));
        let report = match repaired {
            Ok(report) => report,
            Err(e) => return clear(&e),
        };
        if sound && report.losses.iter().any(|loss| loss.certain) {
            return Err(format!("an undamaged database has losses: {report:#?}"));
        }
        if report.outcome == RepairOutcome::Nothing {
            return Ok(());
        }
        let db = place.open(&self.options).map_err(failed("repaired"))?;
        let mut findings = Findings::default();
        self.read(&db, &mut findings)
            .map_err(|e| format!("repaired: {e}"))?;
        let verified = db.verify(&mut |_| {}).map_err(failed("verify"))?;
        if findings.errors > 0 || !verified.problems.is_empty() {
            return Err(format!(
                "repaired: {} errors, and verify finds {:?}",
                findings.errors, verified.problems
            ));
        }
        if report.outcome == RepairOutcome::Whole
            && let Some(wrong) = findings.wrong.first()
        {
            return Err(format!("repaired, whole: {wrong}"));
        }
        if report.outcome == RepairOutcome::Whole && !report.losses.is_empty() {
            return Err(format!("whole, with losses: {report:#?}"));
        }
        let keyspace = report.keyspaces.iter().find(|k| k.name == "default");
        let Some(keyspace) = keyspace else {
            return Ok(());
        };
        let told = |key: &&Key| {
            report
                .losses
                .iter()
                .any(|l| l.keys.has(keyspace.id, &key.0))
        };
        let mut changed = findings.earlier.iter().chain(&findings.stale);
        match changed.find(|key| !told(key)) {
            Some(key) => Err(format!("repaired: {key:?} is in no loss: {report:#?}")),
            None => Ok(()),
        }
    }

    fn read(&self, db: &Db, findings: &mut Findings) -> Outcome {
        for key in self.history.keys() {
            match db.get(key) {
                Ok(found) => self.judge(key, found.as_deref(), findings)?,
                Err(_) => findings.errors += 1,
            }
        }
        for backward in [false, true] {
            match db.iter() {
                Ok(iter) => self.scan(iter, backward, findings)?,
                Err(_) => findings.errors += 1,
            }
        }
        Ok(())
    }

    fn scan(&self, mut iter: Iter, backward: bool, findings: &mut Findings) -> Outcome {
        let mut seen: BTreeSet<Key> = BTreeSet::new();
        // BOUND: each key appears once.
        loop {
            let next = if backward {
                iter.next_back()
            } else {
                iter.next()
            };
            let pair = match next {
                None => break,
                Some(Ok(pair)) => pair,
                Some(Err(_)) => {
                    findings.errors += 1;
                    return Ok(());
                }
            };
            let key = Key(pair.key().to_vec());
            if !self.history.contains_key(&key) {
                return Err(format!("a scan gives {key:?}, which was never written"));
            }
            self.judge(&key, Some(pair.value()), findings)?;
            if !seen.insert(key.clone()) {
                findings.wrong.push(format!("a scan gives {key:?} twice"));
                return Ok(());
            }
        }
        for key in self.history.keys().filter(|key| !seen.contains(*key)) {
            self.judge(key, None, findings)?;
        }
        Ok(())
    }

    /// Writes, drains, closes and reopens: a database that seemed harmless must stay so, or the
    /// damage must be found.
    fn use_on(&mut self, db: Db, class: Class) -> Outcome<Class> {
        let keys: Vec<Key> = self.history.keys().cloned().collect();
        for key in &keys {
            // The values read now must remain.
            let found = db.get(key).map_err(failed("a get"))?;
            let writes = self.history.entry(key.clone()).or_default();
            let same = |value: &Option<Value>| match (value, &found) {
                (Some(value), Some(found)) => value.is(found),
                (None, None) => true,
                _ => false,
            };
            let value = writes.iter().rev().find(|value| same(value)).copied();
            writes.push(value.flatten());
        }
        let mut write = || -> terrace::Result<()> {
            for (tag, key) in (1 << 40..).zip(keys.iter().step_by(3)) {
                let value = Value { tag, len: 300 };
                // The value may show from now on, even if the write fails.
                self.history
                    .entry(key.clone())
                    .or_default()
                    .push(Some(value));
                db.put(key, value.bytes())?;
            }
            db.drain()
        };
        if let Err(e) = write() {
            return later(&e);
        }
        self.settle();
        if let Some(class) = self.look_again(&db)? {
            return Ok(class);
        }
        if let Err(e) = db.close() {
            return later(&e);
        }
        drop(db);
        let db = match self.place.open(&self.options) {
            Ok(db) => db,
            Err(e) => return later(&e),
        };
        if let Some(class) = self.look_again(&db)? {
            return Ok(class);
        }
        Ok(class)
    }

    /// Returns the class of a store that was used further, if damage is found now.
    fn look_again(&self, db: &Db) -> Outcome<Option<Class>> {
        let mut findings = Findings::default();
        self.read(db, &mut findings)?;
        let report = db.verify(&mut |_| {}).map_err(failed("verify"))?;
        if findings.errors > 0 || !report.problems.is_empty() {
            return Ok(Some(Class::FoundLater));
        }
        match findings.wrong.first() {
            Some(wrong) => Err(format!("in later use, {wrong}, but verify finds nothing")),
            None => Ok(None),
        }
    }

    fn settle(&mut self) {
        let each = |(key, writes): (&Key, &Vec<_>)| (key.clone(), writes.len());
        self.settled = self.history.iter().map(each).collect();
    }
}

fn clear(e: &Error) -> Outcome {
    let kinds = [
        ErrorKind::Corruption,
        ErrorKind::Invalid,
        ErrorKind::Unsupported,
        ErrorKind::Io,
        ErrorKind::Full,
        ErrorKind::Stopped,
    ];
    if !kinds.contains(&e.kind()) || e.to_string().len() <= 20 {
        return Err(format!("an error that does not help: {e:?}"));
    }
    Ok(())
}

fn refused(e: &Error) -> Outcome<Class> {
    clear(e).map(|()| Class::Refused)
}

fn later(e: &Error) -> Outcome<Class> {
    clear(e).map(|()| Class::FoundLater)
}
