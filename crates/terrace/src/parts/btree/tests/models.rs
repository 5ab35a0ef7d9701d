//! Model of insertion and search: a leaf is split while others insert into it and readers search.
//! The scheduler explores the order of steps only.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

use crate::models::{breaks, holds};

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// A search does not look at the version of a leaf again.
    TrustTheLeaf,
    /// A search does not look at the version of the inner page again.
    TrustTheWay,
    /// A search does not look whether the root is still the root.
    TrustTheRoot,
    /// An insertion locks the leaf under whatever version it has.
    LockAnyVersion,
    /// A split shows the new page before it has entries.
    ShowFirst,
}

const FULL: usize = 4;
const PAGES: usize = 6;

/// A leaf has keys, an inner page the numbers of pages below it; keys from `low` on are in a page.
#[derive(Default)]
struct Page {
    version: AtomicUsize,
    level: AtomicUsize,
    len: AtomicUsize,
    low: AtomicUsize,
    nodes: [AtomicUsize; FULL],
}

struct Model {
    root: AtomicUsize,
    pages: [Page; PAGES],
    next_page: AtomicUsize,
    splitting: Mutex<()>,
}

fn get(word: &AtomicUsize) -> usize {
    word.load(Ordering::Acquire)
}

fn set(word: &AtomicUsize, value: usize) {
    word.store(value, Ordering::Release);
}

impl Page {
    fn version(&self) -> usize {
        loop {
            let version = get(&self.version);
            if version & 1 == 0 {
                return version;
            }
            thread::yield_now();
        }
    }

    fn try_lock(&self, version: usize) -> bool {
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.version
            .compare_exchange(version, version + 1, order, failed)
            .is_ok()
    }

    fn lock(&self) {
        while !self.try_lock(self.version()) {}
    }

    fn unlock(&self) {
        set(&self.version, get(&self.version) + 1);
    }

    fn insert(&self, at: usize, node: usize) {
        let len = get(&self.len);
        for to in (at + 1..=len).rev() {
            set(&self.nodes[to], get(&self.nodes[to - 1]));
        }
        set(&self.nodes[at], node);
        set(&self.len, len + 1);
    }
}

impl Model {
    fn new() -> Model {
        Model {
            root: AtomicUsize::new(0),
            pages: Default::default(),
            next_page: AtomicUsize::new(1),
            splitting: Mutex::new(()),
        }
    }

    /// Returns the position of the page below for a key.
    fn way(&self, page: &Page, key: usize) -> usize {
        let len = get(&page.len).min(FULL);
        let begins = |at: &usize| get(&self.pages[get(&page.nodes[*at])].low) <= key;
        (1..len).take_while(begins).last().unwrap_or(0)
    }

    fn descend(&self, key: usize, fault: Fault) -> (usize, usize) {
        'again: loop {
            let root = get(&self.root);
            let mut at = root;
            let mut version = self.pages[at].version();
            if fault != Fault::TrustTheRoot && get(&self.root) != root {
                continue;
            }
            loop {
                let page = &self.pages[at];
                if get(&page.level) == 0 {
                    return (at, version);
                }
                let below = get(&page.nodes[self.way(page, key)]);
                let version_below = self.pages[below].version();
                if fault != Fault::TrustTheWay && get(&page.version) != version {
                    continue 'again;
                }
                (at, version) = (below, version_below);
            }
        }
    }

    fn finds(&self, key: usize, fault: Fault) -> bool {
        loop {
            let (at, version) = self.descend(key, fault);
            let page = &self.pages[at];
            let len = get(&page.len).min(FULL);
            // As a search that halves: the place of the first key not before it.
            let before = |at: &usize| get(&page.nodes[*at]) < key;
            let place = (0..len).take_while(before).count();
            let found = place < len && get(&page.nodes[place]) == key;
            if fault == Fault::TrustTheLeaf || get(&page.version) == version {
                return found;
            }
        }
    }

    fn insert(&self, key: usize, fault: Fault) {
        loop {
            let (at, version) = self.descend(key, fault);
            let page = &self.pages[at];
            let locked = match fault {
                Fault::LockAnyVersion => {
                    page.lock();
                    true
                }
                _ => page.try_lock(version),
            };
            if !locked {
                continue;
            }
            let len = get(&page.len);
            if len < FULL {
                let before = |at: &usize| get(&page.nodes[*at]) < key;
                let place = (0..len).take_while(before).count();
                page.insert(place, key);
                page.unlock();
                return;
            }
            page.unlock();
            self.split(key, fault);
        }
    }

    fn split(&self, key: usize, fault: Fault) {
        let _one = self.splitting.lock().unwrap();
        let mut above = get(&self.root);
        if get(&self.pages[above].level) == 0 {
            if get(&self.pages[above].len) < FULL {
                return;
            }
            let root = self.next_page.fetch_add(1, Ordering::Relaxed);
            set(&self.pages[root].nodes[0], above);
            set(&self.pages[root].len, 1);
            set(&self.pages[root].level, 1);
            set(&self.root, root);
            above = root;
        }
        let above = &self.pages[above];
        let way = self.way(above, key);
        let leaf = &self.pages[get(&above.nodes[way])];
        if get(&leaf.len) < FULL {
            return;
        }
        let right = self.next_page.fetch_add(1, Ordering::Relaxed);
        let new = &self.pages[right];
        above.lock();
        leaf.lock();
        set(&new.low, get(&leaf.nodes[FULL / 2]));
        if fault == Fault::ShowFirst {
            above.insert(way + 1, right);
            above.unlock();
        }
        for at in FULL / 2..FULL {
            set(&new.nodes[at - FULL / 2], get(&leaf.nodes[at]));
        }
        set(&new.len, FULL / 2);
        set(&leaf.len, FULL / 2);
        if fault != Fault::ShowFirst {
            above.insert(way + 1, right);
        }
        leaf.unlock();
        if fault != Fault::ShowFirst {
            above.unlock();
        }
    }
}

fn model(fault: Fault) {
    let model = Arc::new(Model::new());
    for key in [20, 40, 60] {
        model.insert(key, Fault::None);
    }
    let mut threads = Vec::new();
    for keys in [[50, 70], [10, 65]] {
        let model = Arc::clone(&model);
        threads.push(thread::spawn(move || {
            for key in keys {
                model.insert(key, fault);
                assert!(model.finds(key, fault), "an inserted key is missed");
            }
        }));
    }
    for key in [60, 40, 20] {
        assert!(model.finds(key, fault), "an old key is missed");
    }
    for thread in threads {
        thread.join().unwrap();
    }
    for key in [10, 20, 40, 50, 60, 65, 70] {
        assert!(model.finds(key, Fault::None), "a key is missed in the end");
    }
}

/// While threads insert and split, every search finds the keys that were inserted before it.
#[test]
fn searches_see_whole_pages() {
    holds(|| model(Fault::None));
}

/// Each look at a version is necessary.
#[test]
fn searches_that_trust_are_found_out() {
    for fault in [
        Fault::TrustTheLeaf,
        Fault::TrustTheWay,
        Fault::TrustTheRoot,
        Fault::LockAnyVersion,
        Fault::ShowFirst,
    ] {
        breaks(
            &["is missed", "exceeds", "index out of bounds"],
            move || model(fault),
        );
    }
}
