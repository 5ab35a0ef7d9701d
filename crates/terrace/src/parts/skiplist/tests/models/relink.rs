//! Model of `stages/buffer/elastic/{table,merge}.rs`: a merge empties the newer list into the older
//! one in batches, while point reads look in the newer and then in the older, and cursors hold both
//! still.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{RwLock, RwLockWriteGuard};
use shuttle::thread;

use super::{breaks, holds};

const LEVELS: usize = 2;
/// Nodes that the merge looks at in one batch.
const BATCH_NODES: usize = 3;
/// Restarts after which a point read takes the gate.
const RETRIES_MAX: u32 = 2;

/// What is wrong with the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The frontier is stored after the links that it warns of.
    FrontierLast,
    /// Readers do not look at the frontier.
    FrontierIgnored,
    /// Nodes leave the newer list before they are linked into the older one.
    UnlinkFirst,
    /// Readers look in the older list, then in the newer one.
    OlderAskedFirst,
    /// The merge does not take the gate of the newer list.
    NewerGateOpen,
    /// The merge does not take the gate of the older list.
    OlderGateOpen,
    /// Cursors take the gate of the older list first.
    GatesCrossed,
}

/// A place in the order: key ascending, sequence number descending.
type Place = (u32, std::cmp::Reverse<u32>);

struct Node {
    key: u32,
    seq: u32,
    height: usize,
    next: [AtomicUsize; LEVELS],
}

/// Nodes by number: 0 is the end of a list, 1 and 2 are the heads.
struct Pool(Vec<Node>);

const NEWER_HEAD: usize = 1;
const OLDER_HEAD: usize = 2;

impl Pool {
    fn new() -> Pool {
        let mut pool = Pool(Vec::new());
        for _ in 0..=OLDER_HEAD {
            pool.add(0, 0, LEVELS);
        }
        pool
    }

    fn add(&mut self, key: u32, seq: u32, height: usize) -> usize {
        self.0.push(Node {
            key,
            seq,
            height,
            next: Default::default(),
        });
        self.0.len() - 1
    }

    /// Builds a list, before anybody else sees the pool.
    fn build(&mut self, head: usize, entries: &[(u32, u32, usize)]) {
        let mut last = [head; LEVELS];
        for &(key, seq, height) in entries {
            let node = self.add(key, seq, height);
            for (level, last) in last.iter_mut().enumerate().take(height) {
                self.0[*last].next[level] = AtomicUsize::new(node);
                *last = node;
            }
        }
    }

    fn place(&self, node: usize) -> Place {
        (self.0[node].key, std::cmp::Reverse(self.0[node].seq))
    }

    fn next(&self, node: usize, level: usize) -> usize {
        self.0[node].next[level].load(Ordering::Acquire)
    }

    /// The first node not before `place`, and the first node stepped on, as `SkipList::seek`.
    fn seek(&self, head: usize, place: Place) -> (usize, usize) {
        let mut current = head;
        let mut first = 0;
        let mut bounded_by = 0;
        let mut level = LEVELS - 1;
        loop {
            let candidate = self.next(current, level);
            if candidate != 0 && candidate != bounded_by {
                if self.place(candidate) < place {
                    if first == 0 {
                        first = candidate;
                    }
                    current = candidate;
                    continue;
                }
                bounded_by = candidate;
            }
            if level == 0 {
                return (candidate, first);
            }
            level -= 1;
        }
    }
}

struct Table {
    head: usize,
    frontier: AtomicUsize,
    gate: RwLock<u64>,
}

impl Table {
    fn new(head: usize) -> Table {
        Table {
            head,
            frontier: AtomicUsize::new(0),
            gate: RwLock::new(0),
        }
    }

    /// As `Table::seek`.
    fn seek(&self, pool: &Pool, place: Place, fault: Fault) -> usize {
        for _ in 0..RETRIES_MAX {
            let (found, first) = pool.seek(self.head, place);
            let frontier = self.frontier.load(Ordering::Acquire);
            let sound = frontier == 0 || first == 0 || pool.place(first) > pool.place(frontier);
            if sound || fault == Fault::FrontierIgnored {
                return found;
            }
        }
        let _held = self.gate.read().unwrap();
        pool.seek(self.head, place).0
    }
}

struct World {
    pool: Pool,
    newer: Table,
    older: Table,
    fault: Fault,
}

impl World {
    /// The newest version of a key.
    fn get(&self, key: u32) -> Option<u32> {
        let place = (key, std::cmp::Reverse(u32::MAX));
        let mut tables = [&self.newer, &self.older];
        if self.fault == Fault::OlderAskedFirst {
            tables.reverse();
        }
        tables.into_iter().find_map(|table| {
            let found = table.seek(&self.pool, place, self.fault);
            (found != 0 && self.pool.0[found].key == key).then(|| self.pool.0[found].seq)
        })
    }

    /// Every node of both lists, read while both are held.
    fn scan(&self) -> Vec<Place> {
        let (first, second) = match self.fault {
            Fault::GatesCrossed => (&self.older, &self.newer),
            _ => (&self.newer, &self.older),
        };
        let _first = first.gate.read().unwrap();
        let _second = second.gate.read().unwrap();
        let mut places = Vec::new();
        for table in [&self.newer, &self.older] {
            let mut at = self.pool.next(table.head, 0);
            while at != 0 {
                places.push(self.pool.place(at));
                at = self.pool.next(at, 0);
            }
        }
        places.sort();
        places
    }
}

impl World {
    /// Checks the towers of the older list while it alone is held.
    fn verify(&self) {
        let _held = self.older.gate.read().unwrap();
        let level = |level| {
            let mut nodes = Vec::new();
            let mut at = self.pool.next(OLDER_HEAD, level);
            while at != 0 {
                nodes.push(at);
                at = self.pool.next(at, level);
            }
            nodes
        };
        let tall = |node: &usize| self.pool.0[*node].height == LEVELS;
        let lower: Vec<usize> = level(0).into_iter().filter(tall).collect();
        assert_eq!(lower, level(1), "a tower is half linked");
    }
}

/// As `Merge`, with `Fingers` written out.
struct Merge {
    world: Arc<World>,
    prev: [usize; LEVELS],
    next: [usize; LEVELS],
    heads: [usize; LEVELS],
    heads_written: [usize; LEVELS],
    kept: Option<u32>,
    taken: usize,
    plan: Vec<((usize, usize), usize)>,
}

impl Merge {
    fn new(world: Arc<World>) -> Merge {
        let ends = |head| std::array::from_fn(|level| world.pool.next(head, level));
        let heads = ends(NEWER_HEAD);
        Merge {
            prev: [OLDER_HEAD; LEVELS],
            next: ends(OLDER_HEAD),
            heads,
            heads_written: heads,
            kept: None,
            taken: 0,
            plan: Vec::new(),
            world,
        }
    }

    fn plan_node(&mut self) -> bool {
        let world = Arc::clone(&self.world);
        let pool = &world.pool;
        let (a, b) = (self.heads[0], self.next[0]);
        let from_newer = match (a, b) {
            (0, 0) => return false,
            (0, _) => false,
            (_, 0) => true,
            _ => pool.place(a) < pool.place(b),
        };
        let node = if from_newer { a } else { b };
        let Node { key, height, .. } = pool.0[node];
        let superseded = self.kept == Some(key);
        self.kept = Some(key);
        if from_newer {
            for level in 0..height {
                self.heads[level] = pool.next(a, level);
            }
            self.taken = a;
            if superseded {
                return true;
            }
            for level in 0..height {
                self.plan.push(((a, level), self.next[level]));
            }
            for level in 0..height {
                self.plan.push(((self.prev[level], level), a));
                self.prev[level] = a;
            }
        } else if superseded {
            for level in (0..height).rev() {
                let after = pool.next(b, level);
                self.plan.push(((self.prev[level], level), after));
                self.next[level] = after;
            }
        } else {
            for level in 0..height {
                self.prev[level] = b;
                self.next[level] = pool.next(b, level);
            }
        }
        true
    }

    fn commit(&mut self) {
        let world = &self.world;
        let mut heads = Vec::new();
        for level in 0..LEVELS {
            if self.heads[level] != self.heads_written[level] {
                heads.push(((NEWER_HEAD, level), self.heads[level]));
                self.heads_written[level] = self.heads[level];
            }
        }
        let mut stores = std::mem::take(&mut self.plan);
        if world.fault == Fault::UnlinkFirst {
            stores.splice(0..0, heads);
        } else {
            stores.extend(heads);
        }
        fn take(table: &Table) -> RwLockWriteGuard<'_, u64> {
            let mut relinks = table.gate.write().unwrap();
            *relinks += 1;
            relinks
        }
        let fault = world.fault;
        let _newer = (fault != Fault::NewerGateOpen).then(|| take(&world.newer));
        let _older = (fault != Fault::OlderGateOpen).then(|| take(&world.older));
        let show_frontier = || {
            if self.taken != 0 {
                world.newer.frontier.store(self.taken, Ordering::Release);
            }
        };
        if world.fault != Fault::FrontierLast {
            show_frontier();
        }
        for ((node, level), value) in stores {
            world.pool.0[node].next[level].store(value, Ordering::Release);
        }
        if world.fault == Fault::FrontierLast {
            show_frontier();
        }
    }

    fn run(&mut self) {
        let mut more = true;
        while more {
            for _ in 0..BATCH_NODES {
                more = self.plan_node();
                if !more {
                    break;
                }
            }
            self.commit();
        }
    }
}

/// A merge of two small tables beside two point readers and a cursor. The newer table has versions
/// that supersede one another and one of the older table, so nodes are dropped from both.
fn model(fault: Fault, keys: [u32; 2], scans: usize) {
    let mut pool = Pool::new();
    pool.build(
        NEWER_HEAD,
        &[(1, 11, 1), (2, 19, 2), (2, 12, 1), (4, 14, 1), (5, 15, 2)],
    );
    pool.build(OLDER_HEAD, &[(2, 2, 1), (3, 3, 2), (5, 5, 1), (6, 6, 1)]);
    let newest = |key| match key {
        2 => Some(19),
        3 | 6 => Some(key),
        1 | 4 | 5 => Some(10 + key),
        _ => None,
    };
    let world = Arc::new(World {
        pool,
        newer: Table::new(NEWER_HEAD),
        older: Table::new(OLDER_HEAD),
        fault,
    });
    let mut threads = Vec::new();
    for key in keys {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            for key in [key, key + 1] {
                let found = world.get(key);
                assert!(found.is_some() || newest(key).is_none(), "a key is missed");
                assert_eq!(found, newest(key), "an older version is returned");
            }
        }));
    }
    for _ in 0..scans {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            let places = world.scan();
            for key in 1..=6 {
                let seen = places.iter().find(|place| place.0 == key);
                let newest = newest(key).map(|seq| (key, std::cmp::Reverse(seq)));
                assert_eq!(seen.copied(), newest, "a scan sees half a batch");
            }
            assert!(
                places.is_sorted_by(|a, b| a < b),
                "a scan sees a node twice"
            );
            world.verify();
        }));
    }
    Merge::new(Arc::clone(&world)).run();
    for thread in threads {
        thread.join().unwrap();
    }
    for key in 0..8 {
        assert_eq!(world.get(key), newest(key), "the merge is not complete");
    }
    let kept: Vec<u32> = world.scan().iter().map(|place| place.0).collect();
    assert_eq!(kept, [1, 2, 3, 4, 5, 6], "superseded versions are gone");
}

/// While a merge moves and drops nodes, a point read finds the newest version of every key and a
/// cursor sees each entry once.
#[test]
fn reads_never_miss_what_moves() {
    holds(|| model(Fault::None, [1, 4], 0));
    holds(|| model(Fault::None, [2, 5], 1));
    holds(|| model(Fault::None, [3, 6], 1));
}

/// Each step of the protocol is needed.
#[test]
fn wrong_relinking_is_found_out() {
    let missed = ["a key is missed", "an older version is returned"];
    breaks(&missed, || model(Fault::FrontierLast, [2, 4], 0));
    breaks(&missed, || model(Fault::FrontierIgnored, [2, 4], 0));
    breaks(&missed, || model(Fault::UnlinkFirst, [1, 3], 0));
    breaks(&missed[1..], || model(Fault::OlderAskedFirst, [1, 4], 0));
    // Point reads that were overtaken too often need that gate as well.
    let halved = ["a scan sees", "a key is missed", "an older version"];
    breaks(&halved, || model(Fault::NewerGateOpen, [3, 6], 1));
    let torn = ["a tower is half linked"];
    breaks(&torn, || model(Fault::OlderGateOpen, [3, 6], 1));
    breaks(&["deadlock"], || model(Fault::GatesCrossed, [3, 6], 1));
}
