//! Parses the options of a campaign from the command line.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use terrace::Design;
use terrace_media::Medium;

use crate::oracle::Outcome;

/// The options of a campaign: `--name value` pairs.
pub struct Request {
    pairs: BTreeMap<String, String>,
    started: Instant,
}

impl Request {
    /// Parses the arguments after the campaign's name.
    pub fn parse(args: &[String], known: &[&str]) -> Outcome<Request> {
        let mut pairs = BTreeMap::new();
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let name = name
                .strip_prefix("--")
                .filter(|name| known.contains(name))
                .ok_or_else(|| {
                    format!(
                        "unknown option {name}; the options are --{}",
                        known.join(", --")
                    )
                })?;
            let value = args
                .next()
                .ok_or_else(|| format!("--{name} needs a value"))?;
            pairs.insert(name.to_owned(), value.clone());
        }
        Ok(Request {
            pairs,
            started: Instant::now(),
        })
    }

    /// Makes a request from pairs.
    pub fn of(pairs: &[(&str, String)]) -> Request {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        Request {
            pairs: pairs.collect(),
            started: Instant::now(),
        }
    }

    /// Returns the text of an option.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.pairs.get(name).map(String::as_str)
    }

    /// Returns the number of an option, in decimal or in hexadecimal with 0x.
    pub fn number(&self, name: &str, default: u64) -> Outcome<u64> {
        let Some(text) = self.pairs.get(name) else {
            return Ok(default);
        };
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| format!("--{name} {text} is not a number"))
    }

    /// Returns whether to continue after `done` items, which `--name` or `--minutes` limits.
    pub fn goes_on(&self, name: &str, default: u64, done: u64) -> Outcome<bool> {
        if let Some(minutes) = self.pairs.get("minutes") {
            let minutes: f64 = minutes.parse().map_err(|_| "--minutes is not a number")?;
            return Ok(self.started.elapsed() < Duration::from_secs_f64(minutes * 60.0));
        }
        Ok(done < self.number(name, default)?)
    }

    /// Returns the media that `--medium` names, or all.
    pub fn media(&self) -> Outcome<Vec<Medium>> {
        match self.text("medium") {
            None => Ok(vec![Medium::Dax, Medium::Mapped, Medium::Dram]),
            Some("dax") => Ok(vec![Medium::Dax]),
            Some("mapped") => Ok(vec![Medium::Mapped]),
            Some("dram") => Ok(vec![Medium::Dram]),
            Some(other) => Err(format!("unknown medium {other}; use dax, mapped or dram")),
        }
    }

    /// Returns the designs that `--design` names, or MioDB.
    pub fn designs(&self) -> Outcome<Vec<Design>> {
        self.designs_or(&[Design::MioDb])
    }

    /// Returns the designs that `--design` names, or `default`.
    pub fn designs_or(&self, default: &[Design]) -> Outcome<Vec<Design>> {
        match self.text("design") {
            None => Ok(default.to_vec()),
            Some("all") => Ok(Design::ALL.to_vec()),
            Some(name) => Ok(vec![name.parse().map_err(|e| format!("{e}"))?]),
        }
    }

    /// Returns each design on each medium.
    pub fn kinds(&self) -> Outcome<Vec<(Medium, Design)>> {
        let (media, designs) = (self.media()?, self.designs()?);
        let kinds = media
            .iter()
            .flat_map(|&m| designs.iter().map(move |&d| (m, d)));
        Ok(kinds.collect())
    }

    /// Returns how long the campaign has run.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}
