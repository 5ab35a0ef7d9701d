//! A counting allocator: wraps that of the system and counts the bytes in use and their peak,
//! including memory that the media crate has mapped. A program makes it its global allocator.

#![allow(unsafe_code, reason = "implementing an allocator is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The allocator.
pub struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed to the system's allocator unchanged; counting has no effect on it.
// Growing allocates, copies and frees, so both allocations are counted while both may exist.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as u64;
        let live = LIVE.fetch_add(size, Ordering::Relaxed) + size;
        PEAK.fetch_max(live + terrace_media::anonymous_bytes(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Returns the bytes in use, on the heap and mapped. The heap counts as 0 unless this is the global
/// allocator.
pub fn in_use() -> u64 {
    LIVE.load(Ordering::Relaxed) + terrace_media::anonymous_bytes()
}

/// Resets the peak.
pub fn begin() {
    PEAK.store(in_use(), Ordering::Relaxed);
}

/// Returns the peak of bytes in use since `begin`.
pub fn peak() -> u64 {
    PEAK.load(Ordering::Relaxed)
}
