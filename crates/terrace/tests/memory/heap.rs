//! This file is the allocator of this test program: the system's, with a count of the bytes in use and
//! of their peak, memory that the media crate has mapped included.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static HEAP: Counting = Counting;

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

/// Bytes in use now, on the heap and mapped.
pub(crate) fn in_use() -> u64 {
    LIVE.load(Ordering::Relaxed) + terrace_media::anonymous_bytes()
}

/// Forgets the peak before now.
pub(crate) fn begin() {
    PEAK.store(in_use(), Ordering::Relaxed);
}

/// The most that was in use at one time since `begin`.
pub(crate) fn peak() -> u64 {
    PEAK.load(Ordering::Relaxed)
}
