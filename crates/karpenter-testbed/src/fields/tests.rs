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
