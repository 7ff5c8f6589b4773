//! Node classes that cannot be parsed, as the CustomResourceDefinition of another version may have admitted them.

use karpenter_api::conditions::{HasConditions, types};
use karpenter_aws::api::EC2NodeClass;
use serde_json::json;

use crate::cluster::world::{World, WorldOptions};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_classes_that_cannot_be_parsed_get_an_event_and_do_not_hide_others() {
    let how = WorldOptions {
        unreadable: Some("listed"),
        ..WorldOptions::default()
    };
    // A class and its pool that are created after the one that exists from the start.
    let world = World::start(|b| b, |_| {}, |_| {}, how).await;
    world.load(World::unreadable("watched"));
    for name in ["listed", "watched"] {
        let message = world
            .event_message("EC2NodeClass", name, "InvalidObject")
            .await;
        let wrong =
            r#"spec.amiSelectorTerms: invalid type: string "al2023@latest", expected a sequence"#;
        assert_eq!(
            message,
            format!("Ignored because it cannot be read: {wrong}")
        );
    }
    world.class("later", json!({})).await;
    world.on_demand("a").await;

    // A repaired class needs no restart of the controller.
    let spec = json!({
        "instanceProfile": "nodes",
        "amiSelectorTerms": [{ "alias": "al2023@latest" }],
        "subnetSelectorTerms": [{ "id": "subnet-00000000000000001" }],
        "securityGroupSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "test" } }],
    });
    let repaired = json!({ "spec": spec });
    world.patch::<EC2NodeClass>("listed", repaired).await;
    world
        .until("the repaired class to be ready", async || {
            let known = world.aws.stores.class("listed")?;
            known.is_true(types::READY).then_some(())
        })
        .await;
}
