//! Point reads that stand still: one has taken its view, and before it searches, much happens to its key,
//! deletes of ranges, flushes, merges and drains among it. It may find what was there when it began or
//! anything since, and nothing older.

use terrace::testing::in_the_next_get;
use terrace_media::Medium;

use crate::oracle::Outcome;
use crate::place::{Place, scratch};
use crate::{settings, watchdog};

/// Keys, all of which a range delete may cover.
const KEYS: u8 = 8;
/// Reads of one case.
const READS: u32 = 60;

/// One case, drawn from `seed`.
pub fn once(seed: u64, medium: Medium) -> Outcome {
    let _case = watchdog::case(format!("stalled on {medium}, seed {seed:#x}"));
    let mut rng = fastrand::Rng::with_seed(seed);
    let folder = scratch()?;
    let options = settings::varied(&settings::small(medium), rng.u8(..));
    let failed = |e: terrace::Error| format!("{e:?}");
    let db = Place::folder(folder.path())
        .open(&options)
        .map_err(failed)?;
    let mut last: Vec<Option<u32>> = vec![None; usize::from(KEYS)];
    let mut tag = 0u32;
    for read in 0..READS {
        let _operation = watchdog::operation(("read", read));
        for _ in 0..rng.u8(1..12) {
            tag += 1;
            let key = rng.u8(..KEYS);
            db.put([key], tag.to_be_bytes()).map_err(failed)?;
            last[usize::from(key)] = Some(tag);
            match rng.u8(..12) {
                0 => db.drain().map_err(failed)?,
                1..4 => db.flush().map_err(failed)?,
                _ => {}
            }
            for _ in 0..rng.u8(..4) {
                db.step(rng.usize(..)).map_err(failed)?;
            }
        }
        let key = rng.u8(..KEYS);
        let (from, to) = (rng.u8(..KEYS), rng.u8(..=KEYS));
        let (writer, steps) = (db.clone(), rng.u32(..200));
        let mut picks = rng.fork();
        in_the_next_get(move || {
            // What fails here fails the store, so that the read after the next one tells of it.
            let _ = writer.delete_range([from]..[to]);
            let _ = writer.flush();
            for _ in 0..steps {
                let _ = writer.step(picks.usize(..));
            }
        });
        let found = db.get([key]).map_err(failed)?;
        let number = |value: Vec<u8>| value.try_into().map(u32::from_be_bytes);
        let found = found.map(number).transpose();
        let found = found.map_err(|value| format!("{value:?} is no value"))?;
        let before = last[usize::from(key)];
        let deleted = (from..to).contains(&key);
        if found != before && !(deleted && found.is_none()) {
            return Err(format!(
                "read {read}: key {key} had {before:?}, deleted {deleted}, and shows {found:?}"
            ));
        }
        (from..to).for_each(|key| last[usize::from(key)] = None);
        let shown = db.get([key]).map_err(failed)?;
        let shown = shown.map(number).transpose();
        if shown != Ok(last[usize::from(key)]) {
            return Err(format!("read {read}: key {key} shows {shown:?} afterwards"));
        }
    }
    Ok(())
}
