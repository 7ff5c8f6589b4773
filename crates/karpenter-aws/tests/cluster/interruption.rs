//! Messages of the interruption queue.

use karpenter_api::v1::NodeClaim;
use karpenter_aws::providers::instance_type::unavailable::CapacityType;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::cluster::world::{QUEUE, World, ZONE};

fn message(n: usize, detail_type: &str, detail: Value) -> String {
    json!({
        "version": "0", "id": format!("event-{n}"), "source": "aws.ec2", "detail-type": detail_type, "detail": detail,
        "account": "123456789012", "region": "us-west-2", "time": "2026-01-01T00:00:00Z", "resources": [],
    })
    .to_string()
}

async fn empty(world: &World) {
    world
        .until("an empty queue", async || {
            world.fake.messages(QUEUE).is_empty().then_some(())
        })
        .await;
}

async fn spot(world: &World, name: &str) -> (NodeClaim, String) {
    world
        .launched(
            name,
            &[
                ("node.kubernetes.io/instance-type", &["m5.large"]),
                ("karpenter.sh/capacity-type", &["spot"]),
                ("topology.kubernetes.io/zone", &[ZONE]),
            ],
        )
        .await
}

fn is_marked(world: &World, capacity_type: CapacityType) -> bool {
    let unavailable = world.aws.offered.unavailable();
    let unavailable = unavailable.lock();
    unavailable.is_marked(capacity_type, "m5.large", ZONE, None)
}

/// Conformance: AWS-interruption-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_spot_instance_is_drained_and_its_pool_is_unavailable() {
    let world = World::new().await;
    let (claim, id) = spot(&world, "a").await;
    world.join(&claim).await;
    let (_, other) = spot(&world, "b").await;
    // The pool is marked while the instance is terminated, and the mark expires, so it is polled.
    assert!(!is_marked(&world, CapacityType::Spot));
    assert!(world.fake.interrupt_spot(&id));
    world
        .until("a mark", async || {
            is_marked(&world, CapacityType::Spot).then_some(())
        })
        .await;
    world.leaves("a").await;
    assert!(!is_marked(&world, CapacityType::OnDemand));
    assert!(!world.is_leaving("b").await && world.instance(&other).state.is_alive());
    for kind in [("NodeClaim", "a"), ("Node", "node-a")] {
        let event = world.event_message(kind.0, kind.1, "SpotInterrupted").await;
        assert_eq!(event, "Spot interruption warning was triggered");
        let event = world
            .event_message(kind.0, kind.1, "TerminatingOnInterruption")
            .await;
        let ours = format!("Interruption triggered termination for the {}", kind.0);
        assert_eq!(event, ours);
    }
    empty(&world).await;
    world
        .counts(
            r#"karpenter_interruption_received_messages_total{message_type="spot_interrupted"}"#,
            1.0,
        )
        .await;
    let disrupted = r#"karpenter_nodeclaims_disrupted_total{reason="spot_interrupted",nodepool="default",capacity_type="spot","#;
    let text = world.registry.render();
    let series: Vec<&str> = text.lines().filter(|l| l.starts_with(disrupted)).collect();
    assert!(series.len() == 1 && series[0].ends_with(" 1"), "{series:?}");
    world.nothing_beyond_the_policy();
}

/// Conformance: AWS-interruption-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_whose_instance_is_interrupted_counts_as_empty() {
    let world = World::new().await;
    let (_, id) = world.on_demand("a").await;
    let counts = world.aws.offered.counts().clone();
    counts.set_reported("cr-1", 5);
    let labels = json!({ "metadata": { "labels": { "karpenter.k8s.aws/capacity-reservation-id": "cr-1" } } });
    world.patch::<NodeClaim>("a", labels).await;
    // Messages are received at once, and handled with the model of that time.
    let view = || world.cx.as_ref().unwrap().view();
    world
        .until("the model to know the label", async || {
            let view = view();
            let claim = view.node_claim("a")?;
            let reservation = claim.label("karpenter.k8s.aws/capacity-reservation-id")?;
            (reservation == "cr-1").then_some(())
        })
        .await;
    let detail = json!({ "instance-id": id, "instance-action": "terminate" });
    let kind = "EC2 Capacity Reservation Instance Interruption Warning";
    world.fake.send_message(QUEUE, &message(1, kind, detail));
    world.leaves("a").await;
    assert_eq!(counts.left("cr-1"), 0);
    world
        .event_message("NodeClaim", "a", "CapacityReservationInstanceInterrupted")
        .await;
    empty(&world).await;
}

/// Conformance: AWS-interruption-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_a_reaction_are_deleted() {
    let world = World::new().await;
    let (_, id) = world.on_demand("a").await;
    empty(&world).await;
    let before =
        world.metric(r#"karpenter_interruption_received_messages_total{message_type="no_op"}"#);
    let state = "EC2 Instance State-change Notification";
    let pending = json!({ "instance-id": id, "state": "pending" });
    world.fake.send_message(QUEUE, &message(1, state, pending));
    world.fake.send_message(QUEUE, "{ this is not a message");
    empty(&world).await;
    assert!(!world.is_leaving("a").await);
    // At least one: the instance's own state-change notification is a no-op, too, and may arrive at any time.
    world
        .until("the message is counted", async || {
            let series = r#"karpenter_interruption_received_messages_total{message_type="no_op"}"#;
            (world.metric(series) >= before + 1.0).then_some(())
        })
        .await;
    for reason in ["InstanceStopping", "TerminatingOnInterruption"] {
        assert!(world.events("NodeClaim", "a", reason).await.is_empty());
    }
    assert!(
        (world.metric(r#"controller_runtime_reconcile_errors_total{controller="interruption"}"#))
            < 0.5
    );
}

/// Conformance: AWS-interruption-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_or_unreadable_queue_is_an_error_until_it_is_repaired() {
    let errors = r#"controller_runtime_reconcile_errors_total{controller="interruption"}"#;
    let missing = World::with(|b| b, |s| s.interruption_queue = Some("nowhere".into())).await;
    missing
        .until("errors", async || {
            (missing.metric(errors) > 1.5).then_some(())
        })
        .await;

    let denied = World::with(
        |b| b.settings(|s| s.denied = vec!["sqs:ReceiveMessage".into()]),
        |_| {},
    )
    .await;
    let (_, id) = spot(&denied, "a").await;
    denied
        .until("errors", async || {
            (denied.metric(errors) > 1.5).then_some(())
        })
        .await;
    denied.fake.interrupt_spot(&id);
    denied.fake.deny(&[]);
    denied.leaves("a").await;
    // Back-off: at most one call per second.
    let calls = denied.calls("ReceiveMessage");
    assert!(calls < 100, "{calls}");
}

/// Conformance: AWS-interruption-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_being_deleted_is_not_deleted_again() {
    let world = World::new().await;
    let (_, id) = spot(&world, "a").await;
    world.fake.deny(&["ec2:TerminateInstances"]);
    let claims = world.api::<NodeClaim>();
    claims.delete("a", &DeleteParams::default()).await.unwrap();
    let leaving = world.get::<NodeClaim>("a").await.unwrap();
    world.fake.interrupt_spot(&id);
    world
        .event_message("NodeClaim", "a", "SpotInterrupted")
        .await;
    empty(&world).await;
    let still = world.get::<NodeClaim>("a").await.unwrap();
    assert_eq!(
        still.metadata.deletion_timestamp,
        leaving.metadata.deletion_timestamp
    );
    let event = world.events("NodeClaim", "a", "TerminatingOnInterruption");
    assert!(event.await.is_empty());
    let errors = r#"controller_runtime_reconcile_errors_total{controller="interruption"}"#;
    assert!(world.metric(errors) < 0.5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redelivered_message_is_handled_once_and_a_recommendation_is_an_event() {
    let world = World::new().await;
    let (_, id) = spot(&world, "a").await;
    world.fake.recommend_rebalance(&id);
    let event = world
        .event_message("NodeClaim", "a", "SpotRebalanceRecommendation")
        .await;
    assert_eq!(event, "Spot rebalance recommendation was triggered");
    empty(&world).await;
    assert!(!world.is_leaving("a").await);

    let detail = json!({ "instance-id": id, "instance-action": "terminate" });
    let warning = message(7, "EC2 Spot Instance Interruption Warning", detail);
    for _ in 0..25 {
        world.fake.send_message(QUEUE, &warning);
    }
    world.leaves("a").await;
    empty(&world).await;
    let disrupted = world.metric_sum("karpenter_nodeclaims_disrupted_total");
    assert!((disrupted - 1.0).abs() < 0.01, "{disrupted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_messages_is_handled_in_batches_of_ten() {
    let world = World::new().await;
    world.on_demand("a").await;
    empty(&world).await;
    world.fake.forget_calls();
    for n in 0..200 {
        let detail =
            json!({ "instance-id": format!("i-{n:017x}"), "instance-action": "terminate" });
        let kind = "EC2 Spot Instance Interruption Warning";
        world.fake.send_message(QUEUE, &message(n, kind, detail));
    }
    empty(&world).await;
    let (received, deleted) = (
        world.calls("ReceiveMessage"),
        world.calls("DeleteMessageBatch"),
    );
    assert_eq!(world.calls("DeleteMessage"), 0);
    // The first poll may have returned the first message alone, before the others were sent.
    assert!((20..=60).contains(&deleted), "{deleted} batches");
    assert!(received <= deleted + 10, "{received} polls");
}
