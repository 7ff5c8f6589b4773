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
pub(super) struct Population {
    /// Nodes neither disrupted nor deleted.
    pub(super) active: u32,
    /// Nodes with a disruption command in flight.
    pub(super) pending: u32,
    /// Nodes being deleted.
    pub(super) deleting: u32,
}

impl Population {
    /// Counts the NodeClaims of one NodePool.
    pub(super) fn count<'a>(
        snapshot: &Snapshot,
        claims: impl IntoIterator<Item = &'a NodeClaim>,
    ) -> Self {
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
    pub(super) fn missing(&self, replicas: u32) -> u32 {
        replicas
            .saturating_sub(self.active)
            .saturating_sub(self.pending)
    }

    /// Returns the number of nodes that the NodePool has too many. Deleting nodes are not counted.
    pub(super) fn excess(&self, replicas: u32) -> u32 {
        self.active.saturating_sub(replicas)
    }

    fn total(&self) -> u32 {
        self.active
            .saturating_add(self.pending)
            .saturating_add(self.deleting)
    }
}

/// Returns the numbers of nodes of a NodePool by their state.
pub(super) fn population(snapshot: &Snapshot, pool: &str) -> Population {
    let claims = snapshot.node_claims_of_pool(pool);
    Population::count(snapshot, claims.map(AsRef::as_ref))
}

/// Returns how many nodes a static NodePool lacks; `None` for a NodePool that is not static, not ready or being deleted. [`Reservations`]
/// limit how many may be launched.
pub(super) fn missing(snapshot: &Snapshot, pool: &NodePool) -> Option<u32> {
    let replicas = replicas(pool).filter(|_| !pool.is_deleting() && pool.is_true(types::READY))?;
    Some(population(snapshot, pool.name()).missing(replicas))
}

/// Returns the NodeClaims that a static NodePool has too many, of its `claims`; `None` for a NodePool that is not static or being
/// deleted.
pub(super) fn surplus<'a>(
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
pub(super) fn node_limit(pool: &NodePool) -> u32 {
    let Some(limit) = pool.spec.limits.get(NODES) else {
        return u32::MAX;
    };
    let limit = Quantity::try_from(limit).map_or(0, |limit| limit.units_floor());
    u32::try_from(limit.max(0)).unwrap_or(u32::MAX)
}

/// Nodes that controllers are about to create, by NodePool. They count against the NodePool's limit before the model has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reservations {
    by_pool: BTreeMap<String, u32>,
}

impl Reservations {
    /// Reserves up to `wanted` nodes within the limit, and returns how many were reserved.
    pub(super) fn reserve(
        &mut self,
        pool: &str,
        population: Population,
        limit: u32,
        wanted: u32,
    ) -> u32 {
        let granted = wanted.min(self.headroom(pool, population, limit));
        if granted > 0 {
            *self.by_pool.entry(pool.to_owned()).or_default() += granted;
        }
        granted
    }

    /// Returns how many nodes can be added within the limit.
    pub(super) fn headroom(&self, pool: &str, population: Population, limit: u32) -> u32 {
        limit
            .saturating_sub(population.total())
            .saturating_sub(self.reserved(pool))
    }

    /// Releases reserved nodes: the model counts them now, or creating them failed.
    pub(super) fn release(&mut self, pool: &str, count: u32) {
        if let Some(reserved) = self.by_pool.get_mut(pool) {
            *reserved = reserved.saturating_sub(count);
            if *reserved == 0 {
                self.by_pool.remove(pool);
            }
        }
    }

    /// Returns the number of reserved nodes.
    pub(super) fn reserved(&self, pool: &str) -> u32 {
        self.by_pool.get(pool).copied().unwrap_or_default()
    }

    /// Returns how many drifted nodes may be replaced now: none while the NodePool has more nodes than `replicas`, else as many as
    /// can be added within the limit.
    pub(super) fn drift_headroom(&self, pool: &NodePool, population: Population) -> u32 {
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
    use karpenter_fixtures::{Object, Pod, claim_of, node, node_claim, node_pool};

    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};

    fn population(active: u32, pending: u32, deleting: u32) -> Population {
        Population {
            active,
            pending,
            deleting,
        }
    }

    fn fixed(replicas: i64) -> Object<NodePool> {
        node_pool("p").replicas(replicas)
    }

    /// Conformance: DIS-020
    #[test]
    fn a_reservation_is_granted_in_full_in_part_or_not_at_all() {
        let mut reservations = Reservations::default();
        for (pool, existing, limit, asked, granted, why) in [
            ("p", population(2, 0, 1), 10, 3, 3, "in full"),
            ("p", population(2, 0, 1), 10, 9, 4, "in part"),
            ("p", population(2, 0, 1), 10, 1, 0, "not at all"),
            ("q", population(0, 0, 0), 10, 1, 1, "pools are independent"),
            ("r", population(5, 5, 5), 3, 1, 0, "above the limit"),
        ] {
            let got = reservations.reserve(pool, existing, limit, asked);
            assert_eq!(got, granted, "{why}");
        }
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
            let granted = reservations.reserve("p", population(0, 0, 0), u32::MAX, 2);
            assert_eq!(granted, 2);
            reservations.release("p", 2);
        }
        assert_eq!(reservations.reserved("p"), 0);
    }

    /// Conformance: DIS-087, DIS-088
    #[test]
    fn drift_needs_headroom_below_the_limit_and_a_pool_at_its_replicas() {
        let headroom = |pool: Object<NodePool>, existing: Population| {
            Reservations::default().drift_headroom(&pool.build(), existing)
        };
        for (limit, existing, expected, why) in [
            ("3", population(3, 0, 0), 0, "at the limit"),
            ("5", population(3, 0, 0), 2, "two below the limit"),
            ("4", population(3, 0, 0), 1, "one below the limit"),
            ("4", population(2, 1, 0), 1, "before the replacement exists"),
            ("4", population(3, 1, 0), 0, "the replacement exists"),
            ("9", population(4, 0, 0), 0, "scaling down comes first"),
            ("9", population(3, 1, 0), 0, "the replacement counts"),
        ] {
            let pool = fixed(3).limit("nodes", limit);
            assert_eq!(headroom(pool, existing), expected, "{why}");
        }
        assert_eq!(headroom(fixed(3), population(3, 0, 0)), u32::MAX - 3);
        let dynamic = headroom(node_pool("p"), population(0, 0, 0));
        assert_eq!(dynamic, 0, "not a static pool");
    }

    /// Conformance: DIS-088
    #[test]
    fn reservations_of_one_pool_do_not_limit_drift_in_others() {
        let limited = fixed(3).limit("nodes", "5").build();
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
        assert_eq!(node_limit(&node_pool("p").limit("nodes", "7").build()), 7);
        let of = |number| replicas(&fixed(number).build());
        let beyond = i64::from(u32::MAX) + 1;
        assert_eq!([7, -1, beyond].map(of), [7, 0, u32::MAX].map(Some));
    }

    /// Conformance: DIS-084
    #[test]
    fn a_pool_that_is_not_ready_or_being_deleted_lacks_nothing() {
        let snapshot = Cluster::new(ClusterConfig::default()).snapshot();
        let mut pool = fixed(2).remove("/status").build();
        assert_eq!(missing(&snapshot, &pool), None, "not ready");
        pool.set_true(types::VALIDATION_SUCCEEDED, Timestamp::UNIX_EPOCH);
        pool.set_true(types::NODE_CLASS_READY, Timestamp::UNIX_EPOCH);
        assert_eq!(missing(&snapshot, &pool), Some(2));
        pool.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(missing(&snapshot, &pool), None, "being deleted");
    }

    const NODE_REFUSES: &str = "/metadata/annotations/karpenter.sh~1do-not-disrupt";

    /// Adds a NodeClaim of NodePool `p` with a Node and its pod.
    fn add(cluster: &mut Cluster, name: &str, pod: impl Fn(Object<Pod>) -> Option<Object<Pod>>) {
        let node = node(name).pool("p");
        cluster.apply_node_claim(&claim(name).build());
        cluster.apply_node(&node.build());
        if let Some(pod) = pod(karpenter_fixtures::pod(name).on(name)) {
            cluster.apply_pod(&pod.build());
        }
    }

    fn claim(name: &str) -> Object<NodeClaim> {
        let claim = claim_of(&node(name).pool("p")).renamed(name);
        claim.created("2026-01-01T00:00:00Z").expire_after("Never")
    }

    fn costly(pod: Object<Pod>) -> Option<Object<Pod>> {
        Some(pod.priority(1_000_000_000))
    }

    fn claims(cluster: &Cluster) -> Vec<NodeClaim> {
        let snapshot = cluster.snapshot();
        let claims = snapshot.node_claims_of_pool("p");
        claims.map(|claim| NodeClaim::clone(claim)).collect()
    }

    /// Returns the names of the NodeClaims in the order in which they are deleted.
    fn order(cluster: &Cluster) -> Vec<String> {
        let (snapshot, claims) = (cluster.snapshot(), claims(cluster));
        let order = removal_order(&snapshot, &claims, "2026-01-02T00:00:00Z".parse().unwrap());
        order.iter().map(|claim| claim.name().to_owned()).collect()
    }

    /// Conformance: DIS-085, DIS-086
    #[test]
    fn scaling_down_deletes_unlaunched_empty_and_cheap_nodes_first() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let daemon = |pod: Object<Pod>| Some(pod.owned_by("apps/v1", "DaemonSet", "d"));
        add(&mut cluster, "a-protected", |pod| {
            Some(pod.do_not_disrupt())
        });
        add(&mut cluster, "b-expensive", costly);
        add(&mut cluster, "c-cheap", Some);
        add(&mut cluster, "d-daemons", daemon);
        add(&mut cluster, "e-empty", |_| None);
        let unlaunched = node_claim("f-unlaunched")
            .pool("p")
            .created("2026-01-01T00:00:00Z");
        cluster.apply_node_claim(&unlaunched.build());
        add(&mut cluster, "g-deleting", |_| None);
        let deleting = claim("g-deleting").deleted("2026-01-01T00:00:00Z");
        cluster.apply_node_claim(&deleting.build());
        add(&mut cluster, "h-marked", |_| None);
        cluster.mark_for_deletion(&["fake://h-marked"]);
        add(&mut cluster, "i-protected-daemon", |pod| {
            daemon(pod.do_not_disrupt())
        });
        assert_eq!(
            order(&cluster),
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
        let counted = Population::count(&cluster.snapshot(), &claims(&cluster));
        assert_eq!(counted, population(7, 1, 1));
        assert_eq!(
            (counted.excess(7), counted.excess(6)),
            (0, 1),
            "deleting nodes and nodes with a command in flight are not excess"
        );
    }

    /// The pod of `b` costs ten times as much, and `b` has a twenty-fifth of its lifetime left.
    ///
    /// Conformance: DIS-162
    #[test]
    fn the_cost_of_a_node_is_that_of_its_pods_times_the_lifetime_that_is_left() {
        for pod_of_b in [Some, costly] {
            let mut cluster = Cluster::new(ClusterConfig::default());
            add(&mut cluster, "a", Some);
            add(&mut cluster, "b", pod_of_b);
            cluster.apply_node_claim(&claim("b").expire_after("25h").build());
            assert_eq!(order(&cluster), ["b", "a"]);
        }
    }

    /// Conformance: DIS-085
    #[test]
    fn a_node_whose_annotation_forbids_disruption_is_deleted_last() {
        for (value, last) in [("true", "a"), ("false", "b")] {
            let mut cluster = Cluster::new(ClusterConfig::default());
            add(&mut cluster, "a", Some);
            add(&mut cluster, "b", |pod| Some(pod.priority(1 << 25)));
            let annotated = node("a").pool("p").set(NODE_REFUSES, value);
            cluster.apply_node(&annotated.build());
            assert_eq!(order(&cluster)[1], last, "{value}");
        }
    }
}
