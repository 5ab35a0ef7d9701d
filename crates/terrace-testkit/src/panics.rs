//! Panics of the store's own threads: nobody joins those threads for their outcome, so a campaign would go on, or hang
//! where something waits for what such a thread had begun.
//!
//! Invariants
//!   P1  What is noted is taken once, by whichever case looks first: beside tests that run at the same time the case
//!       that is named may be another one's.

use std::sync::{Mutex, Once, PoisonError};

/// How the names of the store's threads begin.
const PREFIX: &str = "terrace-";

static NOTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on panics are noted; they are shown as before.
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

/// What was noted since the last time.
pub(crate) fn take() -> Option<String> {
    let all = std::mem::take(&mut *noted());
    (!all.is_empty()).then(|| all.join("; "))
}

fn noted() -> std::sync::MutexGuard<'static, Vec<String>> {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner)
}
