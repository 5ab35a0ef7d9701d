//! The environment variable that names the canary of a child.

use terrace::testing::{Canary, set_canary};

/// The variable that chooses the canary of a child.
pub(super) const VARIABLE: &str = "TERRACE_CANARY";

/// Sets the canary named in the environment, if any.
pub(crate) fn choose_from_environment() {
    if let Ok(name) = std::env::var(VARIABLE) {
        set_canary(Canary::parse(&name));
    }
}
