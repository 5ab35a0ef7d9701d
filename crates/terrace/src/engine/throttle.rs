//! Throttle: how the pool's free space bears on writers and on background work.
//!
//! A reserve is kept free so that draining can always go on: the copies of the largest table that
//! may have to move, memtables on their way down, and extents for the repository to move in. As
//! free space comes near the reserve, data is moved down early; nearer still, writers are slowed;
//! puts that would eat into it wait while work in progress can free space, and get `Full` when
//! none can. Deletes may use the reserve: they are how space comes back.
//!
//! Where the buffer is memory, what is in it is in log files too, and these have a cap: as they come
//! near it, the oldest data is drained, whatever its level; nearer still, writers are slowed; a
//! memtable whose log would go over it waits for a drain. So nothing keeps a log for ever: neither a
//! keyspace that nobody writes, nor memtables that were flushed almost empty.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::metrics::StallReason;
use crate::stages::{Ground, SpareBytes, Urgency};

use super::Pipeline;

/// The longest that one write is slowed by.
const DELAY_MAX: Duration = Duration::from_micros(200);

/// The state of the throttle.
pub(crate) struct Throttle {
    reserve: u64,
    /// Nanoseconds by which each write is slowed.
    delay_nanos: AtomicU64,
    /// Why: the place of a reason in `REASONS`.
    reason: AtomicU8,
    /// What log files may take, where draining gives them back.
    log_cap: Option<u64>,
}

const REASONS: [StallReason; 3] = [
    StallReason::PoolNearlyFull,
    StallReason::CompactionBehind,
    StallReason::LogCap,
];

/// How much is free, against the reserve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headroom {
    pub(crate) free: u64,
    pub(crate) reserve: u64,
    /// What log files take, and may take.
    pub(crate) logs: Option<(u64, u64)>,
}

impl Headroom {
    /// How urgently space is needed.
    pub(crate) fn urgency(&self) -> Urgency {
        if self.pool_is_short() {
            return Urgency::Space;
        }
        let logs_short = self.logs.is_some_and(|(live, cap)| live > cap - cap / 4);
        if logs_short {
            Urgency::Space
        } else {
            Urgency::None
        }
    }

    /// Whether the pool should be given room.
    pub(crate) fn pool_is_short(&self) -> bool {
        self.free < 2 * self.reserve
    }

    /// Whether a put may take `bytes` more of the pool.
    pub(crate) fn allows(&self, bytes: SpareBytes) -> bool {
        self.free >= self.reserve + bytes.pool
    }

    /// Whether log files may take `bytes` more. A log that is larger than what they may take is let in
    /// when they take little.
    pub(crate) fn allows_log(&self, bytes: SpareBytes) -> bool {
        self.logs
            .is_none_or(|(live, cap)| live + bytes.log_file <= cap || live <= cap / 2)
    }
}

impl Throttle {
    /// A throttle for these stages.
    pub(crate) fn new(ground: &Ground, pipeline: &Pipeline) -> Throttle {
        let options = &ground.options;
        let spare = pipeline.front.spare_bytes(None);
        let memtables = 2 * spare.pool;
        let table = match pipeline.buffer {
            Some(_) => options.table_bytes_max(),
            None => 0,
        };
        let wanted = table + memtables + 2 * options.bottom.extent_bytes;
        // A pool hardly larger than its memtables must leave room for data too.
        let reserve = wanted.min(options.pool.size_bytes / 4);
        // Those of the active memtable, of the spare, of what is being sealed or flushed, and one table.
        let least = (options.front.sealed_count_max as u64 + 4) * spare.log_file;
        let drains_free_logs = !ground.pool_outlives() && pipeline.bottom.is_durable();
        let log_cap = drains_free_logs.then_some(options.front.log_bytes_max.max(least));
        Throttle {
            reserve,
            delay_nanos: AtomicU64::new(0),
            reason: AtomicU8::new(0),
            log_cap,
        }
    }

    /// Free space now, beside log files of so many bytes. Also sets how much writers are slowed, for its
    /// sake or under the `pressure` of the bottom.
    pub(crate) fn headroom(&self, ground: &Ground, pressure: f64, log_bytes: u64) -> Headroom {
        let usage = ground.pool.usage();
        let headroom = Headroom {
            free: usage.cap.saturating_sub(usage.allocated),
            reserve: self.reserve,
            logs: self.log_cap.map(|cap| (log_bytes, cap)),
        };
        // From nothing at one and a half reserves to the most at one.
        let over = headroom.free.saturating_sub(self.reserve);
        let half = (self.reserve / 2).max(1);
        let missing = half.saturating_sub(over);
        let most = DELAY_MAX.as_nanos() as u64;
        let delay = most * (missing * 1000 / half) / 1000;
        let behind = (most as f64 * pressure.clamp(0.0, 1.0)) as u64;
        // From nothing at seven eighths of the cap to the most at the cap.
        let logs = headroom.logs.map_or(0, |(live, cap)| {
            let eighth = (cap / 8).max(1);
            let over = live.saturating_sub(cap - eighth).min(eighth);
            most * (over * 1000 / eighth) / 1000
        });
        let delays = [delay, behind, logs];
        let longest = (0..delays.len()).max_by_key(|&at| (delays[at], delays.len() - at));
        let at = longest.unwrap_or(0);
        self.reason.store(at as u8, Ordering::Relaxed);
        self.delay_nanos.store(delays[at], Ordering::Relaxed);
        headroom
    }

    /// Why writes are slowed.
    pub(crate) fn reason(&self) -> StallReason {
        REASONS[usize::from(self.reason.load(Ordering::Relaxed)) % REASONS.len()]
    }

    /// How long the next write is to be slowed.
    #[inline]
    pub(crate) fn delay(&self) -> Option<Duration> {
        match self.delay_nanos.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}
