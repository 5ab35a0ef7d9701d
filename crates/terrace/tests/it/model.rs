//! Random calls compared with an ordered map: after any sequence of them, both agree.

use terrace::{Design, Options, Workers};
use terrace_media::Medium;
use terrace_testkit::model::{once, run};
use terrace_testkit::script::{Op, Profile, scans_beside_steps};
use terrace_testkit::{seeds, settings, shrink};

fn check(name: &str, count: u64, len: usize, medium: Medium, vary: &dyn Fn(&mut Options, u64)) {
    for seed in seeds::seeds(count) {
        check_one(name, seed, len, medium, vary);
    }
}

fn check_one(name: &str, seed: u64, len: usize, medium: Medium, vary: &dyn Fn(&mut Options, u64)) {
    let mut options = settings::small(medium);
    vary(&mut options, seed);
    let script = Profile::everything(len).generate(seed);
    shrink::check(name, seed, &script, &mut |script| {
        run(&options, medium, script)
    })
    .unwrap_or_else(|failure| panic!("{failure}\nrepeat with TERRACE_SEED={seed:#x}"));
}

/// After random calls in random interleavings with background steps, the store equals the map.
#[test]
fn random_calls_agree_with_a_map() {
    check("model on dax", 60, 1500, Medium::Dax, &|_, _| {});
}

/// The same holds on a pool whose pages are synced.
#[test]
fn random_calls_agree_with_a_map_on_mapped() {
    check("model on mapped", 12, 800, Medium::Mapped, &|_, _| {});
}

/// The same holds without a pool: tables in memory, logs in files.
#[test]
fn random_calls_agree_with_a_map_without_a_pool() {
    check("model on dram", 25, 800, Medium::Dram, &|_, _| {});
}

/// Open iterators see the state of the time they were opened, between any two steps of large merges
/// and drains.
#[test]
fn iterators_during_single_steps_agree_with_a_map() {
    for seed in seeds::seeds(24) {
        let options = settings::varied(&settings::small(Medium::Dax), (seed / 2) as u8);
        let script = scans_beside_steps(seed);
        shrink::check("iterators", seed, &script, &mut |script| {
            run(&options, Medium::Dax, script)
        })
        .unwrap_or_else(|failure| panic!("{failure}\nrepeat with TERRACE_SEED={seed:#x}"));
    }
}

/// The same holds with options that are unfavorable in one way each.
#[test]
fn random_calls_agree_with_a_map_under_hostile_options() {
    check(
        "hostile options",
        45,
        1000,
        Medium::Dax,
        &|options, seed| {
            *options = settings::varied(options, seed as u8);
            if seed % 5 == 4 {
                options.pool.size_bytes = 6 << 18;
                options.front.memtable_bytes = 4 << 10;
            }
        },
    );
}

/// The same holds with levels of files at the bottom, with and without a buffer above them.
#[test]
fn random_calls_agree_with_a_map_over_files() {
    let kinds = [
        (Design::MioDbSsd, Medium::Dax),
        (Design::MioDbSsd, Medium::Mapped),
        (Design::Leveled, Medium::Dax),
        (Design::Leveled, Medium::Mapped),
        (Design::MioDbSsd, Medium::Dram),
        (Design::Leveled, Medium::Dram),
    ];
    for (seed, (design, medium)) in seeds::in_turns(84, &kinds) {
        let name = format!("{design} on {medium}");
        check_one(&name, seed, 1000, medium, &|options, seed| {
            options.design = Some(design);
            *options = settings::varied(options, seed as u8);
        });
    }
}

/// The same holds while threads of the store flush, merge and drain.
#[test]
fn random_calls_agree_with_a_map_during_background_work() {
    for medium in [Medium::Dax, Medium::Dram] {
        for seed in seeds::seeds(10) {
            let mut options = settings::small(medium);
            options.background.workers = Workers::Threads(1 + seed as usize % 2);
            let mut script = Profile::everything(1500).generate(seed);
            script.retain(|op| !matches!(op, Op::Step(..)));
            run(&options, medium, &script)
                .unwrap_or_else(|failure| panic!("{medium}, seed {seed}: {failure}"));
        }
    }
}

/// The same holds with sizes near each limit, with threads, and with unfavorable options.
#[test]
fn random_calls_agree_with_a_map_near_each_limit() {
    for kind in [
        (Medium::Dax, Design::MioDb),
        (Medium::Mapped, Design::MioDbSsd),
        (Medium::Dram, Design::MioDbSsd),
        (Medium::Dram, Design::Leveled),
    ] {
        // Memtables of 64 MiB take long. The campaign covers them.
        let seeds = seeds::seeds(6).into_iter();
        for seed in seeds.filter(|seed| !settings::is_by_default(*seed)) {
            once(kind, seed, 200).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}
