//! Reports plans: events on pods and NodePools, metrics, log lines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::events;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::NodeState;
use karpenter_core::lifecycle::provisioning::nominations::{Overdue, Standing};
use karpenter_core::pod::PodKey;
use karpenter_core::schedule::{Plan, PoolOutcome, Unschedulable};

use super::PodLedger;
use super::ledger::Decided;
use crate::context::Context;
use crate::events::{Event, reference};
use crate::logging;
use crate::model::View;

/// How many pods a log line names.
const NAMED_PODS: usize = 5;

const CONTROLLER: &str = "provisioner";

/// Logs the pods of a plan before it is made.
pub(super) fn found(pods: usize, names: &[String], duration: Duration) {
    tracing::info!(
        Pods = logging::shortened(names, NAMED_PODS),
        pods,
        duration = ?duration,
        "found provisionable pod(s)"
    );
}

/// Reports the pods that are left to later plans, because there is no memory to plan all of them.
pub(super) fn deferred(cx: &Context, standing: &Standing) {
    let deferred = standing.deferred.len();
    let metric = &cx.metrics.scheduler_deferred_pods_count;
    metric.set(&[], deferred as f64);
    if deferred > 0 {
        tracing::info!(
            pods = standing.unplaced.len(),
            deferred,
            memory_limit = cx.options.memory_limit,
            "memory is near its limit, scheduling some of the pods at a time"
        );
    }
}

/// Clears the metrics of pending pods when there are none: the last of them may be deleted without another plan.
///
/// DIFFERS: upstream keeps the last plan's numbers until the next (kubernetes-sigs/karpenter#1993).
pub(super) fn nothing_waits(cx: &Context) {
    let metrics = &cx.metrics;
    metrics.scheduler_ignored_pods_count.set(&[], 0.0);
    metrics.scheduler_deferred_pods_count.set(&[], 0.0);
    metrics
        .scheduler_unschedulable_pods_count
        .set(&[CONTROLLER], 0.0);
    metrics
        .scheduler_pending_pods_by_effective_zone_count
        .replace_all([]);
}

/// Reports kube-scheduler's message for pods that it has not bound to their nominated node.
///
/// A node that becomes ready with hundreds of others may have to wait for kube-scheduler: a first delay is only reported if
/// a node is launched or no place is found because of it.
pub(super) fn overdue(cx: &Context, view: &View, plan: &Plan, overdue: &[Overdue]) {
    for late in overdue {
        let key = &late.pod.key;
        if late.attempts == 1 && plan.node_of(key).is_some() {
            continue;
        }
        let node = view.snapshot.node(&late.target);
        let target = node.map_or_else(|| late.target.clone(), |node| target_of(node));
        let text = view
            .scheduler_message(&key.uid)
            .unwrap_or("no reason reported");
        let event = Event::warning(
            pod_reference(key),
            events::FAILED_SCHEDULING,
            format!("Failed to schedule pod, kube-scheduler has not bound it to {target}: {text}"),
        );
        cx.recorder.publish(event.every(Duration::from_secs(300)));
        tracing::info!(
            Pod = logging::object(Some(&key.namespace), &key.name),
            target,
            attempts = late.attempts,
            reason = text,
            "kube-scheduler has not bound pod to the node it was nominated to"
        );
    }
}

/// Returns the name in events of a node that pods are nominated to.
fn target_of(node: &NodeState) -> String {
    let claim = node.claim_name().map(|name| format!("nodeclaim/{name}"));
    let name = node.node.as_ref().map(|node| format!("node/{}", node.name));
    let parts: Vec<String> = [claim, name].into_iter().flatten().collect();
    parts.join(", ")
}

/// How long the event about a pod that could not be scheduled is not repeated.
pub(super) const WINDOW: Duration = Duration::from_secs(300);

/// An event about a pod that could not be scheduled.
pub(super) struct Failed {
    #[cfg_attr(not(feature = "decisions"), allow(dead_code, reason = "for the hint"))]
    pub(super) pod: PodKey,
    pub(super) event: Event,
}

/// Records what became of pods; returns the events for those that were not placed.
pub(super) fn outcome(cx: &Context, view: &View, plan: &Plan, ledger: &PodLedger) -> Vec<Failed> {
    let now = cx.clock.now();
    let healthy = |pool: Option<&str>| {
        let pool = pool.and_then(|name| view.node_pool(name));
        pool.is_some_and(|pool| pool.is_true(types::NODE_REGISTRATION_HEALTHY))
    };
    let new = plan.new_node_claims.iter().flat_map(|claim| {
        let healthy = healthy(Some(&claim.node_pool));
        claim.pods.iter().map(move |pod| (pod, healthy))
    });
    let existing = plan.existing.iter().filter(|p| !p.buffer).map(|placement| {
        let node_state = view.snapshot.node(&placement.node);
        let pool = node_state.and_then(|node_state| node_state.node_pool());
        (&placement.pod, healthy(pool))
    });
    for (pod, healthy) in new.chain(existing) {
        ledger.decided(&pod.uid, Decided::Placed { healthy }, now, &cx.metrics);
    }
    let mut failed = Vec::new();
    for unplaced in plan.unplaced.iter().filter(|u| !u.buffer) {
        ledger.decided(&unplaced.pod.uid, Decided::Unplaced, now, &cx.metrics);
        if !unplaced.why.is_silent() {
            let mut message = format!("Failed to schedule pod, {}", unplaced.why);
            if unplaced.why == Unschedulable::NoNodePools {
                message.push_str(&not_ready(cx, view, plan));
            }
            let event = Event::warning(
                pod_reference(&unplaced.pod),
                events::FAILED_SCHEDULING,
                message,
            )
            .every(WINDOW);
            let pod = unplaced.pod.clone();
            failed.push(Failed { pod, event });
            tracing::debug!(Pod = logging::object(Some(&unplaced.pod.namespace), &unplaced.pod.name), error = %unplaced.why, "could not schedule pod");
        }
    }
    let (ignored, unschedulable) = counts(plan);
    cx.metrics
        .scheduler_ignored_pods_count
        .set(&[], f64::from(ignored));
    cx.metrics
        .scheduler_unschedulable_pods_count
        .set(&[CONTROLLER], f64::from(unschedulable));
    let by_zone = plan.pending_by_zone.iter().map(|(zone, pods)| {
        let labels = vec![CONTROLLER.to_owned(), zone.to_string()];
        (labels, *pods as f64)
    });
    cx.metrics
        .scheduler_pending_pods_by_effective_zone_count
        .replace_all(by_zone);
    pools(cx, view, plan);
    failed
}

/// Returns how many pods of the plan are invalid, and how many have no place; one that waits for a reservation is neither.
fn counts(plan: &Plan) -> (u32, u32) {
    let (mut ignored, mut unschedulable) = (0, 0);
    for unplaced in plan.unplaced.iter().filter(|u| !u.buffer) {
        match unplaced.why {
            Unschedulable::Invalid(_) => ignored += 1,
            ref why if why.is_deferred() => {}
            _ => unschedulable += 1,
        }
    }
    (ignored, unschedulable)
}

/// Returns the text about NodePools that exist and are not ready, which follows upstream's text that there is none.
fn not_ready(cx: &Context, view: &View, plan: &Plan) -> String {
    let pools = plan.pools.iter();
    let pools = pools.filter(|report| report.outcome == PoolOutcome::NotReady);
    let mut text = String::new();
    for pool in pools.filter_map(|report| view.node_pool(&report.node_pool)) {
        let class = &pool.spec.template.spec.node_class_ref;
        let ready = pool.condition(types::READY);
        let message = ready.map(|ready| ready.message.as_str());
        let because = match message.unwrap_or_default() {
            _ if !cx.is_managed(class) => {
                format!("its {} belongs to another provider", class.kind)
            }
            "" => "it has no condition Ready yet".to_owned(),
            message => message.to_owned(),
        };
        text.push_str(&format!(
            "; nodepool \"{}\" is not ready, {because}",
            pool.name()
        ));
    }
    text
}

/// Returns upstream's text about a NodePool without an instance type that meets its requirements, or its minValues.
fn filtered_out(min_values: bool) -> String {
    let suffix = if min_values {
        " due to minValues incompatibility"
    } else {
        ""
    };
    format!("NodePool requirements filtered out all compatible available instance types{suffix}")
}

fn pools(cx: &Context, view: &View, plan: &Plan) {
    for report in &plan.pools {
        let Some(pool) = view.node_pool(&report.node_pool) else {
            continue;
        };
        match &report.outcome {
            PoolOutcome::NoCompatibleInstanceTypes { min_values } => {
                let event = Event::warning(
                    reference(&**pool),
                    events::NO_COMPATIBLE_INSTANCE_TYPES,
                    filtered_out(*min_values),
                );
                cx.recorder.publish(event.every(Duration::from_secs(60)));
                tracing::info!(
                    NodePool = logging::object(None, pool.name()),
                    "skipping, nodepool requirements filtered out all instance types"
                );
            }
            PoolOutcome::Invalid(problem) => {
                tracing::error!(
                    NodePool = logging::object(None, pool.name()),
                    error = %problem,
                    "skipping nodepool"
                );
            }
            PoolOutcome::Unknown(problem) => {
                tracing::error!(
                    NodePool = logging::object(None, pool.name()),
                    error = problem,
                    "skipping nodepool"
                );
            }
            PoolOutcome::Used
            | PoolOutcome::Static
            | PoolOutcome::Deleting
            | PoolOutcome::NotReady
            | _ => {}
        }
    }
}

/// Logs the number of new NodeClaims, and of pods on nodes that are launching.
pub(super) fn computed(plan: &Plan) {
    if !plan.new_node_claims.is_empty() {
        let pods: usize = plan.new_node_claims.iter().map(|c| c.pods.len()).sum();
        tracing::info!(
            nodeclaims = plan.new_node_claims.len(),
            pods,
            "computed new nodeclaim(s) to fit pod(s)"
        );
    }
}

/// Publishes the nominations of pods. `claims` are the NodeClaims of the planned nodes.
pub(super) fn nominations(
    cx: &Context,
    view: &View,
    plan: &Plan,
    claims: &[Option<Arc<NodeClaim>>],
) {
    let mut targets: BTreeMap<&PodKey, String> = BTreeMap::new();
    for (planned, claim) in plan.new_node_claims.iter().zip(claims) {
        if let Some(claim) = claim {
            targets.extend(
                planned
                    .pods
                    .iter()
                    .map(|pod| (pod, format!("nodeclaim/{}", claim.name()))),
            );
        }
    }
    for placement in plan.existing.iter().filter(|p| !p.buffer) {
        let Some(node_state) = view.snapshot.node(&placement.node) else {
            continue;
        };
        targets.insert(&placement.pod, target_of(node_state));
    }
    for (pod, target) in targets {
        let event = Event::normal(
            pod_reference(pod),
            events::NOMINATED,
            format!("Pod should schedule on: {target}"),
        );
        cx.recorder.publish(event.limited());
    }
}

fn pod_reference(pod: &PodKey) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use karpenter_core::cluster::Cluster;
    use karpenter_core::fake;
    use karpenter_core::instance_type::InstanceType;
    use karpenter_core::schedule::{Policy, Query, schedule};
    use karpenter_fixtures::{NodePool, Object, Pod, node_pool, pod};

    use super::*;

    const HOSTNAME: &str = "kubernetes.io/hostname";

    fn planned(pool: Object<NodePool>, types: Vec<InstanceType>, pods: Vec<Object<Pod>>) -> Plan {
        let mut cluster = Cluster::new(fake::cluster_config());
        let name = pool.name().to_owned();
        cluster.apply_node_pool(&pool.build());
        cluster.set_instance_types(&name, Ok(types.into()));
        for pod in pods {
            cluster.apply_pod(&pod.build());
        }
        let policy = Policy::at(Timestamp::UNIX_EPOCH);
        schedule(&cluster.snapshot(), &policy, &Query::default())
    }

    /// Conformance: SCH-281, SCH-282
    #[test]
    fn invalid_pods_and_those_that_await_a_reservation_are_not_unschedulable() {
        let reserved = fake::instance_type("t").offerings(vec![fake::reserved("r", 1, "z", 0.1)]);
        let capacity = "karpenter.sh/capacity-type";
        let pool = node_pool("p")
            .without_requirements()
            .requires(capacity, "In", &["reserved"]);
        let apart = |name: &str| {
            let app = ("app", "x");
            pod(name).label("app", "x").anti_affinity(HOSTNAME, app)
        };
        let pods = vec![
            apart("first"),
            apart("second"),
            pod("invalid-1").select(HOSTNAME, "n"),
            pod("invalid-2").select(HOSTNAME, "n"),
            pod("large").cpu("1000"),
        ];
        let plan = planned(pool, vec![reserved.build()], pods);
        let waiting = plan.unplaced.iter().filter(|u| u.why.is_deferred());
        assert!(waiting.clone().all(|u| u.why.is_silent()));
        assert_eq!((plan.unplaced.len(), waiting.count()), (4, 1));
        assert_eq!(counts(&plan), (2, 1));
    }

    /// Conformance: SCH-283
    #[test]
    fn a_nodepool_without_types_says_whether_min_values_are_the_reason() {
        let message = |pool: Object<NodePool>| {
            let plan = planned(pool, fake::instance_types(3).to_vec(), vec![pod("p")]);
            match &plan.pools[..] {
                [report] => match report.outcome {
                    PoolOutcome::NoCompatibleInstanceTypes { min_values } => {
                        filtered_out(min_values)
                    }
                    ref other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        };
        let key = "node.kubernetes.io/instance-type";
        let pool = || node_pool("p").without_requirements();
        let text = "NodePool requirements filtered out all compatible available instance types";
        assert_eq!(message(pool().requires(key, "In", &["nothing"])), text);
        assert_eq!(
            message(pool().requires_min(key, "Exists", &[], 4)),
            format!("{text} due to minValues incompatibility")
        );
    }

    #[test]
    fn events_refer_to_a_pod_by_all_that_identifies_it() {
        let key = PodKey {
            namespace: "default".into(),
            name: "a".into(),
            uid: "1".into(),
        };
        let reference = pod_reference(&key);
        let [api_version, kind] = [&reference.api_version, &reference.kind].map(Option::as_deref);
        assert_eq!((api_version, kind), (Some("v1"), Some("Pod")));
        let own = [&reference.namespace, &reference.name, &reference.uid].map(Option::as_deref);
        assert_eq!(own, [Some("default"), Some("a"), Some("1")]);
    }
}
