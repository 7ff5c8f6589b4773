//! Objects with any fields are the same after a conversion to the other version and back.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Returns one of the values, or null.
fn maybe(values: Vec<Value>) -> BoxedStrategy<Value> {
    let mut all = values;
    all.push(Value::Null);
    proptest::sample::select(all).boxed()
}

fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let (names, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
    values
        .prop_map(move |values| {
            let present = names.iter().zip(values).filter(|(_, v)| !v.is_null());
            Value::Object(present.map(|(k, v)| ((*k).to_owned(), v)).collect())
        })
        .boxed()
}

fn or_absent(strategy: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop_oneof![1 => Just(Value::Null), 3 => strategy].boxed()
}

fn durations() -> BoxedStrategy<Value> {
    maybe(
        ["0s", "30s", "720h", "1h30m", "Never"]
            .map(Value::from)
            .to_vec(),
    )
}

fn kubelets() -> BoxedStrategy<Value> {
    maybe(vec![
        json!({}),
        json!({ "maxPods": 20, "clusterDNS": ["10.0.0.1"], "kubeReserved": { "cpu": "1" } }),
    ])
}

fn requirements() -> BoxedStrategy<Value> {
    maybe(vec![
        json!([]),
        json!([{ "key": "a", "operator": "Gte", "values": ["3"] }, { "key": "b", "operator": "In", "values": ["c"], "minValues": 1 }]),
    ])
}

fn budgets() -> BoxedStrategy<Value> {
    maybe(vec![
        json!([]),
        json!([{ "nodes": "10%" }, { "nodes": "0", "schedule": "@daily", "duration": "8h", "reasons": ["Drifted"] }]),
    ])
}

fn beta_reference() -> BoxedStrategy<Value> {
    object(vec![
        (
            "apiVersion",
            maybe(
                ["karpenter.k8s.aws/v1beta1", "example.com/v2", "plain", ""]
                    .map(Value::from)
                    .to_vec(),
            ),
        ),
        (
            "kind",
            maybe(["EC2NodeClass", "Other", ""].map(Value::from).to_vec()),
        ),
        ("name", Just(Value::from("default")).boxed()),
    ])
}

fn v1_reference() -> BoxedStrategy<Value> {
    object(vec![
        (
            "group",
            maybe(
                ["karpenter.k8s.aws", "example.com", ""]
                    .map(Value::from)
                    .to_vec(),
            ),
        ),
        (
            "kind",
            maybe(["EC2NodeClass", "Other", ""].map(Value::from).to_vec()),
        ),
        ("name", Just(Value::from("default")).boxed()),
    ])
}

fn annotations() -> BoxedStrategy<Value> {
    // Not an empty map: metadata of the API server has none.
    maybe(vec![
        json!({ "a": "b" }),
        json!({ names::KUBELET_COMPATIBILITY: "{\"maxPods\": 1}", names::UBUNTU_COMPATIBILITY: "amiFamily,incompatible" }),
        json!({ names::KUBELET_COMPATIBILITY: "broken", names::NODE_CLASS_REF_COMPATIBILITY: "{\"name\":\"default\"}" }),
        json!({ names::NODE_CLASS_REF_COMPATIBILITY: "{\"name\":\"another\"}", names::UBUNTU_COMPATIBILITY: "amiFamily,blockDeviceMappings" }),
    ])
}

fn arbitrary(
    kind: Kind,
    version: &'static str,
    spec: BoxedStrategy<Value>,
) -> BoxedStrategy<Value> {
    (spec, annotations(), any::<bool>())
        .prop_map(move |(spec, annotations, labeled)| {
            let mut object = of(kind, version, spec);
            if !annotations.is_null() {
                object["metadata"]["annotations"] = annotations;
            }
            if labeled {
                object["metadata"]["labels"] = json!({ "karpenter.sh/nodepool": "default" });
            }
            object
        })
        .boxed()
}

fn node_pools(version: &'static str) -> BoxedStrategy<Value> {
    let is_v1 = version == V1;
    let mut template = vec![
        (
            "taints",
            maybe(vec![
                json!([]),
                json!([{ "key": "a", "effect": "NoSchedule" }]),
            ]),
        ),
        ("requirements", requirements()),
        (
            "nodeClassRef",
            if is_v1 {
                v1_reference()
            } else {
                beta_reference()
            },
        ),
    ];
    let mut disruption = vec![("consolidateAfter", durations()), ("budgets", budgets())];
    let mut spec = vec![
        (
            "limits",
            maybe(vec![json!({}), json!({ "cpu": 1000, "memory": "1Gi" })]),
        ),
        ("weight", maybe(vec![json!(3)])),
    ];
    if is_v1 {
        template.push(("expireAfter", durations()));
        template.push(("terminationGracePeriod", durations()));
        let policies = ["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced", "Odd"];
        disruption.push((
            "consolidationPolicy",
            maybe(policies.map(Value::from).to_vec()),
        ));
        spec.push(("replicas", maybe(vec![json!(0), json!(3)])));
    } else {
        template.push(("kubelet", kubelets()));
        disruption.push(("expireAfter", durations()));
        let policies = ["WhenEmpty", "WhenUnderutilized"];
        disruption.push((
            "consolidationPolicy",
            maybe(policies.map(Value::from).to_vec()),
        ));
    }
    let metadata = maybe(vec![json!({}), json!({ "labels": { "a": "b" } })]);
    let template = object(vec![
        ("metadata", metadata),
        ("spec", or_absent(object(template))),
    ]);
    spec.push(("template", or_absent(template)));
    spec.push(("disruption", or_absent(object(disruption))));
    arbitrary(Kind::NodePool, version, object(spec))
}

fn node_claims(version: &'static str) -> BoxedStrategy<Value> {
    let mut spec = vec![
        ("requirements", requirements()),
        (
            "resources",
            maybe(vec![json!({ "requests": { "cpu": "1" } })]),
        ),
    ];
    if version == V1 {
        spec.push(("nodeClassRef", v1_reference()));
        spec.push(("expireAfter", durations()));
        spec.push(("terminationGracePeriod", durations()));
    } else {
        spec.push(("nodeClassRef", beta_reference()));
        spec.push(("kubelet", kubelets()));
    }
    arbitrary(Kind::NodeClaim, version, object(spec))
}

fn ec2_node_classes(version: &'static str) -> BoxedStrategy<Value> {
    let term = json!({ "name": "n", "owner": "self" });
    let mut terms = vec![
        json!([]),
        json!([term.clone()]),
        json!([{ "id": "ami-placeholder" }]),
    ];
    let mut families = vec![
        "AL2",
        "AL2023",
        "Bottlerocket",
        "Custom",
        "Windows2022",
        "Odd",
    ];
    let root = json!({ "deviceName": "/dev/sda1", "rootVolume": true,
        "ebs": { "encrypted": true, "volumeType": "gp3", "volumeSize": "20Gi" } });
    let mut devices = vec![
        json!([]),
        json!([root]),
        json!([{ "deviceName": "/dev/xvda" }]),
    ];
    let mut spec = vec![
        ("role", maybe(vec![json!("r")])),
        ("tags", maybe(vec![json!({}), json!({ "a": "b" })])),
        ("userData", maybe(vec![json!("#!/bin/bash")])),
        (
            "subnetSelectorTerms",
            maybe(vec![json!([{ "tags": { "a": "b" } }])]),
        ),
        (
            "metadataOptions",
            maybe(vec![
                json!({}),
                json!({ "httpPutResponseHopLimit": 1, "httpTokens": "optional" }),
            ]),
        ),
    ];
    if version == V1 {
        terms.push(json!([{ "alias": "al2@latest" }]));
        terms.push(json!([{ "alias": "al2023@v20240807" }]));
        terms.push(json!([term, { "ssmParameter": "/p" }]));
        devices.push(json!([{ "ebs": { "snapshotID": "s", "volumeInitializationRate": 100 } }]));
        spec.push(("kubelet", kubelets()));
        spec.push(("ipPrefixCount", maybe(vec![json!(1)])));
        spec.push((
            "cpuOptions",
            maybe(vec![json!({ "nestedVirtualization": "enabled" })]),
        ));
        spec.push((
            "capacityReservationSelectorTerms",
            maybe(vec![json!([{ "id": "cr-1" }])]),
        ));
    } else {
        families.push("Ubuntu");
    }
    spec.push(("amiSelectorTerms", maybe(terms)));
    spec.push((
        "amiFamily",
        maybe(families.into_iter().map(Value::from).collect()),
    ));
    spec.push(("blockDeviceMappings", maybe(devices)));
    arbitrary(Kind::EC2NodeClass, version, object(spec))
}

fn objects(version: &'static str) -> BoxedStrategy<Value> {
    prop_oneof![
        node_pools(version),
        node_claims(version),
        ec2_node_classes(version)
    ]
    .boxed()
}

proptest! {
    #[test]
    fn v1beta1_comes_back_from_v1(object in objects(V1BETA1)) {
        prop_assert_eq!(round_trip(&object, V1), object);
    }

    #[test]
    fn v1_comes_back_from_v1beta1(object in objects(V1)) {
        prop_assert_eq!(round_trip(&object, V1BETA1), object);
    }

    /// An object stored as v1 does not change when it is read and written in v1beta1 any number of times.
    #[test]
    fn a_stored_object_is_stable(object in objects(V1BETA1)) {
        let stored = convert(&object, V1, &NoLookup).unwrap();
        prop_assert_eq!(round_trip(&stored, V1BETA1), stored);
    }
}
