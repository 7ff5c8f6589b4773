//! Deletion of a class.

use std::time::Duration;

use karpenter_aws_fake::Fault;
use karpenter_kube::controller::Next;
use serde_json::json;

use crate::node_class::support::{ROLE, World};

async fn is_gone(world: &World, name: &str) -> bool {
    world.classes().get_opt(name).await.unwrap().is_none()
}

/// Conformance: AWS-nodeclass-06, AWS-nodeclass-16
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_waits_for_its_node_claims() {
    let world = World::new().await;
    world.create("default", json!({})).await;
    world.seen("default").await;
    world.claim("claim-1", "default", json!({})).await;
    world.claim("foreign", "other", json!({})).await;
    world.delete("default").await;
    let wait = world.reconcile("default").await.unwrap();
    assert_eq!(wait, Next::After(Duration::from_secs(600)));
    assert!(!is_gone(&world, "default").await);
    let event = world
        .until(async || {
            let events = world.events("default").await;
            events
                .into_iter()
                .find(|(reason, _)| reason == "WaitingOnNodeClaimTermination")
        })
        .await;
    assert_eq!(event.1, "Waiting on NodeClaim termination for claim-1");
    assert_eq!(world.fake.instance_profiles().len(), 1);

    world.unclaim("claim-1").await;
    world.reconcile("default").await.unwrap();
    assert!(is_gone(&world, "default").await);
    assert!(world.fake.instance_profiles().is_empty());
    assert!(world.fake.launch_templates().is_empty());
}

/// Conformance: AWS-nodeclass-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_stays_until_its_launch_templates_are_gone() {
    let world = World::new().await;
    world.ready("default", json!({})).await;
    world.fake.add_fault(Fault::error(
        "DeleteLaunchTemplate",
        "UnauthorizedOperation",
    ));
    world.delete("default").await;
    world.reconcile("default").await.unwrap_err();
    assert!(!is_gone(&world, "default").await);
    world.reconcile("default").await.unwrap();
    assert!(is_gone(&world, "default").await);
}

/// Conformance: AWS-nodeclass-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_managed_profile_is_kept() {
    let world = World::new().await;
    world.fake.add_instance_profile("theirs", Some(ROLE));
    let spec = json!({ "role": null, "instanceProfile": "theirs" });
    world.create("default", spec).await;
    world.seen("default").await;
    world.delete("default").await;
    world.reconcile("default").await.unwrap();
    assert!(is_gone(&world, "default").await);
    assert_eq!(world.fake.instance_profiles().len(), 1);
    assert_eq!(world.calls("DeleteInstanceProfile"), 0);
}

/// Returns the name of the profile that older releases created for a class.
fn legacy(cluster: &str, class: &str) -> String {
    let hash = karpenter_api::hash::string(&format!("us-west-2{class}"));
    format!("{cluster}_{hash}")
}

/// Conformance: AWS-nodeclass-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_profile_of_older_releases_is_deleted_if_its_name_is_valid() {
    let world = World::new().await;
    let name = legacy("test", "default");
    world.fake.add_instance_profile(&name, Some(ROLE));
    world.create("default", json!({})).await;
    world.seen("default").await;
    world.delete("default").await;
    world.reconcile("default").await.unwrap();
    assert!(world.fake.instance_profiles().is_empty());

    // The name of a profile cannot contain a colon.
    let world = World::with(|aws| aws, |s| s.cluster = "arn:cluster".into()).await;
    world.fake.add_instance_profile("theirs", Some(ROLE));
    let spec = json!({
        "role": null, "instanceProfile": "theirs", "amiSelectorTerms": [{ "alias": "bottlerocket@latest" }],
    });
    world.create("default", spec).await;
    world.seen("default").await;
    world.fake.forget_calls();
    world.delete("default").await;
    world.reconcile("default").await.unwrap();
    assert!(is_gone(&world, "default").await);
    assert_eq!(world.calls("GetInstanceProfile"), 0);
}

/// Conformance: AWS-nodeclass-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_an_isolated_vpc_iam_is_not_called() {
    let world = World::with(|aws| aws, |s| s.isolated_vpc = true).await;
    world.fake.add_instance_profile("theirs", Some(ROLE));
    let spec = json!({ "role": null, "instanceProfile": "theirs" });
    world.ready("default", spec).await;
    world.delete("default").await;
    world.reconcile("default").await.unwrap();
    assert!(is_gone(&world, "default").await);
    let of_iam = world
        .fake
        .calls()
        .into_iter()
        .filter(|c| c.service == "iam");
    assert_eq!(of_iam.count(), 0);
}
