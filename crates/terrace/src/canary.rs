//! Canaries: places where the store can be broken on purpose, to show that a test can fail.
//!
//! The feature `canary` compiles the breaks in, and `testing::set_canary` chooses one at run time.
//! Without the feature `breaks` is false at compile time, so other builds contain no trace of them.
//!
//! Any thread may ask; the thread that chooses must be the only one that runs stores meanwhile.

/// Declares `Canary`: each value, its name on the command line, and the file or directory of the
/// break.
macro_rules! canaries {
    ($($(#[$doc:meta])* $Canary:ident => $name:literal in $place:literal,)*) => {
        /// One way in which the store can be broken.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[cfg_attr(
            not(feature = "canary"),
            expect(unreachable_pub, reason = "only tests built with the feature set one")
        )]
        pub enum Canary {
            $($(#[$doc])* $Canary,)*
        }

        #[cfg(feature = "canary")]
        impl Canary {
            /// All canaries, with name and place of the break.
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
    /// The nodes of a list that is its own log count as written before they are durable.
    ListFence => "list-fence" in "parts/log/list.rs",
    /// A record that may not be lost is acknowledged while gathered ones before it are unflushed.
    GatheredUnflushed => "gathered-unflushed" in "parts/log/pool.rs",
    /// One record in sixteen is acknowledged and never written.
    LogRecord => "log-record" in "stages/front",
    /// The nodes of a batch in such a list are not marked as belonging together.
    ListBatch => "list-batch" in "front/*/memtable.rs",
    /// Numbers that a crash may have left in the pool are used again.
    ListNumbers => "list-numbers" in "front/*/recover.rs",
    /// A pool counts as recovered from a power loss before lists that are logs are linked again.
    RecoveredEarly => "recovered-early" in "db/open.rs",
    /// A list that was its own log becomes a table before its links are durable.
    LinksUnflushed => "links-unflushed" in "elastic/copy_in.rs",
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
    ViewSkipped => "view-skipped" in "engine/commit.rs",
    /// Garbage of a job is freed while old views may still reach it.
    GarbageEarly => "garbage-early" in "engine/view.rs, skiplist/search.rs",
    /// A drain drops tombstones together with the entries that they should delete.
    DrainTombstone => "drain-tombstone" in "repository/drain_job.rs",
    /// Extents of the repository that are mostly dead are never emptied.
    ReclaimSkipped => "reclaim-skipped" in "bottom/repository",
    /// A batch is written in two parts.
    BatchSplit => "batch-split" in "engine/commit.rs",
    /// A memtable is sealed twice, so it is flushed twice.
    FlushTwice => "flush-twice" in "stages/front",
    /// A log is retired before the table of its entries is named.
    LogRetired => "log-retired" in "elastic/copy_in.rs",
    /// A merge takes nodes out of the newer list before they are in the older one.
    UnlinkFirst => "unlink-first" in "elastic/merge.rs, parts/redo",
    /// A search continues from a node that a merge has moved.
    FrontierIgnored => "frontier-ignored" in "elastic/table.rs, skiplist/search.rs",
    /// The older table of a merge denies the keys that are moved into it.
    MergeFilters => "merge-filters" in "elastic/merge.rs",
    /// A merge drops versions that a snapshot reads.
    MergeStripes => "merge-stripes" in "elastic/merge.rs",
    /// A filter denies one key in eight that it was given.
    FilterDenies => "filter-denies" in "parts/filter",
    /// A cursor continues from its place in a list that was relinked.
    CursorStale => "cursor-stale" in "parts/iter/list.rs",
    /// A superseded node of the repository is not marked dead.
    DeadFlag => "dead-flag" in "bottom/repository",
    /// A value is returned although its checksum differs.
    ValueChecksum => "value-checksum" in "parts/skiplist/node.rs",
    /// A range delete becomes visible before a view contains it.
    RangeUnseen => "range-unseen" in "engine/commit.rs",
    /// A drain drops range deletes before the entries that they cover.
    RangeDropped => "range-dropped" in "stages/bottom",
    /// A range delete leaves the repository, and the covered entries stay.
    SweepSkipped => "sweep-skipped" in "repository/sweep.rs",
    /// An expired entry is dropped before the older one that it hides.
    ExpiredDropped => "expired-dropped" in "bottom/*",
    /// A merge acts on a range delete that a view does not contain.
    RangeUnsettled => "range-unsettled" in "parts/ranges/live.rs",
    /// Logs that memtables left unsynced are never synced.
    LeftUnsynced => "left-unsynced" in "front/*/files.rs",
    /// A log whose entries are partly in a table is not synced.
    PartUnsynced => "part-unsynced" in "front/*/replay.rs",
    /// A version that is in no synced log hides one whose log is removed.
    HidesUnsynced => "hides-unsynced" in "buffer/elastic",
    /// The forward pointers of a row point behind the place of their key.
    HintTooFar => "hint-too-far" in "buffer/matrix",
    /// Rows lose the keys of a column before it is in the bottom.
    ColumnEarly => "column-early" in "buffer/matrix",
    /// Tables are forgotten before their drain is in the bottom.
    TablesEarly => "tables-early" in "buffer/tables",
    /// A tombstone counts as garbage when a log is rewritten.
    RewriteDropsTombstones => "rewrite-drops-tombstones" in "tables/rewrite.rs",
    /// Logs are replayed in the order of their numbers, not of their entries.
    LogsByNumber => "logs-by-number" in "front/*/replay.rs",
    /// The manifest names a table file or a value file before its name is durable.
    FileUnsynced => "file-unsynced" in "parts/draft.rs",
    /// A value file is forgotten while less than half of it is live.
    ValuesForgotten => "values-forgotten" in "leveled/value_file.rs",
    /// A repair does not report uncertain losses.
    LossUnsaid => "loss-unsaid" in "db/repair",
    /// Jobs begin on the tables of an ingest before they are visible.
    IngestUnheld => "ingest-unheld" in "engine/jobs.rs",
    /// Tables for a job are chosen from a version that was read before it is known which are taken.
    VersionEarly => "version-early" in "bottom/leveled",
    /// The current medium decides whether links are rebuilt, not the one that lost power.
    MediumOfNow => "medium-of-now" in "elastic/recover.rs",
    /// The repository keeps the synced mark that another medium left.
    SyncedStale => "synced-stale" in "repository/recover.rs",
    /// A point read judges range deletes at another number than it searched at.
    TornGet => "torn-get" in "engine/read.rs",
    /// The time of a read is taken after its number.
    TimeLast => "time-last" in "engine/read.rs, parts/snapshots.rs",
    /// The time of a snapshot is taken before its number.
    TimeFirst => "time-first" in "parts/snapshots.rs",
    /// Tables that range deletes cover completely stay until they are compacted.
    RoomKept => "room-kept" in "leveled/delete_only.rs",
    /// A memtable that a writer needs is left for others to make.
    SpareUnmade => "spare-unmade" in "engine/admission.rs",
    /// A file with the name of a log or a table is accepted as the database's own, whatever its
    /// contents.
    ForeignFile => "foreign-file" in "stages/file_names.rs",
}

/// Returns whether the store is to break here.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub(crate) const fn breaks(_at: Canary) -> bool {
    false
}

/// Returns whether the store is to break here.
#[cfg(feature = "canary")]
#[inline]
pub(crate) fn breaks(at: Canary) -> bool {
    switch::CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == at as u8
}

/// A place where the store can be broken: `failpoint!(C => act)` acts if the canary `C` is chosen,
/// `failpoint!(C if so => act)` only if `so` holds as well, and `failpoint!(C skips act)` acts
/// unless `C` is chosen.
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

/// Widens a race window if the canary breaks the store by a race.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub(crate) const fn linger(_at: Canary) {}

/// Widens a race window if the canary breaks the store by a race.
#[cfg(feature = "canary")]
pub(crate) fn linger(at: Canary) {
    if breaks(at) {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Lets a test run code in the middle of a call.
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub(crate) const fn stand_still() {}

/// Lets a test run code in the middle of a call.
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

    /// Runs `meanwhile` in the middle of the next call of this thread. A read, whether a point read
    /// or a chunk of a scan, has then taken its number and its view and has not searched yet. An
    /// ingest has handed its tables over and has not shown them.
    pub fn in_the_next_call(meanwhile: impl FnOnce() + 'static) {
        MEANWHILE.set(Some(Box::new(meanwhile)));
    }

    /// The number that stands for no canary.
    const NONE: u8 = u8::MAX;

    /// The canary that breaks the stores of this process.
    pub(super) static CHOSEN: AtomicU8 = AtomicU8::new(NONE);

    /// Breaks every store of this process at one place, or, with `None`, at no place.
    pub fn set_canary(canary: Option<Canary>) {
        CHOSEN.store(canary.map_or(NONE, |canary| canary as u8), Ordering::SeqCst);
    }

    impl Canary {
        /// Returns the name on the command line.
        pub fn name(self) -> &'static str {
            Canary::ALL[self as usize].1
        }

        /// Returns the file or directory of the break.
        pub fn place(self) -> &'static str {
            Canary::ALL[self as usize].2
        }

        /// Returns the canary with this name.
        pub fn parse(name: &str) -> Option<Canary> {
            let mut all = Canary::ALL.iter();
            all.find(|(_, known, _)| *known == name)
                .map(|(canary, ..)| *canary)
        }
    }
}
