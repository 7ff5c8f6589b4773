//! Metrics about nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_api::validation::WellKnown;
use karpenter_core::cluster::NodeState;
use karpenter_core::resources::Resources;

use super::{amount, resource_type, with};
use crate::context::Context;
use crate::metrics::Emit;
use crate::model::View;

/// What of a machine is shown, by resource.
type Of = fn(&View, &NodeState) -> Resources;

pub(super) fn register(cx: &Arc<Context>) {
    let registry = &cx.metrics.registry;
    let known: Arc<BTreeMap<String, String>> = Arc::new(label_names(cx.provider.well_known()));
    let own = ["node_name", "phase", "managed"];
    let mut names: Vec<&str> = known.keys().map(String::as_str).chain(own).collect();
    let keys = Arc::clone(&known);
    let lifetime = move |cx: &Context, emit: &mut Emit<'_>| {
        let (view, now) = (cx.view(), cx.clock.now());
        for machine in view.snapshot.nodes() {
            let Some(node) = &machine.node else { continue };
            let age = node
                .created_at
                .map_or(0.0, |at| now.duration_since(at).as_secs_f64());
            emit.set(&values(&keys, &view, machine), age);
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
        ("allocatable", "What pods can use of a node.", allocatable),
        (
            "total_pod_requests",
            "What the pods of a node ask for, those of DaemonSets included.",
            requests,
        ),
        (
            "total_pod_limits",
            "What the pods of a node are limited to, those of DaemonSets included.",
            limits,
        ),
        (
            "total_daemon_requests",
            "What the DaemonSet pods of a node ask for.",
            daemon_requests,
        ),
        (
            "total_daemon_limits",
            "What the DaemonSet pods of a node are limited to.",
            daemon_limits,
        ),
        (
            "system_overhead",
            "What pods cannot use of a node: its capacity less what is allocatable.",
            overhead,
        ),
    ];
    for (name, help, of) in gauges {
        let keys = Arc::clone(&known);
        let collect = move |cx: &Context, emit: &mut Emit<'_>| {
            let view = cx.view();
            for machine in view
                .snapshot
                .nodes()
                .filter(|machine| machine.node.is_some())
            {
                let own = values(&keys, &view, machine);
                for (resource, value) in of(&view, machine).iter() {
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
        "Requests of pods as a percentage of what is allocatable.",
        &["resource_type"],
        with(cx, utilization),
    );
}

/// Metric label to node label, for every well-known label: what follows the slash, in snake case.
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
    machine: &'a NodeState,
) -> Vec<&'a str> {
    let Some(node) = &machine.node else {
        return Vec::new();
    };
    let mut values: Vec<&str> = keys
        .values()
        .map(|key| node.labels.get(key).map_or("", String::as_str))
        .collect();
    let status = view.node(&node.name).and_then(|node| node.status.as_ref());
    values.push(&node.name);
    values.push(
        status
            .and_then(|status| status.phase.as_deref())
            .unwrap_or_default(),
    );
    values.push(if machine.managed { "true" } else { "false" });
    values
}

fn allocatable(_: &View, machine: &NodeState) -> Resources {
    machine
        .node
        .as_ref()
        .map(|node| node.allocatable.clone())
        .unwrap_or_default()
}

fn overhead(_: &View, machine: &NodeState) -> Resources {
    let node = machine.node.as_ref();
    node.map(|node| node.capacity.saturating_sub(&node.allocatable))
        .unwrap_or_default()
}

fn requests(view: &View, machine: &NodeState) -> Resources {
    let pods = view.snapshot.node_pods(machine.name());
    pods.map(|pods| pods.requests().clone()).unwrap_or_default()
}

fn daemon_requests(view: &View, machine: &NodeState) -> Resources {
    let pods = view.snapshot.node_pods(machine.name());
    pods.map(|pods| pods.daemon_requests().clone())
        .unwrap_or_default()
}

fn limits(view: &View, machine: &NodeState) -> Resources {
    sum_of_limits(view, machine, |_| true)
}

fn daemon_limits(view: &View, machine: &NodeState) -> Resources {
    sum_of_limits(
        view,
        machine,
        karpenter_core::pod::Pod::is_owned_by_daemon_set,
    )
}

fn sum_of_limits(
    view: &View,
    machine: &NodeState,
    which: impl Fn(&karpenter_core::pod::Pod) -> bool,
) -> Resources {
    let mut sum = Resources::new();
    let pods = view.pods_on(machine.name()).iter();
    pods.filter(|pod| !pod.is_terminal() && which(pod))
        .for_each(|pod| sum.add_assign(&pod.limits));
    sum
}

fn utilization(cx: &Context, emit: &mut Emit<'_>) {
    let view = cx.view();
    let (mut there, mut used) = (Resources::new(), Resources::new());
    for machine in view
        .snapshot
        .nodes()
        .filter(|machine| machine.node.is_some())
    {
        there.add_assign(&machine.allocatable());
        used.add_assign(&requests(&view, machine));
    }
    for (resource, value) in there.iter().filter(|(_, value)| *value != 0) {
        let percent = 100.0 * used.get(resource) as f64 / value as f64;
        emit.set(&[&resource_type(resource)], percent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_known_labels_become_metric_labels_by_what_follows_the_slash() {
        let names = label_names(&WellKnown::default().with_label("integer"));
        assert_eq!(names["capacity_type"], "karpenter.sh/capacity-type");
        assert_eq!(names["instance_type"], "node.kubernetes.io/instance-type");
        assert!(
            !names.contains_key("integer"),
            "without a slash there is no name"
        );
    }
}
