//! Two versions of Karpenter in the same cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::labels::annotations::CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS;
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_core::behavior::Behavior;
use karpenter_decisions::rehearse::Settings;
use karpenter_decisions::rehearse::plan::{Plan, RuleAlone, Sample, Versions};
use serde_json::{Value, json};

use crate::rehearse::world::{World, described, now};

fn compare(world: &World, from: &str, to: &str, more: Value) -> Plan {
    let mut request = json!({ "versions": { "from": from, "to": to } });
    let fields = more.as_object().cloned().unwrap_or_default();
    request.as_object_mut().unwrap().extend(fields);
    world.plan(request)
}

fn versions(plan: &Plan) -> &Versions {
    plan.versions.as_ref().unwrap()
}

/// A node whose pod fits on another one, and that one, to which a pod was bound a minute ago.
fn beside_a_recent_node() -> World {
    let mut world = World::new(json!({ "disruption": { "consolidateAfter": "10m" } }))
        .node("a", 2)
        .pods("web", "a", 1)
        .node("b", 16)
        .pods("web", "b", 12);
    let mut claim = NodeClaim::clone(world.snapshot().node_claim("b-claim").unwrap());
    let recently = now() - jiff::SignedDuration::from_mins(1);
    claim.status.last_pod_event_time = Some(Time(recently));
    world.0.apply_node_claim(&claim);
    world
}

#[test]
fn the_rule_that_makes_the_first_difference_is_named() {
    let world = beside_a_recent_node();
    let [from, to] = ["karpenter-1.13", "karpenter-1.14"];
    let plan = compare(&world, from, to, json!({ "for": "5m" }));
    let versions = versions(&plan);
    let first = versions.first_difference.as_ref().unwrap();
    assert_eq!(first.rules, ["consolidate-after-applies-to-destinations"]);
    let step = first.from.clone().unwrap();
    assert_eq!(described(&[step]), ["delete Underutilized a"]);
    assert_eq!(first.to, None);
    let reclaimed = [&versions.before, &versions.after].map(|run| run.reclaimed);
    assert_eq!(reclaimed, [1, 0]);
    let alone = |it: &RuleAlone| (it.rule.clone(), it.run.map(|run| run.reclaimed));
    let rules = |of: &Versions| of.rules.iter().map(alone).collect::<Vec<_>>();
    let expected = |destinations, savings| {
        [
            (
                "consolidate-after-applies-to-destinations".to_owned(),
                destinations,
            ),
            ("candidates-by-savings".to_owned(), savings),
        ]
    };
    assert_eq!(rules(versions), expected(None, None));
    // Each rule alone: the other one makes no difference here.
    let pair = json!({ "from": from, "to": to, "eachRule": true });
    let each = world.plan(json!({ "versions": pair, "for": "5m" }));
    let of_each = rules(each.versions.as_ref().unwrap());
    assert_eq!(of_each, expected(Some(0), Some(1)));
    // The plan itself is that of the second version, and its twin that of the first.
    assert_eq!(plan.after.nodes, 2);
    assert_eq!(plan.unchanged.as_ref().unwrap().after.nodes, 1);
}

fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().unwrap().install(work)
}

#[test]
fn a_comparison_does_not_depend_on_the_number_of_threads() {
    let world = beside_a_recent_node();
    let compared = || {
        let request = json!({ "for": "30m", "churn": "20%/10m" });
        compare(&world, "karpenter-1.13", "this", request)
    };
    let alone = on_threads(1, compared);
    assert!(alone.differs() && versions(&alone).rules.len() > 2);
    assert_eq!(on_threads(3, compared), alone);
}

#[test]
fn each_rule_to_the_end_names_the_same_rule_of_the_first_difference() {
    // One node at a time: that with the fewest pods, or that with the highest price per pod.
    let world = World::new(json!({ "disruption": { "budgets": [{ "nodes": "1" }] } }))
        .node("a", 2)
        .pods("web", "a", 1)
        .node("b", 16)
        .pods("web", "b", 2)
        .node("c", 16)
        .pods("web", "c", 4);
    let first = |each_rule: bool| {
        let pair =
            json!({ "from": "karpenter-1.13", "to": "karpenter-1.14", "eachRule": each_rule });
        let plan = world.plan(json!({ "versions": pair, "for": "30m" }));
        versions(&plan).first_difference.clone().unwrap()
    };
    let named = first(false);
    let deleted = [named.from.clone(), named.to.clone()].map(|step| described(&[step.unwrap()]));
    assert_eq!(
        deleted.concat(),
        ["delete Underutilized a", "delete Underutilized b"]
    );
    assert_eq!(named.rules, ["candidates-by-savings"]);
    assert_eq!(first(true), named);
}

#[test]
fn the_annotation_about_destinations_counts_for_this_version_alone() {
    let mut world = beside_a_recent_node();
    let mut pool = NodePool::clone(world.snapshot().node_pool("default").unwrap());
    let annotation = CONSOLIDATE_AFTER_APPLIES_TO_DESTINATIONS.to_owned();
    pool.metadata.annotations = Some([(annotation, "false".to_owned())].into());
    world.0.apply_node_pool(&pool);
    let plan = compare(&world, "karpenter-1.14", "this", json!({ "for": "5m" }));
    let versions = versions(&plan);
    assert_eq!(
        versions.left_out,
        [
            "karpenter-1.14 does not know the annotation operations.karpenter.sh/consolidate-after-applies-to-destinations of NodePool default."
        ]
    );
    assert_eq!(
        (versions.before.reclaimed, versions.after.reclaimed),
        (0, 1)
    );
}

#[test]
fn equal_rules_make_no_difference() {
    let world = beside_a_recent_node();
    let plan = compare(&world, "karpenter-1.14", "head", json!({ "for": "5m" }));
    let versions = versions(&plan);
    assert_eq!(
        (&versions.first_difference, versions.rules.len()),
        (&None, 0)
    );
    assert_eq!((versions.before, plan.differs()), (versions.after, false));
}

/// Changes are made with both versions.
#[test]
fn numbers_are_means_over_time_and_pending_pods_count_in_seconds() {
    let world = World::new(json!({ "disruption": { "consolidationPolicy": "WhenEmpty" } }));
    let change = json!({ "for": "2m", "changes": [{ "apply": crate::rehearse::world::deployment("web", 2, "1500m") }] });
    let plan = compare(&world, "karpenter-1.14", "this", change);
    let run = versions(&plan).before;
    // A node of four cores, sixty seconds after the batch of a second: half of the time.
    assert_eq!((run.launches, run.evictions), (1, 0));
    let launched = plan.curve.iter().find(|sample| sample.nodes == 1);
    let launched = launched.unwrap().after;
    let share = (120 - launched) as f64 / 120.0;
    assert!((run.nodes - share).abs() < 1e-9, "{run:?}");
    assert!((run.price_per_hour - 0.4 * share).abs() < 1e-9, "{run:?}");
    let is_bound = |sample: &&Sample| sample.after > 0 && sample.pending == 0;
    let bound = plan.curve.iter().find(is_bound).unwrap();
    assert_eq!(run.pending_seconds, 2 * bound.after);
}

#[test]
fn settings_of_this_version_count_as_differences_to_upstream() {
    let mut settings = Settings::at(now());
    settings.disruption.multi_node.max_replacements = 3;
    settings
        .disruption
        .policy
        .behavior
        .consolidate_after_applies_to_destinations = false;
    let request = json!({ "versions": { "from": "this", "to": "karpenter-1.14" }, "for": "0s" });
    let plan = World::new(json!({})).ask_with(&settings, request).unwrap();
    let rules = versions(&plan)
        .rules
        .iter()
        .map(|it| format!("{} {} {}", it.rule, it.from, it.to));
    assert_eq!(
        rules.collect::<Vec<_>>(),
        [
            "consolidate-after-applies-to-destinations no yes",
            "passes-wait-for-validation no yes",
            "several-commands-per-pass yes no",
            "multi-node-considers-any-set yes no",
            "replacements-are-kept-ten-minutes yes no",
            "packing LowestCost FewestNodes",
            "node-overhead-price 0.03 0",
            "consolidation-max-replacements 3 1",
        ]
    );
}

#[test]
fn what_a_version_does_not_know_is_left_out_and_named() {
    let balanced = json!({ "disruption": { "consolidationPolicy": "Balanced" } });
    let world = World::new(balanced)
        .node("a", 16)
        .pods("web", "a", 1)
        .node("b", 16)
        .pods("web", "b", 1);
    let plan = compare(&world, "karpenter-1.13", "karpenter-1.14", json!({}));
    let versions = versions(&plan);
    assert_eq!(
        versions.left_out,
        [
            "karpenter-1.13 does not know the consolidationPolicy Balanced: in NodePool default it deletes empty nodes only."
        ]
    );
    assert_eq!(versions.before.reclaimed, 0);
    assert!(versions.after.reclaimed > 0, "{:?}", described(&plan.steps));
}

#[test]
fn objects_that_a_version_does_not_know_are_named() {
    let mut settings = Settings::at(now());
    settings.gates.static_pools.enabled = true;
    settings.gates.node_overlays = true;
    let mut world = World::new(json!({ "replicas": 1 }));
    let overlay = json!({ "metadata": { "name": "cheap" }, "spec": { "requirements": [] } });
    let overlay = serde_json::from_value(overlay).unwrap();
    world.0.apply_node_overlay(&overlay);
    let left_out = |world: &World| {
        let request =
            json!({ "versions": { "from": "karpenter-1.6", "to": "karpenter-1.13" }, "for": "0s" });
        let plan = world.ask_with(&settings, request).unwrap();
        versions(&plan).left_out.clone()
    };
    assert_eq!(
        left_out(&world),
        [
            "karpenter-1.6 does not know `replicas` of NodePools: the number of nodes of default is not kept.",
            "karpenter-1.6 does not know NodeOverlays: with cheap, the instance types keep what the cluster has.",
        ]
    );
    assert_eq!(left_out(&World::new(json!({}))), [""; 0]);
}

#[test]
fn a_comparison_that_is_cut_short_leaves_out_rules_and_says_so() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = |limit: usize| {
        let asked = Arc::clone(&asked);
        asked.store(0, Ordering::Relaxed);
        let mut settings = Settings::at(now());
        settings.cancel = Some(Arc::new(move || {
            asked.fetch_add(1, Ordering::Relaxed) >= limit
        }));
        let pair = json!({ "from": "karpenter-1.13", "to": "karpenter-1.14", "eachRule": true });
        let request = json!({ "versions": pair, "for": "5m" });
        let plan = || beside_a_recent_node().ask_with(&settings, request).unwrap();
        // One after the other, so that the last run is the last to be asked.
        on_threads(1, plan)
    };
    let whole = counted(usize::MAX);
    let needed = asked.load(Ordering::Relaxed);
    let runs = |plan: &Plan| {
        let rules = versions(plan).rules.iter();
        rules.filter(|it| it.run.is_some()).count()
    };
    assert_eq!((runs(&whole), whole.observed.truncated), (2, false));
    let cut = counted(needed - 1);
    assert_eq!((runs(&cut), cut.observed.truncated), (1, true));
}

#[test]
fn an_unknown_version_is_refused_with_those_that_are_known() {
    let unknown = json!({ "versions": { "from": "this", "to": "karpenter-0.9" } });
    let error = World::new(json!({})).ask(unknown).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid request: versions: unknown version `karpenter-0.9`: karpenter-1.0, karpenter-1.6, karpenter-1.13, karpenter-1.14, head, this are known"
    );
}

#[test]
fn the_page_offers_the_versions_that_are_known() {
    let page = include_str!("../../../karpenter-dashboard/assets/js/plan.js");
    let names = Behavior::VERSIONS.map(|name| match name {
        "this" => "THIS".to_owned(),
        name => format!("\"{name}\""),
    });
    let line = format!("const VERSIONS = [{}];", names.join(", "));
    assert!(page.contains(&line), "plan.js lacks {line}");
}

#[test]
fn what_is_not_modelled_is_said_first() {
    let world = World::new(json!({}));
    let plan = compare(&world, "head", "this", json!({ "for": "0s" }));
    let first = &plan.approximate[0];
    assert!(first.contains("timeouts are not modelled"), "{first}");
}

#[test]
fn churn_takes_a_share_of_the_replicas_away_and_brings_it_back() {
    let world = World::new(json!({ "disruption": { "consolidationPolicy": "WhenEmpty" } }))
        .node("a", 16)
        .pods("web", "a", 10);
    let of = |churn: &'static str| {
        let world = &world;
        move |length: &str| {
            let plan = world.plan(json!({ "churn": churn, "for": length }));
            plan.after.pods
        }
    };
    // Of ten pods, four go in the first half hour: each ends five seconds later, and counts no more from its deletion on.
    assert_eq!(
        ["0s", "8m", "29m", "31m", "38m", "1h"].map(of("40%/1h")),
        [10, 9, 7, 6, 7, 10]
    );
    // None is chosen twice.
    assert_eq!(["31m", "1h", "91m"].map(of("100%/1h")), [0, 10, 0]);
    let plan = world.plan(json!({ "churn": "40%/1h" }));
    assert!(
        plan.approximate
            .iter()
            .any(|note| note.contains("40% of the replicas"))
    );
    // Other workloads than Deployments stay as they are.
    assert_eq!(plan.evictions.total, 0);
}
