//! The decision as a table: each case and the places where a thread looks.

use super::*;
use JobKind::{Compact, Drain, Flush, Merge, Reclaim};
use Look::{AnyBegun, Begun, Front, New, Ranges, Sealed, Spare};

const QUIET: Now = Now {
    wanted: Wanted::Nothing,
    urgency: Urgency::None,
    pressing: 0.0,
    bottom: None,
    merged_first: false,
    has_memory: true,
    has_memory_for_two: true,
};

fn nearness(need: f64, apart: bool) -> Nearness {
    Nearness { need, apart }
}

/// Returns a bottom at this nearness.
fn bottom(part: f64) -> Option<Nearness> {
    Some(nearness(1.0 + part, true))
}

#[test]
fn flushes_come_after_spares() {
    let all = [Spare, Begun(Flush), Sealed, Front];
    assert_eq!(choose_flush(true, false), all);
    assert_eq!(choose_flush(false, false), all[1..]);
    assert_eq!(choose_flush(false, true), [Begun(Flush), Front]);
}

#[test]
fn the_rest_follows_need() {
    let quiet = |urgency| {
        [
            Ranges,
            AnyBegun,
            New(Merge, urgency),
            New(Drain, urgency),
            New(Reclaim, urgency),
        ]
    };
    let space = [
        New(Drain, Urgency::Space),
        New(Reclaim, Urgency::Space),
        New(Merge, Urgency::Space),
    ];
    let short = Now {
        urgency: Urgency::Space,
        pressing: 0.3,
        ..QUIET
    };
    let cases: [(&str, Now, Vec<Look>, bool); 9] = [
        (
            "nothing is needed",
            QUIET,
            quiet(Urgency::None).into(),
            true,
        ),
        (
            "writers are idle",
            Now {
                wanted: Wanted::Rest,
                ..QUIET
            },
            quiet(Urgency::Rest).into(),
            true,
        ),
        (
            "a caller waits for an empty buffer",
            Now {
                wanted: Wanted::Everything,
                ..QUIET
            },
            quiet(Urgency::Everything).into(),
            true,
        ),
        (
            "space is short",
            short,
            [&[Ranges, New(Merge, Urgency::Space), AnyBegun], &space[..]].concat(),
            true,
        ),
        (
            "space is short, and the last choice put merges first",
            Now {
                merged_first: true,
                ..short
            },
            [&[Ranges, AnyBegun], &space[..]].concat(),
            false,
        ),
        (
            "writers are nearly stopped",
            Now {
                pressing: 0.8,
                ..short
            },
            [&[Ranges, AnyBegun], &space[..]].concat(),
            false,
        ),
        (
            "the pool is under more pressure than the bottom",
            Now {
                bottom: bottom(0.2),
                merged_first: true,
                ..short
            },
            [
                &[Ranges, Begun(Drain), New(Drain, Urgency::Space), AnyBegun],
                &space[..],
            ]
            .concat(),
            false,
        ),
        (
            "the bottom is under more pressure",
            Now {
                bottom: bottom(0.4),
                merged_first: true,
                ..short
            },
            [
                &[
                    Ranges,
                    Begun(Compact),
                    New(Reclaim, Urgency::Space),
                    AnyBegun,
                ],
                &space[..],
            ]
            .concat(),
            false,
        ),
        (
            "no job may take memory",
            Now {
                bottom: bottom(0.4),
                has_memory: false,
                ..short
            },
            vec![Ranges, Begun(Compact), AnyBegun],
            true,
        ),
    ];
    for (case, now, looks, merges_first) in cases {
        assert_eq!(choose(Lane::Rest, &now), (looks, merges_first), "{case}");
    }
}

/// A thread that only compacts looks for nothing else, and does not change the turn of merges.
#[test]
fn one_thread_only_compacts() {
    for merged_first in [false, true] {
        let now = Now {
            merged_first,
            wanted: Wanted::Drained,
            ..QUIET
        };
        let looks = vec![Ranges, Begun(Compact), New(Reclaim, Urgency::Space)];
        assert_eq!(choose(Lane::Compactions, &now), (looks, merged_first));
    }
}

/// Threads that only merge look for nothing else, leave memory for a drain, and begin no merge once
/// writers are nearly stopped. The others merge when they find nothing else.
#[test]
fn some_threads_only_merge() {
    let short = |pressing, has_memory_for_two| Now {
        urgency: Urgency::Space,
        pressing,
        has_memory_for_two,
        ..QUIET
    };
    let merges = |now| choose(Lane::Merges, &now).0;
    let space = Urgency::Space;
    assert_eq!(
        merges(QUIET),
        [Ranges, Begun(Merge), New(Merge, Urgency::None)]
    );
    assert_eq!(
        merges(short(0.3, true)),
        [Ranges, Begun(Merge), New(Merge, space)]
    );
    assert_eq!(merges(short(0.8, true)), [Ranges, Begun(Merge)]);
    assert_eq!(merges(short(0.3, false)), [Ranges, Begun(Merge)]);
    let (looks, _) = choose(Lane::Drains, &short(0.3, true));
    assert_eq!(
        looks,
        [
            Ranges,
            AnyBegun,
            New(Drain, space),
            New(Reclaim, space),
            New(Merge, space)
        ]
    );
}

/// The work that is nearer to slowing writers comes first; without need neither does.
#[test]
fn what_presses_more_comes_first() {
    assert_eq!(preferred(Urgency::None, 1.0, bottom(0.0)), None);
    assert_eq!(preferred(Urgency::None, 0.0, bottom(1.0)), None);
    for urgency in [Urgency::Space, Urgency::Everything] {
        assert_eq!(preferred(urgency, 1.0, None), None);
        assert_eq!(preferred(urgency, 0.0, bottom(0.0)), Some(Drain));
        assert_eq!(preferred(urgency, 0.5, bottom(0.4)), Some(Drain));
        assert_eq!(preferred(urgency, 0.4, bottom(0.5)), Some(Compact));
    }
}

/// A full pool does not stop writers while drains can run: those come first until the bottom takes
/// no more data.
#[test]
fn a_full_pool_is_drained_until_the_bottom_stops() {
    let comes_first = |pressing, bottom| preferred(Urgency::Space, pressing, Some(bottom));
    for need in [0.0, 1.0, 1.5, 1.99, 2.0] {
        for apart in [false, true] {
            let bottom = nearness(need, apart);
            assert_eq!(comes_first(1.0, bottom), Some(Drain));
        }
    }
    let begins = nearness(1.0, false).part();
    assert!(
        (begins - 0.5).abs() < 1e-9,
        "where writers start to be slowed"
    );
    assert_eq!(comes_first(0.4, nearness(1.2, false)), Some(Compact));
    assert_eq!(comes_first(0.9, nearness(2.0, false)), Some(Compact));
}

/// Alongside a thread that compacts, drains run while writers are slowed for drains but not yet for
/// the bottom; then both work on the bottom.
#[test]
fn drains_continue_during_compactions() {
    let comes_first = |bottom| preferred(Urgency::Space, 0.3, Some(bottom));
    assert_eq!(comes_first(nearness(0.9, false)), Some(Compact));
    assert_eq!(comes_first(nearness(0.9, true)), Some(Drain));
    assert_eq!(comes_first(nearness(1.4, true)), Some(Compact));
}
