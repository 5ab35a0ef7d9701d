//! Models of `engine/view.rs`: views are replaced as a whole, stages are read from the newest to
//! the oldest, and memory that a job has emptied outlives every view that could lead to it.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;

use super::{breaks, holds};

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Garbage is freed as soon as the new view is installed.
    FreedAtOnce,
    /// A view's tail does not hold the tails after it.
    TailsUnchained,
    /// Two views may be built concurrently.
    InstallUnlocked,
    /// The stages are read from the oldest to the newest.
    AskedUpward,
    /// The source stage drops an entry before the destination shows it.
    ForgottenFirst,
}

const EXTENTS: usize = 3;

/// An extent that records when it is freed.
struct Extent {
    number: usize,
    freed: Arc<[AtomicBool; EXTENTS]>,
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.freed[self.number].store(true, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Tail(Mutex<TailInner>);

#[derive(Default)]
struct TailInner {
    garbage: Vec<Arc<Extent>>,
    next: Option<Arc<Tail>>,
}

struct View<S> {
    sources: S,
    tail: Arc<Tail>,
}

/// As `Views`, with a lock in place of the atomic swap of the pointer.
struct Views<S> {
    current: Mutex<Arc<View<S>>>,
    install: Mutex<()>,
    fault: Fault,
}

impl<S> Views<S> {
    fn new(sources: S, fault: Fault) -> Views<S> {
        let tail = Arc::default();
        Views {
            current: Mutex::new(Arc::new(View { sources, tail })),
            install: Mutex::new(()),
            fault,
        }
    }

    fn hold(&self) -> Arc<View<S>> {
        Arc::clone(&self.current.lock().unwrap())
    }

    fn install(&self, build: impl FnOnce() -> S, garbage: Vec<Arc<Extent>>) {
        let unlocked = self.fault == Fault::InstallUnlocked;
        let _one = (!unlocked).then(|| self.install.lock().unwrap());
        let tail: Arc<Tail> = Arc::default();
        let view = Arc::new(View {
            sources: build(),
            tail: Arc::clone(&tail),
        });
        let old = std::mem::replace(&mut *self.current.lock().unwrap(), view);
        if self.fault == Fault::FreedAtOnce {
            return;
        }
        let mut inner = old.tail.0.lock().unwrap();
        inner.garbage.extend(garbage);
        if self.fault != Fault::TailsUnchained {
            inner.next = Some(tail);
        }
    }
}

/// Runs two jobs that each empty an extent, while readers pin views and read the extents of those
/// views.
fn emptying(fault: Fault) {
    let freed: Arc<[AtomicBool; EXTENTS]> = Arc::default();
    let extents: Vec<Arc<Extent>> = (0..EXTENTS)
        .map(|number| {
            let freed = Arc::clone(&freed);
            Arc::new(Extent { number, freed })
        })
        .collect();
    let reachable = Arc::new(Mutex::new((0..EXTENTS).collect::<Vec<usize>>()));
    let views = Arc::new(Views::new(reachable.lock().unwrap().clone(), fault));
    let mut threads = Vec::new();
    let mut jobs = extents.into_iter();
    for number in 0..2 {
        let extent = jobs.next().unwrap();
        let (views, reachable) = (Arc::clone(&views), Arc::clone(&reachable));
        threads.push(thread::spawn(move || {
            reachable.lock().unwrap().retain(|n| *n != number);
            views.install(|| reachable.lock().unwrap().clone(), vec![extent]);
        }));
    }
    for _ in 0..2 {
        let (views, freed) = (Arc::clone(&views), Arc::clone(&freed));
        threads.push(thread::spawn(move || {
            let read = |view: &View<Vec<usize>>| {
                for number in &view.sources {
                    let gone = freed[*number].load(Ordering::SeqCst);
                    assert!(!gone, "a view leads to freed memory");
                }
            };
            let first = views.hold();
            read(&first);
            read(&views.hold());
            read(&first);
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let last = views.hold();
    assert_eq!(last.sources, [2], "an older view replaces a newer one");
    for number in 0..2 {
        let gone = freed[number].load(Ordering::SeqCst);
        assert!(gone, "unreachable garbage is freed");
    }
    assert!(!freed[2].load(Ordering::SeqCst));
}

/// Moves an entry from the front to the buffer to the bottom, while other threads build views too.
fn moving_down(fault: Fault) {
    let stages: Arc<[AtomicBool; 3]> = Arc::default();
    stages[0].store(true, Ordering::SeqCst);
    let build = move |stages: &[AtomicBool; 3]| {
        let mut shown = [false; 3];
        let mut order = [0, 1, 2];
        if fault == Fault::AskedUpward {
            order.reverse();
        }
        for stage in order {
            shown[stage] = stages[stage].load(Ordering::SeqCst);
        }
        shown
    };
    let views = Arc::new(Views::new([true, false, false], fault));
    let mut threads = Vec::new();
    {
        let (views, stages) = (Arc::clone(&views), Arc::clone(&stages));
        threads.push(thread::spawn(move || {
            for giver in 0..2 {
                if fault == Fault::ForgottenFirst {
                    stages[giver].store(false, Ordering::SeqCst);
                    stages[giver + 1].store(true, Ordering::SeqCst);
                } else {
                    stages[giver + 1].store(true, Ordering::SeqCst);
                    stages[giver].store(false, Ordering::SeqCst);
                }
                views.install(|| build(&stages), Vec::new());
            }
        }));
    }
    {
        let (views, stages) = (Arc::clone(&views), Arc::clone(&stages));
        threads.push(thread::spawn(move || {
            views.install(|| build(&stages), Vec::new());
            views.install(|| build(&stages), Vec::new());
        }));
    }
    for _ in 0..4 {
        let view = views.hold();
        assert!(view.sources.contains(&true), "a view misses an entry");
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let last = views.hold();
    assert_eq!(last.sources, [false, false, true]);
}

/// Memory that a job has emptied is freed exactly when no view that leads to it is left, and the
/// current view is the newest that was built.
#[test]
fn garbage_outlives_views_on_every_schedule() {
    holds(|| emptying(Fault::None));
}

/// An entry on its way down is in every view.
#[test]
fn views_hold_what_moves_down() {
    holds(|| moving_down(Fault::None));
}

/// Every step of the protocol is necessary.
#[test]
fn wrong_views_are_found_out() {
    breaks(&["a view leads to freed memory"], || {
        emptying(Fault::FreedAtOnce)
    });
    breaks(&["a view leads to freed memory"], || {
        emptying(Fault::TailsUnchained)
    });
    breaks(&["an older view replaces"], || {
        emptying(Fault::InstallUnlocked)
    });
    breaks(&["a view misses an entry"], || {
        moving_down(Fault::AskedUpward)
    });
    breaks(&["a view misses an entry"], || {
        moving_down(Fault::ForgottenFirst)
    });
}
