//! Golden stores: databases that an earlier version wrote and that every later one must open.
//!
//! `TERRACE_BLESS=1 cargo test -p terrace --test it golden` creates those that are missing.
//! docs/formats.md states when one may be removed.

use std::path::PathBuf;

use terrace_testkit::golden::{self, STORES};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/stores"))
}

/// Stores of earlier versions are read, used and read again.
#[test]
fn golden_stores_open() {
    let blesses = std::env::var_os("TERRACE_BLESS").is_some();
    if blesses {
        std::fs::create_dir_all(folder()).unwrap();
    }
    for (name, design, medium, closed) in STORES {
        let path = golden::path(&folder(), name);
        if blesses && !path.exists() {
            std::fs::write(&path, golden::make(design, medium, closed).unwrap()).unwrap();
        }
        let packed = std::fs::read(&path)
            .unwrap_or_else(|e| panic!("{} cannot be read: {e}", path.display()));
        assert!(
            packed.len() < 200 << 10,
            "{name} has {} bytes",
            packed.len()
        );
        golden::check(&packed, design, medium)
            .unwrap_or_else(|e| panic!("the golden store {name} of an earlier version: {e}"));
    }
}

/// The test knows each store in the source tree, and there is one of each design.
#[test]
fn no_golden_store_is_forgotten() {
    for design in terrace::Design::ALL {
        let is_listed = STORES.iter().any(|(_, of, ..)| *of == design);
        assert!(is_listed, "{design} has no golden store");
    }
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let known = STORES
            .iter()
            .any(|(name, ..)| golden::path(&folder(), name) == path);
        assert!(known, "{} is opened by no test", path.display());
    }
}
