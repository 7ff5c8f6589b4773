//! Clusters to compare solvers on: small ones in which most things nearly fit.
//!
//! Everything is drawn as small numbers first (a sketch), of which zero is the plain case, so that failing clusters shrink to
//! what matters.

use k8s_openapi::api::core::v1::Pod;
use karpenter_api::labels;
use karpenter_core::instance_type::{InstanceType, Overhead};
use karpenter_core::offering::{DEFAULT_RESERVATION_ID, Offering};
use karpenter_core::requirements::{Operator, Requirement, Requirements};
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use karpenter_spec::World;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub const SIZE: &str = "example.com/size";
const TEAM: &str = "example.com/team";
const ZONES: [&str; 3] = ["z1", "z2", "z3"];
const GIB: i64 = 1 << 30;

/// What may occur in a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    /// NodePools with limits.
    pub limits: bool,
    /// Reserved offerings.
    pub reserved: bool,
    /// NodePools with minValues.
    pub min_values: bool,
    /// Pod affinity and anti-affinity.
    pub affinity: bool,
    /// Spread constraints.
    pub spread: bool,
    /// Preferences of any kind.
    pub preferences: bool,
    /// Machines that are there.
    pub nodes: bool,
    /// Host ports, volumes, daemon sets, taints.
    pub extras: bool,
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
    };
}

#[derive(Debug, Clone)]
struct TypeSketch {
    cpu: usize,
    ratio: usize,
    pods: usize,
    arm: bool,
    zones: usize,
    spot: bool,
    sold_out: usize,
    reserved: u32,
    noise: u32,
}

#[derive(Debug, Clone)]
struct PoolSketch {
    weight: i32,
    zones: usize,
    capacity_type: usize,
    team: usize,
    taint: usize,
    cpu_limit: usize,
    node_limit: usize,
    min_values: u32,
    types: usize,
}

#[derive(Debug, Clone)]
struct NodeSketch {
    pool: usize,
    instance_type: usize,
    zone: usize,
    state: usize,
    taint: usize,
}

#[derive(Debug, Clone)]
enum Wish {
    Anything,
    Zone(usize),
    NotZone(usize),
    Arch(bool),
    Spot(bool),
    Team(usize),
    NotTeam(usize),
    HasTeam(bool),
    Size(bool, i64),
    Type(usize),
    Unknown,
}

#[derive(Debug, Clone)]
enum Tie {
    Spread {
        key: usize,
        skew: i32,
        soft: bool,
        min_domains: i32,
        honor_taints: bool,
        ignore_affinity: bool,
        app: usize,
    },
    Near {
        key: usize,
        app: usize,
        soft: bool,
    },
    Apart {
        key: usize,
        app: usize,
        soft: bool,
    },
}

#[derive(Debug, Clone)]
struct WorkloadSketch {
    replicas: usize,
    cpu: usize,
    memory: usize,
    app: usize,
    selector: Wish,
    terms: Vec<Wish>,
    preferred: Vec<Wish>,
    ties: Vec<Tie>,
    port: usize,
    volume: usize,
    tolerates: usize,
    init: usize,
    bound: Vec<usize>,
}

#[derive(Debug, Clone)]
struct DaemonSketch {
    cpu: usize,
    wish: Wish,
    tolerates: bool,
    port: usize,
}

fn one_in<T: std::fmt::Debug + Clone + 'static>(
    n: u32,
    usual: T,
    other: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<T> {
    prop_oneof![n - 1 => Just(usual), 1 => other].boxed()
}

fn instance_type(features: Features) -> impl Strategy<Value = TypeSketch> {
    let reserved = if features.reserved {
        one_in(4, 0, 1u32..3)
    } else {
        Just(0).boxed()
    };
    (
        0usize..5,
        0usize..4,
        0usize..4,
        prop::bool::weighted(0.2),
        1usize..8,
        any::<bool>(),
        one_in(3, 0, 0usize..8),
        reserved,
        0u32..30,
    )
        .prop_map(
            |(cpu, ratio, pods, arm, zones, spot, sold_out, reserved, noise)| TypeSketch {
                cpu,
                ratio,
                pods,
                arm,
                zones,
                spot,
                sold_out,
                reserved,
                noise,
            },
        )
}

fn pool(features: Features) -> impl Strategy<Value = PoolSketch> {
    let limit = |most: usize| {
        if features.limits {
            one_in(3, 0, 1..most)
        } else {
            Just(0).boxed()
        }
    };
    let min_values = if features.min_values {
        one_in(4, 0, 1u32..4)
    } else {
        Just(0).boxed()
    };
    let taint = if features.extras {
        one_in(3, 0, 1usize..3)
    } else {
        Just(0).boxed()
    };
    (
        0i32..3,
        one_in(2, 0, 1usize..8),
        one_in(3, 0, 1usize..3),
        one_in(2, 0, 1usize..3),
        taint,
        limit(7),
        limit(4),
        min_values,
        one_in(2, 255, 1usize..64),
    )
        .prop_map(
            |(
                weight,
                zones,
                capacity_type,
                team,
                taint,
                cpu_limit,
                node_limit,
                min_values,
                types,
            )| PoolSketch {
                weight,
                zones,
                capacity_type,
                team,
                taint,
                cpu_limit,
                node_limit,
                min_values,
                types,
            },
        )
}

fn node(features: Features) -> impl Strategy<Value = NodeSketch> {
    let taint = if features.extras {
        one_in(4, 0, 1usize..3)
    } else {
        Just(0).boxed()
    };
    (
        0usize..3,
        0usize..6,
        0usize..3,
        one_in(2, 0, 1usize..5),
        taint,
    )
        .prop_map(|(pool, instance_type, zone, state, taint)| NodeSketch {
            pool,
            instance_type,
            zone,
            state,
            taint,
        })
}

fn wish() -> impl Strategy<Value = Wish> {
    prop_oneof![
        3 => (1usize..8).prop_map(Wish::Zone),
        1 => (1usize..7).prop_map(Wish::NotZone),
        1 => any::<bool>().prop_map(Wish::Arch),
        1 => any::<bool>().prop_map(Wish::Spot),
        2 => (1usize..3).prop_map(Wish::Team),
        1 => (1usize..3).prop_map(Wish::NotTeam),
        1 => any::<bool>().prop_map(Wish::HasTeam),
        2 => (any::<bool>(), 0i64..10).prop_map(|(above, size)| Wish::Size(above, size)),
        1 => (0usize..6).prop_map(Wish::Type),
        1 => Just(Wish::Unknown),
    ]
}

fn tie(features: Features) -> impl Strategy<Value = Tie> {
    let soft = if features.preferences {
        prop::bool::weighted(0.3).boxed()
    } else {
        Just(false).boxed()
    };
    let spread = (
        0usize..4,
        1i32..3,
        soft.clone(),
        one_in(3, 0, 1i32..4),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        0usize..4,
    )
        .prop_map(
            |(key, skew, soft, min_domains, honor_taints, ignore_affinity, app)| Tie::Spread {
                key,
                skew,
                soft,
                min_domains: if soft { 0 } else { min_domains },
                honor_taints,
                ignore_affinity,
                app,
            },
        );
    let near = (0usize..3, 0usize..4, soft.clone()).prop_map(|(key, app, soft)| Tie::Near {
        key,
        app,
        soft,
    });
    let apart =
        (0usize..3, 0usize..4, soft).prop_map(|(key, app, soft)| Tie::Apart { key, app, soft });
    match (features.spread, features.affinity) {
        (true, false) => spread.boxed(),
        (false, true) => prop_oneof![near, apart].boxed(),
        _ => prop_oneof![2 => spread, 1 => near, 1 => apart].boxed(),
    }
}

fn workload(features: Features) -> impl Strategy<Value = WorkloadSketch> {
    let ties = if features.spread || features.affinity {
        prop::collection::vec(tie(features), 0..3).boxed()
    } else {
        Just(vec![]).boxed()
    };
    let preferred = if features.preferences {
        one_in(3, vec![], prop::collection::vec(wish(), 1..3))
    } else {
        Just(vec![]).boxed()
    };
    let extra = |most: usize| {
        if features.extras {
            one_in(5, 0, 1..most)
        } else {
            Just(0).boxed()
        }
    };
    let bound = if features.nodes {
        one_in(2, vec![], prop::collection::vec(0usize..5, 1..3))
    } else {
        Just(vec![]).boxed()
    };
    let size = (1usize..6, 0usize..6, 0usize..5, 0usize..3);
    let place = (
        one_in(3, Wish::Anything, wish()),
        one_in(3, vec![], prop::collection::vec(wish(), 1..3)),
        preferred,
    );
    (
        size,
        place,
        ties,
        (extra(3), extra(5), one_in(2, 0, 1usize..4), extra(4)),
        bound,
    )
        .prop_map(
            |(
                (replicas, cpu, memory, app),
                (selector, terms, preferred),
                ties,
                (port, volume, tolerates, init),
                bound,
            )| WorkloadSketch {
                replicas,
                cpu,
                memory,
                app,
                selector,
                terms,
                preferred,
                ties,
                port,
                volume,
                tolerates,
                init,
                bound,
            },
        )
}

fn daemon() -> impl Strategy<Value = DaemonSketch> {
    (
        0usize..4,
        one_in(2, Wish::Anything, wish()),
        any::<bool>(),
        one_in(4, 0, 1usize..3),
    )
        .prop_map(|(cpu, wish, tolerates, port)| DaemonSketch {
            cpu,
            wish,
            tolerates,
            port,
        })
}

/// Clusters of at most a dozen machines and two dozen pods.
pub fn world(features: Features) -> impl Strategy<Value = World> {
    let nodes = if features.nodes {
        prop::collection::vec(node(features), 0..4).boxed()
    } else {
        Just(vec![]).boxed()
    };
    let daemons = if features.extras {
        prop::collection::vec(daemon(), 0..3).boxed()
    } else {
        Just(vec![]).boxed()
    };
    (
        prop::collection::vec(instance_type(features), 1..6),
        prop::collection::vec(pool(features), 1..4),
        nodes,
        daemons,
        prop::collection::vec(workload(features), 1..5),
    )
        .prop_map(|(types, pools, nodes, daemons, workloads)| {
            build(&types, &pools, &nodes, &daemons, &workloads)
        })
}

#[expect(
    clippy::expect_used,
    reason = "a generator that writes nonsense must be noticed"
)]
fn object<T: DeserializeOwned>(value: Value) -> T {
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

fn well_known() -> karpenter_api::validation::WellKnown {
    karpenter_api::validation::WellKnown::default()
        .with_label(SIZE)
        .with_label(DEFAULT_RESERVATION_ID)
}

fn build_type(index: usize, sketch: &TypeSketch) -> InstanceType {
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
            offering.available = sketch.sold_out >> rank & 1 == 0;
            offerings.push(offering);
        }
    }
    if sketch.reserved > 0 {
        types.push(labels::CAPACITY_TYPE_RESERVED);
        let requirements = [
            Requirement::equal(labels::ZONE, in_zones[0]),
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
    instance_type.offerings = offerings;
    instance_type.overhead = Overhead {
        kube_reserved: Resources::new().with(CPU, 100).with(MEMORY, GIB / 8),
        ..Overhead::default()
    };
    instance_type
}

fn taint(kind: usize) -> Option<Value> {
    match kind {
        1 => Some(json!({ "key": "dedicated", "value": "x", "effect": "NoSchedule" })),
        2 => Some(json!({ "key": "soft", "value": "x", "effect": "PreferNoSchedule" })),
        _ => None,
    }
}

fn build_pool(index: usize, sketch: &PoolSketch) -> Value {
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

fn expression(wish: &Wish) -> Option<Value> {
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
        Wish::Unknown => Some(json!({ "key": "example.com/nobody-knows", "operator": "Exists" })),
    }
}

/// The wish as a node selector, where it can be said as one.
fn selector(wish: &Wish) -> Value {
    match wish {
        Wish::Zone(mask) => json!({ labels::ZONE: zones(*mask)[0] }),
        Wish::Arch(arm) => json!({ labels::ARCH: if *arm { "arm64" } else { "amd64" } }),
        Wish::Spot(spot) => {
            json!({ labels::CAPACITY_TYPE: if *spot { "spot" } else { "on-demand" } })
        }
        Wish::Team(team) => json!({ TEAM: format!("t{team}") }),
        Wish::Unknown => json!({ "example.com/nobody-knows": "x" }),
        _ => json!({}),
    }
}

fn topology_key(key: usize) -> &'static str {
    [labels::ZONE, labels::HOSTNAME, labels::CAPACITY_TYPE, TEAM][key]
}

fn build_pod(name: &str, sketch: &WorkloadSketch, order: usize) -> Value {
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

fn build(
    types: &[TypeSketch],
    pools: &[PoolSketch],
    nodes: &[NodeSketch],
    daemons: &[DaemonSketch],
    workloads: &[WorkloadSketch],
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
        // A claim that holds a reservation is bound to its few instance types: what minValues means then is not pinned down.
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
        add_machine(&mut world, index, sketch, &all_types, pools);
    }
    if workloads.iter().any(|sketch| sketch.volume > 0) {
        add_storage(&mut world);
    }
    for (index, sketch) in daemons.iter().enumerate() {
        world.daemon_sets.push(object(build_daemon(index, sketch)));
    }
    // Whether a preference not to be used counts as a taint to be honoured changes as it is relaxed: not pinned down either.
    let soft_taints = pools
        .iter()
        .map(|pool| pool.taint)
        .chain(nodes.iter().map(|node| node.taint))
        .any(|taint| taint == 2);
    let mut workloads = workloads.to_vec();
    // Nor is spread over capacity types while claims become reserved only at the end.
    let reserved = types.iter().any(|sketch| sketch.reserved > 0);
    for tie in workloads.iter_mut().flat_map(|sketch| &mut sketch.ties) {
        if let Tie::Spread { honor_taints, .. } = tie {
            *honor_taints &= !soft_taints;
        }
        let (Tie::Spread { key, .. } | Tie::Near { key, .. } | Tie::Apart { key, .. }) = tie;
        if reserved && topology_key(*key) == labels::CAPACITY_TYPE {
            *key = 0;
        }
    }
    let mut order = 0;
    for (index, sketch) in workloads.iter().enumerate() {
        for replica in 0..sketch.replicas {
            let mut pod = build_pod(&format!("w{index}-{replica}"), sketch, order);
            order += 1;
            pod["status"] = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] });
            world.pods.push(object(pod));
        }
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
            let pod: Pod = object(pod);
            world.pods.push(pod);
        }
    }
    world
}

fn add_machine(
    world: &mut World,
    index: usize,
    sketch: &NodeSketch,
    types: &[InstanceType],
    pools: &[PoolSketch],
) {
    let instance_type = &types[sketch.instance_type % types.len()];
    let pool = sketch.pool % pools.len();
    let offering = &instance_type.offerings[sketch.zone % instance_type.offerings.len()];
    let name = format!("node-{index}");
    let mut labels = instance_type
        .requirements
        .labels(|key| key != labels::ZONE && key != labels::CAPACITY_TYPE);
    labels.extend(offering.requirements.labels(|_| true));
    labels.insert(labels::HOSTNAME.into(), name.clone());
    let capacity = instance_type.capacity.to_quantities();
    let allocatable = instance_type.allocatable().to_quantities();
    let taints: Vec<Value> = taint(sketch.taint).into_iter().collect();
    let unmanaged = sketch.state == 3;
    if !unmanaged {
        labels.insert(labels::NODE_POOL.into(), format!("pool-{pool}"));
        labels.insert("karpenter.test.sh/testnodeclass".into(), "default".into());
        labels.insert("example.com/pool".into(), format!("p{pool}"));
        if pools[pool].team > 0 {
            labels.insert(TEAM.into(), "t1".into());
        }
        let mut metadata = json!({ "name": format!("claim-{index}"), "uid": format!("claim-{index}"), "labels": labels });
        if sketch.state == 4 {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            metadata["finalizers"] = json!(["karpenter.sh/termination"]);
        }
        world.node_claims.push(object(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": metadata,
            "spec": {
                "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
                "requirements": [], "taints": taints, "startupTaints": [],
            },
            "status": { "providerID": format!("test:///{name}"), "capacity": capacity, "allocatable": allocatable, "conditions": [] },
        })));
        if sketch.state == 2 {
            return;
        }
        labels.insert(labels::REGISTERED.into(), "true".into());
        if sketch.state != 1 {
            labels.insert(labels::INITIALIZED.into(), "true".into());
        }
    }
    let mut node_taints = taints;
    if sketch.state == 1 {
        node_taints.push(json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" }));
    }
    world.nodes.push(object(json!({
        "metadata": { "name": name, "uid": name, "labels": labels },
        "spec": { "providerID": format!("test:///{name}"), "taints": node_taints },
        "status": { "capacity": capacity, "allocatable": allocatable, "conditions": [{ "type": "Ready", "status": "True" }] },
    })));
    world.csi_nodes.push(object(json!({
        "metadata": { "name": name },
        "spec": { "drivers": [{ "name": "ebs.csi.aws.com", "nodeID": name, "allocatable": { "count": 1 } }] },
    })));
}

/// Claim 1 is bound in z1, 2 in z1 or z2, 3 waits for a class of z2 and z3, 4 is of a class that binds too early.
fn add_storage(world: &mut World) {
    for (index, zones) in [(1, json!(["z1"])), (2, json!(["z1", "z2"]))] {
        world.volumes.push(object(json!({
            "metadata": { "name": format!("volume-{index}") },
            "spec": {
                "csi": { "driver": "ebs.csi.aws.com", "volumeHandle": "x" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [
                    { "matchExpressions": [{ "key": labels::ZONE, "operator": "In", "values": zones }] },
                ] } },
            },
        })));
    }
    for (name, mode) in [("late", "WaitForFirstConsumer"), ("early", "Immediate")] {
        world.storage_classes.push(object(json!({
            "metadata": { "name": name }, "provisioner": "ebs.csi.aws.com", "volumeBindingMode": mode,
            "allowedTopologies": [{ "matchLabelExpressions": [{ "key": labels::ZONE, "values": ["z2", "z3"] }] }],
        })));
    }
    for index in 1..=4 {
        let mut claim = json!({ "metadata": { "namespace": "default", "name": format!("claim-{index}") }, "spec": {} });
        match index {
            1 | 2 => {
                claim["spec"]["volumeName"] = json!(format!("volume-{index}"));
                claim["metadata"]["annotations"] =
                    json!({ "pv.kubernetes.io/bind-completed": "yes" });
            }
            3 => claim["spec"]["storageClassName"] = json!("late"),
            _ => claim["spec"]["storageClassName"] = json!("early"),
        }
        world.volume_claims.push(object(claim));
    }
}

fn build_daemon(index: usize, sketch: &DaemonSketch) -> Value {
    let terms: Vec<Value> = expression(&sketch.wish)
        .into_iter()
        .map(|e| json!({ "matchExpressions": [e] }))
        .collect();
    let mut container = json!({ "name": "main", "resources": { "requests": { CPU: (["100m", "50m", "500m", "1"][sketch.cpu]) }, "limits": { MEMORY: "128Mi" } } });
    if sketch.port > 0 {
        container["ports"] = json!([{ "containerPort": 80, "hostPort": 8000 + sketch.port }]);
    }
    let mut spec = json!({ "containers": [container] });
    if !terms.is_empty() {
        spec["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } });
    }
    if sketch.tolerates {
        spec["tolerations"] = json!([{ "operator": "Exists" }]);
    }
    let name = format!("daemon-{index}");
    json!({
        "metadata": { "namespace": "kube-system", "name": name, "uid": name },
        "spec": { "selector": { "matchLabels": { "daemon": name } }, "template": { "metadata": { "labels": { "daemon": name } }, "spec": spec } },
    })
}
