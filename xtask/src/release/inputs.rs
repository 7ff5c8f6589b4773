//! The commit that a release is made of, and where it is written.

use std::path::PathBuf;

/// What each artifact of a release has in common.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) root: PathBuf,
    pub(super) out: PathBuf,
    pub(super) version: String,
    /// Time of the commit in seconds since 1970, which is the time of each file.
    pub(super) time: u64,
    pub(super) commit: String,
}
