//! Models of the lock-free protocols, run under a scheduler that explores many interleavings.
//!
//! A model is only the protocol, step by step as in the named code, on the scheduler's own atomics
//! and locks. Every model is also run with one step changed, and the scheduler must find the
//! failure, which proves that the model can detect it.
//!
//! The scheduler explores only the order of steps. It treats every atomic as sequentially
//! consistent, so it does not find a missing Acquire or Release; `docs/concurrency.md` argues for
//! each of those.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// The number of schedules for a model that must hold, for each of the two schedulers.
const SCHEDULES: usize = 1500;
/// The number of schedules among which one must fail when the protocol is wrong.
const SCHEDULES_UNTIL_FAILURE: usize = 20_000;
/// The seed of all choices of the schedulers.
const SEED: u64 = 0x7e44_ace0;

fn run(
    scheduler: impl Scheduler + 'static,
    persistence: FailurePersistence,
    model: impl Fn() + Send + Sync + 'static,
) {
    let mut config = Config::new();
    config.failure_persistence = persistence;
    config.silence_warnings = true;
    // BOUND: a model that hangs fails.
    config.max_steps = MaxSteps::FailAfter(20_000);
    Runner::new(scheduler, config).run(model);
}

/// Runs a model on many schedules, none of which may panic.
pub(crate) fn holds(model: impl Fn() + Send + Sync + Clone + 'static) {
    let print = FailurePersistence::Print;
    let random = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    run(random, print.clone(), model.clone());
    // Also with few switches between threads, which finds failures that need long runs of one
    // thread.
    let few_switches = PctScheduler::new_from_seed(SEED, 3, SCHEDULES);
    run(few_switches, print, model);
}

/// Runs a model of a wrong protocol until it panics, as it must, with one of the `complaints`.
pub(crate) fn breaks(complaints: &[&str], model: impl Fn() + Send + Sync + Clone + 'static) {
    let mut found = None;
    for attempt in 0..2 {
        let model = model.clone();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let n = SCHEDULES_UNTIL_FAILURE;
            let none = FailurePersistence::None;
            if attempt == 0 {
                run(RandomScheduler::new_from_seed(SEED, n), none, model);
            } else {
                run(PctScheduler::new_from_seed(SEED, 3, n), none, model);
            }
        }));
        if let Err(panic) = result {
            found = Some(panic);
            break;
        }
    }
    let panic = found.expect("a wrong protocol is detected");
    let text = match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.as_str(),
        (None, Some(text)) => text,
        (None, None) => "",
    };
    assert!(
        complaints.iter().any(|complaint| text.contains(complaint)),
        "the model fails for another reason: {text}"
    );
}
