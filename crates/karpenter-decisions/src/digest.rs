//! Digests of the input and output of a pass.

use std::fmt;

use karpenter_core::schedule::Policy;
use serde::{Serialize, Serializer};

/// A BLAKE3 digest; shown in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of a value's JSON. Equal values have equal JSON: maps are sorted, and so are the items of a record.
    pub fn of(value: &impl Serialize) -> Self {
        // A value that cannot be written, such as a map with keys that are not text, does not occur; its digest is that of nothing.
        let json = serde_json::to_vec(value).unwrap_or_default();
        Self(*blake3::hash(&json).as_bytes())
    }

    /// Returns the digest of the input of a pass: the epoch of the snapshot and the policy.
    ///
    /// It distinguishes passes over different states of one model. It is not a digest of the cluster's content, which needs a
    /// serialized snapshot.
    pub fn of_input(epoch: u64, policy: &Policy) -> Self {
        let text = format!("{epoch}\n{policy:?}");
        Self(*blake3::hash(text.as_bytes()).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
