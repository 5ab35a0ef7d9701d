//! Axes: their numbers, and the place of a value.

/// The mapping of values to places.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// From zero.
    Linear,
    /// By powers of ten.
    Log,
}

/// One axis: a range of values that ends at round ones.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// The values with a number at the axis.
    pub(super) ticks: Vec<f64>,
}

impl Axis {
    /// Returns an axis with a place for every one of `values`.
    pub(super) fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
        let values = values.filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0));
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            low = low.min(value);
            high = high.max(value);
        }
        match scale {
            Scale::Linear => linear(high),
            Scale::Log => log(low, high),
        }
    }

    /// Returns an axis from zero to exactly `high`, for times.
    pub(super) fn to(high: f64) -> Axis {
        let mut axis = linear(high);
        axis.high = high.max(1e-9);
        axis.ticks.retain(|tick| *tick <= axis.high);
        axis
    }

    /// Returns the place of `value`, from 0 at the low end to 1 at the high one.
    pub(super) fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => {
                let (low, high) = (self.low.log10(), self.high.log10());
                (value.max(self.low).log10() - low) / (high - low)
            }
        };
        place.clamp(0.0, 1.0)
    }
}

fn linear(high: f64) -> Axis {
    let high = if high.is_finite() && high > 0.0 {
        high
    } else {
        1.0
    };
    // Four to eight numbers, at 1, 2 or 5 times a power of ten.
    let rough = high / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    let steps = (high / step * 0.999_999).ceil().max(1.0) as usize;
    Axis {
        scale: Scale::Linear,
        low: 0.0,
        high: step * steps as f64,
        ticks: (0..=steps).map(|i| step * i as f64).collect(),
    }
}

fn log(low: f64, high: f64) -> Axis {
    let (low, high) = if low.is_finite() {
        (low, high)
    } else {
        (1.0, 10.0)
    };
    let first = low.log10().floor() as i32;
    let last = (high.log10().ceil() as i32).max(first + 1);
    Axis {
        scale: Scale::Log,
        low: 10f64.powi(first),
        high: 10f64.powi(last),
        ticks: (first..=last).map(|power| 10f64.powi(power)).collect(),
    }
}

/// Formats a number for an axis: `250k`, `1.5M`, `0.1`.
pub(super) fn number(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        v if v >= 999_999_500.0 => (value / 1e9, "G"),
        v if v >= 999_999.5 => (value / 1e6, "M"),
        v if v >= 999.95 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.95 => 1,
        v if v >= 0.01 => 2,
        v if v >= 0.0001 => 4,
        // Powers of ten on logarithmic axes.
        _ => return format!("{value:e}"),
    };
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Axes end at round numbers and include every value.
    #[test]
    fn axes_end_at_round_numbers() {
        for (high, ticks, last) in [
            (1.0, 6, 1.0),
            (930.0, 6, 1000.0),
            (0.0, 6, 1.0),
            (21.0, 6, 25.0),
        ] {
            let axis = Axis::of(Scale::Linear, [high].into_iter());
            assert!((axis.high - last).abs() < 1e-9, "{high}: {axis:?}");
            assert_eq!(axis.ticks.len(), ticks, "{high}: {axis:?}");
            assert!(axis.place(high) <= 1.0 && axis.place(0.0) == 0.0);
        }
        let axis = Axis::of(Scale::Log, [0.3, 4000.0].into_iter());
        assert_eq!((axis.low, axis.high), (0.1, 10_000.0));
        assert!((axis.place(1.0) - 0.2).abs() < 1e-9);
        assert_eq!(axis.place(0.0), 0.0);
        let empty = Axis::of(Scale::Log, std::iter::empty());
        assert_eq!(empty.ticks.len(), 2);
        let times = Axis::to(7.3);
        assert_eq!(times.place(7.3), 1.0);
        assert!(times.ticks.iter().all(|tick| *tick <= 7.3));
    }

    /// Numbers are short and remain distinct.
    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (12.5, "12.5"),
            (100.0, "100"),
            (1000.0, "1k"),
            (1500.0, "1.5k"),
            (250_000.0, "250k"),
            (1e6, "1M"),
            (2.5e9, "2.5G"),
            (0.001, "0.001"),
            (0.00001, "1e-5"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
