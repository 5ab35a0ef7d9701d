//! Finding nodes that are sound and in a wrong place: those of a page that is stored where another
//! should be.
//!
//! Nothing in a node records its place, and if nodes of two pages begin at the same offsets each of
//! them is sound. Their relations reveal them: a table contains each version of a key once, and so
//! does an extent of the repository; a table contains no numbers outside its range; in the
//! repository every node is the next of exactly one other.

/// BOUND: the number of versions compared at once. If there are more, a sample is chosen by hash,
/// which suffices because a page usually has more than one node.
const VERSIONS_MAX: usize = 1 << 22;
const BUCKETS: usize = 4096;

/// Spreads a word over all bits.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// The versions in a table, or in an extent of the repository, as hashes.
#[derive(Debug, Default)]
pub(super) struct Versions {
    hashes: Vec<u64>,
    /// Only hashes with at least this many trailing zeros are kept.
    zeros: u32,
}

impl Versions {
    /// Adds the version `seq` of the key with the hash `key_hash`.
    pub(super) fn add(&mut self, key_hash: u64, seq: u64) {
        let hash = mix(key_hash ^ mix(seq));
        if hash.trailing_zeros() < self.zeros {
            return;
        }
        self.hashes.push(hash);
        // BOUND: 64 bits.
        while self.hashes.len() >= VERSIONS_MAX && self.zeros < u64::BITS {
            self.zeros += 1;
            let zeros = self.zeros;
            self.hashes.retain(|hash| hash.trailing_zeros() >= zeros);
        }
    }

    /// Returns whether one of them was there twice, and forgets them all.
    pub(super) fn any_twice(&mut self) -> bool {
        self.zeros = 0;
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.sort_unstable();
        hashes.windows(2).any(|two| two[0] == two[1])
    }
}

/// Checks whether links at the lowest level lead to every node once. Uses sums, so that memory is
/// bounded whatever the number of nodes.
pub(super) struct Links {
    sums: Vec<u64>,
}

impl Links {
    /// Creates the sums of a list without nodes, before the head's link is added.
    pub(super) fn new() -> Links {
        let mut links = Links {
            sums: vec![0; BUCKETS],
        };
        // The end, which the last node leads to.
        links.node(0);
        links
    }

    fn sum(&mut self, at: u64) -> &mut u64 {
        &mut self.sums[mix(at) as usize % BUCKETS]
    }

    /// Adds a node at `at`.
    pub(super) fn node(&mut self, at: u64) {
        let sum = self.sum(at);
        *sum = sum.wrapping_add(at ^ 1);
    }

    /// Adds a link of a node, or of the head, to `to`.
    pub(super) fn link(&mut self, to: u64) {
        let sum = self.sum(to);
        *sum = sum.wrapping_sub(to ^ 1);
    }

    /// Returns whether more than one link is wrong; a single one may be damaged although all nodes
    /// are right.
    pub(super) fn are_mixed_up(&self) -> bool {
        self.sums.iter().filter(|sum| **sum != 0).count() > 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_come_twice_are_found() {
        let mut versions = Versions::default();
        for seq in 0..1000 {
            versions.add(7, seq);
            versions.add(8, seq);
        }
        assert!(!versions.any_twice());
        versions.add(7, 1);
        assert!(!versions.any_twice(), "earlier versions are forgotten");
        versions.add(7, 1);
        versions.add(7, 1);
        assert!(versions.any_twice());
    }

    #[test]
    fn of_very_many_versions_a_share_is_compared() {
        let mut versions = Versions::default();
        let page = |versions: &mut Versions| (0..60).for_each(|seq| versions.add(3, seq));
        page(&mut versions);
        let many = 3 * VERSIONS_MAX as u64;
        (0..many).for_each(|seq| versions.add(1, seq));
        assert!(versions.zeros > 0 && versions.hashes.len() < VERSIONS_MAX);
        page(&mut versions);
        assert!(versions.any_twice());
        assert_eq!(versions.zeros, 0);
    }

    /// Returns a list of nodes at multiples of 64, whose links `change` changes.
    fn links(change: &[(u64, u64)]) -> Links {
        let mut links = Links::new();
        links.link(64);
        for n in 1..=100 {
            links.node(64 * n);
            let next = if n < 100 { 64 * (n + 1) } else { 0 };
            let changed = change.iter().find(|(at, _)| *at == n);
            links.link(changed.map_or(next, |(_, to)| *to));
        }
        links
    }

    #[test]
    fn a_damaged_link_differs_from_misplaced_nodes() {
        assert!(!links(&[]).are_mixed_up());
        for to in [0, 64, 4096, !7] {
            assert!(!links(&[(50, to)]).are_mixed_up(), "{to}");
        }
        // Nodes 11 and 12 in the places of 51 and 52.
        assert!(links(&[(51, 12 * 64), (52, 13 * 64)]).are_mixed_up());
    }
}
