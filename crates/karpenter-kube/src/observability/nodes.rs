//! Metrics about nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::validation::WellKnown;
use karpenter_core::cluster::NodeState;
use karpenter_core::resources::Resources;

use super::series::{amount, resource_type, with};
use crate::context::Context;
use crate::metrics::Emit;
use crate::model::View;

/// Returns the reported amounts of a node, by resource.
type Of = fn(&View, &NodeState) -> Resources;

pub(super) fn register(cx: &Arc<Context>) {
    let registry = &cx.metrics.registry;
    let known: Arc<BTreeMap<String, String>> =
        Arc::new(label_names(&cx.provider.profile().well_known));
    let own = ["node_name", "phase", "managed"];
    let mut names: Vec<&str> = known.keys().map(String::as_str).chain(own).collect();
    let keys = Arc::clone(&known);
    let lifetime = move |cx: &Context, emit: &mut Emit<'_>| {
        let (view, now) = (cx.view(), cx.clock.now());
        for node_state in view.snapshot.nodes() {
            let Some(node) = &node_state.node else {
                continue;
            };
            let age = node
                .created_at
                .map_or(0.0, |at| now.duration_since(at).as_secs_f64());
            emit.set(&values(&keys, &view, node_state), age);
        }
    };
    registry.live(
        "karpenter_nodes_current_lifetime_seconds",
        "Node age in seconds.",
        &names,
        with(cx, lifetime),
    );
    names.push("resource_type");
    let gauges: [(&str, &str, Of); 6] = [
        (
            "allocatable",
            "Resources of a node that pods can use.",
            allocatable,
        ),
        (
            "total_pod_requests",
            "Requests of the pods of a node, including those of DaemonSets.",
            requests,
        ),
        (
            "total_pod_limits",
            "Limits of the pods of a node, including those of DaemonSets.",
            limits,
        ),
        (
            "total_daemon_requests",
            "Requests of the DaemonSet pods of a node.",
            daemon_requests,
        ),
        (
            "total_daemon_limits",
            "Limits of the DaemonSet pods of a node.",
            daemon_limits,
        ),
        (
            "system_overhead",
            "Resources of a node that pods cannot use: its capacity less its allocatable resources.",
            overhead,
        ),
    ];
    for (name, help, of) in gauges {
        let keys = Arc::clone(&known);
        let collect = move |cx: &Context, emit: &mut Emit<'_>| {
            let view = cx.view();
            for node_state in view
                .snapshot
                .nodes()
                .filter(|node_state| node_state.node.is_some())
            {
                let own = values(&keys, &view, node_state);
                for (resource, value) in of(&view, node_state).iter() {
                    let resource_type = resource_type(resource);
                    let last = std::iter::once(resource_type.as_str());
                    let values: Vec<&str> = own.iter().copied().chain(last).collect();
                    emit.set(&values, amount(resource, value));
                }
            }
        };
        registry.live(
            &format!("karpenter_nodes_{name}"),
            help,
            &names,
            with(cx, collect),
        );
    }
    registry.live(
        "karpenter_cluster_utilization_percent",
        "Requests of pods as a percentage of the allocatable resources.",
        &["resource_type"],
        with(cx, utilization),
    );
}

/// Returns metric label and node label of every well-known label: the part after the slash, in snake case.
fn label_names(known: &WellKnown) -> BTreeMap<String, String> {
    let name = |key: &str| {
        let (_, name) = key.split_once('/')?;
        Some((name.to_lowercase().replace('-', "_"), key.to_owned()))
    };
    known.labels().filter_map(name).collect()
}

fn values<'a>(
    keys: &BTreeMap<String, String>,
    view: &'a View,
    node_state: &'a NodeState,
) -> Vec<&'a str> {
    let Some(node) = &node_state.node else {
        return Vec::new();
    };
    let mut values: Vec<&str> = keys
        .values()
        .map(|key| node.labels.get(key).unwrap_or_default())
        .collect();
    let status = view.node(&node.name).and_then(|node| node.status.as_ref());
    values.push(&node.name);
    values.push(
        status
            .and_then(|status| status.phase.as_deref())
            .unwrap_or_default(),
    );
    values.push(if node_state.managed { "true" } else { "false" });
    values
}

fn allocatable(_: &View, node_state: &NodeState) -> Resources {
    node_state
        .node
        .as_ref()
        .map(|node| node.allocatable.clone())
        .unwrap_or_default()
}

fn overhead(_: &View, node_state: &NodeState) -> Resources {
    let node = node_state.node.as_ref();
    node.map(|node| node.capacity.saturating_sub(&node.allocatable))
        .unwrap_or_default()
}

fn requests(view: &View, node_state: &NodeState) -> Resources {
    let pods = view.snapshot.node_pods(node_state.name());
    pods.map(|pods| pods.requests().clone()).unwrap_or_default()
}

fn daemon_requests(view: &View, node_state: &NodeState) -> Resources {
    let pods = view.snapshot.node_pods(node_state.name());
    pods.map(|pods| pods.daemon_requests().clone())
        .unwrap_or_default()
}

fn limits(view: &View, node_state: &NodeState) -> Resources {
    sum_of_limits(view, node_state, |_| true)
}

fn daemon_limits(view: &View, node_state: &NodeState) -> Resources {
    sum_of_limits(
        view,
        node_state,
        karpenter_core::pod::Pod::is_owned_by_daemon_set,
    )
}

fn sum_of_limits(
    view: &View,
    node_state: &NodeState,
    which: impl Fn(&karpenter_core::pod::Pod) -> bool,
) -> Resources {
    let mut sum = Resources::new();
    let pods = view.pods_on(node_state.name()).iter();
    pods.filter(|pod| !pod.is_terminal() && which(pod))
        .for_each(|pod| sum.add_assign(&pod.limits));
    sum
}

fn utilization(cx: &Context, emit: &mut Emit<'_>) {
    let view = cx.view();
    let (mut there, mut used) = (Resources::new(), Resources::new());
    for node_state in view
        .snapshot
        .nodes()
        .filter(|node_state| node_state.node.is_some())
    {
        there.add_assign(&node_state.allocatable());
        used.add_assign(&requests(&view, node_state));
    }
    for (resource, value) in there.iter().filter(|(_, value)| *value != 0) {
        let percent = 100.0 * used.get(resource) as f64 / value as f64;
        emit.set(&[&resource_type(resource)], percent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-170
    #[test]
    fn well_known_labels_become_metric_labels_by_the_part_after_the_slash() {
        let names = label_names(&WellKnown::default().with_label("integer"));
        assert_eq!(names["capacity_type"], "karpenter.sh/capacity-type");
        assert_eq!(names["instance_type"], "node.kubernetes.io/instance-type");
        assert!(
            !names.contains_key("integer"),
            "a label without a slash has no metric label"
        );
    }
}
