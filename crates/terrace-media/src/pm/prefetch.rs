//! This file asks the processor for bytes before they are used.

use super::arch::LINE;

/// Lines that one call asks for at most.
const LINES_MAX: usize = 128;

/// Asks the processor to load bytes that will be read soon: all their lines at once, where reading them one
/// after the other would wait for each. Of many bytes the first 8 KiB: by then the processor foresees the rest, and
/// more would push out what was brought.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE).take(LINES_MAX) {
        prefetch_line(line.as_ptr());
    }
}

/// Asks for the line at an address, which may be any.
#[inline(always)]
pub(super) fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect but on speed.
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
