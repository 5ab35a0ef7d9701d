//! Crashes of a simulated machine at every persist point of short scripts, and at some of long
//! ones.

use terrace::{Design, Durability};
use terrace_media::Medium;
use terrace_testkit::crash::{Case, Tally};
use terrace_testkit::script::{Entry, Key, Op};
use terrace_testkit::value::Value;
use terrace_testkit::{seeds, settings};

fn check(medium: Medium, count: u64, every: bool) {
    let mut sum = Tally::default();
    for seed in seeds::seeds(count) {
        let (case, script) = if every {
            Case::every_point(seed, medium)
        } else {
            Case::some_points(seed, medium)
        };
        match case.run(&script) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => panic!("{failure}\nrepeat with TERRACE_SEED={seed:#x}"),
        }
    }
    println!("{medium}: {sum:?}");
}

/// After a power loss at any fence, exactly the acknowledged writes are there.
#[test]
fn dax_survives_a_crash_at_every_fence() {
    check(Medium::Dax, 12, true);
}

/// The same holds at some fences of long scripts.
#[test]
fn dax_survives_crashes_of_long_scripts() {
    check(Medium::Dax, 3, false);
}

/// After a power loss at any sync, every write acknowledged as synced is there.
#[test]
fn mapped_survives_a_crash_at_every_sync() {
    check(Medium::Mapped, 8, true);
}

/// The same holds at some syncs of long scripts.
#[test]
fn mapped_survives_crashes_of_long_scripts() {
    check(Medium::Mapped, 3, false);
}

/// The same holds with levels of files at the bottom, on the same machine as the pool.
#[test]
fn levels_of_files_survive_crashes() {
    let designs = settings::designs_with_files();
    let kinds: Vec<_> = designs
        .flat_map(|design| [Medium::Dax, Medium::Mapped].map(|medium| (design, medium)))
        .collect();
    let mut sum = Tally::default();
    // One in five has a long script.
    for (seed, (design, medium)) in seeds::in_turns(20, &kinds) {
        let (case, script) = match seed % 5 {
            4 => Case::some_points(seed, medium),
            _ => Case::every_point(seed, medium),
        };
        match case.of(design).run(&script) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => {
                panic!("{design}: {failure}\nrepeat with TERRACE_SEED={seed:#x}")
            }
        }
    }
    println!("{sum:?}");
}

/// The same holds without a pool: the buffer is in memory, and logs, manifest and tables are files.
#[test]
fn a_folder_of_files_survives_a_crash_at_every_sync() {
    let designs: Vec<_> = settings::designs_with_files().collect();
    let mut sum = Tally::default();
    for (seed, design) in seeds::in_turns(18, &designs) {
        let (case, script) = match seed % 6 {
            5 => Case::some_points(seed, Medium::Dram),
            _ => Case::every_point(seed, Medium::Dram),
        };
        match case.of(design).run(&script) {
            Ok(tally) => sum.add(&tally),
            Err(failure) => {
                panic!("{design}: {failure}\nrepeat with TERRACE_SEED={seed:#x}")
            }
        }
    }
    println!("without a pool: {sum:?}");
}

/// If the repository is in memory too, the log files hold all the data, and they suffice.
#[test]
fn log_files_survive_a_crash_at_every_sync() {
    check(Medium::Dram, 16, true);
    check(Medium::Dram, 3, false);
}

/// Scripts of campaigns that once failed pass. Each comment gives the former cause.
#[test]
fn cases_that_once_failed() {
    // Power was lost; the next process was killed while opening, between its first store to the
    // superblock and the persist; power was lost while the one after it wrote the other slot.
    let superblock = Case::every_point(0x5218, Medium::Dax);
    // A process was killed with an unsynced batch in its log. The log was replayed in parts, as the
    // pool was nearly full, and power was lost when the table of the first part was published and
    // the log not synced.
    let (case, script) = Case::some_points(0x7a163, Medium::Dram);
    let parts = (case.of(Design::Leveled), script);
    // Power was lost after a reclaim: the page with the header of an extent was newer than those of
    // its nodes, which still had the content from before the space was freed and reused.
    let stale = Case::some_points(0xafca3, Medium::Mapped);
    // Power was lost when a drain had written its table: an entry in it was deleted by a range of
    // its own batch, which was missing from the set of live ranges because of a newer, volatile
    // one.
    let (case, script) = Case::some_points(600_030, Medium::Dram);
    let thinned = (case.of(Design::Leveled), script);
    for (case, script) in [superblock, parts, stale, thinned] {
        if let Err(failure) = case.run(&script) {
            panic!("{failure}");
        }
    }
}

/// Returns a script that fragments the free space of a pool of 2 MiB: extents of 16 KiB, one of
/// four live. A reopen then uses memtables that are longer than the fragments, which must be joined
/// before puts continue.
fn pieces() -> Vec<Op> {
    let key = |n: u32| Key(n.to_be_bytes().to_vec());
    let put = |n: u32, tag: u64| Entry {
        space: 0,
        key: key(n),
        value: Some(Value { tag, len: 500 }),
        until: None,
        ttl: None,
    };
    let write = |entries| Op::Write(entries, Durability::Buffered);
    let mut script = vec![Op::Reopen(true, 1)];
    script.extend((0..64).map(|n| {
        write(
            (20 * n..20 * n + 20)
                .map(|n| put(n, u64::from(n)))
                .collect(),
        )
    }));
    script.push(Op::Drain);
    let delete = |n: u32| Entry {
        until: Some(key(120 * n + 90)),
        value: None,
        ..put(120 * n, 0)
    };
    script.push(write((0..20).map(delete).collect()));
    script.extend([Op::Drain, Op::Reopen(true, 0)]);
    for round in 0..4u32 {
        let new = |n: u32| put(5000 + 100 * round + n, 5000 + u64::from(100 * round + n));
        script.extend([write((0..20).map(new).collect()), Op::Flush, Op::Drain]);
    }
    script
}

/// Returns a script that leaves gaps of 24 KiB between values of 12 kB, and then writes values
/// longer than the gaps.
fn large_values() -> Vec<Op> {
    let put = |n: u32, len| Entry {
        space: 0,
        key: Key(n.to_be_bytes().to_vec()),
        value: Some(Value {
            tag: u64::from(n),
            len,
        }),
        until: None,
        ttl: None,
    };
    let write = |entry| Op::Write(vec![entry], Durability::Buffered);
    let mut script = vec![Op::Reopen(true, 1)];
    script.extend((0..72).map(|n| write(put(n, 12_000))));
    script.push(Op::Drain);
    let gone = (0..72).filter(|n| n % 3 > 0);
    script.extend(gone.map(|n| {
        write(Entry {
            value: None,
            ..put(n, 0)
        })
    }));
    script.push(Op::Drain);
    script.extend((100..112).map(|n| write(put(n, 50_000))));
    script.push(Op::Drain);
    script
}

/// Returns a script that fills the pool with values larger than a memtable, deletes two of three
/// singly, and puts others: waiting drains remove from the repository what the deletes hide.
fn deleted_large_values() -> Vec<Op> {
    let put = |n: u32| Entry {
        space: 0,
        key: Key(n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()),
        value: Some(Value {
            tag: u64::from(n),
            len: 90_000 + n % 7 * 1000,
        }),
        until: None,
        ttl: None,
    };
    let write = |entry| Op::Write(vec![entry], Durability::Buffered);
    let mut script: Vec<Op> = (0..24).map(|n| write(put(n))).collect();
    script.push(Op::Drain);
    let gone = (0..24).filter(|n| n % 3 > 0);
    script.extend(gone.map(|n| {
        write(Entry {
            value: None,
            ..put(n)
        })
    }));
    for n in 24..36 {
        script.extend([write(put(n)), Op::Step(n, 3)]);
    }
    script.push(Op::Drain);
    script
}

/// After a crash at some points of joining the free space of a pool, everything is there, and puts
/// continue.
#[test]
fn joined_space_survives_crashes() {
    for medium in [Medium::Dax, Medium::Mapped] {
        let (mut case, _) = Case::every_point(1, medium);
        // A simulated sync takes many times as long as a fence.
        case.percent = match medium {
            Medium::Dax => 100 / seeds::stride(14) as u32,
            _ => (3 * seeds::times() as u32).min(100),
        };
        case.options = settings::small(medium);
        case.options.pool.size_bytes = 2 << 20;
        case.options.front.memtable_bytes = 72 << 10;
        for script in [pieces(), large_values(), deleted_large_values()] {
            match case.run(&script) {
                Ok(tally) => println!("{medium}: {tally:?}"),
                Err(failure) => panic!("{medium}: {failure}"),
            }
        }
    }
}

/// The same holds while most keys are deleted singly and others put, with a full pool above the
/// disk.
#[test]
fn full_pools_above_full_disks_survive_crashes() {
    let designs: Vec<_> = settings::designs_with_files().collect();
    for (seed, design) in seeds::in_turns(4, &designs) {
        match Case::of_full_pool_and_disk(seed, design, 3).run_on_full_disk() {
            Ok(tally) => println!("{design}: {tally:?}"),
            Err(failure) => panic!("{failure}"),
        }
    }
}

/// A power loss at any point while a full disk is overwritten, and everything or most is deleted on
/// it, loses nothing acknowledged. Puts continue after the delete, and the disk has its reserve
/// again.
#[test]
fn full_disks_survive_crashes() {
    for design in settings::designs_with_files() {
        for seed in seeds::seeds(4) {
            match Case::of_full_disk(seed, design, 30).run_on_full_disk() {
                Ok(tally) => println!("{design}: {tally:?}"),
                Err(failure) => panic!("{failure}"),
            }
        }
    }
}
