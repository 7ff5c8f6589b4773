//! Machines that consolidation has bought are left in peace for a while, so that no move is undone by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use karpenter_api::v1::NodeClaim;
use tokio::time::Instant;

use crate::model::View;

/// How long consolidation does not take a machine back that it has bought, unless pods leave it.
pub(super) const PEACE: Duration = Duration::from_secs(600);

/// The machines that consolidation has bought lately, by NodeClaim.
///
/// It is not remembered across restarts: what a new leader does not know costs a move at most.
#[derive(Debug, Default)]
pub(super) struct Settling(BTreeMap<String, Bought>);

#[derive(Debug)]
struct Bought {
    uid: String,
    until: Instant,
    /// The most pods it has had.
    pods: usize,
}

impl Settling {
    /// Consolidation has bought a machine.
    pub(super) fn bought(&mut self, claim: &NodeClaim, until: Instant) {
        let bought = Bought {
            uid: claim.uid().to_owned(),
            until,
            pods: 0,
        };
        self.0.insert(claim.name().to_owned(), bought);
    }

    /// Lets go of machines that are gone, that pods have left, and whose time is over.
    pub(super) fn look(&mut self, view: &View, now: Instant) {
        self.0.retain(|name, bought| {
            let claim = view.node_claim(name).filter(|c| c.uid() == bought.uid);
            let Some(claim) = claim.filter(|_| now < bought.until) else {
                return false;
            };
            let node = claim.status.node_name.as_deref().unwrap_or_default();
            let pods = view.pods_on(node).iter();
            let pods = pods.filter(|pod| pod.is_reschedulable()).count();
            let stayed = pods >= bought.pods;
            bought.pods = pods;
            stayed
        });
    }

    /// The NodeClaims, as of the last look.
    pub(super) fn claims(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }

    /// When the first of them may be taken back.
    pub(super) fn first_end(&self) -> Option<Instant> {
        self.0.values().map(|bought| bought.until).min()
    }
}
