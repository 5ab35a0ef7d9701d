//! Bottoms: the homes of cold data.
//!
//! | bottom | form | new versions | space | paper |
//! |---|---|---|---|---|
//! | `repository` | one skip list in the pool | replace old ones in place | extents emptied when half dead | MioDB, 4.4 |

pub(crate) mod leveled;
pub(crate) mod repository;
