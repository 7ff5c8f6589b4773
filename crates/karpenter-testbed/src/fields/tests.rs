//! Tests of the rules; `tests/golden.rs` replays recorded writes.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn writer<'a>(manager: &'a str, api_version: &'a str, subresource: &'a str) -> Writer<'a> {
    Writer {
        manager,
        api_version,
        subresource,
        now: "<time>",
        ignored: &[],
    }
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
