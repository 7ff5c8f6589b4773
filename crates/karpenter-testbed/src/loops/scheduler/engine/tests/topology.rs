//! Topology spread constraints and pod affinity.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{World, ZONE, merge};

fn spread(key: &str, more: Value) -> Value {
    let mut constraint = json!({
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}
    });
    merge(&mut constraint, &more);
    json!({"topologySpreadConstraints": [constraint]})
}

#[test]
fn hard_spread_keeps_the_skew() {
    let mut world = World::new();
    for (node, zone) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")] {
        world.zone(node, zone);
    }
    for i in 0..6 {
        world.pod(&format!("p{i}"), spread(ZONE, json!({})));
    }
    let mut by_zone = BTreeMap::new();
    for line in world.run() {
        *by_zone
            .entry(line.split("-> ").nth(1).unwrap()[..1].to_owned())
            .or_insert(0) += 1;
    }
    assert_eq!(by_zone.into_values().collect::<Vec<_>>(), [2, 2, 2]);
}

#[test]
fn spread_rejects_with_its_two_reasons() {
    let mut world = World::new();
    world.zone("a", "a");
    world.zone("b", "b");
    world.node("nowhere", json!({}));
    world.engine.apply_node(
        &serde_json::from_value(json!({
            "metadata": {"name": "b", "labels": {ZONE: "b"}}, "spec": {"unschedulable": true},
            "status": {"allocatable": {"cpu": "4", "pods": "10"}}
        }))
        .unwrap(),
    );
    world.pod("p1", spread(ZONE, json!({})));
    world.pod("p2", spread(ZONE, json!({})));
    assert_eq!(
        world.run(),
        [
            "p1 -> a",
            "p2: 0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, \
          1 node(s) didn't match pod topology spread constraints (missing required label), \
          1 node(s) were unschedulable."
        ]
    );
}

#[test]
fn min_domains_counts_missing_domains_as_empty() {
    let mut world = World::new();
    world.zone("a", "a");
    world.zone("b", "b");
    for i in 0..3 {
        world.pod(&format!("p{i}"), spread(ZONE, json!({"minDomains": 3})));
    }
    let lines = world.run();
    assert_eq!(lines[..2], ["p0 -> a", "p1 -> b"]);
    assert!(lines[2].contains("2 node(s) didn't match pod topology spread constraints"));
    world.zone("c", "c");
    world.later();
    assert_eq!(world.run(), ["p2 -> c"]);
}

#[test]
fn match_label_keys_count_each_revision_alone() {
    let mut world = World::new();
    world.zone("a", "a");
    world.zone("b", "b");
    world.pod_on(
        "old",
        Some("a"),
        json!({"app": "web", "rev": "1"}),
        json!({}),
    );
    world.pod_on(
        "new",
        None,
        json!({"app": "web", "rev": "2"}),
        spread(ZONE, json!({"matchLabelKeys": ["rev"]})),
    );
    world.pod_on(
        "new2",
        None,
        json!({"app": "web", "rev": "2"}),
        spread(ZONE, json!({"matchLabelKeys": ["rev"]})),
    );
    let lines = world.run();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|l| l.contains(" -> ")), "{lines:?}");
}

fn terms(kind: &str, key: &str) -> Value {
    json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "web"}}}
    ]}}})
}

#[test]
fn anti_affinity_holds_in_both_directions() {
    let mut world = World::new();
    world.zone("a", "a");
    world.pod("p1", terms("podAntiAffinity", ZONE));
    world.pod("p2", terms("podAntiAffinity", ZONE));
    world.pod("plain", json!({}));
    assert_eq!(
        world.run(),
        [
            "p1 -> a",
            "p2: 0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.",
            "plain: 0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.",
        ]
    );
    world.engine.remove_pod("p1");
    world.later();
    let lines = world.run();
    assert_eq!(lines[0], "p2 -> a");
}

#[test]
fn affinity_follows_the_first_of_the_group() {
    let mut world = World::new();
    world.zone("a", "a");
    world.zone("b", "b");
    for i in 0..3 {
        world.pod(&format!("p{i}"), terms("podAffinity", ZONE));
    }
    assert_eq!(world.run(), ["p0 -> a", "p1 -> a", "p2 -> a"]);
    world.pod_on(
        "alone",
        None,
        json!({"app": "other"}),
        json!({"affinity": {"podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "missing"}}}]}}}),
    );
    assert_eq!(
        world.run(),
        ["alone: 0/2 nodes are available: 2 node(s) didn't match pod affinity rules."]
    );
}

#[test]
fn namespace_selectors_reach_other_namespaces() {
    let mut world = World::new();
    let namespace = json!({"metadata": {"name": "default", "labels": {"team": "x"}}});
    world
        .engine
        .apply_namespace(&serde_json::from_value(namespace).unwrap());
    world.zone("a", "a");
    world.pod_on("there", Some("a"), json!({"app": "web"}), json!({}));
    world.pod_on("p", None, json!({"app": "p"}), json!({"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "topologyKey": ZONE, "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "x"}}}]}}}));
    assert_eq!(
        world.run(),
        ["p: 0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."]
    );
}
