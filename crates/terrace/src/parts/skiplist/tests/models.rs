//! Models of the lock-free protocols that end in lists, see [`crate::models`].

mod commit;
mod insert;
mod relink;
mod search_hint;
mod view;

use crate::models::{breaks, holds};
