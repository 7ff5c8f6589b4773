//! What the controllers do in a rehearsal.

use karpenter_decisions::rehearse::plan::{EndedBy, Plan};
use karpenter_decisions::rehearse::request::PlanRequest;
use karpenter_decisions::rehearse::{MAX_RUNS, MAX_STATIC, Settings, rehearse};
use serde_json::json;

use crate::rehearse::world::{World, deployment, described, now, pool};

fn quiet() -> World {
    World::new(json!({ "disruption": { "consolidationPolicy": "WhenEmpty" } }))
        .node("a", 4)
        .pods("web", "a", 1)
        .node("b", 4)
        .pods("web", "b", 1)
}

#[test]
fn a_cluster_in_which_nothing_is_due_stays_as_it_is() {
    let plan = quiet().plan(json!({}));
    assert_eq!(described(&plan.steps), [""; 0]);
    assert_eq!((plan.before, plan.differs()), (plan.after, false));
    assert_eq!((plan.before.nodes, plan.before.pods), (2, 2));
    assert_eq!(plan.before.price_per_hour, 0.8);
}

#[test]
fn a_policy_that_allows_consolidation_is_blamed_for_a_deleted_node() {
    let change =
        pool(json!({ "disruption": { "consolidationPolicy": "WhenEmptyOrUnderutilized" } }));
    let plan = quiet().plan(json!({ "changes": [{ "apply": change }] }));
    assert_eq!(plan.after.nodes, 1, "{:#?}", plan.steps);
    assert_eq!((plan.after.pods, plan.after.pending), (2, 0));
    let difference = plan.difference.as_ref().unwrap();
    assert!(difference.differs && difference.nodes == -1 && difference.evictions >= 1);
    assert_eq!(plan.unchanged.as_ref().unwrap().after.nodes, 2);
    let change = "NodePool default: spec.disruption.consolidationPolicy WhenEmpty -> WhenEmptyOrUnderutilized";
    assert_eq!(plan.changes, [change]);
    let evicted = &plan.evictions.by_workload[0].workload;
    assert_eq!(evicted, "Deployment shop/web");
    // The curve ends with the cluster at the end.
    let last = plan.curve.last().unwrap();
    assert_eq!(last.price_per_hour, plan.after.price_per_hour);
}

#[test]
fn an_empty_node_is_deleted_fifteen_seconds_after_it_was_found() {
    let plan = quiet().node("c", 4).plan(json!({ "for": "5m" }));
    assert_eq!(described(&plan.steps), ["delete Empty c"]);
    assert_eq!(plan.steps[0].after, 15);
    assert_eq!(plan.steps[0].savings_per_hour, Some(0.4));
}

#[test]
fn a_moment_tells_the_commands_of_one_pass() {
    let world = quiet().node("c", 4);
    let plan =
        world.plan(json!({ "for": "0s", "changes": [{ "apply": deployment("big", 1, "6") }] }));
    let mut steps = described(&plan.steps);
    steps.sort();
    assert_eq!(steps, ["delete Empty c", "launch Pending 1xm-8"]);
}

/// Conformance: PLAN-16
#[test]
fn new_replicas_fill_existing_nodes_before_nodes_of_the_cheapest_types() {
    let world = quiet();
    let scale = json!({ "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": 20 } });
    let plan = world.plan(json!({ "changes": [scale], "for": "10m" }));
    assert_eq!(plan.after.pods, 20);
    assert_eq!(plan.after.pending, 0);
    // Of the 18 new pods, three fit on each node; 12 need new cores.
    let launched: usize = plan.steps.iter().map(|step| step.pods).sum();
    assert_eq!(launched, 12, "{:?}", described(&plan.steps));
    assert_eq!(plan.changes, ["Deployment shop/web: replicas 2 -> 20"]);
    let waited = plan.curve.iter().map(|sample| sample.pending).max();
    assert_eq!(waited, Some(12), "kube-scheduler binds the others at once");
}

#[test]
fn launched_nodes_cost_no_less_than_the_least_they_could() {
    let scale = json!({ "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": 20 } });
    let plan = quiet().plan(json!({ "changes": [scale], "for": "10m" }));
    let launches = plan.steps.iter().flat_map(|step| &step.launches);
    let prices = launches.map(|launch| (launch.price_per_hour + 0.03) * launch.count as f64);
    let (price, launched) = (prices.sum::<f64>(), plan.launched.unwrap());
    assert!(
        (launched.price_per_hour - price).abs() < 1e-9,
        "{launched:?}"
    );
    assert!(
        launched.lowest_price_per_hour <= price && launched.lowest_price_per_hour > 0.7 * price
    );
    assert_eq!(quiet().plan(json!({ "for": "10m" })).launched, None);
}

/// Found by PLAN-01, seed 23.
#[test]
fn a_pod_bound_elsewhere_than_planned_leaves_no_room_for_the_next() {
    let policy = json!({ "disruption": { "consolidationPolicy": "WhenEmpty" } });
    let world = |roomy: &str| {
        World::new(policy.clone())
            .node("a", 4)
            .pods("web", "a", 1)
            .node("b", 2)
            .pods("web", "b", 1)
            .node("c", 4)
            .pods(roomy, "c", 1)
            .pods_of("large", "c", 1, "3")
    };
    let change = json!({ "changes": [{ "removeNode": "c" }] });
    // Planned is the large pod on `a` and the other one on `b`. The first of them goes to `a`, which is least allocated.
    let plan = world("an-early-one").plan(change.clone());
    assert_eq!(
        described(&plan.steps),
        ["delete Deleted c", "launch Pending 1xm-4"]
    );
    let plan = world("the-last-one").plan(change);
    assert_eq!(described(&plan.steps), ["delete Deleted c"]);
    assert_eq!((plan.after.nodes, plan.after.pending), (2, 0));
}

#[test]
fn a_limit_keeps_pods_pending() {
    let world = World::new(json!({ "limits": { "cpu": "4" } }))
        .node("a", 4)
        .pods("web", "a", 4);
    let scale = json!({ "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": 6 } });
    let plan = world.plan(json!({ "changes": [scale], "for": "10m" }));
    assert_eq!((plan.after.pending, described(&plan.steps)), (2, vec![]));
    let more = json!({ "if": "limits.default.cpu=8" });
    let plan = world.plan(json!({ "changes": [more, scale], "for": "10m" }));
    assert_eq!(
        (plan.after.pending, described(&plan.steps)),
        (0, vec!["launch Pending 1xm-4".to_owned()])
    );
}

/// Conformance: PLAN-02
#[test]
fn a_changed_template_label_drifts_every_node_at_the_pace_of_budgets() {
    let world = World::new(json!({ "disruption": { "budgets": [{ "nodes": "1" }] } }))
        .node("a", 4)
        .pods("web", "a", 4)
        .node("b", 4)
        .pods("web", "b", 4)
        .node("c", 4)
        .pods("web", "c", 4);
    let spec = json!({
        "template": { "metadata": { "labels": { "team": "a" } } },
        "disruption": { "budgets": [{ "nodes": "1" }] },
    });
    let plan = world.plan(json!({ "changes": [{ "apply": pool(spec) }] }));
    let drifted = plan.steps.iter().filter(|step| step.reason == "Drifted");
    let replaced: usize = drifted.map(|step| step.nodes.len()).sum();
    assert_eq!(replaced, 3, "{:?}", described(&plan.steps));
    // One at a time: the next begins once the one before has gone.
    let starts: Vec<i64> = plan.steps.iter().map(|step| step.after).collect();
    assert!(
        starts.windows(2).all(|pair| pair[1] - pair[0] >= 60),
        "{starts:?}"
    );
    assert_eq!((plan.after.pods, plan.after.pending), (12, 0));
    assert!(
        plan.budgets
            .iter()
            .any(|used| used.node_pool == "default" && used.seconds > 0)
    );
}

/// Conformance: PLAN-09
#[test]
fn nothing_is_disrupted_before_a_closed_window_opens() {
    // Closed until 18:00 every day.
    let closed =
        json!([{ "nodes": "0", "schedule": "0 8 * * *", "duration": "10h" }, { "nodes": "100%" }]);
    let world = World::new(json!({ "disruption": { "budgets": closed } }))
        .node("a", 4)
        .pods("web", "a", 1)
        .node("b", 4);
    let inside = world.plan(json!({ "at": "2026-01-02T09:00:00Z", "for": "1h" }));
    assert_eq!(described(&inside.steps), [""; 0]);
    assert_eq!(inside.budgets[0].seconds, 3600);
    let across = world.plan(json!({ "at": "2026-01-02T17:30:00Z", "for": "1h" }));
    let first = &across.steps[0];
    assert_eq!(described(&across.steps)[0], "delete Empty b");
    assert!((1800..=1860).contains(&first.after), "{}", first.after);
}

#[test]
fn a_pod_disruption_budget_paces_a_drain_or_blocks_it() {
    let world = World::new(json!({ "disruption": { "consolidationPolicy": "WhenEmpty" } }))
        .node("a", 4)
        .pods("db", "a", 3)
        .node("b", 4)
        .pdb("db", json!({ "minAvailable": 2 }));
    let plan = world.plan(json!({ "changes": [{ "removeNode": "a" }], "for": "10m" }));
    assert_eq!(plan.evictions.total, 3);
    // The node goes once the last pod has left: each eviction waits until the successor of the one before is ready.
    let gone = plan.curve.iter().find(|sample| sample.nodes == 1).unwrap();
    assert!(gone.after >= 15, "{:?}", plan.curve);
    let world = world.pdb("db", json!({ "minAvailable": 3 }));
    let plan = world.plan(json!({ "changes": [{ "removeNode": "a" }], "for": "10m" }));
    assert_eq!(
        (plan.evictions.total, plan.after.nodes),
        (1, 2),
        "the status is an older one"
    );
}

#[test]
fn deleted_node_pools_lose_their_nodes_and_expired_nodes_are_replaced() {
    let plan = quiet()
        .plan(json!({ "changes": [{ "delete": { "kind": "NodePool", "name": "default" } }] }));
    assert_eq!((plan.after.nodes, plan.after.pending), (0, 2));
    assert_eq!(plan.changes, ["NodePool default: deleted"]);
    let world = World::new(json!({})).node("a", 4).pods("web", "a", 3);
    let mut world = world;
    let mut claim = world
        .snapshot()
        .node_claim("a-claim")
        .unwrap()
        .as_ref()
        .clone();
    claim.spec.expire_after = "12h10m".parse().unwrap();
    world.0.apply_node_claim(&claim);
    let plan = world.plan(json!({}));
    assert_eq!(described(&plan.steps)[0], "delete Expired a");
    assert_eq!(plan.steps[0].after, 540);
    assert_eq!((plan.after.nodes, plan.after.pending), (1, 0));
}

#[test]
fn equal_questions_have_equal_answers_and_the_digest_tells_answers_apart() {
    let scale = |replicas: u32| json!({ "changes": [{ "scale": { "kind": "Deployment", "namespace": "shop", "name": "web", "replicas": replicas } }] });
    let [one, again, other] = [9, 9, 10].map(|replicas| quiet().plan(scale(replicas)));
    assert_eq!(one, again);
    assert_eq!(one.digest.len(), 64);
    assert_ne!(one.digest, other.digest);
    let read: Plan = serde_json::from_value(json!(one)).unwrap();
    assert_eq!(read, one);
}

#[test]
fn a_rehearsal_that_ends_early_says_why() {
    let mut settings = Settings::at(now());
    settings.cancel = Some(std::sync::Arc::new(|| true));
    let plan = rehearse(&quiet().snapshot(), &settings, &PlanRequest::default()).unwrap();
    let ended = |plan: &Plan| (plan.observed.truncated, plan.ended_by);
    assert_eq!(ended(&plan), (true, Some(EndedBy::Timeout)));
    const { assert!(MAX_RUNS == 40_000) };

    let mut settings = Settings::at(now());
    settings.gates.static_pools.enabled = true;
    let of_static = |replicas: u32| {
        let world = World::new(json!({ "replicas": replicas }));
        let asked = json!({ "for": "0s" });
        ended(&world.ask_with(&settings, asked).unwrap())
    };
    let too_many = of_static(MAX_STATIC + 1);
    assert_eq!(too_many, (true, Some(EndedBy::StaticNodes)));
    assert_eq!(of_static(1), (false, None));
}
