//! Machines in capacity reservations.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::ReservationType;
use karpenter_aws_fake::CapacityReservation;
use serde_json::{Value, json};

use crate::world::{World, ZONE};

const PLAIN: &str = "cr-00000000000000001";
const BLOCK: &str = "cr-00000000000000002";
const OF_RESERVATIONS: [&str; 3] = [
    "karpenter.k8s.aws/capacity-reservation-id",
    "karpenter.k8s.aws/capacity-reservation-type",
    "karpenter.k8s.aws/capacity-reservation-interruptible",
];

/// Reservations for m5.large (plain) and p4d.24xlarge (a block), both of which end after this time, and a class that uses them.
async fn world(ends: Duration) -> World {
    let world = World::with_fake(
        |b| b,
        |fake| {
            let end = Some(fake.clock().now() + ends);
            fake.add_capacity_reservation(CapacityReservation {
                end,
                ..CapacityReservation::new(PLAIN, "m5.large", ZONE, 10)
            });
            fake.add_capacity_reservation(CapacityReservation {
                end,
                block: true,
                ..CapacityReservation::new(BLOCK, "p4d.24xlarge", ZONE, 10)
            });
        },
        // Warnings about the block's end are another controller's affair.
        |s| s.interruption_queue = None,
    )
    .await;
    let terms = json!([{ "id": PLAIN }, { "id": BLOCK }]);
    let spec = json!({ "capacityReservationSelectorTerms": terms });
    world.class("reserved", spec).await;
    let class = world.parts.stores.class("reserved").unwrap();
    let found = &class.status.capacity_reservations;
    assert_eq!(found[1].reservation_type, ReservationType::CapacityBlock);
    world
}

async fn launched(world: &World, name: &str, instance_type: &str) -> (NodeClaim, String) {
    let mut wish = World::wish(
        name,
        &[
            ("node.kubernetes.io/instance-type", &[instance_type]),
            ("karpenter.sh/capacity-type", &["reserved"]),
        ],
    );
    wish.spec.node_class_ref.name = "reserved".into();
    let (claim, id) = world.launch(wish).await;
    let labels = claim.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["karpenter.sh/capacity-type"], "reserved");
    (claim, id)
}

fn labels<K: kube::Resource>(object: &K) -> std::collections::BTreeMap<String, String> {
    object.meta().labels.clone().unwrap_or_default()
}

fn is_on_demand<K: kube::Resource>(object: &K) -> bool {
    let labels = labels(object);
    labels["karpenter.sh/capacity-type"] == "on-demand"
        && OF_RESERVATIONS.iter().all(|key| !labels.contains_key(*key))
}

/// Conformance: AWS-cr-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_of_a_block_go_before_its_end_and_those_of_a_plain_reservation_never() {
    let world = world(Duration::from_secs(46 * 60)).await;
    launched(&world, "plain", "m5.large").await;
    let (_, id) = launched(&world, "block", "p4d.24xlarge").await;
    assert_eq!(
        world.instance(&id).capacity_reservation.as_deref(),
        Some(BLOCK)
    );
    let end = world.fake.capacity_reservation(BLOCK).unwrap().end.unwrap();
    world.leaves("block").await;
    let left = end.duration_since(world.fake.clock().now());
    assert!((35..=40).contains(&left.as_mins()), "{left}");
    world.more_calls("DescribeInstances", 2).await;
    assert!(!world.is_leaving("plain").await);
}

/// Conformance: AWS-cr-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_that_left_their_reservation_are_labelled_on_demand() {
    let world = world(Duration::from_secs(86_400)).await;
    let (claim, _) = launched(&world, "a", "m5.large").await;
    let before = labels(&claim);
    let node = world.join(&claim).await;
    assert_eq!(labels(&node)["karpenter.sh/capacity-type"], "reserved");
    let name = node.metadata.name.unwrap();
    world.more_calls("DescribeInstances", 2).await;
    assert!(!is_on_demand(&world.get::<NodeClaim>("a").await.unwrap()));

    world.fake.cancel_capacity_reservation(PLAIN);
    let relabelled = async || {
        let claim = world.get::<NodeClaim>("a").await?;
        let node = world.get::<Node>(&name).await?;
        (is_on_demand(&claim) && is_on_demand(&node)).then_some(())
    };
    world.until("both to be labelled", relabelled).await;

    // As if the controller had stopped between the two.
    let old: Value = OF_RESERVATIONS
        .iter()
        .chain(&["karpenter.sh/capacity-type"])
        .map(|key| ((*key).to_owned(), json!(before[*key])))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let patch = json!({ "metadata": { "labels": old } });
    world.patch::<Node>(&name, patch).await;
    assert!(!is_on_demand(&world.get::<Node>(&name).await.unwrap()));
    world.until("the node to be labelled", relabelled).await;
    world.nothing_beyond_the_policy();
}
