//! x86-64: CLWB, CLFLUSHOPT or CLFLUSH, SFENCE, and the widest non-temporal stores.
//!
//! Streaming writes use the widest non-temporal stores for whole lines, and 8-byte ones for the
//! partial lines at both ends if address and length are multiples of 8. Otherwise the ends are
//! copied through the cache and flushed, which costs a read of the line, so performance-sensitive
//! callers pad to words.

use super::{Flush, LINE};
use std::arch::asm;
use std::arch::x86_64::{
    __cpuid_count, __m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si64, _mm_stream_si128,
    _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
};
use std::sync::atomic::{AtomicU8, Ordering};

pub(super) const FENCE_NAME: &str = "sfence";

pub(super) fn best_flush() -> Flush {
    // Leaf 7 exists on every processor with these instructions; the bits are documented in the
    // manuals of Intel and AMD.
    let highest = __cpuid_count(0, 0).eax;
    let ebx = if highest >= 7 {
        __cpuid_count(7, 0).ebx
    } else {
        0
    };
    if ebx & (1 << 24) != 0 {
        Flush::Clwb
    } else if ebx & (1 << 23) != 0 {
        Flush::ClflushOpt
    } else {
        Flush::Clflush
    }
}

/// # Safety
/// `lines` lines from `first` are mapped.
#[inline]
pub(super) unsafe fn flush_lines(kind: Flush, first: *const u8, lines: usize) {
    macro_rules! each_line {
        ($instruction:literal) => {
            for i in 0..lines {
                // SAFETY: the line is mapped, the instruction does not change it, and the processor
                // supports it, because `best_flush` chose it.
                unsafe {
                    asm!(concat!($instruction, " [{}]"), in(reg) first.add(i * LINE),
                        options(nostack, preserves_flags));
                }
            }
        };
    }
    match kind {
        Flush::Clwb => each_line!("clwb"),
        Flush::ClflushOpt => each_line!("clflushopt"),
        Flush::Clflush => each_line!("clflush"),
        Flush::Nothing | Flush::FenceOnly | Flush::DcCvap | Flush::DcCvac => {}
    }
}

#[inline]
pub(super) fn fence() {
    // SAFETY: every x86-64 processor has SSE, and a fence does not access memory.
    unsafe { _mm_sfence() };
}

const UNKNOWN: u8 = 0;
const SSE2: u8 = 1;
const AVX2: u8 = 2;
const AVX512: u8 = 3;

static WIDTH: AtomicU8 = AtomicU8::new(UNKNOWN);

#[inline]
fn width() -> u8 {
    match WIDTH.load(Ordering::Relaxed) {
        UNKNOWN => detect_width(),
        width => width,
    }
}

#[cold]
fn detect_width() -> u8 {
    let width = if is_x86_feature_detected!("avx512f") {
        AVX512
    } else if is_x86_feature_detected!("avx2") {
        AVX2
    } else {
        SSE2
    };
    WIDTH.store(width, Ordering::Relaxed);
    width
}

/// # Safety
/// As `super::stream`.
#[inline]
pub(super) unsafe fn stream(kind: Flush, dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // Partial lines bypass the cache only if they consist of whole words.
    let words = (dst as usize | len).is_multiple_of(8);
    // SAFETY: head, whole lines and tail partition the caller's ranges, and the features of each
    // copy were detected.
    unsafe {
        if head > 0 {
            part_of_line(kind, dst, src, head, words);
        }
        if lines > 0 {
            let (dst, src) = (dst.add(head), src.add(head));
            match width() {
                AVX512 => lines_avx512(dst, src, lines),
                AVX2 => lines_avx2(dst, src, lines),
                _ => lines_sse2(dst, src, lines),
            }
        }
        if tail < len {
            part_of_line(kind, dst.add(tail), src.add(tail), len - tail, words);
        }
    }
}

/// Copies less than a line: with 8-byte non-temporal stores if `words`, else through the cache.
///
/// # Safety
/// As `super::stream`; with `words`, `dst` and `len` are multiples of 8.
#[inline]
unsafe fn part_of_line(kind: Flush, dst: *mut u8, src: *const u8, len: usize, words: bool) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if words {
            for at in (0..len).step_by(8) {
                _mm_stream_si64(
                    dst.add(at).cast(),
                    src.add(at).cast::<i64>().read_unaligned(),
                );
            }
        } else {
            std::ptr::copy_nonoverlapping(src, dst, len);
            super::flush(kind, dst, len);
        }
    }
}

/// # Safety
/// `dst` is line-aligned, both ranges contain `lines` lines, and the processor has AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn lines_avx512(dst: *mut u8, src: *const u8, lines: usize) {
    for i in 0..lines {
        // SAFETY: line i of both ranges; the destination is 64-byte aligned.
        unsafe {
            let line = _mm512_loadu_si512(src.add(i * LINE).cast());
            _mm512_stream_si512(dst.add(i * LINE).cast(), line);
        }
    }
}

/// # Safety
/// `dst` is line-aligned, both ranges contain `lines` lines, and the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn lines_avx2(dst: *mut u8, src: *const u8, lines: usize) {
    for i in 0..lines * 2 {
        // SAFETY: half-line i of both ranges; the destination is 32-byte aligned.
        unsafe {
            let half = _mm256_loadu_si256(src.add(i * 32).cast());
            _mm256_stream_si256(dst.add(i * 32).cast(), half);
        }
    }
}

/// # Safety
/// `dst` is line-aligned and both ranges contain `lines` lines.
unsafe fn lines_sse2(dst: *mut u8, src: *const u8, lines: usize) {
    for i in 0..lines * 4 {
        // SAFETY: quarter-line i of both ranges; the destination is 16-byte aligned, and every
        // x86-64 processor has SSE2.
        unsafe {
            let quarter = _mm_loadu_si128(src.add(i * 16).cast::<__m128i>());
            _mm_stream_si128(dst.add(i * 16).cast(), quarter);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests of every store width and flush instruction of this processor, not only the chosen
    //! ones.
    use super::*;

    #[repr(align(64))]
    struct Lines([u8; 640]);

    /// Each width copies whole lines, byte for byte, from any address.
    #[test]
    fn every_width_copies_lines() {
        let src: Vec<u8> = (0..800u32).map(|i| (i * 13 + 5) as u8).collect();
        for from in 0..9 {
            for lines in 0..9 {
                for width in [SSE2, AVX2, AVX512] {
                    let mut dst = Lines([0; 640]);
                    let (to, src) = (dst.0.as_mut_ptr(), &src[from..]);
                    // SAFETY: the lines are inside both buffers, and the features are checked.
                    unsafe {
                        match width {
                            AVX512 if is_x86_feature_detected!("avx512f") => {
                                lines_avx512(to, src.as_ptr(), lines);
                            }
                            AVX2 if is_x86_feature_detected!("avx2") => {
                                lines_avx2(to, src.as_ptr(), lines);
                            }
                            _ => lines_sse2(to, src.as_ptr(), lines),
                        }
                    }
                    fence();
                    assert_eq!(dst.0[..lines * LINE], src[..lines * LINE]);
                    assert!(dst.0[lines * LINE..].iter().all(|b| *b == 0));
                }
            }
        }
    }

    /// Each supported instruction executes and leaves the bytes unchanged.
    #[test]
    fn every_flush_keeps_the_bytes() {
        let best = best_flush();
        let older = match best {
            Flush::Clwb => &[Flush::Clwb, Flush::ClflushOpt, Flush::Clflush][..],
            Flush::ClflushOpt => &[Flush::ClflushOpt, Flush::Clflush],
            _ => &[Flush::Clflush],
        };
        for kind in older {
            let lines = Lines([7; 640]);
            // SAFETY: the buffer has ten lines.
            unsafe { flush_lines(*kind, lines.0.as_ptr(), 10) };
            fence();
            assert!(lines.0.iter().all(|b| *b == 7));
        }
    }
}
