//! Where a replica of the controllers runs.

use jiff::Timestamp;
use karpenter_lab::local_cluster::Replica;

use crate::wire::Fuse;

/// A slot for a replica, which may be down.
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) fuse: Fuse,
    pub(crate) running: Option<Replica>,
    /// When it restarts, if it is down.
    pub(crate) down_until: Option<Timestamp>,
}

impl Place {
    /// Creates slots for replicas, none of which runs yet.
    pub(crate) fn some(count: usize) -> Vec<Self> {
        let place = |n| Self {
            name: format!("replica-{n}"),
            fuse: Fuse::default(),
            running: None,
            down_until: None,
        };
        (0..count).map(place).collect()
    }
}
