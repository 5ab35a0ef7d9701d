//! Tests of lists that are their own logs: crashes at every persist point, reused space, damage.

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_media::{Bump, Extent, Machine, Medium, Pool, Purpose};

use super::crash::{config, reopen, survivals};
use super::{Batch, batches};
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
use crate::parts::log::layout::{LIST_MARK_BYTES, LIST_MARKS};
use crate::parts::log::{ListBounds, ListLog, Log, Payload, mark_end, replay_list};
use crate::parts::skiplist::layout::{TABLE_HEADER_BYTES, encode_table_header};
use crate::parts::skiplist::node::head_bytes;
use crate::parts::skiplist::{NewNode, SkipList};
use crate::types::key_hash;

const EXTENT_BYTES: u64 = 32 << 10;

/// A list, as the front makes and fills it.
struct Writer {
    log: ListLog,
    list: SkipList,
    bump: Bump,
}

impl Writer {
    fn new(extent: Arc<Extent>, id: u64, medium: Medium) -> Writer {
        let bump = extent.bump_within(0, ListLog::capacity(&extent));
        let mut claim = bump
            .claim(TABLE_HEADER_BYTES + head_bytes().len(), 64)
            .unwrap();
        claim.write(0, &encode_table_header(id));
        claim.write(TABLE_HEADER_BYTES, &head_bytes());
        let head = extent.off() + TABLE_HEADER_BYTES as u64;
        let list = SkipList::new(extent.region().clone(), head);
        let log = ListLog::create(extent, id, medium).unwrap();
        Writer { log, list, bump }
    }

    /// Writes one batch; returns false if it does not fit.
    fn append(&self, batch: &Batch) -> bool {
        let nodes = nodes(batch);
        let bytes = nodes.iter().map(NewNode::bytes).sum();
        let Some(slot) = self.log.reserve(bytes) else {
            return false;
        };
        let mut claim = self.bump.claim(bytes, 8).unwrap();
        let mut at = 0;
        for node in nodes {
            node.write_flushed(&mut claim, at, Purpose::Log);
            let off = claim.off() + at as u64;
            let target = Target {
                keyspace: node.keyspace,
                key: node.key,
                seq: node.seq,
            };
            self.list.insert(off, node.height, &target).unwrap();
            at += node.bytes();
        }
        self.log
            .append(slot, batch.first_seq, &mut Payload::new())
            .unwrap();
        true
    }
}

fn nodes(batch: &Batch) -> Vec<NewNode<'_>> {
    let last = batch.entries.len() - 1;
    let entries = batch.entries.iter().enumerate();
    entries
        .map(|(at, (kind, keyspace, key, value))| NewNode {
            keyspace: *keyspace,
            seq: batch.first_seq + at as u64,
            kind: *kind,
            hash: key_hash(*keyspace, key),
            height: 1 + (at as u8 + key.len() as u8) % 4,
            key,
            value,
            value_crc: crc32c::crc32c(value),
            more: at < last,
        })
        .collect()
}

/// The bounds of a list after a power loss.
fn lost(id: u64, end: Option<u64>) -> ListBounds {
    ListBounds {
        id,
        end,
        power_lost: true,
    }
}

/// Returns the batches that a recovery finds, and the end of the list.
fn read(extent: &Extent, bounds: ListBounds) -> (Vec<Batch>, Result<u64, DecodeError>) {
    let bytes = extent.region().bytes(extent.off(), extent.len() as usize);
    let mut found: Vec<Batch> = Vec::new();
    let mut more = false;
    let walked = replay_list(bytes.unwrap(), extent.off(), bounds, &mut |_, node| {
        let header = node.header;
        let entry = (
            header.kind,
            header.keyspace,
            node.key.to_vec(),
            node.value.to_vec(),
        );
        if !more {
            found.push(Batch {
                first_seq: header.seq,
                entries: Vec::new(),
            });
        }
        found.last_mut().unwrap().entries.push(entry);
        more = header.more;
        Ok::<(), DecodeError>(())
    });
    (found, walked.map(|end| end.bytes))
}

fn extent_of(machine: &Machine) -> Arc<Extent> {
    let pool = Pool::create(config(machine)).unwrap();
    pool.alloc(EXTENT_BYTES).unwrap()
}

/// After a crash at any fence or sync, with any choice of surviving bytes, a recovery finds whole
/// batches, all that are durable, and none of the lists that had the space before, although their
/// nodes are as long as its own.
#[test]
fn lists_survive_crashes() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let machine = Machine::new(61, medium);
        let extent = extent_of(&machine);
        let span = extent.span();
        let mut all = batches(&mut fastrand::Rng::with_seed(62), 50, 200);
        // A long value bypasses the caches.
        all[2].entries[0].3 = vec![7; 3000];
        for id in 3..6 {
            let skipped = all.last().map_or(0, |last| last.first_seq + 10);
            let again = |batch: &Batch| Batch {
                first_seq: batch.first_seq + skipped,
                ..batch.clone()
            };
            all = all.iter().map(again).collect();
            let writer = Writer::new(Arc::clone(&extent), id, medium);
            let durable = Arc::new(AtomicU64::new(0));
            let crashes = Arc::new(AtomicU64::new(0));
            let (expected, known) = (all.clone(), Arc::clone(&durable));
            let count = Arc::clone(&crashes);
            machine.on_persist(Some(Box::new(move |machine, point| {
                for survive in survivals(point.index) {
                    let after = Machine::boot(machine.crash_image(survive), point.index);
                    let (found, end) = read(&reopen(&after, span), lost(id, None));
                    end.unwrap_or_else(|e| panic!("{medium} {point:?} {survive:?}: {e:?}"));
                    let is_prefix = expected.starts_with(&found);
                    assert!(is_prefix, "{medium} {id} {point:?} {survive:?}: {found:?}");
                    let known = known.load(Ordering::Relaxed);
                    assert!(
                        found.len() as u64 >= known,
                        "{medium} {point:?} {survive:?}"
                    );
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })));
            let mut written = 0;
            for (at, batch) in all.iter().enumerate() {
                if !writer.append(batch) {
                    break;
                }
                written += 1;
                let syncs = at % 7 == 0;
                if syncs {
                    writer.log.sync().unwrap();
                }
                if medium == Medium::Dax || syncs {
                    durable.store(written as u64, Ordering::Relaxed);
                }
            }
            machine.on_persist(None);
            let after = Machine::boot(machine.process_image(), 1);
            let killed = ListBounds {
                power_lost: false,
                ..lost(id, None)
            };
            let (found, end) = read(&reopen(&after, span), killed);
            assert_eq!(found, all[..written], "a process crash loses nothing");
            assert!(end.is_ok());
            assert!(written > 20 && crashes.load(Ordering::Relaxed) >= 7 * 8);
        }
    }
}

/// A node that is not whole ends the list, but not before a mark or the recorded end: there it is
/// damage.
#[test]
fn damage_before_a_mark_is_reported() {
    let machine = Machine::new(63, Medium::Dax);
    let extent = extent_of(&machine);
    let all = batches(&mut fastrand::Rng::with_seed(64), 40, 100);
    let writer = Writer::new(Arc::clone(&extent), 7, Medium::Dax);
    let mut ends = Vec::new();
    for batch in &all {
        assert!(writer.append(batch));
        ends.push(writer.log.bytes());
    }
    assert_eq!(writer.log.durable_end(), ends.last().copied());
    let end = writer.log.bytes();
    let image = machine.process_image();
    let damaged = |at: u64, recorded: Option<u64>| {
        let machine = Machine::boot(image.clone(), 65);
        let extent = reopen(&machine, extent.span());
        let word = extent.region().word(extent.off() + at / 8 * 8).unwrap();
        word.fetch_xor(1 << (at % 8 * 8), Ordering::Relaxed);
        read(&extent, lost(7, recorded))
    };
    // The header of the first batch: behind it is everything that the marks call durable.
    let (found, result) = damaged(ends[0] + 9, None);
    assert!(found.len() <= 1 && result.is_err());
    // The last batch is after the last mark.
    let (found, result) = damaged(ends[38] + 9, None);
    assert_eq!((found.len(), result.ok()), (39, Some(ends[38])));
    let (_, result) = damaged(ends[38] + 9, Some(end));
    assert!(result.is_err());
    // A damaged mark is as none, and the other one counts.
    for line in 1..=LIST_MARKS {
        let (found, result) = damaged(EXTENT_BYTES - line * LIST_MARK_BYTES + 8, None);
        assert_eq!((found.len(), result.ok()), (40, Some(end)));
    }
    for at in [3, 70] {
        let (found, result) = damaged(at, None);
        assert!(
            found.is_empty() && result.is_err(),
            "header and head, byte {at}"
        );
    }
}

/// Unsynced nodes that are missing are damage unless power was lost. The recovery from a power loss
/// marks the new end, so that the next recovery does not report damage.
#[test]
fn damage_of_what_was_written_is_reported() {
    let machine = Machine::new(69, Medium::Mapped);
    let extent = extent_of(&machine);
    let writer = Writer::new(Arc::clone(&extent), 7, Medium::Mapped);
    let mut ends = Vec::new();
    for batch in batches(&mut fastrand::Rng::with_seed(70), 40, 100) {
        assert!(writer.append(&batch));
        ends.push(writer.log.bytes());
    }
    let word = extent.region().word(extent.off() + ends[9] + 8).unwrap();
    word.fetch_xor(1, Ordering::Relaxed);
    let killed = ListBounds {
        power_lost: false,
        ..lost(7, None)
    };
    let (found, result) = read(&extent, killed);
    assert_eq!(found.len(), 10);
    let text = result.unwrap_err().to_string();
    assert!(text.contains("not whole"), "{text}");
    let (found, result) = read(&extent, lost(7, None));
    assert_eq!((found.len(), result.ok()), (10, Some(ends[9])));
    mark_end(&extent, 7, ends[9]);
    let (found, result) = read(&extent, killed);
    assert_eq!((found.len(), result.ok()), (10, Some(ends[9])));
}

/// Bytes of any other list, or none, are refused, and hostile bytes never panic.
#[test]
fn hostile_lists_are_refused() {
    let machine = Machine::new(66, Medium::Dax);
    let extent = extent_of(&machine);
    let writer = Writer::new(Arc::clone(&extent), 7, Medium::Dax);
    for batch in &batches(&mut fastrand::Rng::with_seed(67), 20, 100) {
        assert!(writer.append(batch));
    }
    assert!(read(&extent, lost(8, None)).1.is_err());
    let bytes = extent.region().bytes(extent.off(), EXTENT_BYTES as usize);
    let bytes = bytes.unwrap().to_vec();
    let mut rng = fastrand::Rng::with_seed(68);
    let mut shorter = 0;
    for _ in 0..3000 {
        let mut bytes = bytes.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..4096);
            bytes[at] = rng.u8(..);
        }
        bytes.truncate(rng.usize(..=EXTENT_BYTES as usize));
        let end = [None, Some(rng.u64(..)), Some(1000)][rng.usize(..3)];
        let bounds = ListBounds {
            power_lost: rng.bool(),
            ..lost(7, end)
        };
        let found = replay_list(&bytes, 0, bounds, &mut |at, node| {
            assert!(at + node.bytes() <= bytes.len() as u64);
            Ok::<(), DecodeError>(())
        });
        shorter += u64::from(found.is_err());
    }
    assert!(shorter > 1000, "{shorter}");
}
