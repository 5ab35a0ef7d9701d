//! Panics of the store's own threads. Nothing joins those threads, so without this a campaign would
//! continue after a panic, or hang if something waits for the thread.
//!
//! Invariants
//!   P1  A recorded panic is taken once, by the first case that looks: if tests run concurrently,
//!       it may be attributed to the wrong case.

use std::sync::{Mutex, Once, PoisonError};

/// The prefix of the names of the store's threads.
const PREFIX: &str = "terrace-";

static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts recording panics. They are printed as before.
pub(crate) fn watch() {
    static WATCHES: Once = Once::new();
    WATCHES.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with(PREFIX)) {
                noted().push(info.to_string());
            }
            shown(info);
        }));
    });
}

/// Returns the panics recorded since the last call.
pub(crate) fn take() -> Option<String> {
    let all = std::mem::take(&mut *noted());
    (!all.is_empty()).then(|| all.join("; "))
}

fn noted() -> std::sync::MutexGuard<'static, Vec<String>> {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner)
}
