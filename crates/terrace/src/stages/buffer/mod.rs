//! Buffers: sorted tables in the pool between a front and a bottom.
//!
//! | buffer | tables | merging | paper |
//! |---|---|---|---|
//! | `elastic` | skip lists on n levels, any number a level | relinks nodes, copies nothing | MioDB, 4.2-4.3 |

pub(crate) mod elastic;
