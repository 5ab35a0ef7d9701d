//! A sync of a log that fails once, while another writer waits for the same log.
//!
//! Linux reports pages that it could not write once, to the next sync of the file, and then marks
//! them clean. So the second writer must get the error of the first: a sync of its own would
//! succeed, although pages were lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use terrace::{Design, Durability, ErrorKind};
use terrace_media::{FaultFs, Medium, OsFs};

use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::settings;

/// BOUND: the time that a call waits for one of another thread.
const PATIENCE: Duration = Duration::from_secs(20);

/// The log whose sync fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failing {
    /// The log of the memtable that takes writes.
    Active,
    /// A log that was unsynced when its memtable became a table.
    Left,
}

/// State of the judge of calls.
#[derive(Default)]
struct Seen {
    /// The log that was written last.
    written: String,
    /// The file whose sync must fail.
    target: Option<String>,
    failing: bool,
    /// Whether a log was written since the failing sync began.
    wrote: bool,
}

#[derive(Default)]
struct Watch {
    seen: Mutex<Seen>,
    changed: Condvar,
}

impl Watch {
    fn judge(&self, call: &str) -> io::Result<()> {
        let mut seen = self.seen.lock();
        if let Some(log) = call.strip_prefix("write ").filter(|name| is_log(name)) {
            log.clone_into(&mut seen.written);
            seen.wrote |= seen.failing;
            self.changed.notify_all();
        }
        if seen.target.as_deref() != Some(call) {
            return Ok(());
        }
        seen.target = None;
        seen.failing = true;
        self.changed.notify_all();
        self.wait(&mut seen, |seen| seen.wrote);
        Err(io::Error::other("pages could not be written"))
    }

    fn wait(&self, seen: &mut parking_lot::MutexGuard<'_, Seen>, done: impl Fn(&Seen) -> bool) {
        self.changed
            .wait_while_for(seen, |seen| !done(seen), PATIENCE);
    }
}

/// A handle keeps the name that its file had when it was opened, possibly that of a draft.
fn is_log(name: &str) -> bool {
    name.contains("wal-")
}

/// Runs two writers that request a sync, of which the first fails.
pub fn run(design: Design, failing: Failing) -> Outcome {
    let folder = scratch()?;
    let fs = FaultFs::new(Arc::new(OsFs));
    let watch = Arc::new(Watch::default());
    let judge = Arc::clone(&watch);
    fs.judge(move |call| judge.judge(call));
    let place = Place {
        fs: Some(Arc::new(fs)),
        ..Place::folder(folder.path())
    };
    let said = |e: terrace::Error| format!("{design}, {failing:?}: {e}");
    let mut options = settings::small_of(design, Medium::Dram);
    // The table of the log that is left unsynced is not due for the bottom.
    options.front.log_bytes_max = 8 << 20;
    options.pool.size_bytes = 8 << 20;
    let db = place.open(&options).map_err(said)?;
    db.put_with("before", "1", Durability::Buffered)
        .map_err(said)?;
    let log = watch.seen.lock().written.clone();
    if failing == Failing::Left {
        db.flush().map_err(said)?;
    }
    watch.seen.lock().target = Some(format!("sync {log}"));
    let put = |key: &'static str| {
        let db = &db;
        move || db.put_with(key, "2", Durability::Sync)
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(put("first"));
        let mut seen = watch.seen.lock();
        watch.wait(&mut seen, |seen| seen.failing);
        drop(seen);
        let second = scope.spawn(put("second"));
        (first.join(), second.join())
    });
    for (name, result) in [("first", first), ("second", second)] {
        match result {
            Ok(Err(e)) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Stopped) => {}
            other => {
                return Err(format!(
                    "{design}, {failing:?}: a sync failed, and the {name} writer that waited for it \
                     hears {other:?}"
                ));
            }
        }
    }
    match db.put("later", "3").map_err(|e| e.kind()) {
        Err(ErrorKind::Stopped) => Ok(()),
        other => Err(format!(
            "{design}, {failing:?}: after a sync failed, a put says {other:?}"
        )),
    }
}

/// Runs the variant chosen by a seed.
pub fn by_seed(seed: u64) -> Outcome {
    let designs = [
        Design::MioDb,
        Design::MioDbSsd,
        Design::MatrixKv,
        Design::FlatLsm,
    ];
    let failing = [Failing::Left, Failing::Active];
    let (design, rest) = (seed as usize % designs.len(), seed as usize / designs.len());
    run(designs[design], failing[rest % 2])
}
