//! A tiny device that is filled, emptied and refilled for several cycles, with reopens in between:
//! every call returns, deletes succeed, and each cycle fits as much as the first one.

use std::sync::Arc;
use std::time::Duration;

use terrace::{Db, Design, ErrorKind, Options, Workers};
use terrace_media::{OsFs, QuotaFs};

use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::settings;
use crate::watchdog::{self, watched};

const CYCLES: u32 = 4;
/// BOUND: the number of retries of puts whose space is released in the background.
const TRIES: u32 = 400;

/// Returns an incompressible value.
fn value(n: u32, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(u64::from(n));
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

/// Puts until one does not fit. Returns the number of bytes written.
fn fill(db: &Db, len: usize, on: u32) -> Outcome<u64> {
    let mut tries = 0;
    for n in 0..50_000u32 {
        let _operation = watchdog::operation(("put", n));
        // BOUND: the number of tries.
        while let Err(e) = db.put(n.to_be_bytes(), value(n ^ on, len)) {
            if e.kind() != ErrorKind::Full {
                return Err(format!("put {n}: {e:?}"));
            }
            tries += 1;
            if tries > TRIES {
                return Ok(u64::from(n) * len as u64);
            }
            if tries > 3 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    Err("the device never fills".into())
}

pub(super) fn once(rng: &mut fastrand::Rng, seed: u64) -> Outcome {
    let folder = scratch()?;
    let room = rng.u64(3 << 19..4 << 20);
    let fs = QuotaFs::new(Arc::new(OsFs), room);
    let place = Place {
        fs: Some(Arc::new(fs.clone())),
        ..Place::folder(folder.path().join("db"))
    };
    let design = [Design::Leveled, Design::MioDbSsd][rng.usize(..2)];
    let mut options: Options = settings::small_of(design, terrace_media::Medium::Dram);
    options.front.memtable_bytes = [16 << 10, 64 << 10][rng.usize(..2)];
    options.front.log_bytes_max = [256 << 10, 1 << 20][rng.usize(..2)];
    options.bottom.leveled.table_bytes = 64 << 10;
    options.bottom.leveled.level1_bytes = 128 << 10;
    options.background = settings::background(seed);
    let case = format!("{design}, {room} bytes, {:?}", options.background.workers);
    let said = cycles(rng, &place, (&fs, room), &options);
    said.map_err(|e| format!("{case}: {e}"))
}

/// Opens the database. If the open needs space that a full device lacks, it is refused, which is
/// wrong, since nothing can be deleted then. In that case the device gets more space until data was
/// deleted.
fn open(place: &Place, fs: &QuotaFs, options: &Options) -> Outcome<Db> {
    let opened = match place.open(options) {
        Err(e) if e.kind() == ErrorKind::Full => {
            fs.set_room(fs.used() + (512 << 10));
            place.open(options)
        }
        opened => opened,
    };
    opened.map_err(|e| format!("opening: {e:?}"))
}

fn cycles(
    rng: &mut fastrand::Rng,
    place: &Place,
    (fs, room): (&QuotaFs, u64),
    options: &Options,
) -> Outcome {
    let open = || open(place, fs, options);
    let mut db = open()?;
    let mut first = 0;
    for cycle in 0..CYCLES {
        let len = rng.usize(200..1500);
        let fit = fill(&db, len, cycle).map_err(|e| format!("cycle {cycle}: {e}"))?;
        if cycle == 0 {
            first = fit;
        }
        if fit * 2 < first {
            return Err(format!(
                "cycle {cycle}: {fit} bytes fit, and {first} at first"
            ));
        }
        if rng.bool() {
            let closed = watched("closing", || db.close());
            if let Err(e) = closed
                && e.kind() != ErrorKind::Full
            {
                return Err(format!("cycle {cycle}: closing: {e:?}"));
            }
            drop(db);
            db = open()?;
        }
        for call in ["flush", "compact_range"] {
            if rng.u8(..4) == 0 {
                let _operation = watchdog::operation(call);
                let called = match call {
                    "flush" => db.flush(),
                    _ => db.compact_range::<&[u8]>(..),
                };
                if let Err(e) = called
                    && e.kind() != ErrorKind::Full
                {
                    return Err(format!("cycle {cycle}: {call}: {e:?}"));
                }
            }
        }
        let deleted = watched("a range delete", || db.delete_range::<&[u8]>(..));
        deleted.map_err(|e| format!("cycle {cycle}: a range delete: {e:?}"))?;
        let _ = watched("drain", || db.drain());
        fs.set_room(room);
        let left = db.iter().map_err(|e| format!("a scan: {e:?}"))?.count();
        if left > 0 {
            return Err(format!(
                "cycle {cycle}: {left} pairs after everything was deleted"
            ));
        }
    }
    Ok(())
}

/// Checks that tables covered entirely by a range delete are removed without a compaction: the
/// space of their files is free once background steps are done.
pub(super) fn covered(rng: &mut fastrand::Rng, options: &Options) -> Outcome {
    let folder = scratch()?;
    let failed = |e: terrace::Error| format!("{e:?}");
    let mut options = options.clone();
    options.background.workers = Workers::Manual;
    let db = Db::open(folder.path(), options).map_err(failed)?;
    let count = rng.u32(150..300);
    for n in 0..count {
        let put = db.put(n.to_be_bytes(), value(n, rng.usize(300..600)));
        put.map_err(failed)?;
    }
    db.drain().map_err(failed)?;
    db.compact_range::<&[u8]>(..).map_err(failed)?;
    let bytes = || db.metrics().files.iter().map(|f| f.bytes).sum::<u64>();
    let before = bytes();
    db.delete_range((count / 10).to_be_bytes()..)
        .map_err(failed)?;
    // BOUND: steps end when no work is left.
    while db.step(rng.usize(..)).map_err(failed)? {}
    match bytes() {
        after if after * 4 > before => Err(format!("{after} of {before} bytes are left")),
        _ => Ok(()),
    }
}
