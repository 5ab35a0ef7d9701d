//! Tests of the redo area: batches in crashes, hostile slots, stores outside of the pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use terrace_media::{
    Backing, Extent, Image, Machine, Medium, Pool, PoolConfig, Prefault, Purpose, Span, Survive,
};

use super::layout::{SLOT_BYTES, SLOT_COUNT, STORES_MAX, decode, encode};
use super::{RedoArea, RedoSlot};
use crate::error::ErrorKind;
use crate::parts::skiplist::fingers::Plan;

/// The number of words that the batches change: several lines, some shared by two words.
const WORDS: u64 = 40;

fn config(backing: Backing) -> PoolConfig {
    PoolConfig {
        prefault: Prefault::None,
        grow_bytes: 64 << 10,
        granule: 4 << 10,
        ..PoolConfig::new(backing, 4 << 20)
    }
}

fn simulated(machine: &Machine) -> PoolConfig {
    config(Backing::Simulated(machine.clone()))
}

/// A pool with a redo area and an extent of durable, zeroed words.
struct Shared {
    pool: Pool,
    area: Arc<RedoArea>,
    area_span: Span,
    words: Arc<Extent>,
}

impl Shared {
    fn new(config: PoolConfig) -> Shared {
        let pool = Pool::create(config).unwrap();
        let extent = pool.alloc(RedoArea::BYTES).unwrap();
        let area_span = extent.span();
        let area = RedoArea::create(&pool, extent).unwrap();
        let words = pool.alloc(8 * 2 * WORDS).unwrap();
        words
            .claim(0, 8 * 2 * WORDS as usize)
            .unwrap()
            .fill_zero(0, 8 * 2 * WORDS as usize);
        let region = pool.region();
        region.persist(words.off(), 8 * 2 * WORDS as usize, Purpose::Merge);
        region.sync(words.off(), 8 * 2 * WORDS as usize).unwrap();
        Shared {
            pool,
            area,
            area_span,
            words,
        }
    }

    /// Returns the spans that a recovery needs.
    fn places(&self) -> (Span, Span) {
        (self.area_span, self.words.span())
    }

    fn word_off(&self, word: u64) -> u64 {
        self.words.off() + 8 * word
    }

    fn word(&self, word: u64) -> u64 {
        let word = self.pool.region().word(self.word_off(word));
        word.unwrap().load(Ordering::Relaxed)
    }
}

/// Recovers a machine and returns all words; a second recovery changes none of them.
fn recover(image: Image, (area, words): (Span, Span)) -> Vec<u64> {
    let machine = Machine::boot(image, 1);
    let read = |machine: &Machine| {
        let pool = Pool::open(simulated(machine)).unwrap();
        let extent = pool.adopt(area).unwrap();
        let (_area, applied) = RedoArea::recover(&pool, extent).unwrap();
        let values: Vec<u64> = (0..words.len / 8)
            .map(|i| {
                pool.region()
                    .word(words.off + 8 * i)
                    .unwrap()
                    .load(Ordering::Relaxed)
            })
            .collect();
        (values, applied)
    };
    let (found, _) = read(&machine);
    let lost = match machine.medium() {
        Medium::Dax => machine.crash_image(Survive::None),
        _ => machine.process_image(),
    };
    let (again, applied) = read(&Machine::boot(lost, 2));
    assert_eq!(again, found, "the result of a recovery stays");
    assert_eq!(applied, 0, "a recovery clears the slots");
    found
}

/// Returns the images that a crash at this moment may leave.
fn images(machine: &Machine, index: u64) -> Vec<(String, Image)> {
    let mut images = vec![("process".to_string(), machine.process_image())];
    if machine.medium() == Medium::Dax {
        let mut survivals = vec![Survive::None, Survive::All];
        survivals.extend((0..6).map(|i| Survive::Random(index * 8 + i)));
        for survive in survivals {
            images.push((format!("{survive:?}"), machine.crash_image(survive)));
        }
    }
    images
}

/// Sets all of a slot's words to `value` in one batch.
fn set_all(shared: &Shared, slot: &mut RedoSlot, first: u64, value: u64) {
    for word in 0..WORDS {
        slot.store(shared.word_off(first + word), value);
    }
    slot.commit().unwrap();
}

/// After a crash at any fence, with any surviving bytes, each slot's words contain one complete
/// batch: the last one committed, or the one in flight.
#[test]
fn batches_are_whole_or_absent() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let machine = Machine::new(11, medium);
        let shared = Shared::new(simulated(&machine));
        let places = shared.places();
        // The last committed batch of each slot.
        let committed = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let crashes = Arc::new(AtomicU64::new(0));
        let (known, count) = (Arc::clone(&committed), Arc::clone(&crashes));
        machine.on_persist(Some(Box::new(move |machine, point| {
            for (survive, image) in images(machine, point.index) {
                let words = recover(image, places);
                for (slot, committed) in known.iter().enumerate() {
                    let words = &words[slot * WORDS as usize..][..WORDS as usize];
                    let least = committed.load(Ordering::Relaxed);
                    assert!(
                        words.iter().all(|w| *w == words[0]),
                        "{medium} {point:?} {survive}: part of a batch: {words:?}"
                    );
                    assert!(
                        (least..=least + 1).contains(&words[0]),
                        "{medium} {point:?} {survive}: batch {} instead of {least}",
                        words[0]
                    );
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        })));
        let mut slots = [Purpose::Merge, Purpose::Drain].map(|p| shared.area.slot(p).unwrap());
        let mut rng = fastrand::Rng::with_seed(12);
        for _ in 0..40 {
            let at = rng.usize(..2);
            let value = committed[at].load(Ordering::Relaxed) + 1;
            set_all(&shared, &mut slots[at], at as u64 * WORDS, value);
            committed[at].store(value, Ordering::Relaxed);
            if rng.u32(..4) == 0 {
                slots[at].clear().unwrap();
            }
        }
        machine.on_persist(None);
        assert!(crashes.load(Ordering::Relaxed) > 80);
        assert_eq!(shared.word(0), committed[0].load(Ordering::Relaxed));
        println!("{medium}: {} crashes", crashes.load(Ordering::Relaxed));
    }
}

/// After random batches of every size, which may name words more than once, a crash leaves the
/// words as after some number of whole batches, in order.
#[test]
fn batches_happen_in_order() {
    let machine = Machine::new(13, Medium::Dax);
    let shared = Shared::new(simulated(&machine));
    let places = shared.places();
    // The words before and after the batch in flight.
    let between = Arc::new(Mutex::new((vec![0; 2 * WORDS as usize], Vec::new())));
    let states = Arc::clone(&between);
    machine.on_persist(Some(Box::new(move |machine, point| {
        let (before, after) = &*states.lock().unwrap();
        for (survive, image) in images(machine, point.index) {
            let mut words = recover(image, places);
            words.truncate(before.len());
            assert!(&words == before || &words == after, "{point:?} {survive}");
        }
    })));
    let mut slot = shared.area.slot(Purpose::Reclaim).unwrap();
    let mut rng = fastrand::Rng::with_seed(14);
    let mut state = vec![0; 2 * WORDS as usize];
    for round in 0..60 {
        let count = [1, 3, 40, STORES_MAX][rng.usize(..4)];
        let mut after = state.clone();
        for i in 0..count {
            assert!(slot.has_room(1));
            let word = rng.u64(..2 * WORDS);
            after[word as usize] = round * 1000 + i as u64 + 1;
            slot.store(shared.word_off(word), after[word as usize]);
        }
        assert_eq!(slot.has_room(1), count < STORES_MAX);
        *between.lock().unwrap() = (state, after.clone());
        slot.commit().unwrap();
        assert!(slot.is_empty());
        state = after;
    }
    machine.on_persist(None);
}

/// Commits to one slot, then to another one over the same words; returns the words after a crash.
fn hand_over(clear: bool) -> Vec<u64> {
    let machine = Machine::new(15, Medium::Dax);
    let shared = Shared::new(simulated(&machine));
    let places = shared.places();
    let least = Arc::new(AtomicU64::new(0));
    let known = Arc::clone(&least);
    machine.on_persist(Some(Box::new(move |machine, point| {
        for (survive, image) in images(machine, point.index) {
            let words = recover(image, places);
            let least = known.load(Ordering::Relaxed);
            assert!(
                !clear || (least..=least + 1).contains(&words[0]),
                "{point:?} {survive}: batch {} instead of {least}",
                words[0]
            );
        }
    })));
    let mut slots: Vec<RedoSlot> = (0..2)
        .map(|_| shared.area.slot(Purpose::Merge).unwrap())
        .collect();
    for (value, at) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        set_all(&shared, &mut slots[at], 0, value);
        least.store(value, Ordering::Relaxed);
        if clear {
            slots[at].clear().unwrap();
        }
    }
    // The later slot may have been taken by another job and is empty; the earlier one still has a
    // batch.
    slots[1].clear().unwrap();
    machine.on_persist(None);
    let mut words = recover(machine.crash_image(Survive::None), places);
    words.truncate(WORDS as usize);
    words
}

/// The last batch of a cleared slot is not repeated, so another job may change the same words (R1).
/// Without clearing, an older batch overwrites a newer one.
#[test]
fn cleared_slots_are_not_replayed() {
    assert_eq!(hand_over(true), vec![4; WORDS as usize]);
    assert_eq!(hand_over(false), vec![3; WORDS as usize]);
}

/// A dropped slot returns to the area, and the number of slots is limited.
#[test]
fn slots_are_lent() {
    let shared = Shared::new(config(Backing::Anonymous));
    let slots: Vec<RedoSlot> = (0..SLOT_COUNT)
        .map(|_| shared.area.slot(Purpose::Merge).unwrap())
        .collect();
    assert!(shared.area.slot(Purpose::Merge).is_none());
    drop(slots);
    assert!(shared.area.slot(Purpose::Drain).is_some());
}

/// On memory that does not outlive the process, batches leave no trace in the slots.
#[test]
fn volatile_pools_keep_no_batches() {
    let shared = Shared::new(config(Backing::Anonymous));
    assert_eq!(shared.pool.medium(), Medium::Dram);
    let mut slot = shared.area.slot(Purpose::Merge).unwrap();
    let before = shared.pool.counts();
    set_all(&shared, &mut slot, 0, 9);
    assert!((0..WORDS).all(|word| shared.word(word) == 9));
    drop(slot);
    let written = shared.pool.counts().get(Purpose::Merge).bytes - before.get(Purpose::Merge).bytes;
    assert!(
        written < SLOT_BYTES as u64 / 8,
        "{written} bytes for {WORDS} words"
    );
    let extent = shared.area_span;
    drop(shared.area);
    let extent = shared.pool.adopt(extent).unwrap();
    let (_area, applied) = RedoArea::recover(&shared.pool, extent).unwrap();
    assert_eq!(applied, 0);
}

/// A batch of one slot has the bytes of format version 1.
#[test]
fn the_layout_is_pinned() {
    let mut bytes = Vec::new();
    encode(&[(0x1122_3344_5566_7788, 0x99aa)], 7, &mut bytes);
    let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let zeros = "0".repeat(80);
    let store = "8877665544332211aa99000000000000";
    let header = GOLDEN_HEADER;
    assert_eq!(text, format!("{header}{zeros}{store}"));
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..20]), &bytes[64..]);
    assert_eq!(bytes[20..24], crc.to_le_bytes());
}

const GOLDEN_HEADER: &str = "5245444f010000000700000000000000010000009f674cc0";

/// Whatever bytes a slot contains, decoding returns the batch that was written or none.
#[test]
fn hostile_slots_are_ignored() {
    let stores: Vec<(u64, u64)> = (0..5).map(|i| (4096 + 8 * i, i)).collect();
    let mut good = Vec::new();
    encode(&stores, 3, &mut good);
    good.resize(SLOT_BYTES, 0xee);
    assert_eq!(decode(&good), Some((3, stores.clone())));
    let batch_bytes = 64 + 16 * stores.len();
    for at in 0..(batch_bytes + 64) * 8 {
        let mut damaged = good.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        // Bytes 24..64 and those after the stores are not checked.
        let idle = (24..64).contains(&(at / 8)) || at / 8 >= batch_bytes;
        let expected = idle.then(|| (3, stores.clone()));
        assert_eq!(decode(&damaged), expected, "bit {at}");
    }
    for len in 0..batch_bytes {
        assert_eq!(decode(&good[..len]), None, "{len} bytes");
    }
    let mut rng = fastrand::Rng::with_seed(16);
    for _ in 0..2000 {
        let noise: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
        assert_eq!(decode(&noise), None);
    }
    // A count beyond the slot, with a valid checksum of the header.
    for count in [STORES_MAX as u32 + 1, u32::MAX] {
        let mut damaged = good.clone();
        damaged[4..8].copy_from_slice(&count.to_le_bytes());
        let crc = crc32c::crc32c(&damaged[..20]);
        damaged[20..24].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&damaged), None);
    }
}

/// Damaged slots, one flip at a time and one in each slot, never make recovery panic, and change no
/// word that a complete batch does not name.
#[test]
fn recovery_takes_any_slot() {
    let shared = Shared::new(config(Backing::Anonymous));
    let area = shared.area.extent.clone();
    let mut good = Vec::new();
    encode(&[(shared.word_off(0), 77)], 1, &mut good);
    for at in 0..good.len() * 8 {
        let mut damaged = good.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        for slot in 0..SLOT_COUNT {
            let mut claim = area
                .claim((slot * SLOT_BYTES) as u64, damaged.len())
                .unwrap();
            claim.write(0, &damaged);
        }
        let (_area, applied) = RedoArea::recover(&shared.pool, area.clone()).unwrap();
        let idle = (24..64).contains(&(at / 8));
        assert_eq!(applied, if idle { SLOT_COUNT as u64 } else { 0 });
        assert_eq!(shared.word(0), if idle { 77 } else { 0 });
        assert!((1..WORDS).all(|word| shared.word(word) == 0));
        let word = shared.pool.region().word(shared.word_off(0)).unwrap();
        word.store(0, Ordering::Relaxed);
    }
}

/// A store outside of the pool, or across words, is reported as damage by recovery and commit.
#[test]
fn stores_outside_of_the_pool_are_damage() {
    let shared = Shared::new(config(Backing::Anonymous));
    let end = shared.pool.region().end();
    for off in [
        end,
        end + 8,
        u64::MAX,
        u64::MAX - 7,
        shared.word_off(0) + 1,
        1 << 60,
    ] {
        let mut bytes = Vec::new();
        encode(&[(shared.word_off(1), 5), (off, 6)], 1, &mut bytes);
        let extent = shared.area.extent.clone();
        extent.claim(0, bytes.len()).unwrap().write(0, &bytes);
        let result = RedoArea::recover(&shared.pool, extent);
        assert_eq!(result.err().unwrap().kind(), ErrorKind::Corruption);

        let mut slot = shared.area.slot(Purpose::Merge).unwrap();
        slot.store(off, 6);
        assert_eq!(slot.commit().unwrap_err().kind(), ErrorKind::Corruption);
        shared.area.clear_all().unwrap();
    }
}
