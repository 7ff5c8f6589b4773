//! The NodeClaim definition, rule by rule.

use serde_json::{Value, json};

use super::{Admission, claim, with};

fn with_requirement(requirement: Value) -> Value {
    with(claim(), "spec.requirements", json!([requirement]))
}

/// Conformance: API-070
#[test]
fn the_spec_cannot_change() {
    let admission = Admission::node_claim();
    let changed = with(claim(), "spec.terminationGracePeriod", "1h".into());
    assert_eq!(
        admission.refusals(&changed, Some(&claim())),
        ["spec is immutable"]
    );
    let mut labeled = claim();
    labeled["metadata"]["labels"] = json!({ "a": "b" });
    labeled["status"] = json!({ "nodeName": "n" });
    assert_eq!(admission.refusals(&labeled, Some(&claim())), [""; 0]);
}

/// Conformance: API-071
#[test]
fn expire_after_has_a_default_and_the_rest_is_required() {
    let admission = Admission::node_claim();
    assert_eq!(admission.defaulted(&claim())["spec"]["expireAfter"], "720h");
    admission.accepts(&claim());
    admission.refuses(&with(claim(), "spec.nodeClassRef", Value::Null));
    admission.refuses(&with(claim(), "spec.requirements", Value::Null));
    admission.accepts(&with(claim(), "spec.expireAfter", "Never".into()));
    admission.accepts(&with(
        claim(),
        "spec.resources",
        json!({ "requests": { "cpu": "1", "pods": 5 } }),
    ));
}

/// Conformance: API-072
#[test]
fn of_karpenter_s_domain_only_two_labels_can_be_required() {
    let admission = Admission::node_claim();
    let exists = |key: &str| with_requirement(json!({ "key": key, "operator": "Exists" }));
    admission.accepts(&exists("karpenter.sh/nodepool"));
    admission.accepts(&exists("karpenter.sh/capacity-type"));
    admission.refuses_with(
        &exists("karpenter.sh/x"),
        "label domain \"karpenter.sh\" is restricted",
    );
    admission.refuses_with(
        &exists("kubernetes.io/hostname"),
        "label \"kubernetes.io/hostname\" is restricted",
    );
}

/// Conformance: API-053
#[test]
fn bounds_stay_positive() {
    let admission = Admission::node_claim();
    let bound = |operator: &str, value: &str| {
        with_requirement(json!({ "key": "a", "operator": operator, "values": [value] }))
    };
    admission.accepts(&bound("Gte", "0"));
    admission.refuses(&bound("Lte", "-1"));
}

/// Conformance: API-075
#[test]
fn an_old_condition_may_lack_reason_and_message() {
    let admission = Admission::node_claim();
    let mut object = claim();
    object["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
    admission.accepts(&object);
    object["status"]["conditions"][0]["reason"] = "".into();
    admission.accepts(&object);
    object["status"]["conditions"][0]["reason"] = "not a word".into();
    admission.refuses(&object);
}
