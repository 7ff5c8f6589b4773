//! Generated clusters with all features of scheduling; each seed gives one cluster.
//!
//! Workloads of a few replicas with node selectors, alternatives of node affinity, preferences, spread constraints under every
//! policy, affinity and anti-affinity over zones, hosts and capacity types, host ports, volumes and gates; NodePools with
//! weights, taints, limits, minValues and reservations; DaemonSets; and nodes in every state, including deleting.

mod workload;

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::{DEFAULT_RESERVATION_ID, Offering};
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use serde_json::{Value, json};

use crate::World;
use workload::workload_pod;

const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];
const FAMILY: &str = "example.com/family";
const TEAM: &str = "example.com/team";
const GIB: i64 = 1 << 30;

/// The size and features of clusters.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The fewest and most pending pods.
    pub pods: (usize, usize),
    /// The fewest and most instance types.
    pub types: (usize, usize),
    /// The most nodes.
    pub nodes: usize,
    /// Whether NodePools have limits, minValues and reservations: the price of a plan then depends on what may be launched.
    pub bounds: bool,
    /// Whether there are volumes, scheduling gates and pods on deleting nodes.
    pub extras: bool,
    /// Whether most pods have several node selector terms and spread constraints, and instance types lack offerings in some zones.
    pub terms: bool,
}

impl Shape {
    /// At most a dozen workloads.
    pub const SMALL: Shape = Shape {
        pods: (3, 40),
        types: (10, 60),
        nodes: 6,
        bounds: true,
        extras: true,
        terms: false,
    };
    /// At most a dozen workloads, most with several node selector terms and spread constraints.
    pub const TERMS: Shape = Shape {
        types: (1, 12),
        terms: true,
        ..Shape::SMALL
    };
    /// Hundreds of pods.
    pub const LARGE: Shape = Shape {
        pods: (200, 1500),
        types: (10, 60),
        nodes: 20,
        bounds: true,
        extras: true,
        terms: false,
    };
}

/// A sequence of pseudo-random numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % sides.max(1) as u64) as usize
    }

    fn between(&mut self, (least, most): (usize, usize)) -> usize {
        least + self.throw(most - least + 1)
    }

    fn one_in(&mut self, sides: usize) -> bool {
        self.throw(sides) == 0
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.throw(all.len())]
    }

    /// Returns one or more of the items, in their order.
    fn some<'a, T>(&mut self, all: &'a [T]) -> Vec<&'a T> {
        let mask = 1 + self.throw((1 << all.len()) - 1);
        let bits = all.iter().enumerate();
        bits.filter(|(bit, _)| mask >> bit & 1 == 1)
            .map(|(_, one)| one)
            .collect()
    }
}

pub fn cluster(seed: u64, shape: Shape) -> World {
    let mut dice = Dice(seed.wrapping_mul(0x2545_F491_4F6C_DD1D));
    let bounds = shape.bounds && dice.one_in(3);
    let well_known = karpenter_api::validation::WellKnown::default()
        .with_label(FAMILY)
        .with_label(DEFAULT_RESERVATION_ID);
    let mut world = World {
        well_known: well_known.labels().map(str::to_owned).collect(),
        ..World::default()
    };
    for (name, env) in [("default", "prod"), ("other", "dev")] {
        let labels = json!({ "env": env, "kubernetes.io/metadata.name": name });
        push(
            &mut world.namespaces,
            json!({ "metadata": { "name": name, "labels": labels } }),
        );
    }
    let count = dice.between(shape.types);
    let types: Vec<InstanceType> = (0..count)
        .map(|i| instance_type(&mut dice, i, bounds, shape.terms))
        .collect();
    // A claim that holds a reservation is bound to its few instance types: minValues is not specified for it.
    let reserved = types.iter().any(|t| {
        let mut offerings = t.offerings.iter();
        offerings.any(|o| o.capacity_type() == Some(labels::CAPACITY_TYPE_RESERVED))
    });
    let pools = 1 + dice.throw(4);
    for index in 0..pools {
        push(
            &mut world.node_pools,
            pool(&mut dice, index, bounds, reserved),
        );
        let own = types.iter().filter(|_| !dice.one_in(4)).cloned();
        let mut own: Vec<InstanceType> = own.collect();
        own.extend(types.first().filter(|_| own.is_empty()).cloned());
        world.instance_types.insert(format!("pool-{index}"), own);
    }
    for index in 0..dice.throw(3) {
        push(&mut world.daemon_sets, daemon_set(&mut dice, index));
    }
    let nodes = if dice.one_in(3) {
        0
    } else {
        dice.throw(shape.nodes + 1)
    };
    for index in 0..nodes {
        node(&mut dice, &mut world, index, pools, &types, shape.extras);
    }
    if shape.extras {
        storage(&mut world);
    }
    let wanted = dice.between(shape.pods);
    // A few kinds of constraints per cluster, so that there are clusters without each of them.
    let theme: Vec<bool> = (0..9).map(|_| dice.one_in(2)).collect();
    let plain = dice.one_in(6);
    let (mut pods, mut workload) = (0, 0);
    while pods < wanted {
        let most = (wanted / 4).max(4);
        let replicas = (1 + dice.throw(most)).min(wanted - pods);
        let mut template = workload_pod(&mut dice, workload, &theme, plain, shape);
        let bound = if nodes > 0 && dice.one_in(2) {
            dice.throw(4)
        } else {
            0
        };
        for replica in 0..replicas + bound {
            let name = format!("w{workload:02}-{replica:04}");
            template["metadata"]["name"] = json!(name);
            template["metadata"]["uid"] = json!(name);
            let second = (pods + replica) % 60;
            template["metadata"]["creationTimestamp"] =
                json!(format!("2026-01-01T00:00:{second:02}Z"));
            let mut pod = template.clone();
            let on = world.nodes.get(dice.throw(nodes.max(1)));
            match on
                .and_then(|node| node.metadata.name.clone())
                .filter(|_| replica >= replicas)
            {
                Some(node) => {
                    pod["spec"]["nodeName"] = json!(node);
                    pod["status"] = json!({ "phase": "Running" });
                }
                None if replica >= replicas => continue,
                None => {
                    let gated = shape.extras && dice.one_in(40);
                    let reason = if gated {
                        "SchedulingGated"
                    } else {
                        "Unschedulable"
                    };
                    if gated {
                        pod["spec"]["schedulingGates"] = json!([{ "name": "example.com/wait" }]);
                    }
                    pod["status"] = json!({ "phase": "Pending", "conditions": [
                        { "type": "PodScheduled", "status": "False", "reason": reason },
                    ] });
                }
            }
            push::<Pod>(&mut world.pods, pod);
        }
        pods += replicas;
        workload += 1;
    }
    world
}

fn push<T: serde::de::DeserializeOwned>(list: &mut Vec<T>, object: Value) {
    list.extend(serde_json::from_value(object));
}

fn instance_type(dice: &mut Dice, index: usize, bounds: bool, lacks: bool) -> InstanceType {
    let cpu = *dice.of(&[1_i64, 2, 2, 4, 4, 8, 8, 16, 32, 48]);
    let (family, ratio) = *dice.of(&[("c", 2), ("m", 4), ("r", 8), ("a", 4)]);
    let arch = if family == "a" {
        labels::ARCH_ARM64
    } else {
        labels::ARCH_AMD64
    };
    let name = format!("{family}{index}.x{cpu}");
    let mut zones = dice.some(&ZONES);
    let base =
        (0.03 * cpu as f64 + 0.004 * (cpu * ratio) as f64) * if family == "a" { 0.85 } else { 1.0 };
    let mut kinds = vec![labels::CAPACITY_TYPE_ON_DEMAND];
    if !dice.one_in(4) {
        kinds.push(labels::CAPACITY_TYPE_SPOT);
    }
    let mut offerings = Vec::new();
    let offer = |zone: &str, kind: &str| -> Requirements {
        [
            Requirement::equal(labels::ZONE, zone),
            Requirement::equal(labels::CAPACITY_TYPE, kind),
        ]
        .into_iter()
        .collect()
    };
    for zone in &zones {
        for kind in &kinds {
            let noise = 0.9 + dice.throw(200) as f64 / 1000.0;
            let discount = if *kind == labels::CAPACITY_TYPE_SPOT {
                0.3 + dice.throw(50) as f64 / 100.0
            } else {
                1.0
            };
            let mut offering = Offering::new(offer(zone, kind), base * noise * discount);
            offering.available = !dice.one_in(12);
            offerings.push(offering);
        }
    }
    if lacks {
        let last = offerings.pop();
        offerings.retain(|_| !dice.one_in(3));
        offerings.extend(last);
        let has = |requirement: Requirement| {
            let one: Requirements = [requirement].into_iter().collect();
            let mut all = offerings.iter();
            all.any(|offering| offering.requirements.intersects(&one).is_ok())
        };
        zones.retain(|zone| has(Requirement::equal(labels::ZONE, zone)));
        kinds.retain(|kind| has(Requirement::equal(labels::CAPACITY_TYPE, kind)));
    }
    if bounds && dice.one_in(5) {
        kinds.push(labels::CAPACITY_TYPE_RESERVED);
        let mut requirements = offer(zones[0], labels::CAPACITY_TYPE_RESERVED);
        requirements.add(Requirement::equal(
            DEFAULT_RESERVATION_ID,
            &format!("cr-{index}"),
        ));
        let mut offering = Offering::new(requirements, base / 10_000_000.0);
        offering.reservation_capacity = 1 + dice.throw(3) as u32;
        offerings.push(offering);
    }
    let requirements: Requirements = [
        Requirement::equal(labels::INSTANCE_TYPE, &name),
        Requirement::equal(labels::ARCH, arch),
        Requirement::equal(labels::OS, "linux"),
        Requirement::equal(FAMILY, family),
        Requirement::new(labels::ZONE, Operator::In, zones.iter().map(|zone| **zone)),
        Requirement::new(labels::CAPACITY_TYPE, Operator::In, kinds),
    ]
    .into_iter()
    .collect();
    let capacity = Resources::new()
        .with(CPU, cpu * 1000)
        .with(MEMORY, cpu * ratio * GIB)
        .with(PODS, (cpu * 8 + 8).min(110));
    let mut built = InstanceType::new(&name, requirements, capacity);
    built.offerings = offerings.into();
    built.overhead = Overhead {
        kube_reserved: Resources::new().with(CPU, 100).with(MEMORY, GIB / 4),
        ..Overhead::default()
    };
    built
}

fn taint(kind: usize) -> Option<Value> {
    match kind {
        0 => Some(json!({ "key": "dedicated", "value": "x", "effect": "NoSchedule" })),
        1 | 2 => Some(json!({ "key": "soft", "value": "x", "effect": "PreferNoSchedule" })),
        _ => None,
    }
}

fn pool(dice: &mut Dice, index: usize, bounds: bool, reserved: bool) -> Value {
    let mut requirements = vec![];
    if dice.one_in(3) {
        let zones = dice.some(&ZONES);
        requirements.push(json!({ "key": labels::ZONE, "operator": "In", "values": zones }));
    }
    if dice.one_in(3) {
        let kinds = dice.some(&[labels::CAPACITY_TYPE_ON_DEMAND, labels::CAPACITY_TYPE_SPOT]);
        requirements
            .push(json!({ "key": labels::CAPACITY_TYPE, "operator": "In", "values": kinds }));
    }
    if dice.one_in(4) {
        let teams = dice.some(&["t1", "t2"]);
        requirements.push(json!({ "key": TEAM, "operator": "In", "values": teams }));
    }
    let mut limits = json!({});
    if bounds {
        if dice.one_in(3) {
            limits[CPU] = json!((8 + dice.throw(200)).to_string());
        }
        if dice.one_in(5) {
            limits["nodes"] = json!((1 + dice.throw(6)).to_string());
        }
        if !reserved && dice.one_in(4) {
            let least = 2 + dice.throw(4);
            requirements.push(
                json!({ "key": labels::INSTANCE_TYPE, "operator": "Exists", "minValues": least }),
            );
        }
    }
    let taint = taint(dice.throw(9));
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let mut spec = json!({
        "limits": limits,
        "template": {
            "metadata": { "labels": { "example.com/pool": format!("p{index}") } },
            "spec": {
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                "requirements": requirements, "taints": taint.into_iter().collect::<Vec<_>>(),
            },
        },
    });
    if dice.one_in(2) {
        spec["weight"] = json!(1 + dice.throw(3));
    }
    let name = format!("pool-{index}");
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": name, "uid": name },
        "spec": spec, "status": { "conditions": [condition] },
    })
}

fn daemon_set(dice: &mut Dice, index: usize) -> Value {
    let mut container = json!({ "name": "main", "resources": { "requests": { CPU: *dice.of(&["50m", "100m", "250m"]), MEMORY: "128Mi" } } });
    if dice.one_in(3) {
        let port = 9100 + dice.throw(2);
        container["ports"] = json!([{ "containerPort": port, "hostPort": port }]);
    }
    let mut spec = json!({ "containers": [container] });
    if dice.one_in(2) {
        spec["tolerations"] = json!([{ "operator": "Exists" }]);
    }
    match dice.throw(4) {
        0 => spec["nodeSelector"] = json!({ labels::CAPACITY_TYPE: "spot" }),
        1 => {
            let zones = dice.some(&ZONES);
            let term = json!({ "matchExpressions": [{ "key": labels::ZONE, "operator": "In", "values": zones }] });
            let or = json!({ "matchExpressions": [{ "key": labels::ARCH, "operator": "In", "values": ["arm64"] }] });
            spec["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term, or] } } });
        }
        _ => {}
    }
    let name = format!("ds-{index}");
    json!({
        "metadata": { "namespace": "kube-system", "name": name, "uid": name },
        "spec": { "selector": { "matchLabels": { "ds": name } }, "template": { "metadata": { "labels": { "ds": name } }, "spec": spec } },
    })
}

fn node(
    dice: &mut Dice,
    world: &mut World,
    index: usize,
    pools: usize,
    types: &[InstanceType],
    extras: bool,
) {
    let instance_type = dice.of(types);
    let offering = dice.of(&instance_type.offerings);
    let pool = dice.throw(pools);
    let name = format!("node-{index:02}");
    // 0 to 5: initialized; then registered only, launched only, unmanaged, deleting.
    let state = dice.throw(if extras { 10 } else { 6 });
    let mut node_labels = instance_type
        .requirements
        .labels(|key| key != labels::ZONE && key != labels::CAPACITY_TYPE);
    node_labels.extend(offering.requirements.labels(|_| true));
    node_labels.insert(labels::HOSTNAME.into(), name.clone());
    let capacity = instance_type.capacity.to_quantities();
    let allocatable = instance_type.allocatable().to_quantities();
    let mut taints: Vec<Value> = taint(dice.throw(12)).into_iter().collect();
    if state != 8 {
        node_labels.insert(labels::NODE_POOL.into(), format!("pool-{pool}"));
        node_labels.insert("karpenter.test.sh/testnodeclass".into(), "default".into());
        node_labels.insert("example.com/pool".into(), format!("p{pool}"));
        if dice.one_in(3) {
            node_labels.insert(TEAM.into(), (*dice.of(&["t1", "t2"])).into());
        }
        let claim = format!("claim-{index:02}");
        let mut metadata = json!({ "name": claim, "uid": claim, "labels": node_labels });
        if state == 9 {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            metadata["finalizers"] = json!(["karpenter.sh/termination"]);
        }
        push(
            &mut world.node_claims,
            json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata,
                "spec": {
                    "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                    "requirements": [], "taints": taints, "startupTaints": [],
                },
                "status": { "providerID": format!("test:///{name}"), "capacity": capacity, "allocatable": allocatable, "conditions": [] },
            }),
        );
        if state == 7 {
            return;
        }
        node_labels.insert(labels::REGISTERED.into(), "true".into());
        if state == 6 {
            taints.push(json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }));
        } else {
            node_labels.insert(labels::INITIALIZED.into(), "true".into());
        }
    }
    push(
        &mut world.nodes,
        json!({
            "metadata": { "name": name, "uid": name, "labels": node_labels },
            "spec": { "providerID": format!("test:///{name}"), "taints": taints },
            "status": { "capacity": capacity, "allocatable": allocatable, "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
    if extras {
        push(
            &mut world.csi_nodes,
            json!({
                "metadata": { "name": name },
                "spec": { "drivers": [{ "name": "ebs.csi.aws.com", "nodeID": name, "allocatable": { "count": 1 + dice.throw(3) } }] },
            }),
        );
    }
}

/// Adds volume claims: 1 to 3 are bound in a zone each; 4 waits for its first consumer in zones b and c.
fn storage(world: &mut World) {
    for (index, zone) in ZONES.iter().enumerate() {
        let index = index + 1;
        push(
            &mut world.volumes,
            json!({
                "metadata": { "name": format!("volume-{index}") },
                "spec": {
                    "csi": { "driver": "ebs.csi.aws.com", "volumeHandle": format!("v{index}") },
                    "nodeAffinity": { "required": { "nodeSelectorTerms": [
                        { "matchExpressions": [{ "key": labels::ZONE, "operator": "In", "values": [zone] }] },
                    ] } },
                },
            }),
        );
        push(
            &mut world.volume_claims,
            json!({
                "metadata": { "namespace": "default", "name": format!("claim-{index}"), "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
                "spec": { "volumeName": format!("volume-{index}") },
            }),
        );
    }
    push(
        &mut world.storage_classes,
        json!({
            "metadata": { "name": "late" }, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{ "matchLabelExpressions": [{ "key": labels::ZONE, "values": ["zone-b", "zone-c"] }] }],
        }),
    );
    push(
        &mut world.volume_claims,
        json!({
            "metadata": { "namespace": "default", "name": "claim-4" }, "spec": { "storageClassName": "late" },
        }),
    );
}
