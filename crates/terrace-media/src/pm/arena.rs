//! A DRAM arena: the home of a mutable table before it is copied to its extent.
//!
//! The memory is anonymous, in huge pages where the kernel has them, and faulted in when the arena
//! is made, so that inserting never waits for a page. An arena is used again once no reader of its
//! last table is left; its bytes are then whatever that table left there.

use super::arch::Flush;
use super::claim::Bump;
use super::map::{Memory, PAGE};
use super::persist::{Extras, Mapping};
use super::region::Region;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Anonymous memory for one table at a time.
#[derive(Clone)]
pub struct Arena {
    map: Arc<Mapping>,
}

impl Arena {
    /// Makes an arena of `len` bytes, rounded up to pages, whose pages are faulted in as they are
    /// touched first, or ahead of that by `populate`.
    pub fn new(len: u64) -> io::Result<Arena> {
        let len = usize::try_from(len)
            .ok()
            .and_then(|len| len.checked_next_multiple_of(PAGE))
            .filter(|len| *len > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let memory = Memory::anonymous(len, true)?;
        let map = Mapping::new(
            Arc::new(memory),
            len as u64,
            Flush::Nothing,
            false,
            Extras::default(),
        );
        Ok(Arena { map: Arc::new(map) })
    }

    /// Faults in the pages of a range, as far as it is inside. What they hold stays, so others may
    /// use the arena meanwhile.
    pub fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        let at = at.min(self.len());
        let len = len.min(self.len() - at);
        self.map.memory().populate(at as usize, len as usize)
    }

    /// The size in bytes.
    pub fn len(&self) -> u64 {
        self.map.committed()
    }

    /// Whether the arena has no bytes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no bump allocator, claim or region of this arena is left, so that its memory can be
    /// given to another table. Clones of the arena count as users too.
    pub fn is_idle(&self) -> bool {
        let idle = Arc::strong_count(&self.map) == 1;
        // What the last user did happened before this memory is written again.
        fence(Ordering::Acquire);
        idle
    }

    /// A bump allocator over the whole arena, whose offsets start at `origin`.
    ///
    /// The arena has one user at a time: the caller makes the next allocator only when it knows
    /// that nobody reads or writes through an earlier one (see `is_idle`). Bytes are not zeroed.
    pub fn bump(&mut self, origin: u64) -> Bump {
        let region = Region::new(Arc::clone(&self.map), origin);
        Bump::new(region, origin, self.len(), 0)
    }
}
