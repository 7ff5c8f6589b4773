//! Garbage collection of instances without a NodeClaim, as a crash between a launch and its record leaves them.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use karpenter_aws::providers::instance::instance_id;
use karpenter_core::provider::CloudProvider;

use crate::cluster::world::{World, policy};

/// Conformance: AWS-gc-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_without_a_claim_is_terminated_with_its_node() {
    let world = World::new().await;
    let (_, owned) = world.on_demand("owned").await;
    let provider = &world.aws.provider;
    let orphan = async |name: &str| {
        let manifest =
            World::manifest(name, &[("node.kubernetes.io/instance-type", &["m5.large"])]);
        let claim = provider.create(&manifest).await.unwrap();
        let id = claim.status.provider_id.as_deref().and_then(instance_id);
        (claim.clone(), id.unwrap().to_owned())
    };
    let (_, foreign) = orphan("foreign").await;
    let tags = BTreeMap::from([("eks:eks-cluster-name".to_owned(), "other".to_owned())]);
    let instances = provider.instances();
    // The policy does not allow this; the tag makes it an instance of another cluster.
    world.fake.set_policy(None);
    instances.create_tags(&foreign, &tags).await.unwrap();
    world.fake.set_policy(Some(policy()));
    let (claim, lost) = orphan("lost").await;
    world.node(&claim).await;
    assert!(world.get::<Node>("node-lost").await.is_some());

    world
        .until("the instance to be terminated", async || {
            let gone = !world.instance(&lost).state.is_alive();
            gone.then_some(())
        })
        .await;
    // Earlier passes skipped it, because it was too young.
    let age = world
        .fake
        .clock()
        .now()
        .duration_since(world.instance(&lost).launched);
    assert!(age >= SignedDuration::from_secs(30), "{age}");
    world
        .until("the node to be deleted", async || {
            world.get::<Node>("node-lost").await.is_none().then_some(())
        })
        .await;
    world.more_calls("DescribeInstances", 4).await;
    for id in [&owned, &foreign] {
        assert!(world.instance(id).state.is_alive());
    }
}

/// An instance is not garbage while its controller is slow to record it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_instance_is_listed_before_its_claim_has_the_provider_id() {
    let world = World::still().await;
    let provider = &world.aws.provider;
    let of = [("node.kubernetes.io/instance-type", &["m5.large"][..])];
    let manifest = World::manifest("slow", &of);
    provider.create(&manifest).await.unwrap();
    let listed = provider.list().await.unwrap();
    let names: Vec<_> = listed.iter().map(|m| m.metadata.name.as_deref()).collect();
    assert_eq!(names, [Some("slow")]);
}
