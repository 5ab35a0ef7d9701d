//! Model of `skiplist/insert.rs`: nodes are linked from level 0 up, each level by one
//! compare-and-swap, during concurrent insertions and searches.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use super::{breaks, holds};

const LEVELS: usize = 2;

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The upper level is linked before the lower one.
    UpperLevelFirst,
    /// After a failed exchange the node is linked before the nodes inserted in between.
    RetryBlindly,
    /// A node's own link is written after the exchange that makes it reachable.
    OwnLinkLast,
}

struct Node {
    key: u32,
    next: [AtomicUsize; LEVELS],
}

/// Node 0 is the head; a link of 0 is the end.
struct List(Vec<Node>);

impl List {
    fn new(keys: &[u32]) -> List {
        let keys = std::iter::once(&0).chain(keys);
        let node = |key: &u32| Node {
            key: *key,
            next: Default::default(),
        };
        List(keys.map(node).collect())
    }

    fn next(&self, node: usize, level: usize) -> usize {
        self.0[node].next[level].load(Ordering::Acquire)
    }

    /// Returns the neighbours of `key` on every level.
    fn splice(&self, key: u32) -> ([usize; LEVELS], [usize; LEVELS]) {
        let mut prev = [0; LEVELS];
        let mut next = [0; LEVELS];
        let mut current = 0;
        for level in (0..LEVELS).rev() {
            loop {
                let candidate = self.next(current, level);
                if candidate == 0 || self.0[candidate].key >= key {
                    next[level] = candidate;
                    break;
                }
                current = candidate;
            }
            prev[level] = current;
        }
        (prev, next)
    }

    fn finds(&self, key: u32) -> bool {
        let (_, next) = self.splice(key);
        next[0] != 0 && self.0[next[0]].key == key
    }

    fn insert(&self, node: usize, fault: Fault) {
        let key = self.0[node].key;
        let (prevs, nexts) = self.splice(key);
        for step in 0..LEVELS {
            let level = match fault {
                Fault::UpperLevelFirst => LEVELS - 1 - step,
                _ => step,
            };
            let mut prev = prevs[level];
            let mut after = nexts[level];
            loop {
                let own = &self.0[node].next[level];
                if fault != Fault::OwnLinkLast {
                    own.store(after, Ordering::Relaxed);
                }
                let exchange = self.0[prev].next[level].compare_exchange(
                    after,
                    node,
                    Ordering::Release,
                    Ordering::Acquire,
                );
                if fault == Fault::OwnLinkLast {
                    own.store(after, Ordering::Release);
                }
                let Err(found) = exchange else { break };
                after = found;
                while fault != Fault::RetryBlindly && after != 0 && self.0[after].key < key {
                    prev = after;
                    after = self.next(prev, level);
                }
            }
        }
    }

    fn level(&self, level: usize) -> Vec<u32> {
        let mut keys = Vec::new();
        let mut at = self.next(0, level);
        while at != 0 {
            keys.push(self.0[at].key);
            at = self.next(at, level);
        }
        keys
    }

    /// Checks the invariants: levels ascend, and a level contains all nodes of the one above.
    fn check(&self) {
        let upper = self.level(1);
        let lower = self.level(0);
        for keys in [&upper, &lower] {
            assert!(keys.is_sorted_by(|a, b| a < b), "a level does not ascend");
        }
        for key in upper {
            assert!(lower.contains(&key), "a level lacks a node of the next");
        }
    }
}

/// Runs two writers that insert neighbours in opposite key orders, and a reader that searches for a
/// key that existed before and for all keys inserted so far.
fn model(fault: Fault) {
    let list = Arc::new(List::new(&[10, 40, 20, 25, 30, 22]));
    list.insert(1, Fault::None);
    list.insert(2, Fault::None);
    let done: Arc<[AtomicBool; 7]> = Arc::default();
    let mut threads = Vec::new();
    for nodes in [[3, 5], [4, 6]] {
        let (list, done) = (Arc::clone(&list), Arc::clone(&done));
        threads.push(thread::spawn(move || {
            for node in nodes {
                list.insert(node, fault);
                done[node].store(true, Ordering::Release);
            }
        }));
    }
    assert!(list.finds(40), "an old key is missed");
    for node in 3..=6 {
        if done[node].load(Ordering::Acquire) {
            assert!(list.finds(list.0[node].key), "an inserted key is missed");
        }
        list.check();
    }
    assert!(list.finds(40), "an old key is missed");
    for thread in threads {
        thread.join().unwrap();
    }
    let all = [10, 20, 22, 25, 30, 40];
    assert_eq!(list.level(0), all, "an inserted key is missed");
    assert_eq!(list.level(1), all, "an inserted key is missed");
}

/// While two threads insert, a reader finds every key inserted before its search, and levels ascend
/// at every moment.
#[test]
fn insertion_is_atomic_for_readers() {
    holds(|| model(Fault::None));
}

/// Every step of the insertion is necessary.
#[test]
fn wrong_insertion_is_found_out() {
    breaks(&["a level lacks a node of the next"], || {
        model(Fault::UpperLevelFirst)
    });
    breaks(&["does not ascend", "is missed"], || {
        model(Fault::RetryBlindly)
    });
    breaks(&["is missed", "lacks a node"], || model(Fault::OwnLinkLast));
}
