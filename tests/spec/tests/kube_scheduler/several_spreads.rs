//! Pods with several spread constraints, of which some nodes lack a label.

use karpenter_api::labels::ZONE;
use karpenter_spec::World;
use karpenter_spec::replay::{Launch, replay};
use serde_json::{Value, json};

const TEAM: &str = "example.com/team";

fn read<T: serde::de::DeserializeOwned>(objects: impl IntoIterator<Item = Value>) -> Vec<T> {
    let objects = objects.into_iter();
    objects
        .map(|object| serde_json::from_value(object).unwrap())
        .collect()
}

fn node(name: &str, zone: &str, team: Option<&str>, cpu: &str) -> Value {
    let amounts = json!({ "cpu": cpu, "memory": "4Gi", "pods": "10" });
    let mut node = json!({
        "metadata": { "name": name, "uid": name, "labels": { "kubernetes.io/hostname": name, ZONE: zone } },
        "status": { "capacity": amounts, "allocatable": amounts },
    });
    if let Some(team) = team {
        node["metadata"]["labels"][TEAM] = json!(team);
    }
    node
}

fn pod(name: &str, node: Option<&str>) -> Value {
    let spread = |key: &str, skew: i32| {
        json!({
            "topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": { "app": "web" } },
        })
    };
    json!({
        "metadata": { "namespace": "default", "name": name, "uid": name, "labels": { "app": "web" } },
        "spec": {
            "nodeName": node, "containers": [{ "name": "main", "resources": { "requests": { "cpu": "1" } } }],
            "topologySpreadConstraints": [spread(ZONE, 1), spread(TEAM, 5)],
        },
        "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
    })
}

/// Zone a has a pod on a node with a team; zone b has a pod on a node without, and a node with a team and these CPUs.
fn cluster(cpu_in_b: &str) -> World {
    World {
        nodes: read([
            node("a", "zone-a", Some("one"), "4"),
            node("b", "zone-b", None, "4"),
            node("b-team", "zone-b", Some("two"), cpu_in_b),
        ]),
        pods: read([
            pod("in-a", Some("a")),
            pod("in-b", Some("b")),
            pod("waits", None),
        ]),
        ..World::default()
    }
}

#[test]
fn a_spread_counts_no_pods_on_nodes_without_another_spread_s_label() {
    // The pod in zone b does not count, so zone a is one ahead.
    let full = cluster("500m");
    let solution = super::plan(&full);
    assert_eq!(solution.existing.len(), 0, "{solution:#?}");
    let free = cluster("4");
    let solution = super::plan(&free);
    let nodes: Vec<&String> = solution.existing.values().collect();
    assert_eq!(nodes, ["b-team"], "{solution:#?}");
    super::assert_binds("in zone b", &free, &solution);
    // kube-scheduler, too, refuses node a.
    let mut wrong = solution.clone();
    wrong
        .existing
        .values_mut()
        .for_each(|node| "a".clone_into(node));
    assert_eq!(replay(&free, &wrong, Launch::Cheapest).stuck.len(), 1);
}
