mod round_trip;

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
fn what_was_edited_in_an_ubuntu_nodeclass_after_its_conversion_is_kept() {
    let bare = beta(
        Kind::EC2NodeClass,
        json!({ "amiFamily": "Ubuntu", "role": "r" }),
    );
    let mut new = convert(&bare, V1, &NoLookup).unwrap();
    let terms = json!([{ "id": "ami-1" }]);
    let devices = json!([{ "deviceName": "/dev/sda1", "ebs": { "volumeSize": "99Gi" } }]);
    new["spec"]["amiSelectorTerms"] = terms.clone();
    new["spec"]["blockDeviceMappings"] = devices.clone();
    let old = convert(&new, V1BETA1, &NoLookup).unwrap();
    let expected = json!({
        "amiFamily": "Ubuntu", "role": "r", "amiSelectorTerms": terms, "blockDeviceMappings": devices,
    });
    assert_eq!(old["spec"], expected);
    // The placeholder of another family is what its user wrote.
    let mut other = v1(
        Kind::EC2NodeClass,
        json!({ "amiFamily": "AL2", "role": "r", "amiSelectorTerms": [{ "id": "ami-placeholder" }] }),
    );
    other["metadata"]["annotations"] = json!({ names::UBUNTU_COMPATIBILITY: "amiFamily" });
    let old = convert(&other, V1BETA1, &NoLookup).unwrap();
    assert_eq!(
        old["spec"]["amiSelectorTerms"],
        json!([{ "id": "ami-placeholder" }])
    );
}

#[test]
fn what_the_other_version_does_not_have_is_carried_in_an_annotation() {
    let carried = |object: &Value, name: &str| {
        let text = object["metadata"]["annotations"][name].as_str();
        text.map(str::to_owned)
    };
    let reference =
        json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    let new = v1(
        Kind::NodePool,
        json!({
            "template": { "spec": { "nodeClassRef": reference, "terminationGracePeriod": "5m", "expireAfter": "1h" } },
            "disruption": { "consolidationPolicy": "WhenEmpty", "consolidateAfter": "1m" },
        }),
    );
    let old = convert(&new, V1BETA1, &NoLookup).unwrap();
    let text = carried(&old, "compatibility.karpenter.sh/v1-fields").unwrap();
    assert!(text.contains("terminationGracePeriod"), "{text}");
    let old = beta(
        Kind::NodePool,
        json!({
            "template": { "spec": { "nodeClassRef": { "name": "default" } } },
            "disruption": { "consolidationPolicy": "WhenUnderutilized", "expireAfter": "720h" },
        }),
    );
    let new = convert(&old, V1, &NoLookup).unwrap();
    assert!(
        carried(&new, "compatibility.karpenter.sh/v1beta1-fields").is_some(),
        "{new}"
    );
}

#[test]
fn a_nodeclaim_of_v1beta1_means_the_same_in_v1() {
    let old = beta(
        Kind::NodeClaim,
        json!({
            "nodeClassRef": { "apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "name": "default" },
            "kubelet": { "maxPods": 20 },
        }),
    );
    assert!(NoLookup.is_ready(), "it waits for no NodePool");
    let new = convert(&old, V1, &NoLookup).unwrap();
    let reference =
        json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" });
    assert_eq!(new["spec"], json!({ "nodeClassRef": reference }));
    assert_eq!(
        new["metadata"]["annotations"][names::KUBELET_COMPATIBILITY],
        r#"{"maxPods":20}"#
    );
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

#[test]
fn an_alias_stands_for_an_ami_family_and_not_for_terms_of_the_user() {
    let terms = |spec: Value| {
        let old = beta(Kind::EC2NodeClass, spec);
        let new = convert(&old, V1, &NoLookup).unwrap();
        new["spec"]["amiSelectorTerms"].clone()
    };
    let alias = json!([{ "alias": "al2@latest" }]);
    assert_eq!(terms(json!({ "amiFamily": "AL2", "role": "r" })), alias);
    let own = json!([{ "id": "ami-1" }]);
    let with_terms = json!({ "amiFamily": "AL2", "role": "r", "amiSelectorTerms": own });
    assert_eq!(terms(with_terms), own);
    let custom = terms(json!({ "amiFamily": "Custom", "role": "r" }));
    assert!(!custom.to_string().contains("alias"), "{custom}");
}
