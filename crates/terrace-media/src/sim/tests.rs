//! Tests of the simulator: what a crash may keep, what it must keep, and that hooks see all points.

use super::*;
use crate::{Backing, Extent, OpenMode, Pool, PoolConfig, Prefault};
use std::collections::BTreeSet;
use std::path::Path;

fn config(machine: &Machine) -> PoolConfig {
    PoolConfig {
        grow_bytes: 64 << 10,
        granule: 4096,
        prefault: Prefault::None,
        ..PoolConfig::new(Backing::Simulated(machine.clone()), 1 << 20)
    }
}

/// Creates a machine with a pool of one extent of 16 pages, all zero.
fn machine(medium: Medium) -> (Machine, Pool, Arc<Extent>) {
    let machine = Machine::new(7, medium);
    let pool = Pool::create(config(&machine)).expect("created");
    let extent = pool.alloc(64 << 10).expect("allocated");
    (machine, pool, extent)
}

/// Returns the bytes of the extent after a crash.
fn after(machine: &Machine, extent: &Extent, survive: Survive) -> Vec<u8> {
    let booted = Machine::boot(machine.crash_image(survive), 1);
    let pool = Pool::open(config(&booted)).expect("opened");
    pool.region()
        .bytes(extent.off(), extent.len() as usize)
        .expect("mapped")
        .to_vec()
}

/// An unflushed store is lost with `None` and kept with `All`.
#[test]
fn unflushed_stores_are_lost_or_kept_as_chosen() {
    let (machine, _pool, extent) = machine(Medium::Dax);
    extent.claim(0, 256).expect("claimed").write(10, &[5; 100]);
    let none = after(&machine, &extent, Survive::None);
    assert!(none.iter().all(|b| *b == 0));
    let all = after(&machine, &extent, Survive::All);
    assert_eq!(all[10..110], [5; 100]);
    assert_eq!(all.iter().filter(|b| **b != 0).count(), 100);
}

/// Bytes flushed and fenced by the same thread survive every crash; bytes that were only flushed,
/// or fenced by another thread, may or may not survive.
#[test]
fn only_a_fence_of_the_same_thread_is_a_promise() {
    let (machine, pool, extent) = machine(Medium::Dax);
    let mut claim = extent.claim(0, 256).expect("claimed");
    claim.write_streaming(0, &[1; 64], Purpose::Log);
    claim.write(64, &[2; 64]);
    pool.region().flush(extent.off() + 64, 64, Purpose::Log);
    pool.region().fence(Purpose::Log);
    claim.write_streaming(128, &[3; 64], Purpose::Log);
    std::thread::scope(|scope| {
        scope.spawn(|| pool.region().fence(Purpose::Log));
    });
    let mut third = BTreeSet::new();
    for survive in [Survive::None, Survive::All]
        .into_iter()
        .chain((0..50).map(Survive::Random))
    {
        let bytes = after(&machine, &extent, survive);
        assert_eq!(
            (&bytes[..64], &bytes[64..128]),
            (&[1; 64][..], &[2; 64][..])
        );
        third.insert(bytes[128]);
    }
    assert_eq!(third, BTreeSet::from([0, 3]));
    pool.region().fence(Purpose::Log);
    assert_eq!(after(&machine, &extent, Survive::None)[128..192], [3; 64]);
}

/// If a line changes after its flush, its flushed content is durable until it is flushed again.
#[test]
fn a_flush_takes_the_line_as_it_is() {
    let (machine, pool, extent) = machine(Medium::Dax);
    let mut claim = extent.claim(0, 64).expect("claimed");
    claim.store(0, 1);
    pool.region().flush(extent.off(), 8, Purpose::Log);
    claim.store(0, 2);
    pool.region().fence(Purpose::Log);
    assert_eq!(after(&machine, &extent, Survive::None)[0], 1);
    pool.region().persist(extent.off(), 8, Purpose::Log);
    assert_eq!(after(&machine, &extent, Survive::None)[0], 2);
    // A fence of an older flush does not restore older content.
    std::thread::scope(|scope| {
        claim.store(0, 3);
        pool.region().flush(extent.off(), 8, Purpose::Log);
        let claim = &mut claim;
        let pool = &pool;
        let extent = &extent;
        scope.spawn(move || {
            claim.store(0, 4);
            pool.region().persist(extent.off(), 8, Purpose::Log);
        });
    });
    pool.region().fence(Purpose::Log);
    assert_eq!(after(&machine, &extent, Survive::None)[0], 4);
}

/// Random crashes keep any subset of lines and any leading words of a line, and nothing else.
#[test]
fn random_crashes_cover_subsets_and_torn_lines() {
    let (machine, _pool, extent) = machine(Medium::Dax);
    let mut claim = extent.claim(0, 256).expect("claimed");
    claim.write(0, &[9; 256]);
    let mut first_words = BTreeSet::new();
    let mut subsets = BTreeSet::new();
    for seed in 0..2000 {
        let bytes = after(&machine, &extent, Survive::Random(seed));
        let mut subset = 0;
        for line in 0..4 {
            let words: Vec<bool> = (0..8)
                .map(|word| {
                    let word = &bytes[line * 64 + word * 8..][..8];
                    assert!(word == [9; 8] || word == [0; 8], "words are whole");
                    word[0] == 9
                })
                .collect();
            let count = words.iter().filter(|kept| **kept).count();
            assert!(words[..count].iter().all(|kept| *kept), "words go in order");
            first_words.insert(count);
            subset |= usize::from(count == 8) << line;
        }
        subsets.insert(subset);
        assert!(bytes[256..].iter().all(|b| *b == 0));
        assert_eq!(
            bytes,
            after(&machine, &extent, Survive::Random(seed)),
            "seeds decide"
        );
    }
    assert_eq!(first_words, (0..=8).collect());
    assert_eq!(subsets, (0..16).collect());
}

/// On `Mapped`, a flush guarantees nothing, a sync guarantees the pages of its range, and a crash
/// keeps any subset of the other pages, each as a whole.
#[test]
fn pages_are_the_unit_of_mapped() {
    let (machine, pool, extent) = machine(Medium::Mapped);
    let mut claim = extent.claim(0, 64 << 10).expect("claimed");
    claim.write(0, &[4; 64 << 10]);
    pool.region().persist(extent.off(), 64 << 10, Purpose::Log);
    assert!(
        after(&machine, &extent, Survive::None)
            .iter()
            .all(|b| *b == 0)
    );
    // One byte in page 2 and one in page 3.
    pool.region()
        .sync(extent.off() + 3 * 4096 - 1, 2)
        .expect("synced");
    let mut survivors = BTreeSet::new();
    for seed in 0..200 {
        let bytes = after(&machine, &extent, Survive::Random(seed));
        for (page, bytes) in bytes.chunks(4096).enumerate() {
            assert!(bytes.iter().all(|b| *b == bytes[0]), "pages are whole");
            if page == 2 || page == 3 {
                assert_eq!(bytes[0], 4);
            } else {
                survivors.insert((page, bytes[0]));
            }
        }
    }
    assert_eq!(
        survivors.len(),
        28,
        "every other page was kept once and lost once"
    );
    pool.sync_all().expect("synced");
    assert!(
        after(&machine, &extent, Survive::None)
            .iter()
            .all(|b| *b == 4)
    );
}

/// After a process crash all stores are present in the same boot; those that were not durable can
/// still be lost by a later power loss.
#[test]
fn a_process_crash_loses_nothing_yet() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let (first, pool, extent) = machine(medium);
        let fs = first.fs();
        let file = fs
            .open(Path::new("/file"), OpenMode::Create)
            .expect("opened");
        file.write_at(0, b"unsynced").expect("written");
        let _lock = fs.lock(Path::new("/LOCK")).expect("locked");
        let mut claim = extent.claim(0, 128).expect("claimed");
        claim.write(0, &[1; 64]);
        pool.region().persist(extent.off(), 64, Purpose::Log);
        pool.region().sync(extent.off(), 64).expect("synced");
        extent.claim(4096, 64).expect("claimed").write(0, &[2; 64]);

        let second = Machine::boot(first.process_image(), 9);
        let fs = second.fs();
        assert!(
            fs.lock(Path::new("/LOCK")).is_ok(),
            "locks go with the process"
        );
        let pool = Pool::open(config(&second)).expect("opened");
        assert_eq!(pool.shutdown(), crate::Shutdown::Crashed);
        let bytes = pool.region().bytes(extent.off(), 8192).expect("mapped");
        assert_eq!(
            (&bytes[..64], &bytes[4096..4160]),
            (&[1; 64][..], &[2; 64][..])
        );
        let file = fs.open(Path::new("/file"), OpenMode::Read).expect("opened");
        let mut buf = [0; 8];
        file.read_exact_at(0, &mut buf).expect("read");
        assert_eq!(&buf, b"unsynced");

        let bytes = after(&second, &extent, Survive::None);
        assert_eq!((bytes[0], bytes[4096]), (1, 0));
        let third = Machine::boot(second.crash_image(Survive::None), 9);
        assert!(!third.fs().exists(Path::new("/file")).expect("looked"));
        let pool = Pool::open(config(&third)).expect("opened");
        assert_eq!(pool.shutdown(), crate::Shutdown::PowerLost);
    }
}

/// A sync of the pool on `Dax` makes pages durable that an earlier process on `Mapped` left, but no
/// lines stored since, which the kernel does not know of.
#[test]
fn a_sync_on_dax_writes_no_line() {
    let (first, pool, extent) = machine(Medium::Mapped);
    extent.claim(0, 64).expect("claimed").write(0, &[1; 64]);
    drop(pool);
    let second = Machine::boot_on(first.process_image(), 9, Medium::Dax);
    // It detects that the previous process was on `Mapped`, and syncs.
    let pool = Pool::open(config(&second)).expect("opened");
    let kept = pool.adopt(extent.span()).expect("adopted");
    kept.claim(4096, 64).expect("claimed").write(0, &[2; 64]);
    pool.sync_all().expect("synced");
    let bytes = after(&second, &extent, Survive::None);
    assert_eq!((bytes[0], bytes[4096]), (1, 0));
    pool.region().persist(extent.off() + 4096, 64, Purpose::Log);
    assert_eq!(after(&second, &extent, Survive::None)[4096], 2);
}

/// The hook sees every fence, sync and rename in order, before it takes effect; it may image and
/// boot machines, and is not called for operations inside it.
#[test]
fn hooks_see_every_point_before_it_takes_effect() {
    let (machine, pool, extent) = machine(Medium::Dax);
    let before = machine.points();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let at = extent.off();
    machine.on_persist(Some(Box::new(move |machine, point| {
        machine.fs().sync_dir(Path::new("/")).expect("synced");
        let booted = Machine::boot(machine.crash_image(Survive::None), point.index);
        let pool = Pool::open(config(&booted)).expect("opened");
        let byte = pool.region().bytes(at, 1).expect("mapped")[0];
        log.lock()
            .push((point.index - before, point.what, point.purpose, byte));
    })));
    let mut claim = extent.claim(0, 64).expect("claimed");
    claim.write_streaming(0, &[1], Purpose::Drain);
    pool.region().fence(Purpose::Drain);
    let fs = machine.fs();
    let file = fs.open(Path::new("/a"), OpenMode::Create).expect("opened");
    file.write_at(0, b"x").expect("written");
    file.sync_data().expect("synced");
    fs.rename(Path::new("/a"), Path::new("/b"))
        .expect("renamed");
    fs.sync_dir(Path::new("/")).expect("synced");
    pool.sync_all().expect("synced");
    machine.on_persist(None);
    pool.region().fence(Purpose::Log);
    assert_eq!(
        *seen.lock(),
        [
            (0, "fence", Some(Purpose::Drain), 0),
            (1, "file sync", None, 1),
            (2, "rename", None, 1),
            (3, "folder sync", None, 1),
            (4, "pool sync", None, 1),
        ]
    );
    assert_eq!(machine.points() - before, 6);
}

/// Machines booted in sequence from one image, in recycled memory, see that image and none of the
/// others' writes.
#[test]
fn machines_share_no_state() {
    let (machine, pool, extent) = machine(Medium::Dax);
    extent.claim(4096, 8).expect("claimed").write(0, &[8; 8]);
    pool.region().persist(extent.off() + 4096, 8, Purpose::Log);
    let image = machine.crash_image(Survive::None);
    for round in 0..20u8 {
        let booted = Machine::boot(image.clone(), u64::from(round));
        let pool = Pool::open(config(&booted)).expect("opened");
        let kept = pool.adopt(extent.span()).expect("adopted");
        let len = kept.len() as usize;
        let bytes = pool.region().bytes(kept.off(), len).expect("mapped");
        assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 8);
        kept.claim(0, len)
            .expect("claimed")
            .write(0, &vec![round + 1; len]);
        let more = pool.alloc(100_000).expect("allocated");
        let len = more.len() as usize;
        let bytes = pool.region().bytes(more.off(), len).expect("mapped");
        assert!(bytes.iter().all(|b| *b == 0), "grown bytes are zero");
        more.claim(0, len)
            .expect("claimed")
            .write(0, &vec![round + 1; len]);
        pool.region().persist(kept.off(), 4096, Purpose::Log);
    }
    let bytes = after(&machine, &extent, Survive::None);
    assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 8);
}

/// Unsynced blocks may vanish or tear at sectors; synced ones and the length remain.
#[test]
fn unsynced_blocks_vanish_or_tear() {
    let machine = Machine::new(1, Medium::Dax);
    let fs = machine.fs();
    let path = Path::new("/log");
    let file = fs.open(path, OpenMode::Create).expect("opened");
    fs.sync_dir(Path::new("/")).expect("synced");
    file.write_at(0, &[1; 6000]).expect("written");
    file.sync_data().expect("synced");
    file.write_at(6000, &[2; 10_000]).expect("written");
    file.write_at(100, &[3; 100]).expect("written");
    let read = |survive| {
        let fs = Machine::boot(machine.crash_image(survive), 1).fs();
        let file = fs.open(path, OpenMode::Read).expect("opened");
        let mut bytes = vec![0; file.len().expect("length") as usize];
        file.read_exact_at(0, &mut bytes).expect("read");
        bytes
    };
    assert_eq!(read(Survive::None), [1; 6000]);
    let all = read(Survive::All);
    assert_eq!((all.len(), all[150], all[15_999]), (16_000, 3, 2));
    let mut lengths = BTreeSet::new();
    let mut tails = BTreeSet::new();
    let mut overwritten = BTreeSet::new();
    for seed in 0..500 {
        let bytes = read(Survive::Random(seed));
        assert!((6000..=16_000).contains(&bytes.len()));
        assert!(
            bytes[200..6000].iter().all(|b| *b == 1),
            "synced bytes stay"
        );
        overwritten.insert(bytes[150]);
        lengths.insert(bytes.len());
        if bytes.len() == 16_000 {
            for sector in (8192..16_000).step_by(512) {
                let sector = &bytes[sector..(sector + 512).min(16_000)];
                assert!(sector.iter().all(|b| *b == sector[0]), "sectors are whole");
            }
            tails.insert((bytes[8192], bytes[12_287]));
        }
    }
    assert!(lengths.len() > 50);
    assert_eq!(overwritten, BTreeSet::from([1, 3]));
    assert_eq!(tails, BTreeSet::from([(0, 0), (2, 0), (2, 2)]));
}

/// A durable write makes its own blocks durable and no others.
#[test]
fn a_durable_write_leaves_the_rest_unsynced() {
    let machine = Machine::new(1, Medium::Dax);
    let fs = machine.fs();
    let path = Path::new("/log");
    let file = fs.open(path, OpenMode::Create).expect("opened");
    fs.sync_dir(Path::new("/")).expect("synced");
    file.write_at(0, &[1; 20_000]).expect("written");
    file.sync_data().expect("synced");
    file.write_at(0, &[2; 20_000]).expect("written");
    file.write_durable_at(4096, &[3; 64]).expect("written");
    let mut others = BTreeSet::new();
    for seed in 0..100 {
        let fs = Machine::boot(machine.crash_image(Survive::Random(seed)), 1).fs();
        let mut bytes = vec![0; 20_000];
        let file = fs.open(path, OpenMode::Read).expect("opened");
        file.read_exact_at(0, &mut bytes).expect("read");
        assert_eq!(bytes[4096..4160], [3; 64]);
        others.insert((bytes[0], bytes[19_999]));
    }
    assert_eq!(others.len(), 4, "{others:?}");
}

/// Unsynced names may be the old or the new ones; a rename is atomic.
#[test]
fn unsynced_names_vanish_and_renames_are_atomic() {
    let machine = Machine::new(1, Medium::Dax);
    let fs = machine.fs();
    let dir = Path::new("/db");
    fs.create_dir_all(dir).expect("made");
    let put = |name: &str, content: &[u8]| {
        let file = fs.open(&dir.join(name), OpenMode::Create).expect("opened");
        file.write_at(0, content).expect("written");
        file.sync_data().expect("synced");
    };
    put("current", b"old");
    let names = |survive| {
        let fs = Machine::boot(machine.crash_image(survive), 1).fs();
        let names = fs.list(dir).expect("directories stay");
        let content = fs
            .open(&dir.join("current"), OpenMode::Read)
            .ok()
            .map(|file| {
                let mut bytes = [0; 3];
                file.read_exact_at(0, &mut bytes).expect("synced content");
                bytes
            });
        (names, content)
    };
    assert_eq!(
        names(Survive::None),
        (vec![], None),
        "a synced file without a synced name"
    );
    fs.sync_dir(dir).expect("synced");
    assert_eq!(
        names(Survive::None),
        (vec!["current".to_owned()], Some(*b"old"))
    );
    put("next", b"new");
    fs.rename(&dir.join("next"), &dir.join("current"))
        .expect("renamed");
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let (_, content) = names(Survive::Random(seed));
        seen.insert(content.expect("one of the two always exists"));
    }
    assert_eq!(seen, BTreeSet::from([*b"old", *b"new"]));
    fs.sync_dir(dir).expect("synced");
    assert_eq!(
        names(Survive::None),
        (vec!["current".to_owned()], Some(*b"new"))
    );
    fs.remove(&dir.join("current")).expect("removed");
    assert_eq!(
        names(Survive::None).1,
        Some(*b"new"),
        "a removal is not durable either"
    );
    fs.sync_dir(dir).expect("synced");
    assert_eq!(names(Survive::None), (vec![], None));
}

/// Syncing one of two directories makes a rename between them durable as a whole, together with the
/// changes it depends on.
#[test]
fn a_rename_between_folders_is_one_change() {
    let machine = Machine::new(1, Medium::Dax);
    let fs = machine.fs();
    let (a, b) = (Path::new("/a"), Path::new("/b"));
    fs.create_dir_all(a).expect("made");
    fs.create_dir_all(b).expect("made");
    fs.open(&a.join("x"), OpenMode::Create).expect("opened");
    fs.rename(&a.join("x"), &b.join("x")).expect("renamed");
    fs.sync_dir(b).expect("synced");
    for survive in [Survive::None, Survive::All, Survive::Random(3)] {
        let fs = Machine::boot(machine.crash_image(survive), 1).fs();
        assert!(fs.list(a).expect("listed").is_empty());
        assert_eq!(fs.list(b).expect("listed"), ["x"]);
    }
}

/// Machines with the same seed and operations are equal.
#[test]
fn seeds_decide_everything() {
    let run = || {
        let (machine, pool, extent) = machine(Medium::Dax);
        extent.claim(0, 640).expect("claimed").write(0, &[1; 640]);
        (
            pool.uuid(),
            after(&machine, &extent, Survive::Random(5)),
            machine.points(),
        )
    };
    assert_eq!(run(), run());
}
