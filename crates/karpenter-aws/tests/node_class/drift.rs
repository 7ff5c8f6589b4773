//! Drift of an instance after real changes of its class.

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_aws_fake::{CapacityReservation, Image};
use karpenter_core::provider::CloudProvider;
use serde_json::{Value, json};

use crate::node_class::support::{CLUSTER, World};

/// Creates a ready class, its NodePool, and a NodeClaim with an m5.large instance in the first zone.
async fn launched(world: &World, spec: Value, capacity_type: &str) -> NodeClaim {
    world.pool("default", "default", json!([])).await;
    world.ready("default", spec).await;
    known(world).await;
    let only = |key: &str, value: &str| json!({ "key": key, "operator": "In", "values": [value] });
    let claim: NodeClaim = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": "claim-1", "uid": "uid", "labels": { core_labels::NODE_POOL: "default" } },
        "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
            "requirements": [
                only(core_labels::INSTANCE_TYPE, "m5.large"),
                only(core_labels::ZONE, "us-west-2a"),
                only(core_labels::CAPACITY_TYPE, capacity_type),
            ],
        },
    }))
    .unwrap();
    let mut answer = world.aws.provider.create(&claim).await.unwrap();
    answer.metadata.name = claim.metadata.name;
    answer
}

/// Waits until the provider has the current class.
async fn known(world: &World) {
    let class = world.get("default").await;
    world
        .until(async || {
            let known = world.aws.stores.class("default")?;
            (known.metadata.resource_version == class.metadata.resource_version).then_some(())
        })
        .await;
}

async fn drift(world: &World, claim: &NodeClaim) -> Option<String> {
    world.aws.provider.is_drifted(claim).await.unwrap()
}

/// Changes the class, reconciles it, and returns the drift reason.
async fn after(world: &World, claim: &NodeClaim, spec: Value) -> Option<String> {
    let class = world.changed("default", spec).await;
    assert!(class.is_true(core_types::READY), "{:#?}", class.status);
    known(world).await;
    drift(world, claim).await
}

fn because(reason: &str) -> Option<String> {
    Some(reason.to_owned())
}

/// Conformance: AWS-drift-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_follows_changes_of_selectors_and_static_fields() {
    let world = World::with(|aws| aws.role("Other"), |_| {}).await;
    let reservation = CapacityReservation::new("cr-1", "m5.large", "us-west-2a", 3);
    world.fake.add_capacity_reservation(reservation);
    let discovery = json!([{ "tags": { "karpenter.sh/discovery": CLUSTER } }]);
    let reserved = json!([{ "id": "cr-1" }]);
    let spec = json!({ "capacityReservationSelectorTerms": reserved });
    let claim = launched(&world, spec, "reserved").await;
    assert_eq!(drift(&world, &claim).await, None);
    let change = async |spec: Value| after(&world, &claim, spec).await;

    let hour = SignedDuration::from_hours(1);
    let newer = Image::new("ami-0newer", "newer", "x86_64", Timestamp::now() - hour);
    world.fake.add_image(newer.tag("team", "x"));
    let mine = json!({ "amiSelectorTerms": [{ "tags": { "team": "x" } }], "amiFamily": "AL2023" });
    assert_eq!(change(mine).await, because("AMIDrift"));
    let alias = json!({ "amiSelectorTerms": [{ "alias": "al2023@latest" }], "amiFamily": null });
    assert_eq!(
        change(alias).await,
        None,
        "no drift after the change is reverted"
    );

    let other = json!([{ "id": "subnet-00000000000000002" }]);
    assert_eq!(
        change(json!({ "subnetSelectorTerms": other })).await,
        because("SubnetDrift")
    );
    assert_eq!(
        change(json!({ "subnetSelectorTerms": discovery })).await,
        None
    );

    let other = json!([{ "id": "sg-00000000000000000" }, { "id": "sg-00000000000000001" }]);
    assert_eq!(
        change(json!({ "securityGroupSelectorTerms": other })).await,
        because("SecurityGroupDrift")
    );
    assert_eq!(
        change(json!({ "securityGroupSelectorTerms": discovery })).await,
        None
    );

    assert_eq!(
        change(json!({ "capacityReservationSelectorTerms": null })).await,
        because("CapacityReservationDrift")
    );
    assert_eq!(
        change(json!({ "capacityReservationSelectorTerms": reserved })).await,
        None
    );

    for (change_, back) in [
        (
            json!({ "role": "Other" }),
            json!({ "role": crate::node_class::support::ROLE }),
        ),
        (json!({ "tags": { "a": "b" } }), json!({ "tags": null })),
        (json!({ "userData": "echo" }), json!({ "userData": null })),
    ] {
        assert_eq!(change(change_).await, because("NodeClassDrift"));
        assert_eq!(change(back).await, None);
    }
}

/// Conformance: AWS-drift-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_reasons_to_drift_the_first_is_reported() {
    let world = World::new().await;
    let reservation = CapacityReservation::new("cr-1", "m5.large", "us-west-2a", 3);
    world.fake.add_capacity_reservation(reservation);
    let group = karpenter_aws_fake::PlacementGroup::new("pg-1", "racks", "cluster");
    world.fake.add_placement_group(group);
    let reserved = json!([{ "id": "cr-1" }]);
    let spec = json!({ "capacityReservationSelectorTerms": reserved });
    let mut claim = launched(&world, spec, "reserved").await;
    assert_eq!(drift(&world, &claim).await, None);
    let change = async |claim: &NodeClaim, spec: Value| after(&world, claim, spec).await;

    // From the last reason to the first, each on top of those before. A placement group changes the hash, so that only a
    // claim without one can drift for it alone.
    let hash = karpenter_aws::api::labels::annotations::NODE_CLASS_HASH;
    let annotations = claim.metadata.annotations.as_mut().unwrap();
    let stamped = annotations.remove(hash).unwrap();
    let group = json!({ "placementGroupSelector": { "name": "racks" } });
    assert_eq!(change(&claim, group).await, because("PlacementGroupDrift"));
    let none = json!({ "capacityReservationSelectorTerms": null });
    assert_eq!(
        change(&claim, none).await,
        because("CapacityReservationDrift")
    );
    let other = json!({ "subnetSelectorTerms": [{ "id": "subnet-00000000000000002" }] });
    assert_eq!(change(&claim, other).await, because("SubnetDrift"));
    let groups = json!([{ "id": "sg-00000000000000000" }, { "id": "sg-00000000000000001" }]);
    let other = json!({ "securityGroupSelectorTerms": groups });
    assert_eq!(change(&claim, other).await, because("SecurityGroupDrift"));
    let hour = SignedDuration::from_hours(1);
    let newer = Image::new("ami-0newer", "newer", "x86_64", Timestamp::now() - hour);
    world.fake.add_image(newer.tag("team", "x"));
    let mine = json!({ "amiSelectorTerms": [{ "tags": { "team": "x" } }], "amiFamily": "AL2023" });
    assert_eq!(change(&claim, mine).await, because("AMIDrift"));
    let annotations = claim.metadata.annotations.as_mut().unwrap();
    annotations.insert(hash.to_owned(), stamped);
    assert_eq!(drift(&world, &claim).await, because("NodeClassDrift"));
}

/// Conformance: AWS-drift-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reserved_instance_that_became_on_demand_has_not_drifted() {
    let world = World::new().await;
    let reservation = CapacityReservation::new("cr-1", "m5.large", "us-west-2a", 3);
    world.fake.add_capacity_reservation(reservation);
    let spec = json!({ "capacityReservationSelectorTerms": [{ "id": "cr-1" }] });
    let claim = launched(&world, spec, "reserved").await;
    world.fake.cancel_capacity_reservation("cr-1");
    // Another generation, because EC2's answer is cached for a minute.
    let none = json!({ "capacityReservationSelectorTerms": [{ "tags": { "no": "such" } }] });
    assert_eq!(after(&world, &claim, none).await, None);
    assert!(
        world
            .get("default")
            .await
            .status
            .capacity_reservations
            .is_empty()
    );
}

/// Conformance: AWS-drift-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_pool_or_class_a_claim_does_not_drift() {
    let world = World::new().await;
    let mut claim = launched(&world, json!({}), "on-demand").await;
    let role = json!({ "tags": { "a": "b" } });
    assert_eq!(
        after(&world, &claim, role).await,
        because("NodeClassDrift"),
        "it would drift"
    );
    let labels = claim.metadata.labels.as_mut().unwrap();
    labels.insert(core_labels::NODE_POOL.to_owned(), "gone".to_owned());
    assert_eq!(drift(&world, &claim).await, None);
    let labels = claim.metadata.labels.as_mut().unwrap();
    labels.remove(core_labels::NODE_POOL);
    assert_eq!(drift(&world, &claim).await, None);

    world.pool("classless", "no-such-class", json!([])).await;
    let labels = claim.metadata.labels.as_mut().unwrap();
    labels.insert(core_labels::NODE_POOL.to_owned(), "classless".to_owned());
    assert_eq!(drift(&world, &claim).await, None);
}
