//! All blockers of a node, of which the verdict names the first.

use karpenter_core::disruption::{Surroundings, blockers};
use serde_json::json;

use crate::fixture::{World, now};
use crate::fleet::{Fleet, node, running, world};

fn all(world: &World, in_flight: &[&str]) -> Vec<String> {
    let surroundings = Surroundings {
        in_flight: in_flight.iter().map(|name| (*name).to_owned()).collect(),
        ..Surroundings::default()
    };
    let snapshot = world.cluster.snapshot();
    let node = snapshot.node("a").unwrap();
    let found = blockers(&snapshot, node, &surroundings, now());
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn a_candidate_has_no_blockers() {
    let world = world()
        .run([node("a", "huge")])
        .with(running("p", "a", "1"));
    assert_eq!(all(&world, &[]), [""; 0]);
}

#[test]
fn each_gate_and_each_pod_that_blocks_a_node_is_a_blocker() {
    let refuses = node("a", "huge").annotation("karpenter.sh/do-not-disrupt", "true");
    let guarded = |name: &str| running(name, "a", "1").label("app", "guarded");
    let refusing = |name: &str| running(name, "a", "1").do_not_disrupt();
    let world = world()
        .run([refuses])
        .with([guarded("p"), guarded("q"), refusing("r"), refusing("s")])
        .pdb("pdb", "default", json!({ "maxUnavailable": 0 }), 0);
    let found = all(&world, &["a-claim"]);
    let expected = [
        "candidate is already being disrupted",
        "disruption is blocked through the \"karpenter.sh/do-not-disrupt\" annotation",
        "pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod=default/r)",
        "pod has \"karpenter.sh/do-not-disrupt\" annotation (Pod=default/s)",
        "pdb prevents pod evictions (PodDisruptionBudget=default/pdb)",
        "pdb prevents pod evictions (PodDisruptionBudget=default/pdb)",
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_verdict_is_the_first_blocker() {
    let guarded = running("p", "a", "1").label("app", "guarded");
    let refusing = running("q", "a", "1").do_not_disrupt();
    let world = world()
        .run([node("a", "huge")])
        .with([guarded, refusing])
        .pdb("one", "default", json!({}), 0)
        .pdb("two", "default", json!({}), 0);
    let found = all(&world, &[]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(world.verdict("a"), found[0]);
}

#[test]
fn a_node_without_an_instance_in_the_cluster_has_only_that_blocker() {
    let mut world = world();
    world
        .cluster
        .apply_node_claim(&node("a", "huge").claim.build());
    let snapshot = world.cluster.snapshot();
    let node = snapshot.node("a-claim").unwrap();
    let found = blockers(&snapshot, node, &Surroundings::default(), now());
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["nodeclaim does not have an associated node"]);
}
