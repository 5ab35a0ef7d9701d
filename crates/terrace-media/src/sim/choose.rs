//! Choices: which changes that are not durable reach the media at a crash.

/// The changes that reach the media although they are not durable yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Survive {
    /// No change.
    None,
    /// All changes, as if they had been made durable just before.
    All,
    /// Some, chosen by the seed: any number of leading words of a line, whole pages on `Mapped`,
    /// whole or torn blocks of files, and any of the names.
    Random(u64),
    /// Those whose bit is set, in the order in which a crash visits them: whole lines of memory, or
    /// whole pages on `Mapped`, then pending changes of files. No change from the 64th on.
    Chosen(u64),
}

/// The choices of one crash.
pub(super) struct Chooser {
    survive: Survive,
    random: fastrand::Rng,
    /// The probability that a change survives; some seeds lose little and some a lot.
    odds: f64,
    /// The number of changes that `Chosen` has decided so far.
    decided: u32,
}

impl Chooser {
    pub(super) fn new(survive: Survive) -> Chooser {
        let seed = if let Survive::Random(seed) = survive {
            seed
        } else {
            0
        };
        let mut random = fastrand::Rng::with_seed(seed);
        let odds = [0.1, 0.5, 0.5, 0.9][random.usize(0..4)];
        Chooser {
            survive,
            random,
            odds,
            decided: 0,
        }
    }

    /// Returns the number of changes decided, for `Chosen`.
    pub(super) fn decided(&self) -> u32 {
        self.decided
    }

    fn next_bit(&mut self, chosen: u64) -> bool {
        let bit = chosen.checked_shr(self.decided).unwrap_or(0) & 1;
        self.decided += 1;
        bit != 0
    }

    pub(super) fn keeps_nothing(&self) -> bool {
        self.survive == Survive::None
    }

    pub(super) fn keeps_everything(&self) -> bool {
        self.survive == Survive::All
    }

    /// Returns whether one change survives.
    pub(super) fn keeps(&mut self) -> bool {
        match self.survive {
            Survive::None => false,
            Survive::All => true,
            Survive::Random(_) => self.random.f64() < self.odds,
            Survive::Chosen(chosen) => self.next_bit(chosen),
        }
    }

    /// Chooses between two ways to survive with equal probability.
    pub(super) fn flip(&mut self) -> bool {
        matches!(self.survive, Survive::Random(_)) && self.random.bool()
    }

    /// Returns how many of `whole` parts survive, counted from the first.
    pub(super) fn part(&mut self, whole: usize) -> usize {
        match self.survive {
            Survive::None => 0,
            Survive::All => whole,
            Survive::Random(_) if self.random.u8(0..4) == 0 => self.random.usize(0..=whole),
            Survive::Random(_) | Survive::Chosen(_) => {
                if self.keeps() {
                    whole
                } else {
                    0
                }
            }
        }
    }

    /// Returns a length from `low` to `high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        match self.survive {
            Survive::None => low,
            Survive::All => high,
            Survive::Random(_) => match self.random.u8(0..4) {
                0 => self.random.u64(low..=high),
                1 => low,
                _ => high,
            },
            Survive::Chosen(chosen) => {
                if self.next_bit(chosen) {
                    high
                } else {
                    low
                }
            }
        }
    }
}
