//! aarch64: DC CVAP if the processor has a point of persistence, else DC CVAC, and DSB.
//!
//! Lines are visited in steps of 64 bytes. A processor with longer lines cleans some of them twice.
//! No processor that runs Linux with a flush domain has shorter lines.

use super::{Flush, LINE};
use std::arch::asm;

pub(super) const FENCE_NAME: &str = "dsb";

pub(super) fn best_flush() -> Flush {
    if std::arch::is_aarch64_feature_detected!("dpb") {
        Flush::DcCvap
    } else {
        Flush::DcCvac
    }
}

/// # Safety
/// `lines` lines from `first` are mapped.
#[inline]
pub(super) unsafe fn flush_lines(kind: Flush, first: *const u8, lines: usize) {
    for i in 0..lines {
        // SAFETY: the line is mapped, and cleaning does not change it. CVAP is encoded as a generic
        // system instruction, so that no assembler feature is needed.
        unsafe {
            let line = first.add(i * LINE);
            match kind {
                Flush::DcCvap => {
                    asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags));
                }
                Flush::DcCvac => {
                    asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags));
                }
                _ => return,
            }
        }
    }
}

#[inline]
pub(super) fn fence() {
    // SAFETY: a barrier does not access memory.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
}

/// # Safety
/// As `super::stream`.
#[inline]
pub(super) unsafe fn stream(kind: Flush, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: guaranteed by the caller. The architecture's non-temporal pair stores are hints
    // without any ordering, so an ordinary copy followed by a clean is as good.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, len);
        super::flush(kind, dst, len);
    }
}
