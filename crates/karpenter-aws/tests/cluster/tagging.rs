//! Tags that are known only after the launch.

use std::collections::BTreeMap;

use karpenter_api::v1::NodeClaim;
use kube::api::DeleteParams;
use serde_json::json;

use crate::cluster::world::World;

async fn tagged(world: &World, name: &str) {
    let done = [
        "karpenter.k8s.aws/tagged",
        "compatibility.karpenter.k8s.aws/cluster-name-tagged",
    ];
    world
        .until("the annotations", async || {
            let claim = world.get::<NodeClaim>(name).await?;
            let annotations = claim.metadata.annotations.unwrap_or_default();
            done.iter()
                .all(|key| annotations.get(*key).is_some_and(|v| v == "true"))
                .then_some(())
        })
        .await;
}

/// Conformance: AWS-tagging-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_tags_are_added_and_existing_ones_kept() {
    let world = World::new().await;
    let (claim, id) = world.on_demand("a").await;
    world.join(&claim).await;
    tagged(&world, "a").await;
    let tags = world.instance(&id).tags;
    assert_eq!(tags["Name"], "node-a");
    assert_eq!(tags["karpenter.sh/nodeclaim"], "a");
    assert_eq!(tags["eks:eks-cluster-name"], "test");
    let calls = world.fake.calls();
    let call = calls.iter().rfind(|c| c.action == "CreateTags").unwrap();
    let text = call.params.to_string();
    assert!(
        !text.contains("eks:eks-cluster-name"),
        "it was there: {text}"
    );

    world.nothing_beyond_the_policy();

    let instances = world.aws.provider.instances();
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
        pairs.iter().map(own).collect()
    };
    let (claim, id) = world.on_demand("b").await;
    let name = of(&[("Name", "mine")]);
    instances.create_tags(&id, &name).await.unwrap();
    world.join(&claim).await;
    tagged(&world, "b").await;
    let tags = world.instance(&id).tags;
    assert_eq!(tags["Name"], "mine");
    assert_eq!(tags["karpenter.sh/nodeclaim"], "b");

    let (claim, id) = world.on_demand("c").await;
    let all = of(&[("Name", "mine"), ("karpenter.sh/nodeclaim", "c")]);
    instances.create_tags(&id, &all).await.unwrap();
    world.fake.forget_calls();
    world.join(&claim).await;
    tagged(&world, "c").await;
    assert_eq!(world.calls("CreateTags"), 0);
}

/// Conformance: AWS-tagging-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_cannot_be_tagged_are_skipped() {
    let world = World::new().await;
    world.on_demand("nodeless").await;
    let (_, gone) = world.on_demand("gone").await;
    world.on_demand("odd").await;
    world.on_demand("leaving").await;
    world.fake.set(|s| {
        s.denied = vec!["ec2:TerminateInstances".into()];
        s.shutting_down_s = 0.0;
    });
    world.fake.terminate(&gone);
    let claims = world.api::<NodeClaim>();
    let now = DeleteParams::default();
    claims.delete("leaving", &now).await.unwrap();
    let (odd, node) = (
        json!({ "providerID": "aws:///nowhere", "nodeName": "n" }),
        json!({ "nodeName": "n" }),
    );
    world.patch_status::<NodeClaim>("odd", odd).await;
    for name in ["gone", "leaving"] {
        world.patch_status::<NodeClaim>(name, node.clone()).await;
    }
    let (last, id) = world.on_demand("last").await;
    world.join(&last).await;
    tagged(&world, "last").await;
    let tagged: Vec<String> = world
        .fake
        .calls()
        .into_iter()
        .filter(|c| c.action == "CreateTags")
        .map(|c| c.params.to_string())
        .collect();
    assert!(tagged.iter().all(|call| call.contains(&id)), "{tagged:?}");
    let errors = r#"controller_runtime_reconcile_errors_total{controller="nodeclaim.tagging"}"#;
    assert!(world.metric(errors) < 0.5);
}
