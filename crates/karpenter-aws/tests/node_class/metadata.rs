//! The metadata that the controller writes on a class and its NodeClaims.

use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_aws::api::hash;
use karpenter_aws::api::labels::annotations::{NODE_CLASS_HASH, NODE_CLASS_HASH_VERSION};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::node_class::support::World;

/// Conformance: AWS-hash-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_class_carries_its_finalizer_and_the_hash_of_its_spec_and_ca() {
    let world = World::new().await;
    let class = world.made("default", json!({})).await;
    assert_eq!(
        class.metadata.finalizers.as_deref(),
        Some(&["karpenter.k8s.aws/termination".to_owned()][..])
    );
    let first = class.annotation(NODE_CLASS_HASH).unwrap().to_owned();
    assert_eq!(first, hash::static_hash(&class, "Y2E="));
    assert_ne!(first, hash::static_hash(&class, "b3RoZXI="));
    assert_eq!(class.annotation(NODE_CLASS_HASH_VERSION), Some("v6"));
    let class = world
        .changed("default", json!({ "userData": "echo hello" }))
        .await;
    assert_ne!(class.annotation(NODE_CLASS_HASH), Some(first.as_str()));
    assert!(class.is_true(core_types::READY));

    // With another CA the annotation changes, and every node drifts.
    let world = World::with(|aws| aws, |s| s.ca_bundle = Some("b3RoZXI=".into())).await;
    let class = world.made("default", json!({})).await;
    assert_ne!(class.annotation(NODE_CLASS_HASH), Some(first.as_str()));
}

/// Conformance: AWS-hash-06, AWS-hash-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_with_another_hash_version_are_updated_unless_they_drifted() {
    let world = World::new().await;
    let old = json!({ NODE_CLASS_HASH: "1", NODE_CLASS_HASH_VERSION: "v5" });
    world.claim("fresh", "default", old.clone()).await;
    world.claim("drifted", "default", old.clone()).await;
    world.claim("foreign", "other", old.clone()).await;
    let mut drifted = world.claims().get("drifted").await.unwrap();
    drifted.set_true(core_types::DRIFTED, jiff::Timestamp::now());
    let status = json!({ "status": drifted.status });
    world
        .claims()
        .patch_status("drifted", &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    world
        .until(async || {
            let view = world.cx.view();
            let claim = view.node_claim("drifted")?;
            claim.is_true(core_types::DRIFTED).then_some(())
        })
        .await;
    world.create("default", json!({})).await;
    world
        .edit("default", json!({ "metadata": { "annotations": old } }))
        .await;
    let class = world.seen("default").await;
    let hash = class.annotation(NODE_CLASS_HASH).unwrap().to_owned();
    assert_eq!(class.annotation(NODE_CLASS_HASH_VERSION), Some("v6"));
    assert_ne!(hash, "1");
    let stamp = async |name: &str| {
        let claim = world.claims().get(name).await.unwrap();
        let read = |key: &str| claim.annotation(key).unwrap_or_default().to_owned();
        (read(NODE_CLASS_HASH), read(NODE_CLASS_HASH_VERSION))
    };
    let pair = |hash: &str, version: &str| (hash.to_owned(), version.to_owned());
    assert_eq!(stamp("fresh").await, pair(&hash, "v6"));
    assert_eq!(stamp("drifted").await, pair("1", "v6"));
    assert_eq!(stamp("foreign").await, pair("1", "v5"));
}
