//! What would be done with a node without what blocks it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails the test"
)]

use jiff::Timestamp;
use karpenter_core::cluster::{Cluster, ClusterConfig};
use karpenter_core::disruption::{DisruptionRequest, plan};
use karpenter_core::fake::{instance_type, offering, well_known};
use karpenter_core::instance_type::InstanceType;
use karpenter_decisions::change::Change;
use karpenter_decisions::pdb::PdbState;
use karpenter_decisions::what_if::{NodeWhatIf, WhatIf};
use serde_json::{Value, json};

const ZONE: &str = "test-zone-1";

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

/// Instance types of 2, 4, 8 and 16 cores at a tenth of a dollar per core.
fn types() -> Vec<InstanceType> {
    [2_i64, 4, 8, 16]
        .map(|cpu| {
            instance_type(&format!("m-{cpu}"))
                .cpu(cpu)
                .gib(64)
                .pods(50)
                .offerings(vec![offering("on-demand", ZONE, cpu as f64 / 10.0)])
                .build()
        })
        .into()
}

struct World(Cluster);

impl World {
    /// A cluster with the NodePool `default` and its budgets.
    fn new(budgets: Value) -> Self {
        let config = ClusterConfig {
            well_known: well_known(),
            ..ClusterConfig::default()
        };
        let mut cluster = Cluster::new(config);
        cluster.apply_node_pool(&read(json!({
            "metadata": { "name": "default", "uid": "default" },
            "spec": {
                "template": { "spec": { "requirements": [], "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" } } },
                "disruption": { "consolidateAfter": "0s", "budgets": budgets },
            },
            "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        })));
        cluster.set_instance_types("default", Ok(types().into()));
        Self(cluster)
    }

    fn node(mut self, name: &str, cpu: i64) -> Self {
        let condition = |kind: &str| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let labels = json!({
            "karpenter.sh/nodepool": "default", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
            "topology.kubernetes.io/zone": ZONE, "kubernetes.io/hostname": name, "karpenter.sh/capacity-type": "on-demand",
            "node.kubernetes.io/instance-type": format!("m-{cpu}"), "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
        });
        let amounts = json!({ "cpu": cpu.to_string(), "memory": "64Gi", "pods": "50" });
        let id = format!("fake://{name}");
        self.0.apply_node_claim(&read(json!({
            "metadata": { "name": format!("{name}-claim"), "uid": name, "labels": labels },
            "spec": { "requirements": [], "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" } },
            "status": { "providerID": id, "capacity": amounts, "allocatable": amounts,
                "conditions": (["Launched", "Registered", "Initialized", "Consolidatable"].map(condition)) },
        })));
        self.0.apply_node(&read(json!({
            "metadata": { "name": name, "uid": name, "labels": labels },
            "spec": { "providerID": id },
            "status": { "capacity": amounts, "allocatable": amounts, "conditions": [{ "type": "Ready", "status": "True" }] },
        })));
        self
    }

    /// Adds a pod of Deployment shop/<app> that requests a core.
    fn pod(mut self, name: &str, node: &str, app: &str, annotations: Value) -> Self {
        self.0.apply_pod(&read(json!({
            "metadata": { "name": name, "namespace": "shop", "uid": name, "labels": { "app": app, "pod-template-hash": "x" }, "annotations": annotations,
                "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-x"), "uid": "rs", "controller": true }] },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }] },
            "status": { "phase": "Running" },
        })));
        self
    }

    fn pdb(mut self, app: &str, demand: Value, expected: i32, healthy: i32, allowed: i32) -> Self {
        let mut spec = demand;
        spec["selector"] = json!({ "matchLabels": { "app": app } });
        self.0.apply_pdb(&read(json!({
            "metadata": { "name": app, "namespace": "shop" }, "spec": spec,
            "status": { "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 1, "expectedPods": expected },
        })));
        self
    }

    fn what_if(&self) -> WhatIf {
        WhatIf::new(&self.0.snapshot(), DisruptionRequest::at(now()))
    }

    fn ask(&self, node: &str) -> NodeWhatIf {
        let told = self.what_if().node(node).unwrap();
        assert!(!told.truncated);
        told
    }
}

fn open() -> Value {
    json!([{ "nodes": "100%" }])
}

fn ids(told: &NodeWhatIf) -> Vec<&str> {
    told.blockers
        .iter()
        .map(|blocker| blocker.reason.id)
        .collect()
}

fn savings(told: &NodeWhatIf) -> f64 {
    let outcome = told.what_if.as_ref().unwrap();
    outcome
        .savings()
        .unwrap_or_else(|| panic!("{told:#?}"))
        .list
}

/// A node with a pod that a PodDisruptionBudget covers, beside one with room.
fn guarded(demand: Value, expected: i32, healthy: i32) -> World {
    World::new(open())
        .node("a", 16)
        .node("b", 4)
        .pod("web-0", "a", "web", json!({}))
        .pdb("web", demand, expected, healthy, 0)
}

#[test]
fn a_node_saves_its_price_once_its_pods_may_move() {
    let world = guarded(json!({ "minAvailable": 1 }), 1, 1);
    let told = world.ask("a");
    assert_eq!(ids(&told), ["Pdb"]);
    assert_eq!(savings(&told), 1.6);
    let command = told.what_if.as_ref().unwrap().command.as_ref().unwrap();
    assert_eq!(
        (command.decision, command.pods_moved, command.nodes),
        ("delete", 1, 1)
    );
    let blocker = &told.blockers[0];
    assert_eq!(blocker.owner.as_deref(), Some("Deployment shop/web"));
    assert_eq!(blocker.changes, ["without-pdb=shop/web"]);
    assert_eq!(blocker.alone.as_ref().unwrap().savings().unwrap().list, 1.6);
    let help: Vec<_> = blocker
        .help
        .iter()
        .map(|help| (help.text.as_str(), help.exact))
        .collect();
    assert_eq!(
        help,
        [
            ("Deployment shop/web: replicas 1 -> 2", false),
            ("PodDisruptionBudget shop/web: maxUnavailable 1", true),
        ]
    );
    assert_eq!(blocker.help[1].savings_per_hour.unwrap().list, 1.6);
    assert!(told.ladder.is_empty(), "{:?}", told.ladder);
}

#[test]
fn what_is_told_is_what_a_pass_does_once_it_is_done() {
    let mut world = guarded(json!({ "maxUnavailable": 0 }), 1, 1).pod(
        "api-0",
        "a",
        "api",
        json!({ "karpenter.sh/do-not-disrupt": "true" }),
    );
    // The other node stays: otherwise a pass deletes it first, because it is empty.
    world = world.pod(
        "db-0",
        "b",
        "db",
        json!({ "karpenter.sh/do-not-disrupt": "true" }),
    );
    let told = world.ask("a");
    assert_eq!(ids(&told), ["PodDoNotDisrupt", "Pdb"]);
    assert_eq!(
        told.ladder.iter().map(|it| it.id).collect::<Vec<_>>(),
        ["Pdb"]
    );
    let alone = told.blockers[0].alone.as_ref().unwrap();
    assert_eq!(alone.reason.as_ref().unwrap().id, "Pdb");

    world = world.pod("api-0", "a", "api", json!({}));
    world.0.remove_pdb("shop", "web");
    let plan = plan(&world.0.snapshot(), &DisruptionRequest::at(now()));
    let [command] = &plan.commands[..] else {
        panic!("{plan:#?}")
    };
    assert_eq!(command.candidates[0].name(), "a");
    assert_eq!(command.savings, savings(&told));
    assert_eq!(savings(&world.ask("a")), savings(&told));
}

/// Conformance: EXP-11
#[test]
fn a_budget_that_can_never_allow_an_eviction_is_impossible_one_that_waits_for_a_pod_is_not() {
    for (demand, expected, healthy, impossible, replicas) in [
        (json!({ "minAvailable": 1 }), 1, 1, true, Some(2)),
        (json!({ "minAvailable": 1 }), 2, 1, false, Some(2)),
        (json!({ "minAvailable": "100%" }), 5, 5, true, None),
        (json!({ "minAvailable": "50%" }), 1, 1, true, Some(2)),
        (json!({ "minAvailable": "90%" }), 4, 4, true, Some(10)),
        (json!({ "maxUnavailable": 0 }), 3, 3, true, None),
        (json!({ "maxUnavailable": "0%" }), 3, 3, true, None),
        (json!({ "maxUnavailable": "1%" }), 3, 2, false, None),
        (json!({ "maxUnavailable": 1 }), 3, 2, false, None),
    ] {
        let world = guarded(demand.clone(), expected, healthy);
        let state = PdbState::of(&world.0.snapshot(), "shop", "web").unwrap();
        assert_eq!(state.impossible, impossible, "{demand}");
        assert_eq!(state.replicas_needed(), replicas, "{demand}");
    }
    let told = guarded(json!({ "minAvailable": 1 }), 2, 1).ask("a");
    let help: Vec<_> = told.blockers[0]
        .help
        .iter()
        .map(|help| help.text.as_str())
        .collect();
    assert_eq!(
        help,
        ["wait until 2 of 2 pods of PodDisruptionBudget shop/web are healthy"]
    );
}

#[test]
fn an_exhausted_budget_is_raised_by_as_much_as_it_takes_and_says_when_it_opens() {
    let budgets = json!([
        { "nodes": "100%" },
        { "nodes": "0", "reasons": ["Underutilized"], "schedule": "0 9 * * *", "duration": "8h" },
    ]);
    let world = World::new(budgets)
        .node("a", 16)
        .node("b", 4)
        .pod("web-0", "a", "web", json!({}));
    let told = world.ask("a");
    assert_eq!(ids(&told), ["Budget"]);
    let blocker = &told.blockers[0];
    assert_eq!(blocker.until, Some("2026-01-01T17:00:00Z".parse().unwrap()));
    assert_eq!(
        blocker.help[0].text,
        "NodePool default: budget for Underutilized 0 -> 1 nodes"
    );
    assert!(blocker.help[0].exact);
    assert_eq!(
        blocker.help[0].savings_per_hour.unwrap().list,
        savings(&told)
    );
    let later = Change::Now("2026-01-01T17:00:00Z".parse().unwrap());
    let outcome = world.what_if().after("a", &[later]).unwrap().unwrap();
    assert_eq!(outcome.savings().unwrap().list, savings(&told));
}

#[test]
fn what_nodes_would_save_is_what_each_alone_would() {
    let world = guarded(json!({ "maxUnavailable": 0 }), 1, 1)
        .node("c", 8)
        .pod(
            "api-0",
            "c",
            "api",
            json!({ "karpenter.sh/do-not-disrupt": "true" }),
        );
    let (all, complete) = world.what_if().releasable(["a", "c"]);
    assert!(complete);
    for name in ["a", "c"] {
        assert_eq!(all[name].list, savings(&world.ask(name)), "{name}");
    }
}

#[test]
fn what_nothing_releases_has_no_command() {
    // The pod fits nowhere else, and no smaller type takes it.
    let mut world = World::new(open()).node("a", 2);
    for name in ["web-0", "web-1"] {
        world = world.pod(name, "a", "web", json!({}));
    }
    let told = world.ask("a");
    assert!(told.blockers.is_empty());
    let outcome = told.what_if.unwrap();
    assert_eq!(outcome.command, None);
    assert_eq!(outcome.reason.unwrap().id, "NotCheaper");
}

#[test]
fn an_answer_that_was_cut_short_says_so_and_tells_nothing_unproven() {
    let mut request = DisruptionRequest::at(now());
    request.query.cancel = Some(std::sync::Arc::new(|| true));
    let world = guarded(json!({ "maxUnavailable": 0 }), 1, 1);
    let told = WhatIf::new(&world.0.snapshot(), request).node("a").unwrap();
    assert!(told.truncated);
    assert_eq!(told.what_if, None);
    assert_eq!(told.blockers[0].alone, None);
    assert!(told.blockers[0].help.iter().all(|help| !help.exact));
}
