//! The record that an operation requests: YCSB's distributions of requests.
//!
//! The Zipfian generator is that of YCSB, after Gray et al., "Quickly generating billion-record
//! synthetic databases" (SIGMOD '94): rank 0 is the most popular, and rank i is requested with a
//! probability of 1 / (i + 1)^theta over the sum of all of those. The scrambled one spreads ranks
//! of a Zipfian over ten billion items by a hash, so that popular records are not neighbours; the
//! latest one counts ranks back from the newest record. Records are drawn from the loaded ones;
//! `latest` and `exponential` also draw records inserted during the workload, and so does
//! `zipfian`, whose range includes them from the beginning so that popular records stay popular.
//!
//! Invariants
//!   Z1  A drawn record exists: it is at or above the first and below the end.

use crate::fnv::fnv1a;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The skew of YCSB.
pub(crate) const THETA: f64 = 0.99;

/// The items that a scrambled Zipfian draws from, and the sum of its probabilities, as in YCSB: the
/// distribution has the same shape for any number of records.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// A distribution of requests over records.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Distribution {
    /// All records equally often.
    Uniform,
    /// Few records often, spread over the key space.
    Zipfian,
    /// The newest records most often.
    Latest,
    /// Every record once, in order, then again from the first.
    Sequential,
    /// A share of the records gets a share of the requests.
    Hotspot {
        /// The hot records, the first ones, as a share of all.
        records: f64,
        /// Their share of the requests.
        requests: f64,
    },
    /// Exponentially fewer requests for older records.
    Exponential {
        /// This percentage of the requests ...
        percentile: f64,
        /// ... go to this share of the records, the newest ones.
        records: f64,
    },
}

/// Draws ranks from 0, the most popular one, up to the number of items that it was made for.
#[derive(Debug, Clone)]
pub(crate) struct Zipfian {
    items: u64,
    theta: f64,
    zeta: f64,
    zeta_of_two: f64,
    alpha: f64,
    eta: f64,
}

impl Zipfian {
    /// Returns a generator for `items` items; takes some nanoseconds for each of them.
    pub(crate) fn new(items: u64, theta: f64) -> Zipfian {
        Zipfian::with_zeta(items, theta, zeta(0, items.max(1), theta))
    }

    fn with_zeta(items: u64, theta: f64, zeta_of_all: f64) -> Zipfian {
        let zeta_of_two = zeta(0, 2, theta);
        let mut zipfian = Zipfian {
            items: items.max(1),
            theta,
            zeta: zeta_of_all,
            zeta_of_two,
            alpha: 1.0 / (1.0 - theta),
            eta: 0.0,
        };
        zipfian.set_eta();
        zipfian
    }

    fn set_eta(&mut self) {
        let n = self.items as f64;
        self.eta = (1.0 - (2.0 / n).powf(1.0 - self.theta)) / (1.0 - self.zeta_of_two / self.zeta);
    }

    /// Includes added items; takes some nanoseconds for each of them.
    pub(crate) fn grow(&mut self, items: u64) {
        if items > self.items {
            self.zeta += zeta(self.items, items, self.theta);
            self.items = items;
            self.set_eta();
        }
    }

    /// Returns the rank of the next request.
    #[inline]
    pub(crate) fn next(&self, rng: &mut fastrand::Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.zeta_of_two {
            return 1.min(self.items - 1);
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

/// Returns the sum of 1 / i^theta for i above `from` up to `to`.
fn zeta(from: u64, to: u64, theta: f64) -> f64 {
    (from..to).map(|i| ((i + 1) as f64).powf(-theta)).sum()
}

/// The hash that YCSB scrambles with: 64-bit FNV over the eight bytes of a number, without its
/// sign.
#[inline]
pub(crate) fn scramble(number: u64) -> u64 {
    (fnv1a(number.to_le_bytes()) as i64).unsigned_abs()
}

/// Draws records for one thread.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    distribution: Distribution,
    /// The first record, and the number of loaded ones.
    first: u64,
    loaded: u64,
    /// The range of a scrambled Zipfian: the loaded records and those to come.
    laid_out: u64,
    zipfian: Zipfian,
}

impl Requests {
    /// Returns requests over `loaded` records, at least one, from number `first`. `to_come` is an
    /// estimate of the workload's inserts. For `Latest`, takes some nanoseconds for each record:
    /// make one, and clone it for each thread.
    pub(crate) fn new(
        distribution: Distribution,
        first: u64,
        loaded: u64,
        to_come: u64,
    ) -> Requests {
        static SCRAMBLED: OnceLock<Zipfian> = OnceLock::new();
        let loaded = loaded.max(1);
        let zipfian = match distribution {
            Distribution::Latest => Zipfian::new(loaded, THETA),
            _ => SCRAMBLED
                .get_or_init(|| Zipfian::with_zeta(SCRAMBLED_ITEMS, THETA, SCRAMBLED_ZETA))
                .clone(),
        };
        Requests {
            distribution,
            first,
            loaded,
            laid_out: loaded.saturating_add(to_come),
            zipfian,
        }
    }

    /// Returns a record from the first one up to `end`, which never falls. `turn` is shared by all
    /// threads of a sequential workload.
    #[inline]
    pub(crate) fn next(&mut self, end: u64, turn: &AtomicU64, rng: &mut fastrand::Rng) -> u64 {
        let there = end.saturating_sub(self.first).max(1);
        self.first
            + match self.distribution {
                Distribution::Uniform => rng.u64(0..self.loaded),
                Distribution::Zipfian => loop {
                    // BOUND: the loaded records are part of the range, so each iteration ends the
                    // loop with a chance that does not depend on earlier ones.
                    let record = scramble(self.zipfian.next(rng)) % self.laid_out;
                    if record < there {
                        break record;
                    }
                },
                Distribution::Latest => {
                    self.zipfian.grow(there);
                    there - 1 - self.zipfian.next(rng).min(there - 1)
                }
                Distribution::Sequential => turn.fetch_add(1, Ordering::Relaxed) % self.loaded,
                Distribution::Hotspot { records, requests } => {
                    let hot = ((self.loaded as f64 * records) as u64).clamp(1, self.loaded);
                    if hot == self.loaded || rng.f64() < requests {
                        rng.u64(0..hot)
                    } else {
                        rng.u64(hot..self.loaded)
                    }
                }
                Distribution::Exponential {
                    percentile,
                    records,
                } => {
                    let span = (self.loaded as f64 * records).max(1.0);
                    let gamma = -(1.0 - percentile / 100.0).ln() / span;
                    loop {
                        // BOUND: each iteration draws the newest record with a constant chance.
                        let back = (-(1.0 - rng.f64()).ln() / gamma) as u64;
                        if back < there {
                            break there - 1 - back;
                        }
                    }
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 400_000;

    const ALL: [Distribution; 6] = [
        Distribution::Uniform,
        Distribution::Zipfian,
        Distribution::Latest,
        Distribution::Sequential,
        Distribution::Hotspot {
            records: 0.2,
            requests: 0.8,
        },
        Distribution::Exponential {
            percentile: 95.0,
            records: 0.8571428571,
        },
    ];

    fn counts(items: u64, mut draw: impl FnMut(&mut fastrand::Rng) -> u64) -> Vec<u64> {
        let mut rng = fastrand::Rng::with_seed(11);
        let mut counts = vec![0; items as usize];
        for _ in 0..DRAWS {
            counts[draw(&mut rng) as usize] += 1;
        }
        counts
    }

    fn drawn(distribution: Distribution, records: u64) -> Vec<u64> {
        let mut requests = Requests::new(distribution, 0, records, 0);
        let turn = AtomicU64::new(0);
        counts(records, |rng| requests.next(records, &turn, rng))
    }

    /// Ranks are drawn with the probabilities of Zipf's law, as closely as Gray's formula has them:
    /// the first two exactly, the others together in ranges.
    #[test]
    fn zipfian_has_the_exact_probabilities() {
        let items = 1000;
        let zipfian = Zipfian::new(items, THETA);
        let counts = counts(items, |rng| zipfian.next(rng));
        let sum: f64 = (1..=items).map(|i| (i as f64).powf(-THETA)).sum();
        let exact = |from: u64, to: u64| {
            let part: f64 = (from..to).map(|i| ((i + 1) as f64).powf(-THETA)).sum();
            part / sum
        };
        let drawn = |from: u64, to: u64| {
            let part: u64 = counts[from as usize..to as usize].iter().sum();
            part as f64 / DRAWS as f64
        };
        for (from, to, tolerance) in [
            (0, 1, 0.02),
            (1, 2, 0.02),
            (0, 10, 0.10),
            (10, 100, 0.10),
            (100, 1000, 0.10),
        ] {
            let (exact, drawn) = (exact(from, to), drawn(from, to));
            let off = (drawn - exact).abs() / exact;
            assert!(off < tolerance, "{from}..{to}: {drawn} for {exact}");
        }
    }

    /// YCSB's constant equals the sum: the beginning summed, the rest integrated.
    #[test]
    fn the_scrambled_sum_is_right() {
        let summed = 1_000_000u64;
        let head = zeta(0, summed, THETA);
        let integral = |x: f64| x.powf(1.0 - THETA) / (1.0 - THETA);
        let (from, to) = (summed as f64 + 0.5, SCRAMBLED_ITEMS as f64 + 0.5);
        let whole = head + integral(to) - integral(from);
        assert!((whole - SCRAMBLED_ZETA).abs() < 1e-3, "{whole}");
    }

    /// A Zipfian that has grown draws like one made at that size.
    #[test]
    fn growing_changes_nothing_else() {
        let mut grown = Zipfian::new(10, THETA);
        grown.grow(500);
        grown.grow(700);
        let made = Zipfian::new(700, THETA);
        let mut rngs = [fastrand::Rng::with_seed(5), fastrand::Rng::with_seed(5)];
        for _ in 0..10_000 {
            assert_eq!(grown.next(&mut rngs[0]), made.next(&mut rngs[1]));
        }
    }

    /// The hash is YCSB's: FNV-1a of the number's bytes from the lowest, without its sign.
    #[test]
    fn the_hash_is_ycsbs() {
        // FNV-1a of eight zero bytes is a8c7f832281a39c5 by the published algorithm.
        assert_eq!(scramble(0), 0xA8C7_F832_281A_39C5u64.wrapping_neg());
        assert_eq!(scramble(0), 6_284_781_860_667_377_211);
    }

    /// Popular records are spread over the key space, with the probabilities of their ranks.
    #[test]
    fn scrambled_requests_are_spread() {
        let counts = drawn(Distribution::Zipfian, 1000);
        let mut ranked: Vec<usize> = (0..counts.len()).collect();
        ranked.sort_by_key(|record| std::cmp::Reverse(counts[*record]));
        // Rank 0 of ten billion gets 1 in 26.5 of all requests.
        let share = counts[ranked[0]] as f64 / DRAWS as f64;
        assert!((share * SCRAMBLED_ZETA - 1.0).abs() < 0.1, "{share}");
        for quarter in 0..4 {
            let inside = ranked[..40].iter();
            let inside = inside.filter(|record| **record / 250 == quarter).count();
            assert!(
                (3..=20).contains(&inside),
                "{inside} of 40 in quarter {quarter}"
            );
        }
        assert!(counts.iter().filter(|count| **count > 0).count() > 990);
    }

    /// Inserts do not change the popular records of a Zipfian.
    #[test]
    fn inserts_do_not_move_the_favourites() {
        let mut requests = Requests::new(Distribution::Zipfian, 0, 1000, 500);
        let turn = AtomicU64::new(0);
        let mut rng = fastrand::Rng::with_seed(4);
        let mut favourite = |end: u64| {
            let mut counts = vec![0u64; 1500];
            for _ in 0..100_000 {
                counts[requests.next(end, &turn, &mut rng) as usize] += 1;
            }
            assert!(counts[end as usize..].iter().all(|count| *count == 0));
            (0..1000)
                .max_by_key(|record| counts[*record])
                .expect("there are records")
        };
        let before = favourite(1000);
        assert_eq!(favourite(1250), before);
        assert_eq!(favourite(1500), before);
    }

    /// The newest record is the most popular one, also after records were added.
    #[test]
    fn latest_follows_the_newest() {
        let mut requests = Requests::new(Distribution::Latest, 0, 10, 0);
        let turn = AtomicU64::new(0);
        let mut rng = fastrand::Rng::with_seed(2);
        for records in [10, 11, 500, 1000] {
            let mut counts = vec![0u64; records as usize];
            for _ in 0..50_000 {
                counts[requests.next(records, &turn, &mut rng) as usize] += 1;
            }
            let newest = counts[records as usize - 1];
            assert_eq!(counts.iter().max(), Some(&newest));
            let sum: f64 = (1..=records).map(|i| (i as f64).powf(-THETA)).sum();
            let share = newest as f64 / 50_000.0 * sum;
            assert!((0.95..1.05).contains(&share), "{share} of {records}");
        }
    }

    /// A share of the records gets its share of the requests, evenly distributed within it.
    #[test]
    fn the_hot_records_get_their_share() {
        let counts = drawn(ALL[4], 1000);
        let hot: u64 = counts[..200].iter().sum();
        let share = hot as f64 / DRAWS as f64;
        assert!((share - 0.8).abs() < 0.005, "{share}");
        assert!(
            counts[..200]
                .iter()
                .all(|count| (1400..1800).contains(count))
        );
        assert!(counts[200..].iter().all(|count| (40..170).contains(count)));
    }

    /// The newest records of an exponential distribution get the requested percentage.
    #[test]
    fn exponential_requests_fall_off() {
        let (percentile, records) = (95.0, 0.5);
        let counts = drawn(
            Distribution::Exponential {
                percentile,
                records,
            },
            1000,
        );
        let newest: u64 = counts[500..].iter().sum();
        // Draws beyond the oldest record are repeated: 0.25 percent.
        let share = newest as f64 / DRAWS as f64;
        assert!((share - 0.95 / 0.9975).abs() < 0.005, "{share}");
        assert!(counts[999] > 2 * counts[700] && counts[700] > 2 * counts[400]);
    }

    /// Uniform requests are even, and sequential ones request every record in turn, across threads.
    #[test]
    fn the_others_are_plain() {
        let counts = drawn(Distribution::Uniform, 100);
        let alike = counts.iter().all(|count| (3600..4400).contains(count));
        assert!(alike, "{counts:?}");
        let mut threads = [0, 1].map(|_| Requests::new(Distribution::Sequential, 5, 3, 0));
        let turn = AtomicU64::new(0);
        let mut rng = fastrand::Rng::with_seed(1);
        let drawn: Vec<u64> = (0..7)
            .map(|i| threads[i % 2].next(8, &turn, &mut rng))
            .collect();
        assert_eq!(drawn, [5, 6, 7, 5, 6, 7, 5]);
    }

    /// A single record is always drawn, and every drawn record exists (Z1).
    #[test]
    fn only_what_is_there_is_drawn() {
        let mut rng = fastrand::Rng::with_seed(1);
        let turn = AtomicU64::new(0);
        for distribution in ALL {
            let mut requests = Requests::new(distribution, 7, 1, 0);
            assert!(
                (0..100).all(|_| requests.next(8, &turn, &mut rng) == 7),
                "{distribution:?}"
            );
            let mut requests = Requests::new(distribution, 100, 20, 30);
            for end in [120, 121, 140] {
                for _ in 0..1000 {
                    let record = requests.next(end, &turn, &mut rng);
                    assert!((100..end).contains(&record), "{record} of {distribution:?}");
                }
            }
        }
    }
}
