//! This file is an example: a program that shows the events of its database on the standard error.
//!
//! It makes a database in a temporary folder, writes, and closes it.

use log::{LevelFilter, Log, Metadata, Record};
use terrace::{Db, Options};

struct ToStderr;

impl Log for ToStderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("terrace::")
    }

    fn log(&self, event: &Record<'_>) {
        if self.enabled(event.metadata()) {
            eprintln!("{} {} {}", event.level(), event.target(), event.args());
        }
    }

    fn flush(&self) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    log::set_logger(&ToStderr).map_err(|e| e.to_string())?;
    log::set_max_level(LevelFilter::Debug);
    let folder = tempfile::tempdir()?;
    let db = Db::open(folder.path(), Options::default())?;
    for n in 0..1000u32 {
        db.put(n.to_be_bytes(), "red")?;
    }
    db.close()?;
    Ok(())
}
