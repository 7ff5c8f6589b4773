//! Scheduling arbitrary pods always returns a plan in which every pod is placed or has a reason.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::fake;
use karpenter_core::schedule::{Policy, Query, schedule};
use proptest::prelude::*;
use serde_json::{Value, json};

const KEYS: [&str; 8] = [
    "topology.kubernetes.io/zone",
    "kubernetes.io/hostname",
    "karpenter.sh/capacity-type",
    "node.kubernetes.io/instance-type",
    "integer",
    "custom",
    "",
    "a/b/c",
];

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned),
        "[a-z./]{0,12}"
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("test-zone-1".to_owned()),
        Just("-9223372036854775808".to_owned()),
        Just("9223372036854775807".to_owned()),
        "[a-zA-Z0-9 _-]{0,8}",
    ]
}

fn operator() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "In",
        "NotIn",
        "Exists",
        "DoesNotExist",
        "Gt",
        "Lt",
        "Gte",
        "Lte",
        "Like",
        "",
    ])
}

fn expression() -> impl Strategy<Value = Value> {
    (key(), operator(), prop::collection::vec(value(), 0..3)).prop_map(
        |(key, operator, values)| json!({ "key": key, "operator": operator, "values": values }),
    )
}

fn expressions() -> impl Strategy<Value = Value> {
    prop::collection::vec(expression(), 0..3).prop_map(|all| json!({ "matchExpressions": all }))
}

fn term() -> impl Strategy<Value = Value> {
    (
        key(),
        prop::option::of(expressions()),
        prop::option::of(expressions()),
    )
        .prop_map(|(key, selector, namespaces)| {
            let mut term = json!({ "topologyKey": key });
            if let Some(selector) = selector {
                term["labelSelector"] = selector;
            }
            if let Some(namespaces) = namespaces {
                term["namespaceSelector"] = namespaces;
            }
            term
        })
}

fn weighted(
    term: impl Strategy<Value = Value>,
    name: &'static str,
) -> impl Strategy<Value = Value> {
    (any::<i32>(), term).prop_map(move |(weight, term)| json!({ "weight": weight, name: term }))
}

fn quantity() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "1",
        "100m",
        "9223372036854775807",
        "1e18",
        "8Ei",
        "-1",
        "0",
        "1n",
        "500",
    ])
    .prop_map(str::to_owned)
}

fn pod() -> impl Strategy<Value = Value> {
    let lists = (
        prop::collection::vec(expressions(), 0..3),
        prop::collection::vec(weighted(expressions(), "preference"), 0..3),
        prop::collection::vec(term(), 0..2),
        prop::collection::vec(term(), 0..2),
        prop::collection::vec(weighted(term(), "podAffinityTerm"), 0..2),
        prop::collection::vec(weighted(term(), "podAffinityTerm"), 0..2),
    );
    let spread = (
        key(),
        any::<i32>(),
        prop::option::of(any::<i32>()),
        any::<bool>(),
        prop::option::of(expressions()),
    );
    (
        lists,
        prop::collection::vec(spread, 0..3),
        prop::collection::btree_map(key(), value(), 0..4),
        prop::collection::btree_map(key(), value(), 0..2),
        (quantity(), quantity()),
        prop::collection::vec((key(), operator(), value()), 0..2),
    )
        .prop_map(|(lists, spread, labels, selector, (cpu, memory), tolerations)| {
            let spread: Vec<Value> = spread
                .into_iter()
                .map(|(key, skew, domains, hard, selector)| {
                    let policy = if hard { "DoNotSchedule" } else { "ScheduleAnyway" };
                    json!({ "topologyKey": key, "maxSkew": skew, "minDomains": domains, "whenUnsatisfiable": policy, "labelSelector": selector })
                })
                .collect();
            let tolerations: Vec<Value> = tolerations
                .into_iter()
                .map(|(key, operator, value)| json!({ "key": key, "operator": operator, "value": value }))
                .collect();
            json!({
                "metadata": { "namespace": "default", "labels": labels },
                "spec": {
                    "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": memory } } }],
                    "nodeSelector": selector,
                    "tolerations": tolerations,
                    "topologySpreadConstraints": spread,
                    "affinity": {
                        "nodeAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": lists.0 },
                            "preferredDuringSchedulingIgnoredDuringExecution": lists.1,
                        },
                        "podAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": lists.2,
                            "preferredDuringSchedulingIgnoredDuringExecution": lists.4,
                        },
                        "podAntiAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": lists.3,
                            "preferredDuringSchedulingIgnoredDuringExecution": lists.5,
                        },
                    },
                },
                "status": { "phase": "Pending", "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
            })
        })
}

fn pool(requirements: Vec<Value>) -> Value {
    json!({
        "metadata": { "name": "default" },
        "spec": { "template": { "spec": {
            "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" }, "requirements": requirements,
        } } },
        "status": { "conditions": [{
            "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] },
    })
}

fn cluster(pods: impl IntoIterator<Item = (usize, Value)>, requirements: Vec<Value>) -> Cluster {
    let mut cluster = Cluster::new(ClusterConfig {
        well_known: fake::well_known(),
        ..ClusterConfig::default()
    });
    cluster.apply_node_pool(&serde_json::from_value(pool(requirements)).unwrap());
    cluster.set_instance_types("default", Ok(fake::catalogue()));
    for (index, mut pod) in pods {
        pod["metadata"]["name"] = json!(format!("p{index}"));
        pod["metadata"]["uid"] = json!(format!("p{index}"));
        cluster.apply_pod(&serde_json::from_value(pod).unwrap());
    }
    cluster
}

proptest! {
    #[test]
    fn every_pod_is_placed_or_has_a_reason(
        pods in prop::collection::vec(pod(), 1..8),
        requirements in prop::collection::vec(expression(), 0..2),
    ) {
        let count = pods.len();
        let listed: Vec<(usize, Value)> = pods.into_iter().enumerate().collect();
        let (policy, query) = (Policy::at(Timestamp::UNIX_EPOCH), Query::default());
        let plan = schedule(&cluster(listed.clone(), requirements.clone()).snapshot(), &policy, &query);
        let placed: usize = plan.new_node_claims.iter().map(|draft| draft.pods.len()).sum();
        prop_assert_eq!(placed + plan.existing.len() + plan.unplaced.len(), count);
        for unplaced in &plan.unplaced {
            prop_assert!(!unplaced.why.to_string().is_empty());
        }
        let reversed = cluster(listed.into_iter().rev(), requirements);
        prop_assert_eq!(schedule(&reversed.snapshot(), &policy, &query), plan, "the plan depends on the order in which objects arrive");
    }
}

#[test]
fn a_pod_with_ten_thousand_labels_is_left_with_a_reason() {
    let labels: serde_json::Map<String, Value> = (0..10_000)
        .map(|index| (format!("key-{index}"), json!("v")))
        .collect();
    let pod = json!({
        "metadata": { "namespace": "default", "labels": labels },
        "spec": { "containers": [], "nodeSelector": labels },
        "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
    });
    let plan = schedule(
        &cluster([(0, pod)], vec![]).snapshot(),
        &Policy::at(Timestamp::UNIX_EPOCH),
        &Query::default(),
    );
    assert_eq!(plan.unplaced.len(), 1);
}
