//! The views that iterators hold between chunks.
//!
//! An iterator keeps its view and its cursor, so that the next chunk needs no seek. It can do
//! without them: it then continues in the current view, past its last key. So a caller that waits
//! for space takes them back from all iterators that are not fetching a chunk, and an idle iterator
//! holds no extents and no files while others need space.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::view::View;
use crate::parts::iter::MergeCursor;

/// A view and a cursor of an iterator.
pub(crate) struct Held {
    pub(crate) view: Arc<View>,
    /// A cursor over the sources of the view.
    pub(crate) cursor: MergeCursor,
    /// Whether the cursor is where the iterator continues, if nothing was relinked since.
    pub(crate) positioned: bool,
}

impl Held {
    pub(crate) fn new(view: Arc<View>) -> Held {
        let cursors = view.sources.iter().map(|source| source.cursor());
        Held {
            cursor: MergeCursor::new(cursors.collect()),
            view,
            positioned: false,
        }
    }
}

/// The place of one iterator for what it holds. LOCK: the iterator locks it while it fetches a
/// chunk; others only try.
pub(crate) type Slot = Mutex<Option<Held>>;

/// The slots of all iterators.
#[derive(Default)]
pub(crate) struct HeldViews {
    /// By address.
    slots: Mutex<BTreeMap<usize, Arc<Slot>>>,
}

impl HeldViews {
    /// Adds an empty slot.
    pub(crate) fn add(&self) -> Arc<Slot> {
        let slot = Arc::<Slot>::default();
        let address = Arc::as_ptr(&slot).addr();
        self.slots.lock().insert(address, Arc::clone(&slot));
        slot
    }

    /// Removes the slot of an iterator that ends.
    pub(crate) fn remove(&self, slot: &Arc<Slot>) {
        self.slots.lock().remove(&Arc::as_ptr(slot).addr());
    }

    /// Takes back what idle iterators hold. May free extents and files.
    pub(crate) fn take_back(&self) {
        let slots: Vec<_> = self.slots.lock().values().cloned().collect();
        for slot in slots {
            let held = slot.try_lock().and_then(|mut slot| slot.take());
            drop(held);
        }
    }
}
