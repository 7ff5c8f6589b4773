//! What blocks a pending pod, and what would help, over HTTP; and that what is told to help does, once it is done.

#![expect(clippy::panic, reason = "what fails here fails the test")]

use k8s_openapi::api::apps::v1::Deployment;
use karpenter_api::v1::NodePool;
use karpenter_fixtures::{Object, ZONE};
use karpenter_kwok::KwokNodeClass;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::decisions::{explain_first_pod, free_port, get, serving};
use crate::world::{World, deployment, node_pool};

/// A cluster whose controllers serve on a port, with NodePools.
async fn world(port: u16, pools: &[Object<NodePool>]) -> World {
    let world = World::bare(serving(port, |_| ())).await;
    world.create(&KwokNodeClass::new("default")).await;
    for pool in pools {
        world.add(pool.clone()).await;
    }
    world
}

fn in_zones(name: &str, zones: &[&str]) -> Object<NodePool> {
    node_pool(name)
        .without_requirements()
        .requires(ZONE, "In", zones)
}

fn ids(told: &Value) -> Vec<&str> {
    let atoms = told["blocking"]["atoms"].as_array();
    let atoms = atoms.unwrap_or_else(|| panic!("{told}"));
    assert_eq!(told["blocking"]["exact"], true, "{told}");
    atoms
        .iter()
        .filter_map(|atom| atom["id"].as_str())
        .collect()
}

/// Returns the relaxation whose text begins so.
fn relaxation<'a>(told: &'a Value, text: &str) -> &'a Value {
    let all = told["relaxations"].as_array().into_iter().flatten();
    let begins = |one: &&Value| one["text"].as_str().is_some_and(|it| it.starts_with(text));
    all.clone()
        .find(begins)
        .unwrap_or_else(|| panic!("{text}: {told}"))
}

/// Applies a patch of an answer, as `kubectl patch` does.
async fn apply(world: &World, patch: &Value) {
    let target: Vec<&str> = patch["target"].as_str().unwrap().split('/').collect();
    let params = PatchParams::default();
    let value = &patch["value"];
    match (target[..].first(), patch["type"].as_str()) {
        (Some(&"NodePool"), Some("merge")) => {
            let api: Api<NodePool> = Api::all(world.client.clone());
            api.patch(target[1], &params, &Patch::Merge(value))
                .await
                .unwrap();
        }
        (Some(&"Deployment"), Some(kind)) => {
            let api: Api<Deployment> = Api::namespaced(world.client.clone(), target[1]);
            let patch = match kind {
                "json" => Patch::Json(serde_json::from_value(value.clone()).unwrap()),
                _ => Patch::Strategic(value.clone()),
            };
            api.patch::<Value>(target[2], &params, &patch)
                .await
                .unwrap();
        }
        other => panic!("{other:?}"),
    }
}

/// Conformance: EXP-01
#[tokio::test(start_paused = true)]
async fn a_zone_of_no_node_pool_is_blocked_by_selector_and_requirements() {
    let port = free_port();
    let pools = [
        in_zones("a", &["test-zone-a"]),
        in_zones("b", &["test-zone-b"]),
    ];
    let world = world(port, &pools).await;
    world.deploy("there", 1).await;
    world.until_running(1, 300).await;
    world.delete_deployments(&["there"]).await;
    world
        .add(deployment("lost", 1).select(ZONE, "test-zone-c"))
        .await;
    world
        .until(60, "the pod of lost is the only one", async |w| {
            w.pods().await.len() == 1
        })
        .await;
    world.pass(15).await;

    let told = explain_first_pod(&world, port).await;
    let selector = format!("pod.nodeSelector[{ZONE}]");
    assert_eq!(
        ids(&told),
        [
            &selector,
            "pool[a].requirements[0]",
            "pool[b].requirements[0]"
        ]
    );
    let first = &told["relaxations"][0];
    assert_eq!(first["atoms"], json!([selector]), "{told}");
    assert_eq!(first["deltaPerHour"], 0.0, "{told}");
    assert!(first["effect"]["node"].is_string(), "{told}");
    apply(&world, &first["patch"]).await;
    world.until_running(1, 60).await;
    world.cluster.shutdown().await;
}

/// Conformance: EXP-02
#[tokio::test(start_paused = true)]
async fn a_limit_has_its_amounts_and_raising_it_so_far_places_the_pod() {
    let port = free_port();
    let world = world(port, &[node_pool("default").limit("cpu", "6")]).await;
    world.add(deployment("web", 1).cpu("3")).await;
    world.until_running(1, 300).await;
    world.add(deployment("more", 1).cpu("3")).await;
    world.pass(30).await;

    let running = world.pods().await;
    let pending = running
        .iter()
        .find(|pod| pod.spec.as_ref().unwrap().node_name.is_none())
        .unwrap();
    let name = pending.metadata.name.clone().unwrap();
    let told = crate::decisions::get(
        port,
        &format!("namespaces/default/pods/{name}/explanation?timeout=5s"),
    )
    .await;
    assert_eq!(told["reason"]["id"], "LimitReached", "{told}");
    let amounts =
        json!({ "resource": "cpu", "limit": "6", "used": "4", "needed": "4", "shortBy": "2" });
    assert_eq!(told["reason"]["parameters"], amounts, "{told}");
    let raise = relaxation(&told, "NodePool default: limits cpu 6 -> 8");
    assert_eq!(raise["change"], json!({ "from": "6", "to": "8" }));
    // One core less is not enough.
    let less = json!({ "target": "NodePool/default", "type": "merge", "value": { "spec": { "limits": { "cpu": "7" } } } });
    apply(&world, &less).await;
    world.pass(60).await;
    assert_eq!(world.nodes().await.len(), 1);
    apply(&world, &raise["patch"]).await;
    world.until_running(2, 300).await;
    world.cluster.shutdown().await;
}

/// Conformance: EXP-03
#[tokio::test(start_paused = true)]
async fn an_untolerated_taint_is_tolerated_or_removed_at_one_price() {
    let port = free_port();
    let tainted = node_pool("default").taint("team", "search", "NoSchedule");
    let world = world(port, &[tainted]).await;
    world.deploy("web", 1).await;
    world.pass(30).await;

    let told = explain_first_pod(&world, port).await;
    assert_eq!(
        ids(&told),
        [
            "pod.toleration[team=search:NoSchedule]",
            "pool[default].taints[0]"
        ]
    );
    let sides: Vec<&Value> = told["relaxations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["side"])
        .collect();
    assert_eq!(sides, ["Pod", "Pool"], "{told}");
    assert_eq!(
        told["relaxations"][0]["deltaPerHour"],
        told["relaxations"][1]["deltaPerHour"]
    );
    apply(&world, &told["relaxations"][0]["patch"]).await;
    world.until_running(1, 300).await;
    world.cluster.shutdown().await;
}

/// Conformance: EXP-07
#[tokio::test(start_paused = true)]
async fn a_pod_too_large_for_every_type_is_told_the_largest_request_that_fits() {
    let port = free_port();
    let world = world(port, &[node_pool("default")]).await;
    world.add(deployment("huge", 1).cpu("1000")).await;
    world.pass(30).await;

    let told = explain_first_pod(&world, port).await;
    assert_eq!(told["reason"]["id"], "TooLarge", "{told}");
    assert_eq!(ids(&told), ["pod.requests[cpu]"]);
    let shortage = &told["reason"]["parameters"]["shortage"];
    assert_eq!(
        (&shortage["requested"], &shortage["largest"]),
        (&json!("1000"), &json!("255.9"))
    );
    let lower = relaxation(&told, "requests cpu 1,000 -> ");
    let fits = lower["change"]["to"].as_str().unwrap();
    world.add(deployment("fits", 1).cpu(fits)).await;
    world
        .until(300, "the pod of fits runs", async |w| {
            w.nodes().await.len() == 1
        })
        .await;
    world.cluster.shutdown().await;
}

/// Conformance: EXP-06
#[tokio::test(start_paused = true)]
async fn a_pod_without_room_beside_others_names_their_owner() {
    let port = free_port();
    let small = node_pool("default").limit("nodes", "1").requires(
        "node.kubernetes.io/instance-type",
        "In",
        &["c-4x-amd64-linux"],
    );
    let world = world(port, &[small]).await;
    world.add(deployment("first", 2).cpu("1500m")).await;
    world.add(deployment("late", 1).cpu("1")).await;
    world.until_claims(1, 60).await;
    let pods = world.pods().await;
    let names = pods.iter().filter_map(|pod| pod.metadata.name.as_deref());
    let late = names.clone().find(|name| name.starts_with("late")).unwrap();
    let path = format!("namespaces/default/pods/{late}/explanation?timeout=5s");
    let told = get(port, &path).await;
    assert_eq!(told["reason"]["id"], "Competition", "{told}");
    assert_eq!(
        told["reason"]["parameters"]["takers"],
        json!(["Deployment default/first"])
    );
    let taker = &told["competition"]["takers"][0];
    assert_eq!(taker["pods"], 2, "{told}");
    assert_eq!(taker["requests"]["cpu"], "3");
    assert_eq!(told["competition"]["exact"], true, "{told}");
    let first = names.clone().find(|name| name.starts_with("first"));
    let path = format!(
        "namespaces/default/pods/{}/explanation?timeout=5s",
        first.unwrap()
    );
    assert_eq!(get(port, &path).await["competition"], Value::Null);
    world.cluster.shutdown().await;
}
