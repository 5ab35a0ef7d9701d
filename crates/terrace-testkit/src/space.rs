//! Space: overwriting the same keys for ever with values of changing size keeps a pool bounded.

use terrace::{Db, Options, Workers};

use crate::oracle::Outcome;
use crate::place::scratch;
use crate::watchdog::{self, watched};

/// Keys that are overwritten.
const KEYS: usize = 16;

/// Overwrites for `turns` turns, drawn from `seed`; a store whose pool fills has failed, and so has
/// one that shows anything but the last value of each key.
pub fn overwrite(options: &Options, seed: u64, turns: u32) -> Outcome {
    let _case = watchdog::case(format!("overwriting, seed {seed:#x}"));
    let folder = scratch()?;
    let db = watched("opening", || Db::open(folder.path(), options.clone()))
        .map_err(|e| format!("opening: {e:?}"))?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = vec![(0u8, 0usize); KEYS];
    for turn in 0..turns {
        let _operation = watchdog::operation(("turn", turn));
        let key = rng.usize(..KEYS);
        let most = [10, 300, 5000, 200 << 10][rng.usize(..4)];
        // Few are large, so that one turn does not fill the pool.
        let most = if rng.u8(0..20) > 0 {
            most.min(5000)
        } else {
            most
        };
        let value = (turn as u8, rng.usize(10..=most));
        db.put([key as u8], vec![value.0; value.1])
            .map_err(|e| format!("turn {turn}, {} bytes: {e}", value.1))?;
        model[key] = value;
        if options.background.workers == Workers::Manual {
            db.step(rng.usize(..)).map_err(|e| format!("a step: {e}"))?;
        }
    }
    for (key, (byte, len)) in model.iter().enumerate() {
        let found = db.get([key as u8]).map_err(|e| format!("a get: {e}"))?;
        let found = found.unwrap_or_default();
        if found.len() != *len || found.iter().any(|b| b != byte) {
            return Err(format!(
                "key {key}: expected {len} bytes {byte}, found {}",
                found.len()
            ));
        }
    }
    Ok(())
}
