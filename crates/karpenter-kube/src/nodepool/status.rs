//! The status of a NodePool: validation, NodeClass, registration health, resources; one reconciliation, one write.
//!
//! DIFFERS: upstream has four controllers that write the same status one after another, so that a NodePool is not ready in
//! between; here one write follows a change of the spec.
//!
//! UPSTREAM: pkg/controllers/nodepool/{validation,readiness,registrationhealth,counter}/controller.go

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::v1::NodePool;
use karpenter_api::{conditions, events, validation};
use karpenter_core::requirements::{Requirements, Unaliased};
use karpenter_core::resources::Resources;
use kube::Api;

use super::registration_health::{Health, RegistrationHealth};
use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::events::Event;
use crate::model::{Change, NodeClass, View};

/// Resources that are reported even when they are zero.
const ALWAYS_REPORTED: [&str; 5] = ["cpu", "memory", "pods", "ephemeral-storage", "nodes"];

/// Message about a NodePool with `replicas` while the feature gate StaticCapacity is off.
const GATE_CLOSED: &str = "spec.replicas: no nodes are launched for this NodePool, neither to reach its replicas nor for pods, because the feature gate StaticCapacity is off";
/// How often [`GATE_CLOSED`] is reported.
const EVENT_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// How long changes of nodes are collected before they are counted.
const BATCH_WINDOW: Duration = Duration::from_secs(1);

/// Maintains the status of NodePools.
#[derive(Debug)]
pub struct Status {
    cx: Arc<Context>,
    health: Arc<RegistrationHealth>,
}

impl Status {
    /// Creates the controller; `health` holds the outcomes of registrations.
    #[must_use]
    pub fn new(cx: Arc<Context>, health: Arc<RegistrationHealth>) -> Self {
        Self { cx, health }
    }

    fn registration_health(&self, pool: &mut NodePool, class: &NodeClass, now: Timestamp) {
        let uid = pool.uid().to_owned();
        let stale = pool
            .condition(types::NODE_REGISTRATION_HEALTHY)
            .is_none_or(|c| c.observed_generation != pool.metadata.generation)
            || pool.status.node_class_observed_generation != Some(class.generation);
        if stale {
            self.health.reset(&uid);
            pool.set_unknown(types::NODE_REGISTRATION_HEALTHY, now);
            pool.status.node_class_observed_generation = Some(class.generation);
            return;
        }
        match pool.condition_status(types::NODE_REGISTRATION_HEALTHY) {
            conditions::Status::True => self.health.restore(&uid, true),
            conditions::Status::False => self.health.restore(&uid, false),
            conditions::Status::Unknown => {}
        }
        match self.health.health(&uid) {
            Health::Unknown => {}
            Health::Healthy => {
                pool.set_true(types::NODE_REGISTRATION_HEALTHY, now);
            }
            Health::Unhealthy(failure) if !pool.is_false(types::NODE_REGISTRATION_HEALTHY) => {
                let (reason, message) = failure.unwrap_or_else(|| {
                    (
                        reasons::REGISTRATION_FAILED.to_owned(),
                        "Failed to register node".to_owned(),
                    )
                });
                pool.set_false(types::NODE_REGISTRATION_HEALTHY, &reason, &message, now);
            }
            Health::Unhealthy(_) => {}
        }
    }
}

/// Validates the NodePool; returns warnings that do not make the NodePool unusable.
fn validate(
    pool: &mut NodePool,
    well_known: &validation::WellKnown,
    now: Timestamp,
) -> Vec<String> {
    let findings = validation::node_pool(pool, well_known);
    // DIFFERS: upstream calls requirements valid that no node can meet.
    let contradictory = if findings.is_ok() {
        contradictory_keys(pool)
    } else {
        Vec::new()
    };
    if !findings.is_ok() {
        pool.set_false(
            types::VALIDATION_SUCCEEDED,
            reasons::NODE_POOL_VALIDATION_FAILED,
            &findings.message(),
            now,
        );
    } else if !contradictory.is_empty() {
        let message = format!(
            "requirements contradict each other, no value of {} meets all of them",
            contradictory.join(", ")
        );
        pool.set_false(
            types::VALIDATION_SUCCEEDED,
            reasons::NODE_POOL_VALIDATION_FAILED,
            &message,
            now,
        );
    } else {
        pool.set_true(types::VALIDATION_SUCCEEDED, now);
    }
    findings.warnings.iter().map(ToString::to_string).collect()
}

/// Returns the keys of which no value, nor the absence of the label, meets all requirements of the NodePool.
fn contradictory_keys(pool: &NodePool) -> Vec<String> {
    let requirements = &pool.spec.template.spec.requirements;
    let Ok(requirements) = Requirements::from_api(requirements, &Unaliased) else {
        return Vec::new();
    };
    let never = requirements
        .iter()
        .filter(|requirement| requirement.is_never());
    never
        .map(|requirement| format!("`{}`", requirement.key()))
        .collect()
}

fn readiness(pool: &mut NodePool, class: Option<&NodeClass>, now: Timestamp) {
    let outcome = match class {
        None => Err((
            reasons::NODE_CLASS_NOT_FOUND,
            "NodeClass not found on cluster".to_owned(),
        )),
        Some(class) if class.deleted_at.is_some() => Err((
            reasons::NODE_CLASS_TERMINATING,
            "NodeClass is Terminating".to_owned(),
        )),
        Some(class) => match class
            .ready
            .as_ref()
            .map(|(status, reason, message)| (status.as_str(), reason.as_str(), message))
        {
            Some(("True", _, _)) => Ok(()),
            Some(("False", reason, message)) => Err((reason, message.clone())),
            _ => Err((
                reasons::NODE_CLASS_READINESS_UNKNOWN,
                "Node Class Readiness Unknown".to_owned(),
            )),
        },
    };
    match outcome {
        Ok(()) => pool.set_true(types::NODE_CLASS_READY, now),
        Err((reason, message)) => pool.set_false(types::NODE_CLASS_READY, reason, &message, now),
    };
}

/// Reports that pods are not nominated to nodes, because the permission is missing.
fn pod_nomination(pool: &mut NodePool, cx: &Context, now: Timestamp) {
    if cx.pod_nomination_forbidden.load(Ordering::Relaxed) {
        let message = "the ServiceAccount has no permission to patch pods/status, which the feature gate PodNomination needs: kube-scheduler may bind pods to other nodes than planned";
        pool.set_false(types::POD_NOMINATION, reasons::FORBIDDEN, message, now);
    } else {
        let conditions = &mut pool.status.conditions;
        conditions.retain(|condition| condition.type_ != types::POD_NOMINATION);
    }
}

/// Counts the nodes and resources of the NodePool. Nodes that are being deleted do not count.
fn count(pool: &mut NodePool, view: &View) {
    let mut total = Resources::new();
    let mut nodes = 0_i64;
    let mine = view.snapshot.nodes().filter(|node_state| {
        node_state.claim.is_some() && node_state.node_pool() == Some(pool.name())
    });
    for node_state in mine.filter(|node_state| !node_state.is_deleting()) {
        total.add_assign(&node_state.capacity());
        nodes += 1;
    }
    total.set("nodes", nodes);
    let mut resources: BTreeMap<String, Quantity> = ALWAYS_REPORTED
        .map(|name| (name.to_owned(), Quantity("0".into())))
        .into();
    resources.extend(total.to_quantities());
    pool.status.resources = resources;
    pool.status.nodes = nodes;
}

impl Controller for Status {
    type Key = ObjectKey;
    const NAME: &'static str = "nodepool.status";
    const KIND: &'static str = NodePool::KIND;

    fn triggered_by(&self, change: &Change, view: &View, queue: &Queue<ObjectKey>) {
        let soon = || self.cx.clock.instant_after(BATCH_WINDOW);
        match change {
            Change::NodePool { name, .. } => queue.add(ObjectKey::cluster(name)),
            Change::NodeClass { reference, .. } => {
                for pool in view
                    .snapshot
                    .node_pools()
                    .filter(|p| p.spec.template.spec.node_class_ref == *reference)
                {
                    queue.add(ObjectKey::cluster(pool.name()));
                }
            }
            Change::NodeClaim { before, after, .. } => {
                for pool in [before, after]
                    .into_iter()
                    .flatten()
                    .filter_map(|c| c.node_pool())
                {
                    queue.add_later(ObjectKey::cluster(pool), soon());
                }
            }
            Change::Node { before, after, .. } => {
                let pool = |node: &Option<Arc<k8s_openapi::api::core::v1::Node>>| {
                    node.as_ref().and_then(|n| {
                        n.metadata
                            .labels
                            .as_ref()?
                            .get(karpenter_api::labels::NODE_POOL)
                            .cloned()
                    })
                };
                for pool in [pool(before), pool(after)].into_iter().flatten() {
                    queue.add_later(ObjectKey::cluster(&pool), soon());
                }
            }
            Change::Synced => {
                for pool in view.snapshot.node_pools() {
                    queue.add(ObjectKey::cluster(pool.name()));
                }
            }
            _ => {}
        }
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let view = self.cx.view();
        let Some(before) = view.node_pool(&key.name) else {
            return Ok(Next::Wait);
        };
        let before = &self.cx.pool_writes.latest(before);
        let reference = &before.spec.template.spec.node_class_ref;
        // The sums over a partly listed cluster would be too small; the model is in sync within moments.
        if !self.cx.is_managed(reference) || !view.is_synced() {
            return Ok(Next::Wait);
        }
        let now = self.cx.clock.now();
        let class = view.node_class(reference);
        let mut after = NodePool::clone(before);
        after.initialize_conditions(now);
        let mut warnings = validate(&mut after, &self.cx.provider.profile().well_known, now);
        if before.is_static() && !self.cx.static_capacity.is_enabled() {
            warnings.push(GATE_CLOSED.to_owned());
        }
        for warning in warnings {
            let event = Event::warning(
                crate::events::reference(&**before),
                events::INVALID_NODE_POOL,
                warning,
            );
            self.cx
                .recorder
                .publish(event.dedupe_by_message().every(EVENT_INTERVAL));
        }
        readiness(&mut after, class.map(|c| &**c), now);
        if let Some(class) = class {
            self.registration_health(&mut after, class, now);
        }
        pod_nomination(&mut after, &self.cx, now);
        count(&mut after, &view);
        let api: Api<NodePool> = Api::all(self.cx.clients.api.clone());
        self.cx
            .pool_writes
            .patch_status(api.clone(), before, &after, Lock::Optimistic)
            .await
            .doing("updating nodepool status")?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use karpenter_api::v1::{NodeClaim, NodeClassReference};
    use karpenter_core::cluster::ClusterConfig;
    use karpenter_fixtures::{
        CAPACITY_TYPE, INITIALIZED, REGISTERED, bare_node, node_claim, node_pool,
    };
    use serde_json::json;

    use super::*;
    use crate::model::State;

    fn class(ready: Option<(&str, &str, &str)>) -> NodeClass {
        NodeClass {
            reference: NodeClassReference::default(),
            uid: String::new(),
            generation: 1,
            deleted_at: None,
            ready: ready.map(|(s, r, m)| (s.into(), r.into(), m.into())),
            found: 0,
        }
    }

    /// Conformance: API-059
    #[test]
    fn readiness_copies_the_condition_of_the_node_class() {
        let mut deleted = class(Some(("True", "", "")));
        deleted.deleted_at = Some(Timestamp::UNIX_EPOCH);
        for (class, expected) in [
            (
                None,
                "False NodeClassNotFound: NodeClass not found on cluster",
            ),
            (
                Some(class(None)),
                "False NodeClassReadinessUnknown: Node Class Readiness Unknown",
            ),
            (
                Some(class(Some(("False", "Why", "because")))),
                "False Why: because",
            ),
            (Some(class(Some(("True", "", "")))), "True NodeClassReady: "),
            (
                Some(deleted),
                "False NodeClassTerminating: NodeClass is Terminating",
            ),
        ] {
            let mut pool = NodePool::default();
            readiness(&mut pool, class.as_ref(), Timestamp::UNIX_EPOCH);
            let condition = pool.condition(types::NODE_CLASS_READY).unwrap();
            let (status, reason) = (&condition.status, &condition.reason);
            assert_eq!(
                format!("{status} {reason}: {}", condition.message),
                expected
            );
        }
    }

    fn claim(name: &str, pool: &str) -> NodeClaim {
        node_claim(name)
            .pool(pool)
            .set("/status/providerID", format!("x://{name}"))
            .set("/status/capacity", json!({"cpu": "4", "memory": "8Gi"}))
            .build()
    }

    fn node(name: &str, provider_id: &str, pool: &str) -> Node {
        bare_node(name)
            .pool(pool)
            .label(REGISTERED, "true")
            .label(INITIALIZED, "true")
            .set("/spec/providerID", provider_id)
            .set("/status/capacity", json!({"cpu": "4", "memory": "8Gi"}))
            .build()
    }

    /// Returns number of nodes and cores of a NodePool.
    fn totals(state: &State, name: &str) -> (i64, String) {
        let mut pool = NodePool::default();
        pool.metadata.name = Some(name.to_owned());
        count(&mut pool, &state.view());
        (pool.status.nodes, pool.status.resources["cpu"].0.clone())
    }

    fn sum(nodes: i64, cpu: &str) -> (i64, String) {
        (nodes, cpu.to_owned())
    }

    /// Conformance: DIS-015
    #[test]
    fn totals_follow_changes_of_either_node_or_node_claim() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        state.apply_node_claim(claim("a", "x"));
        state.apply_node(node("n", "x://a", "x"));
        state.apply_node_claim(claim("b", "x"));
        assert_eq!(totals(&state, "x"), sum(2, "8"));
        // The pool's label changes on Node and NodeClaim.
        state.apply_node_claim(claim("a", "y"));
        state.apply_node(node("n", "x://a", "y"));
        assert_eq!(
            (totals(&state, "x"), totals(&state, "y")),
            (sum(1, "4"), sum(1, "4"))
        );
        // Another instance behind the same NodeClaim.
        let mut moved = claim("a", "y");
        moved.status.provider_id = Some("x://other".into());
        state.apply_node_claim(moved);
        state.apply_node(node("n", "x://other", "y"));
        assert_eq!(totals(&state, "y"), sum(1, "4"));
        state.remove_node("n");
        assert_eq!(
            totals(&state, "y"),
            sum(1, "4"),
            "the NodeClaim still counts"
        );
        state.apply_node(node("n", "x://other", "y"));
        state.remove_node_claim("a");
        assert_eq!(
            totals(&state, "y"),
            sum(0, "0"),
            "a Node without a NodeClaim is not counted"
        );
        state.remove_node("n");
        state.remove_node_claim("b");
        assert_eq!(totals(&state, "x"), sum(0, "0"));
    }

    /// Conformance: DIS-016
    #[test]
    fn nodes_that_a_command_disrupts_do_not_count_and_are_subtracted_once() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        for name in ["a", "b"] {
            state.apply_node_claim(claim(name, "x"));
        }
        assert_eq!(totals(&state, "x"), sum(2, "8"));
        state.cluster.mark_for_deletion(&["x://a"]);
        state.cluster.mark_for_deletion(&["x://a"]);
        assert_eq!(totals(&state, "x"), sum(1, "4"));
        state.cluster.unmark_for_deletion(&["x://a"]);
        assert_eq!(totals(&state, "x"), sum(2, "8"));
        state.cluster.mark_for_deletion(&["x://a"]);
        state.remove_node_claim("a");
        assert_eq!(totals(&state, "x"), sum(1, "4"));
    }

    /// Conformance: API-061
    #[test]
    fn five_resources_are_always_reported_and_deleting_nodes_do_not_count() {
        let mut state = State::new(ClusterConfig::default(), &[]);
        let reported = |state: &State| {
            let mut pool = NodePool::default();
            pool.metadata.name = Some("x".into());
            count(&mut pool, &state.view());
            let amounts = pool.status.resources.into_iter();
            amounts
                .map(|(name, amount)| format!("{name}={}", amount.0))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            reported(&state),
            "cpu=0 ephemeral-storage=0 memory=0 nodes=0 pods=0"
        );
        state.apply_node_claim(claim("a", "x"));
        let mut deleting = claim("b", "x");
        deleting.metadata.deletion_timestamp = Some(
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH),
        );
        state.apply_node_claim(deleting);
        assert_eq!(
            reported(&state),
            "cpu=4 ephemeral-storage=0 memory=8Gi nodes=1 pods=0"
        );
    }

    /// Conformance: API-057
    #[test]
    fn the_validation_condition_reports_errors_and_their_absence() {
        let mut pool = node_pool("x")
            .without_requirements()
            .requires(CAPACITY_TYPE, "In", &["cheap"])
            .build();
        let names = validation::WellKnown::default();
        validate(&mut pool, &names, Timestamp::UNIX_EPOCH);
        let condition = pool.condition(types::VALIDATION_SUCCEEDED).unwrap();
        assert_eq!(
            (&*condition.status, &*condition.reason),
            ("False", "NodePoolValidationFailed")
        );
        assert!(condition.message.contains("cheap"), "{}", condition.message);
        pool.spec.template.spec.requirements[0]
            .values
            .push("spot".into());
        validate(&mut pool, &names, Timestamp::UNIX_EPOCH);
        assert!(pool.is_true(types::VALIDATION_SUCCEEDED));
    }
}
