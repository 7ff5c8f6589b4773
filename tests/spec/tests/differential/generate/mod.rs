//! Generator of small clusters to compare solvers on, in which most pods nearly fit.
//!
//! A cluster is drawn as small numbers first, of which zero is the plain case, so that failing clusters shrink to their relevant parts.

mod devices;
mod nodes;
mod numbers;
mod objects;

use karpenter_api::labels;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::DEFAULT_RESERVATION_ID;
use karpenter_spec::World;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use devices::Devices;
use nodes::{add_node, add_storage, build_daemon};
use numbers::Numbers;
use objects::{Pool, Workload, build_pool, build_type, build_workload, object};

pub const SIZE: &str = "example.com/size";
const TEAM: &str = "example.com/team";

/// The features that may occur in a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    pub limits: bool,
    pub reserved: bool,
    pub min_values: bool,
    /// Pod affinity and anti-affinity; only with `spread`.
    pub affinity: bool,
    pub spread: bool,
    /// Preferences of any kind.
    pub preferences: bool,
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
        devices: false,
    };
}

/// The numbers of each object of a cluster.
#[derive(Debug)]
struct Sketch {
    types: Vec<Vec<u16>>,
    pools: Vec<Vec<u16>>,
    nodes: Vec<Vec<u16>>,
    daemons: Vec<Vec<u16>>,
    workloads: Vec<Vec<u16>>,
    /// Which devices are accessible from many nodes.
    wide: usize,
}

/// Returns clusters of at most a dozen nodes and two dozen pods.
pub fn world(features: Features) -> impl Strategy<Value = World> {
    let objects = |count: std::ops::Range<usize>| vec(vec(any::<u16>(), 48), count);
    (
        objects(1..6),
        objects(1..4),
        objects(0..4),
        objects(0..3),
        objects(1..5),
        0usize..4,
    )
        .prop_map(move |(types, pools, nodes, daemons, workloads, wide)| {
            let sketch = Sketch {
                types,
                pools,
                nodes,
                daemons,
                workloads,
                wide,
            };
            sketch.build(features)
        })
}

/// Numbers the objects of a kind.
fn numbered(all: &[Vec<u16>]) -> impl Iterator<Item = (usize, Numbers<'_>)> {
    let all = all.iter().enumerate();
    all.map(|(index, numbers)| (index, Numbers(numbers)))
}

impl Sketch {
    fn build(&self, features: Features) -> World {
        let well_known = karpenter_api::validation::WellKnown::default()
            .with_label(SIZE)
            .with_label(DEFAULT_RESERVATION_ID);
        let mut world = World {
            well_known: well_known.labels().map(str::to_owned).collect(),
            ..World::default()
        };
        world.namespaces.push(object(
            json!({ "metadata": { "name": "default", "labels": { "kind": "plain" } } }),
        ));
        let types: Vec<(InstanceType, Devices)> = numbered(&self.types)
            .map(|(index, numbers)| build_type(index, numbers, features))
            .collect();
        let mut offerings = types.iter().flat_map(|(it, _)| &it.offerings);
        let has_reservations =
            offerings.any(|it| it.capacity_type() == Some(labels::CAPACITY_TYPE_RESERVED));
        let pools: Vec<Pool> = numbered(&self.pools)
            .map(|(index, numbers)| build_pool(index, numbers, features, has_reservations))
            .collect();
        for (index, pool) in pools.iter().enumerate() {
            let own = types.iter().enumerate();
            let own = own.filter(|(bit, _)| pool.types >> bit & 1 == 1);
            let own = own.map(|(_, (it, _))| it.clone()).collect();
            world.instance_types.insert(format!("pool-{index}"), own);
            world.node_pools.push(object(pool.object.clone()));
        }
        for (index, numbers) in numbered(&self.nodes) {
            add_node(&mut world, index, numbers, &types, &pools);
        }
        for (index, numbers) in numbered(&self.daemons) {
            world.daemon_sets.push(object(build_daemon(index, numbers)));
        }
        add_storage(&mut world);
        let workloads: Vec<Workload> = numbered(&self.workloads)
            .map(|(_, numbers)| build_workload(numbers, features, has_reservations))
            .collect();
        if workloads.iter().any(|workload| workload.claim > 0) {
            devices::add_class(&mut world, self.wide);
        }
        for (index, workload) in workloads.iter().enumerate() {
            add_pods(&mut world, index, workload);
        }
        world
    }
}

fn add_pods(world: &mut World, index: usize, workload: &Workload) {
    for (replica, node) in workload.bound.iter().enumerate() {
        let node = world.nodes.get(node % world.nodes.len().max(1));
        let Some(node) = node.and_then(|node| node.metadata.name.clone()) else {
            continue;
        };
        let running = json!({ "phase": "Running" });
        let name = format!("b{index}-{replica}");
        let mut pod = workload.pod(&name, world.pods.len(), running);
        pod["spec"]["nodeName"] = json!(node);
        devices::claim(world, &mut pod, index, workload);
        world.pods.push(object(pod));
    }
    for replica in 0..workload.replicas {
        let pending = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] });
        let name = format!("w{index}-{replica}");
        let mut pod = workload.pod(&name, world.pods.len(), pending);
        devices::claim(world, &mut pod, index, workload);
        world.pods.push(object(pod));
    }
}
