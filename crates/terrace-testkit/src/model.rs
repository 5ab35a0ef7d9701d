//! Model tests: a script runs on a store in a directory of the system and on an ordered map with
//! versions, and the results must agree.

use terrace::{Db, Design, Options, Workers};
use terrace_media::Medium;

use crate::oracle::{Oracle, Outcome};
use crate::place::{Place, scratch};
use crate::script::{Op, Profile};
use crate::sizes::Edges;
use crate::world::World;
use crate::{settings, shrink, sizes, watchdog};

/// Runs a script on a new store.
pub fn run(options: &Options, medium: Medium, script: &[Op]) -> Outcome {
    let folder = scratch()?;
    let place = Place::folder(folder.path());
    let oracle = Oracle::new(medium).of(options.design_of_new());
    let mut world = World::open(place, options.clone(), 0, oracle)?;
    for op in script {
        world.run(op).map_err(|e| format!("{op:?}: {e}"))?;
    }
    world.check_all()?;
    if world.refusals() == 0 {
        world.check_space()
    } else {
        Ok(())
    }
}

/// Runs the case of a seed, which determines who runs background jobs, the options and the sizes. A
/// failure is shrunk unless threads are involved.
pub fn once((medium, design): (Medium, Design), seed: u64, len: usize) -> Outcome {
    let options = settings::drawn(design, medium, seed);
    let script = Profile::everything(len).generate(seed);
    let edges = Edges::of(&options, medium);
    let mut script = edges.widen(script, seed);
    // Only for small stores: a script would take long to fill another one. `MioDb` in plain memory
    // has no ingest.
    let takes = medium != Medium::Dram || design.keeps_table_files();
    if takes && !settings::is_by_default(seed) && seed.is_multiple_of(3) {
        script.extend(sizes::of_ingests(
            &edges,
            options.pool.size_bytes,
            len / 20,
            seed,
        ));
    }
    let name = format!("model of {design} on {medium}, seed {seed:#x}");
    let _case = watchdog::case(name.clone());
    let outcome = match options.background.workers {
        Workers::Manual => shrink::check(&name, seed, &script, &mut |script| {
            run(&options, medium, script)
        }),
        _ => shrink::guarded(|| run(&options, medium, &script)),
    };
    outcome.map_err(|e| format!("{name}, {:?}: {e}", options.background.workers))
}

/// Puts an entry that needs its own memtable, while the active one is so empty that no spare is
/// made ahead and the caller must make one. Odd seeds use worker threads.
pub fn large_after_small(medium: Medium, seed: u64) -> Outcome {
    let mut options = settings::small(medium);
    if !seed.is_multiple_of(2) {
        options.background.workers = Workers::Threads(1);
    }
    let memtable = options.front.memtable_bytes as usize;
    let folder = scratch()?;
    let opened = Db::open(folder.path(), options);
    let db = opened.map_err(|e| format!("opening: {e:?}"))?;
    for (turn, len) in [memtable / 16, memtable - 500, 1, memtable - 300]
        .into_iter()
        .enumerate()
    {
        let put = watchdog::watched("a put", || db.put("key", vec![turn as u8; len]));
        put.map_err(|e| format!("a put of {len} bytes: {e:?}"))?;
    }
    Ok(())
}
