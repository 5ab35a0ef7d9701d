//! Model: a script runs on a store in a folder of the system and on an ordered map with versions,
//! and both say the same.

use terrace::Options;
use terrace_media::Medium;

use crate::oracle::{Oracle, Outcome};
use crate::place::{Place, scratch};
use crate::script::Op;
use crate::world::World;

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
