//! NodeClaims that consolidation launched recently are protected from consolidation, so that no move is undone by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use karpenter_api::v1::NodeClaim;

use crate::cluster::Snapshot;

/// How long consolidation does not consolidate a node that it has launched, unless pods leave it.
pub const PROTECTION: Duration = Duration::from_secs(600);

/// The NodeClaims that consolidation launched recently, by name; `T` is the caller's time.
///
/// They are not kept across restarts: what a new leader does not know costs one move at most.
#[derive(Clone, Debug)]
pub struct RecentReplacements<T>(BTreeMap<String, Replacement<T>>);

#[derive(Clone, Debug)]
struct Replacement<T> {
    uid: String,
    until: T,
    /// Number of reschedulable pods at the last check.
    pods: usize,
}

impl<T> Default for RecentReplacements<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Copy> RecentReplacements<T> {
    /// Adds a NodeClaim that consolidation launched.
    pub fn add(&mut self, claim: &NodeClaim, until: T) {
        let replacement = Replacement {
            uid: claim.uid().to_owned(),
            until,
            pods: 0,
        };
        self.0.insert(claim.name().to_owned(), replacement);
    }

    /// Removes NodeClaims that are deleted, that pods have left, or whose protection has expired.
    pub fn prune(&mut self, snapshot: &Snapshot, now: T) {
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
    pub fn claims(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// Returns when the first protection expires.
    pub fn first_expiry(&self) -> Option<T> {
        self.0.values().map(|replacement| replacement.until).min()
    }
}
