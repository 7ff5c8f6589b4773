//! Static NodePools (feature gate StaticCapacity).

use std::cell::Cell;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};
use karpenter_kwok::{CapacityPool, KWOKNodeClass};
use karpenter_testbed::faults::{Fault, Rule};
use serde_json::{Value, json};

use crate::world::{World, node_pool, settings};

async fn world() -> World {
    let mut settings = settings();
    settings.options.feature_gates.static_capacity = true;
    let world = World::bare(settings).await;
    world
        .create(&KWOKNodeClass::new("default", Default::default()))
        .await;
    world
}

/// Changes the template, so that nodes drift.
async fn change_template(world: &World) {
    let template = json!({"metadata": {"labels": {"generation": "two"}}});
    change(world, json!({ "template": template })).await;
}

async fn change(world: &World, spec: Value) {
    world
        .patch::<NodePool>("fixed", json!({"spec": spec}))
        .await;
}

async fn alive(world: &World) -> usize {
    let claims = world.claims().await;
    claims.iter().filter(|c| !c.is_deleting()).count()
}

async fn until_alive(world: &World, count: usize) {
    let what = format!("there are {count} nodes");
    until!(world, 120, &what, |w| alive(w).await == count);
}

/// Conformance: DIS-055, DIS-082
#[tokio::test(start_paused = true)]
async fn a_static_nodepool_has_its_number_of_nodes_and_no_more_are_launched() {
    let world = world().await;
    world.add(node_pool("fixed").replicas(1)).await;
    until_alive(&world, 1).await;
    change(&world, json!({"replicas": 3})).await;
    until_alive(&world, 3).await;
    world.pass(600).await;
    assert_eq!(
        (alive(&world).await, world.cluster.cloud.launched()),
        (3, 3)
    );
    for claim in world.claims().await {
        assert!(claim.is_true(types::INITIALIZED));
        assert!(
            !claim.is_true(types::CONSOLIDATABLE),
            "a static pool is not consolidated"
        );
        let mut requirements = claim.spec.requirements.iter();
        let of_type = requirements.find(|r| r.key == "node.kubernetes.io/instance-type");
        assert_eq!(of_type, None, "the provider chooses");
        assert_eq!(claim.label("karpenter.sh/nodepool"), Some("fixed"));
    }
}

/// Conformance: DIS-083
#[tokio::test(start_paused = true)]
async fn the_limit_is_never_exceeded() {
    let world = world().await;
    let most = Cell::new(0);
    let watch = async |seconds: usize, limit: usize| {
        for _ in 0..seconds {
            world.pass(1).await;
            let claims = world.claims().await.len();
            most.set(most.get().max(claims));
            assert!(claims <= limit, "{}", world.describe().await);
        }
    };
    let limited = node_pool("fixed").replicas(15).limit("nodes", "10");
    world.add(limited).await;
    watch(30, 10).await;
    assert_eq!((alive(&world).await, most.get()), (10, 10));
    change(&world, json!({"limits": {"nodes": "12"}})).await;
    watch(30, 12).await;
    assert_eq!(alive(&world).await, 12);
    // Drift and provisioning launch nodes at the same time, and other nodes are deleted meanwhile.
    change(&world, json!({"replicas": 11})).await;
    change_template(&world).await;
    for _ in 0..6 {
        let claims = world.claims().await;
        let old = claims.iter().find(|c| !is_new(c) && !c.is_deleting());
        if let Some(old) = old {
            world.delete::<NodeClaim>(old.name()).await;
        }
        watch(20, 12).await;
    }
    watch(300, 12).await;
    let claims = world.claims().await;
    assert_eq!((claims.len(), most.get()), (11, 12));
    assert!(claims.iter().all(is_new), "all were replaced");
}

/// Conformance: DIS-084
#[tokio::test(start_paused = true)]
async fn a_nodepool_of_another_provider_launches_no_nodes() {
    let world = world().await;
    let foreign = node_pool("fixed")
        .replicas(2)
        .class("other.cloud", "OtherNodeClass", "default");
    world.add(foreign).await;
    // Its own controller reports it as ready.
    let ready = json!({"status": {"conditions": [{
        "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    world.patch_status::<NodePool>("fixed", ready).await;
    world.pass(120).await;
    assert_eq!(world.claims().await.len(), 0);
}

/// Conformance: DIS-084
#[tokio::test(start_paused = true)]
async fn a_nodeclaim_that_cannot_be_created_does_not_count_against_limits() {
    let world = world().await;
    let faults = world.cluster.testbed.faults();
    let refused = Fault::Error(403);
    faults.add(Rule::new(refused).verb("create").resource("nodeclaims"));
    let limited = node_pool("fixed").replicas(2).limit("nodes", "2");
    world.add(limited).await;
    let errors = "controller_runtime_reconcile_errors_total{controller=\"static.provisioning\"}";
    until!(world, 60, "errors are counted", |w| {
        w.metric(errors).is_some_and(|errors| errors >= 2.0)
    });
    assert_eq!(world.claims().await.len(), 0);
    faults.clear();
    until_alive(&world, 2).await;
}

#[tokio::test(start_paused = true)]
async fn without_the_feature_gate_no_node_is_launched_and_an_event_says_why() {
    let world = World::with(node_pool("fixed").replicas(2)).await;
    world.pass(120).await;
    assert_eq!(world.claims().await.len(), 0);
    let event = world.events_of("InvalidNodePool").await.remove(0);
    assert_eq!(event.involved_object.name.as_deref(), Some("fixed"));
    let message = event.message.unwrap();
    assert!(message.contains("feature gate StaticCapacity"), "{message}");
}

/// Conformance: DIS-163
#[tokio::test(start_paused = true)]
async fn scaling_to_zero_deletes_all_nodes_whatever_the_budgets_say() {
    let world = world().await;
    world
        .add(node_pool("fixed").replicas(4).budgets(&["0"]))
        .await;
    until_alive(&world, 4).await;
    change(&world, json!({"replicas": 1})).await;
    until_alive(&world, 1).await;
    change(&world, json!({"replicas": 0})).await;
    world.until_empty(300).await;
    assert_eq!(world.cluster.cloud.launched(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_nodepool_without_capacity_backs_off_until_there_is_some() {
    let world = world().await;
    let everything = CapacityPool::default();
    world.cluster.cloud.exhaust(everything);
    world.add(node_pool("fixed").replicas(3)).await;
    world.pass(600).await;
    let made = "karpenter_nodeclaims_created_total{reason=\"provisioned\",nodepool=\"fixed\",min_values_relaxed=\"false\"}";
    let made = world.metric(made).unwrap_or_default();
    // Three at a time: at once, after 1 to 2 s, after 2 to 4 s more, ..., and at least each minute.
    assert!((30.0..=75.0).contains(&made), "{made} were created");
    world.cluster.cloud.restock();
    until_alive(&world, 3).await;
    until!(world, 120, "they are launched", |w| {
        w.claims().await.iter().all(|c| c.is_true(types::LAUNCHED))
    });
}

fn is_new(claim: &NodeClaim) -> bool {
    claim.label("generation") == Some("two")
}

async fn until_drifted(world: &World) {
    change_template(world).await;
    until!(world, 60, "the nodes have drifted", |w| {
        let claims = w.claims().await;
        let old = claims.iter().filter(|c| !is_new(c));
        old.clone().count() == 0 || old.clone().any(|c| c.is_true(types::DRIFTED))
    });
}

#[tokio::test(start_paused = true)]
async fn a_failed_replacement_no_longer_counts_against_the_limit() {
    let world = world().await;
    let limited = node_pool("fixed").replicas(1).limit("nodes", "2");
    world.add(limited).await;
    until_alive(&world, 1).await;
    let old = world.claim().await;
    world.cluster.cloud.never_register(true);
    until_drifted(&world).await;
    until!(world, 60, "a replacement is launching", |w| {
        alive(w).await == 2
    });
    until!(world, 700, "the command has failed", |w| {
        let claims = w.claims().await;
        let kept = claims.iter().find(|c| c.uid() == old.uid()).unwrap();
        kept.condition(types::DISRUPTION_REASON).is_none()
    });
    world.cluster.cloud.never_register(false);
    until!(world, 2400, "a later attempt works", |w| {
        let claims = w.claims().await;
        assert!(claims.len() <= 2, "{}", w.describe().await);
        claims.len() == 1 && is_new(&claims[0]) && claims[0].is_true(types::INITIALIZED)
    });
    world.assert_no_orphans().await;
}
