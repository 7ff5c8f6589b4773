//! Passes after one change, each compared with the pass from nothing by the number of evaluations that it carries over.

use karpenter_bench::{Run, cpu_time};
use karpenter_core::cluster::Cluster;
use karpenter_core::disruption::Planner;

use crate::fleet::{Fleet, bind, name};
use crate::{once, request};

/// A change, and its name.
type Change = (&'static str, fn(&mut Cluster, &Fleet));

/// The changes, of the node in the middle of the order in which nodes are tried.
const CHANGES: [Change; 5] = [
    ("nothing", |_, _| ()),
    ("a pod without constraints removed", |cluster, fleet| {
        remove(cluster, fleet, |workload| workload % 20 == 1);
    }),
    ("a pod spread by zone removed", |cluster, fleet| {
        remove(cluster, fleet, |workload| workload % 20 == 0);
    }),
    ("a pod added", |cluster, fleet| {
        let template = &fleet.templates()[1];
        let node = name(fleet.nodes / 2);
        bind(cluster, template, fleet.pods() + 1, &node);
    }),
    ("a node added", |cluster, fleet| {
        fleet.add_node(cluster, fleet.nodes);
    }),
];

/// Removes the first pod of such a workload at or after the middle of the nodes.
fn remove(cluster: &mut Cluster, fleet: &Fleet, of: fn(usize) -> bool) {
    let snapshot = cluster.snapshot();
    let small = |app: &str| {
        let workload: usize = app.trim_start_matches("app-").parse().unwrap_or(0);
        workload < fleet.workloads && of(workload)
    };
    let mut pods = (fleet.nodes / 2..fleet.nodes).flat_map(|node| snapshot.pods_on(&name(node)));
    let found = pods.find(|pod| pod.shape.labels.get("app").is_some_and(|app| small(app)));
    if let Some(pod) = found.cloned() {
        cluster.remove_pod(&pod.key.namespace, &pod.key.name);
    }
}

pub fn measure(run: &mut Run, fleet: &Fleet) {
    let mut cluster = fleet.build();
    let mut planner = Planner::default();
    let first = once(run, fleet.nodes, || {
        planner.plan(&cluster.snapshot(), &request())
    });
    run.record("evaluated", first.evaluated);
    let mut passes = serde_json::Map::new();
    for (change, apply) in CHANGES {
        apply(&mut cluster, fleet);
        let snapshot = cluster.snapshot();
        let before = cpu_time().unwrap_or_default();
        let next = planner.plan(&snapshot, &request());
        let seconds = (cpu_time().unwrap_or_default() - before).as_secs_f64();
        passes.insert(
            change.to_owned(),
            serde_json::json!({
                "cpu_seconds": seconds, "carried_over": next.carried_over, "evaluated": next.evaluated,
            }),
        );
    }
    run.record("passes", passes);
}
