//! Databases with data in every component, and the history of their writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, Design, Keyspace, Options, RepairReport, RepairSource};
use terrace_media::{ManualClock, Medium};
use terrace_testkit::place::scratch;
use terrace_testkit::settings;

pub(super) const MEDIA: [Medium; 3] = [Medium::Dax, Medium::Mapped, Medium::Dram];
/// The default keyspace, one with a name, and a dropped one.
const DEFAULT: u32 = 1;
const NAMED: u32 = 2;
const DROPPED: u32 = 3;

pub(super) type Place = (u32, Vec<u8>);
pub(super) type Pairs = BTreeMap<Place, Vec<u8>>;

/// The writes of each key, the last one at the end. `None` stands for absent.
#[derive(Default)]
pub(super) struct Written {
    pub(super) history: BTreeMap<Place, Vec<Option<Vec<u8>>>>,
    /// Keys written since the last flush, which are therefore in a log.
    pub(super) in_log: BTreeSet<Place>,
}

impl Written {
    pub(super) fn add(&mut self, place: Place, value: Option<Vec<u8>>) {
        self.in_log.insert(place.clone());
        self.history.entry(place).or_default().push(value);
    }

    pub(super) fn last(&self, place: &Place) -> Option<&Vec<u8>> {
        self.history[place].last()?.as_ref()
    }

    pub(super) fn pairs(&self) -> Pairs {
        let live = self.history.keys();
        live.filter_map(|place| Some((place.clone(), self.last(place)?.clone())))
            .collect()
    }
}

/// A database on files, and the history of its writes.
pub(super) struct Specimen {
    pub(super) folder: tempfile::TempDir,
    pub(super) options: Options,
    pub(super) clock: ManualClock,
    pub(super) written: Written,
}

impl Specimen {
    pub(super) fn source(&self) -> PathBuf {
        self.folder.path().join("db")
    }

    pub(super) fn target(&self) -> PathBuf {
        self.folder.path().join("repaired")
    }

    pub(super) fn repair(&self) -> terrace::Result<RepairReport> {
        let _ = std::fs::remove_dir_all(self.target());
        Db::builder(self.target())
            .options(self.options.clone())
            .clock(Arc::new(self.clock.clone()))
            .repair_of(&RepairSource::new(self.source()))
    }

    /// Copies the files, to be damaged.
    pub(super) fn copy(&self) -> Specimen {
        let folder = scratch().unwrap();
        std::fs::create_dir(folder.path().join("db")).unwrap();
        for name in names(&self.source()) {
            let to = folder.path().join("db").join(&name);
            std::fs::copy(self.source().join(&name), to).unwrap();
        }
        Specimen {
            folder,
            options: self.options.clone(),
            clock: self.clock.clone(),
            written: Written {
                history: self.written.history.clone(),
                in_log: self.written.in_log.clone(),
            },
        }
    }

    /// Returns the content of the repaired database, by the keyspace numbers of the report.
    pub(super) fn shown(&self, report: &RepairReport) -> Pairs {
        let db = Db::builder(self.target())
            .options(self.options.clone())
            .clock(Arc::new(self.clock.clone()))
            .open()
            .unwrap();
        let problems = db.verify(&mut |_| {}).unwrap().problems;
        assert!(problems.is_empty(), "{problems:?}");
        let names: Vec<_> = report.keyspaces.iter().map(|k| k.name.clone()).collect();
        assert_eq!(db.list_keyspaces().unwrap().len(), names.len());
        let mut pairs = Pairs::new();
        for found in &report.keyspaces {
            let keyspace = db.keyspace(&found.name).unwrap().unwrap();
            let before = pairs.len();
            for pair in keyspace.iter().unwrap() {
                let (key, value) = pair.unwrap().into_pair();
                pairs.insert((found.id, key), value);
            }
            assert_eq!((pairs.len() - before) as u64, found.pairs, "{report:#?}");
        }
        db.close().unwrap();
        pairs
    }
}

pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Writes all kinds of entries, in rounds with flushes in between. `closed` closes the database;
/// otherwise its files are taken as a process that exits leaves them.
pub(super) fn specimen(design: Design, medium: Medium, closed: bool, seed: u64) -> Specimen {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(design, medium);
    options.pool.size_bytes = 8 << 20;
    let clock = ManualClock::new();
    let path = folder.path().join(if closed { "db" } else { "live" });
    let db = Db::builder(&path)
        .options(options.clone())
        .clock(Arc::new(clock.clone()))
        .open()
        .unwrap();
    let spaces = ["named", "gone"].map(|name| db.create_keyspace(name).unwrap());
    let spaces = [db.default_keyspace(), spaces[0].clone(), spaces[1].clone()];
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut written = Written::default();
    for round in 0..5 {
        for _ in 0..120 {
            write_one(&spaces, &mut rng, &mut written);
        }
        if round == 1 {
            db.drop_keyspace("gone").unwrap();
            let of_gone = |place: &&Place| place.0 == DROPPED;
            let gone: Vec<_> = written.history.keys().filter(of_gone).cloned().collect();
            for place in gone {
                written.add(place, None);
            }
        }
        match round {
            2 => db.drain().unwrap(),
            0 | 1 | 3 => db.flush().unwrap(),
            _ => continue,
        }
        // Without a pool logs are kept until their content is in a table file, or permanently.
        let left_the_log = match (design, medium) {
            (_, Medium::Dax | Medium::Mapped) => true,
            (design, _) if !design.keeps_data_in_pool() => true,
            (design, _) => design.keeps_table_files() && round == 2,
        };
        if left_the_log {
            written.in_log.clear();
        }
    }
    // Expiring entries have expired by the time of the repair.
    clock.advance(Duration::from_secs(1000));
    for place in written.history.keys().cloned().collect::<Vec<_>>() {
        if written
            .last(&place)
            .is_some_and(|value| value.starts_with(b"expires"))
        {
            let in_log = written.in_log.contains(&place);
            written.add(place.clone(), None);
            if !in_log {
                written.in_log.remove(&place);
            }
        }
    }
    if closed {
        db.close().unwrap();
    } else {
        std::fs::create_dir(folder.path().join("db")).unwrap();
        for name in names(&path) {
            std::fs::copy(path.join(&name), folder.path().join("db").join(&name)).unwrap();
        }
        drop(db);
        std::fs::remove_dir_all(path).unwrap();
    }
    Specimen {
        folder,
        options,
        clock,
        written,
    }
}

fn write_one(spaces: &[Keyspace; 3], rng: &mut fastrand::Rng, written: &mut Written) {
    let id = [DEFAULT, DEFAULT, NAMED, DROPPED][rng.usize(..4)];
    let dropped = written
        .history
        .iter()
        .any(|(p, h)| p.0 == DROPPED && h.last() == Some(&None) && h.len() > 1);
    let id = if id == DROPPED && dropped {
        DEFAULT
    } else {
        id
    };
    let space = &spaces[id as usize - 1];
    let key = rng.u16(0..150).to_be_bytes().to_vec();
    let mut value = vec![rng.u8(..); rng.usize(1..120)];
    value.extend_from_slice(&rng.u64(..).to_be_bytes());
    match rng.u8(..16) {
        0..=1 => {
            space.delete(&key).unwrap();
            written.add((id, key), None);
        }
        2 if id != DROPPED => {
            let end = (u16::from_be_bytes([key[0], key[1]]) + 6)
                .to_be_bytes()
                .to_vec();
            space.delete_range(key.as_slice()..end.as_slice()).unwrap();
            let covered: Vec<_> = written
                .history
                .range((id, key)..(id, end))
                .map(|(p, _)| p.clone())
                .collect();
            covered
                .into_iter()
                .for_each(|place| written.add(place, None));
        }
        3 => {
            value.splice(0..0, *b"expires");
            space
                .put_with_ttl(&key, &value, Duration::from_secs(900))
                .unwrap();
            written.add((id, key), Some(value));
        }
        4 => {
            space
                .put_with_ttl(&key, &value, Duration::from_secs(90_000))
                .unwrap();
            written.add((id, key), Some(value));
        }
        _ => {
            space.put(&key, &value).unwrap();
            written.add((id, key), Some(value));
        }
    }
}
