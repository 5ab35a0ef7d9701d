//! The environment variable that says which break a child has.

use terrace::testing::{Canary, set_canary};

/// The variable that chooses the canary of a child.
pub(super) const VARIABLE: &str = "TERRACE_CANARY";

/// Chooses the canary that the environment names, if it names one.
pub(crate) fn choose_from_environment() {
    if let Ok(name) = std::env::var(VARIABLE) {
        set_canary(Canary::parse(&name));
    }
}
