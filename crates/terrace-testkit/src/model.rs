//! Model: a script runs on a store in a folder of the system and on an ordered map with versions,
//! and both say the same.

use terrace::{Design, Options, Workers};
use terrace_media::Medium;

use crate::oracle::{Oracle, Outcome};
use crate::place::{Place, scratch};
use crate::script::{Op, Profile};
use crate::sizes::Edges;
use crate::world::World;
use crate::{settings, shrink, watchdog};

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
    if world.refusals == 0 {
        world.check_space()
    } else {
        Ok(())
    }
}

/// Runs the case of a seed: who runs background jobs, the options and the sizes follow from it. A failure is
/// shrunk where no thread takes part.
pub fn once((medium, design): (Medium, Design), seed: u64, len: usize) -> Outcome {
    let options = settings::drawn(design, medium, seed);
    let script = Profile::everything(len).generate(seed);
    let script = Edges::of(&options, medium).widen(script, seed);
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
