//! The owners of items in the manifest: the one place where a new kind of item is registered. All
//! owners are known in every design: repair and inspection may not know the design of a database.

use crate::parts::manifest::item::Owners;
use crate::parts::sstable::TABLE_FILE;
use crate::stages::bottom::repository;
use crate::stages::buffer::elastic;
use crate::stages::salvage::Salvage;

/// The owners of all items.
pub(crate) const OWNERS: Owners = &[&elastic::TABLE, &repository::EXTENT, &TABLE_FILE];

/// How repair finds the items in a pool. Those in files are found by their names.
pub(crate) const SALVAGES: &[&Salvage] = &[&elastic::SALVAGE, &repository::SALVAGE];
