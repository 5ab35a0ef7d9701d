//! The owners of items in the manifest: the one place where a new kind of item is registered. All
//! owners are known in every design: repair and inspection may not know the design of a database.

use crate::parts::manifest::item::Owners;
use crate::parts::sstable::TABLE_FILE;
use crate::parts::values::VALUE_FILE;
use crate::stages::bottom::repository;
use crate::stages::buffer::elastic;
use crate::stages::buffer::matrix;
use crate::stages::salvage::Salvage;

/// The owners of all items.
pub(crate) const OWNERS: Owners = &[
    &elastic::TABLE,
    &repository::EXTENT,
    &TABLE_FILE,
    &matrix::ROW,
    &VALUE_FILE,
];

/// How repair finds the items in a pool. Those in files are found by their names.
pub(crate) const SALVAGES: &[&Salvage] =
    &[&elastic::SALVAGE, &repository::SALVAGE, &matrix::SALVAGE];

#[cfg(test)]
mod tests {
    use super::*;

    /// Tags and names are unique, and repair can find all data in a pool: it would report a
    /// database without the items of an owner that it does not know as complete.
    #[test]
    fn owners_are_registered_completely() {
        for (at, owner) in OWNERS.iter().enumerate() {
            let others = &OWNERS[at + 1..];
            assert!(
                others
                    .iter()
                    .all(|o| o.tag != owner.tag && o.name != owner.name)
            );
            let salvages = SALVAGES.iter().filter(|salvage| salvage.owner == *owner);
            assert_eq!(
                salvages.count(),
                usize::from(owner.in_pool),
                "{}",
                owner.name
            );
        }
    }
}
