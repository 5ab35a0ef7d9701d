//! Model of `skiplist/search_hints.rs`: one writer changes a leaf while a reader takes a hint from
//! it without a lock, compares the hint with its key, and searches from the head if it is wrong.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

use super::{breaks, holds};

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The reader starts at the hint without comparing the node.
    TrustTheHint,
    /// A node is offered as a hint before it is linked.
    OfferFirst,
}

const ENTRIES: usize = 4;

/// Keys are node numbers; 0 is the head and the end.
struct Model {
    next: [AtomicUsize; 16],
    len: AtomicUsize,
    words: [AtomicUsize; ENTRIES],
    places: [AtomicUsize; ENTRIES],
    writer: Mutex<()>,
}

impl Model {
    fn new() -> Model {
        Model {
            next: Default::default(),
            len: AtomicUsize::new(0),
            words: Default::default(),
            places: Default::default(),
            writer: Mutex::new(()),
        }
    }

    /// Returns the node before `key`, walking from a node before it.
    fn walk(&self, from: usize, key: usize) -> usize {
        let mut current = from;
        loop {
            let candidate = self.next[current].load(Ordering::Acquire);
            if candidate == 0 || candidate >= key {
                return current;
            }
            current = candidate;
        }
    }

    fn hint(&self, key: usize) -> usize {
        let len = self.len.load(Ordering::Relaxed);
        let below = |at: &usize| self.words[*at].load(Ordering::Relaxed) < key;
        match (0..len).take_while(below).last() {
            Some(at) => self.places[at].load(Ordering::Acquire),
            None => 0,
        }
    }

    fn before(&self, key: usize, fault: Fault) -> usize {
        let hint = self.hint(key);
        if hint >= key && fault != Fault::TrustTheHint {
            return self.walk(0, key);
        }
        self.walk(hint, key)
    }

    fn link(&self, node: usize, fault: Fault) {
        let mut prev = self.before(node, fault);
        loop {
            let after = self.next[prev].load(Ordering::Acquire);
            if after != 0 && after < node {
                prev = self.walk(prev, node);
                continue;
            }
            self.next[node].store(after, Ordering::Relaxed);
            let exchange =
                self.next[prev].compare_exchange(after, node, Ordering::Release, Ordering::Acquire);
            if exchange.is_ok() {
                return;
            }
        }
    }

    fn offer(&self, node: usize) {
        let Ok(_writer) = self.writer.try_lock() else {
            return;
        };
        let len = self.len.load(Ordering::Relaxed);
        let below = |at: &usize| self.words[*at].load(Ordering::Relaxed) < node;
        let at = (0..len).take_while(below).count();
        for to in (at + 1..=len).rev() {
            let word = self.words[to - 1].load(Ordering::Relaxed);
            self.words[to].store(word, Ordering::Relaxed);
            let place = self.places[to - 1].load(Ordering::Relaxed);
            self.places[to].store(place, Ordering::Release);
        }
        self.words[at].store(node, Ordering::Relaxed);
        self.places[at].store(node, Ordering::Release);
        self.len.store(len + 1, Ordering::Relaxed);
    }

    fn insert(&self, node: usize, fault: Fault) {
        if fault == Fault::OfferFirst {
            self.offer(node);
            self.link(node, fault);
        } else {
            self.link(node, fault);
            self.offer(node);
        }
    }
}

fn model(fault: Fault) {
    let model = Arc::new(Model::new());
    model.insert(2, Fault::None);
    model.insert(12, Fault::None);
    let mut threads = Vec::new();
    for node in [6, 8] {
        let model = Arc::clone(&model);
        threads.push(thread::spawn(move || model.insert(node, fault)));
    }
    for key in [3, 7, 9, 13] {
        let before = model.before(key, fault);
        assert!(before < key, "a search ends behind its key");
        let least = [2, 12].into_iter().rfind(|node| *node < key);
        assert!(before >= least.unwrap(), "a search misses an old node");
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let mut nodes = Vec::new();
    let mut at = model.next[0].load(Ordering::Acquire);
    while at != 0 {
        nodes.push(at);
        at = model.next[at].load(Ordering::Acquire);
    }
    assert_eq!(nodes, [2, 6, 8, 12], "an inserted node is missed");
}

/// A hint read during a change may slow a search down, but never changes its result.
#[test]
fn hints_may_be_torn() {
    holds(|| model(Fault::None));
}

/// The steps that make a torn hint harmless are necessary.
#[test]
fn wrong_hints_are_found_out() {
    breaks(&["ends behind", "is missed"], || model(Fault::TrustTheHint));
    breaks(&["misses an old node", "is missed"], || {
        model(Fault::OfferFirst)
    });
}
