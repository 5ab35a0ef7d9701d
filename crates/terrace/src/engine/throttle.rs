//! The throttle: how free space limits writers and background work.
//!
//! A reserve is kept free so that drains can always make progress: the copies of the largest table
//! that may have to move (more of them while the buffer has a larger one), memtables to be flushed,
//! and extents for the repository to move into. As free space comes near the reserve, data is moved
//! down early; nearer still, writers are slowed; puts that would use it wait while work in progress
//! can free space, and get `Full` if none can. Deletes may use the reserve, because they free
//! space. Space also counts as short while it is in pieces too small for the next memtable: moving
//! data down joins them.
//!
//! If the buffer is in memory, its data is in log files too, and these have a cap: near it, the
//! oldest data is drained, whatever its level; nearer still, writers are slowed; a memtable whose
//! log would exceed it waits for a drain. So nothing keeps a log forever: neither a keyspace
//! without writes, nor memtables that were flushed almost empty.

use std::sync::atomic::{AtomicU8, Ordering};

use terrace_media::PoolUsage;

use crate::metrics::StallReason;
use crate::stages::{Pressure, Shared, SpareBytes, Survival, TablesMax, Urgency};

use super::Stages;
use super::write_controller::{WriteController, beside_drain};

/// The state of the throttle.
pub(crate) struct Throttle {
    pool: Limits,
    /// The bytes of a table whose copies have space in the pool's reserve; `None` if tables leave
    /// the pool.
    table_bytes: Option<u64>,
    /// The cap of log files, if drains free them.
    logs: Option<Limits>,
    /// The log bytes of a memtable of the usual size.
    log_bytes: u64,
    /// The unwritten bytes of all memtables.
    memtables: Limits,
    /// The maximum of memtables and tables of the buffer, if the buffer limits them.
    tables: Option<TablesMax>,
    /// Why writers are slowed, as an index of `StallReason::ALL`.
    reason: AtomicU8,
    pub(crate) write_controller: WriteController,
}

/// Backlogs that limit writers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backlogs {
    /// How near the bottom is to stopping writers.
    pub(crate) bottom: Pressure,
    pub(crate) log_bytes: u64,
    /// Bytes of memtables not yet written to table files.
    pub(crate) unflushed_bytes: u64,
    /// The number and the bytes of memtables and tables of the buffer.
    pub(crate) tables: (usize, u64),
    /// The bytes of the largest memtable that a writer needs.
    pub(crate) spare: SpareBytes,
    /// The bytes of the largest table that may have to drain.
    pub(crate) table_bytes: u64,
}

/// Thresholds of free bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The total bytes.
    cap: u64,
    /// Kept free for background work.
    reserve: u64,
    /// The part of the reserve kept in one piece: an entry that moves needs a piece of its size.
    piece: u64,
    /// Kept in one piece in addition to what a put takes. Drains of large values need pieces, and
    /// free space only when they end.
    beside: u64,
    /// Below this, data is moved down early.
    short: u64,
    /// Below the first, writers are slowed, increasingly until the second.
    slow: (u64, u64),
}

/// The free bytes of one resource.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    free: u64,
    /// The bytes that drains in progress will have freed when they end, as far as they are done.
    pending_free: u64,
    limits: Limits,
}

impl Limits {
    /// Returns the limits of `cap` bytes of which drains take at most `drain` at once and free them
    /// when they end, and others take `piece` at once.
    ///
    /// While a drain is in progress, writers take as much as it will free. So that they need not
    /// stop before it ends, there must be room for all of it when it begins, and half as much again
    /// below and above in which the write controller finds its rate.
    fn drained(cap: u64, reserve: u64, piece: u64, drain: u64) -> Limits {
        // If the cap is so small that this would be most of it, drains and writers get less.
        let most = (cap / 8 * 5).saturating_sub(reserve + piece) / 7 * 4;
        let drain = drain.min(most);
        let stop = reserve + piece + drain / 4 * 3;
        Limits {
            cap,
            reserve,
            piece: 0,
            beside: 0,
            short: stop + drain,
            slow: (stop + drain, stop),
        }
    }
}

impl Limits {
    /// Returns whether a put may take these extents.
    fn fits(&self, usage: PoolUsage, [first, second]: [u64; 2]) -> bool {
        usage.fits([first + self.beside, second])
    }

    /// Returns the limits of the pool with `more` bytes in the reserve. On a full device no more
    /// can be kept free than the pool has grown ahead.
    fn within(self, usage: PoolUsage, more: u64) -> Limits {
        if !usage.is_device_full() && more == 0 {
            return self;
        }
        if !usage.is_device_full() {
            // Not in one piece: the entries that move are no larger.
            let reserve = self.reserve + more;
            return Limits {
                reserve,
                short: 2 * reserve,
                slow: (reserve + reserve / 2, reserve),
                ..self
            };
        }
        let reserve = self.reserve.min(usage.kept_ahead());
        Limits {
            cap: usage.limit,
            reserve,
            piece: self.piece.min(reserve),
            beside: self.beside.min(reserve / 2),
            short: 2 * reserve,
            slow: (reserve + reserve / 2, reserve),
        }
    }
}

impl Budget {
    fn is_short(&self) -> bool {
        self.free < self.limits.short
    }

    /// Returns the pressure on writers.
    fn pressure(&self) -> Pressure {
        let (from, to) = self.limits.slow;
        let range = (from - to).max(1);
        let missing = from.saturating_sub(self.free.saturating_add(self.pending_free));
        Pressure {
            part: missing.min(range) as f64 / range as f64,
            range,
        }
    }
}

/// Memtables and tables of a buffer that limits them. A drain takes all that are due, and frees
/// them when it ends.
#[derive(Debug, Clone, Copy)]
struct Tables {
    most: TablesMax,
    count: usize,
    bytes: u64,
    /// As in a budget.
    pending_free: u64,
}

impl Tables {
    /// Returns the pressure on writers.
    fn pressure(&self) -> Pressure {
        let TablesMax {
            slow_bytes,
            stop_bytes,
            ..
        } = self.most;
        let range = (stop_bytes - slow_bytes).max(1);
        let filled = self.bytes.saturating_sub(slow_bytes) as f64 / range as f64;
        let done = self.pending_free as f64 / slow_bytes.max(1) as f64;
        Pressure {
            part: beside_drain(filled, done),
            range,
        }
    }
}

/// A scarce resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Space in the pool above what is kept for background work.
    Pool,
    /// Space for log files, some of which drains can free.
    Logs,
    /// Fewer memtables and tables of the buffer, which drains lead to.
    Tables,
}

/// The free space of all resources.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headroom {
    pool: Budget,
    usage: PoolUsage,
    /// Whether no piece of the pool is large enough for another memtable, or for what moves,
    /// whatever the sum.
    in_pieces: bool,
    /// Whether free space suffices for another memtable of a put, but no piece is long enough.
    needs_joining: bool,
    /// Log files.
    logs: Option<Budget>,
    /// The log bytes of the active memtable and of the spare.
    logs_needed: u64,
    /// Unwritten bytes of memtables.
    memtables: Budget,
    /// Memtables and tables, if the buffer limits these.
    tables: Option<Tables>,
}

impl Headroom {
    /// Returns how urgently space is needed.
    pub(crate) fn urgency(&self) -> Urgency {
        if self.pool_is_short() || self.logs.is_some_and(|logs| logs.is_short()) {
            Urgency::Space
        } else {
            Urgency::None
        }
    }

    /// Returns the pressures that slow writers, including that of the bottom.
    fn pressures(&self, bottom: Pressure) -> [(StallReason, Pressure); 5] {
        let logs = self.logs.map(|logs| logs.pressure());
        let tables = self.tables.map(|tables| tables.pressure());
        [
            (StallReason::PoolNearlyFull, self.pool.pressure()),
            (StallReason::CompactionBehind, bottom),
            (StallReason::LogCap, logs.unwrap_or_default()),
            (StallReason::MemtablesSealed, self.memtables.pressure()),
            (StallReason::TablesUndrained, tables.unwrap_or_default()),
        ]
    }

    /// Returns whether there are more logs than those of the active memtable and of the spare, and
    /// drains free some.
    pub(crate) fn has_logs_to_free(&self) -> bool {
        self.logs
            .is_some_and(|logs| logs.limits.cap - logs.free.min(logs.limits.cap) > self.logs_needed)
    }

    /// Returns the pressure of the pool, the logs or the tables, whichever is highest.
    pub(crate) fn pressing(&self) -> f64 {
        let pool = self.pool.pressure().part;
        let logs = self.logs.map_or(0.0, |logs| logs.pressure().part);
        let tables = self.tables.map_or(0.0, |tables| tables.pressure().part);
        pool.max(logs).max(tables)
    }

    /// Returns whether there are as many memtables and tables of the buffer as there may be.
    pub(super) fn is_at_tables_max(&self) -> bool {
        self.tables
            .is_some_and(|tables| tables.count >= tables.most.count)
    }

    /// Returns whether space in the pool should be freed.
    pub(crate) fn pool_is_short(&self) -> bool {
        self.pool.is_short() || self.in_pieces
    }

    /// Returns whether free space of the pool has to be joined before puts can continue.
    pub(super) fn needs_joining(&self) -> bool {
        self.needs_joining
    }

    /// Returns whether the reserve for background work is free.
    pub(crate) fn has_reserve(&self) -> bool {
        let limits = &self.pool.limits;
        self.pool.free >= limits.reserve && self.usage.largest_free >= limits.piece
    }

    /// Returns whether a put may take `bytes` more of the pool, and a place exists for them.
    pub(crate) fn allows(&self, bytes: SpareBytes) -> bool {
        let free = self.pool.free >= self.pool.limits.reserve + bytes.pool();
        free && self.pool.limits.fits(self.usage, bytes.extents)
    }

    /// Returns whether log files may take `bytes` more. A log larger than the cap is admitted while
    /// log files take little.
    pub(crate) fn allows_log(&self, bytes: SpareBytes) -> bool {
        self.logs.is_none_or(|logs| {
            let half = logs.limits.cap - logs.limits.cap / 2;
            logs.free >= bytes.log_file.min(half)
        })
    }
}

impl Throttle {
    /// Creates a throttle for these stages.
    pub(crate) fn new(shared: &Shared, stages: &Stages) -> Throttle {
        let front = stages.front.shape();
        let spare = stages.spare_bytes(None);
        // The logs of the active memtable, of the spare, of sealed and flushing memtables, and of
        // one table.
        let least = (front.sealed_count_max as u64 + 4) * spare.log_file;
        let drains_free_logs = shared.survival() == Survival::Files;
        let drain = stages.bottom.drain_bytes_max();
        let logs = drains_free_logs.then(|| {
            let cap = front.log_bytes_max.max(least);
            Limits::drained(cap, 0, spare.log_file, drain)
        });
        let buffer = stages.buffer.as_ref();
        Throttle {
            tables: buffer.and_then(|buffer| buffer.tables_max()),
            memtables: memtable_limits(front.sealed_count_max, front.memtable_bytes),
            table_bytes: (!leaves_pool(stages)).then(|| shared.options.table_bytes_max()),
            pool: pool_limits(shared, stages, spare),
            logs,
            log_bytes: spare.log_file,
            reason: AtomicU8::new(StallReason::PoolNearlyFull as u8),
            write_controller: WriteController::new(),
        }
    }

    /// Returns the free space and the other backlogs. Also sets the rate of writers accordingly.
    /// `busy`: background work has something to do.
    pub(crate) fn headroom(&self, shared: &Shared, backlogs: Backlogs, busy: bool) -> Headroom {
        let budget = |limits: Limits, used: u64, pending_free: u64| Budget {
            free: limits.cap.saturating_sub(used),
            pending_free,
            limits,
        };
        // Read before the usage: if a drain ends in between, its bytes count as free in both, and
        // writers are a little too fast for a moment, but not stopped.
        let pending_free = shared.pending_frees.bytes();
        let usage = shared.pool.usage();
        let known = self.table_bytes.unwrap_or(u64::MAX);
        let more = backlogs.table_bytes.saturating_sub(known);
        let limits = self.pool.within(usage, more);
        let free = usage.limit.saturating_sub(usage.allocated);
        let fits = limits.fits(usage, backlogs.spare.extents);
        if self.table_bytes.is_some() {
            // Filters of memtables that were made beside the reserve take less than an eighth.
            shared.keep_for_drains(limits.reserve / 8 * 7);
        }
        let headroom = Headroom {
            pool: Budget {
                free,
                pending_free,
                limits,
            },
            memtables: budget(self.memtables, backlogs.unflushed_bytes, 0),
            tables: self.tables.map(|most| Tables {
                most,
                count: backlogs.tables.0,
                bytes: backlogs.tables.1,
                pending_free,
            }),
            usage,
            logs_needed: 2 * self.log_bytes,
            in_pieces: !fits || usage.largest_free < limits.piece,
            needs_joining: !fits && free >= limits.reserve + backlogs.spare.pool(),
            logs: self
                .logs
                .map(|limits| budget(limits, backlogs.log_bytes, pending_free)),
        };
        let pressures = headroom.pressures(backlogs.bottom);
        let most = pressures.into_iter().rev();
        let most = most.max_by(|(_, a), (_, b)| a.part.total_cmp(&b.part));
        let (reason, pressure) = most.unwrap_or(pressures[0]);
        // Writers may still be slowed for a reason that has just gone.
        if pressure.part > 0.0 {
            self.reason.store(reason as u8, Ordering::Relaxed);
        }
        self.write_controller
            .steer(pressure, &shared.counters, busy);
        headroom
    }

    /// Returns why writes are slowed.
    pub(crate) fn reason(&self) -> StallReason {
        StallReason::ALL[usize::from(self.reason.load(Ordering::Relaxed))]
    }
}

/// Returns the limits of memtables: writers stop when the maximum number is sealed and the active
/// one is full. Filling one while another is flushed is normal.
fn memtable_limits(sealed_count_max: usize, memtable_bytes: u64) -> Limits {
    let cap = memtable_bytes.saturating_mul(sealed_count_max as u64 + 1);
    Limits {
        cap,
        reserve: 0,
        piece: 0,
        beside: 0,
        short: 0,
        slow: (cap / 2, 0),
    }
}

/// Returns whether drains leave the pool.
fn leaves_pool(stages: &Stages) -> bool {
    stages.buffer.is_some() && stages.bottom.is_outside_pool()
}

fn pool_limits(shared: &Shared, stages: &Stages, spare: SpareBytes) -> Limits {
    let options = &shared.options;
    let cap = options.pool.size_bytes;
    if leaves_pool(stages) {
        // Drains need no space in the pool, only flushes do. Those of the active memtable, of the
        // spare and of the sealed ones may all be still to come.
        let front = stages.front.shape();
        let flush = stages.buffer.as_ref().map_or(0, |it| it.flush_bytes());
        let flushes = flush * (front.sealed_count_max as u64 + 2);
        let memtable = spare.pool().max(front.memtable_bytes);
        let reserve = memtable.max(flushes).min(cap / 4);
        if stages
            .buffer
            .as_ref()
            .is_some_and(|it| it.tables_max().is_some())
        {
            // The number of tables slows writers before the pool is full, unless readers hold some.
            return Limits {
                cap,
                reserve,
                piece: 0,
                beside: 0,
                short: reserve + memtable / 2,
                slow: (reserve + memtable / 2, reserve),
            };
        }
        return Limits::drained(cap, reserve, memtable, stages.bottom.drain_bytes_max());
    }
    let memtables = 2 * spare.pool();
    let table = match stages.buffer {
        Some(_) => options.table_bytes_max(),
        None => 0,
    };
    let wanted = table + memtables + 2 * options.bottom.extent_bytes;
    // A pool hardly larger than its memtables must leave room for data too.
    let reserve = wanted.min(cap / 4);
    Limits {
        cap,
        reserve,
        piece: reserve,
        beside: stages.front.shape().memtable_bytes.min(reserve / 2),
        short: 2 * reserve,
        slow: (reserve + reserve / 2, reserve),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(limits: Limits, free: u64, pending_free: u64) -> Budget {
        Budget {
            free,
            pending_free,
            limits,
        }
    }

    /// Returns limits of pools and logs, of the usual sizes and of a few bytes.
    fn limits() -> Vec<Limits> {
        let mut all = vec![Limits {
            cap: 512 * MIB,
            reserve: 64 * MIB,
            piece: 0,
            beside: 0,
            short: 128 * MIB,
            slow: (96 * MIB, 64 * MIB),
        }];
        for cap in [1 << 30, 8 << 30, 64 * MIB, 32 << 10, 8, 0] {
            for reserve in [0, cap / 8, cap / 4] {
                for drain in [0, cap / 8, cap / 4, cap] {
                    all.push(Limits::drained(cap, reserve, cap / 16, drain));
                }
            }
        }
        all
    }

    /// Pressure is zero while all is free, ends at the stop, and rises without jumps in between.
    #[test]
    fn pressure_rises_smoothly() {
        for limits in limits() {
            let (from, to) = limits.slow;
            assert!(
                limits.reserve <= to && to <= from && from <= limits.short,
                "{limits:?}"
            );
            let mut last = 1.0;
            for step in 0..=1000 {
                let part = budget(limits, limits.cap / 1000 * step, 0).pressure().part;
                assert!((0.0..=last).contains(&part), "{limits:?}: {part} at {step}");
                last = part;
            }
            assert_eq!(budget(limits, from, 0).pressure().part, 0.0, "{limits:?}");
            if from > to {
                assert_eq!(budget(limits, to, 0).pressure().part, 1.0, "{limits:?}");
            }
        }
    }

    /// Writers are not slowed before anything is drained, and a drain of the largest size fits
    /// between its start and the stop.
    #[test]
    fn a_drain_fits_before_the_stop() {
        let limits = Limits::drained(1 << 30, 64 * MIB, 64 * MIB, 256 * MIB);
        let middle = (limits.slow.0 + limits.slow.1) / 2;
        assert!(middle - 256 * MIB >= limits.reserve, "{limits:?}");
        let begun = budget(limits, middle, 0).pressure().part;
        assert!((begun - 0.5).abs() < 0.01, "{begun}");
        let ended = budget(limits, middle - 200 * MIB, 200 * MIB)
            .pressure()
            .part;
        assert!(
            (begun - ended).abs() < 0.01,
            "a running drain changes nothing: {ended}"
        );
    }

    /// While the buffer has a table that is larger than usual, the reserve has space for its
    /// copies, and data is moved down and writers are slowed before only that is left.
    #[test]
    fn a_larger_table_has_a_larger_reserve() {
        let usage = |limit: u64| PoolUsage {
            cap: 512 * MIB,
            limit,
            committed: limit,
            allocated: 0,
            free: limit,
            largest_free: limit,
            second_free: 0,
            granule: 1,
        };
        for usual in limits() {
            let same = usual.within(usage(512 * MIB), 0);
            assert_eq!((same.reserve, same.short), (usual.reserve, usual.short));
            let larger = usual.within(usage(512 * MIB), 100 * MIB);
            assert_eq!(larger.reserve, usual.reserve + 100 * MIB, "{usual:?}");
            assert!(larger.short >= larger.reserve + 100 * MIB, "{usual:?}");
            let (from, to) = larger.slow;
            assert!(larger.reserve <= to && to < from && from <= larger.short);
            assert_eq!((larger.piece, larger.beside), (usual.piece, usual.beside));
        }
    }

    /// The highest pressure counts, and logs are admitted while there is room.
    #[test]
    fn each_reason_counts() {
        let limits = Limits::drained(1 << 30, 64 * MIB, 64 * MIB, 256 * MIB);
        let memtables = memtable_limits(2, 64 * MIB);
        let headroom = |pool, logs| Headroom {
            memtables: budget(memtables, memtables.cap, 0),
            pool: budget(limits, pool, 0),
            usage: PoolUsage {
                cap: limits.cap,
                limit: limits.cap,
                committed: limits.cap,
                allocated: limits.cap - pool,
                free: pool,
                largest_free: pool,
                second_free: 0,
                granule: 1,
            },
            in_pieces: false,
            needs_joining: false,
            logs_needed: 0,
            logs: Some(budget(limits, logs, 0)),
            tables: None,
        };
        let bottom = |part| Pressure { part, range: 1 };
        let parts = |h: Headroom, b| h.pressures(bottom(b)).map(|(_, p)| p.part);
        assert_eq!(parts(headroom(1 << 30, 1 << 30), 0.0), [0.0; 5]);
        assert_eq!(
            parts(headroom(0, 1 << 30), 0.25),
            [1.0, 0.25, 0.0, 0.0, 0.0]
        );
        assert_eq!(parts(headroom(1 << 30, 0), 0.0), [0.0, 0.0, 1.0, 0.0, 0.0]);
        for (waiting, part) in [(0, 0.0), (96, 0.0), (144, 0.5), (192, 1.0), (900, 1.0)] {
            let mut headroom = headroom(1 << 30, 1 << 30);
            headroom.memtables.free = memtables.cap.saturating_sub(waiting * MIB);
            assert_eq!(parts(headroom, 0.0)[3], part, "{waiting} MiB");
        }
        // A drain of 40 MiB that has written none, half and all of them.
        for (used, expected) in [
            (0, [0.0, 0.0, 0.0]),
            (40, [0.0, 0.0, 0.0]),
            (42, [0.9, 0.0, 0.0]),
            (50, [1.0, 0.5, 0.0]),
            (60, [1.0, 1.0, 0.5]),
        ] {
            for (written, part) in [0, 20, 40].into_iter().zip(expected) {
                let mut headroom = headroom(1 << 30, 1 << 30);
                headroom.tables = Some(Tables {
                    most: TablesMax {
                        slow_bytes: 40 * MIB,
                        stop_bytes: 60 * MIB,
                        count: 6,
                    },
                    count: used as usize / 10,
                    bytes: used * MIB,
                    pending_free: written * MIB,
                });
                let what = format!("{written} of {used} MiB");
                assert!((headroom.pressing() - part).abs() < 1e-9, "{what}");
                assert_eq!(parts(headroom, 0.0)[4], headroom.pressing(), "{what}");
                assert_eq!(headroom.is_at_tables_max(), used == 60, "{what}");
            }
        }
        assert_eq!(headroom(1 << 30, 1 << 30).urgency(), Urgency::None);
        assert_eq!(
            headroom(1 << 30, limits.short - 1).urgency(),
            Urgency::Space
        );
        assert_eq!(
            headroom(limits.short - 1, 1 << 30).urgency(),
            Urgency::Space
        );
        let bytes = |log_file| SpareBytes {
            log_file,
            ..SpareBytes::default()
        };
        assert!(headroom(0, 8).allows_log(bytes(8)));
        assert!(!headroom(0, 8).allows_log(bytes(9)));
        assert!(
            headroom(0, 1 << 29).allows_log(bytes(1 << 40)),
            "too large, but admitted"
        );
        assert!(!headroom(64 * MIB - 1, 0).allows(bytes(0)));
    }
}
