//! Canaries: places where the store can be broken on purpose, to show that a test can fail.
//!
//! The feature `canary` compiles the breaks in, and `testing::set_canary` chooses one while the
//! program runs. Without the feature `breaks` is false at compile time, so no other build has
//! anything of them.
//!
//! Any thread may ask; whoever chooses is the only one who runs stores meanwhile.

/// One way in which the store can be broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(feature = "canary"),
    expect(unreachable_pub, reason = "only tests with the feature choose one")
)]
pub enum Canary {
    /// A batch of links is applied before it is durable.
    RedoFence,
    /// A batch of links stays in its slot when its job has ended.
    RedoClear,
    /// A record counts as written before it is durable.
    LogFence,
    /// One record in sixteen is acknowledged and never written.
    LogRecord,
    /// The manifest names a table that was not synced.
    TableSync,
    /// The manifest acts on an edit that is not durable.
    EditFence,
    /// A failed sync of a log is taken for a success.
    SyncError,
    /// A sync of a log that has failed is tried again.
    SyncForgotten,
    /// A view lists its oldest source first.
    SourceOrder,
    /// A rotation forgets to install the view that shows the new memtable.
    ViewSkipped,
    /// What a job has emptied is freed while old views may lead into it.
    GarbageEarly,
    /// A drain drops tombstones together with what they should delete.
    DrainTombstone,
    /// Extents of the repository that are mostly dead are never emptied.
    ReclaimSkipped,
    /// A batch is written in two parts.
    BatchSplit,
    /// A memtable is sealed twice, so it is flushed twice.
    FlushTwice,
    /// A log is retired before the table of its entries is named.
    LogRetired,
    /// A merge takes nodes out of the newer list before they are in the older one.
    UnlinkFirst,
    /// A search goes on from a node that a merge has moved.
    FrontierIgnored,
    /// The older table of a merge denies the keys that are moved into it.
    MergeFilters,
    /// A merge drops versions that a snapshot reads.
    MergeStripes,
    /// A filter denies one key in eight that it was given.
    FilterDenies,
    /// A cursor goes on from its place in a list that was relinked.
    CursorStale,
    /// A superseded node of the repository is not marked dead.
    DeadFlag,
    /// A value is returned although its checksum differs.
    ValueChecksum,
    /// A range delete becomes visible before a view knows of it.
    RangeUnseen,
    /// A drain drops range deletes before what they cover.
    RangeDropped,
    /// A range delete leaves the repository, and what it covers stays.
    SweepSkipped,
    /// An expired entry is dropped before the older one that it hides.
    ExpiredDropped,
    /// A merge acts on a range delete that a view does not know.
    RangeUnsettled,
    /// Logs that memtables left unsynced are never synced.
    LeftUnsynced,
    /// A log of which a table has a part is not synced.
    PartUnsynced,
    /// A version that is in no synced log hides one whose log goes.
    HidesUnsynced,
    /// A repair keeps to itself what may be lost.
    LossUnsaid,
    /// Jobs begin on what an ingest brings before anybody may see that.
    IngestUnheld,
    /// Tables for a job are chosen of a version that was read before it is known which are taken.
    VersionEarly,
    /// Whether links are rebuilt is decided by the medium of now, not by the one that lost power.
    MediumOfNow,
    /// The repository keeps what another medium left as the word of what is synced.
    SyncedStale,
    /// A point read judges range deletes at another number than it searched at.
    TornGet,
    /// The time of a read is taken after its number.
    TimeLast,
    /// The time of a snapshot is taken before its number.
    TimeFirst,
    /// Tables that range deletes cover whole stay until they are compacted.
    RoomKept,
    /// A memtable that a writer needs is left to be made by others.
    SpareUnmade,
    /// A file with the name of a log or a table is taken for the database's own, whatever is in it.
    ForeignFile,
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
        /// All of them, with a name and the place of the break.
        pub const ALL: [(Canary, &'static str, &'static str); 43] = [
            (Canary::RedoFence, "redo-fence", "parts/redo"),
            (Canary::RedoClear, "redo-clear", "parts/redo"),
            (Canary::LogFence, "log-fence", "parts/log/pool.rs"),
            (Canary::LogRecord, "log-record", "stages/front"),
            (Canary::TableSync, "table-sync", "elastic/copy_in.rs"),
            (Canary::EditFence, "edit-fence", "parts/manifest"),
            (Canary::SyncError, "sync-error", "parts/log/sync.rs"),
            (Canary::SyncForgotten, "sync-forgotten", "parts/log/sync.rs"),
            (Canary::SourceOrder, "source-order", "engine/mod.rs"),
            (Canary::ViewSkipped, "view-skipped", "stages/front"),
            (Canary::GarbageEarly, "garbage-early", "engine/view.rs"),
            (
                Canary::DrainTombstone,
                "drain-tombstone",
                "repository/absorb.rs",
            ),
            (
                Canary::ReclaimSkipped,
                "reclaim-skipped",
                "bottom/repository",
            ),
            (Canary::BatchSplit, "batch-split", "engine/commit.rs"),
            (Canary::FlushTwice, "flush-twice", "stages/front"),
            (Canary::LogRetired, "log-retired", "elastic/copy_in.rs"),
            (Canary::UnlinkFirst, "unlink-first", "elastic/merge.rs"),
            (
                Canary::FrontierIgnored,
                "frontier-ignored",
                "elastic/table.rs",
            ),
            (Canary::MergeFilters, "merge-filters", "elastic/merge.rs"),
            (Canary::MergeStripes, "merge-stripes", "elastic/merge.rs"),
            (Canary::FilterDenies, "filter-denies", "parts/filter"),
            (Canary::CursorStale, "cursor-stale", "parts/iter/list.rs"),
            (Canary::DeadFlag, "dead-flag", "bottom/repository"),
            (
                Canary::ValueChecksum,
                "value-checksum",
                "parts/skiplist/node.rs",
            ),
            (Canary::RangeUnseen, "range-unseen", "stages/front"),
            (Canary::RangeDropped, "range-dropped", "bottom/*/absorb.rs"),
            (Canary::SweepSkipped, "sweep-skipped", "repository/sweep.rs"),
            (Canary::ExpiredDropped, "expired-dropped", "bottom/*"),
            (
                Canary::RangeUnsettled,
                "range-unsettled",
                "parts/ranges/live.rs",
            ),
            (Canary::LeftUnsynced, "left-unsynced", "front/*/files.rs"),
            (Canary::PartUnsynced, "part-unsynced", "front/*/replay.rs"),
            (Canary::HidesUnsynced, "hides-unsynced", "buffer/elastic"),
            (Canary::LossUnsaid, "loss-unsaid", "db/repair"),
            (Canary::IngestUnheld, "ingest-unheld", "engine/ingest.rs"),
            (Canary::VersionEarly, "version-early", "bottom/leveled"),
            (Canary::MediumOfNow, "medium-of-now", "elastic/recover.rs"),
            (Canary::SyncedStale, "synced-stale", "repository/recover.rs"),
            (Canary::TornGet, "torn-get", "engine/read.rs"),
            (Canary::TimeLast, "time-last", "parts/snapshots.rs"),
            (Canary::TimeFirst, "time-first", "parts/snapshots.rs"),
            (Canary::RoomKept, "room-kept", "leveled/vanish.rs"),
            (Canary::SpareUnmade, "spare-unmade", "engine/admission.rs"),
            (Canary::ForeignFile, "foreign-file", "stages/names.rs"),
        ];

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
