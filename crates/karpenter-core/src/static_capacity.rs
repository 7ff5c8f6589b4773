//! Static NodePools: how many nodes are missing or too many, and in which order they are deleted.
//!
//! `limits.nodes` is never exceeded, although two controllers create NodeClaims concurrently (one maintains `replicas`, the other
//! replaces drifted nodes). A controller reserves nodes before it creates NodeClaims, and releases them once the model counts the
//! NodeClaims, or creating them failed.
//!
//! UPSTREAM: pkg/state/nodepoolstate, pkg/controllers/static
//! DIFFERS: nodes with a disruption command in flight count towards `replicas` (the command launches their replacements), so that
//! scaling up during drift does not create too many.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::annotations;
use karpenter_api::v1::{NodeClaim, NodePool};

use crate::cluster::{NodeState, Snapshot};
use crate::disruption::cost::{eviction_cost, lifetime_remaining};
use crate::pod::{DoNotDisrupt, Pod, do_not_disrupt};
use crate::quantity::Quantity;
use crate::resources::NODES;

/// The nodes of a NodePool by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Population {
    /// Nodes neither disrupted nor deleted.
    pub active: u32,
    /// Nodes with a disruption command in flight.
    pub pending: u32,
    /// Nodes being deleted.
    pub deleting: u32,
}

impl Population {
    /// Counts the NodeClaims of one NodePool.
    pub fn count<'a>(snapshot: &Snapshot, claims: impl IntoIterator<Item = &'a NodeClaim>) -> Self {
        let mut population = Self::default();
        for claim in claims {
            match fate(snapshot, claim) {
                Fate::Active => population.active += 1,
                Fate::Pending => population.pending += 1,
                Fate::Deleting => population.deleting += 1,
            }
        }
        population
    }

    /// Returns the number of nodes that the NodePool lacks.
    pub fn missing(&self, replicas: u32) -> u32 {
        replicas
            .saturating_sub(self.active)
            .saturating_sub(self.pending)
    }

    /// Returns the number of nodes that the NodePool has too many. Deleting nodes are not counted.
    pub fn excess(&self, replicas: u32) -> u32 {
        self.active.saturating_sub(replicas)
    }

    fn total(&self) -> u32 {
        self.active
            .saturating_add(self.pending)
            .saturating_add(self.deleting)
    }
}

/// Returns the numbers of nodes of a NodePool by their state.
pub fn population(snapshot: &Snapshot, pool: &str) -> Population {
    let claims = snapshot.node_claims_of_pool(pool);
    Population::count(snapshot, claims.map(AsRef::as_ref))
}

/// Returns how many nodes a static NodePool lacks; `None` for a NodePool that is not static, not ready or being deleted. [`Reservations`]
/// limit how many may be launched.
pub fn missing(snapshot: &Snapshot, pool: &NodePool) -> Option<u32> {
    let replicas = replicas(pool).filter(|_| !pool.is_deleting() && pool.is_true(types::READY))?;
    Some(population(snapshot, pool.name()).missing(replicas))
}

/// Returns the NodeClaims that a static NodePool has too many, of its `claims`; `None` for a NodePool that is not static or being
/// deleted.
pub fn surplus<'a>(
    snapshot: &Snapshot,
    pool: &NodePool,
    claims: impl IntoIterator<Item = &'a NodeClaim>,
    now: Timestamp,
) -> Option<Vec<&'a NodeClaim>> {
    let replicas = replicas(pool).filter(|_| !pool.is_deleting())?;
    let excess = population(snapshot, pool.name()).excess(replicas);
    let mut order = removal_order(snapshot, claims, now);
    order.truncate(usize::try_from(excess).unwrap_or(usize::MAX));
    Some(order)
}

enum Fate {
    Active,
    Pending,
    Deleting,
}

fn fate(snapshot: &Snapshot, claim: &NodeClaim) -> Fate {
    if claim.is_deleting() || claim.is_true(types::INSTANCE_TERMINATING) {
        Fate::Deleting
    } else if claim.is_true(types::DISRUPTION_REASON)
        || snapshot
            .node(claim.name())
            .is_some_and(|node| node.marked_for_deletion)
    {
        Fate::Pending
    } else {
        Fate::Active
    }
}

/// Returns `spec.replicas` of a static NodePool; `None` for other NodePools.
fn replicas(pool: &NodePool) -> Option<u32> {
    pool.spec
        .replicas
        .map(|replicas| u32::try_from(replicas).unwrap_or(if replicas < 0 { 0 } else { u32::MAX }))
}

/// Returns `spec.limits.nodes`; `u32::MAX` without it, zero if it is invalid.
pub fn node_limit(pool: &NodePool) -> u32 {
    let Some(limit) = pool.spec.limits.get(NODES) else {
        return u32::MAX;
    };
    let limit = Quantity::try_from(limit).map_or(0, |limit| limit.units_floor());
    u32::try_from(limit.max(0)).unwrap_or(u32::MAX)
}

/// Nodes that controllers are about to create, by NodePool. They count against the NodePool's limit before the model has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    by_pool: BTreeMap<String, u32>,
}

impl Reservations {
    /// Reserves up to `wanted` nodes within the limit, and returns how many were reserved.
    pub fn reserve(&mut self, pool: &str, population: Population, limit: u32, wanted: u32) -> u32 {
        let granted = wanted.min(self.headroom(pool, population, limit));
        if granted > 0 {
            *self.by_pool.entry(pool.to_owned()).or_default() += granted;
        }
        granted
    }

    /// Returns how many nodes can be added within the limit.
    pub fn headroom(&self, pool: &str, population: Population, limit: u32) -> u32 {
        limit
            .saturating_sub(population.total())
            .saturating_sub(self.reserved(pool))
    }

    /// Releases reserved nodes: the model counts them now, or creating them failed.
    pub fn release(&mut self, pool: &str, count: u32) {
        if let Some(reserved) = self.by_pool.get_mut(pool) {
            *reserved = reserved.saturating_sub(count);
            if *reserved == 0 {
                self.by_pool.remove(pool);
            }
        }
    }

    /// Returns the number of reserved nodes.
    pub fn reserved(&self, pool: &str) -> u32 {
        self.by_pool.get(pool).copied().unwrap_or_default()
    }

    /// Returns how many drifted nodes may be replaced now: none while the NodePool has more nodes than `replicas`, else as many as
    /// can be added within the limit.
    pub fn drift_headroom(&self, pool: &NodePool, population: Population) -> u32 {
        let at_replicas = replicas(pool).is_some_and(|replicas| {
            population.active.saturating_add(population.pending) <= replicas
        });
        if at_replicas {
            self.headroom(pool.name(), population, node_limit(pool))
        } else {
            0
        }
    }
}

/// Returns the active NodeClaims in the order in which scaling down deletes them: not launched yet; empty; by disruption cost;
/// those with a `do-not-disrupt` annotation. NodeClaims with a disruption command in flight are left out.
fn removal_order<'a>(
    snapshot: &Snapshot,
    claims: impl IntoIterator<Item = &'a NodeClaim>,
    now: Timestamp,
) -> Vec<&'a NodeClaim> {
    let mut ranked: Vec<(Rank, &NodeClaim)> = claims
        .into_iter()
        .filter(|claim| matches!(fate(snapshot, claim), Fate::Active))
        .map(|claim| (Rank::of(snapshot, claim, now), claim))
        .collect();
    ranked.sort_by(|(a, left), (b, right)| {
        let class = a
            .class
            .cmp(&b.class)
            .then_with(|| a.cost.total_cmp(&b.cost));
        class.then_with(|| left.name().cmp(right.name()))
    });
    ranked.into_iter().map(|(_, claim)| claim).collect()
}

struct Rank {
    class: Class,
    cost: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Unlaunched,
    Empty,
    Disruptable,
    Protected,
}

impl Rank {
    fn of(snapshot: &Snapshot, claim: &NodeClaim, now: Timestamp) -> Self {
        let state = snapshot.node(claim.name());
        if state.is_none_or(|state| state.provider_id().is_none()) {
            return Self {
                class: Class::Unlaunched,
                cost: 0.0,
            };
        }
        let node = state.and_then(|state| state.node.as_ref());
        let pods = node
            .map(|node| snapshot.pods_on(&node.name))
            .unwrap_or_default();
        let protects = |pod: &Pod| pod.is_active() && do_not_disrupt(pod, now) == DoNotDisrupt::Yes;
        let protected =
            state.is_some_and(|state| is_protected(state)) || pods.iter().any(|pod| protects(pod));
        if protected {
            return Self {
                class: Class::Protected,
                cost: cost(claim, pods.iter().map(AsRef::as_ref), now),
            };
        }
        if pods
            .iter()
            .all(|pod| pod.is_owned_by_daemon_set() || pod.is_terminal())
        {
            return Self {
                class: Class::Empty,
                cost: 0.0,
            };
        }
        Self {
            class: Class::Disruptable,
            cost: cost(claim, pods.iter().map(AsRef::as_ref), now),
        }
    }
}

fn is_protected(state: &NodeState) -> bool {
    state.annotations().get(annotations::DO_NOT_DISRUPT) == Some("true")
}

/// Returns the cost of disrupting a node: the eviction cost of its pods, times the remaining share of its lifetime.
fn cost<'a>(claim: &NodeClaim, pods: impl Iterator<Item = &'a Pod>, now: Timestamp) -> f64 {
    pods.map(eviction_cost).sum::<f64>() * lifetime_remaining(claim, now)
}

#[cfg(test)]
mod tests {
    use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};

    fn population(active: u32, pending: u32, deleting: u32) -> Population {
        Population {
            active,
            pending,
            deleting,
        }
    }

    fn pool(spec: Value) -> NodePool {
        let mut value = json!({
            "metadata": { "name": "p" },
            "spec": { "template": { "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] } } },
        });
        value["spec"]
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    /// Conformance: DIS-020
    #[test]
    fn a_reservation_is_granted_in_full_in_part_or_not_at_all() {
        let mut reservations = Reservations::default();
        assert_eq!(reservations.reserve("p", population(2, 0, 1), 10, 3), 3);
        assert_eq!(
            reservations.reserve("p", population(2, 0, 1), 10, 9),
            4,
            "active, deleting and reserved ones count"
        );
        assert_eq!(reservations.reserve("p", population(2, 0, 1), 10, 1), 0);
        assert_eq!(
            reservations.reserve("q", population(0, 0, 0), 10, 1),
            1,
            "pools are independent"
        );
        assert_eq!(
            reservations.reserve("r", population(5, 5, 5), 3, 1),
            0,
            "above the limit"
        );
    }

    /// Conformance: DIS-021
    #[test]
    fn releasing_too_much_leaves_nothing_reserved() {
        let mut reservations = Reservations::default();
        reservations.reserve("p", population(0, 0, 0), 10, 4);
        reservations.release("p", 1);
        assert_eq!(reservations.reserved("p"), 3);
        reservations.release("p", 100);
        reservations.release("never reserved", 1);
        assert_eq!(reservations.reserve("p", population(5, 0, 0), 5, 2), 0);
        assert_eq!(reservations, Reservations::default());
        for _ in 0..100 {
            assert_eq!(
                reservations.reserve("p", population(0, 0, 0), u32::MAX, 2),
                2
            );
            reservations.release("p", 2);
        }
        assert_eq!(reservations.reserved("p"), 0);
    }

    /// Conformance: DIS-087, DIS-088
    #[test]
    fn drift_needs_headroom_below_the_limit_and_a_pool_at_its_replicas() {
        let reservations = Reservations::default();
        let limited =
            |limit: u32| pool(json!({ "replicas": 3, "limits": { "nodes": limit.to_string() } }));
        assert_eq!(
            reservations.drift_headroom(&limited(3), population(3, 0, 0)),
            0
        );
        assert_eq!(
            reservations.drift_headroom(&limited(5), population(3, 0, 0)),
            2
        );
        assert_eq!(
            reservations.drift_headroom(&limited(4), population(3, 0, 0)),
            1
        );
        assert_eq!(
            reservations.drift_headroom(&limited(4), population(2, 1, 0)),
            1,
            "before the replacement exists"
        );
        assert_eq!(
            reservations.drift_headroom(&limited(4), population(3, 1, 0)),
            0,
            "the replacement exists"
        );
        assert_eq!(
            reservations.drift_headroom(&limited(9), population(4, 0, 0)),
            0,
            "scaling down comes first"
        );
        assert_eq!(
            reservations.drift_headroom(&limited(9), population(3, 1, 0)),
            0,
            "the replacement counts although there is headroom"
        );
        assert_eq!(
            reservations.drift_headroom(&pool(json!({ "replicas": 3 })), population(3, 0, 0)),
            u32::MAX - 3
        );
        assert_eq!(
            reservations.drift_headroom(&pool(json!({})), population(0, 0, 0)),
            0,
            "not a static pool"
        );
    }

    /// Conformance: DIS-088
    #[test]
    fn reservations_of_one_pool_do_not_limit_drift_in_others() {
        let limited = pool(json!({ "replicas": 3, "limits": { "nodes": "5" } }));
        let headroom = |reserved_by: &str| {
            let mut reservations = Reservations::default();
            reservations.reserve(reserved_by, population(3, 0, 0), 5, 2);
            reservations.drift_headroom(&limited, population(3, 0, 0))
        };
        assert_eq!((headroom("p"), headroom("other")), (0, 2));
    }

    /// Conformance: DIS-161, DIS-199, DIS-164
    #[test]
    fn missing_and_excess_follow_replicas() {
        assert_eq!(population(1, 0, 0).missing(3), 2);
        assert_eq!(population(2, 1, 0).missing(3), 0);
        assert_eq!(
            population(1, 0, 5).missing(3),
            2,
            "deleting nodes are replaced"
        );
        assert_eq!(population(5, 0, 0).excess(3), 2);
        assert_eq!(population(3, 0, 2).excess(3), 0);
        assert_eq!(node_limit(&pool(json!({ "limits": { "nodes": "7" } }))), 7);
        assert_eq!(replicas(&pool(json!({ "replicas": 7 }))), Some(7));
        assert_eq!(replicas(&pool(json!({ "replicas": -1 }))), Some(0));
        let beyond = i64::from(u32::MAX) + 1;
        assert_eq!(
            replicas(&pool(json!({ "replicas": beyond }))),
            Some(u32::MAX)
        );
    }

    /// Conformance: DIS-084
    #[test]
    fn a_pool_that_is_not_ready_or_being_deleted_lacks_nothing() {
        let snapshot = Cluster::new(ClusterConfig::default()).snapshot();
        let mut pool = pool(json!({ "replicas": 2 }));
        assert_eq!(missing(&snapshot, &pool), None, "not ready");
        pool.set_true(types::VALIDATION_SUCCEEDED, Timestamp::UNIX_EPOCH);
        pool.set_true(types::NODE_CLASS_READY, Timestamp::UNIX_EPOCH);
        assert_eq!(missing(&snapshot, &pool), Some(2));
        pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(missing(&snapshot, &pool), None, "being deleted");
    }

    fn claim(cluster: &mut Cluster, name: &str, launched: bool) -> NodeClaim {
        let mut value = json!({
            "metadata": { "name": name, "uid": name, "labels": { "karpenter.sh/nodepool": "p" }, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [], "expireAfter": "Never" },
            "status": {},
        });
        if launched {
            value["status"]["providerID"] = format!("fake://{name}").into();
            let node = json!({
                "metadata": { "name": format!("node-{name}"), "labels": { "karpenter.sh/registered": "true" } },
                "spec": { "providerID": format!("fake://{name}") },
            });
            cluster.apply_node(&serde_json::from_value(node).unwrap());
        }
        let claim: NodeClaim = serde_json::from_value(value).unwrap();
        cluster.apply_node_claim(&claim);
        claim
    }

    fn pod(cluster: &mut Cluster, node: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = json!({
            "metadata": { "name": name, "namespace": "d", "uid": name }, "spec": { "containers": [], "nodeName": format!("node-{node}") },
            "status": { "phase": "Running" },
        });
        change(&mut value);
        cluster.apply_pod(&serde_json::from_value(value).unwrap());
    }

    /// Conformance: DIS-085, DIS-086
    #[test]
    fn scaling_down_deletes_unlaunched_empty_and_cheap_nodes_first() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let daemon = |value: &mut Value| {
            value["metadata"]["ownerReferences"] =
                json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d" }]);
        };
        let mut claims = vec![
            claim(&mut cluster, "a-protected", true),
            claim(&mut cluster, "b-expensive", true),
            claim(&mut cluster, "c-cheap", true),
            claim(&mut cluster, "d-daemons", true),
            claim(&mut cluster, "e-empty", true),
            claim(&mut cluster, "f-unlaunched", false),
            claim(&mut cluster, "g-deleting", true),
            claim(&mut cluster, "h-marked", true),
            claim(&mut cluster, "i-protected-daemon", true),
        ];
        pod(&mut cluster, "a-protected", "1", |p| {
            p["metadata"]["annotations"] = json!({ "karpenter.sh/do-not-disrupt": "true" })
        });
        pod(&mut cluster, "b-expensive", "2", |p| {
            p["spec"]["priority"] = json!(1_000_000_000)
        });
        pod(&mut cluster, "c-cheap", "3", |_| ());
        pod(&mut cluster, "d-daemons", "4", daemon);
        pod(&mut cluster, "i-protected-daemon", "5", |p| {
            daemon(p);
            p["metadata"]["annotations"] = json!({ "karpenter.sh/do-not-disrupt": "true" });
        });
        claims[6].metadata.deletion_timestamp = claims[6].metadata.creation_timestamp.clone();
        cluster.apply_node_claim(&claims[6]);
        cluster.mark_for_deletion(&["fake://h-marked"]);
        let snapshot = cluster.snapshot();
        let order = removal_order(&snapshot, &claims, "2026-01-02T00:00:00Z".parse().unwrap());
        let names: Vec<&str> = order.iter().map(|claim| claim.name()).collect();
        assert_eq!(
            names,
            [
                "f-unlaunched",
                "d-daemons",
                "e-empty",
                "c-cheap",
                "b-expensive",
                "a-protected",
                "i-protected-daemon"
            ]
        );
        let counted = Population::count(&snapshot, &claims);
        assert_eq!(counted, population(7, 1, 1));
        assert_eq!(
            (counted.excess(7), counted.excess(6)),
            (0, 1),
            "deleting nodes and nodes with a command in flight are not excess"
        );
    }

    /// Conformance: DIS-162
    #[test]
    fn of_equal_nodes_the_one_closer_to_expiration_is_deleted_first() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let mut claims = vec![
            claim(&mut cluster, "a", true),
            claim(&mut cluster, "b-expiring", true),
        ];
        pod(&mut cluster, "a", "1", |_| ());
        pod(&mut cluster, "b-expiring", "2", |_| ());
        claims[1].spec.expire_after = serde_json::from_value(json!("25h")).unwrap();
        cluster.apply_node_claim(&claims[1]);
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let snapshot = cluster.snapshot();
        let order = removal_order(&snapshot, &claims, now);
        let names: Vec<&str> = order.iter().map(|claim| claim.name()).collect();
        assert_eq!(names, ["b-expiring", "a"]);
    }

    /// Conformance: DIS-162
    #[test]
    fn the_cost_of_a_node_is_that_of_its_pods_times_the_lifetime_that_is_left() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let mut claims = vec![
            claim(&mut cluster, "a-cheap", true),
            claim(&mut cluster, "b-costly-and-expiring", true),
        ];
        pod(&mut cluster, "a-cheap", "1", |_| ());
        pod(&mut cluster, "b-costly-and-expiring", "2", |p| {
            p["spec"]["priority"] = json!(1_000_000_000)
        });
        // Ten times the cost, a twenty-fifth of the lifetime.
        claims[1].spec.expire_after = serde_json::from_value(json!("25h")).unwrap();
        cluster.apply_node_claim(&claims[1]);
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        let snapshot = cluster.snapshot();
        let first = removal_order(&snapshot, &claims, now)[0].name().to_owned();
        assert_eq!(first, "b-costly-and-expiring");
    }

    /// Conformance: DIS-085
    #[test]
    fn a_node_whose_annotation_forbids_disruption_is_deleted_last() {
        for (value, last) in [("true", "a"), ("false", "b")] {
            let mut cluster = Cluster::new(ClusterConfig::default());
            let claims = ["a", "b"].map(|name| claim(&mut cluster, name, true));
            let annotated = json!({
                "metadata": {
                    "name": "node-a", "labels": { "karpenter.sh/registered": "true" },
                    "annotations": { "karpenter.sh/do-not-disrupt": value },
                },
                "spec": { "providerID": "fake://a" },
            });
            cluster.apply_node(&serde_json::from_value(annotated).unwrap());
            pod(&mut cluster, "a", "1", |_| ());
            pod(&mut cluster, "b", "2", |p| {
                p["spec"]["priority"] = json!(1 << 25)
            });
            let snapshot = cluster.snapshot();
            let now = "2026-01-02T00:00:00Z".parse().unwrap();
            let order = removal_order(&snapshot, &claims, now);
            assert_eq!(order[1].name(), last, "{value}");
        }
    }
}
