//! Parsers of option values.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use terrace::{Compression, Design, Emulation};
use terrace_bench::{profile, units};

pub(super) fn parse_design(text: &str) -> Result<Design, String> {
    text.parse().map_err(|_| {
        let names: Vec<String> = Design::ALL.iter().map(Design::to_string).collect();
        format!("unknown design; use one of: {}", names.join(", "))
    })
}

/// Returns the help of `--design`.
pub(super) fn designs() -> String {
    let all = Design::ALL.map(|design| format!("\"{design}\": {}", design.summary()));
    format!(
        "The design of a new database, {} [default: miodb with a pool, miodb-ssd without]",
        all.join("; ")
    )
}

/// Returns the parser of a compression; help and errors list the names.
pub(super) fn compressions() -> impl TypedValueParser<Value = Compression> {
    let names = PossibleValuesParser::new(Compression::ALL.map(Compression::name));
    names.try_map(|name| name.parse::<Compression>())
}

pub(super) fn parse_emulation(text: &str) -> Result<Emulation, String> {
    if text == "none" {
        return Ok(Emulation {
            write_gbps: 0.0,
            write_latency_ns: 0,
        });
    }
    if let Some(emulation) = profile::named(text) {
        return Ok(emulation);
    }
    let (gbps, ns) = text.split_once(':').unwrap_or((text, "0"));
    let write_gbps: f64 = gbps.parse().map_err(|_| {
        let names: Vec<&str> = profile::PROFILES.iter().map(|(name, _)| *name).collect();
        format!(
            "{gbps:?} is not a number of GB/s and not one of none, {}",
            names.join(", ")
        )
    })?;
    if !write_gbps.is_finite() || write_gbps < 0.0 {
        return Err(format!("{gbps:?} is not a number of GB/s"));
    }
    let write_latency_ns = ns
        .parse()
        .map_err(|_| format!("{ns:?} is not a number of ns"))?;
    Ok(Emulation {
        write_gbps,
        write_latency_ns,
    })
}

/// The size from which values are stored apart from their keys; `None` for no value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ApartFrom(pub(crate) Option<u64>);

pub(super) fn parse_apart(text: &str) -> Result<ApartFrom, String> {
    match text {
        "none" => Ok(ApartFrom(None)),
        size => units::parse_bytes(size).map(|bytes| ApartFrom(Some(bytes))),
    }
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}
