//! The schemas of `karpenter.sh/v1beta1` and `karpenter.k8s.aws/v1beta1`: those of v1, but for the differences stated here.
//!
//! Controllers never read these versions: the API server converts them ([`crate::conversion`]), as documents. So there are no types,
//! and a description of v1 holds for v1beta1 where the field means the same. `cargo xtask crds` shows what a change of v1 does here.
//!
//! UPSTREAM: pkg/apis/v1beta1 of both repositories (up to v1.0)

use karpenter_api::crd::schema_of;
use serde_json::{Map, Value, json};

use crate::conversion::V1BETA1;
use crate::kubelet::KubeletConfiguration;

/// Returns the version v1beta1 of a NodePool for the definition's version v1.
pub(crate) fn node_pool(v1: &Value) -> Value {
    let mut old = version(
        v1,
        json!([
            { "name": "NodeClass", "type": "string", "jsonPath": ".spec.template.spec.nodeClassRef.name" },
            { "name": "Weight", "type": "integer", "jsonPath": ".spec.weight", "priority": 1 },
        ]),
        json!({ "x-kubernetes-validations": null, "properties": {
            "replicas": null,
            "limits": { "description": "Bounds on the total resources of the pool's nodes, by resource." },
            "weight": { "description": "The priority of the pool in scheduling: higher weights are tried first." },
            "template": { "properties": { "spec": claim() } },
            "disruption": disruption(),
        } }),
    );
    merge(&mut old["subresources"], json!({ "scale": null }));
    old
}

/// Returns the version v1beta1 of a NodeClaim for the definition's version v1.
pub(crate) fn node_claim(v1: &Value) -> Value {
    let label = |label: &str| format!(".metadata.labels.{}", label.replace('.', r"\."));
    let ready = r#".status.conditions[?(@.type=="Ready")].status"#;
    let mut spec = claim();
    spec["x-kubernetes-validations"] = Value::Null;
    version(
        v1,
        json!([
            { "name": "Type", "type": "string", "jsonPath": label("node.kubernetes.io/instance-type") },
            { "name": "Zone", "type": "string", "jsonPath": label("topology.kubernetes.io/zone") },
            { "name": "Node", "type": "string", "jsonPath": ".status.nodeName" },
            { "name": "Ready", "type": "string", "jsonPath": ready },
            { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
            { "name": "Capacity", "type": "string", "jsonPath": label("karpenter.sh/capacity-type"), "priority": 1 },
            { "name": "NodePool", "type": "string", "jsonPath": label("karpenter.sh/nodepool"), "priority": 1 },
            { "name": "NodeClass", "type": "string", "jsonPath": ".spec.nodeClassRef.name", "priority": 1 },
        ]),
        spec,
    )
}

/// Returns the version v1beta1 of an EC2NodeClass for the definition's version v1.
pub(crate) fn ec2_node_class(v1: &Value) -> Value {
    let terms = |rules: &[(&str, &str)]| {
        json!({
            "x-kubernetes-validations": rules_of(rules),
            "items": { "properties": { "tags": { "minProperties": null } } },
        })
    };
    let mut amis = terms(&[
        (
            "expected at least one, got none, ['tags', 'id', 'name']",
            "self.all(x, has(x.tags) || has(x.id) || has(x.name))",
        ),
        (
            "'id' is mutually exclusive, cannot be set with a combination of other fields in amiSelectorTerms",
            "self.all(x, !(has(x.id) && (has(x.tags) || has(x.name) || has(x.owner))))",
        ),
    ]);
    amis["minItems"] = Value::Null;
    amis["description"] =
        json!("AMIs; without terms the latest that EKS publishes for the family.");
    let properties = &mut amis["items"]["properties"];
    (properties["alias"], properties["ssmParameter"]) = (Value::Null, Value::Null);
    let spec = json!({
        "required": ["amiFamily", "securityGroupSelectorTerms", "subnetSelectorTerms"],
        "x-kubernetes-validations": rules_of(&[
            (
                "amiSelectorTerms is required when amiFamily == 'Custom'",
                "self.amiFamily == 'Custom' ? has(self.amiSelectorTerms) && self.amiSelectorTerms.size() != 0 : true",
            ),
            (
                "must specify exactly one of ['role', 'instanceProfile']",
                "(has(self.role) && !has(self.instanceProfile)) || (!has(self.role) && has(self.instanceProfile))",
            ),
        ]),
        "properties": {
            "capacityReservationSelectorTerms": null, "connectionTracking": null, "cpuOptions": null, "ipPrefixCount": null,
            "kubelet": null, "networkInterfaces": null, "placementGroupSelector": null,
            "amiFamily": {
                "description": "The AMI family, which decides the format of user data and the default volumes.",
                "enum": ["AL2", "AL2023", "Bottlerocket", "Custom", "Ubuntu", "Windows2019", "Windows2022", "Windows2025"],
            },
            "amiSelectorTerms": amis,
            "subnetSelectorTerms": terms(&[
                ("subnetSelectorTerms cannot be empty", "self.size() != 0"),
                ("expected at least one, got none, ['tags', 'id']", "self.all(x, has(x.tags) || has(x.id))"),
                (
                    "'id' is mutually exclusive, cannot be set with a combination of other fields in subnetSelectorTerms",
                    "self.all(x, !(has(x.id) && has(x.tags)))",
                ),
            ]),
            "securityGroupSelectorTerms": terms(&[
                ("securityGroupSelectorTerms cannot be empty", "self.size() != 0"),
                (
                    "expected at least one, got none, ['tags', 'id', 'name']",
                    "self.all(x, has(x.tags) || has(x.id) || has(x.name))",
                ),
                (
                    "'id' is mutually exclusive, cannot be set with a combination of other fields in securityGroupSelectorTerms",
                    "self.all(x, !(has(x.id) && (has(x.tags) || has(x.name))))",
                ),
                (
                    "'name' is mutually exclusive, cannot be set with a combination of other fields in securityGroupSelectorTerms",
                    "self.all(x, !(has(x.name) && (has(x.tags) || has(x.id))))",
                ),
            ]),
            "tags": { "x-kubernetes-validations": tag_rules() },
            "blockDeviceMappings": { "items": { "properties": { "ebs": {
                "x-kubernetes-validations": rules_of(&[
                    ("snapshotID or volumeSize must be defined", "has(self.snapshotID) || has(self.volumeSize)"),
                ]),
                "properties": { "volumeInitializationRate": null, "volumeSize": volume_size() },
            } } } },
            "metadataOptions": {
                "description": "How instances reach the instance metadata service. By default it is enabled over IPv4 with a hop limit of 2, and tokens are required.",
                "default": { "httpPutResponseHopLimit": 2 },
                "properties": { "httpPutResponseHopLimit": { "default": 2 } },
            },
        },
    });
    let age = json!([{ "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" }]);
    version(v1, age, spec)
}

/// Returns v1beta1, whose spec differs from that of v1 by a merge patch.
fn version(v1: &Value, columns: Value, spec: Value) -> Value {
    let mut old = v1.clone();
    old["name"] = V1BETA1.into();
    old["storage"] = false.into();
    old["additionalPrinterColumns"] = columns;
    merge(
        &mut old["schema"]["openAPIV3Schema"]["properties"]["spec"],
        spec,
    );
    old
}

/// The differences of a NodeClaim's spec.
fn claim() -> Value {
    json!({ "properties": {
        "expireAfter": null,
        "terminationGracePeriod": null,
        "kubelet": schema_of::<KubeletConfiguration>("Kubelet settings. v1 has them in the EC2NodeClass."),
        "nodeClassRef": { "required": ["name"], "x-kubernetes-validations": null, "properties": {
            "group": null,
            "apiVersion": {
                "type": "string",
                "description": "The group and version of the NodeClass; `karpenter.k8s.aws/v1beta1` if it is missing.",
            },
            "kind": {
                "description": "The kind of the NodeClass; EC2NodeClass if it is missing.",
                "x-kubernetes-validations": null,
            },
            "name": { "x-kubernetes-validations": null },
        } },
    } })
}

/// The differences of a NodePool's `spec.disruption`.
fn disruption() -> Value {
    json!({
        "default": { "consolidateAfter": null, "consolidationPolicy": "WhenUnderutilized", "expireAfter": "720h" },
        "x-kubernetes-validations": rules_of(&[
            (
                "consolidateAfter cannot be combined with consolidationPolicy=WhenUnderutilized",
                "has(self.consolidateAfter) ? self.consolidationPolicy != 'WhenUnderutilized' || self.consolidateAfter == 'Never' : true",
            ),
            (
                "consolidateAfter must be specified with consolidationPolicy=WhenEmpty",
                "self.consolidationPolicy == 'WhenEmpty' ? has(self.consolidateAfter) : true",
            ),
        ]),
        "properties": {
            "consolidateAfter": {
                "default": null,
                "description": "How long a node must have been empty, or `Never`. Only with consolidationPolicy WhenEmpty.",
            },
            "consolidationPolicy": {
                "default": "WhenUnderutilized",
                "description": "Which nodes consolidation may disrupt: WhenEmpty or WhenUnderutilized.",
                "enum": ["WhenEmpty", "WhenUnderutilized"],
            },
            "expireAfter": {
                "default": "720h",
                "description": "The age at which a node is terminated, or `Never`.",
                "pattern": "^(([0-9]+(s|m|h))+|Never)$",
                "type": "string",
            },
        },
    })
}

/// Any quantity, as in an AWSNodeTemplate.
fn volume_size() -> Value {
    json!({
        "type": null,
        "description": "The size of the volume, a quantity.",
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": crate::v1alpha1::QUANTITY,
        "x-kubernetes-int-or-string": true,
    })
}

fn tag_rules() -> Value {
    let mut rules = vec![
        json!({ "message": "empty tag keys aren't supported", "rule": "self.all(k, k != '')" }),
    ];
    for (key, test) in [
        (
            "kubernetes.io/cluster/",
            "!k.startsWith('kubernetes.io/cluster') ",
        ),
        ("karpenter.sh/nodepool", "k != 'karpenter.sh/nodepool'"),
        ("karpenter.sh/managed-by", "k !='karpenter.sh/managed-by'"),
        ("karpenter.sh/nodeclaim", "k !='karpenter.sh/nodeclaim'"),
        (
            "karpenter.k8s.aws/ec2nodeclass",
            "k !='karpenter.k8s.aws/ec2nodeclass'",
        ),
    ] {
        let message = format!("tag contains a restricted tag matching {key}");
        rules.push(json!({ "message": message, "rule": format!("self.all(k, {test})") }));
    }
    rules.into()
}

fn rules_of(rules: &[(&str, &str)]) -> Value {
    let rule = |(message, rule): &(&str, &str)| json!({ "message": message, "rule": rule });
    rules.iter().map(rule).collect()
}

/// Applies a JSON merge patch (RFC 7386).
fn merge(value: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *value = patch;
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    for (key, patch) in patch {
        match patch {
            Value::Null => drop(value.as_object_mut().and_then(|fields| fields.remove(&key))),
            patch => merge(&mut value[key], patch),
        }
    }
}
