//! Which changes of the model request a plan, and what else they mean to the process.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::{NodeClaim, NodePool};

use super::Provisioning;
use super::nominations::Bound;
use crate::cluster::Snapshot;
use crate::pod::Pod;

/// A change of the model: an object before and after it.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// A pod changed.
    Pod(Option<&'a Pod>, Option<&'a Pod>),
    /// A Node changed.
    Node(Option<&'a Node>, Option<&'a Node>),
    /// A NodeClaim changed.
    NodeClaim(Option<&'a NodeClaim>, Option<&'a NodeClaim>),
    /// A NodePool changed.
    NodePool(Option<&'a NodePool>, Option<&'a NodePool>),
    /// All objects are listed.
    Synced,
}

impl Provisioning {
    /// Takes note of a change of the model, after which it is `snapshot`. Returns how the place of a pod that kube-scheduler bound
    /// compares with the plan.
    pub fn observe(
        &mut self,
        change: Change<'_>,
        snapshot: &Snapshot,
        has_buffers: bool,
        now: Timestamp,
    ) -> Option<Bound> {
        let waits = || has_buffers || snapshot.pending_pods().next().is_some();
        match change {
            Change::Pod(before, after) => return self.observe_pod(before, after, snapshot, now),
            // The pods of a node that is being deleted need another one before they are pending.
            Change::Node(before, Some(after)) => {
                if is_disrupted(after) && !before.is_some_and(is_disrupted) {
                    let uid = after.metadata.uid.as_deref();
                    self.trigger(uid.unwrap_or_default(), now);
                }
            }
            // The NodeClaim of nominated pods is deleted: they are planned again without delay.
            Change::NodeClaim(before, after) => {
                let last = after.or(before)?;
                if after.is_none_or(NodeClaim::is_deleting)
                    && !before.is_some_and(NodeClaim::is_deleting)
                {
                    if !last.is_true(types::REGISTERED) {
                        self.release(last.name());
                    }
                    if waits() {
                        self.trigger(last.name(), now);
                    }
                }
            }
            Change::NodePool(before, after) => {
                if !offers_the_same(before, after) && waits() {
                    self.trigger(after.or(before)?.name(), now);
                }
            }
            Change::Synced if waits() => self.trigger("synced", now),
            Change::Node(_, None) | Change::Synced => {}
        }
        None
    }

    /// Requests a plan when a pod becomes provisionable or its requirements change. Other changes of a pending pod, such as
    /// kube-scheduler's message, do not.
    fn observe_pod(
        &mut self,
        before: Option<&Pod>,
        after: Option<&Pod>,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Option<Bound> {
        let is_same = |it: &&Pod| after.is_some_and(|after| after.key.uid == it.key.uid);
        if let Some(deleted) = before.filter(|it| !is_same(it)) {
            self.forget(&deleted.key.uid);
        }
        let (before, pod) = (before.filter(is_same), after?);
        if pod.node_name.is_some() && before.is_some_and(|before| before.node_name.is_none()) {
            return self.bound(pod, snapshot, now);
        }
        if pod.node_name.is_some() || !pod.is_active() {
            self.forget(&pod.key.uid);
        } else if before.is_some_and(Pod::is_nominated_by_plan) && pod.nominated_node.is_none() {
            self.denominated(now);
        }
        let waited = |before: &Pod| before.is_provisionable() && before.shape == pod.shape;
        if pod.is_provisionable() && !before.is_some_and(waited) {
            self.trigger(&pod.key.uid, now);
        }
        None
    }
}

/// Returns whether a node has the taint of nodes that are being disrupted.
fn is_disrupted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let disrupted = taints::disrupted();
    taints.is_some_and(|all| all.iter().any(|taint| taints::same(taint, &disrupted)))
}

/// Returns whether no field of a NodePool changed that matters to pods: its status changes with every node.
fn offers_the_same(before: Option<&NodePool>, after: Option<&NodePool>) -> bool {
    let (Some(before), Some(after)) = (before, after) else {
        return false;
    };
    before.spec == after.spec
        && before.metadata.uid == after.metadata.uid
        && before.metadata.deletion_timestamp == after.metadata.deletion_timestamp
        && before.is_true(types::READY) == after.is_true(types::READY)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use karpenter_fixtures::{node_pool, pod};

    use super::*;
    use crate::cluster::Cluster;
    use crate::fake;
    use crate::lifecycle::provisioning::BatchWindow;

    /// Returns whether a change of a pod requests a plan.
    fn is_planned(before: Option<&Pod>, after: Option<&Pod>) -> bool {
        let (idle, now) = (Duration::from_secs(1), Timestamp::UNIX_EPOCH);
        let mut process = Provisioning::new(BatchWindow { idle, max: idle }, now);
        let snapshot = Cluster::new(fake::cluster_config()).snapshot();
        process.observe(Change::Pod(before, after), &snapshot, false, now);
        process.closes(now).is_some()
    }

    #[test]
    fn a_pod_that_replaces_another_of_its_name_is_planned() {
        let waiting = |uid| Pod::parse(&pod("a").uid(uid).build());
        let (first, second) = (waiting("1"), waiting("2"));
        assert!(is_planned(None, Some(&first)));
        assert!(!is_planned(Some(&first), Some(&first)));
        assert!(is_planned(Some(&first), Some(&second)));
    }

    #[test]
    fn a_nodepool_offers_the_same_until_a_field_that_matters_to_pods_changes() {
        let mut pool = node_pool("p").build();
        pool.set_true(types::READY, Timestamp::UNIX_EPOCH);
        let same = |change: &dyn Fn(&mut NodePool)| {
            let mut after = pool.clone();
            change(&mut after);
            offers_the_same(Some(&pool), Some(&after))
        };
        assert!(same(&|_| ()));
        assert!(same(&|pool| pool.metadata.generation = Some(7)));
        assert!(!same(&|pool| pool.spec.weight = Some(7)));
        assert!(!same(&|pool| pool.metadata.uid = Some("another".into())));
        assert!(!same(&|pool| {
            pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        }));
        assert!(!same(&|pool| {
            pool.set_false(types::READY, "NotReady", "", Timestamp::UNIX_EPOCH);
        }));
        assert!(!offers_the_same(None, Some(&pool)));
        assert!(!offers_the_same(Some(&pool), None));
    }
}
