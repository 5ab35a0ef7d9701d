//! Canaries: places where the store can be broken on purpose, to show that a test can fail.
//!
//! The feature `canary` compiles the breaks in, and `testing::set_canary` chooses one while the
//! program runs. Without the feature `breaks` is false at compile time, so no other build has
//! anything of them.
//!
//! Any thread may ask; whoever chooses is the only one who runs stores meanwhile.

/// Declares `Canary`: each value, its name on the command line, and the file or folder that the break is in.
macro_rules! canaries {
    ($($(#[$doc:meta])* $Canary:ident => $name:literal in $place:literal,)*) => {
        /// One way in which the store can be broken.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[cfg_attr(
            not(feature = "canary"),
            expect(unreachable_pub, reason = "only tests with the feature choose one")
        )]
        pub enum Canary {
            $($(#[$doc])* $Canary,)*
        }

        #[cfg(feature = "canary")]
        impl Canary {
            /// All of them, with a name and the place of the break.
            pub const ALL: [(Canary, &'static str, &'static str); [$($name),*].len()] =
                [$((Canary::$Canary, $name, $place)),*];
        }
    };
}

canaries! {
    /// A batch of links is applied before it is durable.
    RedoFence => "redo-fence" in "parts/redo",
    /// A batch of links stays in its slot when its job has ended.
    RedoClear => "redo-clear" in "parts/redo",
    /// A record counts as written before it is durable.
    LogFence => "log-fence" in "parts/log/pool.rs",
    /// One record in sixteen is acknowledged and never written.
    LogRecord => "log-record" in "stages/front",
    /// The manifest names a table that was not synced.
    TableSync => "table-sync" in "elastic/copy_in.rs",
    /// The manifest acts on an edit that is not durable.
    EditFence => "edit-fence" in "parts/manifest",
    /// A failed sync of a log is taken for a success.
    SyncError => "sync-error" in "parts/log/sync.rs",
    /// A sync of a log that has failed is tried again.
    SyncForgotten => "sync-forgotten" in "parts/log/sync.rs",
    /// A view lists its oldest source first.
    SourceOrder => "source-order" in "engine/mod.rs",
    /// A rotation forgets to install the view that shows the new memtable.
    ViewSkipped => "view-skipped" in "stages/front",
    /// What a job has emptied is freed while old views may lead into it.
    GarbageEarly => "garbage-early" in "engine/view.rs",
    /// A drain drops tombstones together with what they should delete.
    DrainTombstone => "drain-tombstone" in "repository/absorb.rs",
    /// Extents of the repository that are mostly dead are never emptied.
    ReclaimSkipped => "reclaim-skipped" in "bottom/repository",
    /// A batch is written in two parts.
    BatchSplit => "batch-split" in "engine/commit.rs",
    /// A memtable is sealed twice, so it is flushed twice.
    FlushTwice => "flush-twice" in "stages/front",
    /// A log is retired before the table of its entries is named.
    LogRetired => "log-retired" in "elastic/copy_in.rs",
    /// A merge takes nodes out of the newer list before they are in the older one.
    UnlinkFirst => "unlink-first" in "elastic/merge.rs",
    /// A search goes on from a node that a merge has moved.
    FrontierIgnored => "frontier-ignored" in "elastic/table.rs",
    /// The older table of a merge denies the keys that are moved into it.
    MergeFilters => "merge-filters" in "elastic/merge.rs",
    /// A merge drops versions that a snapshot reads.
    MergeStripes => "merge-stripes" in "elastic/merge.rs",
    /// A filter denies one key in eight that it was given.
    FilterDenies => "filter-denies" in "parts/filter",
    /// A cursor goes on from its place in a list that was relinked.
    CursorStale => "cursor-stale" in "parts/iter/list.rs",
    /// A superseded node of the repository is not marked dead.
    DeadFlag => "dead-flag" in "bottom/repository",
    /// A value is returned although its checksum differs.
    ValueChecksum => "value-checksum" in "parts/skiplist/node.rs",
    /// A range delete becomes visible before a view knows of it.
    RangeUnseen => "range-unseen" in "stages/front",
    /// A drain drops range deletes before what they cover.
    RangeDropped => "range-dropped" in "bottom/*/absorb.rs",
    /// A range delete leaves the repository, and what it covers stays.
    SweepSkipped => "sweep-skipped" in "repository/sweep.rs",
    /// An expired entry is dropped before the older one that it hides.
    ExpiredDropped => "expired-dropped" in "bottom/*",
    /// A merge acts on a range delete that a view does not know.
    RangeUnsettled => "range-unsettled" in "parts/ranges/live.rs",
    /// Logs that memtables left unsynced are never synced.
    LeftUnsynced => "left-unsynced" in "front/*/files.rs",
    /// A log of which a table has a part is not synced.
    PartUnsynced => "part-unsynced" in "front/*/replay.rs",
    /// A version that is in no synced log hides one whose log goes.
    HidesUnsynced => "hides-unsynced" in "buffer/elastic",
    /// A repair keeps to itself what may be lost.
    LossUnsaid => "loss-unsaid" in "db/repair",
    /// Jobs begin on what an ingest brings before anybody may see that.
    IngestUnheld => "ingest-unheld" in "engine/ingest.rs",
    /// Tables for a job are chosen of a version that was read before it is known which are taken.
    VersionEarly => "version-early" in "bottom/leveled",
    /// Whether links are rebuilt is decided by the medium of now, not by the one that lost power.
    MediumOfNow => "medium-of-now" in "elastic/recover.rs",
    /// The repository keeps what another medium left as the word of what is synced.
    SyncedStale => "synced-stale" in "repository/recover.rs",
    /// A point read judges range deletes at another number than it searched at.
    TornGet => "torn-get" in "engine/read.rs",
    /// The time of a read is taken after its number.
    TimeLast => "time-last" in "parts/snapshots.rs",
    /// The time of a snapshot is taken before its number.
    TimeFirst => "time-first" in "parts/snapshots.rs",
    /// Tables that range deletes cover whole stay until they are compacted.
    RoomKept => "room-kept" in "leveled/vanish.rs",
    /// A memtable that a writer needs is left to be made by others.
    SpareUnmade => "spare-unmade" in "engine/admission.rs",
    /// A file with the name of a log or a table is taken for the database's own, whatever is in it.
    ForeignFile => "foreign-file" in "stages/names.rs",
}

/// Whether the store is to break here.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub(crate) const fn breaks(_at: Canary) -> bool {
    false
}

/// Whether the store is to break here.
#[cfg(feature = "canary")]
#[inline]
pub(crate) fn breaks(at: Canary) -> bool {
    switch::CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == at as u8
}

/// A place where the store can be broken: `failpoint!(C => act)` acts where the canary `C` breaks the store,
/// `failpoint!(C if so => act)` only if so, and `failpoint!(C skips act)` acts unless it does.
macro_rules! failpoint {
    ($Canary:ident $(if $so:expr)? => $act:expr) => {
        if $crate::canary::breaks($crate::canary::Canary::$Canary) $(&& $so)? {
            $act;
        }
    };
    ($Canary:ident skips $act:expr) => {
        if !$crate::canary::breaks($crate::canary::Canary::$Canary) {
            $act;
        }
    };
}

pub(crate) use failpoint;

/// Where the store is broken by what may happen at a place, gives that the time to happen.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub(crate) const fn linger(_at: Canary) {}

/// Where the store is broken by what may happen at a place, gives that the time to happen.
#[cfg(feature = "canary")]
pub(crate) fn linger(at: Canary) {
    if breaks(at) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Lets a test go on in the middle of a call.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub(crate) const fn stand_still() {}

/// Lets a test go on in the middle of a call.
#[cfg(feature = "canary")]
#[inline]
pub(crate) fn stand_still() {
    if let Some(meanwhile) = switch::MEANWHILE.take() {
        meanwhile();
    }
}

#[cfg(feature = "canary")]
pub(crate) mod switch {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Canary;

    type Meanwhile = Box<dyn FnOnce()>;

    thread_local! {
        pub(super) static MEANWHILE: Cell<Option<Meanwhile>> = const { Cell::new(None) };
    }

    /// Runs `meanwhile` in the middle of the next call of this thread. A read, be it a point read or a chunk of a scan,
    /// has then taken its number and its view and has not searched yet. An ingest has handed its tables over and
    /// has not shown them.
    pub fn in_the_next_call(meanwhile: impl FnOnce() + 'static) {
        MEANWHILE.set(Some(Box::new(meanwhile)));
    }

    /// No canary.
    const NONE: u8 = u8::MAX;

    /// The canary that breaks the stores of this process.
    pub(super) static CHOSEN: AtomicU8 = AtomicU8::new(NONE);

    /// Breaks every store of this process at one place, or, with `None`, at none.
    pub fn set_canary(canary: Option<Canary>) {
        CHOSEN.store(canary.map_or(NONE, |canary| canary as u8), Ordering::SeqCst);
    }

    impl Canary {
        /// The name on the command line.
        pub fn name(self) -> &'static str {
            Canary::ALL[self as usize].1
        }

        /// The file or folder that the break is in.
        pub fn place(self) -> &'static str {
            Canary::ALL[self as usize].2
        }

        /// The canary of a name.
        pub fn parse(name: &str) -> Option<Canary> {
            let mut all = Canary::ALL.iter();
            all.find(|(_, known, _)| *known == name)
                .map(|(canary, ..)| *canary)
        }
    }
}
