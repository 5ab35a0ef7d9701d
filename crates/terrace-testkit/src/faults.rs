//! Failing syncs: the caller of a failed sync gets an error, and the store takes no more writes.
//!
//! The state of the media after a failed sync is unknown, so no later sync may vouch for it. Real
//! files keep the bytes even so: the failure must show in results, since it cannot show in the
//! data.
//!
//! `sweep` makes every call fail, not only syncs. In `once` another writer waits for the failing
//! sync.

pub mod fault;
pub mod once;
pub mod sweep;

use std::io;
use std::sync::Arc;

use terrace::{Db, Durability, ErrorKind};
use terrace_media::{Medium, PoolFaults};

use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::settings;
use crate::watchdog;

/// The number of writes in the script.
const WRITES: u8 = 40;

/// The result of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// The sync failed, and the store reported it.
    Told,
    /// The script makes fewer syncs.
    NotReached,
}

/// Makes the `n`-th sync of a script fail, counted from 1.
pub fn fail_sync(n: u64) -> Outcome<Sync> {
    let folder = scratch()?;
    let faults = PoolFaults::new();
    let place = Place {
        faults: Some(Arc::clone(&faults)),
        ..Place::folder(folder.path())
    };
    faults.fail_sync(n, io::ErrorKind::Other, false);
    let mut db = None;
    let said = script(&place, &faults, &mut db);
    let reached = faults.syncs() >= n;
    match said {
        Ok(Some(call)) => {
            return Err(format!(
                "sync {n} failed, and {call} that made it succeeded"
            ));
        }
        Ok(None) if reached => return Err(format!("sync {n} failed, and every call succeeded")),
        Err(e) if !reached => return Err(format!("nothing failed, and a call says {e:?}")),
        Err(e) if !matches!(e.kind(), ErrorKind::Io | ErrorKind::Stopped) => {
            return Err(format!("sync {n} failed, and a call says {e:?}"));
        }
        _ => {}
    }
    if !reached {
        return Ok(Sync::NotReached);
    }
    match db.map(|db| db.put("later", "x").map_err(|e| e.kind())) {
        None | Some(Err(ErrorKind::Stopped | ErrorKind::Closed)) => Ok(Sync::Told),
        other => Err(format!("after sync {n} failed, a put says {other:?}")),
    }
}

/// Writes, flushes, drains and closes until something fails. Also ends at a call that succeeds
/// although a sync failed during it, and returns its name: without threads the sync was made by
/// that call.
fn script(
    place: &Place,
    faults: &PoolFaults,
    opened: &mut Option<Db>,
) -> terrace::Result<Option<String>> {
    let db = opened.insert(place.open(&settings::small(Medium::Mapped))?);
    let _operation = watchdog::operation("a script whose sync fails");
    let unsaid = |call: String| faults.tripped().map(|_| call);
    for n in 0..WRITES {
        db.put_with([n], vec![n; 700], Durability::Sync)?;
        if let Some(call) = unsaid(format!("put {n}")) {
            return Ok(Some(call));
        }
        if n % 16 == 7 {
            db.flush()?;
            if let Some(call) = unsaid(format!("the flush after put {n}")) {
                return Ok(Some(call));
            }
        }
    }
    db.drain()?;
    if let Some(call) = unsaid("the drain".to_owned()) {
        return Ok(Some(call));
    }
    db.close()?;
    Ok(unsaid("the close".to_owned()))
}
