//! What blocks a pending pod, and what would help, over HTTP; and that a proposed change helps once it is made.

#![expect(clippy::panic, reason = "what fails here fails the test")]

use karpenter_api::v1::NodePool;
use serde_json::{Value, json};

use crate::decisions::{explain_pod, free_port, served, serving};
use crate::world::{World, deployment, node_pool};

/// Returns the relaxation whose text begins so.
fn relaxation<'a>(explanation: &'a Value, text: &str) -> &'a Value {
    let all = explanation["relaxations"].as_array().into_iter().flatten();
    let begins = |one: &&Value| one["text"].as_str().is_some_and(|it| it.starts_with(text));
    all.clone()
        .find(begins)
        .unwrap_or_else(|| panic!("{text}: {explanation}"))
}

/// Applies a patch of an answer to a NodePool, as `kubectl patch` does.
async fn apply(world: &World, patch: &Value) {
    let target = patch["target"].as_str().unwrap();
    let name = target.strip_prefix("NodePool/").unwrap();
    assert_eq!(patch["type"], "merge");
    world.patch::<NodePool>(name, patch["value"].clone()).await;
}

/// Conformance: EXP-02
#[tokio::test(start_paused = true)]
async fn a_limit_has_its_amounts_and_raising_it_so_far_places_the_pod() {
    let port = free_port();
    let world = served(port, json!({ "limits": { "cpu": "6" } })).await;
    world.add(deployment("web", 1).cpu("3")).await;
    world.until_running(1, 300).await;
    world.add(deployment("more", 1).cpu("3")).await;
    world.pass(30).await;

    let explanation = explain_pod(&world, port, "more").await;
    assert_eq!(explanation["reason"]["id"], "LimitReached", "{explanation}");
    let amounts =
        json!({ "resource": "cpu", "limit": "6", "used": "4", "needed": "4", "shortBy": "2" });
    assert_eq!(
        explanation["reason"]["parameters"], amounts,
        "{explanation}"
    );
    let raise = relaxation(&explanation, "NodePool default: limits cpu 6 -> 8");
    assert_eq!(raise["change"], json!({ "from": "6", "to": "8" }));
    // One core less is not enough.
    let less = json!({ "target": "NodePool/default", "type": "merge", "value": { "spec": { "limits": { "cpu": "7" } } } });
    apply(&world, &less).await;
    world.pass(60).await;
    assert_eq!(world.nodes().await.len(), 1);
    apply(&world, &raise["patch"]).await;
    world.until_running(2, 300).await;
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
    let world = World::with_settings(serving(port, |_| ()), small).await;
    world.add(deployment("first", 2).cpu("1500m")).await;
    world.add(deployment("late", 1).cpu("1")).await;
    world.until_claims(1, 60).await;
    let explanation = explain_pod(&world, port, "late").await;
    assert_eq!(explanation["reason"]["id"], "Competition", "{explanation}");
    assert_eq!(
        explanation["reason"]["parameters"]["takers"],
        json!(["Deployment default/first"])
    );
    let taker = &explanation["competition"]["takers"][0];
    assert_eq!(taker["pods"], 2, "{explanation}");
    assert_eq!(taker["requests"]["cpu"], "3");
    assert_eq!(explanation["competition"]["exact"], true, "{explanation}");
    let first = explain_pod(&world, port, "first").await;
    assert_eq!(first["competition"], Value::Null);
}
