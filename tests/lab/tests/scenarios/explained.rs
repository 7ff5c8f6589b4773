//! Explanations that follow an object through its life, over HTTP: the stages of a pod, capacity that comes back, why a NodeClaim
//! has its instance type, how a command ended.

#![expect(clippy::panic, reason = "what fails here fails the test")]

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node};
use karpenter_api::v1::NodeClaim;
use karpenter_kwok::catalogue::generate;
use karpenter_kwok::{CapacityPool, KWOKNodeClass};
use karpenter_testbed::faults::{Fault, Rule};
use karpenter_testbed::loops::node_agent::NodeFault;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::decisions::{explain_claim, explain_pod, free_port, get, served, serving};
use crate::world::{World, deployment, node_pool, on_demand, pool};

const ZONE: &str = "topology.kubernetes.io/zone";
const TYPE: &str = "node.kubernetes.io/instance-type";

fn requirements(all: &[(&str, &[&str])]) -> Value {
    let all = all
        .iter()
        .map(|(key, values)| json!({ "key": key, "operator": "In", "values": values }));
    json!({ "template": { "spec": { "requirements": all.collect::<Vec<_>>() } } })
}

fn time(value: &Value) -> Timestamp {
    let text = value.as_str().unwrap_or_else(|| panic!("{value}"));
    text.parse().unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("{key}: {value}"))
}

/// Conformance: EXP-05
#[tokio::test(start_paused = true)]
async fn anti_affinity_of_another_namespace_names_its_owner() {
    let port = free_port();
    let one_zone = requirements(&[(ZONE, &["test-zone-a"])]);
    let world = served(port, one_zone).await;
    let bank = json!({ "metadata": { "name": "bank" } });
    world.create_json::<Namespace>(bank).await;
    let alone = json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
        { "topologyKey": ZONE, "namespaceSelector": {}, "labelSelector": { "matchLabels": { "app": "web" } } },
    ] } });
    let vault = deployment("vault", 1).namespace("bank");
    world
        .add(vault.set("/spec/template/spec/affinity", alone))
        .await;
    world.until_running(1, 300).await;
    world.deploy("web", 1).await;
    world.pass(30).await;

    let answer = explain_pod(&world, port, "web").await;
    let atoms = answer["blocking"]["atoms"].as_array().unwrap();
    let of_others = |atom: &&Value| atom["side"] == "Cluster";
    let atom = atoms
        .iter()
        .find(of_others)
        .unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(text(atom, "text"), "anti-affinity of Deployment bank/vault");
}

/// Conformance: EXP-08
#[tokio::test(start_paused = true)]
async fn capacity_that_is_out_has_an_end_after_which_the_pod_is_placed() {
    let port = free_port();
    let spot = requirements(&[
        (TYPE, &["c-4x-amd64-linux"]),
        (ZONE, &["test-zone-a", "test-zone-b"]),
        ("karpenter.sh/capacity-type", &["spot"]),
    ]);
    let world = served(port, spot).await;
    world.cluster.cloud.exhaust(CapacityPool {
        instance_type: None,
        zone: Some("test-zone-a".to_owned()),
        capacity_type: Some("spot".to_owned()),
    });
    let in_zone = json!({ "nodeSelector": { ZONE: "test-zone-a" } });
    world.deploy_with("web", 1, in_zone).await;
    let mut answer = Value::Null;
    for _ in 0..60 {
        world.pass(1).await;
        answer = explain_pod(&world, port, "web").await;
        if answer["reason"]["id"] == "OfferingUnavailable" {
            break;
        }
    }
    assert_eq!(answer["reason"]["id"], "OfferingUnavailable", "{answer}");
    let until = time(&answer["reason"]["parameters"]["until"]);
    let now = time(&answer["observed"]["at"]);
    assert!(until > now, "{answer}");
    let wait = answer["relaxations"].as_array().unwrap().iter();
    let wait = wait.into_iter().find(|one| one["side"] == "Offer");
    let wait = wait.unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(
        text(wait, "text"),
        format!(
            "wait until spot capacity is available in test-zone-a (NodePool default), which may be at {until}"
        )
    );

    let left = Duration::try_from(until.duration_since(now)).unwrap();
    world.cluster.clock.sleep(left).await;
    assert!(world.nodes().await.is_empty(), "{}", world.describe().await);
    world.cluster.cloud.restock();
    world.until_running(1, 120).await;
    world.pass(30).await;
    let answer = explain_pod(&world, port, "web").await;
    assert_eq!(answer["state"], "Bound", "{answer}");
    assert_eq!(answer["reason"], Value::Null, "{answer}");
}

/// Conformance: EXP-09
#[tokio::test(start_paused = true)]
async fn a_pod_goes_through_its_stages_in_order_and_never_back() {
    let port = free_port();
    let mut class = KWOKNodeClass::new("default", Default::default());
    class.spec.node_registration_delay = Some("10s".parse().unwrap());
    let starting = json!([{ "key": "example.com/starting", "effect": "NoSchedule" }]);
    let spec = json!({ "template": { "spec": { "startupTaints": starting } } });
    // Two seconds of batching, so that the stage is seen.
    let world = World::bare(serving(port, |options| {
        options.batch_idle_duration = Duration::from_secs(3);
    }))
    .await;
    world.create(&class).await;
    world.create(&pool("default", spec)).await;
    // The launch is known once the status is written.
    let slow = Rule::new(Fault::Latency(Duration::from_secs(5)));
    let faults = world.cluster.testbed.faults();
    faults.add(slow.resource("nodeclaims/status").times(1));
    world.deploy("web", 1).await;
    until!(world, 10, "the pod exists", |w| w.pods().await.len() == 1);

    let nodes: Api<Node> = world.api();
    let change = async |change: &dyn Fn(&mut Node)| {
        let mut node = world.nodes().await.remove(0);
        change(&mut node);
        let name = node.metadata.name.clone().unwrap();
        let replaced = nodes.replace(&name, &PostParams::default(), &node).await;
        replaced.unwrap();
    };
    let mut stages: Vec<(String, Timestamp)> = Vec::new();
    for _ in 0..400 {
        let answer = explain_pod(&world, port, "web").await;
        if answer["state"] == "Bound" {
            break;
        }
        let id = text(&answer["reason"], "id").to_owned();
        let since = time(&answer["reason"]["since"]);
        if stages.last().is_none_or(|(last, _)| *last != id) {
            match id.as_str() {
                // Without the taint the node is initialized; the cordon delays the binding.
                "WaitingForInitialization" => {
                    change(&|node| {
                        let spec = node.spec.get_or_insert_default();
                        spec.unschedulable = Some(true);
                        let taints = spec.taints.get_or_insert_default();
                        taints.retain(|taint| taint.key != "example.com/starting");
                    })
                    .await;
                }
                "WaitingForBind" => {
                    change(&|node| {
                        let spec = node.spec.get_or_insert_default();
                        spec.unschedulable = None;
                        let taints = spec.taints.get_or_insert_default();
                        taints.retain(|taint| taint.key != "node.kubernetes.io/unschedulable");
                    })
                    .await;
                }
                _ => {}
            }
            stages.push((id, since));
        }
        world.cluster.clock.sleep(Duration::from_millis(200)).await;
    }
    let ids: Vec<&str> = stages.iter().map(|(id, _)| id.as_str()).collect();
    let ids = ids
        .strip_prefix(&["NotMarkedUnschedulable"])
        .unwrap_or(&ids);
    assert_eq!(
        ids,
        [
            "Batching",
            "WaitingForLaunch",
            "WaitingForRegistration",
            "WaitingForInitialization",
            "WaitingForBind",
        ]
    );
    assert!(stages.is_sorted_by_key(|(_, since)| *since), "{stages:?}");
    let answer = explain_pod(&world, port, "web").await;
    assert_eq!(answer["state"], "Bound", "{answer}");
    let reached = answer["stages"].as_array().unwrap().iter();
    let reached: Vec<&str> = reached.map(|stage| text(stage, "stage")).collect();
    assert_eq!(reached[0], "Created", "{answer}");
}

/// Conformance: EXP-12
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_explains_its_type_and_why_three_cheaper_were_not_chosen() {
    let port = free_port();
    let world = served(port, json!({ "template": on_demand() })).await;
    let family = json!({ "nodeSelector": { "karpenter.kwok.sh/instance-family": "c" },
        "containers": [{ "name": "c", "image": "i", "resources": { "requests": { "cpu": "1" } } }] });
    world.deploy_with("web", 1, family).await;
    world.until_running(1, 300).await;
    world.pass(5).await;

    let claim = world.claim().await;
    let answer = explain_claim(port, claim.name()).await;
    assert_eq!(answer["recomputed"], Value::Null, "{answer}");
    assert_eq!(answer["launch"]["planned"]["pods"], 1);
    // The list is the launched one, in the order of the plan, and so is the rank.
    let mut requirements = claim.spec.requirements.iter();
    let requirement = requirements.find(|it| it.key == TYPE).unwrap();
    let options = answer["options"].as_array().unwrap();
    let offered: Vec<&str> = options.iter().map(|it| text(it, "instanceType")).collect();
    let mut sorted = offered.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, requirement.values);
    let planned = answer["launch"]["planned"]["instanceTypes"]
        .as_array()
        .unwrap();
    assert_eq!(json!(offered[..planned.len()]), json!(planned));
    let label = |key: &str| claim.label(key).unwrap();
    let chosen = &answer["chosen"];
    assert_eq!(text(chosen, "instanceType"), label(TYPE));
    assert_eq!(text(chosen, "zone"), label(ZONE));
    assert_eq!(
        text(chosen, "capacityType"),
        label("karpenter.sh/capacity-type")
    );
    let rank = offered
        .iter()
        .position(|name| *name == label(TYPE))
        .unwrap()
        + 1;
    assert_eq!(chosen["rank"], rank);
    let price = |value: &Value| value["pricePerHour"].as_f64().unwrap();
    let premium = price(chosen) - price(&options[0]);
    assert_eq!(chosen["premium"].as_f64(), Some(premium));

    // Each rejected type is cheaper, and its reason is true by the catalogue.
    let catalogue = generate();
    let rejected = answer["rejected"].as_array().unwrap();
    let mut ids: Vec<&str> = Vec::new();
    for one in rejected {
        assert!(price(one) < price(chosen), "{one}");
        let name = text(one, "instanceType");
        let kind = catalogue.iter().find(|kind| kind.name == name).unwrap();
        let id = text(one, "id");
        let cores: f64 = kind.resources["cpu"].0.parse().unwrap();
        let is_true = match id {
            "PoolRequirement" => {
                kind.architecture != "amd64" || kind.operating_systems != ["linux"]
            }
            "PodRequirement" => !name.starts_with("c-"),
            "TooSmall" => cores <= 1.0 && one["parameters"]["resource"] == "cpu",
            _ => false,
        };
        assert!(is_true, "{one}");
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids.sort_unstable();
    assert_eq!(
        ids,
        ["PodRequirement", "PoolRequirement", "TooSmall"],
        "{answer}"
    );

    // The record of the pass knows by now what the cloud chose.
    let list = get(port, "decisions?kind=Provisioning").await;
    let items = list["items"].as_array().unwrap().iter();
    let mut items = items.flat_map(|record| record["items"].as_array().unwrap());
    let launched = items.find(|item| item["type"] == "Launched").unwrap();
    assert_eq!(&launched["chosen"], chosen, "{launched}");

    // After a restart the answer is worked out again, and says so.
    let mut world = world;
    world.cluster.stop_controllers().await;
    world.cluster.start_controllers();
    world.pass(30).await;
    let again = explain_claim(port, claim.name()).await;
    assert_eq!(again["recomputed"], true, "{again}");
    assert_eq!(again["options"], answer["options"]);
    assert_eq!(again["launch"], Value::Null);
}

/// A node that is much too large for the two pods that are left on it.
async fn oversized(port: u16) -> (World, NodeClaim) {
    let world = served(port, json!({ "template": on_demand() })).await;
    world.run("app", 12).await;
    let claim = world.claim().await;
    world.scale("app", 2).await;
    (world, claim)
}

/// Returns the last command of the records that has an outcome.
async fn outcome(port: u16) -> Option<Value> {
    let list = get(port, "decisions?kind=Disruption").await;
    let records = list["items"].as_array().unwrap().iter().rev();
    let items = records.flat_map(|record| record["items"].as_array().unwrap().clone());
    items
        .into_iter()
        .find(|item| item["type"] == "Disrupted" && !item["outcome"].is_null())
}

/// Conformance: DEC-018
#[tokio::test(start_paused = true)]
async fn a_command_s_record_says_that_it_succeeded_and_replacements_name_it() {
    let port = free_port();
    let (world, old) = oversized(port).await;
    until!(world, 300, "the old node is gone", |w| {
        let claims = w.claims().await;
        !claims.is_empty() && claims.iter().all(|claim| claim.uid() != old.uid())
    });
    world.pass(5).await;
    let answer = outcome(port).await.unwrap();
    assert_eq!(answer["outcome"]["state"], "Succeeded", "{answer}");
    assert_eq!(answer["outcome"]["why"], Value::Null);
    let new = world.claim().await;
    assert_eq!(
        answer["outcome"]["replacements"],
        json!([new.name()]),
        "{answer}"
    );
    let claim = explain_claim(port, new.name()).await;
    let planned = &claim["launch"]["planned"];
    assert_eq!(
        (&planned["type"], &planned["command"]),
        (&json!("Disrupted"), &answer["command"]),
        "{claim}"
    );
    assert!(
        claim["options"]
            .as_array()
            .is_some_and(|all| !all.is_empty()),
        "{claim}"
    );
}

/// Conformance: DEC-018
#[tokio::test(start_paused = true)]
async fn a_command_s_record_says_why_it_was_rolled_back() {
    let port = free_port();
    let (world, old) = oversized(port).await;
    world.cluster.cloud.never_register(true);
    let is_new = |claim: &NodeClaim| claim.uid() != old.uid() && !claim.is_deleting();
    until!(world, 120, "the replacement is launched", |w| {
        w.claims().await.iter().any(is_new)
    });
    let claims = world.claims().await;
    let new = claims.into_iter().find(is_new).unwrap();
    assert_eq!(outcome(port).await.unwrap()["outcome"]["state"], "Started");
    let api = world.api::<NodeClaim>();
    api.delete(new.name(), &DeleteParams::default())
        .await
        .unwrap();
    let mut answer = Value::Null;
    for _ in 0..120 {
        world.pass(1).await;
        answer = outcome(port).await.unwrap();
        if answer["outcome"]["state"] != "Started" {
            break;
        }
    }
    assert_eq!(answer["outcome"]["state"], "RolledBack", "{answer}");
    let why = format!("replacement was deleted, {}", new.name());
    assert_eq!(text(&answer["outcome"], "why"), why);
}

/// Keeps the NodeClaims after their deletion, so that they can be asked for.
async fn hold_claims(world: &World) {
    let api: Api<NodeClaim> = world.api();
    for claim in world.claims().await {
        let mut finalizers = claim.metadata.finalizers.clone().unwrap_or_default();
        finalizers.push("example.com/hold".to_owned());
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": finalizers } }));
        let to = PatchParams::default();
        api.patch(claim.name(), &to, &patch).await.unwrap();
    }
}

/// Returns the names of the NodeClaims that are being deleted.
async fn deleted_claims(world: &World) -> Vec<String> {
    let claims = world.claims().await.into_iter();
    let deleted = claims.filter(NodeClaim::is_deleting);
    deleted.map(|claim| claim.name().to_owned()).collect()
}

/// Conformance: DEC-020
#[tokio::test(start_paused = true)]
async fn the_repair_of_a_node_is_recorded_and_explained() {
    let port = free_port();
    let settings = serving(port, |options| options.feature_gates.node_repair = true);
    let never = node_pool("default").consolidate_after("Never");
    let world = World::with_settings(settings, never).await;
    world.run("app", 1).await;
    hold_claims(&world).await;
    let node = world.node_name().await;
    world.cluster.node_faults.set(&node, NodeFault::Dead);
    until!(world, 900, "the node is repaired", |w| {
        !deleted_claims(w).await.is_empty()
    });
    world.pass(1).await;

    let records = get(port, "decisions?kind=Repair").await;
    let record = &records["items"][0];
    assert_eq!(record["totals"]["disrupted"], 1, "{records}");
    let claim = deleted_claims(&world).await.remove(0);
    let answer = get(port, &format!("nodeclaims/{claim}/explanation")).await;
    assert_eq!(answer["state"], "Terminating", "{answer}");
    assert_eq!(answer["removal"]["record"], record["id"], "{answer}");
    let disrupted = &answer["removal"]["disrupted"];
    assert_eq!(*disrupted, record["items"][0]);
    assert_eq!(disrupted["reason"], "unhealthy");
    assert_eq!(disrupted["names"], json!([node]));
    let why = text(&disrupted["outcome"], "why");
    assert!(why.starts_with("Ready is "), "{why}");
}

/// Conformance: DEC-020
#[tokio::test(start_paused = true)]
async fn surplus_nodes_of_a_static_nodepool_name_the_decision() {
    let port = free_port();
    let settings = serving(port, |options| options.feature_gates.static_capacity = true);
    let world = World::with_settings(settings, node_pool("fixed").replicas(6)).await;
    until!(world, 120, "all nodes are initialized", |w| {
        w.nodes().await.len() == 6
    });
    world.pass(60).await;
    hold_claims(&world).await;
    let fewer = json!({ "spec": { "replicas": 1 } });
    world
        .patch::<karpenter_api::v1::NodePool>("fixed", fewer)
        .await;
    until!(world, 120, "five are deleted", |w| {
        deleted_claims(w).await.len() == 5
    });
    world.pass(1).await;

    for claim in world.claims().await {
        let answer = explain_claim(port, claim.name()).await;
        let reason = &answer["removal"]["disrupted"]["reason"];
        let expected = if claim.is_deleting() {
            json!("surplus")
        } else {
            Value::Null
        };
        assert_eq!(*reason, expected, "{answer}");
    }
    let records = get(port, "decisions?kind=StaticCapacity").await;
    let disrupted = records["items"].as_array().unwrap().iter();
    let disrupted = disrupted.filter_map(|record| record["totals"]["disrupted"].as_u64());
    assert_eq!(disrupted.sum::<u64>(), 5, "{records}");
}
