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

    /// By how many nanoseconds a write is slowed for each of `REASONS`, under the `pressure` of the bottom.
    fn delays(&self, pressure: f64) -> [u64; 3] {
        let most = DELAY_MAX.as_nanos() as u64;
        // From nothing at one and a half reserves to the most at one.
        let over = self.free.saturating_sub(self.reserve);
        let half = (self.reserve / 2).max(1);
        let missing = half.saturating_sub(over);
        let pool = most * (missing * 1000 / half) / 1000;
        let behind = (most as f64 * pressure.clamp(0.0, 1.0)) as u64;
        // From nothing at seven eighths of the cap to the most at the cap.
        let logs = self.logs.map_or(0, |(live, cap)| {
            let eighth = (cap / 8).max(1);
            let over = live.saturating_sub(cap - eighth).min(eighth);
            most * (over * 1000 / eighth) / 1000
        });
        [pool, behind, logs]
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
        let delays = headroom.delays(pressure);
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MOST: u64 = DELAY_MAX.as_nanos() as u64;

    fn headroom(free: u64, logs: Option<(u64, u64)>) -> Headroom {
        Headroom {
            free,
            reserve: 64 * MIB,
            logs,
        }
    }

    /// Checks a curve from where there is no need to where there is the most: it begins at nothing, ends at
    /// the longest delay, never falls, and never jumps.
    fn check(what: &str, curve: &[u64]) {
        assert_eq!(curve.first(), Some(&0), "{what}: slowed without need");
        assert_eq!(curve.last(), Some(&MOST), "{what}");
        for pair in curve.windows(2) {
            assert!(pair[0] <= pair[1], "{what} falls: {pair:?}");
            assert!(pair[1] - pair[0] <= MOST / 50, "{what} jumps: {pair:?}");
        }
    }

    /// Each reason slows writers smoothly, by at most the longest delay, and not before there is need.
    #[test]
    fn writers_are_slowed_smoothly() {
        let steps = 0..=1000u64;
        let pool = |step| headroom(200 * MIB - step * (200 * MIB / 1000), None).delays(0.0)[0];
        check("the pool", &steps.clone().map(pool).collect::<Vec<_>>());
        let behind = |step| headroom(u64::MAX, None).delays(step as f64 / 1000.0)[1];
        check("compaction", &steps.clone().map(behind).collect::<Vec<_>>());
        let cap = 1000 * MIB;
        let logs = |step| headroom(u64::MAX, Some((step * MIB, cap))).delays(0.0)[2];
        check("logs", &steps.map(logs).collect::<Vec<_>>());
    }

    /// The ends of the curves are where the documents say.
    #[test]
    fn delays_begin_and_end_where_they_should() {
        assert_eq!(headroom(96 * MIB, None).delays(0.0), [0, 0, 0]);
        assert!(headroom(95 * MIB, None).delays(0.0)[0] > 0);
        assert_eq!(headroom(64 * MIB, None).delays(0.0), [MOST, 0, 0]);
        assert_eq!(headroom(0, None).delays(0.0), [MOST, 0, 0]);
        let logs = |live| headroom(u64::MAX, Some((live, 800))).delays(0.0)[2];
        assert_eq!((logs(700), logs(800), logs(80_000)), (0, MOST, MOST));
        assert!(logs(701) > 0);
        for pressure in [-1.0, 0.0, f64::NAN] {
            assert_eq!(headroom(u64::MAX, None).delays(pressure), [0, 0, 0]);
        }
        assert_eq!(headroom(u64::MAX, None).delays(7.0), [0, MOST, 0]);
    }

    /// Caps and reserves of a few bytes divide by nothing.
    #[test]
    fn tiny_limits_are_limits() {
        for n in 0..20 {
            let tiny = Headroom {
                free: n,
                reserve: 1,
                logs: Some((n, 1)),
            };
            assert!(tiny.delays(0.0).into_iter().all(|delay| delay <= MOST));
            tiny.urgency();
        }
    }
}
