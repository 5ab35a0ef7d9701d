//! Space that is given back once its name and its last holder are gone.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Space on a medium that the manifest names.
pub(crate) trait Space: Send + Sync {
    /// Gives the space back, which no longer has a name or a holder.
    fn give_back(&mut self);
}

/// Space, while a version, a table or an index holds it.
pub(crate) struct Held<S: Space> {
    space: S,
    /// Whether the manifest no longer names it.
    retired: AtomicBool,
}

impl<S: Space> Held<S> {
    pub(crate) fn new(space: S) -> Arc<Held<S>> {
        Arc::new(Held {
            space,
            retired: AtomicBool::new(false),
        })
    }

    /// Lets the last holder give the space back. The manifest no longer names it.
    pub(crate) fn retire(&self) {
        // The last holder drops an `Arc`, which orders this before.
        self.retired.store(true, Ordering::Relaxed);
    }
}

impl<S: Space> Deref for Held<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.space
    }
}

impl<S: Space> Drop for Held<S> {
    fn drop(&mut self) {
        if *self.retired.get_mut() {
            self.space.give_back();
        }
    }
}
