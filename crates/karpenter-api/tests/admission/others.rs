//! The NodeOverlay and CapacityBuffer definitions, rule by rule.

use serde_json::{Value, json};

use super::Admission;

fn overlays() -> Admission {
    Admission::node_overlay()
}

fn overlay(spec: Value) -> Value {
    let mut object = json!({ "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": "a" }, "spec": { "requirements": [] } });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

fn buffers() -> Admission {
    Admission::capacity_buffer()
}

fn buffer(spec: Value) -> Value {
    json!({ "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": { "name": "a", "namespace": "b" }, "spec": spec })
}

/// Conformance: API-081
#[test]
fn an_overlay_has_a_price_or_an_adjustment() {
    overlays().accepts(&overlay(json!({ "price": "1.5" })));
    overlays().accepts(&overlay(json!({ "priceAdjustment": "+10%" })));
    overlays().refuses_with(
        &overlay(json!({ "price": "1.5", "priceAdjustment": "+10%" })),
        "cannot set both 'price' and 'priceAdjustment'",
    );
}

/// Conformance: API-082
#[test]
fn a_price_is_an_unsigned_decimal() {
    for price in ["0", "5", "0.05", "1000.0"] {
        overlays().accepts(&overlay(json!({ "price": price })));
    }
    for price in ["", "-1", "+1", "1.", ".5", "5%", "1e3"] {
        overlays().refuses(&overlay(json!({ "price": price })));
    }
    overlays().refuses(&overlay(json!({ "price": 5 })));
}

/// Conformance: API-083
#[test]
fn an_adjustment_has_a_sign_and_is_at_least_minus_100_percent() {
    for adjustment in [
        "+1", "-1", "+.5", "-0.5", "+10%", "+1000%", "-15%", "-99.9%", "-100%", "-100",
    ] {
        overlays().accepts(&overlay(json!({ "priceAdjustment": adjustment })));
    }
    for adjustment in ["", "1", "10%", "-101%", "-100.5%", "+", "+%", "--1"] {
        overlays().refuses(&overlay(json!({ "priceAdjustment": adjustment })));
    }
}

/// Conformance: API-084
#[test]
fn standard_capacity_cannot_be_overlaid() {
    overlays().accepts(&overlay(
        json!({ "capacity": { "smarter-devices/fuse": 1, "example.com/gpu": "2" } }),
    ));
    for resource in ["cpu", "memory", "ephemeral-storage", "pods"] {
        overlays().refuses_with(
            &overlay(json!({ "capacity": { resource: "1" } })),
            "invalid resource restricted",
        );
    }
}

/// Conformance: API-085
#[test]
fn an_overlay_s_weight_is_from_1_to_10000() {
    for (weight, accepted) in [(0, false), (1, true), (10_000, true), (10_001, false)] {
        overlays().takes(&overlay(json!({ "weight": weight })), accepted);
    }
    use karpenter_api::v1alpha1::NodeOverlay;
    let overlay = |name: &str, weight: Option<i32>| {
        let mut overlay = NodeOverlay::new(name, Default::default());
        overlay.spec.weight = weight;
        overlay
    };
    let mut ordered = [
        overlay("a", None),
        overlay("b", Some(2)),
        overlay("c", Some(2)),
        overlay("d", Some(10)),
    ];
    ordered.sort_by(NodeOverlay::application_order);
    let ordered = ordered.each_ref();
    assert_eq!(ordered.map(NodeOverlay::weight), [10, 2, 2, 0]);
    assert_eq!(ordered.map(NodeOverlay::name), ["d", "c", "b", "a"]);
}

/// Conformance: API-086
#[test]
fn in_and_not_in_have_values() {
    let requirement = |key: &str, operator: &str, values: Value| {
        let requirement = json!({ "key": key, "operator": operator, "values": values });
        overlay(json!({ "requirements": [requirement] }))
    };
    for operator in ["In", "NotIn"] {
        let message = format!("requirements with operator '{operator}' must have a value defined");
        overlays().refuses_with(&requirement("a", operator, json!([])), &message);
        overlays().accepts(&requirement("a", operator, json!(["x"])));
    }
    overlays().accepts(&requirement("karpenter.sh/nodepool", "In", json!(["x"])));
    overlays().refuses(&requirement("karpenter.sh/x", "Exists", json!([])));
    overlays().refuses(&requirement("kubernetes.io/hostname", "Exists", json!([])));
    overlays().refuses(&requirement("a", "Gte", json!(["-1"])));
    let properties = &overlays().schema["properties"]["spec"]["properties"]["requirements"]["items"]
        ["properties"];
    assert_eq!(properties.get("minValues"), None);
}

/// Conformance: API-100
#[test]
fn a_buffer_s_strategy_has_a_default() {
    let defaulted = buffers().defaulted(&buffer(json!({ "replicas": 1 })));
    assert_eq!(
        defaulted["spec"]["provisioningStrategy"],
        "buffer.x-k8s.io/active-capacity"
    );
}

/// Conformance: API-101
#[test]
fn a_buffer_has_one_reference_at_most() {
    let template = json!({ "name": "t" });
    let workload = json!({ "apiGroup": "apps", "kind": "Deployment", "name": "d" });
    buffers().accepts(&buffer(json!({})));
    buffers().accepts(&buffer(json!({ "scalableRef": workload })));
    let both =
        buffer(json!({ "podTemplateRef": template, "scalableRef": workload, "replicas": 1 }));
    buffers().refuses_with(
        &both,
        "You must define either PodTemplateRef or ScalableRef, but not both",
    );
}

/// Conformance: API-102
#[test]
fn a_buffer_of_a_template_has_a_size() {
    let with = |field: &str, value: Value| {
        buffer(json!({ "podTemplateRef": { "name": "t" }, field: value }))
    };
    buffers().accepts(&with("replicas", json!(1)));
    buffers().accepts(&with("limits", json!({ "cpu": "4" })));
    buffers().refuses_with(
        &with("percentage", json!(10)),
        "If podTemplateRef is set, replicas or limits must also be set",
    );
}

/// Conformance: API-103
#[test]
fn a_buffer_s_references_have_names() {
    for (spec, accepted) in [
        (
            json!({ "podTemplateRef": { "name": "" }, "replicas": 1 }),
            false,
        ),
        (json!({ "podTemplateRef": {}, "replicas": 1 }), false),
        (json!({ "scalableRef": { "kind": "", "name": "d" } }), false),
        (
            json!({ "scalableRef": { "kind": "Deployment", "name": "" } }),
            false,
        ),
        (
            json!({ "scalableRef": { "kind": "Deployment", "name": "d" } }),
            true,
        ),
    ] {
        buffers().takes(&buffer(spec), accepted);
    }
}

/// Conformance: API-104
#[test]
fn a_buffer_s_size_is_not_negative() {
    for field in ["replicas", "percentage"] {
        for (value, accepted) in [(-1, false), (0, true), (250, true)] {
            buffers().takes(&buffer(json!({ field: value })), accepted);
        }
    }
}
