//! Inspection of files: of an open database, and of damaged ones.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use terrace::inspect::{self, Kind, LogPiece, LogPlace, ManifestPiece, TablePiece};
use terrace::{Db, Design, Durability, Error, ErrorKind, Options, Workers, WriteBatch};
use terrace_media::{Clock as _, Medium};
use terrace_testkit::place::{Place, scratch};
use terrace_testkit::settings;

/// Keyspace, key and value by sequence number. No value stands for a delete.
type Seen = BTreeMap<u64, (u32, Vec<u8>, Option<Vec<u8>>)>;

fn options(design: Design) -> Options {
    let mut options = settings::small_of(design, Medium::Dax);
    options.background.workers = Workers::Manual;
    options
}

fn note(seen: &mut Seen, entry: &inspect::Entry<'_>) {
    let value = (entry.kind == Kind::Put).then(|| entry.value.to_vec());
    seen.insert(entry.seq, (entry.keyspace, entry.key.to_vec(), value));
}

fn read_table(path: &Path, seen: &mut Seen) -> inspect::TableSummary {
    let visit = &mut |piece: TablePiece<'_>| {
        if let TablePiece::Entry(entry) = piece {
            note(seen, &entry);
        }
        Ok::<(), Error>(())
    };
    inspect::table(path, visit).unwrap()
}

/// Returns the offsets of the valid records, and the summary.
fn read_log(folder: &Path, id: u64, seen: &mut Seen) -> (Vec<u64>, inspect::LogSummary) {
    let mut offsets = Vec::new();
    let visit = &mut |piece: LogPiece<'_>| {
        if let LogPiece::Record {
            offset, entries, ..
        } = piece
        {
            offsets.push(offset);
            entries.iter().for_each(|entry| note(seen, entry));
        }
        Ok::<(), Error>(())
    };
    let found = inspect::pool_log(folder, id, visit).unwrap();
    (offsets, found)
}

/// Writes keys so that some are in tables and some in the log. Returns the writes by sequence
/// number.
fn filled(folder: &Path, design: Design) -> (Db, Seen) {
    filled_with(folder, options(design))
}

fn filled_with(folder: &Path, options: Options) -> (Db, Seen) {
    let db = Db::open(folder, options).unwrap();
    let mut written = Seen::new();
    let mut seq = 0;
    for n in 0..400u32 {
        let key = n.to_be_bytes().to_vec();
        let mut batch = WriteBatch::new();
        batch.put(&key, vec![n as u8; 60]);
        seq += 1;
        written.insert(seq, (1, key.clone(), Some(vec![n as u8; 60])));
        if n % 5 == 0 {
            batch.delete(&key);
            seq += 1;
            written.insert(seq, (1, key, None));
        }
        db.write(batch, Durability::Buffered).unwrap();
        if n == 300 {
            db.flush().unwrap();
        }
    }
    (db, written)
}

fn a_table(folder: &Path) -> PathBuf {
    inspect::tables(folder).unwrap().remove(0)
}

fn active_log(folder: &Path) -> LogPlace {
    inspect::logs(folder).unwrap().pop().unwrap()
}

/// The files of an open database are shown while it is open, sound, and nothing in them is
/// invented.
#[test]
fn an_open_database_is_shown() {
    let folder = scratch().unwrap();
    let (db, written) = filled(folder.path(), Design::Leveled);
    let mut seen = Seen::new();
    for table in inspect::tables(folder.path()).unwrap() {
        let found = read_table(&table, &mut seen);
        assert_eq!(found.problems, 0);
        assert_eq!(found.properties[0], ("entries", found.entries));
    }
    for place in inspect::logs(folder.path()).unwrap() {
        let (offsets, found) = read_log(folder.path(), place.id(), &mut seen);
        assert_eq!((found.problems, found.torn, found.stranded), (0, false, 0));
        assert_eq!(found.records, offsets.len() as u64);
    }
    // Entries that cannot be read, a deleted value and its tombstone, need not reach a table.
    let live = |seq: &u64| {
        let next = written.get(&(seq + 1));
        written[seq].2.is_some() && next.is_none_or(|next| next.1 != written[seq].1)
    };
    let lost = written
        .keys()
        .find(|seq| live(seq) && !seen.contains_key(seq));
    assert_eq!(lost, None, "something is in no file");
    assert!(
        seen.iter().all(|(seq, entry)| written[seq] == *entry),
        "an entry is shown that nobody wrote"
    );

    let mut edits = 0;
    let found = inspect::manifest::<Error>(folder.path(), &mut |piece| {
        edits += u64::from(matches!(piece, ManifestPiece::Edit { .. }));
        Ok(())
    });
    let found = found.unwrap();
    assert_eq!((found.problems, found.torn, found.edits), (0, false, edits));
    let named = found.state.iter().filter(|c| c.name == "file-added");
    let files = inspect::tables(folder.path()).unwrap();
    assert_eq!(named.count(), files.len());
    // The owner was not disturbed.
    db.put("more", "1").unwrap();
    db.close().unwrap();
}

/// If any byte of a table changes, a scan of it reports that, and still returns only what was
/// written.
#[test]
fn a_changed_byte_of_a_table_is_found_and_the_rest_is_read() {
    let folder = scratch().unwrap();
    let (db, written) = filled(folder.path(), Design::Leveled);
    db.close().unwrap();
    let path = a_table(folder.path());
    let bytes = std::fs::read(&path).unwrap();
    let mut all = Seen::new();
    let whole = read_table(&path, &mut all);
    let mut most = 0;
    for at in (0..bytes.len()).step_by(13) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x20;
        std::fs::write(&path, &changed).unwrap();
        let mut seen = Seen::new();
        let found = read_table(&path, &mut seen);
        assert!(found.problems > 0, "byte {at} of {}", bytes.len());
        assert!(seen.iter().all(|(seq, entry)| written[seq] == *entry));
        most = most.max(whole.entries - found.entries.min(whole.entries - 1));
        // At most one data block is lost, unless the byte locates others.
        if at < 100 {
            assert!(found.entries > 0 && found.entries < whole.entries);
        }
    }
    assert!(most > 1, "no change has cost an entry");
    for len in [0, 1, 127, 128, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        assert!(read_table(&path, &mut Seen::new()).problems > 0, "{len}");
    }
    // Without the name of a table, a file must look like one at its end or at its start.
    let other = folder.path().join("other");
    for (at, is_table) in [(bytes.len() - 128, true), (100, true), (bytes.len(), false)] {
        let mut changed = bytes.clone();
        match changed.get_mut(at) {
            Some(byte) => *byte ^= 0x20,
            None => changed.fill(7),
        }
        std::fs::write(&other, &changed).unwrap();
        let found = inspect::table::<Error>(&other, &mut |_| Ok(()));
        match found {
            Ok(found) => assert!(is_table && found.problems > 0, "{at}"),
            Err(e) => {
                assert!(!is_table && e.kind() == ErrorKind::Invalid, "{at}: {e}");
                assert!(e.to_string().contains("is not a table of Terrace"), "{e}");
            }
        }
    }
}

/// After a byte of a record was changed, the records before and after it are shown, the latter
/// marked as such, and the position of the damage is reported.
#[test]
fn records_behind_damage_are_shown() {
    for medium in [Medium::Dax, Medium::Dram] {
        let folder = scratch().unwrap();
        let options = settings::small_of(Design::MioDb, medium);
        let db = Db::open(folder.path(), options).unwrap();
        for n in 0..20u32 {
            db.put_with(n.to_be_bytes(), vec![7; 50], Durability::Sync)
                .unwrap();
        }
        let place = active_log(folder.path());
        let (path, id) = match &place {
            LogPlace::Pool { path, id, .. } | LogPlace::File { path, id, .. } => {
                (path.clone(), *id)
            }
            _ => unreachable!("there are two places"),
        };
        let mut seen = Seen::new();
        let (offsets, found) = read_log(folder.path(), id, &mut seen);
        assert_eq!((offsets.len(), found.problems, seen.len()), (20, 0, 20));

        let mut open = std::fs::OpenOptions::new();
        let file = open.read(true).write(true).open(&path).unwrap();
        let at = offsets[4] + 40;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let mut left = Seen::new();
        let (kept, found) = read_log(folder.path(), id, &mut left);
        assert_eq!((kept.len(), found.records, found.stranded), (19, 4, 15));
        assert_eq!(found.problems, 1);
        seen.remove(&5);
        assert_eq!(left, seen);
        db.close().unwrap();
    }
}

/// After a byte of an edit was changed, the others are shown, and the position of the damage is
/// reported, for a manifest in the pool and for one in a file.
#[test]
fn a_damaged_manifest_is_shown() {
    for medium in [Medium::Dax, Medium::Dram] {
        for design in settings::designs_with_files() {
            check_damaged_manifest(design, medium);
        }
    }
}

fn check_damaged_manifest(design: Design, medium: Medium) {
    let folder = scratch().unwrap();
    let mut options = settings::small_of(design, medium);
    options.background.workers = Workers::Manual;
    let (db, _) = filled_with(folder.path(), options);
    // Data that stays in the buffer is in no file.
    db.drain().unwrap();
    db.close().unwrap();
    let read = |path: &Path| {
        let (mut offsets, mut problems) = (Vec::new(), Vec::new());
        let found = inspect::manifest::<Error>(path, &mut |piece| {
            match piece {
                ManifestPiece::Edit { offset, .. } => offsets.push(offset),
                ManifestPiece::Problem(finding) => problems.push(finding.offset),
                _ => {}
            }
            Ok(())
        });
        (offsets, problems, found.unwrap())
    };
    let (offsets, problems, sound) = read(folder.path());
    assert!(offsets.len() > 3 && problems.is_empty() && !sound.torn);
    let files = inspect::tables(folder.path()).unwrap().len();
    let named = |found: &inspect::ManifestSummary| {
        let added = found.state.iter().filter(|c| c.name == "file-added");
        added.count()
    };
    assert!(files > 0 && named(&sound) == files, "{design} on {medium}");
    let in_file = sound.path == folder.path().join("MANIFEST");
    assert_eq!(in_file, medium == Medium::Dram);
    // The file alone works as well as the directory, and so does a directory without its OPTIONS
    // file.
    assert_eq!(read(&sound.path).0, offsets);
    std::fs::remove_file(folder.path().join("OPTIONS")).unwrap();
    assert_eq!(read(folder.path()).0, offsets);
    assert!(inspect::logs(folder.path()).is_ok());

    let whole = std::fs::read(&sound.path).unwrap();
    let change = |at: u64| {
        let mut bytes = whole.clone();
        bytes[at as usize] ^= 1;
        std::fs::write(&sound.path, &bytes).unwrap();
    };
    let damaged = offsets[offsets.len() / 2];
    change(damaged + 33);
    let (left, problems, found) = read(folder.path());
    assert_eq!(left.len(), offsets.len() - 1);
    assert!(problems.contains(&damaged) && found.problems as usize == problems.len());
    // The very last record may have been torn by a crash, which is not damage.
    change(offsets[offsets.len() - 1] + 33);
    let (left, problems, found) = read(folder.path());
    assert_eq!((left.len(), problems.len()), (offsets.len() - 1, 0));
    assert!(found.torn);
    // If the header is damaged, all edits are shown as long as it still has their generation.
    if in_file {
        change(sound.offset + 60);
        let (left, problems, _) = read(folder.path());
        assert_eq!(left, offsets);
        assert_eq!(problems.len(), 1);
    }
}

/// Range deletes and expiry are decoded, in logs and in tables.
#[test]
fn range_deletes_and_expiry_are_shown() {
    for medium in [Medium::Dax, Medium::Dram] {
        let folder = scratch().unwrap();
        let place = Place::folder(folder.path());
        let mut options = settings::small_of(Design::Leveled, medium);
        options.background.workers = Workers::Manual;
        let db = place.open(&options).unwrap();
        let now = place.clock.unix_millis();
        // Range deletes over nothing would not reach a table.
        db.put("b", "old").unwrap();
        db.put("y", "old").unwrap();
        db.flush().unwrap();
        let ttl = std::time::Duration::from_secs(9);
        db.put_with_ttl("k", "value", ttl).unwrap();
        db.delete_range("a".."c").unwrap();
        db.delete_range("x"..).unwrap();
        let expected = vec![
            ("a".to_string(), "c".to_string(), None),
            ("k".to_string(), "value".to_string(), Some(now + 9000)),
            ("x".to_string(), String::new(), None),
        ];
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let mut seen = Vec::new();
        let id = active_log(folder.path()).id();
        let found = inspect::pool_log::<Error>(folder.path(), id, &mut |piece| {
            if let LogPiece::Record { entries, .. } = piece {
                for entry in entries {
                    assert_eq!(entry.keyspace, 1);
                    let range = entry.key == b"a" || entry.key == b"x";
                    let kind = if range { Kind::RangeDelete } else { Kind::Put };
                    assert_eq!(entry.kind, kind);
                    seen.push((text(entry.key), text(entry.value), entry.expiry));
                }
            }
            Ok(())
        });
        assert_eq!(found.unwrap().problems, 0);
        seen.sort();
        assert_eq!(seen, expected, "{medium}");

        db.flush().unwrap();
        let mut seen = Vec::new();
        for table in inspect::tables(folder.path()).unwrap() {
            let found = inspect::table::<Error>(&table, &mut |piece| {
                match piece {
                    TablePiece::Entry(entry) if entry.key == b"k" => {
                        assert_eq!(entry.kind, Kind::Put);
                        seen.push((text(entry.key), text(entry.value), entry.expiry));
                    }
                    TablePiece::RangeDelete {
                        keyspace,
                        begin,
                        end,
                        ..
                    } => {
                        assert_eq!(keyspace, 1);
                        seen.push((text(begin), text(end), None));
                    }
                    _ => {}
                }
                Ok(())
            });
            assert_eq!(found.unwrap().problems, 0);
        }
        seen.sort();
        assert_eq!(seen, expected, "{medium}");
    }
}

/// A manifest of another version is refused with its version, not decoded as one of this version.
#[test]
fn manifests_of_other_versions_are_not_decoded() {
    for medium in [Medium::Dram, Medium::Mapped] {
        let folder = scratch().unwrap();
        let db = Db::open(folder.path(), settings::small_of(Design::MioDbSsd, medium)).unwrap();
        db.put("a", "b").unwrap();
        db.close().unwrap();
        drop(db);
        let found = inspect::manifest::<Error>(folder.path(), &mut |_| Ok(())).unwrap();
        let mut bytes = std::fs::read(&found.path).unwrap();
        let header = &mut bytes[found.offset as usize..][..64];
        for version in [header[4] - 1, header[4] + 1] {
            let mut other = bytes.clone();
            let header = &mut other[found.offset as usize..][..64];
            header[4] = version;
            let crc = crc32c::crc32c(&header[..60]);
            header[60..].copy_from_slice(&crc.to_le_bytes());
            std::fs::write(&found.path, &other).unwrap();
            let refused = inspect::manifest::<Error>(folder.path(), &mut |_| Ok(())).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
            let text = refused.to_string();
            assert!(text.contains(&format!("version {version}")), "{text}");
            assert!(text.contains(found.path.to_str().unwrap()), "{text}");
        }
        std::fs::write(&found.path, &bytes).unwrap();
    }
}
