//! The named emulated devices, which `--emulate` takes in addition to numbers.
//!
//! Emulation slows the writes of a pool: they share a bandwidth, and each fence with pending writes
//! waits for a latency. Reads keep the speed of the underlying memory, files are not slowed at all,
//! and durability does not change. So it shows how a slower medium affects writes, and nothing
//! about reads; a peer runs at the speed of its files.
//!
//! The figures are those of one device, not of a machine full of them:
//!
//! - `optane`: one Optane DIMM as measured by Yang et al., "An Empirical Guide to the Behavior and
//!   Use of Scalable Persistent Memory" (FAST 2020): 2.3 GB/s of writes, 90 ns for a streaming
//!   store. The MioDB paper gives a ratio, random writes "almost 7 times" slower than DRAM's, which
//!   matches if DRAM writes 16 GB/s.
//! - `cxl`: memory behind one CXL link of eight lanes: 20 GB/s, and 250 ns for the round trip.
//!   Round figures, of no single product.

use terrace::Emulation;

/// The named devices. "none" means no emulation.
pub const PROFILES: [(&str, Emulation); 2] = [
    (
        "optane",
        Emulation {
            write_gbps: 2.3,
            write_latency_ns: 90,
        },
    ),
    (
        "cxl",
        Emulation {
            write_gbps: 20.0,
            write_latency_ns: 250,
        },
    ),
];

/// Returns the device with this name.
pub fn named(name: &str) -> Option<Emulation> {
    let found = PROFILES.iter().find(|(profile, _)| *profile == name);
    found.map(|(_, emulation)| *emulation)
}

/// Returns the parameters of a device as a line for people, with its name if it has one.
pub fn describe(emulation: Emulation) -> String {
    let name = PROFILES.iter().find(|(_, profile)| {
        profile.write_gbps == emulation.write_gbps
            && profile.write_latency_ns == emulation.write_latency_ns
    });
    let name = name.map_or(String::new(), |(name, _)| format!("{name}: "));
    format!(
        "{name}{} GB/s of writes, {} ns write latency, of the pool alone",
        emulation.write_gbps, emulation.write_latency_ns
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A named device is described with its name and its numbers, another one with its numbers.
    #[test]
    fn devices_are_described() {
        let optane = named("optane").expect("it has a name");
        assert_eq!(
            describe(optane),
            "optane: 2.3 GB/s of writes, 90 ns write latency, of the pool alone"
        );
        let other = Emulation {
            write_gbps: 1.0,
            write_latency_ns: 90,
        };
        assert!(describe(other).starts_with("1 GB/s"));
        assert!(named("none").is_none());
    }
}
