//! Prefetching: asks the processor to load bytes before they are used.

use super::arch::LINE;

/// The most lines that one call prefetches.
const LINES_MAX: usize = 128;

/// Prefetches bytes that will be read soon. Their lines load in parallel, while reads one after the
/// other would wait for each. Limited to the first 8 KiB: by then the hardware prefetcher has
/// detected the pattern, and more would evict lines just loaded.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE).take(LINES_MAX) {
        prefetch_line(line.as_ptr());
    }
}

/// Prefetches the first line of a value.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    prefetch_line(std::ptr::from_ref(value).cast());
}

/// Prefetches the line at any address.
#[inline(always)]
pub(super) fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address affects only speed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
