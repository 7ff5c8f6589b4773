//! NodePools of a fixed size: how many machines are missing or too many, and which ones go first.
//!
//! `limits.nodes` may never be exceeded, though machines are made by two controllers at once (one keeps `replicas`, the other
//! replaces drifted machines). Whoever wants to make machines reserves them first, and releases them once the model counts
//! them, or once they could not be made.
//!
//! UPSTREAM: pkg/state/nodepoolstate, pkg/controllers/static
//! DIFFERS: machines with a command in flight count towards `replicas` (their replacements are the command's business), so
//! that scaling up while drift is at work does not make too many.

use std::collections::BTreeMap;

use jiff::Timestamp;
use karpenter_api::{
    conditions::{HasConditions, types},
    hash,
    k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference,
    labels::{self, annotations},
    v1::{NodeClaim, NodePool},
    validation::WellKnown,
};

use crate::{
    cluster::{NodeState, Snapshot},
    disruption::cost::{eviction_cost, lifetime_remaining},
    pod::{DoNotDisrupt, Pod, do_not_disrupt},
    quantity::Quantity,
    requirements::Requirements,
    resources::{NODES, Resources},
    schedule::ClaimDraft,
};

/// The machines of a pool by what is happening to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Population {
    /// Machines that stay.
    pub active: u32,
    /// Machines that a disruption command holds.
    pub pending: u32,
    /// Machines on their way out.
    pub deleting: u32,
}

impl Population {
    /// Counts the claims of one pool.
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

    /// How many machines the pool lacks.
    pub fn missing(&self, replicas: u32) -> u32 {
        replicas
            .saturating_sub(self.active)
            .saturating_sub(self.pending)
    }

    /// How many machines the pool has too many. Those on their way out are not among them.
    pub fn excess(&self, replicas: u32) -> u32 {
        self.active.saturating_sub(replicas)
    }

    fn total(&self) -> u32 {
        self.active
            .saturating_add(self.pending)
            .saturating_add(self.deleting)
    }
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
            .is_some_and(|machine| machine.marked_for_deletion)
    {
        Fate::Pending
    } else {
        Fate::Active
    }
}

/// `spec.replicas` of a static pool; none for other pools.
pub fn replicas(pool: &NodePool) -> Option<u32> {
    pool.spec
        .replicas
        .map(|replicas| u32::try_from(replicas).unwrap_or(if replicas < 0 { 0 } else { u32::MAX }))
}

/// `spec.limits.nodes`; without it a pool may have any number of machines. What cannot be read allows none.
pub fn node_limit(pool: &NodePool) -> u32 {
    let Some(limit) = pool.spec.limits.get(NODES) else {
        return u32::MAX;
    };
    let limit = Quantity::try_from(limit).map_or(0, |limit| limit.units_floor());
    u32::try_from(limit.max(0)).unwrap_or(u32::MAX)
}

/// Machines that somebody is about to make, by pool. They count against the pool's limit before the model knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    by_pool: BTreeMap<String, u32>,
}

impl Reservations {
    /// Reserves as many of `wanted` machines as the limit leaves room for, and says how many.
    pub fn reserve(&mut self, pool: &str, population: Population, limit: u32, wanted: u32) -> u32 {
        let granted = wanted.min(self.room(pool, population, limit));
        if granted > 0 {
            *self.by_pool.entry(pool.to_owned()).or_default() += granted;
        }
        granted
    }

    /// How many machines the limit leaves room for.
    pub fn room(&self, pool: &str, population: Population, limit: u32) -> u32 {
        limit
            .saturating_sub(population.total())
            .saturating_sub(self.reserved(pool))
    }

    /// Gives reserved machines back: the model counts them now, or they could not be made.
    pub fn release(&mut self, pool: &str, count: u32) {
        if let Some(reserved) = self.by_pool.get_mut(pool) {
            *reserved = reserved.saturating_sub(count);
            if *reserved == 0 {
                self.by_pool.remove(pool);
            }
        }
    }

    /// How many machines are reserved.
    pub fn reserved(&self, pool: &str) -> u32 {
        self.by_pool.get(pool).copied().unwrap_or_default()
    }

    /// How many drifted machines may be replaced now: none while the pool is not settled, else as many as the limit leaves
    /// room for next to those they replace.
    pub fn drift_room(&self, pool: &NodePool, population: Population) -> u32 {
        let settled = replicas(pool).is_some_and(|replicas| {
            population.active.saturating_add(population.pending) <= replicas
        });
        if settled {
            self.room(pool.name(), population, node_limit(pool))
        } else {
            0
        }
    }
}

/// A machine of a static pool, as the pool's template describes it: the provider chooses its type.
pub fn draft(pool: &NodePool, names: &WellKnown) -> ClaimDraft {
    let class = &pool.spec.template.spec.node_class_ref;
    let mut claim = pool.spec.template.to_node_claim();
    let own = claim.metadata.labels.get_or_insert_default();
    own.insert(labels::NODE_POOL.to_owned(), pool.name().to_owned());
    own.insert(
        labels::node_class(&class.group, &class.kind),
        class.name.clone(),
    );
    // A requirement that cannot be read makes the pool invalid, and then nothing is made for it.
    if let Ok(mut requirements) = Requirements::from_api(&claim.spec.requirements, names) {
        requirements.add_all(&Requirements::from_labels(own.iter(), names));
        let custom = requirements.labels(|key| !names.contains(key) && !own.contains_key(key));
        own.extend(custom);
        claim.spec.requirements = requirements.to_node_selector_requirements();
    }
    let marks = claim.metadata.annotations.get_or_insert_default();
    marks.insert(
        annotations::NODE_POOL_HASH.to_owned(),
        hash::node_pool(pool),
    );
    marks.insert(
        annotations::NODE_POOL_HASH_VERSION.to_owned(),
        hash::NODE_POOL_HASH_VERSION.to_owned(),
    );
    if let Some(kubelet) = pool.kubelet_compatibility() {
        marks.insert(
            annotations::KUBELET_COMPATIBILITY.to_owned(),
            kubelet.to_owned(),
        );
    }
    claim.metadata.generate_name = Some(format!("{}-", pool.name()));
    claim.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "karpenter.sh/v1".to_owned(),
        kind: NodePool::KIND.to_owned(),
        name: pool.name().to_owned(),
        uid: pool.uid().to_owned(),
        block_owner_deletion: Some(true),
        controller: None,
    }]);
    ClaimDraft {
        node_pool: pool.name().to_owned(),
        claim: claim.into(),
        instance_types: [].into(),
        pods: Vec::new(),
        buffer_pods: Vec::new(),
        requests: Resources::new(),
        hourly_price: 0.0,
        min_values_relaxed: false,
        reservations: Vec::new(),
    }
}

/// The claims that stay, those first that are given up first: not launched yet; empty; easily disrupted; those whose pods
/// ask not to be disrupted. Claims that a command holds are left to it.
pub fn removal_order<'a>(
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
        let machine = snapshot.node(claim.name());
        if machine.is_none_or(|machine| machine.provider_id().is_none()) {
            return Self {
                class: Class::Unlaunched,
                cost: 0.0,
            };
        }
        let node = machine.and_then(|machine| machine.node.as_ref());
        let pods = node
            .map(|node| snapshot.pods_on(&node.name))
            .unwrap_or_default();
        let protects = |pod: &Pod| pod.is_active() && do_not_disrupt(pod, now) == DoNotDisrupt::Yes;
        let protected =
            machine.is_some_and(|machine| refuses(machine)) || pods.iter().any(|pod| protects(pod));
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

fn refuses(machine: &NodeState) -> bool {
    machine
        .annotations()
        .get(annotations::DO_NOT_DISRUPT)
        .is_some_and(|value| value == "true")
}

/// How much it hurts to disrupt a machine: what its pods cost, less as the machine nears its expiry.
fn cost<'a>(claim: &NodeClaim, pods: impl Iterator<Item = &'a Pod>, now: Timestamp) -> f64 {
    pods.map(eviction_cost).sum::<f64>() * lifetime_remaining(claim, now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Cluster, ClusterConfig};
    use serde_json::{Value, json};

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
    fn drift_needs_room_below_the_limit_and_a_settled_pool() {
        let reservations = Reservations::default();
        let limited =
            |limit: u32| pool(json!({ "replicas": 3, "limits": { "nodes": limit.to_string() } }));
        assert_eq!(reservations.drift_room(&limited(3), population(3, 0, 0)), 0);
        assert_eq!(reservations.drift_room(&limited(5), population(3, 0, 0)), 2);
        assert_eq!(reservations.drift_room(&limited(4), population(3, 0, 0)), 1);
        assert_eq!(
            reservations.drift_room(&limited(4), population(2, 1, 0)),
            1,
            "before the replacement is there"
        );
        assert_eq!(
            reservations.drift_room(&limited(4), population(3, 1, 0)),
            0,
            "the replacement is there"
        );
        assert_eq!(
            reservations.drift_room(&limited(9), population(4, 0, 0)),
            0,
            "scaling down comes first"
        );
        assert_eq!(
            reservations.drift_room(&limited(9), population(3, 1, 0)),
            0,
            "the replacement counts although there is room"
        );
        assert_eq!(
            reservations.drift_room(&pool(json!({ "replicas": 3 })), population(3, 0, 0)),
            u32::MAX - 3
        );
        assert_eq!(
            reservations.drift_room(&pool(json!({})), population(0, 0, 0)),
            0,
            "not a static pool"
        );
    }

    /// Conformance: DIS-088
    #[test]
    fn what_one_pool_reserved_leaves_the_drift_of_others_alone() {
        let limited = pool(json!({ "replicas": 3, "limits": { "nodes": "5" } }));
        let room = |reserved_by: &str| {
            let mut reservations = Reservations::default();
            reservations.reserve(reserved_by, population(3, 0, 0), 5, 2);
            reservations.drift_room(&limited, population(3, 0, 0))
        };
        assert_eq!((room("p"), room("other")), (0, 2));
    }

    #[test]
    fn missing_and_excess_follow_replicas() {
        assert_eq!(population(1, 0, 0).missing(3), 2);
        assert_eq!(population(2, 1, 0).missing(3), 0);
        assert_eq!(
            population(1, 0, 5).missing(3),
            2,
            "those on their way out are replaced"
        );
        assert_eq!(population(5, 0, 0).excess(3), 2);
        assert_eq!(population(3, 0, 2).excess(3), 0);
        assert_eq!(node_limit(&pool(json!({ "limits": { "nodes": "7" } }))), 7);
        assert_eq!(replicas(&pool(json!({ "replicas": 7 }))), Some(7));
    }

    #[test]
    fn a_draft_carries_the_kubelet_s_settings_of_v1beta1() {
        let mut pool = pool(json!({ "replicas": 1 }));
        let kubelet = (
            annotations::KUBELET_COMPATIBILITY.to_owned(),
            r#"{"maxPods":20}"#.to_owned(),
        );
        pool.metadata.annotations = Some([kubelet].into());
        let claim = draft(&pool, &crate::fake::well_known()).claim;
        assert_eq!(claim.kubelet_compatibility(), Some(r#"{"maxPods":20}"#));
    }

    /// Conformance: API-076
    #[test]
    fn a_draft_is_the_template_with_owner_labels_and_hash() {
        let mut pool = pool(json!({ "replicas": 1 }));
        pool.metadata.uid = Some("u".to_owned());
        pool.spec.template.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into());
        pool.spec.template.spec.requirements = serde_json::from_value(json!([
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"] },
            { "key": "custom", "operator": "In", "values": ["x"] },
        ]))
        .unwrap();
        let claim = draft(&pool, &crate::fake::well_known()).claim;
        assert_eq!(
            (
                claim.metadata.generate_name.as_deref(),
                claim.metadata.name.as_deref()
            ),
            (Some("p-"), None)
        );
        let labels: Vec<(String, String)> =
            claim.metadata.labels.clone().unwrap().into_iter().collect();
        let expected = [
            ("custom", "x"),
            ("g/k", "n"),
            ("karpenter.sh/nodepool", "p"),
            ("team", "a"),
        ];
        assert_eq!(
            labels,
            expected.map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
        let keys: Vec<&str> = claim
            .spec
            .requirements
            .iter()
            .map(|r| r.key.as_str())
            .collect();
        assert_eq!(
            keys,
            [
                "custom",
                "g/k",
                "karpenter.sh/capacity-type",
                "karpenter.sh/nodepool",
                "team"
            ]
        );
        let owner = &claim.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            (owner.uid.as_str(), owner.block_owner_deletion),
            ("u", Some(true))
        );
        let marks = claim.metadata.annotations.clone().unwrap();
        assert_eq!(marks[annotations::NODE_POOL_HASH], hash::node_pool(&pool));
        assert_eq!(
            marks[annotations::NODE_POOL_HASH_VERSION],
            hash::NODE_POOL_HASH_VERSION
        );
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
    fn scaling_down_takes_unlaunched_empty_cheap_dear_and_protected_machines_in_this_order() {
        let mut cluster = Cluster::new(ClusterConfig::default());
        let daemon = |value: &mut Value| {
            value["metadata"]["ownerReferences"] =
                json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d" }]);
        };
        let mut claims = vec![
            claim(&mut cluster, "a-protected", true),
            claim(&mut cluster, "b-dear", true),
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
        pod(&mut cluster, "b-dear", "2", |p| {
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
                "b-dear",
                "a-protected",
                "i-protected-daemon"
            ]
        );
        let counted = Population::count(&snapshot, &claims);
        assert_eq!(counted, population(7, 1, 1));
        assert_eq!(
            (counted.excess(7), counted.excess(6)),
            (0, 1),
            "those that are deleted or held by a command are no excess"
        );
    }

    #[test]
    fn of_equal_nodes_the_one_nearer_its_expiry_is_given_up_first() {
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
}
