//! Limits of NodePools, with several controllers that launch nodes.

use std::time::Duration;

use karpenter_api::v1::NodePool;
use karpenter_testbed::faults::{Fault, Rule};
use serde_json::json;

use crate::disruption::{INSTANCE_TYPE, MIDDLE, SMALL, drift};
use crate::world::{World, deployment, node_pool};

/// The provisioner and disruption decide concurrently, and neither knows the NodeClaims that the other is about to create.
///
/// Conformance: SCH-264
#[tokio::test(start_paused = true)]
async fn provisioner_and_disruption_together_respect_a_nodepool_s_limits() {
    let types = |types: &[&str]| {
        node_pool("default")
            .limit("cpu", "12")
            .without_requirements()
            .requires(INSTANCE_TYPE, "In", types)
    };
    let world = World::with(types(&[SMALL])).await;
    world.run("app", 2).await;
    world.pass(60).await;

    // The node drifts while a pod that does not fit it is pending, and requests are slow.
    let slow = Rule::new(Fault::Latency(Duration::from_secs(25)));
    let slow = slow.verb("create").resource("nodeclaims");
    world.cluster.testbed.faults().add(slow);
    let changed = json!({"spec": types(&[MIDDLE]).json()["spec"]});
    world.patch::<NodePool>("default", changed).await;
    drift(&world).await;
    world.add(deployment("more", 1).cpu("3")).await;
    for _ in 0..180 {
        world.pass(1).await;
        let claims = world.claims().await;
        let new = claims.iter().filter(|c| {
            let types = c.spec.requirements.iter();
            types.clone().any(|r| r.values.iter().any(|v| v == MIDDLE))
        });
        assert!(new.count() <= 1, "{}", world.describe().await);
    }
    world.cluster.testbed.faults().clear();
    assert_eq!(world.claims().await.len(), 1, "{}", world.describe().await);
    assert_eq!(world.progress().await.running, 3);
}

/// The request may have succeeded, and the watch may not report the NodeClaim before the next plan.
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_whose_creation_was_not_answered_counts_in_limits() {
    let mut world = World::with(node_pool("default").limit("nodes", "1")).await;
    world.cluster.stop_controllers().await;
    let of = |fault, verb| Rule::new(fault).verb(verb).resource("nodeclaims");
    let lost = of(Fault::LostAnswer, "create").times(1);
    let faults = vec![lost, of(Fault::Error(500), "watch")];
    world.cluster.testbed.faults().set(faults);
    world.cluster.start_controllers();
    world.deploy("app", 1).await;
    world.pass(60).await;
    assert_eq!(world.claims().await.len(), 1, "{}", world.describe().await);
    world.cluster.testbed.faults().clear();
    world.until_running(1, 300).await;
    assert_eq!(world.claims().await.len(), 1);
}
