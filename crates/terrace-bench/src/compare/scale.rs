//! The fraction to which a comparison is scaled down.

use std::fmt;
use std::str::FromStr;

/// A fraction, such as "1/64" or "0.1".
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    part: f64,
    text: String,
}

impl FromStr for Scale {
    type Err = String;

    fn from_str(text: &str) -> Result<Scale, String> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let part = match text.split_once('/') {
            Some((a, b)) => number(a).zip(number(b)).map(|(a, b)| a / b),
            None => number(text),
        };
        match part.filter(|part| *part > 0.0 && *part <= 1.0) {
            Some(part) => Ok(Scale {
                part,
                text: text.trim().to_string(),
            }),
            None => Err(format!(
                "{text:?} is not a fraction: write one as 1/64 or 0.1"
            )),
        }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Scale {
    pub(super) fn of(&self, count: u64) -> u64 {
        ((count as f64 * self.part) as u64).max(1)
    }
}
