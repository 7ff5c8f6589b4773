//! The stages of a pending pod, over HTTP.

use std::time::Duration;

use karpenter_kwok::KwokNodeClass;
use serde_json::json;

use crate::decisions::{free_port, request, serving};
use crate::world::{World, pool};

/// Conformance: EXP-09
#[tokio::test(start_paused = true)]
async fn a_pod_goes_from_stage_to_stage_and_never_back() {
    let order = [
        "NotMarkedUnschedulable",
        "Batching",
        "WaitingForLaunch",
        "WaitingForRegistration",
        "WaitingForInitialization",
        "WaitingForBind",
    ];
    let port = free_port();
    let world = World::bare(serving(port, |_| ())).await;
    world.create(&KwokNodeClass::new("default")).await;
    world.create(&pool("default", json!({}))).await;
    world.deploy("app", 1).await;
    world
        .until(10, "the pod exists", async |w| w.pods().await.len() == 1)
        .await;
    let name = world.pods().await.remove(0).metadata.name.unwrap();
    let path = format!("namespaces/default/pods/{name}/explanation");
    let mut seen: Vec<(String, String)> = Vec::new();
    for _ in 0..1200 {
        let answer = request(port, "GET", &path, "Host: localhost\r\n").await;
        if answer.code == 200 {
            let told = answer.json();
            if told["state"] == "Bound" {
                break;
            }
            let id = told["reason"]["id"].as_str().unwrap().to_owned();
            let since = told["reason"]["since"].as_str().unwrap_or_default();
            if seen.last().is_none_or(|(last, _)| *last != id) {
                seen.push((id, since.to_owned()));
            }
        }
        world.cluster.clock.sleep(Duration::from_millis(100)).await;
    }
    let at: Vec<usize> = seen
        .iter()
        .map(|(id, _)| order.iter().position(|known| known == id).unwrap())
        .collect();
    assert!(at.is_sorted(), "{seen:?}");
    let ids: Vec<&str> = seen.iter().map(|(id, _)| id.as_str()).collect();
    assert!(ids.ends_with(&order[2..]), "{seen:?}");
    let since: Vec<&str> = seen.iter().map(|(_, since)| since.as_str()).collect();
    assert!(since.iter().all(|since| !since.is_empty()), "{seen:?}");
    world.cluster.shutdown().await;
}
