//! Finds the range deletes of a skip list when a database is opened.

use super::fragment::RangeDelete;
use super::layout::RANGE_DELETE_BIT;
use crate::parts::codec::DecodeError;
use crate::parts::key::Target;
use crate::parts::skiplist::SkipList;

/// Returns the range deletes in a list that no writer is changing. They follow all other entries.
pub(crate) fn in_list(list: &SkipList) -> Result<Vec<RangeDelete>, DecodeError> {
    let mut ranges = Vec::new();
    let mut at = list.seek(&Target::first_of(RANGE_DELETE_BIT, &[]))?.node;
    // BOUND: entries ascend, and damaged links that do not end the walk.
    while at != 0 {
        let node = list.node(at)?;
        let (keyspace, seq) = (node.header.keyspace, node.header.seq);
        ranges.push(RangeDelete::from_entry(keyspace, node.key, seq, at)?);
        let next = list.next(at, 0)?;
        if next != 0 && list.node(next)?.compare(&node.target()).is_le() {
            let found = format!("a link to {next:#x}");
            return Err(DecodeError::new(
                "skip-list link",
                at,
                "a later node",
                found,
            ));
        }
        at = next;
    }
    Ok(ranges)
}
