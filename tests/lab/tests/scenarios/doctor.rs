//! What blocks nodes, over HTTP and as metrics; and the second line of `FailedScheduling` events.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_fixtures::pdb;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::decisions::{free_port, get, served, serving};
use crate::events::is_ours;
use crate::world::{World, node_pool, on_demand};

fn finding<'a>(report: &'a Value, id: &str) -> Option<&'a Value> {
    let mut all = report["checks"].as_array()?.iter();
    all.find(|finding| finding["id"] == id)
}

/// Conformance: SURGE-13, DEC-014
#[tokio::test(start_paused = true)]
async fn an_impossible_budget_is_reported_with_what_it_costs() {
    let port = free_port();
    let world = served(port, json!({ "template": on_demand() })).await;
    world.deploy("big", 12).await;
    world.deploy("guarded", 1).await;
    world.until_running(13, 120).await;
    let guard = pdb("guard").max_unavailable(0).of(("app", "guarded"));
    world.add(guard).await;
    world.scale("big", 0).await;
    world.pass(900).await;

    let report = get(port, "blockers").await;
    assert_eq!(report["kind"], "BlockerReport");
    let found = finding(&report, "PdbImpossible").unwrap();
    assert_eq!(found["severity"], "Blocks", "{report}");
    assert_eq!(found["owner"], "Deployment default/guarded");
    assert_eq!(found["nodeCount"], 1);
    let costs = found["costPerDay"].as_f64().unwrap();
    assert!(costs > 0.0, "{report}");
    let ran = report["ran"].as_array().unwrap();
    assert!(ran.contains(&json!("PermissionMissing")), "{report}");
    assert!(finding(&report, "PermissionMissing").is_none(), "{report}");
    // A team sees its own; the metrics are those of the last report.
    let of_team = get(port, "blockers?namespace=default").await;
    assert!(finding(&of_team, "PdbImpossible").is_some(), "{of_team}");
    let of_other = get(port, "blockers?namespace=other").await;
    assert_eq!(of_other["checks"], json!([]));
    let series = |name: &str| world.metric(&format!("{name}{{check=\"PdbImpossible\"}}"));
    assert_eq!(series("karpenter_blockers"), Some(1.0));
    assert_eq!(series("karpenter_blockers_cost_per_day"), Some(costs));

    let price = async || {
        let pool = get(port, "nodepools/default/explanation").await;
        pool["pricePerHour"].as_f64().unwrap()
    };
    let before = price().await;
    let budgets = world.namespaced::<PodDisruptionBudget>();
    let params = DeleteParams::default();
    budgets.delete("guard", &params).await.unwrap();
    world.pass(900).await;
    let saved = (before - price().await) * 24.0;
    assert!(saved > 0.0);
    assert!(
        (saved - costs).abs() <= costs / 100.0,
        "{saved} and {costs}"
    );
    let report = get(port, "blockers").await;
    assert!(finding(&report, "PdbImpossible").is_none(), "{report}");
}

/// Conformance: DEC-015
#[tokio::test(start_paused = true)]
async fn with_the_feature_gate_an_event_s_second_line_is_what_blocks_the_pod() {
    let message = async |hints: bool| {
        let settings = serving(0, |options| options.feature_gates.scheduling_hints = hints);
        let world = World::with_settings(settings, node_pool("default")).await;
        let nowhere = json!({ "nodeSelector": { "kubernetes.io/arch": "arm64" } });
        world.deploy_with("lost", 3, nowhere).await;
        world.pass(30).await;
        let failed = world.events_of("FailedScheduling").await.into_iter();
        let failed = failed.filter(is_ours);
        let messages: Vec<String> = failed.filter_map(|event| event.message).collect();
        assert_eq!(messages.len(), 3, "{messages:?}");
        assert!(messages.iter().all(|it| *it == messages[0]), "{messages:?}");
        world.cluster.shutdown().await;
        messages[0].clone()
    };
    let (without, with) = (message(false).await, message(true).await);
    assert!(!without.contains('\n'), "{without}");
    let (first, second) = with.split_once('\n').unwrap();
    assert_eq!(first, without, "upstream's text is kept");
    assert_eq!(
        second,
        "In the way: the pod's nodeSelector kubernetes.io/arch=arm64; NodePool default: kubernetes.io/arch In [amd64], both together. This change alone would help: drop nodeSelector kubernetes.io/arch=arm64."
    );
}
