//! A digest of every durable operation of fixed scripts, compared with a golden file.
//!
//! A change that only moves code leaves the digest equal: the same fences, syncs and renames in the
//! same order, with the same bytes on the media at each of them. After an intended change run
//! `TERRACE_BLESS=1 cargo test -p terrace --test it digest`, and give the reason in the commit.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use terrace::{Design, Workers};
use terrace_media::{FileSystem, Machine, Medium, OpenMode, PersistPoint};
use terrace_testkit::oracle::Oracle;
use terrace_testkit::place::Place;
use terrace_testkit::script::Profile;
use terrace_testkit::settings;
use terrace_testkit::world::World;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/digest.txt");
const OPERATIONS: usize = 400;
/// The media are read at one point in this many, since that reads all bytes.
const LOOK_EVERY: u64 = 8;

/// Adds to a digest what is about to become durable, and at some points all that the next process
/// would find.
fn add(digest: u32, machine: &Machine, point: PersistPoint) -> u32 {
    let mut digest = crc32c::crc32c_append(digest, point.what.as_bytes());
    if let Some(purpose) = point.purpose {
        digest = crc32c::crc32c_append(digest, purpose.name().as_bytes());
    }
    if !point.index.is_multiple_of(LOOK_EVERY) {
        return digest;
    }
    let image = machine.process_image();
    digest = crc32c::crc32c_append(digest, &image.pool());
    let next = Machine::boot(image, 0);
    let fs = next.fs();
    let mut names = fs.list(Path::new("db")).unwrap_or_default();
    names.sort();
    for name in names {
        let bytes = content(&*fs, &Path::new("db").join(&name));
        digest = crc32c::crc32c_append(digest, name.as_bytes());
        digest = crc32c::crc32c_append(digest, &bytes);
    }
    digest
}

fn content(fs: &dyn FileSystem, path: &Path) -> Vec<u8> {
    let file = fs.open(path, OpenMode::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    let read = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

/// Runs a script without threads on a simulated machine. Returns the number of persist points, and
/// their digest.
fn digest_of(design: Design, medium: Medium, seed: u64) -> (u64, u32) {
    let machine = Machine::new(
        seed,
        match medium {
            Medium::Dram => Medium::Mapped,
            medium => medium,
        },
    );
    let digest = Arc::new(AtomicU32::new(0));
    let shared = Arc::clone(&digest);
    machine.on_persist(Some(Box::new(move |machine, point| {
        let before = shared.load(Ordering::Relaxed);
        shared.store(add(before, machine, point), Ordering::Relaxed);
    })));
    let mut options = settings::small_of(design, medium);
    options.background.workers = Workers::Manual;
    let oracle = Oracle::new(medium).of(design);
    let mut world = World::open(Place::machine(&machine), options, 0, oracle).unwrap();
    for op in Profile::everything(OPERATIONS).generate(seed) {
        world.run(&op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
    }
    drop(world);
    machine.on_persist(None);
    (machine.points(), digest.load(Ordering::Relaxed))
}

#[test]
fn durable_operations_are_as_they_were() {
    let mut found = String::new();
    for design in Design::ALL {
        for medium in [Medium::Dax, Medium::Mapped, Medium::Dram] {
            for seed in 0..3 {
                let (points, digest) = digest_of(design, medium, seed);
                let name = format!("{design} on {medium}, seed {seed}");
                let _ = writeln!(found, "{name:28} {points:6} points {digest:08x}");
            }
        }
    }
    if std::env::var_os("TERRACE_BLESS").is_some() {
        std::fs::write(GOLDEN, &found).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    assert!(
        found == expected,
        "durable operations have changed; now:\n{found}\ninstead of:\n{expected}\nif that is meant, \
         run TERRACE_BLESS=1 cargo test -p terrace --test it digest"
    );
}
