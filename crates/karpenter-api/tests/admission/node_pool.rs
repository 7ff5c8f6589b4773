//! The NodePool definition, rule by rule.

use serde_json::{Value, json};

use super::{Admission, pool, with};

const TEMPLATE: &str = "spec.template.spec";

fn pool_with(path: &str, value: Value) -> Value {
    with(pool(), path, value)
}

fn template_with(field: &str, value: Value) -> Value {
    pool_with(&format!("{TEMPLATE}.{field}"), value)
}

fn with_budget(budget: Value) -> Value {
    with_disruption(json!({ "budgets": [budget] }))
}

fn with_disruption(disruption: Value) -> Value {
    pool_with("spec.disruption", disruption)
}

fn with_requirement(requirement: Value) -> Value {
    template_with("requirements", json!([requirement]))
}

fn with_labels(labels: Value) -> Value {
    pool_with("spec.template.metadata", json!({ "labels": labels }))
}

/// Conformance: API-001
#[test]
fn keys_are_qualified_names() {
    let admission = Admission::node_pool();
    for (key, accepted) in [
        ("foo", true),
        ("a.b/C_d", true),
        ("Test.com/x", false),
        ("a/b/c", false),
        ("x/", false),
        ("/x", false),
        ("", false),
    ] {
        let requirement = with_requirement(json!({ "key": key, "operator": "Exists" }));
        let taint = template_with("taints", json!([{ "key": key, "effect": "NoSchedule" }]));
        let startup_taint = template_with(
            "startupTaints",
            json!([{ "key": key, "value": "v", "effect": "NoExecute" }]),
        );
        for object in [requirement, taint, startup_taint] {
            admission.takes(&object, accepted);
        }
    }
    admission.refuses(&template_with(
        "taints",
        json!([{ "key": "a", "effect": "Never" }]),
    ));
    admission.accepts(&template_with(
        "taints",
        json!([{ "key": "a", "value": "b/c", "effect": "PreferNoSchedule" }]),
    ));
}

/// Conformance: API-002, API-025, API-026
#[test]
fn durations_have_whole_hours_minutes_and_seconds() {
    let admission = Admission::node_pool();
    let with = |text: &str| {
        [
            template_with("terminationGracePeriod", text.into()),
            template_with("expireAfter", text.into()),
            with_disruption(json!({ "consolidateAfter": text })),
        ]
    };
    for text in ["0s", "720h", "1h30m", "1s1s1h"] {
        with(text)
            .iter()
            .for_each(|object| admission.accepts(object));
    }
    for text in [
        "", "1.5h", "-1h", "+1h", "10ms", "1d", "5", "never", "Never1h",
    ] {
        with(text)
            .iter()
            .for_each(|object| admission.refuses(object));
    }
    let [grace_period, others @ ..] = with("Never");
    admission.refuses(&grace_period);
    others.iter().for_each(|object| admission.accepts(object));
}

/// Conformance: API-005
#[test]
fn label_values_are_checked_and_requirement_values_are_not() {
    let admission = Admission::node_pool();
    admission.accepts(&with_labels(json!({ "a": "", "b": "x_Y.z-1" })));
    admission.refuses(&with_labels(json!({ "a": "-x" })));
    admission.refuses(&with_labels(json!({ "a": "x".repeat(64) })));
    admission.accepts(&with_requirement(
        json!({ "key": "a", "operator": "In", "values": ["-x", "x".repeat(64)] }),
    ));
}

/// Conformance: API-006
#[test]
fn limits_are_integers_or_quantities() {
    let admission = Admission::node_pool();
    for quantity in [
        json!(5),
        json!("5"),
        json!("1.5Gi"),
        json!("-1"),
        json!("1e3"),
        json!("100m"),
    ] {
        admission.accepts(&pool_with(
            "spec.limits",
            json!({ "cpu": quantity, "example.com/any": quantity, "nodes": quantity }),
        ));
    }
    for quantity in [
        json!(1.5),
        json!("five"),
        json!("1 Gi"),
        json!(true),
        json!(""),
    ] {
        admission.refuses(&pool_with("spec.limits", json!({ "cpu": quantity })));
    }
}

/// Conformance: API-008
#[test]
fn requirements_are_required_and_bounded() {
    let admission = Admission::node_pool();
    let many = |count: usize| {
        template_with(
            "requirements",
            vec![json!({ "key": "a", "operator": "Exists" }); count].into(),
        )
    };
    admission.accepts(&many(0));
    admission.accepts(&many(100));
    admission.refuses(&many(101));
    admission.refuses(&template_with("requirements", Value::Null));
    for (min_values, accepted) in [(0, false), (1, true), (50, true), (51, false)] {
        let values: Vec<String> = (0..60).map(|value| value.to_string()).collect();
        let object = with_requirement(
            json!({ "key": "a", "operator": "In", "values": values, "minValues": min_values }),
        );
        admission.takes(&object, accepted);
    }
    admission.accepts(&with_requirement(
        json!({ "key": "a".repeat(316), "operator": "Exists" }),
    ));
    admission.refuses(&with_requirement(
        json!({ "key": "a".repeat(317), "operator": "Exists" }),
    ));
    admission.refuses(&with_requirement(json!({ "key": "a" })));
    admission.refuses(&with_requirement(
        json!({ "key": "a", "operator": "exists" }),
    ));
}

/// Conformance: API-009
#[test]
fn the_reference_to_the_node_class_is_complete() {
    let admission = Admission::node_pool();
    let with = |field, value| template_with(&format!("nodeClassRef.{field}"), value);
    for field in ["group", "kind", "name"] {
        let message = format!("{field} may not be empty");
        admission.refuses_with(&with(field, "".into()), &message);
        admission.refuses(&with(field, Value::Null));
    }
    admission.refuses(&with("group", "karpenter.k8s.aws/v1".into()));
    admission.refuses(&template_with("nodeClassRef", Value::Null));
}

/// Conformance: API-020, API-021, API-022, API-023, API-024
#[test]
fn defaults_are_set_for_absent_fields_and_not_for_empty_ones() {
    let admission = Admission::node_pool();
    let disruption = json!({ "consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized", "budgets": [{ "nodes": "10%" }] });
    let defaulted = admission.defaulted(&pool());
    assert_eq!(defaulted["spec"]["disruption"], disruption);
    let template = &defaulted["spec"]["template"]["spec"];
    assert_eq!(template["expireAfter"], "720h");
    assert_eq!(template.get("terminationGracePeriod"), None);
    assert_eq!(
        admission.defaulted(&with_disruption(json!({})))["spec"]["disruption"],
        disruption
    );
    let empty = admission.defaulted(&with_disruption(json!({ "budgets": [] })));
    assert_eq!(empty["spec"]["disruption"]["budgets"], json!([]));
}

/// Conformance: API-027
#[test]
fn consolidation_policies_are_case_sensitive() {
    let admission = Admission::node_pool();
    let policy = |policy: &str| with_disruption(json!({ "consolidationPolicy": policy }));
    for accepted in ["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"] {
        admission.accepts(&policy(accepted));
    }
    for refused in ["whenEmpty", "WhenUnderutilized", ""] {
        admission.refuses(&policy(refused));
    }
}

/// Conformance: API-028
#[test]
fn a_budget_has_a_number_or_a_percentage_of_nodes() {
    let admission = Admission::node_pool();
    for nodes in ["0", "5", "1000000", "0%", "7%", "99%", "100%"] {
        admission.accepts(&with_budget(json!({ "nodes": nodes })));
    }
    for nodes in ["", "101%", "-1", "1.5", "5 %", "%", "ten"] {
        admission.refuses(&with_budget(json!({ "nodes": nodes })));
    }
    admission.refuses(&with_budget(json!({ "nodes": 5 })));
    assert_eq!(
        admission.defaulted(&with_budget(json!({})))["spec"]["disruption"]["budgets"],
        json!([{ "nodes": "10%" }])
    );
    let many =
        |count: usize| with_disruption(json!({ "budgets": vec![json!({ "nodes": "1" }); count] }));
    admission.accepts(&many(50));
    admission.refuses(&many(51));
}

/// Conformance: API-029
#[test]
fn a_budget_has_a_schedule_and_a_duration_or_neither() {
    let admission = Admission::node_pool();
    admission.accepts(&with_budget(
        json!({ "nodes": "1", "schedule": "@daily", "duration": "1h" }),
    ));
    let message = "'schedule' must be set with 'duration'";
    admission.refuses_with(
        &with_budget(json!({ "nodes": "1", "schedule": "@daily" })),
        message,
    );
    admission.refuses_with(
        &with_budget(json!({ "nodes": "1", "duration": "1h" })),
        message,
    );
}

/// Conformance: API-030
#[test]
fn a_budget_s_schedule_and_duration_have_a_format() {
    let admission = Admission::node_pool();
    let budget = |schedule: &str, duration: &str| {
        with_budget(json!({ "nodes": "1", "schedule": schedule, "duration": duration }))
    };
    for duration in ["20m", "1h", "2h30m", "1h0s", "20m0s", "0m"] {
        admission.accepts(&budget("@daily", duration));
    }
    for duration in ["30s", "1h30m20s", "", "-1h", "30m1h", "Never"] {
        admission.refuses(&budget("@daily", duration));
    }
    for schedule in [
        "* * * * *",
        "0 10 * * mon-fri",
        "@hourly",
        "@dailyx",
        "TZ=UTC 0 0 * * *",
    ] {
        admission.accepts(&budget(schedule, "1h"));
    }
    for schedule in ["", "*", "* * *", "@every 1h"] {
        admission.refuses(&budget(schedule, "1h"));
    }
}

/// Conformance: API-031
#[test]
fn a_budget_s_reasons_are_known() {
    let admission = Admission::node_pool();
    for reasons in [json!([]), json!(["Underutilized", "Empty", "Drifted"])] {
        admission.accepts(&with_budget(json!({ "nodes": "1", "reasons": reasons })));
    }
    admission.refuses(&with_budget(
        json!({ "nodes": "1", "reasons": ["drifted"] }),
    ));
    admission.refuses(&with_budget(
        json!({ "nodes": "1", "reasons": ["Expired"] }),
    ));
    let reasons = &admission.schema["properties"]["spec"]["properties"]["disruption"]["properties"]
        ["budgets"]["items"]["properties"]["reasons"];
    assert_eq!(
        (&reasons["maxItems"], &reasons["x-kubernetes-list-type"]),
        (&json!(50), &json!("set"))
    );
}

/// Conformance: API-032
#[test]
fn a_weight_is_from_1_to_100() {
    let admission = Admission::node_pool();
    for (weight, accepted) in [
        (json!(0), false),
        (json!(1), true),
        (json!(100), true),
        (json!(101), false),
        (json!("1"), false),
    ] {
        admission.takes(&pool_with("spec.weight", weight.clone()), accepted);
    }
}

/// Conformance: API-033
#[test]
fn a_pool_stays_static_or_dynamic() {
    let admission = Admission::node_pool();
    let (dynamic, with_three, with_five) = (
        pool(),
        pool_with("spec.replicas", json!(3)),
        pool_with("spec.replicas", json!(5)),
    );
    admission.accepts(&pool_with("spec.replicas", json!(0)));
    admission.refuses(&pool_with("spec.replicas", json!(-1)));
    assert_eq!(admission.refusals(&with_five, Some(&with_three)), [""; 0]);
    let message = "Cannot transition NodePool between static (replicas set) and dynamic (replicas unset) provisioning modes";
    assert_eq!(admission.refusals(&with_three, Some(&dynamic)), [message]);
    assert_eq!(admission.refusals(&dynamic, Some(&with_three)), [message]);
}

/// Conformance: API-034, API-035
#[test]
fn a_static_pool_has_no_weight_and_limits_nodes_only() {
    let admission = Admission::node_pool();
    let fixed =
        |field: &str, value: Value| with(pool_with("spec.replicas", json!(1)), field, value);
    admission.accepts(&fixed("spec.limits", json!({})));
    admission.accepts(&fixed("spec.limits", json!({ "nodes": "5" })));
    let message = "only 'limits.nodes' is supported on static NodePools";
    admission.refuses_with(&fixed("spec.limits", json!({ "cpu": "5" })), message);
    admission.refuses_with(
        &fixed("spec.limits", json!({ "nodes": "5", "cpu": "5" })),
        message,
    );
    admission.refuses_with(
        &fixed("spec.weight", json!(5)),
        "'weight' is not supported on static NodePools",
    );
}

/// Conformance: API-036, API-096, API-099
#[test]
fn reserved_labels_cannot_be_set() {
    let admission = Admission::node_pool();
    for key in [
        "karpenter.sh/capacity-type",
        "kubernetes.io/x",
        "node.kubernetes.io/x",
        "kops.k8s.io/x",
        "a/B",
        "any key at all",
    ] {
        admission.accepts(&with_labels(json!({ key: "x" })));
    }
    for key in [
        "karpenter.sh/x",
        "a.karpenter.sh/x",
        "notkarpenter.sh/x",
        "foo.karpenter.sh",
    ] {
        admission.refuses_with(
            &with_labels(json!({ key: "x" })),
            "label domain \"karpenter.sh\" is restricted",
        );
    }
    for key in ["karpenter.sh/nodepool", "kubernetes.io/hostname"] {
        admission.refuses_with(
            &with_labels(json!({ key: "x" })),
            &format!("label \"{key}\" is restricted"),
        );
    }
    let many = |count: usize| {
        let labels = (0..count).map(|label| (label.to_string(), json!("x")));
        with_labels(Value::from_iter(labels))
    };
    admission.accepts(&many(100));
    admission.refuses(&many(101));
}

/// Conformance: API-055, API-099
#[test]
fn reserved_labels_cannot_be_required() {
    let admission = Admission::node_pool();
    let exists = |key: &str| with_requirement(json!({ "key": key, "operator": "Exists" }));
    for key in [
        "karpenter.sh/x",
        "a.karpenter.sh/x",
        "notkarpenter.sh/x",
        "foo.karpenter.sh",
    ] {
        admission.refuses_with(&exists(key), "label domain \"karpenter.sh\" is restricted");
    }
    for key in ["karpenter.sh/nodepool", "kubernetes.io/hostname"] {
        admission.refuses_with(&exists(key), &format!("label \"{key}\" is restricted"));
    }
    for key in [
        "karpenter.sh/capacity-type",
        "kubernetes.io/arch",
        "k8s.io/x",
        "topology.kubernetes.io/zone",
    ] {
        admission.accepts(&exists(key));
    }
}

/// Conformance: API-053
#[test]
fn operators_have_the_values_they_need() {
    let admission = Admission::node_pool();
    for accepted in [
        json!({ "key": "a", "operator": "NotIn", "values": [] }),
        json!({ "key": "a", "operator": "Exists", "values": ["x"] }),
        json!({ "key": "a", "operator": "DoesNotExist" }),
        json!({ "key": "a", "operator": "Lt", "values": ["0"] }),
        json!({ "key": "a", "operator": "In", "values": ["x", "x"], "minValues": 2 }),
        json!({ "key": "a", "operator": "Exists", "minValues": 2 }),
    ] {
        admission.accepts(&with_requirement(accepted));
    }
    for operator in ["Gt", "Lt", "Gte", "Lte"] {
        for values in [json!([]), json!(["1", "2"]), json!(["-1"]), json!(["1.5"])] {
            admission.refuses(&with_requirement(
                json!({ "key": "a", "operator": operator, "values": values }),
            ));
        }
    }
    admission.refuses(&with_requirement(json!({ "key": "a", "operator": "In" })));
    let contradiction =
        json!([{ "key": "a", "operator": "Exists" }, { "key": "a", "operator": "DoesNotExist" }]);
    admission.accepts(&template_with("requirements", contradiction));
}

/// Conformance: API-037
#[test]
fn the_kind_of_node_class_cannot_change() {
    let admission = Admission::node_pool();
    let update = |field: &str| {
        let changed = template_with(&format!("nodeClassRef.{field}"), "other".into());
        admission.refusals(&changed, Some(&pool()))
    };
    assert_eq!(update("group"), ["nodeClassRef.group is immutable"]);
    assert_eq!(update("kind"), ["nodeClassRef.kind is immutable"]);
    assert_eq!(update("name"), [""; 0]);
}

/// Conformance: API-075
#[test]
fn a_condition_is_complete() {
    let admission = Admission::node_pool();
    let condition = json!({ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let mut object = pool();
    object["status"] = json!({});
    let with_condition =
        |condition: &Value| with(object.clone(), "status.conditions", json!([condition]));
    admission.accepts(&with_condition(&condition));
    for field in ["type", "status", "reason", "message", "lastTransitionTime"] {
        let mut incomplete = condition.clone();
        incomplete.as_object_mut().unwrap().remove(field);
        admission.refuses(&with_condition(&incomplete));
    }
}
