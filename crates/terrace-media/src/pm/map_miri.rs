//! A replacement of `map` for Miri, which has no address space to reserve: memory comes from the
//! allocator, so that Miri can check every access.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The alignment of every base: the size of a huge page.
pub(crate) const HUGE: usize = 2 << 20;

/// The unit in which the kernel populates and syncs memory.
pub(crate) const PAGE: usize = 4096;

/// Memory that is freed when it is dropped.
pub(crate) struct Memory {
    base: *mut u8,
    layout: Layout,
}

/// The total length of all ranges.
static ANONYMOUS: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of memory that arenas and pools without a file use.
pub fn anonymous_bytes() -> u64 {
    ANONYMOUS.load(Ordering::Relaxed)
}

// SAFETY: the range is plain memory; `Region` and `Claim` decide who may write which byte.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn anonymous(len: usize, _huge: bool) -> io::Result<Memory> {
        let len = len
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let layout = Layout::from_size_align(len, HUGE).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        ANONYMOUS.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Memory { base, layout })
    }

    pub(crate) fn file(_len: usize, _file: &File, _synchronous: bool) -> io::Result<Memory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn private(_len: usize, _file: &File, _file_bytes: usize) -> io::Result<Memory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn may_be_synchronous(_file: &File) -> bool {
        false
    }

    /// Returns new, zeroed memory.
    pub(crate) fn recycled(len: usize) -> io::Result<(Memory, u64)> {
        Ok((Memory::anonymous(len, false)?, 0))
    }

    pub(crate) fn touched(&self, _len: u64) {}

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn populate(&self, _at: usize, _len: usize) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn msync(&self, _at: usize, _len: usize) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        ANONYMOUS.fetch_sub(self.layout.size() as u64, Ordering::Relaxed);
        // SAFETY: nothing refers to the range: regions own the mapping that owns this value.
        unsafe { dealloc(self.base, self.layout) };
    }
}
