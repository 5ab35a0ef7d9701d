//! Views: the pinned state of a read.
//!
//! A view is a list of sources, newest first, that never changes; installing a new one is an atomic
//! swap. Pinning costs no shared counter on point reads. Garbage, such as extents that a job has
//! emptied, is handed to the tail of the view that is current at that moment, and is freed when
//! that view and every one before it are gone.
//!
//! Invariants
//!   V1  Sources are listed newest first, and a view is built by asking front, buffer, bottom in
//!       that order. Data only moves down, and a stage shows what it took before the giver forgets
//!       it, so no entry is missed.
//!       The range deletes of a view are asked before its sources, since they are removed only
//!       after the entries that they cover; and those above the bottom first, as they move down as
//!       well.
//!   V2  A tail outlives all tails before it. Garbage is freed before its tail releases the next.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use crate::canary::failpoint;
use crate::parts::ranges::RangeSet;
use crate::stages::{Garbage, Sources};

/// The state that a read sees.
pub(crate) struct View {
    pub(crate) sources: Sources,
    /// The number of sources of the front.
    pub(crate) buffer_at: usize,
    /// The number of sources of front and buffer.
    pub(crate) bottom_at: usize,
    /// The range deletes over keys of the sources; `None` without any.
    pub(crate) ranges: Option<Arc<RangeSet>>,
    tail: Arc<Tail>,
}

/// The parts that a view is built from.
pub(crate) struct Parts {
    pub(crate) sources: Sources,
    pub(crate) buffer_at: usize,
    pub(crate) bottom_at: usize,
    pub(crate) ranges: Option<Arc<RangeSet>>,
    /// Dropped when no view before this one is left.
    pub(crate) tokens: Vec<Arc<()>>,
}

/// Whatever must outlive one view and all views before it.
#[derive(Default)]
struct Tail(Mutex<TailInner>);

#[derive(Default)]
struct TailInner {
    garbage: Vec<Garbage>,
    tokens: Vec<Arc<()>>,
    next: Option<Arc<Tail>>,
}

impl Drop for Tail {
    fn drop(&mut self) {
        let inner = self.0.get_mut();
        inner.garbage.clear();
        inner.tokens.clear();
        // One after the other instead of each inside the drop of the previous: a long-pinned view
        // may hold a chain of thousands of tails.
        let mut next = inner.next.take();
        // BOUND: the chain is finite and each turn removes one.
        while let Some(mut tail) = next.and_then(Arc::into_inner) {
            next = tail.0.get_mut().next.take();
        }
    }
}

/// The current view of a database.
pub(crate) struct Views {
    current: ArcSwap<View>,
    /// LOCK: one view is built at a time, so that an older one never replaces a newer one. Taken
    /// after the commit lock and before any lock of a stage.
    install: Mutex<()>,
}

impl Views {
    /// Creates views that begin with these parts.
    pub(crate) fn new(parts: Parts) -> Views {
        let view = View {
            sources: parts.sources,
            buffer_at: parts.buffer_at,
            bottom_at: parts.bottom_at,
            ranges: parts.ranges,
            tail: Arc::default(),
        };
        Views {
            current: ArcSwap::from_pointee(view),
            install: Mutex::new(()),
        }
    }

    /// Pins the current view for one point read.
    #[inline]
    pub(crate) fn pin(&self) -> Guard<Arc<View>> {
        self.current.load()
    }

    /// Pins the current view for longer.
    pub(crate) fn hold(&self) -> Arc<View> {
        self.current.load_full()
    }

    /// Pins the current view, and runs `f` while no other one can be installed.
    pub(crate) fn hold_during<T>(&self, f: impl FnOnce() -> T) -> (Arc<View>, T) {
        let _one = self.install.lock();
        (self.hold(), f())
    }

    /// Returns whether `view` is still current.
    pub(crate) fn is_current(&self, view: &Arc<View>) -> bool {
        Arc::ptr_eq(&self.current.load(), view)
    }

    /// Returns whether a reader pins a view older than the current one, whose extents and garbage
    /// are therefore still in use. If not, all garbage up to the current view has been freed.
    pub(crate) fn is_older_pinned(&self) -> bool {
        // The previous tail holds the current one, and all earlier ones hold the previous one (V2).
        Arc::strong_count(&self.current.load().tail) > 1
    }

    /// Builds and installs a new view. `garbage` is freed when no view up to the current one is
    /// left.
    pub(crate) fn install(&self, build: impl FnOnce() -> Parts, garbage: Vec<Garbage>) {
        self.install_during(build, garbage, |show| show());
    }

    /// As `install`; `publish` calls its argument to make the new view the current one, and may act
    /// before and after it while no other view can be installed.
    pub(crate) fn install_during(
        &self,
        build: impl FnOnce() -> Parts,
        mut garbage: Vec<Garbage>,
        publish: impl FnOnce(&mut dyn FnMut()),
    ) {
        failpoint!(GarbageEarly => garbage.clear());
        let _one = self.install.lock();
        let tail: Arc<Tail> = Arc::default();
        let Parts {
            sources,
            buffer_at,
            bottom_at,
            ranges,
            tokens,
        } = build();
        let view = Arc::new(View {
            sources,
            buffer_at,
            bottom_at,
            ranges,
            tail: Arc::clone(&tail),
        });
        let mut old = None;
        publish(&mut || old = Some(self.current.swap(Arc::clone(&view))));
        drop(view);
        let Some(old) = old else {
            return;
        };
        let mut inner = old.tail.0.lock();
        inner.garbage.extend(garbage);
        inner.tokens = tokens;
        inner.next = Some(tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_media::{Backing, Pool, PoolConfig};

    fn nothing() -> Parts {
        Parts {
            sources: Vec::new(),
            buffer_at: 0,
            bottom_at: 0,
            ranges: None,
            tokens: Vec::new(),
        }
    }

    /// An extent that was handed over is free exactly when the last view that could reach it is
    /// gone.
    #[test]
    fn garbage_outlives_every_view_that_could_reach_it() {
        let pool = Pool::create(PoolConfig::new(Backing::Anonymous, 8 << 20)).unwrap();
        let views = Views::new(nothing());
        let oldest = views.hold();
        views.install(nothing, Vec::new());
        let extent = pool.alloc(1 << 20).unwrap();
        let before = pool.usage().allocated;
        assert!(views.is_older_pinned());
        views.install(nothing, vec![extent]);
        views.install(nothing, Vec::new());
        assert_eq!(
            pool.usage().allocated,
            before,
            "the oldest view still pins the extent"
        );
        drop(oldest);
        assert!(
            pool.usage().allocated < before,
            "no view can read the extent"
        );
        assert!(!views.is_older_pinned());
        let _current = views.hold();
        assert!(!views.is_older_pinned(), "the current view is not older");
    }

    /// A token that came with a view is dropped exactly when no earlier view is left.
    #[test]
    fn tokens_tell_when_older_views_are_gone() {
        let views = Views::new(nothing());
        let oldest = views.hold();
        views.install(nothing, Vec::new());
        let token = Arc::new(());
        let tokens = vec![Arc::clone(&token)];
        let parts = Parts {
            tokens,
            ..nothing()
        };
        views.install(|| parts, Vec::new());
        views.install(nothing, Vec::new());
        assert_eq!(
            Arc::strong_count(&token),
            2,
            "the oldest view keeps the token"
        );
        drop(oldest);
        assert_eq!(
            Arc::strong_count(&token),
            1,
            "no view older than the token is left"
        );
    }

    /// A view may stay pinned while a very long chain of others comes and goes.
    #[test]
    fn long_chains_are_freed_without_recursion() {
        let views = Views::new(nothing());
        let oldest = views.hold();
        for _ in 0..200_000 {
            views.install(nothing, Vec::new());
        }
        drop(oldest);
    }
}
