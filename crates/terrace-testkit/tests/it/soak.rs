//! A short soak of each kind of database.

use std::time::Duration;

use terrace::Design;
use terrace_media::Medium;
use terrace_testkit::place::scratch;
use terrace_testkit::seeds::seeds;
use terrace_testkit::soak::Soak;

use crate::alone::alone;

/// Mixed load with small limits stays within all bounds, returns no wrong result, and leaves
/// nothing.
#[test]
fn a_short_soak_keeps_within_its_bounds() {
    // It measures memory, threads and descriptors of a whole process.
    alone("soak::a_short_soak_keeps_within_its_bounds", soak);
}

fn soak() {
    let kinds = [
        (Design::MioDb, Medium::Dax),
        (Design::MioDbSsd, Medium::Dram),
        (Design::Leveled, Medium::Mapped),
    ];
    for seed in seeds(1) {
        for (design, medium) in kinds {
            let soak = Soak {
                design,
                medium,
                seed,
                time: Duration::from_secs(3),
                round: Duration::from_millis(700),
                says: false,
            };
            let folder = scratch().expect("a directory");
            let tally = soak.run(folder.path()).unwrap_or_else(|e| panic!("{e}"));
            assert!(tally.calls > 100, "{tally:?}");
            assert!(tally.emptied > 0 && tally.reopened > 0, "{tally:?}");
        }
    }
}
