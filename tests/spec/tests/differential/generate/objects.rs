//! Instance types, NodePools and pods from their sketches.

use std::collections::BTreeSet;

use karpenter_api::labels;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::{DEFAULT_RESERVATION_ID, Offering};
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::sketch::{PoolSketch, Tie, TypeSketch, Wish, WorkloadSketch};
use super::{SIZE, TEAM};

const ZONES: [&str; 3] = ["z1", "z2", "z3"];
const GIB: i64 = 1 << 30;

#[expect(
    clippy::expect_used,
    reason = "a generator that writes nonsense must be noticed"
)]
pub(super) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("generated objects are well formed")
}

fn zones(mask: usize) -> Vec<&'static str> {
    ZONES
        .iter()
        .enumerate()
        .filter(|(bit, _)| mask >> bit & 1 == 1)
        .map(|(_, zone)| *zone)
        .collect()
}

pub(super) fn build_type(index: usize, sketch: &TypeSketch) -> InstanceType {
    let cpu = [1, 2, 4, 8, 16][sketch.cpu];
    let memory = cpu * [2, 1, 4, 8][sketch.ratio];
    let name = format!("type-{index}");
    let arch = if sketch.arm {
        labels::ARCH_ARM64
    } else {
        labels::ARCH_AMD64
    };
    let in_zones = zones(sketch.zones);
    let price =
        (cpu as f64 * 0.03 + memory as f64 * 0.004) * (1.0 + f64::from(sketch.noise) / 100.0);
    let mut types = vec![labels::CAPACITY_TYPE_ON_DEMAND];
    if sketch.spot {
        types.push(labels::CAPACITY_TYPE_SPOT);
    }
    let mut offerings = Vec::new();
    for (rank, zone) in in_zones.iter().enumerate() {
        for capacity_type in &types {
            let discount = if *capacity_type == labels::CAPACITY_TYPE_SPOT {
                0.4 + rank as f64 / 100.0
            } else {
                1.0
            };
            let requirements = [
                Requirement::equal(labels::ZONE, zone),
                Requirement::equal(labels::CAPACITY_TYPE, capacity_type),
            ];
            let mut offering = Offering::new(requirements.into_iter().collect(), price * discount);
            offering.available = sketch.unavailable >> rank & 1 == 0;
            offerings.push(offering);
        }
    }
    let is_missing = |index: usize| sketch.missing >> index & 1 == 1;
    if !(0..offerings.len()).all(is_missing) {
        let mut index = 0..;
        offerings.retain(|_| !index.next().is_some_and(is_missing));
    }
    let values = |key: &str| -> BTreeSet<String> {
        let single = |offering: &Offering| offering.single(key).map(str::to_owned);
        offerings.iter().filter_map(single).collect()
    };
    let (in_zones, mut types) = (values(labels::ZONE), values(labels::CAPACITY_TYPE));
    if sketch.reserved > 0 {
        types.insert(labels::CAPACITY_TYPE_RESERVED.into());
        let first: String = in_zones.iter().take(1).cloned().collect();
        let requirements = [
            Requirement::equal(labels::ZONE, &first),
            Requirement::equal(labels::CAPACITY_TYPE, labels::CAPACITY_TYPE_RESERVED),
            Requirement::equal(DEFAULT_RESERVATION_ID, &format!("cr-{index}")),
        ];
        let mut offering = Offering::new(requirements.into_iter().collect(), price / 10_000_000.0);
        offering.reservation_capacity = sketch.reserved;
        offerings.push(offering);
    }
    let requirements: Requirements = [
        Requirement::equal(labels::INSTANCE_TYPE, &name),
        Requirement::equal(labels::ARCH, arch),
        Requirement::equal(labels::OS, "linux"),
        Requirement::equal(SIZE, &cpu.to_string()),
        Requirement::new(labels::ZONE, Operator::In, in_zones),
        Requirement::new(labels::CAPACITY_TYPE, Operator::In, types),
    ]
    .into_iter()
    .collect();
    let pods = [110, 3, 5, 10][sketch.pods];
    let mut instance_type = InstanceType::new(
        &name,
        requirements,
        Resources::new()
            .with(CPU, cpu * 1000)
            .with(MEMORY, memory * GIB)
            .with(PODS, pods),
    );
    instance_type.offerings = offerings.into();
    instance_type.devices = super::devices::template(sketch);
    instance_type.overhead = Overhead {
        kube_reserved: Resources::new().with(CPU, 100).with(MEMORY, GIB / 8),
        ..Overhead::default()
    };
    instance_type
}

pub(super) fn taint(kind: usize) -> Option<Value> {
    match kind {
        1 => Some(json!({ "key": "dedicated", "value": "x", "effect": "NoSchedule" })),
        2 => Some(json!({ "key": "soft", "value": "x", "effect": "PreferNoSchedule" })),
        _ => None,
    }
}

pub(super) fn build_pool(index: usize, sketch: &PoolSketch) -> Value {
    let mut requirements = vec![];
    if sketch.zones != 0 {
        requirements
            .push(json!({ "key": labels::ZONE, "operator": "In", "values": zones(sketch.zones) }));
    }
    match sketch.capacity_type {
        1 => requirements.push(json!({ "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] })),
        2 => requirements.push(json!({ "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand", "spot"] })),
        _ => {}
    }
    if sketch.team != 0 {
        let teams: Vec<String> = (1..=sketch.team).map(|team| format!("t{team}")).collect();
        requirements.push(json!({ "key": TEAM, "operator": "In", "values": teams }));
    }
    if sketch.min_values > 0 {
        requirements.push(json!({ "key": labels::INSTANCE_TYPE, "operator": "Exists", "minValues": sketch.min_values }));
    }
    let mut limits = serde_json::Map::new();
    if sketch.cpu_limit > 0 {
        limits.insert(CPU.into(), json!((sketch.cpu_limit * 4).to_string()));
    }
    if sketch.node_limit > 0 {
        limits.insert("nodes".into(), json!(sketch.node_limit.to_string()));
    }
    let mut spec = json!({
        "template": {
            "metadata": { "labels": { "example.com/pool": format!("p{index}") } },
            "spec": {
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                "requirements": requirements,
                "taints": taint(sketch.taint).into_iter().collect::<Vec<_>>(),
            },
        },
        "limits": limits,
    });
    if sketch.weight > 0 {
        spec["weight"] = json!(sketch.weight);
    }
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": format!("pool-{index}"), "uid": format!("pool-{index}") },
        "spec": spec, "status": { "conditions": [condition] },
    })
}

pub(super) fn expression(wish: &Wish) -> Option<Value> {
    let expression = |key: &str, operator: &str, values: Value| {
        Some(json!({ "key": key, "operator": operator, "values": values }))
    };
    match wish {
        Wish::Anything => None,
        Wish::Zone(mask) => expression(labels::ZONE, "In", json!(zones(*mask))),
        Wish::NotZone(mask) => expression(labels::ZONE, "NotIn", json!(zones(*mask))),
        Wish::Arch(arm) => expression(
            labels::ARCH,
            "In",
            json!([if *arm { "arm64" } else { "amd64" }]),
        ),
        Wish::Spot(spot) => expression(
            labels::CAPACITY_TYPE,
            "In",
            json!([if *spot { "spot" } else { "on-demand" }]),
        ),
        Wish::Team(team) => expression(TEAM, "In", json!([format!("t{team}")])),
        Wish::NotTeam(team) => expression(TEAM, "NotIn", json!([format!("t{team}")])),
        Wish::HasTeam(true) => Some(json!({ "key": TEAM, "operator": "Exists" })),
        Wish::HasTeam(false) => Some(json!({ "key": TEAM, "operator": "DoesNotExist" })),
        Wish::Size(above, size) => expression(
            SIZE,
            if *above { "Gt" } else { "Lt" },
            json!([size.to_string()]),
        ),
        Wish::Type(index) => expression(
            labels::INSTANCE_TYPE,
            "In",
            json!([format!("type-{index}")]),
        ),
        Wish::Unknown => Some(json!({ "key": "example.com/no-such-label", "operator": "Exists" })),
    }
}

/// Returns the wish as a node selector, if it can be expressed as one.
fn selector(wish: &Wish) -> Value {
    match wish {
        Wish::Zone(mask) => json!({ labels::ZONE: zones(*mask)[0] }),
        Wish::Arch(arm) => json!({ labels::ARCH: if *arm { "arm64" } else { "amd64" } }),
        Wish::Spot(spot) => {
            json!({ labels::CAPACITY_TYPE: if *spot { "spot" } else { "on-demand" } })
        }
        Wish::Team(team) => json!({ TEAM: format!("t{team}") }),
        Wish::Unknown => json!({ "example.com/no-such-label": "x" }),
        _ => json!({}),
    }
}

pub(super) fn topology_key(key: usize) -> &'static str {
    [labels::ZONE, labels::HOSTNAME, labels::CAPACITY_TYPE, TEAM][key]
}

pub(super) fn build_pod(name: &str, sketch: &WorkloadSketch, order: usize) -> Value {
    let app = |app: usize| json!({ "matchLabels": { "app": format!("a{}", if app == 3 { sketch.app } else { app }) } });
    let (mut spread, mut near, mut near_soft, mut apart, mut apart_soft) =
        (vec![], vec![], vec![], vec![], vec![]);
    for tie in &sketch.ties {
        match tie {
            Tie::Spread {
                key,
                skew,
                soft,
                min_domains,
                honor_taints,
                ignore_affinity,
                app: about,
            } => {
                let mut constraint = json!({
                    "topologyKey": topology_key(*key), "maxSkew": skew, "labelSelector": app(*about),
                    "whenUnsatisfiable": if *soft { "ScheduleAnyway" } else { "DoNotSchedule" },
                    "nodeTaintsPolicy": if *honor_taints { "Honor" } else { "Ignore" },
                    "nodeAffinityPolicy": if *ignore_affinity { "Ignore" } else { "Honor" },
                });
                if *min_domains > 0 {
                    constraint["minDomains"] = json!(min_domains);
                }
                spread.push(constraint);
            }
            Tie::Near {
                key,
                app: about,
                soft,
            }
            | Tie::Apart {
                key,
                app: about,
                soft,
            } => {
                let term =
                    json!({ "topologyKey": topology_key(*key), "labelSelector": app(*about) });
                let is_near = matches!(tie, Tie::Near { .. });
                match (is_near, *soft) {
                    (true, false) => near.push(term),
                    (true, true) => {
                        near_soft.push(json!({ "weight": 10, "podAffinityTerm": term }))
                    }
                    (false, false) => apart.push(term),
                    (false, true) => {
                        apart_soft.push(json!({ "weight": 20, "podAffinityTerm": term }))
                    }
                }
            }
        }
    }
    let terms: Vec<Value> = sketch
        .terms
        .iter()
        .filter_map(expression)
        .map(|e| json!({ "matchExpressions": [e] }))
        .collect();
    let preferred: Vec<Value> = sketch.preferred.iter().filter_map(expression).enumerate()
        .map(|(index, e)| json!({ "weight": 50 - index * 10, "preference": { "matchExpressions": [e] } })).collect();
    let mut node_affinity = json!({ "preferredDuringSchedulingIgnoredDuringExecution": preferred });
    if !terms.is_empty() {
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({ "nodeSelectorTerms": terms });
    }
    let requests = json!({
        CPU: (["100m", "250m", "500m", "1", "1500m", "3"][sketch.cpu]),
        MEMORY: (["128Mi", "512Mi", "1Gi", "2Gi", "6Gi"][sketch.memory]),
    });
    let mut container = json!({ "name": "main", "resources": { "requests": requests } });
    if sketch.port > 0 {
        container["ports"] = json!([{ "containerPort": 80, "hostPort": 8000 + sketch.port }]);
    }
    let mut tolerations = vec![];
    if sketch.tolerates & 1 == 1 {
        tolerations.push(json!({ "key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule" }));
    }
    if sketch.tolerates & 2 == 2 {
        tolerations.push(json!({ "key": "soft", "operator": "Exists" }));
    }
    let mut spec = json!({
        "containers": [container],
        "nodeSelector": selector(&sketch.selector),
        "tolerations": tolerations,
        "topologySpreadConstraints": spread,
        "affinity": {
            "nodeAffinity": node_affinity,
            "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": near, "preferredDuringSchedulingIgnoredDuringExecution": near_soft },
            "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": apart, "preferredDuringSchedulingIgnoredDuringExecution": apart_soft },
        },
    });
    match sketch.init {
        1 => {
            spec["initContainers"] =
                json!([{ "name": "init", "resources": { "requests": { CPU: "2" } } }])
        }
        2 => {
            spec["initContainers"] = json!([{ "name": "sidecar", "restartPolicy": "Always", "resources": { "requests": { CPU: "300m" } } }])
        }
        3 => spec["overhead"] = json!({ CPU: "200m", MEMORY: "64Mi" }),
        _ => {}
    }
    if sketch.volume > 0 {
        spec["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": format!("claim-{}", sketch.volume) } }]);
    }
    let created = format!("2026-01-01T00:{:02}:{:02}Z", order / 60 % 60, order % 60);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "default", "name": name, "uid": name, "creationTimestamp": created,
            "labels": { "app": format!("a{}", sketch.app) },
        },
        "spec": spec,
    })
}
