//! Invalid input of users: a condition says what to change, while another class stays ready.

use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::{EC2NodeClass, condition_types as types};
use karpenter_core::provider::{CloudProvider, CloudProviderError};
use serde_json::{Value, json};

use crate::node_class::support::{ROLE, World, is, says};

const VALIDATION: &str = types::VALIDATION_SUCCEEDED;

/// Creates a world with a valid class.
async fn world() -> World {
    let world = World::new().await;
    world.ready("good", json!({})).await;
    world
}

/// Returns a class with this spec, which is not ready, and asserts that the other class stays ready.
async fn bad(world: &World, name: &str, spec: Value) -> EC2NodeClass {
    world.create(name, spec).await;
    // Whether it is retried is not tested here.
    let _ = world.reconcile(name).await;
    let bad = world.get(name).await;
    assert!(!bad.is_true(core_types::READY), "{name}");
    assert!(world.seen("good").await.is_true(core_types::READY));
    bad
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_that_no_node_could_use_is_reported_before_a_launch() {
    let world = world().await;
    let mime = "MIME-Version: 1.0\nContent-Type: text/plain\n\nnot multipart";
    let cut_off = "Content-Type: multipart/mixed; boundary=x\n\n--x\n\n#!/bin/sh";
    let labels = "[settings.kubernetes]\nnode-labels = 3\n";
    let large = "#!/bin/sh\n".to_owned() + &"# padding\n".repeat(6000);
    let padding = "x".repeat(60_000);
    let setting = format!("[settings.host-containers.admin]\nuser-data = \"{padding}\"\n");
    let (al2023, bottlerocket) = ("al2023@latest", "bottlerocket@latest");
    for (name, alias, data, word) in [
        ("toml", bottlerocket, "[settings", "TOML"),
        ("setting", bottlerocket, labels, "node-labels"),
        ("mime", al2023, mime, "MIME"),
        ("short", al2023, cut_off, "closing boundary"),
        ("large", al2023, &large, "shorten"),
        ("bottle", bottlerocket, &setting, "shorten"),
        ("window", "windows2022@latest", &large, "shorten"),
    ] {
        let spec = json!({ "amiSelectorTerms": [{ "alias": alias }], "userData": data });
        let bad = bad(&world, name, spec).await;
        let reason = match word {
            "shorten" => "UserDataSizeLimitExceeded",
            _ => "UserDataInvalid",
        };
        let words = [word, "spec.userData"];
        says(&bad, VALIDATION, is("False", reason), &words);
    }
    // AL2 has no AMIs for this version of Kubernetes, but a user may have a custom one.
    let terms = json!([{ "id": world.image("x86_64") }]);
    let spec = json!({ "amiFamily": "AL2", "amiSelectorTerms": terms, "userData": cut_off });
    let bad = bad(&world, "al2", spec).await;
    let invalid = is("False", "UserDataInvalid");
    says(&bad, VALIDATION, invalid, &["spec.userData"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelled_alias_is_reported() {
    let world = world().await;
    for alias in ["al2023@v20260899", "bottlerocket@1.99.0"] {
        let name = alias.split('@').next().unwrap();
        let spec = json!({ "amiSelectorTerms": [{ "alias": alias }] });
        let bad = bad(&world, name, spec).await;
        let words = [alias, "check its version"];
        says(&bad, types::AMIS_READY, is("False", "AMINotFound"), &words);
    }
}

/// Returns a NodeClaim of one instance type of a class.
fn claim(class: &str, type_: &str) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": { "name": class, "uid": class, "labels": { core_labels::NODE_POOL: "default" } },
        "spec": {
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": class },
            "requirements": [{ "key": core_labels::INSTANCE_TYPE, "operator": "In", "values": [type_] }],
        },
    }))
    .unwrap()
}

async fn launch(world: &World, class: &str, type_: &str) -> Result<NodeClaim, CloudProviderError> {
    // The provider uses the class as it is in its store.
    let version = world.get(class).await.metadata.resource_version;
    world
        .until(async || {
            let known = world.aws.stores.class(class)?;
            (known.metadata.resource_version == version).then_some(())
        })
        .await;
    world.aws.provider.create(&claim(class, type_)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_without_a_volume_or_a_name_does_not_affect_others() {
    let world = world().await;
    for (name, mapping, words) in [
        (
            "bare",
            json!({ "deviceName": "/dev/xvda" }),
            ["spec.blockDeviceMappings[0]", "/dev/xvda", "has no ebs"],
        ),
        (
            "nameless",
            json!({ "ebs": { "volumeSize": "20Gi" } }),
            [
                "spec.blockDeviceMappings[0]",
                "has no deviceName",
                "set the name",
            ],
        ),
    ] {
        let spec = json!({ "blockDeviceMappings": [mapping] });
        let bad = bad(&world, name, spec).await;
        let expected = is("False", "BlockDeviceMappingInvalid");
        says(&bad, VALIDATION, expected, &words);
        let refused = launch(&world, name, "m5.large").await.unwrap_err();
        assert!(
            matches!(refused, CloudProviderError::NodeClassNotReady(_)),
            "{refused}"
        );
    }
    launch(&world, "good", "m5.large").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_instance_type_and_a_price_of_zero_are_ignored() {
    let world = World::new().await;
    world.fake.add_instance_type("z99.huge");
    world.fake.set_price("m5.large", 0.0);
    world
        .aws
        .offered
        .refresh_types(jiff::Timestamp::UNIX_EPOCH)
        .await
        .unwrap();
    world.aws.offered.refresh_on_demand_prices().await.unwrap();
    world.ready("default", json!({ "role": ROLE })).await;
    launch(&world, "default", "m5.large").await.unwrap();
    let class = world.get("default").await;
    let now = jiff::Timestamp::now();
    let types = world.aws.offered.types(&class, None, now).unwrap();
    assert!(types.iter().any(|t| t.name == "z99.huge"));
}
