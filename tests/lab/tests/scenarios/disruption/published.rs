//! What is published about disruption: events of approved and rejected moves, and metrics by reason, NodePool and policy.

use std::collections::BTreeSet;

use karpenter_api::v1::NodePool;
use karpenter_fixtures::Object;
use serde_json::json;

use super::{count, on_demand, oversized};
use crate::world::{World, node_pool};

/// Three nodes of a NodePool with this policy, each with a third of its capacity used.
async fn loose(change: impl FnOnce(Object<NodePool>) -> Object<NodePool>) -> World {
    let world = on_demand(&["c-4x-amd64-linux"], change).await;
    let apps = ["a", "b", "c"];
    for (filled, app) in (1..).zip(apps) {
        world.deploy(app, 3).await;
        world.until_running(3 * filled, 60).await;
    }
    assert_eq!(world.claims().await.len(), 3);
    for app in apps {
        world.scale(app, 1).await;
    }
    world
}

/// Conformance: API-183, API-193
#[tokio::test(start_paused = true)]
async fn a_balanced_move_of_several_nodes_has_one_event_and_one_count() {
    let world = loose(|pool| pool.consolidation_policy("Balanced")).await;
    world.until_claims(1, 300).await;
    world.until_running(3, 60).await;
    let approved = events_of(&world, "ConsolidationApproved").await;
    let is_fine = |(kind, message): &(String, String)| {
        kind == "NodePool"
            && message.starts_with("score ")
            && message.contains(">= threshold 0.50 (k: 2, savings: ")
            && message.contains("%, disruption: ")
    };
    let all = approved.iter().all(is_fine);
    assert!(!approved.is_empty() && all, "{approved:?}");
    let multi = "karpenter_voluntary_disruption_decisions_total{decision=\"delete\",reason=\"underutilized\",consolidation_type=\"multi\"}";
    assert_eq!(count(&world, multi), 1.0);
    let of_pool = "{decision=\"approved\",nodepool=\"default\",policy=\"Balanced\"}";
    for metric in ["consolidation_moves_total", "consolidation_score_count"] {
        let counted = count(&world, &format!("karpenter_{metric}{of_pool}"));
        assert_eq!(counted, 1.0, "{metric}");
    }
}

/// Conformance: API-172, API-173, API-183
#[tokio::test(start_paused = true)]
async fn a_disruption_is_counted_by_reason_pool_policy_and_mode() {
    let world = loose(|pool| pool).await;
    world.until_claims(1, 300).await;
    world.until_running(3, 60).await;
    let labels = "{reason=\"underutilized\",nodepool=\"default\",capacity_type=\"on-demand\",consolidation_policy=\"when_empty_or_underutilized\",termination_mode=\"graceful\"}";
    for name in ["nodeclaims_disrupted", "pods_disruption_initiated"] {
        let counted = count(&world, &format!("karpenter_{name}_total{labels}"));
        assert_eq!(counted, 2.0, "{name}");
    }
    let decision = "decision=\"delete\",reason=\"underutilized\",consolidation_type=\"multi\"";
    for series in [
        format!("decisions_total{{{decision}}}"),
        format!("decisions_by_nodepool_total{{{decision},nodepool=\"default\"}}"),
    ] {
        let counted = count(&world, &format!("karpenter_voluntary_disruption_{series}"));
        assert_eq!(counted, 1.0, "{series}");
    }
    let judged = "karpenter_consolidation_moves_total{decision=\"approved\",nodepool=\"default\",policy=\"WhenEmptyOrUnderutilized\"}";
    assert_eq!(count(&world, judged), 1.0);
    let scored = world.has_event("ConsolidationApproved").await;
    assert!(!scored, "no score was computed");
    let evaluated = "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count{reason=\"underutilized\",consolidation_type=\"multi\"}";
    assert!(count(&world, evaluated) >= 1.0);
    let eligible = "karpenter_voluntary_disruption_eligible_nodes{reason=\"underutilized\"}";
    assert!(world.metric(eligible).is_some());
    for reason in ["Empty", "Drifted", "Underutilized"] {
        let of = format!("{{nodepool=\"default\",reason=\"{reason}\"}}");
        for name in ["allowed_disruptions", "nodes_consuming_budgets"] {
            let value = world.metric(&format!("karpenter_nodepools_{name}{of}"));
            assert!(value.is_some(), "{name}{of}");
        }
    }
    assert!(world.has_event("DisruptionTerminating").await);
    let (_, message) = events_of(&world, "Evicted").await.remove(0);
    assert_eq!(message, "Evicted pod: Underutilized");
}

/// Returns kind and message of every event with a reason.
async fn events_of(world: &World, reason: &str) -> Vec<(String, String)> {
    let events = world.events_of(reason).await.into_iter();
    let said = events.map(|e| {
        let kind = e.involved_object.kind.unwrap_or_default();
        (kind, e.message.unwrap_or_default())
    });
    said.collect()
}

fn is_published_on_both(events: &[(String, String)], parts: &[&str]) -> bool {
    let on = |kind: &str| {
        let mut own = events.iter().filter(|(of, _)| of == kind);
        own.any(|(_, message)| parts.iter().all(|part| message.contains(part)))
    };
    on("Node") && on("NodeClaim")
}

/// Conformance: API-193
#[tokio::test(start_paused = true)]
async fn a_rejected_consolidation_has_events_on_node_and_nodeclaim() {
    let (world, before) = oversized().await;
    world.scale("app", 2).await;
    world.until_event("ConsolidationCandidate", 60).await;
    world.scale("app", 12).await;
    world.pass(30).await;
    let rejected = events_of(&world, "ConsolidationRejected").await;
    let parts = ["reason: ", "(savings: $"];
    assert!(is_published_on_both(&rejected, &parts), "{rejected:?}");
    let after = world.claims().await;
    assert_eq!(after.len(), 1);
    assert_eq!(after[0].uid(), before.uid());
}

#[tokio::test(start_paused = true)]
async fn why_a_spot_node_is_kept_is_published_on_node_and_nodeclaim() {
    let world = World::new().await;
    world.run("app", 12).await;
    world.scale("app", 2).await;
    let why = ["SpotToSpotConsolidation is disabled"];
    until!(world, 120, "the reason is published", |w| {
        is_published_on_both(&events_of(w, "Unconsolidatable").await, &why)
    });
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_0_is_reported_for_a_nodepool_with_nodes_that_is_not_paused() {
    let paused = node_pool("paused").annotation(
        "operations.karpenter.sh/paused",
        "until=2026-01-02T00:00:00Z",
    );
    let world = World::with(paused).await;
    world.add(node_pool("unused").budgets(&["0"])).await;
    for (name, budget) in [("shut", "0"), ("open", "100%")] {
        world.add(node_pool(name).budgets(&[budget])).await;
    }
    for name in ["paused", "shut", "open"] {
        let there = json!({"nodeSelector": {"karpenter.sh/nodepool": name}});
        world.deploy_with(name, 1, there).await;
    }
    world.until_running(3, 60).await;
    world.pass(60).await;
    let events = world.events().await.into_iter();
    let about: BTreeSet<String> = events
        .filter(|event| {
            let message = event.message.as_deref().unwrap_or_default();
            message.starts_with("No allowed disruptions")
        })
        .filter_map(|event| event.involved_object.name)
        .collect();
    assert_eq!(about, BTreeSet::from(["shut".to_owned()]));
}
