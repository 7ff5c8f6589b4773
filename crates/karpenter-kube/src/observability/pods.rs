//! Metrics about pods.

use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::labels;
use karpenter_core::pod::{Phase, Pod, UnixSecond};

use super::series::with;
use crate::context::Context;
use crate::metrics::Emit;
use crate::provisioning::PodLedger;

const STATE_LABELS: &[&str] = &[
    "name",
    "namespace",
    "owner",
    "node",
    "scheduled",
    "nodepool",
    "zone",
    "arch",
    "capacity_type",
    "instance_type",
    "phase",
    "ready",
    "managed",
];

pub(super) fn register(cx: &Arc<Context>, ledger: &Arc<PodLedger>) {
    let registry = &cx.metrics.registry;
    registry.live(
        "karpenter_pods_state",
        "The current state of pods.",
        STATE_LABELS,
        with(cx, state),
    );
    let created = |pod: &Pod, _: &PodLedger| pod.created_at.map(UnixSecond::time);
    let placed = |pod: &Pod, ledger: &PodLedger| ledger.schedulable_since(&pod.key.uid);
    let seen = |pod: &Pod, ledger: &PodLedger| ledger.undecided_since(&pod.key.uid);
    let waits: [(&str, &str, Which, Since); 5] = [
        (
            "unstarted",
            "Current wait of pods that are not ready.",
            is_unstarted,
            created,
        ),
        (
            "unbound",
            "Current wait of pods that are not bound.",
            is_unbound,
            created,
        ),
        (
            "provisioning_unstarted",
            "Current wait from the first successful simulation, pods not ready.",
            is_unstarted,
            placed,
        ),
        (
            "provisioning_unbound",
            "Current wait from the first successful simulation, pods not bound.",
            is_unbound,
            placed,
        ),
        (
            "provisioning_scheduling_undecided",
            "Current wait of pods without a decision.",
            is_unbound,
            seen,
        ),
    ];
    for (name, help, which, since) in waits {
        let ledger = Arc::clone(ledger);
        let collect = move |cx: &Context, emit: &mut Emit<'_>| {
            let (view, now) = (cx.view(), cx.clock.now());
            for pod in view.snapshot.pods().filter(|pod| which(pod, &ledger)) {
                if let Some(since) = since(pod, &ledger) {
                    let waited = now.duration_since(since).as_secs_f64().max(0.0);
                    emit.set(&[&pod.key.name, &pod.key.namespace], waited);
                }
            }
        };
        let name = format!("karpenter_pods_{name}_time_seconds");
        registry.live(&name, help, &["name", "namespace"], with(cx, collect));
    }
}

type Which = fn(&Pod, &PodLedger) -> bool;
type Since = fn(&Pod, &PodLedger) -> Option<Timestamp>;

/// Returns whether a pod that was seen pending is not ready yet.
fn is_unstarted(pod: &Pod, ledger: &PodLedger) -> bool {
    let starting = || pod.phase == Phase::Pending || ledger.is_starting(&pod.key.uid);
    !pod.ready && !pod.is_terminal() && starting()
}

fn is_unbound(pod: &Pod, _: &PodLedger) -> bool {
    pod.phase == Phase::Pending && pod.node_name.is_none()
}

fn state(cx: &Context, emit: &mut Emit<'_>) {
    let view = cx.view();
    for pod in view.snapshot.pods() {
        let node = pod.node_name.as_deref();
        let node_state = node.and_then(|name| view.snapshot.node(name));
        let of_node = node_state
            .and_then(|node_state| node_state.node.as_ref())
            .map(|node| &node.labels);
        let label = |key: &str| of_node.and_then(|l| l.get(key)).unwrap_or_default();
        let yes = |is: bool| if is { "true" } else { "false" };
        let phase = match pod.phase {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
            Phase::Unknown => "Unknown",
        };
        emit.set(
            &[
                &pod.key.name,
                &pod.key.namespace,
                &owner(pod),
                node.unwrap_or_default(),
                yes(node.is_some()),
                label(labels::NODE_POOL),
                label(labels::ZONE),
                label(labels::ARCH),
                label(labels::CAPACITY_TYPE),
                label(labels::INSTANCE_TYPE),
                phase,
                yes(pod.ready),
                yes(node_state.is_some_and(|node_state| node_state.managed)),
            ],
            1.0,
        );
    }
}

/// Returns the path of the first owner in upstream's format.
fn owner(pod: &Pod) -> String {
    pod.owners.first().map_or_else(String::new, |owner| {
        let (kind, namespace) = (owner.kind.to_lowercase(), &pod.key.namespace);
        format!(
            "/apis/{}/namespaces/{namespace}/{kind}s/{}",
            owner.api_version, owner.name
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_was_pending_has_not_started_before_it_is_ready() {
        let pod = |phase: &str, ready: &str| {
            let pod = json!({
                "metadata": {"name": "a", "namespace": "default", "uid": "a"},
                "spec": {"nodeName": "n", "containers": []},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            });
            Pod::parse(&serde_json::from_value(pod).unwrap())
        };
        let (ledger, now) = (PodLedger::default(), Timestamp::UNIX_EPOCH);
        let running = pod("Running", "False");
        assert!(!is_unstarted(&running, &ledger), "it was not seen pending");
        for step in [pod("Pending", "False"), running] {
            ledger.changed(&step, now, None);
            assert!(is_unstarted(&step, &ledger), "{:?}", step.phase);
        }
        for end in [pod("Running", "True"), pod("Failed", "False")] {
            assert!(!is_unstarted(&end, &ledger), "{:?}", end.phase);
        }
    }
}
