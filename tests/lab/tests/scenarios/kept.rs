//! What keeps a node, what it would save, and what would help, over HTTP; and that the next pass agrees once it is done.

#![expect(clippy::panic, reason = "what fails here fails the test")]

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::v1::NodePool;
use karpenter_fixtures::pdb;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::decisions::{free_port, get, served};
use crate::world::{World, on_demand};

fn budget(nodes: &str) -> Value {
    json!({ "disruption": { "budgets": [{ "nodes": nodes }] } })
}

/// A node that is much too large for the two pods that are left on it, in a NodePool whose budget is 0.
async fn oversized(port: u16) -> (World, String) {
    let mut spec = budget("0");
    spec["template"] = on_demand();
    let world = served(port, spec).await;
    world.run("app", 12).await;
    world.scale("app", 2).await;
    world.pass(60).await;
    let node = world.node_name().await;
    (world, node)
}

async fn annotate(world: &World, pod: &str, value: Value) {
    let api = world.namespaced::<Pod>();
    let patch = json!({ "metadata": { "annotations": { "karpenter.sh/do-not-disrupt": value } } });
    let (patch, params) = (Patch::Merge(patch), PatchParams::default());
    api.patch(pod, &params, &patch).await.unwrap();
}

async fn set_budget(world: &World, nodes: &str) {
    world
        .patch::<NodePool>("default", json!({ "spec": budget(nodes) }))
        .await;
}

fn ids(answer: &Value, list: &str) -> Vec<String> {
    let all = answer[list]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    let ids = all.iter().map(|one| one["id"].as_str().unwrap().to_owned());
    ids.collect()
}

fn savings(outcome: &Value) -> f64 {
    let savings = &outcome["command"]["savingsPerHour"]["list"];
    savings.as_f64().unwrap_or_else(|| panic!("{outcome}"))
}

/// Waits for the record of the first command.
async fn command(world: &World, port: u16) -> Value {
    for _ in 0..60 {
        let list = get(port, "decisions?kind=Disruption").await;
        let records = list["items"].as_array().unwrap().iter();
        let mut items = records.flat_map(|record| record["items"].as_array().unwrap());
        if let Some(item) = items.find(|item| item["type"] == "Disrupted") {
            return item.clone();
        }
        world.pass(5).await;
    }
    panic!("no command: {}", world.describe().await);
}

/// Conformance: EXP-10
#[tokio::test(start_paused = true)]
async fn all_that_keeps_a_node_is_listed_with_what_it_saves_once_gone() {
    let port = free_port();
    let (world, node) = oversized(port).await;
    let pod = world.pod_name("app").await;
    annotate(&world, &pod, json!("true")).await;
    let guard = pdb("guard").max_unavailable(0).of(("app", "app"));
    world.add(guard).await;
    world.pass(30).await;

    let answer = get(port, &format!("nodes/{node}/explanation?timeout=5s")).await;
    assert_eq!(
        ids(&answer, "blockers"),
        ["PodDoNotDisrupt", "Pdb", "Budget"]
    );
    assert_eq!(answer["reason"]["id"], "PodDoNotDisrupt", "{answer}");
    let forecast = savings(&answer["whatIf"]);
    assert!(forecast > 0.0, "{answer}");
    for blocker in answer["blockers"].as_array().unwrap() {
        assert_eq!(blocker["alone"]["command"], Value::Null, "{blocker}");
        assert_ne!(blocker["alone"]["reason"]["id"], Value::Null, "{blocker}");
    }
    assert_eq!(ids(&answer, "ladder"), ["Pdb", "Budget"], "{answer}");
    for help in answer["blockers"][1]["help"].as_array().unwrap() {
        if help["exact"] == true {
            assert_eq!(help["savingsPerHour"]["list"].as_f64(), Some(forecast));
        }
    }

    annotate(&world, &pod, Value::Null).await;
    let api = world.namespaced::<PodDisruptionBudget>();
    api.delete("guard", &DeleteParams::default()).await.unwrap();
    set_budget(&world, "100%").await;
    let done = command(&world, port).await;
    let saved = done["savingsPerHour"].as_f64().unwrap();
    assert!((saved - forecast).abs() < 1e-9, "{saved} {forecast} {done}");
    let planned = &answer["whatIf"]["command"];
    assert_eq!(done["decision"], planned["decision"]);
    assert_eq!(done["pods"], planned["podsMoved"]);
    assert_eq!(
        done["instanceTypes"][0],
        planned["replacements"][0]["instanceType"]
    );
}
