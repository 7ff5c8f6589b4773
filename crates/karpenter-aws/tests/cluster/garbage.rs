//! Machines that nobody asks for any more, as a crash between the launch and its record leaves them.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use karpenter_aws::instances::instance_id;
use karpenter_core::provider::CloudProvider;

use crate::world::{World, policy};

/// Conformance: AWS-gc-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_without_a_claim_go_with_their_node_and_others_stay() {
    let world = World::new().await;
    let (_, owned) = world.on_demand("owned").await;
    let provider = &world.parts.provider;
    let orphan = async |name: &str| {
        let wish = World::wish(name, &[("node.kubernetes.io/instance-type", &["m5.large"])]);
        let machine = provider.create(&wish).await.unwrap();
        let id = machine.status.provider_id.as_deref().and_then(instance_id);
        (machine.clone(), id.unwrap().to_owned())
    };
    let (_, foreign) = orphan("foreign").await;
    let tags = BTreeMap::from([("eks:eks-cluster-name".to_owned(), "other".to_owned())]);
    let instances = provider.instances();
    // Nobody may do that; it stands for a machine of another cluster.
    world.fake.set_policy(None);
    instances.create_tags(&foreign, &tags).await.unwrap();
    world.fake.set_policy(Some(policy()));
    let (machine, lost) = orphan("lost").await;
    world.node(&machine).await;
    assert!(world.get::<Node>("node-lost").await.is_some());

    world
        .until("the machine to be given back", async || {
            let gone = !world.instance(&lost).state.is_alive();
            gone.then_some(())
        })
        .await;
    // It was looked at before, while it was young.
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

/// A controller that is slow to record what it launched does not take it for lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_known_to_be_its_claims_before_the_claim_says_so() {
    let world = World::still().await;
    let provider = &world.parts.provider;
    let of = [("node.kubernetes.io/instance-type", &["m5.large"][..])];
    let wish = World::wish("slow", &of);
    provider.create(&wish).await.unwrap();
    let listed = provider.list().await.unwrap();
    let names: Vec<_> = listed.iter().map(|m| m.metadata.name.as_deref()).collect();
    assert_eq!(names, [Some("slow")]);
}
