//! Images: the content of a machine's media, from which another machine can start.

use super::fs::Files;
use super::pm::PmImage;
use crate::pm::medium::Medium;

/// The media of a machine after a crash. Images share unchanged content, so they are cheap to keep.
#[derive(Clone)]
pub struct Image {
    pub(super) medium: Medium,
    /// The id of the boot, which continues if only the process ended.
    pub(super) boot_id: Option<[u8; 16]>,
    pub(super) boots: u64,
    pub(super) pm: PmImage,
    pub(super) files: Files,
}

impl Image {
    /// Returns the medium of the imaged machine.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Returns the content of the pool, as in a file.
    pub fn pool(&self) -> Vec<u8> {
        self.pm.bytes()
    }
}
