//! Images: what a machine leaves on its media, for another one to start from.

use super::fs::Files;
use super::pm::PmImage;
use crate::pm::medium::Medium;

/// The media of a machine after a crash. Images share unchanged content, so they are cheap to keep.
#[derive(Clone)]
pub struct Image {
    pub(super) medium: Medium,
    /// The boot that goes on, if only the process ended.
    pub(super) boot_id: Option<[u8; 16]>,
    pub(super) boots: u64,
    pub(super) pm: PmImage,
    pub(super) files: Files,
}

impl Image {
    /// The medium of the machine that the image is of.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// The content of the pool, for those who read it as a file.
    pub fn pool(&self) -> Vec<u8> {
        self.pm.bytes()
    }
}
