//! What users get wrong: a condition that says what to change, while another class is as ready as before.

use karpenter_api::conditions::{HasConditions, types as core_types};
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::condition_types as types;
use karpenter_core::provider::{CloudProvider, CloudProviderError};
use serde_json::{Value, json};

use crate::support::{ROLE, Said, World, said};

/// A world with a class that is as it should be.
async fn world() -> World {
    let world = World::new().await;
    world.create("good", json!({})).await;
    assert!(world.seen("good").await.is_true(core_types::READY));
    world
}

/// What a condition of a class with this spec says, and that the other class goes on.
async fn judged(world: &World, name: &str, spec: Value, condition: &str) -> Said {
    world.create(name, spec).await;
    // Whether it is tried again is not the question here.
    let _ = world.look(name).await;
    let bad = world.get(name).await;
    assert!(!bad.is_true(core_types::READY), "{name}");
    assert!(world.seen("good").await.is_true(core_types::READY));
    said(&bad, condition)
}

fn family(alias: &str, user_data: &str) -> Value {
    json!({ "amiSelectorTerms": [{ "alias": alias }], "userData": user_data })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_data_that_its_family_cannot_read_is_told_before_a_launch() {
    let world = world().await;
    let mime = "MIME-Version: 1.0\nContent-Type: text/plain\n\nnot multipart";
    for (name, alias, data, word) in [
        ("toml", "bottlerocket@latest", "[settings", "TOML"),
        (
            "setting",
            "bottlerocket@latest",
            "[settings.kubernetes]\nnode-labels = 3\n",
            "node-labels",
        ),
        ("mime", "al2023@latest", mime, "MIME"),
    ] {
        let (status, reason, message) = judged(
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
        assert!(message.contains(word), "{message}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_kilobytes_of_user_data_are_too_many() {
    let world = world().await;
    let large = "#!/bin/sh\n".to_owned() + &"# padding\n".repeat(6000);
    let (status, reason, message) = judged(
        &world,
        "large",
        family("al2023@latest", &large),
        types::VALIDATION_SUCCEEDED,
    )
    .await;
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "UserDataSizeLimitExceeded")
    );
    assert!(message.contains("shorten spec.userData"), "{message}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_typing_error_in_an_alias_is_told() {
    let world = world().await;
    for alias in ["al2023@v20260899", "bottlerocket@1.99.0"] {
        let name = alias.split('@').next().unwrap();
        let spec = json!({ "amiSelectorTerms": [{ "alias": alias }] });
        let (status, reason, message) = judged(&world, name, spec, types::AMIS_READY).await;
        assert_eq!((status.as_str(), reason.as_str()), ("False", "AMINotFound"));
        assert!(
            message.contains(alias) && message.contains("check its version"),
            "{message}"
        );
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subnets_that_are_deleted_and_selectors_that_match_nothing_are_told() {
    let world = world().await;
    let id = "subnet-00000000000000002";
    let only = json!({ "subnetSelectorTerms": [{ "id": id }] });
    world.create("deleted", only).await;
    assert!(world.seen("deleted").await.is_true(core_types::READY));
    world.fake.remove_subnet(id);
    let bad = world.seen("deleted").await;
    let (status, reason, _) = said(&bad, types::SUBNETS_READY);
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "SubnetsNotFound")
    );
    assert!(world.seen("good").await.is_true(core_types::READY));

    let nothing = json!({ "securityGroupSelectorTerms": [{ "name": "no-such-group" }] });
    let (status, reason, _) = judged(&world, "groups", nothing, types::SECURITY_GROUPS_READY).await;
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "SecurityGroupsNotFound")
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_be_passed_is_named() {
    let world = world().await;
    world.fake.add_role("Forbidden");
    world.fake.set(|s| s.denied = vec!["iam:PassRole".into()]);
    let spec = json!({ "role": "Forbidden" });
    world.create("bad", spec).await;
    let _ = world.look("bad").await;
    let bad = world.get("bad").await;
    let all: Vec<String> = [types::INSTANCE_PROFILE_READY, types::VALIDATION_SUCCEEDED]
        .iter()
        .map(|c| said(&bad, c).2)
        .collect();
    assert!(!bad.is_true(core_types::READY));
    assert!(
        all.iter()
            .any(|m| m.contains("iam:PassRole") && m.contains("role/Forbidden")),
        "{all:?}"
    );
    assert!(
        world.seen("good").await.is_true(core_types::READY),
        "it was found to be fine before"
    );
    world.stop().await;
}

/// A claim of one instance type of a class.
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
    world.parts.provider.create(&claim(class, type_)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_without_a_disk_behind_it_breaks_nothing_else() {
    let world = world().await;
    let mappings = json!([{ "deviceName": "/dev/xvda" }]);
    world
        .create("bare", json!({ "blockDeviceMappings": mappings }))
        .await;
    let _ = world.look("bare").await;
    let bare = world.get("bare").await;
    // EC2 may take it, as the image says what the disk is; nobody may fall over it.
    if bare.is_true(core_types::READY) {
        launch(&world, "bare", "m5.large").await.unwrap();
    } else {
        let (_, _, message) = said(&bare, types::VALIDATION_SUCCEEDED);
        assert!(message.contains("/dev/xvda"), "{message}");
    }
    let class = world.seen("good").await;
    assert!(class.is_true(core_types::READY));
    launch(&world, "good", "m5.large").await.unwrap();
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_type_nobody_has_heard_of_and_a_price_of_nothing_are_no_matter() {
    let world = World::new().await;
    let record = json!({
        "instanceType": "z99.huge", "currentGeneration": true,
        "supportedUsageClasses": ["on-demand", "spot"], "supportedVirtualizationTypes": ["hvm"],
        "bareMetal": false, "hypervisor": "nitro",
        "processorInfo": { "supportedArchitectures": ["x86_64"], "manufacturer": "Nobody" },
        "vCpuInfo": { "defaultVCpus": 2, "defaultCores": 1, "defaultThreadsPerCore": 2 },
        "memoryInfo": { "sizeInMiB": 4096 }, "instanceStorageSupported": false,
        "networkInfo": {
            "networkPerformance": "unheard of", "maximumNetworkInterfaces": 3, "maximumNetworkCards": 1,
            "defaultNetworkCardIndex": 0, "ipv4AddressesPerInterface": 10, "ipv6AddressesPerInterface": 10,
            "ipv6Supported": true, "enaSupport": "required", "efaSupported": false,
            "networkCards": [{ "networkCardIndex": 0, "maximumNetworkInterfaces": 3 }],
        },
    });
    assert!(world.fake.add_instance_type(record, &[]));
    world.fake.set_price("m5.large", 0.0);
    world.parts.offered.refresh_types().await.unwrap();
    world
        .parts
        .offered
        .refresh_on_demand_prices()
        .await
        .unwrap();
    world.create("default", json!({ "role": ROLE })).await;
    assert!(world.seen("default").await.is_true(core_types::READY));
    launch(&world, "default", "m5.large").await.unwrap();
    let class = world.get("default").await;
    let now = jiff::Timestamp::now();
    let types = world.parts.offered.types(&class, None, now).unwrap();
    assert!(types.iter().any(|t| t.name == "z99.huge"));
    world.stop().await;
}
