//! A DRAM arena: holds a mutable table before it is copied to its extent.
//!
//! The memory is anonymous, in huge pages if the kernel supports them. `populate` faults it in
//! ahead of use, so that inserts do not wait for page faults. An arena is reused once its last
//! table has no more readers; it then still contains the bytes of that table.

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
    /// Creates an arena of `len` bytes, rounded up to pages. Pages are faulted in on first access,
    /// or earlier by `populate`.
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

    /// Faults in the pages of the part of a range that is inside the arena. Their content does not
    /// change, so others may use the arena concurrently.
    pub fn populate(&self, at: u64, len: u64) -> io::Result<()> {
        let at = at.min(self.len());
        let len = len.min(self.len() - at);
        self.map.memory().populate(at as usize, len as usize)
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.map.committed()
    }

    /// Returns whether the arena is empty, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether no bump allocator, claim, region or clone of this arena is left, so that its
    /// memory can be reused for another table.
    pub fn is_idle(&self) -> bool {
        let idle = Arc::strong_count(&self.map) == 1;
        // Acquire: accesses by the last user happen before the next writes to this memory.
        fence(Ordering::Acquire);
        idle
    }

    /// Returns a bump allocator over the whole arena with offsets that start at `origin`.
    ///
    /// The arena has one user at a time: the caller creates the next allocator only if no one
    /// accesses memory through an earlier one (see `is_idle`). Bytes are not zeroed.
    pub fn bump(&mut self, origin: u64) -> Bump {
        let region = Region::new(Arc::clone(&self.map), origin);
        Bump::new(region, origin, self.len(), 0)
    }
}
