//! Raw objects as JSON with the structure of Kubernetes objects and arbitrary values.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::labels;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::offering::Offering;
use karpenter_core::requirements::{Operator, Requirement};
use karpenter_core::resources::{CPU, MEMORY, PODS, Resources};
use proptest::prelude::*;
use proptest::sample::select;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Objects and three bits of settings.
#[derive(Debug, Clone)]
pub struct World {
    pub objects: karpenter_spec::World,
    pub budgets: Vec<PodDisruptionBudget>,
    pub settings: u8,
}

const QUANTITIES: [&str; 22] = [
    "0",
    "1",
    "100m",
    "2",
    "1Gi",
    "9223372036854775807",
    "9223372036854775808",
    "-1",
    "-9Ei",
    "9Ei",
    "12E",
    "1e9999",
    "1e2147483647",
    "0.0000000001",
    "1n",
    "-1n",
    "",
    ".",
    "abc",
    "1 Gi",
    "8E",
    "4611686018427387904",
];
const WORDS: [&str; 16] = [
    "",
    "a",
    "b",
    "z1",
    "z2",
    "0",
    "1",
    "-9223372036854775808",
    "9223372036854775807",
    "9223372036854775808",
    "spot",
    "on-demand",
    "default",
    "no such thing",
    "é€😀",
    "type-0",
];
const KEYS: [&str; 16] = [
    "",
    "a",
    "app",
    labels::ZONE,
    labels::HOSTNAME,
    labels::CAPACITY_TYPE,
    labels::ARCH,
    labels::INSTANCE_TYPE,
    labels::NODE_POOL,
    "karpenter.sh/nope",
    "beta.kubernetes.io/arch",
    "failure-domain.beta.kubernetes.io/zone",
    "/",
    "a/b/c",
    "example.com/size",
    "karpenter.sh/initialized",
];
const OPERATORS: [&str; 11] = [
    "In",
    "NotIn",
    "Exists",
    "DoesNotExist",
    "Gt",
    "Lt",
    "Gte",
    "Lte",
    "",
    "Equal",
    "in",
];
const EFFECTS: [&str; 5] = ["NoSchedule", "PreferNoSchedule", "NoExecute", "", "Never"];

fn word() -> impl Strategy<Value = Value> {
    prop_oneof![20 => select(&WORDS[..]).prop_map(|word| json!(word)), 1 => (60usize..400).prop_map(|length| json!("x".repeat(length)))]
}

fn key() -> impl Strategy<Value = Value> {
    prop_oneof![20 => select(&KEYS[..]).prop_map(|key| json!(key)), 1 => "\\PC{0,12}".prop_map(|key| json!(key))]
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (0i32..4).prop_map(|n| json!(n)),
        1 => select(&[i32::MAX, i32::MIN, -1, 100, 65535][..]).prop_map(|n| json!(n)),
    ]
}

fn quantity() -> impl Strategy<Value = Value> {
    prop_oneof![4 => select(&QUANTITIES[1..5]).prop_map(|q| json!(q)), 1 => select(&QUANTITIES[..]).prop_map(|q| json!(q))]
}

/// Returns a field that is present half of the time.
fn maybe(
    name: &'static str,
    value: impl Strategy<Value = Value> + 'static,
) -> BoxedStrategy<Option<(&'static str, Value)>> {
    prop_oneof![Just(None), value.prop_map(move |value| Some((name, value)))].boxed()
}

fn object(fields: Vec<BoxedStrategy<Option<(&'static str, Value)>>>) -> BoxedStrategy<Value> {
    fields
        .prop_map(|fields| {
            Value::Object(
                fields
                    .into_iter()
                    .flatten()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect(),
            )
        })
        .boxed()
}

fn always(
    name: &'static str,
    value: impl Strategy<Value = Value> + 'static,
) -> BoxedStrategy<Option<(&'static str, Value)>> {
    value.prop_map(move |value| Some((name, value))).boxed()
}

fn list(item: impl Strategy<Value = Value> + 'static, most: usize) -> BoxedStrategy<Value> {
    prop::collection::vec(item, 0..=most)
        .prop_map(Value::Array)
        .boxed()
}

fn map(value: impl Strategy<Value = Value> + 'static) -> BoxedStrategy<Value> {
    let entries = prop::collection::vec((key(), value), 0..3);
    let text = |key: Value| key.as_str().map(str::to_owned).unwrap_or_default();
    entries
        .prop_map(move |entries| {
            Value::Object(
                entries
                    .into_iter()
                    .map(|(key, value)| (text(key), value))
                    .collect(),
            )
        })
        .boxed()
}

fn resources() -> BoxedStrategy<Value> {
    let names = select(
        &[
            CPU,
            MEMORY,
            PODS,
            "ephemeral-storage",
            "hugepages-2Mi",
            "example.com/gpu",
            "nodes",
            "",
        ][..],
    );
    let entries = prop::collection::vec((names, quantity()), 0..4);
    entries
        .prop_map(|entries| {
            Value::Object(
                entries
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect::<Map<_, _>>(),
            )
        })
        .boxed()
}

fn operator() -> impl Strategy<Value = Value> {
    prop_oneof![6 => select(&OPERATORS[..8]), 1 => select(&OPERATORS[..])]
        .prop_map(|operator| json!(operator))
}

fn expression() -> BoxedStrategy<Value> {
    object(vec![
        always("key", key()),
        always("operator", operator()),
        maybe("values", list(word(), 3)),
    ])
}

fn node_term() -> BoxedStrategy<Value> {
    object(vec![
        maybe("matchExpressions", list(expression(), 2)),
        prop_oneof![6 => Just(None), 1 => maybe("matchFields", list(expression(), 1))].boxed(),
    ])
}

fn label_selector() -> BoxedStrategy<Value> {
    object(vec![
        maybe("matchLabels", map(word())),
        maybe("matchExpressions", list(expression(), 1)),
    ])
}

fn pod_term() -> BoxedStrategy<Value> {
    object(vec![
        always("topologyKey", key()),
        maybe("labelSelector", label_selector()),
        maybe("namespaces", list(word(), 2)),
        maybe("namespaceSelector", label_selector()),
        maybe("matchLabelKeys", list(key(), 2)),
    ])
}

fn pod_affinity() -> BoxedStrategy<Value> {
    let weighted = object(vec![
        always("weight", number()),
        always("podAffinityTerm", pod_term()),
    ]);
    object(vec![
        maybe(
            "requiredDuringSchedulingIgnoredDuringExecution",
            list(pod_term(), 2),
        ),
        maybe(
            "preferredDuringSchedulingIgnoredDuringExecution",
            list(weighted, 2),
        ),
    ])
}

fn affinity() -> BoxedStrategy<Value> {
    let required = object(vec![always("nodeSelectorTerms", list(node_term(), 3))]);
    let weighted = object(vec![
        always("weight", number()),
        always("preference", node_term()),
    ]);
    let node = object(vec![
        maybe("requiredDuringSchedulingIgnoredDuringExecution", required),
        maybe(
            "preferredDuringSchedulingIgnoredDuringExecution",
            list(weighted, 2),
        ),
    ]);
    object(vec![
        maybe("nodeAffinity", node),
        maybe("podAffinity", pod_affinity()),
        maybe("podAntiAffinity", pod_affinity()),
    ])
}

fn spread() -> BoxedStrategy<Value> {
    let policy = || select(&["Honor", "Ignore", "", "x"][..]).prop_map(|policy| json!(policy));
    object(vec![
        always("topologyKey", key()),
        always("maxSkew", number()),
        always(
            "whenUnsatisfiable",
            select(&["DoNotSchedule", "ScheduleAnyway", ""][..]).prop_map(|when| json!(when)),
        ),
        maybe("minDomains", number()),
        maybe("labelSelector", label_selector()),
        maybe("matchLabelKeys", list(key(), 2)),
        maybe("nodeAffinityPolicy", policy()),
        maybe("nodeTaintsPolicy", policy()),
    ])
}

fn taint() -> BoxedStrategy<Value> {
    object(vec![
        always("key", key()),
        maybe("value", word()),
        always(
            "effect",
            select(&EFFECTS[..]).prop_map(|effect| json!(effect)),
        ),
    ])
}

fn toleration() -> BoxedStrategy<Value> {
    let operator =
        select(&["Exists", "Equal", "Gt", "Lt", "", "x"][..]).prop_map(|operator| json!(operator));
    object(vec![
        maybe("key", key()),
        maybe("operator", operator),
        maybe("value", word()),
        maybe("effect", select(&EFFECTS[..]).prop_map(|e| json!(e))),
    ])
}

fn container() -> BoxedStrategy<Value> {
    let port = object(vec![
        always("containerPort", number()),
        maybe("hostPort", number()),
        maybe("hostIP", word()),
        maybe("protocol", word()),
    ]);
    object(vec![
        always("name", word()),
        maybe(
            "resources",
            object(vec![
                maybe("requests", resources()),
                maybe("limits", resources()),
            ]),
        ),
        maybe("ports", list(port, 2)),
        maybe(
            "restartPolicy",
            select(&["Always", "Never", ""][..]).prop_map(|policy| json!(policy)),
        ),
    ])
}

fn pod_spec() -> BoxedStrategy<Value> {
    let claim = object(vec![always("claimName", word())]);
    let volume = object(vec![
        always("name", word()),
        maybe("persistentVolumeClaim", claim),
        maybe("ephemeral", Just(json!({}))),
    ]);
    object(vec![
        always("containers", list(container(), 2)),
        maybe("initContainers", list(container(), 2)),
        maybe("nodeSelector", map(word())),
        maybe("affinity", affinity()),
        maybe("topologySpreadConstraints", list(spread(), 2)),
        maybe("tolerations", list(toleration(), 2)),
        maybe("overhead", resources()),
        maybe("resources", object(vec![maybe("requests", resources())])),
        maybe("volumes", list(volume, 1)),
        prop_oneof![4 => Just(None), 1 => maybe("resourceClaims", list(object(vec![always("name", word()), maybe("resourceClaimName", word())]), 1))].boxed(),
    ])
}

fn pod() -> impl Strategy<Value = Value> {
    (pod_spec(), map(word()), prop::option::weighted(0.25, 0usize..2), 0usize..3).prop_map(|(mut spec, labels, node, workload)| {
        let mut status = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] });
        if let Some(node) = node {
            spec["nodeName"] = json!(format!("node-{node}"));
            status = json!({ "phase": "Running" });
        }
        json!({ "metadata": { "namespace": (["default", "other", ""][workload]), "labels": labels }, "spec": spec, "status": status })
    })
}

fn requirement() -> BoxedStrategy<Value> {
    object(vec![
        always("key", key()),
        always("operator", operator()),
        maybe("values", list(word(), 3)),
        prop_oneof![4 => Just(None), 1 => maybe("minValues", number())].boxed(),
    ])
}

fn node_pool() -> impl Strategy<Value = Value> {
    let template = object(vec![
        always(
            "nodeClassRef",
            Just(
                json!({ "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" }),
            ),
        ),
        always("requirements", list(requirement(), 2)),
        prop_oneof![2 => Just(None), 1 => maybe("taints", list(taint(), 2))].boxed(),
        maybe("startupTaints", list(taint(), 1)),
    ]);
    let metadata = object(vec![maybe("labels", map(word()))]);
    (template, metadata, maybe("limits", resources()), maybe("weight", number())).prop_map(|(template, metadata, limits, weight)| {
        let mut spec = json!({ "template": { "metadata": metadata, "spec": template } });
        for (name, value) in [limits, weight].into_iter().flatten() {
            spec[name] = value;
        }
        let condition = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        json!({ "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "spec": spec, "status": { "conditions": [condition] } })
    })
}

fn node() -> impl Strategy<Value = Value> {
    let status = object(vec![
        maybe("capacity", resources()),
        maybe("allocatable", resources()),
    ]);
    (map(word()), list(taint(), 1), status).prop_map(|(labels, taints, status)| {
        json!({ "metadata": { "labels": labels }, "spec": { "taints": taints }, "status": status })
    })
}

/// Returns the spec and the status of a NodeClaim.
fn node_claim() -> impl Strategy<Value = Value> {
    let status = object(vec![
        maybe("capacity", resources()),
        maybe("allocatable", resources()),
    ]);
    let spec = object(vec![
        always("requirements", list(requirement(), 2)),
        maybe("resources", object(vec![maybe("requests", resources())])),
        maybe("terminationGracePeriod", duration()),
    ]);
    let conditions = prop::sample::subsequence(
        &[
            "Launched",
            "Registered",
            "Initialized",
            "Consolidatable",
            "Drifted",
        ][..],
        0..=5,
    );
    (spec, status, conditions, duration()).prop_map(|(mut spec, mut status, conditions, expires)| {
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "1969-12-31T23:00:00Z" });
        spec["nodeClassRef"] = json!({ "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" });
        spec["expireAfter"] = expires;
        status["conditions"] = conditions.into_iter().map(condition).collect();
        json!({ "spec": spec, "status": status })
    })
}

fn duration() -> impl Strategy<Value = Value> {
    select(
        &[
            "Never",
            "0s",
            "-1s",
            "30m",
            "2540400h10m",
            "292277024627h",
            "1ns",
        ][..],
    )
    .prop_map(|text| json!(text))
}

/// Makes a node one of Karpenter's, with a NodeClaim, which is returned.
fn managed(number: usize, node: &mut Value, mut claim: Value) -> Value {
    let id = json!(format!("test:///{number}"));
    let labels = json!({
        (labels::NODE_POOL): "pool-0",
        (labels::INSTANCE_TYPE): "type-0",
        (labels::CAPACITY_TYPE): "on-demand",
        (labels::ZONE): "z2",
        (labels::REGISTERED): "true",
        (labels::INITIALIZED): "true",
    });
    let of_node = &mut node["metadata"]["labels"];
    for (key, value) in labels.as_object().into_iter().flatten() {
        of_node[key] = value.clone();
    }
    node["spec"]["providerID"] = id.clone();
    claim["metadata"] = json!({ "labels": labels, "creationTimestamp": "1969-12-31T00:00:00Z" });
    claim["status"]["providerID"] = id;
    claim["status"]["nodeName"] = json!(format!("node-{number}"));
    claim
}

fn budget() -> impl Strategy<Value = Value> {
    let amount = || {
        let texts = select(&["-5", "0%", "100%", "99999999999%", "-1%", "x", ""][..]);
        prop_oneof![texts.prop_map(|text| json!(text)), number()]
    };
    let spec = object(vec![
        maybe("minAvailable", amount()),
        maybe("maxUnavailable", amount()),
        maybe("selector", label_selector()),
    ]);
    let counts = [number(), number(), number(), number()];
    (spec, counts).prop_map(|(spec, [allowed, healthy, desired, expected])| {
        let status = json!({ "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected });
        json!({ "metadata": { "namespace": "default" }, "spec": spec, "status": status })
    })
}

fn daemon_set() -> impl Strategy<Value = Value> {
    pod_spec().prop_map(|spec| {
        json!({ "metadata": { "namespace": "default" }, "spec": { "selector": {}, "template": { "metadata": {}, "spec": spec } } })
    })
}

fn claim() -> impl Strategy<Value = Value> {
    let spec = object(vec![
        maybe("volumeName", word()),
        maybe("storageClassName", word()),
    ]);
    (spec, word()).prop_map(|(spec, name)| json!({ "metadata": { "namespace": "default", "name": name }, "spec": spec }))
}

/// Returns the objects that can be deserialized, each with a unique name.
fn read<T: DeserializeOwned>(kind: &str, values: Vec<Value>) -> Vec<T> {
    let named = values.into_iter().enumerate().map(|(index, mut value)| {
        if value["metadata"]["name"].is_null() {
            value["metadata"]["name"] = json!(format!("{kind}-{index}"));
        }
        value["metadata"]["uid"] = json!(format!("{kind}-{index}"));
        value
    });
    named
        .filter_map(|value| serde_json::from_value(value).ok())
        .collect()
}

fn instance_types(amounts: &[i64]) -> Vec<InstanceType> {
    let all = amounts.chunks_exact(3).enumerate().map(|(index, amounts)| {
        let name = format!("type-{index}");
        let requirements = [
            Requirement::equal(labels::INSTANCE_TYPE, &name),
            Requirement::equal(labels::ARCH, labels::ARCH_AMD64),
            Requirement::new(labels::ZONE, Operator::In, ["z1", "z2"]),
            Requirement::new(labels::CAPACITY_TYPE, Operator::In, ["spot", "on-demand"]),
        ];
        let capacity = Resources::new()
            .with(CPU, amounts[0])
            .with(MEMORY, amounts[1])
            .with(PODS, amounts[2]);
        let mut instance_type =
            InstanceType::new(&name, requirements.into_iter().collect(), capacity);
        for (zone, capacity_type, price) in [
            ("z1", "spot", 0.1),
            ("z2", "spot", f64::NAN),
            ("z2", "on-demand", f64::MAX),
        ] {
            let requirements = [
                Requirement::equal(labels::ZONE, zone),
                Requirement::equal(labels::CAPACITY_TYPE, capacity_type),
            ];
            instance_type
                .offerings
                .push(Offering::new(requirements.into_iter().collect(), price));
        }
        instance_type
    });
    all.collect()
}

/// Returns small clusters of hostile objects.
pub fn world() -> impl Strategy<Value = World> {
    let amount = prop_oneof![4 => select(&[4000i64, 8 << 30, 110][..]), 1 => select(&[0, -1, 1, i64::MAX, i64::MIN][..])];
    use prop::collection::vec;
    (
        vec(pod(), 1..5),
        vec(node_pool(), 1..3),
        vec((node(), prop::option::of(node_claim())), 0..20),
        vec(budget(), 0..2),
        vec(daemon_set(), 0..2),
        vec(claim(), 0..2),
        vec(amount, 3..10),
        0u8..8,
    )
        .prop_map(
            |(pods, pools, nodes, budgets, daemon_sets, claims, amounts, settings)| {
                let mut node_claims = Vec::new();
                let nodes = nodes
                    .into_iter()
                    .enumerate()
                    .map(|(number, (mut node, claim))| {
                        let claim = claim.map(|claim| managed(number, &mut node, claim));
                        node_claims.extend(claim);
                        node
                    });
                let nodes = nodes.collect();
                let node_pools: Vec<karpenter_api::v1::NodePool> = read("pool", pools);
                let types = instance_types(&amounts);
                let objects = karpenter_spec::World {
                    pods: read("pod", pods),
                    nodes: read("node", nodes),
                    node_claims: read("claim-of", node_claims),
                    instance_types: node_pools
                        .iter()
                        .map(|pool| (pool.name().to_owned(), types.clone()))
                        .collect(),
                    node_pools,
                    daemon_sets: read("daemon", daemon_sets),
                    volume_claims: read("claim", claims),
                    well_known: karpenter_api::validation::WellKnown::default()
                        .labels()
                        .map(str::to_owned)
                        .collect(),
                    ..karpenter_spec::World::default()
                };
                World {
                    objects,
                    budgets: read("budget", budgets),
                    settings,
                }
            },
        )
}
