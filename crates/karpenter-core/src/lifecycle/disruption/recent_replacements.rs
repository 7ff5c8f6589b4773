//! NodeClaims that consolidation launched recently are protected from consolidation, so that no move is undone by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;

use crate::cluster::Snapshot;

/// How long consolidation does not consolidate a node that it has launched, unless pods leave it.
pub(super) const PROTECTION: Duration = Duration::from_secs(600);

/// The NodeClaims that consolidation launched recently, by name.
///
/// They do not survive a restart, which costs one move at most.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentReplacements(BTreeMap<String, Replacement>);

#[derive(Clone, Debug)]
struct Replacement {
    uid: String,
    until: Timestamp,
    /// Number of reschedulable pods at the last check.
    pods: usize,
}

impl RecentReplacements {
    /// Adds a NodeClaim that consolidation launched.
    pub(super) fn add(&mut self, claim: &NodeClaim, until: Timestamp) {
        let replacement = Replacement {
            uid: claim.uid().to_owned(),
            until,
            pods: 0,
        };
        self.0.insert(claim.name().to_owned(), replacement);
    }

    /// Removes NodeClaims that are deleted, that pods have left, or whose protection has expired.
    pub(super) fn prune(&mut self, snapshot: &Snapshot, now: Timestamp) {
        self.0.retain(|name, replacement| {
            let claim = snapshot.node_claim(name);
            let claim = claim.filter(|claim| claim.uid() == replacement.uid);
            let Some(claim) = claim.filter(|_| now < replacement.until) else {
                return false;
            };
            let node = claim.status.node_name.as_deref().unwrap_or_default();
            let pods = snapshot.pods_on(node).iter();
            let pods = pods.filter(|pod| pod.is_reschedulable()).count();
            let stayed = pods >= replacement.pods;
            replacement.pods = pods;
            stayed
        });
    }

    /// Returns the names of the NodeClaims, as of the last [`prune`](Self::prune).
    pub(super) fn claims(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns when the first protection expires.
    pub(super) fn first_expiry(&self) -> Option<Timestamp> {
        self.0.values().map(|replacement| replacement.until).min()
    }
}
