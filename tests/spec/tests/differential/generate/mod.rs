//! Generator of small clusters to compare solvers on, in which most pods nearly fit.
//!
//! A cluster is drawn as small numbers first (a sketch), of which zero is the plain case, so that failing clusters shrink to
//! their relevant parts.

mod devices;
mod nodes;
mod objects;
mod sketch;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::DEFAULT_RESERVATION_ID;
use karpenter_spec::World;
use proptest::prelude::*;
use serde_json::json;

use nodes::{add_node, add_storage, build_daemon};
use objects::{build_pod, build_pool, build_type, object, topology_key};
use sketch::{DaemonSketch, NodeSketch, PoolSketch, Tie, TypeSketch, WorkloadSketch};

pub const SIZE: &str = "example.com/size";
const TEAM: &str = "example.com/team";

/// The features that may occur in a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    pub limits: bool,
    pub reserved: bool,
    pub min_values: bool,
    /// Pod affinity and anti-affinity.
    pub affinity: bool,
    pub spread: bool,
    /// Preferences of any kind.
    pub preferences: bool,
    /// Existing and starting nodes.
    pub nodes: bool,
    /// Host ports, volumes, daemon sets, taints.
    pub extras: bool,
    /// Devices and resource claims, which the naive solver ignores.
    pub devices: bool,
}

impl Features {
    pub const ALL: Features = Features {
        limits: true,
        reserved: true,
        min_values: true,
        affinity: true,
        spread: true,
        preferences: true,
        nodes: true,
        extras: true,
        devices: true,
    };
    /// All features that the naive solver supports.
    pub const COMMON: Features = Features {
        devices: false,
        ..Features::ALL
    };
    pub const PLAIN: Features = Features {
        limits: false,
        reserved: false,
        min_values: false,
        affinity: false,
        spread: false,
        preferences: false,
        nodes: true,
        extras: true,
        devices: false,
    };
}
/// Returns clusters of at most a dozen nodes and two dozen pods.
pub fn world(features: Features) -> impl Strategy<Value = World> {
    let nodes = if features.nodes {
        prop::collection::vec(sketch::node(features), 0..4).boxed()
    } else {
        Just(vec![]).boxed()
    };
    let daemons = if features.extras {
        prop::collection::vec(sketch::daemon(), 0..3).boxed()
    } else {
        Just(vec![]).boxed()
    };
    let wide = if features.devices { 0usize..4 } else { 0..1 };
    (
        prop::collection::vec(sketch::instance_type(features), 1..6),
        prop::collection::vec(sketch::pool(features), 1..4),
        nodes,
        daemons,
        prop::collection::vec(sketch::workload(features), 1..5),
        wide,
    )
        .prop_map(|(types, pools, nodes, daemons, workloads, wide)| {
            build(&types, &pools, &nodes, &daemons, &workloads, wide)
        })
}

fn well_known() -> karpenter_api::validation::WellKnown {
    karpenter_api::validation::WellKnown::default()
        .with_label(SIZE)
        .with_label(DEFAULT_RESERVATION_ID)
}
fn build(
    types: &[TypeSketch],
    pools: &[PoolSketch],
    nodes: &[NodeSketch],
    daemons: &[DaemonSketch],
    workloads: &[WorkloadSketch],
    wide: usize,
) -> World {
    let all_types: Vec<InstanceType> = types
        .iter()
        .enumerate()
        .map(|(index, sketch)| build_type(index, sketch))
        .collect();
    let mut world = World {
        well_known: well_known().labels().map(str::to_owned).collect(),
        ..World::default()
    };
    for (index, sketch) in pools.iter().enumerate() {
        let own = all_types
            .iter()
            .enumerate()
            .filter(|(bit, _)| sketch.types >> bit & 1 == 1)
            .map(|(_, t)| t.clone())
            .collect();
        world.instance_types.insert(format!("pool-{index}"), own);
        // A claim that holds a reservation is bound to its few instance types: minValues is not specified for it.
        let reserved = types.iter().any(|sketch| sketch.reserved > 0);
        let min_values = if reserved { 0 } else { sketch.min_values };
        world.node_pools.push(object(build_pool(
            index,
            &PoolSketch {
                min_values,
                ..sketch.clone()
            },
        )));
    }
    world.namespaces.push(object(
        json!({ "metadata": { "name": "default", "labels": { "kind": "plain" } } }),
    ));
    for (index, sketch) in nodes.iter().enumerate() {
        add_node(&mut world, index, sketch, &all_types, pools);
        let instance_type = &types[sketch.instance_type % types.len()];
        // In state 2 there is no Node yet.
        if sketch.state != 2 && !sketch.unpublished && instance_type.devices > 0 {
            devices::publish(&mut world, &format!("node-{index}"), instance_type);
        }
    }
    if workloads.iter().any(|sketch| sketch.claim > 0) {
        devices::add_class(&mut world, wide);
    }
    if workloads.iter().any(|sketch| sketch.volume > 0) {
        add_storage(&mut world);
    }
    for (index, sketch) in daemons.iter().enumerate() {
        world.daemon_sets.push(object(build_daemon(index, sketch)));
    }
    let mut workloads = workloads.to_vec();
    // A spread over capacity types is not specified while claims become reserved only at the end.
    let reserved = types.iter().any(|sketch| sketch.reserved > 0);
    for tie in workloads.iter_mut().flat_map(|sketch| &mut sketch.ties) {
        let (Tie::Spread { key, .. } | Tie::Near { key, .. } | Tie::Apart { key, .. }) = tie;
        if reserved && topology_key(*key) == labels::CAPACITY_TYPE {
            *key = 0;
        }
    }
    let mut order = 0;
    for (index, sketch) in workloads.iter().enumerate() {
        for (replica, &node) in sketch.bound.iter().enumerate() {
            let Some(node) = world
                .nodes
                .get(node % world.nodes.len().max(1))
                .and_then(|node| node.metadata.name.clone())
            else {
                continue;
            };
            let mut pod = build_pod(&format!("b{index}-{replica}"), sketch, order);
            order += 1;
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({ "phase": "Running" });
            devices::claim(&mut world, &mut pod, index, sketch);
            let pod: Pod = object(pod);
            world.pods.push(pod);
        }
        for replica in 0..sketch.replicas {
            let mut pod = build_pod(&format!("w{index}-{replica}"), sketch, order);
            order += 1;
            pod["status"] = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] });
            devices::claim(&mut world, &mut pod, index, sketch);
            world.pods.push(object(pod));
        }
    }
    world
}
