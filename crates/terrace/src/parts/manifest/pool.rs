//! The home of a manifest in a pool: two alternating extents, and the superblock's roots, which
//! name the current one.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use terrace_media::{Extent, Pool, Purpose, Span};

use crate::canary::failpoint;
use crate::parts::codec::DecodeError;
use crate::parts::manifest::ManifestError;
use crate::parts::manifest::edit::Change;
use crate::parts::manifest::home::{Home, room_for};
use crate::parts::manifest::layout::Roots;

/// The home of a manifest in a pool.
pub(super) struct PoolHome {
    pool: Pool,
    place: Place,
}

/// The two extents, and the generation in the current one.
struct Place {
    current: Arc<Extent>,
    spare: Arc<Extent>,
    generation: u64,
}

impl Place {
    fn roots(&self) -> Roots {
        Roots {
            current: self.current.span(),
            generation: self.generation,
            spare: self.spare.span(),
        }
    }
}

impl PoolHome {
    /// Allocates two extents of `extent_bytes` for a manifest whose first generation is
    /// `generation`. The roots name them only after that generation is written.
    pub(super) fn create(
        pool: &Pool,
        extent_bytes: u64,
        generation: u64,
    ) -> Result<PoolHome, ManifestError> {
        // The first generation goes to the spare extent, as every next one does.
        let place = Place {
            spare: pool.alloc(extent_bytes)?,
            current: pool.alloc(extent_bytes)?,
            generation: generation - 1,
        };
        Ok(PoolHome {
            pool: pool.clone(),
            place,
        })
    }

    /// Adopts the extents that the pool's roots name.
    pub(super) fn open(pool: &Pool) -> Result<(PoolHome, u64), ManifestError> {
        let roots = Roots::read(|i| pool.root(i));
        if roots.generation == 0 {
            let found = "no manifest: the pool's creation did not finish";
            return Err(DecodeError::new("manifest root", 0, "an extent", found).into());
        }
        let place = Place {
            current: pool.adopt(roots.current)?,
            spare: pool.adopt(roots.spare)?,
            generation: roots.generation,
        };
        let home = PoolHome {
            pool: pool.clone(),
            place,
        };
        Ok((home, roots.generation))
    }

    /// Makes the records of a killed process up to `tail` durable.
    pub(super) fn make_durable(&self, tail: u64) -> io::Result<()> {
        let off = self.place.current.off();
        // PERSIST: a record of a killed process that may not be durable, before any caller acts on
        // it and before a record after it. Reversed, a power loss could take the edit back, or
        // leave a hole that looks like damage.
        self.pool
            .region()
            .persist(off, tail as usize, Purpose::Manifest);
        self.pool.region().sync(off, tail as usize)
    }

    /// Keeps every extent: a failed edit may be on the medium all the same and name extents that
    /// its caller drops now.
    fn keep_extents(&self) {
        // CRASH: the next open finds the edit or not, and every extent that it names still has the
        // contents written for it.
        self.pool.keep_extents();
    }

    /// Returns the extents of the next generation: the current ones exchanged, or larger ones if a
    /// state of `wanted` bytes leaves less than half of an extent for edits. Both have the same
    /// length, so that a state that fits the current one fits the next: an edit that shrinks the
    /// state needs no space of the pool.
    fn next_place(&self, generation: u64, wanted: u64) -> Result<Place, ManifestError> {
        let room = self.place.spare.len();
        let mut refused = None;
        if wanted > room / 2 {
            let pair = |bytes| Ok((self.pool.alloc(bytes)?, self.pool.alloc(bytes)?));
            // The sizes decrease to what the pool can provide; a smaller extent means more
            // compactions.
            let sizes = [
                room_for(wanted),
                wanted.saturating_mul(2),
                wanted.saturating_add(wanted / 4),
            ];
            for bytes in sizes.into_iter().filter(|bytes| *bytes > room) {
                match pair(bytes) {
                    Ok((current, spare)) => {
                        return Ok(Place {
                            current,
                            spare,
                            generation,
                        });
                    }
                    Err(e) => refused = Some(e),
                }
            }
        }
        match refused {
            Some(e) if wanted > room => Err(ManifestError::Alloc(e)),
            // A full pool must not stop the edits that free space in it.
            _ => Ok(Place {
                current: self.place.spare.clone(),
                spare: self.place.current.clone(),
                generation,
            }),
        }
    }
}

impl Home for PoolHome {
    fn keeps(&self, _: &Change) -> bool {
        true
    }

    fn room(&self) -> u64 {
        self.place.current.len()
    }

    fn room_of(&self, _: u64) -> u64 {
        // The allocator decides the size, and the roots record it.
        0
    }

    fn append(&mut self, at: u64, record: &[u8]) -> io::Result<()> {
        let written = write_durably(&self.place.current, at, record);
        written.inspect_err(|_| self.keep_extents())
    }

    fn replace(&mut self, generation: u64, image: &[u8], kept: u64) -> Result<(), ManifestError> {
        let next = self.next_place(generation, image.len() as u64 + kept)?;
        if let Err(e) = write_durably(&next.current, 0, image) {
            self.keep_extents();
            return Err(ManifestError::Io(e));
        }
        // PERSIST: the new generation is durable before the roots name it. Reversed, a crash would
        // leave roots that name a manifest that was never written.
        // CRASH: until set_roots returns the old roots may be the valid ones. The old generation is
        // untouched, so recovery finds the state before this edit.
        if let Err(e) = self.pool.set_roots(&next.roots().words()) {
            self.keep_extents();
            return Err(ManifestError::Pool(e));
        }
        self.place = next;
        Ok(())
    }

    fn read(&self) -> Result<(Cow<'_, [u8]>, u64), ManifestError> {
        let region = self.pool.region();
        let span = self.place.current.span();
        let bytes = usize::try_from(span.len)
            .ok()
            .and_then(|len| region.bytes(span.off, len));
        match bytes {
            Some(bytes) => Ok((Cow::Borrowed(bytes), span.off)),
            None => {
                let found = format!("the end of the pool at {}", region.end());
                let expected = format!("{} bytes", span.len);
                Err(DecodeError::new("manifest extent", span.off, expected, found).into())
            }
        }
    }

    fn spans(&self) -> Vec<Span> {
        vec![self.place.current.span(), self.place.spare.span()]
    }
}

fn write_durably(extent: &Arc<Extent>, at: u64, bytes: &[u8]) -> io::Result<()> {
    let Some(mut claim) = extent.claim(at, bytes.len()) else {
        let text = format!(
            "{} bytes at {at}, beyond the manifest's extent",
            bytes.len()
        );
        return Err(io::Error::other(text));
    };
    claim.write_streaming(0, bytes, Purpose::Manifest);
    failpoint!(EditFence => return Ok(()));
    // PERSIST: the whole record, before the caller acts on it by freeing what it removed or
    // acknowledging what it added. Reversed, a crash would bring back tables whose extents are
    // reused.
    // CRASH: until this returns any part of the record may be missing; the checksum detects this,
    // and replay ends before the record.
    extent.region().fence(Purpose::Manifest);
    extent.region().sync(extent.off() + at, bytes.len())
}
