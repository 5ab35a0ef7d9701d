//! Model of `stages/buffer/elastic/{table,merge}.rs`: a merge moves the newer list into the older
//! one in batches, while point reads search the newer and then the older list, and cursors hold
//! both.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::sync::{RwLock, RwLockWriteGuard};
use shuttle::thread;

use super::{breaks, holds};

const LEVELS: usize = 2;
/// The number of nodes that the merge processes in a batch, before it looks for the end of a key.
const BATCH_NODES: usize = 2;
/// The number of restarts after which a point read takes the latch.
const RETRIES_MAX: u32 = 2;

/// A fault in the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The frontier is stored after the links that it announces.
    FrontierLast,
    /// Readers do not check the frontier.
    FrontierIgnored,
    /// Nodes are linked into the older list before their own links are changed.
    OwnLinksLast,
    /// A batch ends without the links that the fingers have yet to plan.
    Unsettled,
    /// Links between former neighbours are assumed to stay valid, even if nodes are inserted or
    /// dropped between them.
    NeighboursBelieved,
    /// Nodes are removed from the newer list before they are linked into the older one.
    UnlinkFirst,
    /// Readers search the older list first, then the newer one.
    OlderAskedFirst,
    /// The merge does not take the latch of the newer list.
    NewerGateOpen,
    /// The merge does not take the latch of the older list.
    OlderGateOpen,
    /// Cursors take the latch of the older list first.
    GatesCrossed,
    /// A batch may end between two versions of a key in the newer list.
    KeySplit,
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

    /// Builds a list before the pool is shared.
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

    /// Returns the first node at or after `place` and the first node stepped to, as
    /// `SkipList::seek`.
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
    latch: RwLock<u64>,
}

impl Table {
    fn new(head: usize) -> Table {
        Table {
            head,
            frontier: AtomicUsize::new(0),
            latch: RwLock::new(0),
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
        let _held = self.latch.read().unwrap();
        pool.seek(self.head, place).0
    }
}

struct World {
    pool: Pool,
    newer: Table,
    older: Table,
    /// The sequence number of the only snapshot, if there is one.
    snapshot: Option<u32>,
    fault: Fault,
}

impl World {
    /// Returns the newest version of a key at or below the sequence number `at`.
    fn get(&self, key: u32, at: u32) -> Option<u32> {
        let place = (key, std::cmp::Reverse(at));
        let mut tables = [&self.newer, &self.older];
        if self.fault == Fault::OlderAskedFirst {
            tables.reverse();
        }
        tables.into_iter().find_map(|table| {
            let found = table.seek(&self.pool, place, self.fault);
            (found != 0 && self.pool.0[found].key == key).then(|| self.pool.0[found].seq)
        })
    }

    /// Returns every node of both lists, read while both are held.
    fn scan(&self) -> Vec<Place> {
        let (first, second) = match self.fault {
            Fault::GatesCrossed => (&self.older, &self.newer),
            _ => (&self.newer, &self.older),
        };
        let _first = first.latch.read().unwrap();
        let _second = second.latch.read().unwrap();
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
    /// Checks the towers of the older list while holding only that list.
    fn verify(&self) {
        let _held = self.older.latch.read().unwrap();
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

/// As `Merge`, with `Fingers` inlined.
struct Merge {
    world: Arc<World>,
    prev: [usize; LEVELS],
    next: [usize; LEVELS],
    /// The stored values of the links that are to become `next`.
    held: [usize; LEVELS],
    inserted: [bool; LEVELS],
    heads: [usize; LEVELS],
    heads_written: [usize; LEVELS],
    kept: Option<(u32, u32)>,
    taken: usize,
    prepared: Vec<Store>,
    stores: Vec<Store>,
}

/// A node and a level that identify a link, and its new value.
type Store = ((usize, usize), usize);

impl Merge {
    fn new(world: Arc<World>) -> Merge {
        let ends = |head| std::array::from_fn(|level| world.pool.next(head, level));
        let heads = ends(NEWER_HEAD);
        Merge {
            prev: [OLDER_HEAD; LEVELS],
            next: ends(OLDER_HEAD),
            held: ends(OLDER_HEAD),
            inserted: [false; LEVELS],
            heads,
            heads_written: heads,
            kept: None,
            taken: 0,
            prepared: Vec::new(),
            stores: Vec::new(),
            world,
        }
    }

    /// As `Fingers::plan`.
    fn plan(&mut self, level: usize, value: usize) {
        if self.held[level] == value {
            return;
        }
        let store = ((self.prev[level], level), value);
        if self.inserted[level] {
            self.prepared.push(store);
        } else {
            self.stores.push(store);
        }
    }

    /// As `Fingers::flush`.
    fn flush(&mut self) {
        for level in 0..LEVELS {
            self.plan(level, self.next[level]);
        }
        self.held = self.next;
        self.inserted = [false; LEVELS];
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
        let Node {
            key, seq, height, ..
        } = pool.0[node];
        let superseded = self.kept.is_some_and(|(kept, newer)| {
            let retained = world.snapshot.is_some_and(|s| (seq..newer).contains(&s));
            kept == key && !retained
        });
        if !superseded {
            self.kept = Some((key, seq));
        }
        if from_newer {
            for level in 0..height {
                self.heads[level] = pool.next(a, level);
            }
            self.taken = a;
            if superseded {
                return true;
            }
            for level in 0..height {
                self.plan(level, a);
                self.prev[level] = a;
                self.inserted[level] = true;
                self.held[level] = match world.fault {
                    Fault::NeighboursBelieved => self.next[level],
                    _ => self.heads[level],
                };
            }
        } else if superseded {
            for level in 0..height {
                self.next[level] = pool.next(b, level);
            }
        } else {
            for level in 0..height {
                self.plan(level, b);
                self.prev[level] = b;
                self.next[level] = pool.next(b, level);
                self.held[level] = self.next[level];
                self.inserted[level] = false;
            }
        }
        true
    }

    /// Returns whether the newer list contains another version of the key last taken from it.
    fn inside_key(&self) -> bool {
        let pool = &self.world.pool;
        let next = self.heads[0];
        self.taken != 0 && next != 0 && pool.0[self.taken].key == pool.0[next].key
    }

    fn commit(&mut self) {
        let world = Arc::clone(&self.world);
        if world.fault != Fault::Unsettled {
            self.flush();
        }
        let mut heads = Vec::new();
        for level in 0..LEVELS {
            if self.heads[level] != self.heads_written[level] {
                heads.push(((NEWER_HEAD, level), self.heads[level]));
                self.heads_written[level] = self.heads[level];
            }
        }
        let mut prepared = std::mem::take(&mut self.prepared);
        let mut stores = std::mem::take(&mut self.stores);
        if world.fault == Fault::OwnLinksLast {
            stores.append(&mut prepared);
        } else {
            stores.splice(0..0, prepared);
        }
        if world.fault == Fault::UnlinkFirst {
            stores.splice(0..0, heads);
        } else {
            stores.extend(heads);
        }
        fn take(table: &Table) -> RwLockWriteGuard<'_, u64> {
            let mut relinks = table.latch.write().unwrap();
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
            }
            while more && self.inside_key() && self.world.fault != Fault::KeySplit {
                more = self.plan_node();
            }
            self.commit();
        }
    }
}

/// Runs a merge of two small tables together with two point readers and a cursor. The newer table
/// contains versions that supersede one another and one in the older table, so nodes are dropped
/// from both unless a snapshot reads them.
fn model(fault: Fault, snapshot: Option<u32>, keys: [u32; 2], scans: usize) {
    let mut pool = Pool::new();
    let newer = [(1, 11, 1), (2, 19, 2), (2, 12, 1), (4, 14, 1), (5, 15, 2)];
    let older = [(2, 2, 1), (3, 3, 2), (5, 5, 1), (6, 6, 1)];
    pool.build(NEWER_HEAD, &newer);
    pool.build(OLDER_HEAD, &older);
    let newest = move |key, at| {
        let all = newer.iter().chain(&older).copied();
        let seen = all.filter(|(k, seq, _)| *k == key && *seq <= at);
        seen.map(|(_, seq, _)| seq).max()
    };
    let world = Arc::new(World {
        pool,
        newer: Table::new(NEWER_HEAD),
        older: Table::new(OLDER_HEAD),
        snapshot,
        fault,
    });
    let at = snapshot.unwrap_or(u32::MAX);
    let mut threads = Vec::new();
    for (key, at) in keys.into_iter().zip([u32::MAX, at]) {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            for key in [key, key + 1] {
                let (found, newest) = (world.get(key, at), newest(key, at));
                assert!(found.is_some() || newest.is_none(), "a key is missed");
                assert_eq!(found, newest, "an older version is returned");
            }
        }));
    }
    for _ in 0..scans {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || {
            let places = world.scan();
            for key in 1..=6 {
                let seen = places.iter().find(|place| place.0 == key);
                let newest = newest(key, u32::MAX);
                let newest = newest.map(|seq| (key, std::cmp::Reverse(seq)));
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
        for at in [at, u32::MAX] {
            assert_eq!(world.get(key, at), newest(key, at), "the merge is complete");
        }
    }
    let kept: Vec<u32> = world.scan().iter().map(|place| place.1.0).collect();
    let expected: &[u32] = match snapshot {
        None => &[11, 19, 3, 14, 15, 6],
        Some(_) => &[11, 19, 12, 3, 14, 15, 6],
    };
    assert_eq!(kept, expected, "versions without readers are removed");
}

/// While a merge moves and drops nodes, a point read finds the newest version of every key, or that
/// of its snapshot, and a cursor sees each entry once.
#[test]
fn reads_never_miss_what_moves() {
    for snapshot in [None, Some(15)] {
        holds(move || model(Fault::None, snapshot, [1, 4], 0));
        holds(move || model(Fault::None, snapshot, [2, 5], 1));
        holds(move || model(Fault::None, snapshot, [3, 1], 1));
    }
}

/// Every step of the protocol is necessary.
#[test]
fn wrong_relinking_is_found_out() {
    let missed = ["a key is missed", "an older version is returned"];
    let read = |fault, keys| move || model(fault, None, keys, 0);
    let scan = |fault| move || model(fault, None, [3, 6], 1);
    breaks(&missed, read(Fault::FrontierLast, [2, 4]));
    breaks(&missed, read(Fault::FrontierIgnored, [2, 4]));
    breaks(&missed, read(Fault::UnlinkFirst, [1, 3]));
    breaks(&missed, read(Fault::OwnLinksLast, [3, 5]));
    breaks(&missed, read(Fault::Unsettled, [3, 5]));
    breaks(&missed, read(Fault::NeighboursBelieved, [3, 5]));
    breaks(&missed[1..], read(Fault::OlderAskedFirst, [1, 4]));
    breaks(&missed[1..], read(Fault::KeySplit, [1, 2]));
    // Point reads that are overtaken too often need that latch as well.
    let halved = ["a scan sees", "a key is missed", "an older version"];
    breaks(&halved, scan(Fault::NewerGateOpen));
    breaks(&["a tower is half linked"], scan(Fault::OlderGateOpen));
    breaks(&["deadlock"], scan(Fault::GatesCrossed));
}
