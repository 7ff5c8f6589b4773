mod topology;
mod volumes;

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
            engine: Engine::new(),
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
            .apply_node(&serde_json::from_value(node).unwrap());
    }

    fn zone(&mut self, name: &str, zone: &str) {
        self.node(
            name,
            json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}}),
        );
    }

    fn add(&mut self, name: &str, node: Option<&str>, labels: &Labels, spec: &Arc<PodSpec>) {
        self.engine.apply_pod(&PodInput {
            uid: name,
            name,
            namespace: "default",
            labels,
            spec,
            node,
            terminating: false,
            nominated: None,
            message: None,
            ours: true,
        });
    }

    fn pod_on(&mut self, name: &str, node: Option<&str>, labels: Value, spec: Value) {
        let mut full = json!({"containers": [{"name": "c"}]});
        merge(&mut full, &spec);
        let labels: Labels = serde_json::from_value(labels).unwrap();
        self.add(
            name,
            node,
            &labels,
            &Arc::new(serde_json::from_value(full).unwrap()),
        );
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
        self.engine.wake(self.now);
        let mut lines = Vec::new();
        while let Some(decision) = self.engine.next(self.now) {
            match decision {
                Decision::Bind { uid, node, .. } => lines.push(format!("{uid} -> {node}")),
                Decision::Refuse { uids, message } => {
                    let reason = message.split(" preemption:").next().unwrap_or_default();
                    lines.extend(uids.iter().map(|uid| format!("{uid}: {reason}")));
                }
            }
        }
        lines
    }
}

fn cpu(amount: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]})
}

#[test]
fn least_allocated_spreads_and_a_full_cluster_rejects() {
    let mut world = World::new();
    world.node("a", json!({}));
    world.node("b", json!({}));
    for name in ["p1", "p2", "p3"] {
        world.pod(name, cpu("3"));
    }
    assert_eq!(
        world.run(),
        [
            "p1 -> a",
            "p2 -> b",
            "p3: 0/2 nodes are available: 2 Insufficient cpu."
        ]
    );
    assert_eq!(world.engine.pending(), 1);
    world.node("c", json!({}));
    assert_eq!(world.run(), ["p3 -> c"]);
}

#[test]
fn an_empty_cluster_is_reported() {
    let mut world = World::new();
    world.pod("p", cpu("1"));
    assert_eq!(world.run(), ["p: no nodes available to schedule pods"]);
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
fn the_message_for_a_pod_pinned_by_name_names_the_plugin() {
    let mut world = World::new();
    world.node("a", json!({}));
    world.node(
        "b",
        json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    );
    let on = |name: &str| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        ]}}}})
    };
    world.pod("pa", on("a"));
    world.pod("pb", on("b"));
    assert_eq!(
        world.run(),
        [
            "pa -> a",
            "pb: 0/2 nodes are available: 1 node(s) didn't satisfy plugin(s) [NodeAffinity], \
          1 node(s) had untolerated taint {a: }."
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

#[test]
fn pods_are_ordered_by_priority_then_age() {
    let mut world = World::new();
    world.node("a", json!({"status": {"allocatable": {"cpu": "1"}}}));
    world.pod("young", cpu("1"));
    let mut important = cpu("1");
    merge(&mut important, &json!({"priority": 1000}));
    world.pod("important", important);
    assert_eq!(world.run()[0], "important -> a");
}

#[test]
fn preferences_and_soft_taints_order_nodes() {
    let mut world = World::new();
    world.node(
        "a",
        json!({"spec": {"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}}),
    );
    world.node("b", json!({}));
    world.node("c", json!({"metadata": {"labels": {"disk": "ssd"}}}));
    world.pod("plain", json!({}));
    world.pod("liking", json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}]}}}));
    assert_eq!(world.run(), ["plain -> b", "liking -> c"]);
}

#[test]
fn a_nomination_is_followed_where_it_fits() {
    let mut world = World::new();
    world.node("a", json!({}));
    world.node("b", json!({}));
    let spec: Arc<PodSpec> = Arc::new(serde_json::from_value(cpu("1")).unwrap());
    world.engine.apply_pod(&PodInput {
        uid: "p",
        name: "p",
        namespace: "default",
        labels: &Labels::new(),
        spec: &spec,
        node: None,
        terminating: false,
        nominated: Some("b"),
        message: None,
        ours: true,
    });
    assert_eq!(world.run(), ["p -> b"]);
}

#[test]
fn a_failed_binding_is_retried() {
    let mut world = World::new();
    world.node("a", json!({"status": {"allocatable": {"cpu": "1"}}}));
    world.pod("p", cpu("1"));
    assert_eq!(world.run(), ["p -> a"]);
    world.engine.bind_failed("p");
    assert_eq!(world.run(), ["p -> a"]);
}

#[test]
fn a_rejection_is_reported_once_and_to_new_pods_too() {
    let mut world = World::new();
    world.node("a", json!({}));
    world.pod("p1", cpu("9"));
    assert_eq!(world.run().len(), 1);
    assert_eq!(world.run().len(), 0);
    world.pod("p2", cpu("9"));
    assert_eq!(
        world.run(),
        ["p2: 0/1 nodes are available: 1 Insufficient cpu."]
    );
    world.node("b", json!({}));
    assert_eq!(world.run().len(), 0, "a changed message waits");
    world.later();
    assert_eq!(
        world.run(),
        [
            "p1: 0/2 nodes are available: 2 Insufficient cpu.",
            "p2: 0/2 nodes are available: 2 Insufficient cpu."
        ]
    );
}

#[test]
fn pods_of_a_node_that_comes_later_are_counted() {
    let mut world = World::new();
    world.pod_on("early", Some("a"), json!({}), cpu("3"));
    world.node("a", json!({}));
    world.pod("p", cpu("2"));
    assert_eq!(
        world.run(),
        ["p: 0/1 nodes are available: 1 Insufficient cpu."]
    );
    world.engine.remove_node("a");
    world.node("a", json!({}));
    world.pod("q", cpu("2"));
    assert_eq!(
        world.run(),
        ["q: 0/1 nodes are available: 1 Insufficient cpu."]
    );
}

#[test]
fn a_thousand_pods_fill_a_hundred_nodes() {
    let mut world = World::new();
    for i in 0..100 {
        world.zone(&format!("n{i}"), &format!("z{}", i % 3));
    }
    let spec: Arc<PodSpec> = Arc::new(serde_json::from_value(cpu("400m")).unwrap());
    let labels = Labels::new();
    for i in 0..1001 {
        world.add(&format!("p{i}"), None, &labels, &spec);
    }
    let lines = world.run();
    assert_eq!(lines.iter().filter(|l| l.contains(" -> ")).count(), 1000);
    assert_eq!(world.engine.pending(), 1);
}
