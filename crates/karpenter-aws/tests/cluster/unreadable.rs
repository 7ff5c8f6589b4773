//! Node classes that cannot be read, as the definitions of another version may have let them in.

use karpenter_api::conditions::{HasConditions, types};
use karpenter_aws::api::EC2NodeClass;
use serde_json::json;

use crate::world::{How, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_classes_that_cannot_be_read_are_told_of_and_hide_no_others() {
    let how = How {
        unreadable: Some("listed"),
        ..How::default()
    };
    // Its class and its pool come after the one that is there from the start.
    let world = World::start(|b| b, |_| {}, |_| {}, how).await;
    world.load(World::unreadable("watched"));
    for name in ["listed", "watched"] {
        let told = world.told("EC2NodeClass", name, "InvalidObject").await;
        let wrong =
            r#"spec.amiSelectorTerms: invalid type: string "al2023@latest", expected a sequence"#;
        assert_eq!(told, format!("Ignored because it cannot be read: {wrong}"));
    }
    world.class("later", json!({})).await;
    world.on_demand("a").await;

    // Whoever mends it need not restart anything.
    let spec = json!({
        "instanceProfile": "nodes",
        "amiSelectorTerms": [{ "alias": "al2023@latest" }],
        "subnetSelectorTerms": [{ "id": "subnet-00000000000000001" }],
        "securityGroupSelectorTerms": [{ "tags": { "karpenter.sh/discovery": "test" } }],
    });
    let mended = json!({ "spec": spec });
    world.patch::<EC2NodeClass>("listed", mended).await;
    world
        .until("the mended class to be ready", async || {
            let known = world.parts.stores.class("listed")?;
            known.is_true(types::READY).then_some(())
        })
        .await;
}
