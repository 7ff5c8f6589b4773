use proptest::prelude::*;
use serde_json::json;

use super::*;

fn round_trip(object: &Value, through: &str) -> Value {
    let (_, from) = Kind::of(object).unwrap();
    let other = convert(object, through, &NoLookup).unwrap();
    convert(&other, from, &NoLookup).unwrap()
}

fn beta(kind: Kind, spec: Value) -> Value {
    of(kind, V1BETA1, spec)
}

fn v1(kind: Kind, spec: Value) -> Value {
    of(kind, V1, spec)
}

fn of(kind: Kind, version: &str, spec: Value) -> Value {
    json!({
        "apiVersion": format!("{}/{version}", kind.group()), "kind": kind.as_str(),
        "metadata": { "name": "default", "uid": "u", "resourceVersion": "7" }, "spec": spec, "status": { "conditions": [] },
    })
}

#[test]
fn the_nodepool_of_the_walkthrough_means_the_same_in_v1() {
    let old = beta(
        Kind::NodePool,
        json!({
            "template": { "spec": {
                "requirements": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }],
                "nodeClassRef": { "name": "default" },
            } },
            "limits": { "cpu": 1000 },
            "disruption": { "consolidationPolicy": "WhenUnderutilized", "expireAfter": "720h" },
        }),
    );
    let new = upgrade(&old).unwrap();
    assert_eq!(
        new["spec"],
        json!({
            "template": { "spec": {
                "requirements": [{ "key": "kubernetes.io/os", "operator": "In", "values": ["linux"] }],
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "expireAfter": "720h",
            } },
            "limits": { "cpu": 1000 },
            "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "0s" },
        })
    );
    assert_eq!(new["metadata"], old["metadata"]);
    assert_eq!(round_trip(&old, V1), old);
}

/// Returns the translation of a NodePool with this field, without carried values.
fn translated(from: &'static str, to: &str, at: &str, part: Value) -> Value {
    let reference = json!({ "name": "default" });
    let mut pool = of(
        Kind::NodePool,
        from,
        json!({ "template": { "spec": { "nodeClassRef": reference } }, "disruption": {} }),
    );
    *pool.pointer_mut(at).unwrap() = part;
    let translated = convert(&pool, to, &NoLookup).unwrap();
    translated.pointer(at).unwrap().clone()
}

#[test]
fn consolidation_of_v1beta1_means_the_same_in_v1() {
    for (old, new) in [
        (json!({}), ("WhenEmptyOrUnderutilized", "0s")),
        (
            json!({ "consolidationPolicy": "WhenUnderutilized" }),
            ("WhenEmptyOrUnderutilized", "0s"),
        ),
        (
            json!({ "consolidationPolicy": "WhenUnderutilized", "consolidateAfter": null }),
            ("WhenEmptyOrUnderutilized", "0s"),
        ),
        (
            json!({ "consolidationPolicy": "WhenUnderutilized", "consolidateAfter": "Never" }),
            ("WhenEmptyOrUnderutilized", "Never"),
        ),
        (
            json!({ "consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s" }),
            ("WhenEmpty", "30s"),
        ),
        (
            json!({ "consolidationPolicy": "WhenEmpty", "consolidateAfter": null }),
            ("WhenEmpty", "Never"),
        ),
        (
            json!({ "consolidationPolicy": "WhenEmpty" }),
            ("WhenEmpty", "Never"),
        ),
    ] {
        let expected = json!({ "consolidationPolicy": new.0, "consolidateAfter": new.1 });
        let disruption = translated(V1BETA1, V1, "/spec/disruption", old.clone());
        assert_eq!(disruption, expected, "{old}");
    }
}

#[test]
fn consolidation_of_v1_means_the_same_in_v1beta1_as_far_as_it_can() {
    let policy = |policy: &str, after: &str| json!({ "consolidationPolicy": policy, "consolidateAfter": after });
    let underutilized = || json!({ "consolidationPolicy": "WhenUnderutilized" });
    for (new, old) in [
        (policy("WhenEmptyOrUnderutilized", "0s"), underutilized()),
        (policy("WhenEmptyOrUnderutilized", "5m"), underutilized()),
        (policy("Balanced", "5m"), underutilized()),
        (
            policy("WhenEmptyOrUnderutilized", "Never"),
            policy("WhenUnderutilized", "Never"),
        ),
        (policy("WhenEmpty", "5m"), policy("WhenEmpty", "5m")),
    ] {
        let disruption = translated(V1, V1BETA1, "/spec/disruption", new.clone());
        assert_eq!(disruption, old, "{new}");
    }
}

const REFERENCE: &str = "/spec/template/spec/nodeClassRef";

#[test]
fn the_group_of_a_nodeclass_reference_comes_from_its_api_version() {
    for (api_version, group) in [
        (Value::Null, "karpenter.k8s.aws"),
        (json!(""), "karpenter.k8s.aws"),
        (json!("karpenter.k8s.aws/v1beta1"), "karpenter.k8s.aws"),
        (json!("example.com/v2"), "example.com"),
    ] {
        let old = json!({ "apiVersion": api_version, "kind": "Some", "name": "default" });
        let new = translated(V1BETA1, V1, REFERENCE, old);
        let expected = json!({ "group": group, "kind": "Some", "name": "default" });
        assert_eq!(new, expected, "{api_version}");
    }
    let unnamed = translated(V1BETA1, V1, REFERENCE, json!({ "name": "default" }));
    assert_eq!(unnamed["kind"], "EC2NodeClass");
}

#[test]
fn a_reference_that_was_edited_in_v1_is_not_restored() {
    let old =
        r#"{"apiVersion":"karpenter.k8s.aws/v1beta1","kind":"EC2NodeClass","name":"default"}"#;
    let reference = |name: &str| {
        let now = json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": name });
        let spec = json!({ "template": { "spec": { "nodeClassRef": now } } });
        let mut stored = v1(Kind::NodePool, spec);
        stored["metadata"]["annotations"] = json!({ names::NODE_CLASS_REF_COMPATIBILITY: old });
        let old = convert(&stored, V1BETA1, &NoLookup).unwrap();
        old.pointer(REFERENCE).unwrap().clone()
    };
    for name in ["default", "other"] {
        let expected = json!({ "apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "name": name });
        assert_eq!(reference(name), expected);
    }
}

#[test]
fn the_nodeclass_of_the_walkthrough_means_the_same_in_v1() {
    let old = beta(
        Kind::EC2NodeClass,
        json!({
            "amiFamily": "AL2", "role": "role",
            "subnetSelectorTerms": [{ "tags": { "a": "b" } }], "securityGroupSelectorTerms": [{ "tags": { "a": "b" } }],
        }),
    );
    let new = upgrade(&old).unwrap();
    assert_eq!(
        new["spec"],
        json!({
            "role": "role", "amiSelectorTerms": [{ "alias": "al2@latest" }],
            "subnetSelectorTerms": [{ "tags": { "a": "b" } }], "securityGroupSelectorTerms": [{ "tags": { "a": "b" } }],
            "metadataOptions": {
                "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 2, "httpTokens": "required",
            },
        })
    );
    assert_eq!(round_trip(&old, V1), old);
}

#[test]
fn a_v1_alias_reads_as_a_family_and_comes_back() {
    let new = v1(
        Kind::EC2NodeClass,
        json!({ "amiSelectorTerms": [{ "alias": "al2023@v20240807" }], "kubelet": { "maxPods": 3 }, "ipPrefixCount": 1 }),
    );
    let old = convert(&new, V1BETA1, &NoLookup).unwrap();
    assert_eq!(old["spec"], json!({ "amiFamily": "AL2023" }));
    assert_eq!(convert(&old, V1, &NoLookup).unwrap(), new);
}

#[test]
fn ubuntu_is_converted_as_by_upstreams_webhook() {
    let terms =
        json!({ "amiFamily": "Ubuntu", "role": "r", "amiSelectorTerms": [{ "id": "ami-1" }] });
    let new = convert(&beta(Kind::EC2NodeClass, terms), V1, &NoLookup).unwrap();
    assert_eq!(new["spec"]["amiFamily"], "AL2");
    assert_eq!(
        new["spec"]["blockDeviceMappings"][0]["deviceName"],
        "/dev/sda1"
    );
    assert_eq!(
        new["metadata"]["annotations"][names::UBUNTU_COMPATIBILITY],
        "amiFamily,blockDeviceMappings"
    );
    let bare = beta(
        Kind::EC2NodeClass,
        json!({ "amiFamily": "Ubuntu", "role": "r" }),
    );
    let new = convert(&bare, V1, &NoLookup).unwrap();
    assert_eq!(
        new["metadata"]["annotations"][names::UBUNTU_COMPATIBILITY],
        "amiFamily,blockDeviceMappings,incompatible"
    );
    assert_eq!(convert(&new, V1BETA1, &NoLookup).unwrap(), bare);
}

#[test]
fn kubelet_settings_are_kept_in_the_annotation_of_upstreams_webhook() {
    let old = beta(
        Kind::NodePool,
        json!({ "template": { "spec": { "kubelet": { "maxPods": 20 }, "nodeClassRef": { "name": "default" } } } }),
    );
    let new = convert(&old, V1, &NoLookup).unwrap();
    assert_eq!(
        new["metadata"]["annotations"][names::KUBELET_COMPATIBILITY],
        r#"{"maxPods":20}"#
    );
    assert_eq!(new["spec"]["template"]["spec"]["kubelet"], Value::Null);
    assert_eq!(convert(&new, V1BETA1, &NoLookup).unwrap(), old);
}

#[test]
fn objects_stored_by_upstreams_webhook_are_converted() {
    let mut stored = v1(
        Kind::NodeClaim,
        json!({ "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" }, "expireAfter": "720h" }),
    );
    stored["metadata"]["annotations"] = json!({
        names::NODE_CLASS_REF_COMPATIBILITY: r#"{"apiVersion":"karpenter.k8s.aws/v1beta1","kind":"EC2NodeClass","name":"default"}"#,
        names::KUBELET_COMPATIBILITY: r#"{"maxPods":20}"#,
    });
    let old = convert(&stored, V1BETA1, &NoLookup).unwrap();
    assert_eq!(old["spec"]["kubelet"]["maxPods"], 20);
    assert_eq!(
        old["spec"]["nodeClassRef"],
        json!({ "apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "name": "default" })
    );
    assert_eq!(convert(&old, V1, &NoLookup).unwrap(), stored);
}

#[test]
fn an_edit_in_the_other_version_overrides_carried_values() {
    let new = v1(
        Kind::NodePool,
        json!({
            "template": { "spec": { "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "expireAfter": "1h", "terminationGracePeriod": "5m" } },
            "disruption": { "consolidationPolicy": "Balanced", "consolidateAfter": "1m" },
        }),
    );
    let mut old = convert(&new, V1BETA1, &NoLookup).unwrap();
    assert_eq!(
        old["spec"]["disruption"]["consolidationPolicy"],
        "WhenUnderutilized"
    );
    old["spec"]["disruption"] = json!({ "consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s", "expireAfter": "2h" });
    let edited = convert(&old, V1, &NoLookup).unwrap();
    assert_eq!(
        edited["spec"]["disruption"],
        json!({ "consolidationPolicy": "WhenEmpty", "consolidateAfter": "30s" })
    );
    assert_eq!(edited["spec"]["template"]["spec"]["expireAfter"], "2h");
    assert_eq!(
        edited["spec"]["template"]["spec"]["terminationGracePeriod"], "5m",
        "fields without an edit are kept"
    );
}

struct Pools;

impl Lookup for Pools {
    fn expire_after(&self, node_pool: &str) -> Option<String> {
        (node_pool == "default").then(|| "Never".to_owned())
    }
}

#[test]
fn a_nodeclaim_gets_the_expiry_of_its_nodepool() {
    let mut old = beta(
        Kind::NodeClaim,
        json!({ "nodeClassRef": { "name": "default" } }),
    );
    old["metadata"]["labels"] = json!({ "karpenter.sh/nodepool": "default" });
    let new = convert(&old, V1, &Pools).unwrap();
    assert_eq!(new["spec"]["expireAfter"], "Never");
    // A NodeClaim keeps its expiry when the NodePool changes: its spec is immutable.
    let back = convert(&new, V1BETA1, &Pools).unwrap();
    assert_eq!(back["spec"], old["spec"]);
    assert_eq!(convert(&back, V1, &NoLookup).unwrap(), new);
    let other = convert(&new, V1BETA1, &NoLookup).unwrap();
    assert_eq!(convert(&other, V1, &Pools).unwrap(), new);
}

#[test]
fn other_kinds_and_versions_are_rejected() {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod" });
    assert!(matches!(
        convert(&pod, V1, &NoLookup),
        Err(ConversionError::Unknown { .. })
    ));
    let pool = beta(Kind::NodePool, json!({}));
    assert_eq!(
        convert(&pool, "karpenter.sh/v2", &NoLookup),
        Err(ConversionError::Version("v2".into()))
    );
    assert_eq!(
        convert(&pool, "example.com/v1", &NoLookup),
        Err(ConversionError::Version("example.com/v1".into()))
    );
    let broken = beta(Kind::NodePool, json!([1]));
    assert_eq!(
        convert(&broken, V1, &NoLookup),
        Err(ConversionError::Malformed("spec"))
    );
    assert_eq!(
        convert(&pool, "karpenter.sh/v1beta1", &NoLookup).unwrap(),
        pool
    );
}

/// Returns one of the values, or null.
fn maybe(values: Vec<Value>) -> BoxedStrategy<Value> {
    let mut all = values;
    all.push(Value::Null);
    proptest::sample::select(all).boxed()
}

/// Returns an object with some of the fields.
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
