use serde_json::{Value, json};

use super::*;

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
            engine: Engine::new(Scoring::LeastAllocated),
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
fn most_allocated_packs() {
    let mut world = World::new();
    world.engine = Engine::new(Scoring::MostAllocated);
    world.node("a", json!({}));
    world.node("b", json!({}));
    for name in ["p1", "p2", "p3"] {
        world.pod(name, cpu("1"));
    }
    assert_eq!(world.run(), ["p1 -> a", "p2 -> a", "p3 -> a"]);
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

fn spread(key: &str, more: Value) -> Value {
    let mut constraint = json!({
        "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}
    });
    merge(&mut constraint, &more);
    json!({"topologySpreadConstraints": [constraint]})
}

const ZONE: &str = "topology.kubernetes.io/zone";

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

fn claim(world: &mut World, name: &str, class: &str, volume: Option<&str>) {
    let claim = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"storageClassName": class, "volumeName": volume, "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "1Gi"}}}
    });
    world
        .engine
        .volumes()
        .apply_claim(&serde_json::from_value(claim).unwrap());
}

fn class(world: &mut World, name: &str, zones: &[&str]) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": "ebs", "volumeBindingMode": "WaitForFirstConsumer"});
    if !zones.is_empty() {
        merge(
            &mut class,
            &json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": zones}]}]}),
        );
    }
    world
        .engine
        .volumes()
        .apply_class(&serde_json::from_value(class).unwrap());
}

fn mounting(claim: &str) -> Value {
    json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]})
}

#[test]
fn claims_reject_pods_before_and_at_nodes() {
    let mut world = World::new();
    world.zone("a", "a");
    world.pod("missing", mounting("none"));
    claim(&mut world, "now", "immediate", None);
    world.pod("unbound", mounting("now"));
    claim(&mut world, "lost", "", Some("gone"));
    world.pod("lost", mounting("lost"));
    class(&mut world, "zonal", &["b"]);
    claim(&mut world, "elsewhere", "zonal", None);
    world.pod("elsewhere", mounting("elsewhere"));
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["b"]}]}]}}}});
    world
        .engine
        .volumes()
        .apply_volume(&serde_json::from_value(volume).unwrap());
    claim(&mut world, "far", "", Some("pv"));
    world.pod("far", mounting("far"));
    assert_eq!(
        world.run(),
        [
            "missing: 0/1 nodes are available: persistentvolumeclaim \"none\" not found.",
            "unbound: 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "lost: 0/1 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s).",
            "elsewhere: 0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind.",
            "far: 0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.",
        ]
    );
}

#[test]
fn a_waiting_claim_gets_a_volume_on_the_node_of_the_pod() {
    let mut world = World::new();
    world.zone("a", "a");
    class(&mut world, "any", &[]);
    claim(&mut world, "data", "any", None);
    world.pod("p", mounting("data"));
    let Some(Decision::Bind { claims, .. }) = world.engine.next(world.now) else {
        panic!("not bound");
    };
    assert_eq!(
        claims,
        [ClaimBinding::Provision {
            claim: ("default".to_owned(), "data".to_owned()),
            volume: "pvc-data".to_owned(),
            topology: vec![(ZONE.to_owned(), "a".to_owned())],
        }]
    );
    // A second pod of the claim must be placed where the volume will be.
    world.zone("b", "b");
    world.engine.apply_node(
        &serde_json::from_value(json!({"metadata": {"name": "a", "labels": {ZONE: "a"}},
        "spec": {"unschedulable": true}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}}))
        .unwrap(),
    );
    world.pod("q", mounting("data"));
    assert_eq!(
        world.run(),
        [
            "q: 0/2 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, 1 node(s) were unschedulable."
        ]
    );
}

#[test]
fn attach_limits_hold() {
    let mut world = World::new();
    world.zone("a", "a");
    world
        .engine
        .set_driver("a", "ebs", Some(1), vec![ZONE.to_owned()]);
    class(&mut world, "any", &[]);
    claim(&mut world, "one", "any", None);
    claim(&mut world, "two", "any", None);
    world.pod("p1", mounting("one"));
    world.pod("p2", mounting("two"));
    assert_eq!(
        world.run(),
        [
            "p1 -> a",
            "p2: 0/1 nodes are available: 1 node(s) exceed max volume count."
        ]
    );
}

#[test]
fn ten_thousand_pods_on_a_thousand_nodes_take_little_work() {
    let mut world = World::new();
    for i in 0..1000 {
        world.zone(&format!("n{i}"), &format!("z{}", i % 3));
    }
    let spec: Arc<PodSpec> = Arc::new(serde_json::from_value(cpu("400m")).unwrap());
    let labels = Labels::new();
    for i in 0..10_001 {
        world.add(&format!("p{i}"), None, &labels, &spec);
    }
    let lines = world.run();
    assert_eq!(lines.iter().filter(|l| l.contains(" -> ")).count(), 10_000);
    assert_eq!(world.engine.pending(), 1);
}
