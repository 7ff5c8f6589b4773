//! The process of static NodePools in a rehearsal.

use std::collections::BTreeSet;

use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Delta;
use karpenter_core::lifecycle::static_pools::{Effect, Event};

use crate::rehearse::MAX_STATIC;
use crate::rehearse::plan::EndedBy;
use crate::rehearse::stepper::{Stepper, queue};

impl Stepper {
    /// Hands the NodePools of the cluster to the process.
    pub(super) fn begin_static_pools(&mut self) {
        let snapshot = self.cluster.snapshot();
        for pool in snapshot.node_pools() {
            let (before, after) = (None, Some(pool.as_ref()));
            let event = Event::NodePool { before, after };
            self.static_pools.on(event, &snapshot, self.now);
        }
        self.await_static_pools();
    }

    /// Adds or replaces a NodeClaim.
    pub(super) fn write_claim(&mut self, claim: &NodeClaim) {
        let written = self.cluster.apply_node_claim(claim);
        self.claim_changed(&written);
    }

    pub(super) fn claim_changed(&mut self, delta: &Delta<NodeClaim>) {
        let (before, after) = (delta.before.as_deref(), delta.after.as_deref());
        let event = Event::NodeClaim { before, after };
        self.static_pools
            .on(event, &self.cluster.snapshot(), self.now);
    }

    /// Comes back when a static NodePool is due.
    pub(super) fn await_static_pools(&mut self) {
        let due = self.static_pools.next().map(|(due, _)| due);
        if let Some(due) = due.filter(|due| self.static_pools_at.is_none_or(|at| *due < at)) {
            self.static_pools_at = Some(due);
            self.queue.add(due, queue::Event::StaticPools);
        }
    }

    /// Checks the static NodePools that are due.
    pub(super) fn check_static_pools(&mut self) {
        if self.static_pools_at != Some(self.now) {
            return;
        }
        self.static_pools_at = None;
        while let Some((due, pool)) = self.static_pools.next()
            && due <= self.now
        {
            let pool = pool.to_owned();
            self.grow(&pool);
            self.shrink(&pool);
        }
    }

    fn grow(&mut self, pool: &str) {
        let snapshot = self.cluster.snapshot();
        let grow = self.static_pools.on(Event::Grow(pool), &snapshot, self.now);
        let Some(Effect::Launch { node, count }) = grow else {
            return;
        };
        if count > MAX_STATIC {
            return self.report.end_early(EndedBy::StaticNodes);
        }
        let planned = vec![*node; count as usize];
        let created = self.create_claims(&planned, &BTreeSet::new());
        let failed = created.iter().any(Option::is_none);
        let launches = created.into_iter().flatten().map(|(_, launch)| launch);
        self.report
            .launch(self.now, launches.collect(), 0, "Static");
        let launched = Event::Launched {
            pool,
            count,
            failed,
        };
        self.static_pools
            .on(launched, &self.cluster.snapshot(), self.now);
    }

    fn shrink(&mut self, pool: &str) {
        let snapshot = self.cluster.snapshot();
        let claims: Vec<&NodeClaim> = snapshot
            .node_claims_of_pool(pool)
            .map(AsRef::as_ref)
            .collect();
        let shrink = Event::Shrink(pool, &claims);
        let Some(Effect::Delete(surplus)) = self.static_pools.on(shrink, &snapshot, self.now)
        else {
            return;
        };
        for claim in surplus {
            self.report
                .delete(self.now, &snapshot, claim.name(), "Static");
            self.delete_claim(claim.name());
        }
    }
}
