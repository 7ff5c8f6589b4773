//! The objects that an API server with the CustomResourceDefinition of EC2NodeClass accepts, rule by rule.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failing test panics"
)]

mod selector_terms;

use std::sync::LazyLock;

use karpenter_api::v1::NodePool;
use karpenter_api::validation;
use karpenter_aws::api;
use serde_json::{Value, json};

/// Admission of one kind: the schema by jsonschema, rules and defaults by kube-cel.
struct Admission {
    schema: Value,
    structure: jsonschema::Validator,
}

impl Admission {
    fn new(definition: &Value) -> Self {
        let schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        let options = jsonschema::options().with_draft(jsonschema::Draft::Draft7);
        let structure = options
            .build(&schema)
            .expect("a definition holds a JSON schema");
        Self { schema, structure }
    }

    fn defaulted(&self, object: &Value) -> Value {
        let once = kube_cel::apply_defaults(&self.schema, object);
        kube_cel::apply_defaults(&self.schema, &once)
    }

    fn refusals(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let object = self.defaulted(object);
        let structure: Vec<String> = self
            .structure
            .iter_errors(&object)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        if !structure.is_empty() {
            return structure;
        }
        let old = old.map(|old| self.defaulted(old));
        match kube_cel::Validator::new().validate(&self.schema, &object, old.as_ref()) {
            Ok(()) => Vec::new(),
            Err(errors) => errors
                .into_vec()
                .into_iter()
                .map(|error| error.message)
                .collect(),
        }
    }
}

static CLASS: LazyLock<Admission> = LazyLock::new(|| Admission::new(&api::crd()));

/// Returns a class with `spec` merged over the minimal spec; `null` removes a field.
fn class(spec: Value) -> Value {
    let mut all = json!({
        "role": "role",
        "subnetSelectorTerms": [{ "tags": { "a": "b" } }],
        "securityGroupSelectorTerms": [{ "tags": { "a": "b" } }],
        "amiSelectorTerms": [{ "alias": "al2023@latest" }],
    });
    for (key, value) in spec.as_object().unwrap() {
        if value.is_null() {
            all.as_object_mut().unwrap().remove(key);
        } else {
            all[key] = value.clone();
        }
    }
    json!({ "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "a" }, "spec": all })
}

#[track_caller]
fn accepted(spec: Value) {
    assert_eq!(
        CLASS.refusals(&class(spec.clone()), None),
        [""; 0],
        "{spec}"
    );
}

/// Asserts that the rule with this message, or the schema at this path, refuses the spec.
#[track_caller]
fn refused(spec: Value, rule: &str) {
    let refusals = CLASS.refusals(&class(spec.clone()), None);
    assert!(
        refusals.iter().any(|refusal| refusal.contains(rule)),
        "{refusals:?} for {spec}"
    );
}

/// Conformance: AWS-api-01, AWS-api-32
#[test]
fn either_a_role_or_an_instance_profile_is_required() {
    accepted(json!({}));
    accepted(json!({ "role": null, "instanceProfile": "p" }));
    let one = "must specify exactly one of ['role', 'instanceProfile']";
    refused(json!({ "instanceProfile": "p" }), one);
    refused(json!({ "role": null }), one);
    refused(json!({ "role": "" }), "role cannot be empty");
    refused(
        json!({ "role": null, "instanceProfile": "" }),
        "instanceProfile cannot be empty",
    );
}

/// Conformance: AWS-api-26
#[test]
fn node_classes_are_shown_as_upstream_shows_them() {
    let definition = api::crd();
    let spec = &definition["spec"];
    assert_eq!(spec["scope"], "Cluster");
    assert_eq!(
        spec["names"],
        json!({
            "categories": ["karpenter"],
            "kind": "EC2NodeClass",
            "listKind": "EC2NodeClassList",
            "plural": "ec2nodeclasses",
            "shortNames": ["ec2nc", "ec2ncs"],
            "singular": "ec2nodeclass",
        }),
    );
    let columns: Vec<_> = spec["versions"][0]["additionalPrinterColumns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| {
            let priority = column["priority"].as_i64().unwrap_or_default();
            (column["name"].as_str().unwrap(), priority)
        })
        .collect();
    assert_eq!(columns, [("Ready", 0), ("Age", 0), ("Role", 1)]);
}

/// Conformance: AWS-api-27
#[test]
fn lists_are_as_long_as_upstream_admits() {
    let terms = |prefix: &str, count: usize| -> Value {
        (0..count)
            .map(|n| json!({ "id": format!("{prefix}-{n}") }))
            .collect()
    };
    for (field, prefix, family) in [
        ("subnetSelectorTerms", "subnet", Value::Null),
        ("securityGroupSelectorTerms", "sg", Value::Null),
        ("amiSelectorTerms", "ami", json!("AL2023")),
        ("capacityReservationSelectorTerms", "cr", Value::Null),
    ] {
        let of = |count| json!({ field: terms(prefix, count), "amiFamily": family });
        accepted(of(30));
        refused(
            of(31),
            &format!("/spec/{field}: [{{\"id\":\"{prefix}-0\"}}"),
        );
        let tagged = |count: usize| {
            let tags: serde_json::Map<String, Value> =
                (0..count).map(|n| (format!("k{n}"), json!("v"))).collect();
            json!({ field: [{ "tags": tags }], "amiFamily": family })
        };
        accepted(tagged(20));
        refused(tagged(21), &format!("/spec/{field}/0/tags: {{"));
    }
    let alias = |length: usize| {
        let version = "1".repeat(length - "bottlerocket@".len());
        json!({ "amiSelectorTerms": [{ "alias": format!("bottlerocket@{version}") }] })
    };
    accepted(alias(30));
    refused(alias(31), "is longer than 30 characters");
    let mappings = |count: usize| -> Value {
        let mapping = json!({ "ebs": { "volumeSize": "1Gi" } });
        json!({ "blockDeviceMappings": vec![mapping; count] })
    };
    accepted(mappings(50));
    refused(mappings(51), "/spec/blockDeviceMappings: [");
    let interfaces = |count: usize| -> Value {
        (0..count)
            .map(|n| json!({ "networkCardIndex": 0, "deviceIndex": n, "interfaceType": "interface" }))
            .collect()
    };
    accepted(json!({ "networkInterfaces": interfaces(150) }));
    refused(
        json!({ "networkInterfaces": interfaces(151) }),
        "/spec/networkInterfaces: [",
    );
}

/// Conformance: AWS-api-28
#[test]
fn ids_have_the_prefix_of_what_they_name() {
    for (field, prefix, family) in [
        ("subnetSelectorTerms", "subnet-", Value::Null),
        ("securityGroupSelectorTerms", "sg-", Value::Null),
        ("amiSelectorTerms", "ami-", json!("AL2023")),
        ("capacityReservationSelectorTerms", "cr-", Value::Null),
    ] {
        let of = |id: &str| json!({ field: [{ "id": id }], "amiFamily": family });
        accepted(of(&format!("{prefix}0a1")));
        for id in ["0a1", prefix, "vol-0a1"] {
            refused(of(id), &format!("/0/id: \"{id}\" does not match"));
        }
    }
    let group = |id: &str| json!({ "placementGroupSelector": { "id": id } });
    accepted(group("pg-0a1"));
    refused(group("pg-"), "/id: \"pg-\" does not match");
}

/// Conformance: AWS-api-33
#[test]
fn volumes_stores_and_prefixes_have_known_values() {
    let volume = |kind: &str| json!({ "blockDeviceMappings": [{ "ebs": { "volumeSize": "1Gi", "volumeType": kind } }] });
    for kind in ["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"] {
        accepted(volume(kind));
    }
    refused(volume("gp4"), "/0/ebs/volumeType: \"gp4\" is not one of");
    accepted(json!({ "instanceStorePolicy": "RAID0" }));
    refused(
        json!({ "instanceStorePolicy": "RAID1" }),
        "/spec/instanceStorePolicy: \"RAID1\" is not one of",
    );
    accepted(json!({ "ipPrefixCount": 0 }));
    refused(
        json!({ "ipPrefixCount": -1 }),
        "/spec/ipPrefixCount: -1 is less than the minimum of 0",
    );
}

/// Conformance: AWS-api-02
#[test]
fn the_role_may_change() {
    let role = class(json!({}));
    let other = class(json!({ "role": "other" }));
    let profile = class(json!({ "role": null, "instanceProfile": "p" }));
    for (new, old) in [(&other, &role), (&profile, &role), (&role, &profile)] {
        assert_eq!(CLASS.refusals(new, Some(old)), [""; 0]);
    }
}

/// Conformance: AWS-api-17
#[test]
fn karpenter_s_own_tags_cannot_be_set() {
    accepted(json!({ "tags": {} }));
    accepted(json!({ "tags": { "Name": "a", "team": "b" } }));
    for (key, rule) in [
        ("", "empty tag keys aren't supported"),
        (
            "eks:eks-cluster-name",
            "restricted tag matching eks:eks-cluster-name",
        ),
        (
            "kubernetes.io/cluster/a",
            "restricted tag matching kubernetes.io/cluster/",
        ),
        (
            "karpenter.sh/nodepool",
            "restricted tag matching karpenter.sh/nodepool",
        ),
        (
            "karpenter.sh/nodeclaim",
            "restricted tag matching karpenter.sh/nodeclaim",
        ),
        (
            "karpenter.k8s.aws/ec2nodeclass",
            "restricted tag matching karpenter.k8s.aws/ec2nodeclass",
        ),
    ] {
        refused(json!({ "tags": { key: "a" } }), rule);
        assert!(api::labels::tags::restriction(key).is_some(), "{key}");
    }
    assert_eq!(api::labels::tags::restriction("Name"), None);
}

/// Conformance: AWS-api-18, AWS-api-19, AWS-api-20
#[test]
fn disks_have_a_size_within_bounds() {
    let root = json!({ "rootVolume": true, "ebs": { "volumeSize": "10Gi" } });
    accepted(json!({ "blockDeviceMappings": [root] }));
    refused(
        json!({ "blockDeviceMappings": [root, root] }),
        "must have only one blockDeviceMappings with rootVolume",
    );
    let sized = |size: &str| json!({ "blockDeviceMappings": [{ "ebs": { "volumeSize": size } }] });
    for size in [
        "1Gi", "59000Gi", "64000G", "4G", "1Ti", "18Ti", "58Ti", "64T",
    ] {
        accepted(sized(size));
    }
    for size in [
        "0Gi", "65T", "59Ti", "59001Gi", "64001G", "Ti", "10", "1Mi", "big", "",
    ] {
        refused(
            sized(size),
            &format!("/0/ebs/volumeSize: \"{size}\" does not match"),
        );
    }
    let rate = |ebs: Value| json!({ "blockDeviceMappings": [{ "ebs": ebs }] });
    accepted(rate(
        json!({ "snapshotID": "snap-1", "volumeInitializationRate": 100 }),
    ));
    refused(
        rate(json!({ "volumeSize": "1Gi", "volumeInitializationRate": 100 })),
        "snapshotID must be set when volumeInitializationRate is set",
    );
    refused(
        rate(json!({ "snapshotID": "snap-1", "volumeInitializationRate": 99 })),
        "volumeInitializationRate: 99 is less than the minimum of 100",
    );
    refused(
        rate(json!({ "snapshotID": "snap-1", "volumeInitializationRate": 301 })),
        "volumeInitializationRate: 301 is greater than the maximum of 300",
    );
    refused(
        rate(json!({ "encrypted": true })),
        "snapshotID or volumeSize must be defined",
    );
}

/// Conformance: AWS-api-21
#[test]
fn network_interfaces_include_a_primary_one_and_have_unique_indices() {
    let interface = |card: i32, device: i32, kind: &str| json!({ "networkCardIndex": card, "deviceIndex": device, "interfaceType": kind });
    let of = |interfaces: Vec<Value>| json!({ "networkInterfaces": interfaces });
    let primary = interface(0, 0, "interface");
    accepted(of(vec![]));
    accepted(of(vec![primary.clone()]));
    accepted(of(vec![
        primary.clone(),
        interface(0, 1, "efa-only"),
        interface(1, 0, "efa-only"),
    ]));
    let no_primary = "networkInterfaces must include an interface of type 'interface' with networkCardIndex 0 and deviceIndex 0";
    refused(of(vec![interface(0, 1, "interface")]), no_primary);
    refused(of(vec![interface(0, 0, "efa-only")]), no_primary);
    refused(
        of(vec![primary.clone(), primary.clone()]),
        "the pair of networkCardIndex and deviceIndex must be unique in networkInterfaces",
    );
    refused(
        of(vec![primary.clone(), interface(-1, 0, "interface")]),
        "/1/networkCardIndex: -1 is less than the minimum of 0",
    );
    refused(
        of(vec![primary.clone(), interface(0, -1, "interface")]),
        "/1/deviceIndex: -1 is less than the minimum of 0",
    );
    refused(
        of(vec![
            primary.clone(),
            interface(1, 0, "efa-only"),
            interface(1, 1, "efa-only"),
        ]),
        "at most one interface of type 'efa-only' is allowed on a network card",
    );
    refused(
        of(vec![primary, interface(1, 0, "token-ring")]),
        "/1/interfaceType: \"token-ring\" is not one of",
    );
}

/// Conformance: AWS-api-22, AWS-api-23
#[test]
fn connection_tracking_and_cpu_options_are_within_bounds() {
    let tracking = |value: Value| json!({ "connectionTracking": value });
    refused(
        tracking(json!({})),
        "expected at least one, got none, ['tcpEstablishedTimeout', 'udpStreamTimeout', 'udpTimeout']",
    );
    for (field, least, most) in [
        ("tcpEstablishedTimeout", 60, 432_000),
        ("udpStreamTimeout", 60, 180),
        ("udpTimeout", 30, 60),
    ] {
        accepted(tracking(json!({ field: least })));
        accepted(tracking(json!({ field: most })));
        let bound = |value: i64, bound: &str| format!("{field}: {value} is {bound}");
        refused(
            tracking(json!({ field: least - 1 })),
            &bound(least - 1, "less than the minimum"),
        );
        refused(
            tracking(json!({ field: most + 1 })),
            &bound(most + 1, "greater than the maximum"),
        );
    }
    accepted(json!({ "cpuOptions": {} }));
    accepted(json!({ "cpuOptions": { "nestedVirtualization": "enabled" } }));
    accepted(json!({ "cpuOptions": { "nestedVirtualization": "disabled" } }));
    refused(
        json!({ "cpuOptions": { "nestedVirtualization": "maybe" } }),
        "/spec/cpuOptions/nestedVirtualization: \"maybe\" is not one of",
    );
}

/// Conformance: AWS-api-30
#[test]
fn a_placement_group_has_a_name_or_an_id() {
    accepted(json!({ "placementGroupSelector": { "name": "a" } }));
    accepted(json!({ "placementGroupSelector": { "id": "pg-1" } }));
    let one = "must specify exactly one of ['name', 'id']";
    refused(json!({ "placementGroupSelector": {} }), one);
    refused(
        json!({ "placementGroupSelector": { "name": "a", "id": "pg-1" } }),
        one,
    );
    refused(
        json!({ "placementGroupSelector": { "id": "1" } }),
        "/spec/placementGroupSelector/id: \"1\" does not match",
    );
}

/// Conformance: AWS-api-24
#[test]
fn kubelet_settings_are_stored_unchanged() {
    let kubelet =
        json!({ "maxPods": 10, "someday": { "nested": [{ "tree": 1.5, "kept": null }] } });
    let object = class(json!({ "kubelet": kubelet }));
    assert_eq!(CLASS.refusals(&object, None), [""; 0]);
    assert_eq!(CLASS.defaulted(&object)["spec"]["kubelet"], kubelet);
    let read: api::EC2NodeClass = serde_json::from_value(object).unwrap();
    let written = serde_json::to_value(&read).unwrap();
    assert_eq!(written["spec"]["kubelet"], kubelet);
}

/// Conformance: AWS-api-25
#[test]
fn a_known_value_among_the_values_of_a_pool_is_enough() {
    let known = api::well_known();
    for (key, valid) in [
        ("karpenter.sh/capacity-type", "spot"),
        ("karpenter.k8s.aws/instance-tenancy", "dedicated"),
    ] {
        let is_ok = |values: Value| {
            let pool: NodePool = serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [{ "key": key, "operator": "In", "values": values }],
            } } } }))
            .unwrap();
            validation::node_pool(&pool, &known).is_ok()
        };
        assert!(is_ok(json!([valid, "nonsense"])), "{key}");
        assert!(!is_ok(json!(["nonsense"])), "{key}");
    }
}

/// Conformance: AWS-api-34
#[test]
fn metadata_options_have_defaults() {
    let defaulted = CLASS.defaulted(&class(json!({})));
    let expected = json!({ "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "required" });
    assert_eq!(defaulted["spec"]["metadataOptions"], expected);
    let partly = CLASS.defaulted(&class(
        json!({ "metadataOptions": { "httpTokens": "optional" } }),
    ));
    assert_eq!(
        partly["spec"]["metadataOptions"],
        json!({ "httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "optional" }),
    );
    for (field, value) in [
        ("httpEndpoint", "disabled"),
        ("httpProtocolIPv6", "enabled"),
        ("httpTokens", "optional"),
    ] {
        accepted(json!({ "metadataOptions": { field: value } }));
        refused(
            json!({ "metadataOptions": { field: "maybe" } }),
            &format!("/spec/metadataOptions/{field}: \"maybe\" is not one of"),
        );
    }
    accepted(json!({ "metadataOptions": { "httpPutResponseHopLimit": 64 } }));
    refused(
        json!({ "metadataOptions": { "httpPutResponseHopLimit": 0 } }),
        "httpPutResponseHopLimit: 0 is less than the minimum of 1",
    );
    refused(
        json!({ "metadataOptions": { "httpPutResponseHopLimit": 65 } }),
        "httpPutResponseHopLimit: 65 is greater than the maximum of 64",
    );
}

#[test]
fn every_rule_compiles() {
    fn walk(schema: &Value, path: &str, rules: &mut usize) {
        let compiled = kube_cel::compile_schema(schema);
        assert!(compiled.compilation_errors().is_empty(), "{path}");
        *rules += schema["x-kubernetes-validations"]
            .as_array()
            .map_or(0, Vec::len);
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            walk(property, &format!("{path}.{name}"), rules);
        }
        for nested in ["items", "additionalProperties"] {
            if schema[nested].is_object() {
                walk(&schema[nested], &format!("{path}.{nested}"), rules);
            }
        }
    }
    let mut rules = 0;
    walk(&CLASS.schema, "EC2NodeClass", &mut rules);
    assert_eq!(rules, 44);
}

/// Conformance: AWS-api-35
#[test]
fn the_label_domain_of_aws_is_reserved() {
    let pool = Admission::new(&karpenter_api::crd::node_pool(&[api::restricted_domain()]));
    let overlay = Admission::new(&karpenter_api::crd::node_overlay(&[api::overlay_domain()]));
    let requiring = |key: &str| json!([{ "key": key, "operator": "In", "values": ["x"] }]);
    let in_pool = |key: &str| {
        let reference =
            json!({ "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "a" });
        let spec = json!({ "template": { "spec": { "nodeClassRef": reference, "requirements": requiring(key) } } });
        pool.refusals(&json!({ "metadata": { "name": "a" }, "spec": spec }), None)
            .is_empty()
    };
    let in_overlay = |key: &str| {
        let spec = json!({ "price": "1", "requirements": requiring(key) });
        overlay
            .refusals(&json!({ "metadata": { "name": "a" }, "spec": spec }), None)
            .is_empty()
    };
    for key in [
        "instance-family",
        "instance-size",
        "instance-category",
        "instance-generation",
        "instance-capability-flex",
        "instance-cpu",
        "instance-memory",
        "instance-cpu-manufacturer",
        "instance-cpu-sustained-clock-speed-mhz",
        "instance-ebs-bandwidth",
        "instance-network-bandwidth",
        "instance-hypervisor",
        "instance-encryption-in-transit-supported",
        "instance-local-nvme",
        "instance-gpu-name",
        "instance-gpu-manufacturer",
        "instance-gpu-count",
        "instance-gpu-memory",
        "instance-accelerator-name",
        "instance-accelerator-manufacturer",
        "instance-accelerator-count",
    ] {
        let key = format!("karpenter.k8s.aws/{key}");
        assert!(in_pool(&key) && in_overlay(&key), "{key}");
    }
    for key in [
        "instance-tenancy",
        "capacity-reservation-id",
        "capacity-reservation-type",
        "capacity-reservation-interruptible",
        "placement-group-id",
        "placement-group-partition",
    ] {
        let key = format!("karpenter.k8s.aws/{key}");
        assert_eq!((in_pool(&key), in_overlay(&key)), (true, false), "{key}");
    }
    for (key, pools, overlays) in [
        ("karpenter.k8s.aws/instance-family", true, true),
        ("karpenter.k8s.aws/ec2nodeclass", true, true),
        ("karpenter.k8s.aws/instance-tenancy", true, false),
        ("karpenter.k8s.aws/capacity-reservation-id", true, false),
        ("karpenter.k8s.aws/placement-group-id", true, false),
        ("karpenter.k8s.aws/color", false, false),
        ("example.com/color", true, true),
    ] {
        assert_eq!((in_pool(key), in_overlay(key)), (pools, overlays), "{key}");
    }
}
