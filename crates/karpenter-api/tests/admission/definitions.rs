//! The definitions as a whole: printer columns of kubectl, structural schemas, and that types and schemas have the same fields.

use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::crd;
use karpenter_api::crd::RestrictedDomain;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_api::v1alpha1::NodeOverlay;
use serde_json::{Value, json};

use super::{Admission, pool, with};

/// Returns the printer columns; those that only `-o wide` prints have a star.
fn columns(definition: &Value) -> Vec<String> {
    let columns = &definition["spec"]["versions"][0]["additionalPrinterColumns"];
    let columns = columns.as_array().unwrap().iter();
    let text = |column: &Value| {
        let star = if column["priority"] == 1 { "*" } else { "" };
        let [name, kind, path] =
            ["name", "type", "jsonPath"].map(|field| column[field].as_str().unwrap());
        format!("{name}{star} {kind} {path}")
    };
    columns.map(text).collect()
}

/// Checks the scope, categories and short names of a kind, and that its status is a subresource beside these others.
fn check(definition: &Value, scope: &str, category: &str, short_names: Value, others: Value) {
    let spec = &definition["spec"];
    assert_eq!(spec["scope"], scope);
    assert_eq!(spec["names"]["categories"], json!([category]));
    assert_eq!(spec["names"]["shortNames"], short_names);
    let mut subresources = others;
    subresources["status"] = json!({});
    assert_eq!(spec["versions"][0]["subresources"], subresources);
}

/// Conformance: API-038
#[test]
fn node_pools_have_the_printer_columns_of_upstream() {
    let definition = crd::node_pool(&[]);
    assert_eq!(
        columns(&definition),
        [
            "NodeClass string .spec.template.spec.nodeClassRef.name",
            "Nodes string .status.nodes",
            r#"Ready string .status.conditions[?(@.type=="Ready")].status"#,
            "Age date .metadata.creationTimestamp",
            "Weight* integer .spec.weight",
            "CPU* string .status.resources.cpu",
            "Memory* string .status.resources.memory",
        ]
    );
    let names = json!({ "kind": "NodePool", "listKind": "NodePoolList", "plural": "nodepools", "singular": "nodepool", "categories": ["karpenter"] });
    assert_eq!(definition["spec"]["names"], names);
    let scale =
        json!({ "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.nodes" });
    let scale = json!({ "scale": scale });
    check(&definition, "Cluster", "karpenter", Value::Null, scale);
}

/// Conformance: API-073
#[test]
fn node_claims_have_the_printer_columns_of_upstream() {
    let definition = crd::node_claim(&[]);
    assert_eq!(
        columns(&definition),
        [
            r"Type string .metadata.labels.node\.kubernetes\.io/instance-type",
            r"Capacity string .metadata.labels.karpenter\.sh/capacity-type",
            r"Zone string .metadata.labels.topology\.kubernetes\.io/zone",
            "Node string .status.nodeName",
            r#"Ready string .status.conditions[?(@.type=="Ready")].status"#,
            "Age date .metadata.creationTimestamp",
            "ImageID* string .status.imageID",
            "ID* string .status.providerID",
            r"NodePool* string .metadata.labels.karpenter\.sh/nodepool",
            "NodeClass* string .spec.nodeClassRef.name",
            r#"Drifted* string .status.conditions[?(@.type=="Drifted")].status"#,
        ]
    );
    check(&definition, "Cluster", "karpenter", Value::Null, json!({}));
}

/// Conformance: API-087
#[test]
fn node_overlays_have_the_printer_columns_of_upstream() {
    let definition = crd::node_overlay(&[]);
    let ready = r#"Ready string .status.conditions[?(@.type=="Ready")].status"#;
    assert_eq!(
        columns(&definition),
        [
            ready,
            "Age date .metadata.creationTimestamp",
            "Weight* integer .spec.weight"
        ]
    );
    assert_eq!(definition["spec"]["versions"][0]["name"], "v1alpha1");
    let short = json!(["overlays"]);
    check(&definition, "Cluster", "karpenter", short, json!({}));
}

/// Conformance: API-105
#[test]
fn capacity_buffers_have_the_printer_columns_of_upstream() {
    let definition = crd::capacity_buffer();
    assert_eq!(
        columns(&definition),
        [
            "Strategy string .spec.provisioningStrategy",
            "PodTemplate string .status.podTemplateRef.name",
            "Replicas integer .status.replicas",
            "ConditionsType string .status.conditions[*].type",
            "ConditionsStatus string .status.conditions[*].status",
            "ConditionsReason string .status.conditions[*].reason",
            "Age date .metadata.creationTimestamp",
        ]
    );
    let name = &definition["metadata"]["name"];
    assert_eq!(name, "capacitybuffers.autoscaling.x-k8s.io");
    let short = json!(["cb"]);
    check(&definition, "Namespaced", "autoscaling", short, json!({}));
}

/// Calls `visit` for a schema and every nested schema, with its path.
fn walk(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), visit);
    }
    for nested in ["items", "additionalProperties"] {
        if schema[nested].is_object() {
            walk(&schema[nested], &format!("{path}.{nested}"), visit);
        }
    }
}

fn schema(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// Conformance: API-113
#[test]
fn schemas_are_structural() {
    const KEYWORDS: [&str; 22] = [
        "additionalProperties",
        "anyOf",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minLength",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-map-type",
        "x-kubernetes-validations",
    ];
    for (name, definition) in crd::all(&[], &[]) {
        walk(schema(&definition), name, &mut |path, schema| {
            for keyword in schema.as_object().unwrap().keys() {
                assert!(KEYWORDS.contains(&keyword.as_str()), "{path}: {keyword}");
            }
            let quantity = schema["x-kubernetes-int-or-string"] == true;
            assert!(quantity || schema["type"].is_string(), "{path}");
            assert_eq!(quantity, schema["anyOf"].is_array(), "{path}");
            for bound in ["minimum", "maximum", "minLength", "maxLength", "maxItems"] {
                let value = &schema[bound];
                assert!(
                    value.is_null() || value.is_u64() || value.is_i64(),
                    "{path}: {bound}"
                );
            }
            for required in schema["required"].as_array().into_iter().flatten() {
                let property = &schema["properties"][required.as_str().unwrap()];
                assert!(property.is_object(), "{path}: {required}");
            }
        });
    }
}

/// Conformance: API-113
#[test]
fn lists_and_maps_merge_as_upstream_s_do() {
    let mut found = Vec::new();
    for definition in [
        crd::node_pool(&[]),
        crd::node_claim(&[]),
        crd::node_overlay(&[]),
        crd::capacity_buffer(),
    ] {
        walk(
            schema(&definition),
            definition["spec"]["names"]["kind"].as_str().unwrap(),
            &mut |path, schema| {
                for kind in ["x-kubernetes-list-type", "x-kubernetes-map-type"] {
                    if let Some(kind) = schema[kind].as_str() {
                        found.push(format!("{path} {kind}"));
                    }
                }
            },
        );
    }
    assert_eq!(
        found,
        [
            "NodePool.spec.disruption.budgets atomic",
            "NodePool.spec.disruption.budgets.items.reasons set",
            "NodePool.spec.template.metadata.annotations granular",
            "NodePool.spec.template.metadata.labels atomic",
            "NodePool.spec.template.spec.requirements atomic",
            "NodePool.spec.template.spec.requirements.items.values atomic",
            "NodePool.spec.template.spec.startupTaints atomic",
            "NodePool.spec.template.spec.taints atomic",
            "NodePool.status.conditions map",
            "NodeClaim.spec.requirements atomic",
            "NodeClaim.spec.requirements.items.values atomic",
            "NodeClaim.spec.startupTaints atomic",
            "NodeClaim.spec.taints atomic",
            "NodeClaim.status.conditions map",
            "NodeOverlay.spec.requirements atomic",
            "NodeOverlay.spec.requirements.items.values atomic",
            "NodeOverlay.status.conditions map",
            "CapacityBuffer.status.conditions map",
        ]
    );
}

/// Conformance: API-112
#[test]
fn every_rule_compiles() {
    let mut rules = 0;
    let kwok = RestrictedDomain {
        domain: "karpenter.kwok.sh".into(),
        allowed: vec![],
    };
    for (name, definition) in crd::all(&[kwok], &[]) {
        walk(schema(&definition), name, &mut |path, schema| {
            let errors = kube_cel::compile_schema(schema).compilation_errors().len();
            assert_eq!(errors, 0, "{path}");
            let found = schema["x-kubernetes-validations"].as_array();
            for rule in found.into_iter().flatten() {
                let is_complete = rule["message"].is_string() && rule["rule"].is_string();
                assert!(is_complete, "{path}: {rule}");
                rules += 1;
            }
        });
    }
    assert_eq!(rules, 39);
    Admission::node_pool().accepts(&pool());
}

/// Conformance: API-114
#[test]
fn a_provider_reserves_its_domain() {
    let kwok = RestrictedDomain {
        domain: "karpenter.kwok.sh".into(),
        allowed: vec!["karpenter.kwok.sh/instance-size".into()],
    };
    let admission = Admission::new(&crd::node_pool(std::slice::from_ref(&kwok)));
    let required = |key: &str| json!([{ "key": key, "operator": "Exists" }]);
    let requirement = |key: &str| with(pool(), "spec.template.spec.requirements", required(key));
    let label = |key: &str| {
        let labels = json!({ "labels": { key: "x" } });
        with(pool(), "spec.template.metadata", labels)
    };
    let (other, allowed) = ("karpenter.kwok.sh/other", "karpenter.kwok.sh/instance-size");
    let message = "label domain \"karpenter.kwok.sh\" is restricted";
    for object in [requirement(other), label(other)] {
        admission.refuses_with(&object, message);
        Admission::node_pool().accepts(&object);
    }
    admission.accepts(&requirement(allowed));
    admission.accepts(&label(allowed));

    let claims = Admission::new(&crd::node_claim(&[kwok]));
    let claim = with(super::claim(), "spec.requirements", required(other));
    claims.refuses_with(&claim, message);
}

/// Returns a minimal object with every field of a schema.
fn sample(schema: &Value) -> Value {
    if schema["x-kubernetes-int-or-string"] == true {
        return "1".into();
    }
    match schema["type"].as_str().unwrap_or_default() {
        "object" if schema["properties"].is_object() => schema["properties"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, property)| (name.clone(), sample(property)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        "object" if schema["additionalProperties"].is_object() => {
            json!({ "k": sample(&schema["additionalProperties"]) })
        }
        "object" => json!({}),
        "array" => json!([sample(&schema["items"])]),
        "integer" => schema["minimum"].as_i64().unwrap_or(1).max(1).into(),
        _ if schema["enum"].is_array() => schema["enum"][0].clone(),
        _ if schema["format"] == "date-time" => "2026-01-01T00:00:00Z".into(),
        // Only the patterns of durations end with a unit.
        _ if schema["pattern"]
            .as_str()
            .is_some_and(|pattern| pattern.contains("(h|m)") || pattern.contains("(s|m|h)")) =>
        {
            "1h".into()
        }
        _ => "x".into(),
    }
}

/// Conformance: API-115
#[test]
fn types_and_schemas_have_the_same_fields() {
    fn check<T: serde::Serialize + serde::de::DeserializeOwned>(definition: &Value) {
        let mut written = sample(schema(definition));
        let names = &definition["spec"];
        written["apiVersion"] = format!(
            "{}/{}",
            names["group"].as_str().unwrap(),
            names["versions"][0]["name"].as_str().unwrap()
        )
        .into();
        written["kind"] = names["names"]["kind"].clone();
        let read: T = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(
            serde_json::to_value(&read).unwrap(),
            written,
            "a field of the schema is not a field of the type, or is serialized differently"
        );
    }
    check::<NodePool>(&crd::node_pool(&[]));
    check::<NodeClaim>(&crd::node_claim(&[]));
    check::<NodeOverlay>(&crd::node_overlay(&[]));
    check::<CapacityBuffer>(&crd::capacity_buffer());
}

/// Conformance: API-115
#[test]
fn serialized_types_are_admitted() {
    let mut pool = NodePool::new("a", Default::default());
    pool.spec.template.spec.node_class_ref = serde_json::from_value(super::reference()).unwrap();
    Admission::node_pool().accepts(&serde_json::to_value(&pool).unwrap());
    let claim = pool.spec.template.to_node_claim();
    Admission::node_claim().accepts(&serde_json::to_value(&claim).unwrap());
}

#[test]
fn definitions_deserialize_as_kubernetes_types() {
    use karpenter_api::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    for (name, definition) in crd::all(&[], &[]) {
        let read: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
        assert_eq!(read.spec.versions.len(), 1, "{name}");
    }
}
