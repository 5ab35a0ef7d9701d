//! Campaigns: run the tests of this crate for a requested time or count, from a printed seed.

use std::process::Command;
use std::time::Duration;

use terrace::Design;
use terrace_media::Medium;

use crate::crash::{Case, Tally};
use crate::damage::{self, Class, Specimen};
use crate::faults::sweep::{self, Only};
use crate::kill::Victim;
use crate::linear;
use crate::metamorphic;
use crate::model;
use crate::moments;
use crate::oracle::Outcome;
use crate::place::scratch;
use crate::request::Request;
use crate::soak::Soak;
use crate::space::Overwriting;
use crate::strangers;

/// Crashes a simulated machine.
pub fn power(request: &Request) -> Outcome {
    let kinds = request.kinds()?;
    let first = request.number("seed", 0)?;
    let long_every = request.number("long-every", 4)?;
    let mut sum = Tally::default();
    let mut done = 0;
    let mut failures = 0;
    while request.goes_on("cases", 100, done)? {
        let seed = first + done;
        for &(medium, design) in &kinds {
            let (case, script) = if long_every > 0 && seed % long_every == long_every - 1 {
                Case::some_points(seed, medium)
            } else {
                Case::every_point(seed, medium)
            };
            let mut case = case.of(design);
            case.shrinks = request.number("shrink", 1)? > 0;
            // Every eighth seed crashes on a full disk, for designs that release space when data is
            // deleted.
            let full = seed % 8 == 5 && medium == Medium::Dram && design.keeps_table_files();
            let outcome = match full {
                true => Case::of_full_disk(seed, design, 100).run_on_full_disk(),
                false => case.run(&script),
            };
            match outcome {
                Ok(tally) => sum.add(&tally),
                Err(failure) => {
                    failures += 1;
                    println!("FAILED {failure}");
                    println!(
                        "repeat: power --cases 1 --seed {seed:#x} --medium {medium} --design {design}\n"
                    );
                    if failures >= request.number("failures", 1)? {
                        return Err(format!("{failures} cases failed; {sum:?}"));
                    }
                }
            }
        }
        done += 1;
        if done % 50 == 0 {
            println!("{:.0?}: seed {seed}, {sum:?}", request.elapsed());
        }
    }
    println!(
        "power: seeds {first}..{}, {failures} failures, {sum:?}",
        first + done
    );
    if failures > 0 {
        Err(format!("{failures} cases failed"))
    } else {
        Ok(())
    }
}

/// Kills children with SIGKILL, on real files.
pub fn kill(request: &Request) -> Outcome {
    let seed = request.number("seed", 0)?;
    let exe = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let command = || Command::new(&exe);
    let mut victims: Vec<Victim<'_>> = request
        .kinds()?
        .into_iter()
        .map(|kind| Victim::new(kind, seed, &command))
        .collect();
    let mut rounds = 0;
    while request.goes_on("rounds", 100, rounds)? {
        for victim in &mut victims {
            if let Err(failure) = victim.live_once() {
                let folder = victim.keep_folder();
                return Err(format!(
                    "{}: {failure}\nthe directory is kept: {}",
                    victim.describe(),
                    folder.display()
                ));
            }
        }
        rounds += 1;
        if rounds % 500 == 0 {
            let kills: u64 = victims.iter().map(|victim| victim.tally.kills).sum();
            println!("{:.0?}: {kills} kills", request.elapsed());
        }
    }
    for victim in &victims {
        println!("kill: {}: {:?}", victim.describe(), victim.tally);
    }
    Ok(())
}

/// Runs threads whose results must be linearizable.
pub fn linear(request: &Request) -> Outcome {
    let first = request.number("seed", 0)?;
    let kinds = request.kinds()?;
    let mut sum = linear::Tally::default();
    let mut done = 0;
    while request.goes_on("runs", 30, done)? {
        let run = linear::Run {
            seed: first + done,
            medium: kinds[done as usize % kinds.len()].0,
            design: kinds[done as usize % kinds.len()].1,
            writers: request.number("writers", 4)?,
            readers: request.number("readers", 4)?,
            writes: request.number("writes", 5000)?,
            spread: request.number("spread", if done % 2 == 0 { 1 } else { 40 })?,
        };
        let folder = scratch()?;
        let tally = run.run(folder.path()).map_err(|e| {
            format!(
                "linear of {} on {}, seed {:#x}: {e}",
                run.design, run.medium, run.seed
            )
        })?;
        sum.add(&tally);
        done += 1;
    }
    println!("linear: seeds {first}..{}, {sum:?}", first + done);
    Ok(())
}

/// Injects faults into calls on files and on the pool, one fault per run.
pub fn faults(request: &Request) -> Outcome {
    let first = request.number("seed", 0)?;
    let (stride, kinds) = (request.number("stride", 1)?.max(1), request.kinds()?);
    let every_way = request.number("every-way", 0)? > 0;
    let only: Option<Only> = request.text("only").map(str::parse).transpose()?;
    let mut sum = sweep::Tally::default();
    let mut done = 0;
    while request.goes_on("seeds", 1, done)? {
        for &kind in &kinds {
            let tally = match only {
                Some(only) => sweep::repeat(kind, first + done, only)?,
                None => sweep::sweep(kind, first + done, stride, every_way)?,
            };
            sum.add(&tally);
            let (medium, design) = kind;
            let seed = first + done;
            println!(
                "{:.0?}: {design} on {medium}, seed {seed}: {} cases of {}",
                request.elapsed(),
                tally.cases,
                sum.cases
            );
        }
        done += 1;
    }
    println!("faults: seeds {first}..{}\n{sum}", first + done);
    Ok(())
}

/// Runs a long mixed load with small size limits. The kinds share the time.
pub fn soak(request: &Request) -> Outcome {
    let seed = request.number("seed", 0)?;
    let kinds = request.kinds()?;
    let minutes = match request.text("minutes") {
        Some(text) => text.parse().map_err(|_| "--minutes is not a number")?,
        None => 10.0,
    };
    let time = Duration::from_secs_f64(f64::max(minutes, 0.0) * 60.0 / kinds.len() as f64);
    for (medium, design) in kinds {
        let soak = Soak {
            design,
            medium,
            seed,
            time,
            round: Duration::from_secs(request.number("round", 30)?.max(1)),
            says: true,
        };
        if let Some(why) = soak.left_out() {
            println!("soak: {design} on {medium} is skipped: {why}");
            continue;
        }
        println!("soak: {design} on {medium}, seed {seed:#x}, {time:.0?}");
        let keys = request.number("keys", 0)?;
        let folder = match request.text("folder") {
            Some(path) => tempfile::Builder::new().prefix("soak").tempdir_in(path),
            None => tempfile::Builder::new().prefix("soak").tempdir(),
        };
        let folder = folder.map_err(|e| format!("cannot create a directory for the soak: {e}"))?;
        if keys > 0 {
            if !design.keeps_table_files() {
                println!("soak: {design} on {medium} is skipped: it has no table files");
                continue;
            }
            let overwriting = Overwriting::by_default(design, medium, keys, time, seed);
            let taken = overwriting.hold(folder.path())?;
            println!("soak: {design} on {medium}, {keys} keys overwritten: {taken:?}");
            continue;
        }
        match soak.run(folder.path()) {
            Ok(tally) => println!("soak: {design} on {medium}: {tally:?}\n"),
            Err(failure) => {
                let folder = folder.keep();
                return Err(format!(
                    "{failure}\nthe directory is kept: {}",
                    folder.display()
                ));
            }
        }
    }
    Ok(())
}

/// Flips bits in every byte of every table file and of OPTIONS, one byte at a time.
pub fn flips(request: &Request) -> Outcome {
    let seed = request.number("seed", 0)?;
    let mask = request.number("mask", 0x01)? as u8;
    let stride = request.number("stride", 1)?.max(1) as usize;
    for design in Design::ALL {
        let specimen = Specimen::closed_of(design, seed)?;
        for (name, bytes) in specimen.files().filter(|(name, _)| *name != "pool") {
            for at in (0..bytes).step_by(stride) {
                let class = specimen.flip(name, at, mask)?;
                if ![Class::Refused, Class::Found].contains(&class) {
                    return Err(format!(
                        "{design}: {mask:#x} in byte {at:#x} of {name} is {class:?}"
                    ));
                }
            }
            println!("{:.0?}: {design}, {name}: {bytes} bytes", request.elapsed());
        }
    }
    Ok(())
}

/// Runs one history on all designs.
pub fn metamorphic(request: &Request) -> Outcome {
    let len = request.number("len", 1500)? as usize;
    cases(
        request,
        "metamorphic",
        50,
        &format!(" --len {len}"),
        |seed| metamorphic::run(seed, len),
    )
}

/// Compares random calls with an ordered map.
pub fn model(request: &Request) -> Outcome {
    let len = request.number("len", 1000)? as usize;
    let kinds = request.kinds()?;
    cases(request, "model", 50, &format!(" --len {len}"), |seed| {
        kinds
            .iter()
            .try_for_each(|&kind| model::once(kind, seed, len))
    })
}

/// Runs reads with writes and jumps of the clock between their steps.
pub fn moments(request: &Request) -> Outcome {
    on_each_medium(request, "moments", 500, moments::once)
}

/// Runs databases alongside foreign files and other processes.
pub fn strangers(request: &Request) -> Outcome {
    let exe = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
    let command = || Command::new(&exe);
    on_each_medium(request, "strangers", 200, |seed, medium| {
        strangers::once(seed, medium)?;
        match seed % 4 {
            3 => strangers::processes::once(seed, medium, &command),
            _ => Ok(()),
        }
    })
}

/// Runs generated cases on one medium after the other.
fn on_each_medium(
    request: &Request,
    name: &str,
    default: u64,
    once: impl Fn(u64, Medium) -> Outcome,
) -> Outcome {
    let media = request.media()?;
    cases(request, name, default, "", |seed| {
        for &medium in &media {
            once(seed, medium).map_err(|e| format!("{medium}: {e}"))?;
        }
        Ok(())
    })
}

/// Runs generated cases, as many as `--cases` or `--minutes` allow.
fn cases(
    request: &Request,
    name: &str,
    default: u64,
    with: &str,
    once: impl Fn(u64) -> Outcome,
) -> Outcome {
    let first = request.number("seed", 0)?;
    let mut done = 0;
    while request.goes_on("cases", default, done)? {
        let seed = first + done;
        once(seed).map_err(|e| format!("{e}\nrepeat: {name} --cases 1 --seed {seed:#x}{with}"))?;
        done += 1;
        if done % 20 == 0 {
            println!("{:.0?}: {done} cases", request.elapsed());
        }
    }
    println!(
        "{name}: seeds {first}..{}, {:.0?}",
        first + done,
        request.elapsed()
    );
    Ok(())
}

/// Damages databases.
pub fn damage(request: &Request) -> Outcome {
    let first = request.number("seed", 0)?;
    let mut tally = damage::Tally::default();
    let mut failures = 0;
    let mut seed = first;
    let designs = request.designs_or(&[])?;
    while request.goes_on("cases", 10_000, tally.cases() + failures)? {
        let specimen = match designs.len() as u64 {
            0 => Specimen::drawn(seed)?,
            count => Specimen::of(designs[(seed % count) as usize], seed)?,
        };
        specimen.repair_undamaged()?;
        let each = match specimen.is_large() {
            // A case takes a second.
            true => request.number("each", 400)?.div_ceil(16),
            false => request.number("each", 400)?,
        };
        for case in 0..each {
            match specimen.run(case) {
                Ok((kind, class)) => tally.count(kind, class),
                Err(failure) => {
                    failures += 1;
                    println!("FAILED {failure}");
                    if failures >= request.number("failures", 1)? {
                        return Err(format!("{failures} cases failed"));
                    }
                }
            }
        }
        seed += 1;
    }
    println!("{tally}");
    println!(
        "damage: seeds {first}..{seed}, {} cases, {failures} failures, {:.0?}",
        tally.cases() + failures,
        request.elapsed()
    );
    match failures {
        0 => Ok(()),
        _ => Err(format!("{failures} cases failed")),
    }
}
