//! Golden stores: small databases kept as files, which every later version must open and read.
//!
//! A store is packed into one file: the files of its directory, without the long zero ranges of the
//! pool, and its expected content. Integers are little-endian.
//!
//! ```text
//! "terrace golden store 1\n", then for each file:
//!   u32 bytes of its name, name, u64 its length, u32 count of pieces, and for each piece
//!     u64 offset, u32 length, bytes
//! ```
//!
//! The file `CONTENT` is not part of the store. It has a line for each pair: keyspace, key and
//! value in hex.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use terrace::{Db, Design, Durability, Options};
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::settings;
use crate::watchdog;
use crate::world::verify;

const MAGIC: &[u8] = b"terrace golden store 1\n";
/// The name of the expected content.
const CONTENT: &str = "CONTENT";
/// The keyspaces of a store.
const SPACES: [&str; 2] = ["default", "other"];
/// Pieces consist of whole lines.
const LINE: usize = 64;

/// The golden stores: name, design, medium, and whether the store was closed.
pub const STORES: [(&str, Design, Medium, bool); 17] = [
    ("miodb", Design::MioDb, Medium::Dax, true),
    ("miodb-crashed", Design::MioDb, Medium::Dax, false),
    ("miodb-dram", Design::MioDb, Medium::Dram, true),
    ("miodb-ssd", Design::MioDbSsd, Medium::Dax, true),
    ("miodb-ssd-crashed", Design::MioDbSsd, Medium::Dax, false),
    ("matrixkv", Design::MatrixKv, Medium::Dax, true),
    ("matrixkv-crashed", Design::MatrixKv, Medium::Dax, false),
    ("flatlsm", Design::FlatLsm, Medium::Dax, true),
    ("flatlsm-crashed", Design::FlatLsm, Medium::Dax, false),
    ("novelsm", Design::NoveLsm, Medium::Dax, true),
    ("novelsm-crashed", Design::NoveLsm, Medium::Dax, false),
    ("novelsm-nosst", Design::NoveLsmNoSst, Medium::Dax, true),
    (
        "novelsm-nosst-crashed",
        Design::NoveLsmNoSst,
        Medium::Dax,
        false,
    ),
    ("novelsm-hier", Design::NoveLsmHier, Medium::Dax, true),
    (
        "novelsm-hier-crashed",
        Design::NoveLsmHier,
        Medium::Dax,
        false,
    ),
    ("leveled", Design::Leveled, Medium::Dax, true),
    ("leveled-crashed", Design::Leveled, Medium::Dax, false),
];

type Files = BTreeMap<String, Vec<u8>>;

fn failed<E: std::fmt::Debug>(what: &str) -> impl Fn(E) -> String {
    move |e| format!("{what}: {e:?}")
}

fn options(design: Design, medium: Medium) -> Options {
    let mut options = settings::small_of(design, medium);
    options.front.memtable_bytes = 4 << 10;
    options.pool.size_bytes = 2 << 20;
    options
}

fn pack(files: &Files) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for (name, bytes) in files {
        out.extend((name.len() as u32).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend((bytes.len() as u64).to_le_bytes());
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        for at in (0..bytes.len()).step_by(LINE) {
            let end = (at + LINE).min(bytes.len());
            if bytes[at..end].iter().all(|&byte| byte == 0) {
                continue;
            }
            match pieces.last_mut() {
                Some(last) if last.1 == at => last.1 = end,
                _ => pieces.push((at, end)),
            }
        }
        out.extend((pieces.len() as u32).to_le_bytes());
        for (at, end) in pieces {
            out.extend((at as u64).to_le_bytes());
            out.extend(((end - at) as u32).to_le_bytes());
            out.extend(&bytes[at..end]);
        }
    }
    out
}

fn unpack(packed: &[u8]) -> Outcome<Files> {
    let mut rest = packed.strip_prefix(MAGIC).ok_or("no golden store")?;
    let mut files = Files::new();
    // BOUND: each iteration takes bytes.
    while !rest.is_empty() {
        let name_bytes = number(take(&mut rest, 4)?);
        let name = take(&mut rest, name_bytes)?.to_vec();
        let name = String::from_utf8(name).map_err(failed("a name"))?;
        let mut bytes = vec![0; number(take(&mut rest, 8)?)];
        for _ in 0..number(take(&mut rest, 4)?) {
            let at = number(take(&mut rest, 8)?);
            let len = number(take(&mut rest, 4)?);
            let place = bytes.get_mut(at..at + len);
            let place = place.ok_or("a piece outside of its file")?;
            place.copy_from_slice(take(&mut rest, len)?);
        }
        files.insert(name, bytes);
    }
    Ok(files)
}

/// Takes the next bytes of a packed store.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> Outcome<&'a [u8]> {
    let (head, tail) = rest
        .split_at_checked(count)
        .ok_or("a golden store ends early")?;
    *rest = tail;
    Ok(head)
}

fn number(bytes: &[u8]) -> usize {
    let digits = bytes.iter().rev();
    digits.fold(0, |number, &byte| number << 8 | usize::from(byte))
}

/// Returns the content of a store.
fn content(db: &Db) -> Outcome<String> {
    let mut text = String::new();
    for name in SPACES {
        let space = db.keyspace(name).map_err(failed("a keyspace"))?;
        let space = space.ok_or_else(|| format!("keyspace {name} is gone"))?;
        for pair in space.iter().map_err(failed("a scan"))? {
            let pair = pair.map_err(failed("a scan"))?;
            let read = space.get(pair.key()).map_err(failed("a get"))?;
            if read.as_deref() != Some(pair.value()) {
                return Err(format!("{:?} is read and scanned differently", pair.key()));
            }
            let hex = |bytes: &[u8]| {
                bytes.iter().fold(String::new(), |mut text, byte| {
                    let _ = write!(text, "{byte:02x}");
                    text
                })
            };
            let _ = writeln!(text, "{name} {} {}", hex(pair.key()), hex(pair.value()));
        }
    }
    Ok(text)
}

/// Puts data into every component: the bottom, the buffer, the log; old versions, tombstones.
fn fill(db: &Db) -> terrace::Result<()> {
    let other = db.create_keyspace("other")?;
    let gone = db.create_keyspace("dropped")?;
    for round in 0..2u8 {
        for n in 0..40u8 {
            let value = vec![round * 40 + n; usize::from(n) * 3];
            match (n + round) % 5 {
                0 => db.delete([b'k', n])?,
                1 => other.put([n, 0, 255], &value)?,
                2 => gone.put([n], &value)?,
                _ => db.put_with([b'k', n], &value, Durability::Sync)?,
            }
        }
        match round {
            0 => db.drain()?,
            _ => db.flush()?,
        }
    }
    db.drop_keyspace("dropped")?;
    db.put("", "the empty key")?;
    db.put([0xff; 300], vec![7; 2000])?;
    db.flush()?;
    // One more memtable, so that the last one of NoveLsm is a list in the pool.
    db.put("one more", "memtable")?;
    db.flush()?;
    // These entries are in the log only.
    for n in 0..12u8 {
        db.put([b'l', n], [n; 30])?;
    }
    db.delete([b'k', 3])
}

/// Creates a store and packs it.
pub fn make(design: Design, medium: Medium, closed: bool) -> Outcome<Vec<u8>> {
    let folder = scratch()?;
    let db = Db::open(folder.path(), options(design, medium)).map_err(failed("creating"))?;
    fill(&db).map_err(failed("filling"))?;
    let text = content(&db)?;
    if closed {
        db.close().map_err(failed("closing"))?;
    }
    let mut files = Files::new();
    for entry in std::fs::read_dir(folder.path()).map_err(failed("listing"))? {
        let entry = entry.map_err(failed("listing"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != "LOCK" {
            let bytes = std::fs::read(entry.path()).map_err(failed("reading"))?;
            files.insert(name, bytes);
        }
    }
    files.insert(CONTENT.into(), text.into_bytes());
    Ok(pack(&files))
}

/// Opens a packed store, verifies and reads all of it, writes, drains, and reopens it.
pub fn check(packed: &[u8], design: Design, medium: Medium) -> Outcome {
    let mut files = unpack(packed)?;
    let expected = files.remove(CONTENT).ok_or("a store without its content")?;
    let expected = String::from_utf8(expected).map_err(failed("the content"))?;
    let _operation = watchdog::operation("a golden store");
    let folder = scratch()?;
    for (name, bytes) in &files {
        std::fs::write(folder.path().join(name), bytes).map_err(failed("writing"))?;
    }
    let mut options = options(design, medium);
    options.error_if_missing = true;
    let open = || Db::open(folder.path(), options.clone()).map_err(failed("opening"));
    let compare = |db: &Db, expected: &str| -> Outcome {
        verify(db, None)?;
        let found = content(db)?;
        match found == expected {
            true => Ok(()),
            false => Err(format!("it shows\n{found}instead of\n{expected}")),
        }
    };
    let db = open()?;
    compare(&db, &expected)?;
    let write = || -> terrace::Result<()> {
        for n in 0..60u8 {
            db.put([b'z', n], [n; 50])?;
        }
        db.delete([b'l', 1])?;
        db.drain()
    };
    write().map_err(failed("writing on"))?;
    let now = content(&db)?;
    compare(&db, &now)?;
    db.close().map_err(failed("closing"))?;
    drop(db);
    compare(&open()?, &now)
}

/// Returns the path of a golden store.
pub fn path(folder: &Path, name: &str) -> std::path::PathBuf {
    folder.join(format!("{name}.store"))
}
