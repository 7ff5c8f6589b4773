//! Instances in partitions of a placement group.

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_aws_fake::PlacementGroup;
use serde_json::json;

use crate::cluster::world::World;

const PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";

/// Conformance: AWS-pg-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registration_waits_for_the_partition_and_labels_claim_and_node_with_it() {
    let world = World::with_fake(
        |b| b,
        |fake| {
            fake.add_placement_group(PlacementGroup {
                partitions: Some(3),
                ..PlacementGroup::new("pg-00000000000000001", "parts", "partition")
            });
        },
        |_| {},
    )
    .await;
    let spec = json!({ "placementGroupSelector": { "name": "parts" } });
    world.class("grouped", spec).await;
    let of = [("node.kubernetes.io/instance-type", &["m5.large"][..])];
    let mut manifest = World::manifest("a", &of);
    manifest.spec.node_class_ref.name = "grouped".into();
    let (claim, id) = world.launch(manifest).await;
    assert_eq!(claim.metadata.labels.as_ref().unwrap()[PARTITION], "");

    // EC2 does not report the partition yet.
    world.fake.deny(&["ec2:DescribeInstances"]);
    world.node(&claim).await;
    world
        .until("registration to wait", async || {
            let claim = world.get::<NodeClaim>("a").await?;
            let condition = claim.condition(types::REGISTERED)?.clone();
            (condition.reason == "RegistrationHookPending").then_some(())
        })
        .await;
    world.fake.deny(&[]);
    let claim = world
        .until("registration", async || {
            let claim = world.get::<NodeClaim>("a").await?;
            claim.is_true(types::REGISTERED).then_some(claim)
        })
        .await;
    let partition = world
        .instance(&id)
        .placement
        .unwrap()
        .1
        .unwrap()
        .to_string();
    assert_eq!(claim.metadata.labels.unwrap()[PARTITION], partition);
    let node: k8s_openapi::api::core::v1::Node = world.get("node-a").await.unwrap();
    assert_eq!(node.metadata.labels.unwrap()[PARTITION], partition);
}
