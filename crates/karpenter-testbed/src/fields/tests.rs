//! Replays of recorded writes, and tests of the rules.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const CR_GOLDEN: &str = include_str!("../../../../tests/golden/apiserver-cr-golden.jsonl");
const CORE_GOLDEN: &str = include_str!("../../../../tests/golden/apiserver-core-golden.jsonl");

fn recorded(golden: &str, seq: u64) -> Value {
    golden
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|entry| entry["seq"] == seq)
        .unwrap()
}

fn node_pool() -> Schema {
    let text = json!({"type": "string"});
    let list = json!({"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    Schema::of_custom_resource(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "weight": {"type": "integer"},
            "disruption": {"type": "object", "properties": {"budgets": list, "consolidateAfter": text, "consolidationPolicy": text}},
            "template": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "expireAfter": text, "requirements": list,
                "nodeClassRef": {"type": "object", "properties": {"group": text, "kind": text, "name": text}}}}}}}},
        "status": {"type": "object", "properties": {"nodes": {"type": "integer"}}}}}))
}

fn writer<'a>(manager: &'a str, api_version: &'a str, subresource: &'a str) -> Writer<'a> {
    Writer {
        manager,
        api_version,
        subresource,
        now: "<time>",
        ignored: &[],
    }
}

/// The stored object must have the recorded managed fields; the rest is taken from the recorded response.
fn replay_update(golden: &str, live: Option<u64>, seq: u64, schema: &Schema, writer: &Writer<'_>) {
    let entry = recorded(golden, seq);
    let live = live.map(|seq| recorded(golden, seq)["response"].clone());
    let mut new = without_managed_fields(&entry["response"]);
    if let Some(sent) = entry["request"].pointer("/metadata/managedFields") {
        new["metadata"]["managedFields"] = sent.clone();
    }
    track_update(live.as_ref(), &mut new, schema, writer);
    assert_eq!(new, entry["response"], "recording {seq}");
}

#[test]
fn custom_resource_updates_track_fields_as_recorded() {
    let schema = node_pool();
    replay_update(
        CR_GOLDEN,
        None,
        0,
        &schema,
        &writer("me", "karpenter.sh/v1", ""),
    );
    let agent = writer("<user-agent>", "karpenter.sh/v1", "");
    replay_update(CR_GOLDEN, Some(0), 3, &schema, &agent);
    replay_update(CR_GOLDEN, Some(3), 5, &schema, &agent);
    replay_update(CR_GOLDEN, Some(5), 6, &schema, &agent);
    replay_update(
        CR_GOLDEN,
        Some(6),
        7,
        &schema,
        &writer("<user-agent>", "karpenter.sh/v1", "status"),
    );
    replay_update(CR_GOLDEN, None, 28, &schema, &agent);
    replay_update(CR_GOLDEN, None, 32, &schema, &agent);
    replay_update(CR_GOLDEN, Some(30), 34, &schema, &agent);
}

#[test]
fn builtin_updates_track_fields_as_recorded() {
    // The recorded 1.20 server does not have subresources in managed fields yet.
    let agent = writer("<user-agent>", "v1", "");
    let pod = Schema::named("io.k8s.api.core.v1.Pod");
    let entry = recorded(CORE_GOLDEN, 0);
    let mut new = without_managed_fields(&entry["response"]);
    // The server sets status, tolerations and priority after it has tracked the fields.
    for late in ["tolerations", "priority", "preemptionPolicy"] {
        new["spec"].as_object_mut().unwrap().remove(late);
    }
    new["status"] = json!({});
    track_update(None, &mut new, &pod, &agent);
    assert_eq!(
        new["metadata"]["managedFields"],
        entry["response"]["metadata"]["managedFields"]
    );
    let node = Schema::named("io.k8s.api.core.v1.Node");
    for (live, seq) in [(35, 36), (36, 37), (37, 38), (40, 41)] {
        replay_update(CORE_GOLDEN, Some(live), seq, &node, &agent);
    }
}

/// The fields that a server adds when it decodes the recorded objects.
fn defaulted(mut object: Value) -> Value {
    let spec = &mut object["spec"];
    spec["disruption"] = json!({"budgets": [{"nodes": "10%"}], "consolidateAfter": "0s", "consolidationPolicy": "WhenEmptyOrUnderutilized"});
    spec["template"]["spec"]["expireAfter"] = json!("720h");
    object
}

fn replay_apply(live: Option<u64>, seq: u64, manager: &str, force: bool) {
    let entry = recorded(CR_GOLDEN, seq);
    let live = live.map(|seq| recorded(CR_GOLDEN, seq)["response"].clone());
    let applied = apply(
        live.as_ref(),
        &entry["request"],
        &node_pool(),
        &writer(manager, "karpenter.sh/v1", ""),
        force,
    )
    .unwrap();
    let applied = defaulted(applied);
    assert_eq!(
        applied["spec"], entry["response"]["spec"],
        "recording {seq}"
    );
    assert_eq!(
        applied["metadata"]["managedFields"], entry["response"]["metadata"]["managedFields"],
        "recording {seq}"
    );
}

#[test]
fn server_side_apply_behaves_as_recorded() {
    replay_apply(None, 12, "m1", false);
    replay_apply(Some(12), 13, "m2", false);
    replay_apply(Some(13), 15, "m1", true);
    replay_apply(Some(15), 17, "m1", false);
}

#[test]
fn the_conflict_message_is_as_recorded() {
    let entry = recorded(CR_GOLDEN, 14);
    let live = recorded(CR_GOLDEN, 13)["response"].clone();
    let error = apply(
        Some(&live),
        &entry["request"],
        &node_pool(),
        &writer("m1", "karpenter.sh/v1", ""),
        false,
    )
    .unwrap_err();
    assert_eq!(error.to_string(), entry["response"]["message"]);
    let ApplyError::Conflicts(conflicts) = error else {
        panic!("no conflicts")
    };
    assert_eq!(
        conflicts,
        [Conflict {
            owner: "\"m2\"".into(),
            field: ".spec.weight".into()
        }]
    );
}

fn deployment() -> Schema {
    Schema::named("io.k8s.api.apps.v1.Deployment")
}

#[test]
fn several_conflicts_are_grouped_by_owner() {
    let schema = deployment();
    let config = |replicas: i64, image: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}}})
    };
    let mut live = config(1, "a");
    track_update(
        None,
        &mut live,
        &schema,
        &writer("kubectl-create", "apps/v1", ""),
    );
    let error = apply(
        Some(&live),
        &config(2, "b"),
        &schema,
        &writer("me", "apps/v1", ""),
        false,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl-create\" using apps/v1:\n- .spec.replicas\n- .spec.template.spec.containers[name=\"c\"].image"
    );
}

#[test]
fn list_items_applied_before_and_left_out_now_are_removed() {
    let schema = deployment();
    let config = |containers: Value| json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"a": "b"}}, "spec": {"template": {"spec": {"containers": containers}}}});
    let both = config(
        json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2", "ports": [{"containerPort": 80}]}]),
    );
    let me = writer("me", "apps/v1", "");
    let mut live = apply(None, &both, &schema, &me, false).unwrap();
    assert_eq!(
        live["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:template": {"f:spec": {"f:containers": {
            "k:{\"name\":\"a\"}": {".": {}, "f:image": {}, "f:name": {}},
            "k:{\"name\":\"b\"}": {".": {}, "f:image": {}, "f:name": {}, "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}}}})
    );
    // Another manager adds a container and a label; both stay.
    live["spec"]["template"]["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"name": "x", "image": "9"}));
    live["metadata"]["labels"]["c"] = json!("d");
    let before = apply(None, &both, &schema, &me, false).unwrap();
    track_update(
        Some(&before),
        &mut live,
        &schema,
        &writer("other", "apps/v1", ""),
    );
    let mut second = config(json!([{"name": "a", "image": "3"}]));
    second["metadata"]["labels"] = json!({});
    let after = apply(Some(&live), &second, &schema, &me, false).unwrap();
    assert_eq!(
        after["spec"]["template"]["spec"]["containers"],
        json!([{"name": "x", "image": "9"}, {"name": "a", "image": "3"}])
    );
    assert_eq!(after["metadata"]["labels"], json!({"c": "d"}));
}

#[test]
fn a_field_with_two_owners_stays_when_one_drops_it() {
    let schema = deployment();
    let config = |replicas: Option<i64>| {
        let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"paused": true}});
        if let Some(replicas) = replicas {
            object["spec"]["replicas"] = json!(replicas);
        }
        object
    };
    let live = apply(
        None,
        &config(Some(2)),
        &schema,
        &writer("one", "apps/v1", ""),
        false,
    )
    .unwrap();
    let live = apply(
        Some(&live),
        &config(Some(2)),
        &schema,
        &writer("two", "apps/v1", ""),
        false,
    )
    .unwrap();
    let live = apply(
        Some(&live),
        &config(None),
        &schema,
        &writer("one", "apps/v1", ""),
        false,
    )
    .unwrap();
    assert_eq!(live["spec"], json!({"paused": true, "replicas": 2}));
    let live = apply(
        Some(&live),
        &config(None),
        &schema,
        &writer("two", "apps/v1", ""),
        false,
    )
    .unwrap();
    assert_eq!(live["spec"], json!({"paused": true}));
}

#[test]
fn kubectls_server_side_apply_takes_over_from_its_client_side_apply() {
    let schema = deployment();
    let recorded = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "annotations": {}}, "spec": {"replicas": 1}});
    let mut live = recorded.clone();
    live["metadata"]["annotations"][LAST_APPLIED] = json!(recorded.to_string());
    track_update(
        None,
        &mut live,
        &schema,
        &writer("kubectl-client-side-apply", "apps/v1", ""),
    );
    let mut config = recorded;
    config["spec"]["replicas"] = json!(3);
    let refused = apply(
        Some(&live),
        &config,
        &schema,
        &writer("another-manager", "apps/v1", ""),
        false,
    );
    assert!(matches!(refused, Err(ApplyError::Conflicts(_))));
    let taken = apply(
        Some(&live),
        &config,
        &schema,
        &writer("kubectl", "apps/v1", ""),
        false,
    )
    .unwrap();
    assert_eq!(taken["spec"]["replicas"], 3);
    let note = last_applied(&taken).unwrap();
    assert_eq!(note["spec"]["replicas"], 3);
}

#[test]
fn ignored_fields_are_neither_applied_nor_owned() {
    let config = json!({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "a"}, "spec": {"weight": 5}, "status": {"nodes": 3}});
    let me = Writer {
        ignored: &["status"],
        ..writer("me", "karpenter.sh/v1", "")
    };
    let applied = apply(None, &config, &node_pool(), &me, false).unwrap();
    assert_eq!(applied.get("status"), None);
    assert_eq!(
        applied["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:spec": {"f:weight": {}}})
    );
}

#[test]
fn duplicate_list_items_are_rejected() {
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "n"},
        "spec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}});
    let error = apply(
        None,
        &config,
        &deployment(),
        &writer("me", "apps/v1", ""),
        false,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to create typed patch object (n/d; apps/v1, Kind=Deployment): .spec.template.spec.containers: duplicate entries for key {\"name\":\"a\"}"
    );
}

fn any_config() -> impl Strategy<Value = Value> {
    let container = ("[abc]", proptest::option::of("[xyz]")).prop_map(|(name, image)| {
        let mut container = json!({"name": name});
        if let Some(image) = image {
            container["image"] = json!(image);
        }
        container
    });
    let containers = proptest::collection::vec(container, 0..3).prop_map(|mut containers| {
        containers.sort_by_key(|container| container["name"].to_string());
        containers.dedup_by_key(|container| container["name"].to_string());
        containers
    });
    (proptest::option::of(0..3i64), proptest::collection::btree_map("[ab]", "[xy]", 0..3), containers).prop_map(
        |(replicas, labels, containers)| {
            let mut config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": {"spec": {}}}});
            if let Some(replicas) = replicas {
                config["spec"]["replicas"] = json!(replicas);
            }
            if !labels.is_empty() {
                config["metadata"]["labels"] = json!(labels);
            }
            if !containers.is_empty() {
                config["spec"]["template"]["spec"]["containers"] = json!(containers);
            }
            config
        },
    )
}

proptest! {
    #[test]
    fn applying_a_configuration_twice_is_a_no_op(first in any_config(), second in any_config()) {
        let schema = deployment();
        let one = Writer { now: "2026-01-01T00:00:00Z", ..writer("one", "apps/v1", "") };
        let later = Writer { now: "2026-01-01T00:01:00Z", ..one };
        let live = apply(None, &first, &schema, &one, false).unwrap();
        prop_assert_eq!(&apply(Some(&live), &first, &schema, &later, false).unwrap(), &live);
        let two = Writer { manager: "two", ..one };
        let live = apply(Some(&live), &second, &schema, &two, true).unwrap();
        let again = apply(Some(&live), &second, &schema, &Writer { manager: "two", ..later }, false).unwrap();
        prop_assert_eq!(&again, &live);
        prop_assert!(unchanged(&live, &again));
    }

    #[test]
    fn the_only_applier_gets_exactly_its_configuration(first in any_config(), second in any_config()) {
        let schema = deployment();
        let me = writer("me", "apps/v1", "");
        let live = apply(None, &first, &schema, &me, false).unwrap();
        let live = apply(Some(&live), &second, &schema, &me, false).unwrap();
        let after = without_managed_fields(&live);
        prop_assert!(typed::compare(&second, &after, &schema).added.is_empty());
        prop_assert!(typed::compare(&second, &after, &schema).removed.is_empty());
        prop_assert!(typed::compare(&second, &after, &schema).modified.is_empty());
    }
}
