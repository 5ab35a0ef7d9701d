//! Other processors: no flush instruction is known, so only media that need none are supported.

use super::Flush;

pub(super) const FENCE_NAME: &str = "fence";

pub(super) fn best_flush() -> Flush {
    Flush::Nothing
}

/// # Safety
/// Always safe: it does nothing.
pub(super) unsafe fn flush_lines(_: Flush, _: *const u8, _: usize) {}

pub(super) fn fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// # Safety
/// As `super::stream`.
pub(super) unsafe fn stream(_: Flush, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
}
