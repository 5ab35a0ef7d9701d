//! Instruction choice: how lines are written back on this processor, decided once.
//!
//! Each architecture file has the same four functions: `best_flush`, `flush_lines`, `fence` and
//! `stream`. Nothing outside this folder executes a flush, a fence for media or a non-temporal
//! store.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as imp;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
use portable as imp;
#[cfg(target_arch = "x86_64")]
use x86_64 as imp;

/// The unit of transfer between caches and media.
pub(crate) const LINE: usize = 64;

/// The instruction that makes a line durable on a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flush {
    /// None: the kernel syncs the medium, or it is not durable at all.
    Nothing,
    /// A fence alone: the caches are in the persistence domain.
    FenceOnly,
    /// CLWB: write back and keep the line.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86-64 only"))]
    Clwb,
    /// CLFLUSHOPT: write back and evict, unordered.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86-64 only"))]
    ClflushOpt,
    /// CLFLUSH: write back and evict, ordered.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86-64 only"))]
    Clflush,
    /// DC CVAP: clean to the point of persistence.
    #[cfg_attr(
        not(target_arch = "aarch64"),
        allow(dead_code, reason = "aarch64 only")
    )]
    DcCvap,
    /// DC CVAC: clean to the point of coherency, if CVAP is missing.
    #[cfg_attr(
        not(target_arch = "aarch64"),
        allow(dead_code, reason = "aarch64 only")
    )]
    DcCvac,
}

impl Flush {
    /// Returns the best instruction of this processor.
    pub(crate) fn best() -> Flush {
        imp::best_flush()
    }

    /// Returns the name of the instructions for reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Flush::Nothing => "none",
            Flush::FenceOnly => imp::FENCE_NAME,
            Flush::Clwb => "clwb+sfence",
            Flush::ClflushOpt => "clflushopt+sfence",
            Flush::Clflush => "clflush+sfence",
            Flush::DcCvap => "dc cvap+dsb",
            Flush::DcCvac => "dc cvac+dsb",
        }
    }
}

/// Returns the lines that cover `len` bytes at `addr`: the address of the first and their number.
#[inline]
pub(crate) fn cover(addr: usize, len: usize) -> (usize, usize) {
    let first = addr & !(LINE - 1);
    let end = (addr + len + LINE - 1) & !(LINE - 1);
    (first, (end - first) / LINE)
}

/// Starts the write-back of every line that contains one of the `len` bytes at `addr`.
///
/// # Safety
/// The bytes are mapped.
#[inline]
pub(crate) unsafe fn flush(kind: Flush, addr: *const u8, len: usize) {
    let (first, lines) = cover(addr as usize, len);
    // SAFETY: the bytes are mapped, and so are their lines, since pages consist of whole lines.
    unsafe { imp::flush_lines(kind, addr.with_addr(first), lines) };
}

/// Waits until this thread's flushes and streaming stores are in the persistence domain.
#[inline]
pub(crate) fn fence(kind: Flush) {
    if kind == Flush::Nothing {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    } else {
        imp::fence();
    }
}

/// Copies `len` bytes so that they are durable after the next fence.
///
/// # Safety
/// `src..src+len` is readable, `dst..dst+len` is writable by this thread alone, and they are
/// disjoint.
#[inline]
pub(crate) unsafe fn stream(kind: Flush, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe { imp::stream(kind, dst, src, len) }
}
