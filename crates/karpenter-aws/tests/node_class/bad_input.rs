//! Invalid input of users: a condition says what to change, while another class stays ready.

use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::condition_types as types;
use karpenter_core::provider::{CloudProvider, CloudProviderError};
use serde_json::{Value, json};

use crate::support::{Observed, ROLE, World, observed};

/// Creates a world with a valid class.
async fn world() -> World {
    let world = World::new().await;
    assert!(
        world
            .made("good", json!({}))
            .await
            .is_true(core_types::READY)
    );
    world
}

/// Returns a condition of a class with this spec, and asserts that the other class stays ready.
async fn observe_bad(world: &World, name: &str, spec: Value, condition: &str) -> Observed {
    world.create(name, spec).await;
    // Whether it is retried is not tested here.
    let _ = world.reconcile(name).await;
    let bad = world.get(name).await;
    assert!(!bad.is_true(core_types::READY), "{name}");
    assert!(world.seen("good").await.is_true(core_types::READY));
    observed(&bad, condition)
}

fn family(alias: &str, user_data: &str) -> Value {
    json!({ "amiSelectorTerms": [{ "alias": alias }], "userData": user_data })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_that_its_family_cannot_parse_is_reported_before_a_launch() {
    let world = world().await;
    let mime = "MIME-Version: 1.0\nContent-Type: text/plain\n\nnot multipart";
    let cut_off = "Content-Type: multipart/mixed; boundary=x\n\n--x\n\n#!/bin/sh";
    for (name, alias, data, word) in [
        ("toml", "bottlerocket@latest", "[settings", "TOML"),
        (
            "setting",
            "bottlerocket@latest",
            "[settings.kubernetes]\nnode-labels = 3\n",
            "node-labels",
        ),
        ("mime", "al2023@latest", mime, "MIME"),
        ("short", "al2023@latest", cut_off, "closing boundary"),
    ] {
        let (status, reason, message) = observe_bad(
            &world,
            name,
            family(alias, data),
            types::VALIDATION_SUCCEEDED,
        )
        .await;
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("False", "UserDataInvalid")
        );
        assert!(
            message.contains(word) && message.contains("spec.userData"),
            "{message}"
        );
    }
    // AL2 has no AMIs for this version of Kubernetes, but a user may have a custom one.
    let terms = json!([{ "id": world.image("x86_64") }]);
    let spec = json!({ "amiFamily": "AL2", "amiSelectorTerms": terms, "userData": cut_off });
    let (_, reason, message) = observe_bad(&world, "al2", spec, types::VALIDATION_SUCCEEDED).await;
    assert_eq!(reason, "UserDataInvalid");
    assert!(message.contains("spec.userData"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_of_sixty_kilobytes_is_too_large() {
    let world = world().await;
    let large = "#!/bin/sh\n".to_owned() + &"# padding\n".repeat(6000);
    let setting = format!(
        "[settings.host-containers.admin]\nuser-data = \"{}\"\n",
        "x".repeat(60_000)
    );
    for (name, alias, data) in [
        ("large", "al2023@latest", &large),
        ("bottle", "bottlerocket@latest", &setting),
        ("window", "windows2022@latest", &large),
    ] {
        let spec = family(alias, data);
        let (status, reason, message) =
            observe_bad(&world, name, spec, types::VALIDATION_SUCCEEDED).await;
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("False", "UserDataSizeLimitExceeded"),
            "{name}: {message}"
        );
        assert!(message.contains("shorten spec.userData"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelled_alias_is_reported() {
    let world = world().await;
    for alias in ["al2023@v20260899", "bottlerocket@1.99.0"] {
        let name = alias.split('@').next().unwrap();
        let spec = json!({ "amiSelectorTerms": [{ "alias": alias }] });
        let (status, reason, message) = observe_bad(&world, name, spec, types::AMIS_READY).await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "AMINotFound"));
        assert!(
            message.contains(alias) && message.contains("check its version"),
            "{message}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_subnet_is_reported() {
    let world = world().await;
    let id = "subnet-00000000000000002";
    let only = json!({ "subnetSelectorTerms": [{ "id": id }] });
    assert!(world.made("deleted", only).await.is_true(core_types::READY));
    world.fake.remove_subnet(id);
    let bad = world.seen("deleted").await;
    let (status, reason, message) = observed(&bad, types::SUBNETS_READY);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "SubnetsNotFound")
    );
    assert!(
        message.contains("change spec.subnetSelectorTerms"),
        "{message}"
    );
    assert!(world.seen("good").await.is_true(core_types::READY));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_be_passed_is_named() {
    let world = world().await;
    world.fake.add_role("Forbidden");
    world.fake.set(|s| s.denied = vec!["iam:PassRole".into()]);
    let spec = json!({ "role": "Forbidden" });
    world.create("bad", spec).await;
    let _ = world.reconcile("bad").await;
    let bad = world.get("bad").await;
    let all: Vec<String> = [types::INSTANCE_PROFILE_READY, types::VALIDATION_SUCCEEDED]
        .iter()
        .map(|c| observed(&bad, c).2)
        .collect();
    assert!(!bad.is_true(core_types::READY));
    assert!(
        all.iter()
            .any(|m| m.contains("iam:PassRole") && m.contains("role/Forbidden")),
        "{all:?}"
    );
    assert!(
        world.seen("good").await.is_true(core_types::READY),
        "it was validated before"
    );
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
        let (status, reason, message) =
            observe_bad(&world, name, spec, types::VALIDATION_SUCCEEDED).await;
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("False", "BlockDeviceMappingInvalid")
        );
        assert!(words.iter().all(|w| message.contains(w)), "{message}");
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
    assert!(
        world
            .made("default", json!({ "role": ROLE }))
            .await
            .is_true(core_types::READY)
    );
    launch(&world, "default", "m5.large").await.unwrap();
    let class = world.get("default").await;
    let now = jiff::Timestamp::now();
    let types = world.aws.offered.types(&class, None, now).unwrap();
    assert!(types.iter().any(|t| t.name == "z99.huge"));
}
