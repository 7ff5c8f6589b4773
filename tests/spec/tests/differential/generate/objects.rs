//! Instance types, NodePools and workloads from their numbers.

use std::collections::BTreeSet;

use karpenter_api::labels;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::{DEFAULT_RESERVATION_ID, Offering};
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::devices::Devices;
use super::numbers::Numbers;
use super::{Features, SIZE, TEAM};

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

pub(super) fn build_type(
    index: usize,
    mut numbers: Numbers<'_>,
    features: Features,
) -> (InstanceType, Devices) {
    let cpu = numbers.of(&[1, 2, 4, 8, 16]);
    let memory = cpu * numbers.of(&[2, 1, 4, 8]);
    let pods = numbers.of(&[110, 3, 5, 10]);
    let name = format!("type-{index}");
    let arch = if numbers.one_in(5) {
        labels::ARCH_ARM64
    } else {
        labels::ARCH_AMD64
    };
    let in_zones = zones(1 + numbers.below(7));
    let mut types = vec![labels::CAPACITY_TYPE_ON_DEMAND];
    types.extend(numbers.one_in(2).then_some(labels::CAPACITY_TYPE_SPOT));
    let unavailable = numbers.rarely(3, 7);
    // The pairs of zone and capacity type without an offering.
    let missing = numbers.rarely(3, 63);
    let reserved = numbers.rarely_if(features.reserved, 4, 2);
    let price =
        (cpu as f64 * 0.03 + memory as f64 * 0.004) * (1.0 + numbers.below(30) as f64 / 100.0);
    let devices = Devices {
        count: numbers.rarely_if(features.devices, 2, 3),
        shared: numbers.one_in(2),
    };
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
            offering.available = unavailable >> rank & 1 == 0;
            offerings.push(offering);
        }
    }
    let is_missing = |index: usize| missing >> index & 1 == 1;
    if !(0..offerings.len()).all(is_missing) {
        let mut index = 0..;
        offerings.retain(|_| !index.next().is_some_and(is_missing));
    }
    let values = |key: &str| -> BTreeSet<String> {
        let single = |offering: &Offering| offering.single(key).map(str::to_owned);
        offerings.iter().filter_map(single).collect()
    };
    let (in_zones, mut types) = (values(labels::ZONE), values(labels::CAPACITY_TYPE));
    if reserved > 0 {
        types.insert(labels::CAPACITY_TYPE_RESERVED.into());
        let first: String = in_zones.iter().take(1).cloned().collect();
        let requirements = [
            Requirement::equal(labels::ZONE, &first),
            Requirement::equal(labels::CAPACITY_TYPE, labels::CAPACITY_TYPE_RESERVED),
            Requirement::equal(DEFAULT_RESERVATION_ID, &format!("cr-{index}")),
        ];
        let mut offering = Offering::new(requirements.into_iter().collect(), price / 10_000_000.0);
        offering.reservation_capacity = reserved as u32;
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
    let mut instance_type = InstanceType::new(
        &name,
        requirements,
        Resources::new()
            .with(CPU, cpu * 1000)
            .with(MEMORY, memory * GIB)
            .with(PODS, pods),
    );
    instance_type.offerings = offerings.into();
    instance_type.devices = devices.template();
    instance_type.overhead = Overhead {
        kube_reserved: Resources::new().with(CPU, 100).with(MEMORY, GIB / 8),
        ..Overhead::default()
    };
    (instance_type, devices)
}

pub(super) fn taint(kind: usize) -> Option<Value> {
    match kind {
        1 => Some(json!({ "key": "dedicated", "value": "x", "effect": "NoSchedule" })),
        2 => Some(json!({ "key": "soft", "value": "x", "effect": "PreferNoSchedule" })),
        _ => None,
    }
}

/// A NodePool, the instance types that it may use, as bits, and whether its nodes have a team.
pub(super) struct Pool {
    pub(super) object: Value,
    pub(super) types: usize,
    pub(super) has_team: bool,
}

pub(super) fn build_pool(
    index: usize,
    mut numbers: Numbers<'_>,
    features: Features,
    has_reservations: bool,
) -> Pool {
    let weight = numbers.below(3);
    let mut requirements = vec![];
    let in_zones = numbers.rarely(2, 7);
    if in_zones != 0 {
        requirements
            .push(json!({ "key": labels::ZONE, "operator": "In", "values": zones(in_zones) }));
    }
    match numbers.rarely(3, 2) {
        1 => requirements.push(json!({ "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] })),
        2 => requirements.push(json!({ "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand", "spot"] })),
        _ => {}
    }
    let team = numbers.rarely(2, 2);
    if team != 0 {
        let teams: Vec<String> = (1..=team).map(|team| format!("t{team}")).collect();
        requirements.push(json!({ "key": TEAM, "operator": "In", "values": teams }));
    }
    let taint = taint(numbers.rarely(3, 2));
    let cpu_limit = numbers.rarely_if(features.limits, 3, 6);
    let node_limit = numbers.rarely_if(features.limits, 3, 3);
    // A claim that holds a reservation is bound to its few instance types: minValues is not specified for it.
    let min_values = numbers.rarely_if(features.min_values && !has_reservations, 4, 3);
    if min_values > 0 {
        requirements.push(
            json!({ "key": labels::INSTANCE_TYPE, "operator": "Exists", "minValues": min_values }),
        );
    }
    let mut limits = serde_json::Map::new();
    if cpu_limit > 0 {
        limits.insert(CPU.into(), json!((cpu_limit * 4).to_string()));
    }
    if node_limit > 0 {
        limits.insert("nodes".into(), json!(node_limit.to_string()));
    }
    let mut spec = json!({
        "template": {
            "metadata": { "labels": { "example.com/pool": format!("p{index}") } },
            "spec": {
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                "requirements": requirements,
                "taints": taint.into_iter().collect::<Vec<_>>(),
            },
        },
        "limits": limits,
    });
    if weight > 0 {
        spec["weight"] = json!(weight);
    }
    let types = match numbers.rarely(2, 63) {
        0 => 255,
        some => some,
    };
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    Pool {
        object: json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": format!("pool-{index}"), "uid": format!("pool-{index}") },
            "spec": spec, "status": { "conditions": [condition] },
        }),
        types,
        has_team: team > 0,
    }
}

/// Returns an expression about the labels of nodes.
pub(super) fn expression(numbers: &mut Numbers<'_>) -> Value {
    let (key, operator, value) = match numbers.below(14) {
        0..=2 => (labels::ZONE, "In", json!(zones(1 + numbers.below(7)))),
        3 => (labels::ZONE, "NotIn", json!(zones(1 + numbers.below(6)))),
        4 => (labels::ARCH, "In", json!([numbers.of(&["amd64", "arm64"])])),
        5 => (
            labels::CAPACITY_TYPE,
            "In",
            json!([numbers.of(&["on-demand", "spot"])]),
        ),
        6 | 7 => (TEAM, "In", json!([numbers.of(&["t1", "t2"])])),
        8 => (TEAM, "NotIn", json!([numbers.of(&["t1", "t2"])])),
        9 => (TEAM, numbers.of(&["Exists", "DoesNotExist"]), json!([])),
        10 | 11 => (
            SIZE,
            numbers.of(&["Lt", "Gt"]),
            json!([numbers.below(10).to_string()]),
        ),
        12 => (
            labels::INSTANCE_TYPE,
            "In",
            json!([format!("type-{}", numbers.below(6))]),
        ),
        _ => ("example.com/no-such-label", "Exists", json!([])),
    };
    json!({ "key": key, "operator": operator, "values": value })
}

/// Returns as many terms of node affinity, each of one expression.
pub(super) fn terms(numbers: &mut Numbers<'_>, count: usize) -> Vec<Value> {
    (0..count)
        .map(|_| json!({ "matchExpressions": [expression(numbers)] }))
        .collect()
}

fn selector(numbers: &mut Numbers<'_>) -> Value {
    match numbers.rarely(3, 14) {
        1..=3 => json!({ labels::ZONE: numbers.of(&ZONES) }),
        4 => json!({ labels::ARCH: numbers.of(&["amd64", "arm64"]) }),
        5 => json!({ labels::CAPACITY_TYPE: numbers.of(&["on-demand", "spot"]) }),
        6 | 7 => json!({ TEAM: numbers.of(&["t1", "t2"]) }),
        8 => json!({ "example.com/no-such-label": "x" }),
        _ => json!({}),
    }
}

/// Pods that are equal but for their names.
pub(super) struct Workload {
    pub(super) replicas: usize,
    /// The nodes of pods that run.
    pub(super) bound: Vec<usize>,
    /// The devices that it requests.
    pub(super) claim: usize,
    /// Whether all its pods use one claim.
    pub(super) one_claim: bool,
    labels: Value,
    spec: Value,
}

impl Workload {
    pub(super) fn pod(&self, name: &str, order: usize, status: Value) -> Value {
        let created = format!("2026-01-01T00:{:02}:{:02}Z", order / 60 % 60, order % 60);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": "default", "name": name, "uid": name, "creationTimestamp": created, "labels": self.labels,
            },
            "spec": self.spec,
            "status": status,
        })
    }
}

pub(super) fn build_workload(
    mut numbers: Numbers<'_>,
    features: Features,
    has_reservations: bool,
) -> Workload {
    let replicas = 1 + numbers.below(5);
    let requests = json!({
        CPU: numbers.of(&["100m", "250m", "500m", "1", "1500m", "3"]),
        MEMORY: numbers.of(&["128Mi", "512Mi", "1Gi", "2Gi", "6Gi"]),
    });
    let mut container = json!({ "name": "main", "resources": { "requests": requests } });
    let port = numbers.rarely(5, 2);
    if port > 0 {
        container["ports"] = json!([{ "containerPort": 80, "hostPort": 8000 + port }]);
    }
    let mut tolerations = vec![];
    let tolerates = numbers.rarely(2, 3);
    if tolerates & 1 == 1 {
        tolerations.push(json!({ "key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule" }));
    }
    if tolerates & 2 == 2 {
        tolerations.push(json!({ "key": "soft", "operator": "Exists" }));
    }
    let mut spec = json!({
        "containers": [container],
        "nodeSelector": selector(&mut numbers),
        "tolerations": tolerations,
    });
    match numbers.rarely(5, 3) {
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
    let volume = numbers.rarely(5, 4);
    if volume > 0 {
        spec["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": format!("claim-{volume}") } }]);
    }
    let claim = numbers.rarely_if(features.devices, 2, 9);
    let one_claim = numbers.one_in(3);
    let bound = (0..numbers.rarely(2, 2)).map(|_| numbers.below(5));
    let bound = bound.collect();
    let mut node_affinity = json!({});
    let alternatives = numbers.rarely(2, 3);
    if alternatives > 0 {
        node_affinity[REQUIRED] = json!({ "nodeSelectorTerms": terms(&mut numbers, alternatives) });
    }
    let preferred = numbers.rarely_if(features.preferences, 3, 2);
    let preferred = terms(&mut numbers, preferred).into_iter().enumerate();
    node_affinity[PREFERRED] = preferred
        .map(|(index, term)| json!({ "weight": 50 - index * 10, "preference": term }))
        .collect();
    spec["affinity"]["nodeAffinity"] = node_affinity;
    let own = numbers.below(3);
    if features.spread {
        let keys = match has_reservations {
            // A spread over capacity types is not specified while claims become reserved only at the end.
            true => [labels::ZONE, labels::HOSTNAME, labels::ZONE, TEAM],
            false => [labels::ZONE, labels::HOSTNAME, labels::CAPACITY_TYPE, TEAM],
        };
        for _ in 0..numbers.below(3) {
            tie(&mut numbers, &mut spec, own, keys, features);
        }
    }
    Workload {
        replicas,
        bound,
        claim,
        one_claim,
        labels: json!({ "app": format!("a{own}") }),
        spec,
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Adds a spread constraint, or a term of pod affinity or anti-affinity.
fn tie(
    numbers: &mut Numbers<'_>,
    spec: &mut Value,
    own: usize,
    keys: [&str; 4],
    features: Features,
) {
    fn push(list: &mut Value, item: Value) {
        match list {
            Value::Array(items) => items.push(item),
            none => *none = json!([item]),
        }
    }
    let kind = if features.affinity {
        numbers.below(4)
    } else {
        0
    };
    let is_spread = kind < 2;
    let key = keys[numbers.below(if is_spread { 4 } else { 3 })];
    let app = match numbers.below(4) {
        0 => own,
        other => other - 1,
    };
    let selector = json!({ "matchLabels": { "app": format!("a{app}") } });
    let is_soft = numbers.rarely_if(features.preferences, 3, 1) > 0;
    if is_spread {
        let mut constraint = json!({
            "topologyKey": key, "maxSkew": 1 + numbers.below(2), "labelSelector": selector,
            "whenUnsatisfiable": if is_soft { "ScheduleAnyway" } else { "DoNotSchedule" },
            "nodeTaintsPolicy": if numbers.one_in(5) { "Honor" } else { "Ignore" },
            "nodeAffinityPolicy": if numbers.one_in(5) { "Ignore" } else { "Honor" },
        });
        let min_domains = numbers.rarely_if(!is_soft, 3, 3);
        if min_domains > 0 {
            constraint["minDomains"] = json!(min_domains);
        }
        return push(&mut spec["topologySpreadConstraints"], constraint);
    }
    let (kind, weight) = match kind {
        2 => ("podAffinity", 10),
        _ => ("podAntiAffinity", 20),
    };
    let term = json!({ "topologyKey": key, "labelSelector": selector });
    let terms = &mut spec["affinity"][kind];
    match is_soft {
        true => push(
            &mut terms[PREFERRED],
            json!({ "weight": weight, "podAffinityTerm": term }),
        ),
        false => push(&mut terms[REQUIRED], term),
    }
}
