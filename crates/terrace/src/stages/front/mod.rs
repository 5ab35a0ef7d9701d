//! Fronts: where a write becomes durable and readable.
//!
//! | front | durable by | readable in | paper |
//! |---|---|---|---|
//! | `wal_memtable` | a log record in the pool or a file | a DRAM skip list | MioDB, 4.1 |

pub(crate) mod wal_memtable;
