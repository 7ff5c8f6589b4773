//! Pseudonyms for the names in a bundle.

use std::io;

use serde::{Deserialize, Serialize};

use super::rows::Line;

/// Which names of a bundle are replaced by pseudonyms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Redaction {
    /// None.
    #[default]
    None,
    /// Names of namespaces, pods, nodes, NodeClaims and owners, and keys and values of labels.
    Names,
    /// Those, and names of NodePools, instance types and zones.
    All,
}

/// The pseudonyms of names.
#[derive(Debug, Default)]
pub(super) struct Pseudonyms {
    redaction: Redaction,
}

impl Pseudonyms {
    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn redaction(&self) -> Redaction {
        self.redaction
    }

    /// Returns the line with pseudonyms; `None` if nothing is replaced.
    pub(super) fn apply(&self, _line: &Line) -> io::Result<Option<Line>> {
        Ok(None)
    }
}
