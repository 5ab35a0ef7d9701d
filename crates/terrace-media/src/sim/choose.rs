//! Choices: which of the changes that were not durable reach the media at a crash.

/// Which of the changes that were not durable yet reach the media anyway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Survive {
    /// None of them.
    None,
    /// All of them, as if everything had been made durable just before.
    All,
    /// Some, chosen by the seed: of a line any number of its first words, on `Mapped` whole pages,
    /// of files whole or torn blocks and any of the names.
    Random(u64),
    /// Those whose bit is set, in the order in which a crash comes to them: each line of memory, on
    /// `Mapped` each page, whole; then what is pending of files. From the 64th on, none.
    Chosen(u64),
}

/// Makes the choices of one crash.
pub(super) struct Chooser {
    survive: Survive,
    random: fastrand::Rng,
    /// How likely a change survives, so that some seeds lose little and some a lot.
    odds: f64,
    /// The changes that `Chosen` has decided so far.
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

    /// The changes that were there to decide, for `Chosen`.
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

    /// Whether one change survives.
    pub(super) fn keeps(&mut self) -> bool {
        match self.survive {
            Survive::None => false,
            Survive::All => true,
            Survive::Random(_) => self.random.f64() < self.odds,
            Survive::Chosen(chosen) => self.next_bit(chosen),
        }
    }

    /// An even choice between two ways to survive.
    pub(super) fn flip(&mut self) -> bool {
        matches!(self.survive, Survive::Random(_)) && self.random.bool()
    }

    /// How many of `whole` parts survive, counted from the first.
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

    /// A length from `low` to `high`.
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
