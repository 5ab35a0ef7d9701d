//! Throttle: how the pool's free space bears on writers and on background work.
//!
//! A reserve is kept free so that draining can always go on: the copies of the largest table that
//! may have to move, memtables on their way down, and extents for the repository to move in. As
//! free space comes near the reserve, data is moved down early; nearer still, writers are slowed;
//! puts that would eat into it wait while work in progress can free space, and get `Full` when
//! none can. Deletes may use the reserve: they are how space comes back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::metrics::StallReason;
use crate::stages::{Ground, Urgency};

use super::Pipeline;

/// The longest that one write is slowed by.
const DELAY_MAX: Duration = Duration::from_micros(200);

/// The state of the throttle.
pub(crate) struct Throttle {
    reserve: u64,
    /// Nanoseconds by which each write is slowed.
    delay_nanos: AtomicU64,
    /// Whether the bottom is why.
    behind: AtomicBool,
}

/// How much is free, against the reserve.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headroom {
    pub(crate) free: u64,
    pub(crate) reserve: u64,
}

impl Headroom {
    /// How urgently space is needed.
    pub(crate) fn urgency(&self) -> Urgency {
        if self.free < 2 * self.reserve {
            Urgency::Space
        } else {
            Urgency::None
        }
    }

    /// Whether a put may take `bytes` more.
    pub(crate) fn allows(&self, bytes: u64) -> bool {
        self.free >= self.reserve + bytes
    }
}

impl Throttle {
    /// A throttle for these stages.
    pub(crate) fn new(ground: &Ground, pipeline: &Pipeline) -> Throttle {
        let options = &ground.options;
        let memtables = 2 * pipeline.front.spare_bytes(None);
        let wanted = pipeline
            .buffer
            .as_ref()
            .map_or(0, |buffer| buffer.drain_bytes_max())
            + memtables
            + 2 * options.bottom.extent_bytes;
        // A pool hardly larger than its memtables must leave room for data too.
        let reserve = wanted.min(options.pool.size_bytes / 4);
        Throttle {
            reserve,
            delay_nanos: AtomicU64::new(0),
            behind: AtomicBool::new(false),
        }
    }

    /// Free space now. Also sets how much writers are slowed, for its sake or under the `pressure` of
    /// the bottom.
    pub(crate) fn headroom(&self, ground: &Ground, pressure: f64) -> Headroom {
        let usage = ground.pool.usage();
        let headroom = Headroom {
            free: usage.cap.saturating_sub(usage.allocated),
            reserve: self.reserve,
        };
        // From nothing at one and a half reserves to the most at one.
        let over = headroom.free.saturating_sub(self.reserve);
        let half = (self.reserve / 2).max(1);
        let missing = half.saturating_sub(over);
        let most = DELAY_MAX.as_nanos() as u64;
        let delay = most * (missing * 1000 / half) / 1000;
        let behind = (most as f64 * pressure.clamp(0.0, 1.0)) as u64;
        self.behind.store(behind > delay, Ordering::Relaxed);
        self.delay_nanos.store(delay.max(behind), Ordering::Relaxed);
        headroom
    }

    /// Why writes are slowed.
    pub(crate) fn reason(&self) -> StallReason {
        if self.behind.load(Ordering::Relaxed) {
            StallReason::CompactionBehind
        } else {
            StallReason::PoolNearlyFull
        }
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
