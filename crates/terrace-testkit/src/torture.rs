//! Torture: runs the campaigns in turns, each with a fresh seed, until the time is over or one of
//! them fails.

use std::time::Duration;

use crate::campaign;
use crate::oracle::Outcome;
use crate::request::Request;

/// A campaign that takes part: its size in one turn, and the option that sets it.
struct Part {
    name: &'static str,
    run: fn(&Request) -> Outcome,
    option: &'static str,
    size: u64,
    /// Whether it takes a design and a medium.
    has_kinds: bool,
}

const fn part(
    name: &'static str,
    run: fn(&Request) -> Outcome,
    (option, size): (&'static str, u64),
    has_kinds: bool,
) -> Part {
    Part {
        name,
        run,
        option,
        size,
        has_kinds,
    }
}

const PARTS: [Part; 10] = [
    part("power", campaign::power, ("cases", 10), true),
    part("kill", campaign::kill, ("rounds", 50), true),
    part("linear", campaign::linear, ("runs", 6), true),
    part("model", campaign::model, ("cases", 5), true),
    part("metamorphic", campaign::metamorphic, ("cases", 5), false),
    part("moments", campaign::moments, ("cases", 200), false),
    part("strangers", campaign::strangers, ("cases", 100), false),
    part("damage", campaign::damage, ("cases", 1000), false),
    part("faults", campaign::faults, ("seeds", 1), true),
    part("soak", campaign::soak, ("minutes", 5), true),
];

/// Counts of a campaign over all its turns.
#[derive(Clone, Copy, Default)]
struct Row {
    turns: u64,
    time: Duration,
    failures: u64,
}

/// Runs until `--hours` are over. `--design` and `--medium` are those of the campaigns, all by
/// default.
pub fn torture(request: &Request) -> Outcome {
    let hours: f64 = match request.text("hours") {
        Some(text) => text.parse().map_err(|_| "--hours is not a number")?,
        None => 1.0,
    };
    let over = Duration::from_secs_f64(f64::max(hours, 0.0) * 3600.0);
    let first = request.number("seed", 0)?;
    let mut rows = [Row::default(); PARTS.len()];
    let mut turn = 0;
    let mut failure = Ok(());
    while failure.is_ok() && request.elapsed() < over {
        let at = turn as usize % PARTS.len();
        let (part, row) = (&PARTS[at], &mut rows[at]);
        let seed = first + 1000 * turn;
        let options = options(part, seed, request);
        let line = line(part, &options);
        println!("{:.0?}: {line}", request.elapsed());
        let begun = request.elapsed();
        failure = (part.run)(&Request::of(&options)).map_err(|e| format!("{e}\nrepeat: {line}"));
        row.turns += 1;
        row.time += request.elapsed() - begun;
        row.failures += u64::from(failure.is_err());
        turn += 1;
    }
    println!(
        "{:<12} {:>8} {:>16} {:>9} {:>9}",
        "campaign", "turns", "cases", "seconds", "failures"
    );
    for (part, row) in PARTS.iter().zip(&rows) {
        let cases = format!("{} {}", row.turns * part.size, part.option);
        let seconds = row.time.as_secs();
        println!(
            "{:<12} {:>8} {cases:>16} {seconds:>9} {:>9}",
            part.name, row.turns, row.failures
        );
    }
    failure
}

fn options(part: &Part, seed: u64, request: &Request) -> Vec<(&'static str, String)> {
    let mut options = vec![
        (part.option, part.size.to_string()),
        ("seed", seed.to_string()),
    ];
    if part.has_kinds {
        let design = request.text("design").unwrap_or("all");
        options.push(("design", design.to_owned()));
        options.extend(request.text("medium").map(|m| ("medium", m.to_owned())));
    }
    options
}

/// Returns the command line that repeats a turn.
fn line(part: &Part, options: &[(&'static str, String)]) -> String {
    let words = options
        .iter()
        .map(|(name, value)| format!(" --{name} {value}"));
    format!("terrace-testkit {}{}", part.name, words.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn is printed as the command line that repeats it, with the requested kinds.
    #[test]
    fn turns_are_lines() {
        let request = Request::of(&[("design", "leveled".into()), ("medium", "dram".into())]);
        let options = options(&PARTS[1], 7, &request);
        assert_eq!(
            line(&PARTS[1], &options),
            "terrace-testkit kill --rounds 50 --seed 7 --design leveled --medium dram"
        );
    }

    /// With no time nothing runs, and that is not a failure.
    #[test]
    fn no_time_is_no_turn() {
        assert_eq!(torture(&Request::of(&[("hours", "0".into())])), Ok(()));
        assert!(torture(&Request::of(&[("hours", "long".into())])).is_err());
    }
}
