//! How a command is executed: validated, its replacements launched, its nodes deleted, or rolled back.

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_kwok::CapacityPool;
use karpenter_testbed::faults::{Fault, Rule};

use super::{oversized, running_pods, tainted};

/// Conformance: DIS-126, API-185
#[tokio::test(start_paused = true)]
async fn a_command_whose_replacement_cannot_be_launched_is_rolled_back() {
    let (world, old) = oversized().await;
    world.cluster.cloud.exhaust(CapacityPool::default());
    world.scale("app", 2).await;
    until!(world, 120, "the command fails", |w| {
        w.metric("karpenter_voluntary_disruption_queue_failures_total{decision=\"replace\",reason=\"underutilized\",consolidation_type=\"single\"}") == Some(1.0)
    });
    until!(world, 10, "the node is untainted", |w| {
        let claims = w.claims().await;
        tainted(w).await == 0
            && claims.len() == 1
            && claims[0].uid() == old.uid()
            && claims[0].condition(types::DISRUPTION_REASON).is_none()
    });
    assert_eq!(running_pods(&world).await, 2);
}

/// Conformance: DIS-128
#[tokio::test(start_paused = true)]
async fn while_the_creation_of_a_replacement_hangs_no_other_is_launched() {
    let (world, _) = oversized().await;
    let hangs = Fault::Latency(std::time::Duration::from_secs(120));
    let rule = Rule::new(hangs)
        .verb("create")
        .resource("nodeclaims")
        .times(1);
    world.cluster.testbed.faults().add(rule);
    world.scale("app", 2).await;
    until!(world, 60, "the node is tainted", |w| tainted(w).await == 1);
    world.pass(100).await;
    assert_eq!(tainted(&world).await, 1, "the command is still starting");
    assert_eq!(
        world.cluster.cloud.launched(),
        1,
        "{}",
        world.describe().await
    );
    until!(world, 300, "one small node is left", |w| {
        w.claims().await.len() == 1 && w.cluster.cloud.launched() == 2
    });
    world.until_running(2, 60).await;
}

/// The replacement is initialized: a rollback would leave two nodes instead of one.
///
/// Conformance: DIS-191
#[tokio::test(start_paused = true)]
async fn replaced_nodes_are_deleted_once_the_api_server_accepts_it() {
    let (world, old) = oversized().await;
    let fails = Fault::Error(500);
    let rule = Rule::new(fails).verb("delete").resource("nodeclaims");
    world.cluster.testbed.faults().add(rule);
    world.scale("app", 2).await;
    until!(world, 300, "the replacement is initialized", |w| {
        let claims = w.claims().await;
        let is_new = |c: &NodeClaim| c.uid() != old.uid() && c.is_true(types::INITIALIZED);
        claims.iter().any(is_new)
    });
    world.pass(180).await;
    assert_eq!(tainted(&world).await, 1, "{}", world.describe().await);
    world.cluster.testbed.faults().clear();
    world.until_gone::<NodeClaim>(old.name(), 60).await;
    assert_eq!(world.cluster.cloud.launched(), 2);
    world.until_running(2, 60).await;
}
