//! A rehearsal follows the feature gates of the controllers.

use karpenter_api::v1::NodeClaim;
use karpenter_decisions::bundle::{self, Bundle};
use karpenter_decisions::rehearse::plan::Plan;
use karpenter_decisions::rehearse::request::PlanRequest;
use karpenter_decisions::rehearse::{Settings, rehearse};
use serde_json::json;

use crate::rehearse::world::{World, described, now, pool};

/// A cluster whose only NodePool is static.
fn fixed() -> World {
    World::new(json!({ "replicas": 3 }))
}

fn with_gates() -> Settings {
    let mut settings = Settings::at(now());
    settings.gates.static_pools.enabled = true;
    settings.gates.node_overlays = true;
    settings
}

fn note_of(plan: &Plan, about: &str) -> String {
    let notes = plan.approximate.iter();
    let mut notes = notes.filter(|note| note.contains(about));
    notes.next().cloned().unwrap_or_default()
}

#[test]
fn a_static_node_pool_has_its_number_of_nodes_if_the_gate_is_on() {
    let plan = fixed().ask_with(&with_gates(), json!({})).unwrap();
    assert_eq!(described(&plan.steps), ["launch Static 3xm-2"]);
    let fewer = json!({ "changes": [{ "apply": pool(json!({ "replicas": 1 })) }] });
    let plan = fixed().ask_with(&with_gates(), fewer).unwrap();
    assert_eq!(described(&plan.steps), ["launch Static 1xm-2"]);
    assert_eq!(note_of(&plan, "StaticCapacity"), "");
}

#[test]
fn a_static_node_pool_launches_and_deletes_nothing_if_the_gate_is_off() {
    let plan = fixed().plan(json!({}));
    assert_eq!(described(&plan.steps), [""; 0]);
    let more = json!({ "changes": [{ "apply": pool(json!({ "replicas": 5 })) }] });
    let plan = fixed().plan(more);
    assert_eq!((described(&plan.steps), plan.differs()), (vec![], false));
    assert_eq!(
        note_of(&plan, "StaticCapacity"),
        "NodePool default launches no nodes: it has `replicas`, and the feature gate StaticCapacity is off."
    );
    let fewer = json!({ "changes": [{ "apply": pool(json!({ "replicas": 0 })) }] });
    let plan = fixed().node("a", 4).plan(fewer);
    assert_eq!(described(&plan.steps), [""; 0]);
}

#[test]
fn a_node_of_a_static_node_pool_that_expires_is_replaced_at_once() {
    let mut world = World::new(json!({ "replicas": 1 })).node("a", 2);
    let snapshot = world.snapshot();
    let mut claim = NodeClaim::clone(snapshot.node_claim("a-claim").unwrap());
    claim.spec.expire_after = "12h10m".parse().unwrap();
    world.0.apply_node_claim(&claim);
    let plan = world.ask_with(&with_gates(), json!({})).unwrap();
    let steps = ["delete Expired a", "launch Static 1xm-2"];
    assert_eq!(described(&plan.steps), steps);
    let after: Vec<i64> = plan.steps.iter().map(|step| step.after).collect();
    assert_eq!(after, [540, 540]);
}

#[test]
fn a_plan_names_the_price_of_a_node_beside_its_instance() {
    let mut settings = Settings::at(now());
    let plan = fixed().ask_with(&settings, json!({})).unwrap();
    assert!(
        note_of(&plan, "--node-overhead-price").contains("as if each cost $0.03 per hour more")
    );
    settings.scheduling = settings.scheduling.with_node_overhead_price(0.0);
    let plan = fixed().ask_with(&settings, json!({})).unwrap();
    assert_eq!(note_of(&plan, "--node-overhead-price"), "");
}

#[test]
fn a_bundle_has_the_gates_of_its_cluster() {
    let world = fixed();
    for (is_on, steps) in [(false, vec![]), (true, vec!["launch Static 3xm-2"])] {
        let (policy, request) = (with_gates().scheduling, with_gates().disruption);
        let mut captured = bundle::Settings::new(policy, request);
        captured.gates.insert("StaticCapacity".to_owned(), is_on);
        let bundle = Bundle::new("fake", "0.1.0", world.snapshot(), captured);
        let settings = Settings::of_bundle(&bundle);
        let plan = rehearse(&bundle.snapshot, &settings, &PlanRequest::default());
        assert_eq!(described(&plan.unwrap().steps), steps);
    }
}

#[test]
fn a_plan_with_a_node_overlay_says_what_it_does_not_rehearse() {
    let overlay = json!({
        "apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": { "name": "cheap" },
        "spec": { "requirements": [], "price": "0.01" },
    });
    let asked = json!({ "changes": [{ "apply": overlay }] });
    for (settings, note) in [
        (
            Settings::at(now()),
            "NodeOverlays have no effect: the feature gate NodeOverlay is off.",
        ),
        (
            with_gates(),
            "Changes of NodeOverlays are not rehearsed: instance types keep the NodeOverlays that the cluster has.",
        ),
    ] {
        let plan = World::new(json!({})).ask_with(&settings, asked.clone());
        assert_eq!(note_of(&plan.unwrap(), "NodeOverlays"), note);
    }
}
