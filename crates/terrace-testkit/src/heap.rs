//! An allocator that counts: the system's, with the bytes in use and their peak, memory that the media
//! crate has mapped included. A program that wants to know makes it its global allocator.

#![allow(unsafe_code, reason = "an allocator is unsafe to be one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The allocator.
pub struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator as it is; counting changes nothing. What
// grows is allocated anew, copied and freed, so both are counted while both may be there.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as u64;
        let live = LIVE.fetch_add(size, Ordering::Relaxed) + size;
        PEAK.fetch_max(live + terrace_media::anonymous_bytes(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Bytes in use now, on the heap and mapped; 0 on the heap where this is not the global allocator.
pub fn in_use() -> u64 {
    LIVE.load(Ordering::Relaxed) + terrace_media::anonymous_bytes()
}

/// Forgets the peak before now.
pub fn begin() {
    PEAK.store(in_use(), Ordering::Relaxed);
}

/// The most that was in use at one time since `begin`.
pub fn peak() -> u64 {
    PEAK.load(Ordering::Relaxed)
}
