//! Models of the lock-free protocols, run under a scheduler that tries many interleavings.
//!
//! A model is the protocol and nothing else, step by step as the named code does it, on the
//! scheduler's own atomics and locks. Every model is also run with one step of it wrong, and the
//! scheduler must find the failure: that shows that the model could see it.
//!
//! What the scheduler tries is the order of steps. It treats every atomic as sequentially
//! consistent, so a missing Acquire or Release is not found here; `docs/concurrency.md` argues those
//! one by one.

mod commit;
mod insert;
mod relink;
mod shortcut;
mod view;

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// Schedules tried of a model that must hold, by each of the two ways of choosing them.
const SCHEDULES: usize = 1500;
/// Schedules among which one must fail when the protocol is wrong.
const SCHEDULES_UNTIL_FAILURE: usize = 20_000;
/// Where every choice of the schedulers comes from.
const SEED: u64 = 0x7e44_ace0;

fn run(
    scheduler: impl Scheduler + 'static,
    persistence: FailurePersistence,
    model: impl Fn() + Send + Sync + 'static,
) {
    let mut config = Config::new();
    config.failure_persistence = persistence;
    config.silence_warnings = true;
    // BOUND: what hangs, fails.
    config.max_steps = MaxSteps::FailAfter(20_000);
    Runner::new(scheduler, config).run(model);
}

/// Runs a model on many schedules; it panics on none.
fn holds(model: impl Fn() + Send + Sync + Clone + 'static) {
    let print = FailurePersistence::Print;
    let random = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    run(random, print.clone(), model.clone());
    // The same, with few changes of the running thread: finds what needs long runs of one thread.
    let few_switches = PctScheduler::new_from_seed(SEED, 3, SCHEDULES);
    run(few_switches, print, model);
}

/// Runs a model of a wrong protocol until it panics, which it must, with one of the `complaints`.
fn breaks(complaints: &[&str], model: impl Fn() + Send + Sync + Clone + 'static) {
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
    let panic = found.expect("a wrong protocol is found out");
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
