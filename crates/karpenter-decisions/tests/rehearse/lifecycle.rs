//! Nodes join and leave in a rehearsal as the controllers let them.

use karpenter_decisions::rehearse::plan::Plan;
use serde_json::{Value, from_value, json};

use crate::rehearse::world::{World, described};

fn only_empty() -> World {
    World::new(json!({ "disruption": { "consolidationPolicy": "WhenEmpty" } }))
}

/// Returns after how many seconds the cluster has no node.
fn gone_after(plan: &Plan) -> i64 {
    let mut samples = plan.curve.iter();
    samples.find(|sample| sample.nodes == 0).unwrap().after
}

#[test]
fn an_instance_is_terminated_once_drained_with_its_volumes_detached() {
    let mut world = only_empty().node("a", 4);
    let removal = json!({ "changes": [{ "removeNode": "a" }] });
    assert_eq!(gone_after(&world.plan(removal.clone())), 5);
    let attachment = json!({ "metadata": { "name": "v" }, "spec": {
        "nodeName": "a", "attacher": "csi", "source": { "persistentVolumeName": "v" } }, "status": { "attached": true } });
    world
        .0
        .apply_volume_attachment(&from_value(attachment).unwrap());
    assert_eq!(gone_after(&world.plan(removal)), 6);
}

#[test]
fn a_deleted_node_is_drained_by_the_deadline_in_its_annotation() {
    let mut world = only_empty().node("a", 4).pods("web", "a", 2);
    world = world.pdb("web", json!({ "minAvailable": "100%" }));
    let claim = world.0.snapshot().node_claim("a-claim").unwrap().clone();
    let mut claim: Value = serde_json::to_value(&*claim).unwrap();
    claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T11:59:00Z");
    claim["metadata"]["annotations"]["karpenter.sh/nodeclaim-termination-timestamp"] =
        json!("2026-01-01T12:01:00Z");
    world.0.apply_node_claim(&from_value(claim).unwrap());
    let plan = world.plan(json!({ "for": "10m" }));
    // The budget's status allows one eviction. The other pod is deleted early enough for its five seconds of grace; the drain is tried
    // every ten seconds. Then both wait for their nodes.
    let deleted = plan.curve.iter().filter(|sample| sample.pending == 2);
    let deleted: Vec<i64> = deleted.map(|sample| sample.after).collect();
    assert_eq!(deleted, [60], "{:?}", plan.curve);
}

/// Adds a NodeClaim of an instance type that is not launched yet.
fn starting(mut world: World, name: &str, instance_type: &str) -> World {
    let claim = json!({
        "metadata": { "name": name, "uid": name, "labels": { "karpenter.sh/nodepool": "default" }, "creationTimestamp": "2026-01-01T12:00:00Z" },
        "spec": { "expireAfter": "Never", "nodeClassRef": { "group": "karpenter.test.sh", "kind": "TestNodeClass", "name": "default" },
            "requirements": [{ "key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type] }] },
    });
    world.0.apply_node_claim(&from_value(claim).unwrap());
    world
}

#[test]
fn a_command_under_way_is_continued_or_rolled_back() {
    let steps = |instance_type| {
        let mut world = only_empty().node("a", 4);
        world.0.mark_for_deletion(&["fake://a"]);
        let plan = starting(world, "next", instance_type).plan(json!({ "for": "10m" }));
        described(&plan.steps)
    };
    // The command deletes `a` once `next` is initialized: that is no step of the plan.
    assert_eq!(steps("m-4"), ["delete Empty next"]);
    // `next` is never launched: `a` is an ordinary node again.
    let rolled_back = ["delete LaunchTimeout next", "delete Empty a"];
    assert_eq!(steps("m-1024"), rolled_back);
}

#[test]
fn a_claim_that_no_offering_meets_is_deleted_after_five_minutes() {
    let world = starting(only_empty(), "huge", "m-1024");
    let plan = world.plan(json!({ "for": "10m" }));
    assert_eq!(described(&plan.steps), ["delete LaunchTimeout huge"]);
    assert_eq!(plan.steps[0].after, 300);
}
