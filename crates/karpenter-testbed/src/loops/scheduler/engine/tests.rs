//! The rules that no random cluster of `karpenter-sim` has: those compare the bindings with the plans of the engine.

use serde_json::{Value, json};

use super::*;

const ZONE: &str = "topology.kubernetes.io/zone";

/// The scheduler's engine with its nodes and pods, without an API server.
struct World {
    engine: Engine,
    now: Timestamp,
}

fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (k, v) in from {
                merge(into.entry(k.clone()).or_insert(Value::Null), v);
            }
        }
        (into, from) => *into = from.clone(),
    }
}

impl World {
    fn new() -> Self {
        Self {
            engine: Engine::default(),
            now: Timestamp::UNIX_EPOCH,
        }
    }

    fn node(&mut self, name: &str, more: Value) {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}
        });
        merge(&mut node, &more);
        self.engine
            .set_node(name, Some(&serde_json::from_value(node).unwrap()));
    }

    fn zone(&mut self, name: &str, zone: &str) {
        self.node(
            name,
            json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}}),
        );
    }

    fn pod_on(&mut self, name: &str, node: Option<&str>, labels: Value, spec: Value) {
        let mut full = json!({"containers": [{"name": "c"}]});
        merge(&mut full, &spec);
        self.engine.set_pod(&PodInput {
            uid: name,
            name,
            namespace: "default",
            labels: &serde_json::from_value(labels).unwrap(),
            spec: &serde_json::from_value(full).unwrap(),
            node,
            terminating: false,
            nominated: None,
            message: None,
            ours: true,
        });
    }

    fn pod(&mut self, name: &str, spec: Value) {
        self.pod_on(name, None, json!({"app": "web"}), spec);
    }

    /// Advances a minute, beyond every back-off.
    fn later(&mut self) {
        self.now = self
            .now
            .checked_add(jiff::SignedDuration::from_mins(1))
            .unwrap();
    }

    /// Returns all decisions until none is left, one line each.
    fn run(&mut self) -> Vec<String> {
        let line = |decision| match decision {
            Decision::Bind { pod, node, .. } => format!("{} -> {node}", pod.name),
            Decision::Refuse { pod, message } => {
                let reason = message.split(" preemption:").next().unwrap_or_default();
                format!("{}: {reason}", pod.name)
            }
        };
        self.engine.pass(self.now).into_iter().map(line).collect()
    }
}

fn cpu(amount: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]})
}

#[test]
fn every_node_reason_is_counted() {
    let mut world = World::new();
    world.node("cordoned", json!({"spec": {"unschedulable": true}}));
    world.node(
        "tainted",
        json!({"spec": {"taints": [{"key": "a", "value": "b", "effect": "NoExecute"}]}}),
    );
    world.node("other", json!({"metadata": {"labels": {"arch": "arm"}}}));
    world.node(
        "full",
        json!({"metadata": {"labels": {"arch": "amd"}}, "status": {"allocatable": {"pods": "0"}}}),
    );
    world.node(
        "small",
        json!({"metadata": {"labels": {"arch": "amd"}}, "status": {"allocatable": {"cpu": "1"}}}),
    );
    let mut spec = cpu("2");
    merge(&mut spec, &json!({"nodeSelector": {"arch": "amd"}}));
    world.pod("p", spec);
    assert_eq!(
        world.run(),
        [
            "p: 0/5 nodes are available: 1 Insufficient cpu, 1 Too many pods, \
          1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint {a: b}, \
          1 node(s) were unschedulable."
        ]
    );
}

#[test]
fn host_ports_exclude_each_other() {
    let mut world = World::new();
    world.node("a", json!({}));
    let spec =
        json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    world.pod("p1", spec.clone());
    world.pod("p2", spec);
    assert_eq!(
        world.run(),
        [
            "p1 -> a",
            "p2: 0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
        ]
    );
}

fn spread(key: &str, more: Value) -> Value {
    let mut constraint = json!({
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}
    });
    merge(&mut constraint, &more);
    json!({"topologySpreadConstraints": [constraint]})
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
        .set_namespace(&serde_json::from_value(namespace).unwrap());
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
