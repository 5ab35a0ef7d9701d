//! Tests of expiring values, and of time that never goes back.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use terrace_media::ManualClock;

use super::layout::{decode, encode};
use super::{Time, is_past, millis_of, time_of};
use crate::parts::sequence::Sequencer;
use crate::parts::snapshots::SnapshotList;

/// An expiry and a value decode as they were encoded; bytes without an expiry are refused.
#[test]
fn values_round_trip() {
    for (expiry, value) in [(1, &b""[..]), (u64::MAX, b"value"), (1 << 40, b"\0\0")] {
        assert_eq!(decode(&encode(expiry, value), 0), Ok((expiry, value)));
    }
    for bad in [&[][..], &[1; 7], &[0; 8], &[0; 20]] {
        let refused = decode(bad, 7).unwrap_err();
        assert_eq!((refused.what, refused.offset), ("expiring value", 7));
    }
}

/// An entry exists until its expiry, exclusive; one without an expiry stays.
#[test]
fn the_moment_itself_is_past() {
    assert!(!is_past(0, u64::MAX));
    assert!(!is_past(10, 9));
    assert!(is_past(10, 10));
}

/// An expiry converts to a time and back unchanged; a time between two milliseconds is rounded up,
/// and no time becomes 0, which means no expiry.
#[test]
fn moments_round_trip() {
    for millis in [1, 999, 1_732_200_000_123, 1 << 50, u64::MAX] {
        assert_eq!(millis_of(time_of(millis)), millis);
    }
    let between = UNIX_EPOCH + Duration::from_nanos(5_000_001);
    assert_eq!(millis_of(between), 6);
    assert_eq!(millis_of(UNIX_EPOCH), 1);
    assert_eq!(millis_of(UNIX_EPOCH - Duration::from_secs(9)), 1);
}

/// Time starts with the first entry that expires, stands still while the clock is behind the last
/// value, and continues from the manifest's value.
#[test]
fn time_never_goes_back() {
    let clock = ManualClock::new();
    let time = Time::new(Arc::new(clock.clone()), 0);
    clock.advance(Duration::from_secs(9));
    assert_eq!((time.now(), time.handed_out()), (0, 0), "nothing expires");
    assert_eq!(time.begin(), 10_000);
    clock.advance(Duration::from_secs(5));
    assert_eq!(time.now(), 15_000);
    clock.set_back(Duration::from_secs(8));
    assert_eq!((time.now(), time.handed_out()), (15_000, 15_000));
    clock.advance(Duration::from_secs(9));
    assert_eq!(time.now(), 16_000);
    let reopened = Time::new(Arc::new(ManualClock::new()), 16_000);
    assert_eq!(reopened.now(), 16_000);
}

/// Jobs may act on the time of the oldest snapshot while it exists, even if several share its
/// number.
#[test]
fn the_horizon_is_that_of_the_oldest_snapshot() {
    let clock = ManualClock::new();
    let time = Time::new(Arc::new(clock.clone()), 1);
    let (list, sequencer) = (SnapshotList::default(), Sequencer::default());
    let old = list.register(&sequencer, &time, 1).unwrap();
    clock.advance(Duration::from_secs(5));
    let new = list.register(&sequencer, &time, 1).unwrap();
    assert_eq!((old.time, new.time), (1000, 6000));
    assert_eq!(list.horizon(&time), 1000);
    list.release(new.seq);
    assert_eq!(
        list.horizon(&time),
        1000,
        "another holder of the number remains"
    );
    list.release(old.seq);
    assert_eq!(list.horizon(&time), 6000);
}
