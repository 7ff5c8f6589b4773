//! Launches by the provider: from a NodeClaim to a NodeClaim.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_aws::api::EC2NodeClass;
use karpenter_aws_fake::{CapacityReservation, InstanceState, Shortage};
use karpenter_core::provider::{CloudProvider, CloudProviderError};
use serde_json::{Value, json};

use crate::cluster::world::{World, ZONE};

const TYPE: &str = "node.kubernetes.io/instance-type";
const KIND: &str = "karpenter.sh/capacity-type";
const WHERE: &str = "topology.kubernetes.io/zone";
const EFA: &str = "vpc.amazonaws.com/efa";

async fn create(
    world: &World,
    name: &str,
    requirements: &[(&str, &[&str])],
) -> Result<NodeClaim, CloudProviderError> {
    let manifest = World::manifest(name, requirements);
    world.aws.provider.create(&manifest).await
}

fn label(claim: &NodeClaim, key: &str) -> String {
    claim.metadata.labels.as_ref().unwrap()[key].clone()
}

/// Returns the instance types of the last CreateFleet.
fn asked(world: &World) -> BTreeSet<String> {
    let calls = world.fake.calls();
    let call = calls.iter().rfind(|c| c.action == "CreateFleet").unwrap();
    let mut types = BTreeSet::new();
    collect(&call.params, &mut types);
    types
}

fn collect(value: &Value, types: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                match value.as_str() {
                    Some(name) if key == "InstanceType" => {
                        types.insert(name.to_owned());
                    }
                    _ => collect(value, types),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, types)),
        _ => {}
    }
}

/// Conformance: AWS-launch-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spot_goes_before_on_demand_while_it_is_available() {
    let world = World::still().await;
    let both = [(TYPE, &["m5.large"][..]), (KIND, &["spot", "on-demand"])];
    let first = create(&world, "a", &both).await.unwrap();
    assert_eq!(label(&first, KIND), "spot");
    world
        .fake
        .set_shortages(vec![Shortage::new("*", "*", "spot")]);
    let error = create(&world, "b", &both).await.unwrap_err();
    assert!(error.is_insufficient_capacity(), "{error}");
    let second = create(&world, "c", &both).await.unwrap();
    assert_eq!(label(&second, KIND), "on-demand");
}

/// Conformance: AWS-launch-02
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_further_requirements_the_pools_requirement_decides() {
    let world = World::still().await;
    // A NodePool with the usual requirement passes it on to NodeClaims of pods without requirements.
    let claim = create(&world, "a", &[(KIND, &["on-demand"])]).await;
    assert_eq!(label(&claim.unwrap(), KIND), "on-demand");
}

/// Conformance: AWS-launch-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_request_has_as_many_types_as_min_values_requires() {
    let world = World::still().await;
    let mut manifest = World::manifest(
        "a",
        &[
            (TYPE, &["m5.large", "m5.xlarge", "m5.metal"]),
            (KIND, &["spot", "on-demand"]),
        ],
    );
    manifest.spec.requirements[0].min_values = Some(2);
    world.aws.provider.create(&manifest).await.unwrap();
    assert!(asked(&world).len() >= 2, "{:?}", asked(&world));
}

/// Conformance: AWS-launch-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_of_the_cheapest_types_are_insufficient_capacity() {
    let world = World::still().await;
    let mut manifest = World::manifest("a", &[(KIND, &["on-demand"])]);
    let families = json!({ "key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 50 });
    let families = serde_json::from_value(families).unwrap();
    manifest.spec.requirements.push(families);
    let error = world.aws.provider.create(&manifest).await.unwrap_err();
    assert!(error.is_insufficient_capacity(), "{error}");
    assert_eq!(world.calls("CreateFleet"), 0);
}

/// Conformance: AWS-launch-07
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_launched_for_a_class_that_is_not_known_to_be_ready() {
    let world = World::still().await;
    let now = Timestamp::now();
    let any = [(TYPE, &["m5.large"][..])];
    let attempt = async || create(&world, "a", &any).await;
    let unknown = |class: &mut karpenter_aws::api::EC2NodeClass| {
        class.set_unknown("SubnetsReady", now);
    };
    world.change_class("default", unknown).await;
    let Err(CloudProviderError::Create { reason, .. }) = attempt().await else {
        unreachable!("readiness is unknown");
    };
    assert_eq!(reason, "NodeClassReadinessUnknown");
    world
        .change_class("default", |class| {
            class.set_false("SubnetsReady", "SubnetsNotFound", "none", now);
        })
        .await;
    let refused = attempt().await.unwrap_err();
    assert!(matches!(refused, CloudProviderError::NodeClassNotReady(_)));
    world
        .change_class("default", |class| {
            class.set_true("SubnetsReady", now);
            for condition in &mut class.status.conditions {
                condition.observed_generation = Some(0);
            }
            assert!(class.is_true(types::READY));
        })
        .await;
    let refused = attempt().await.unwrap_err();
    assert!(matches!(refused, CloudProviderError::NodeClassNotReady(_)));
    assert_eq!(world.calls("CreateFleet"), 0);
}

/// Conformance: AWS-launch-08
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_may_not_set_karpenter_s_own_tags() {
    let world = World::still().await;
    let tags = json!({ "tags": { "karpenter.sh/nodepool": "mine" } });
    world.class("tagged", tags).await;
    let mut manifest = World::manifest("a", &[(TYPE, &["m5.large"])]);
    manifest.spec.node_class_ref.name = "tagged".into();
    let refused = world.aws.provider.create(&manifest).await.unwrap_err();
    assert!(
        matches!(&refused, CloudProviderError::NodeClassNotReady(why) if why.contains("karpenter.sh/nodepool")),
        "{refused}"
    );
    assert_eq!(world.calls("CreateFleet"), 0);
}

/// Conformance: AWS-launch-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_compatible_type_there_is_insufficient_capacity() {
    let world = World::still().await;
    let error = create(&world, "a", &[(TYPE, &["m5.nothing"])]).await;
    assert!(error.unwrap_err().is_insufficient_capacity());
    assert_eq!(world.calls("CreateFleet"), 0);
}

/// Conformance: AWS-launch-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_annotated_with_the_hash_of_its_class() {
    let world = World::still().await;
    let claim = create(&world, "a", &[(TYPE, &["m5.large"])]).await.unwrap();
    let annotations = claim.metadata.annotations.unwrap();
    let keys: Vec<&str> = annotations.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "karpenter.k8s.aws/ec2nodeclass-hash",
            "karpenter.k8s.aws/ec2nodeclass-hash-version",
            "karpenter.k8s.aws/instance-profile-name",
        ]
    );
    assert_eq!(
        annotations["karpenter.k8s.aws/instance-profile-name"],
        "nodes"
    );
}

/// Conformance: AWS-launch-12
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_are_reported_where_they_are_attached() {
    let world = World::still().await;
    let interface = |device: u32, kind: &str| json!({ "networkCardIndex": 0, "deviceIndex": device, "interfaceType": kind });
    let listed = [interface(0, "interface"), interface(1, "efa-only")];
    world
        .class("fabric", json!({ "networkInterfaces": listed }))
        .await;
    let plain = [interface(0, "interface"), interface(1, "interface")];
    world
        .class("plain", json!({ "networkInterfaces": plain }))
        .await;
    let reports = async |name: &str, class: &str, requested: bool| {
        let mut manifest = World::manifest(name, &[(TYPE, &["c5n.18xlarge"])]);
        manifest.spec.node_class_ref.name = class.into();
        if requested {
            let one = serde_json::from_value(json!("1")).unwrap();
            manifest.spec.resources.requests.insert(EFA.to_owned(), one);
        }
        let claim = world.aws.provider.create(&manifest).await.unwrap();
        claim.status.capacity.contains_key(EFA)
    };
    assert!(reports("a", "default", true).await);
    assert!(reports("b", "fabric", false).await);
    assert!(!reports("c", "default", false).await);
    assert!(!reports("d", "plain", false).await);
}

/// Adds a capacity reservation of ten instances that the default class selects.
async fn reserve(world: &World) {
    let id = "cr-00000000000000001";
    let reservation = CapacityReservation::new(id, "m5.large", ZONE, 10);
    world.fake.add_capacity_reservation(reservation);
    let terms = serde_json::from_value::<Vec<_>>(json!([{ "id": id }])).unwrap();
    let now = world.fake.clock().now();
    let found = world.aws.reservations.list(&terms, now).await.unwrap();
    world
        .change_class("default", |class| {
            class.status.capacity_reservations.clone_from(&found);
        })
        .await;
    assert_eq!(world.aws.offered.counts().left(id), 10);
}

/// Conformance: AWS-launch-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_s_count_falls_with_a_launch_and_rises_with_a_termination() {
    let world = World::still().await;
    reserve(&world).await;
    let left = || world.aws.offered.counts().left("cr-00000000000000001");
    let claim = create(&world, "a", &[(KIND, &["reserved"])]).await.unwrap();
    assert_eq!(label(&claim, KIND), "reserved");
    assert_eq!(left(), 9);
    let provider = &world.aws.provider;
    provider.delete(&claim).await.unwrap();
    assert_eq!(left(), 9, "it is being terminated");
    world
        .until("the termination", async || {
            let ended = world.fake.instances_in(InstanceState::Terminated);
            (ended.len() == 1).then_some(())
        })
        .await;
    let gone = provider.delete(&claim).await.unwrap_err();
    assert!(gone.is_node_claim_not_found(), "{gone}");
    assert_eq!(left(), 10);
}

/// Conformance: AWS-ice-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unavailable_pool_is_not_launched_until_its_mark_expires() {
    let world = World::still().await;
    world
        .fake
        .set_shortages(vec![Shortage::new("m5.large", ZONE, "*")]);
    let narrow = [
        (TYPE, &["m5.large"][..]),
        (WHERE, &[ZONE]),
        (KIND, &["on-demand"]),
    ];
    let error = create(&world, "a", &narrow).await.unwrap_err();
    assert!(error.is_insufficient_capacity(), "{error}");
    let wider = [
        (TYPE, &["m5.large", "m5.xlarge"][..]),
        (WHERE, &[ZONE]),
        (KIND, &["on-demand"]),
    ];
    let other = create(&world, "b", &wider).await.unwrap();
    assert_eq!(label(&other, TYPE), "m5.xlarge");
    assert_eq!(asked(&world), BTreeSet::from(["m5.xlarge".to_owned()]));
    let elsewhere = [(TYPE, &["m5.large"][..]), (KIND, &["on-demand"])];
    let there = create(&world, "c", &elsewhere).await.unwrap();
    assert_eq!(label(&there, WHERE), "us-west-2b");

    world.fake.set_shortages(vec![]);
    let later = world.fake.clock().now() + SignedDuration::from_secs(181);
    let unavailable = world.aws.offered.unavailable();
    unavailable.lock().expire(later);
    let again = create(&world, "d", &narrow).await.unwrap();
    assert_eq!(
        (label(&again, TYPE), label(&again, WHERE)),
        ("m5.large".into(), ZONE.into())
    );
}

/// Conformance: AWS-ice-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttling_does_not_exhaust_a_reservation() {
    let world = World::still().await;
    reserve(&world).await;
    world.fake.fail("CreateFleet", "RequestLimitExceeded");
    let error = create(&world, "a", &[(KIND, &["reserved"])]).await;
    let Err(CloudProviderError::Create { reason, .. }) = error else {
        unreachable!("it was throttled");
    };
    assert_eq!(reason, "RequestLimitExceeded");
    let counts = world.aws.offered.counts();
    assert_eq!(counts.left("cr-00000000000000001"), 10);
}

/// Conformance: AWS-ice-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_on_the_claim_says_that_the_role_for_spot_is_missing() {
    let world = World::new().await;
    world.fake.set(|s| s.spot_role = false);
    let mut manifest = World::manifest("a", &[(TYPE, &["m5.large"]), (KIND, &["spot"])]);
    manifest.metadata.uid = Some("uid-a".into());
    world.aws.provider.create(&manifest).await.unwrap_err();
    let message = world
        .event_message("NodeClaim", "a", "SpotServiceLinkedRoleCreationFailure")
        .await;
    assert_eq!(
        message,
        r#"Attempted to launch a spot instance but failed due to "AuthFailure.ServiceLinkedRoleCreationNotPermitted""#
    );
}

/// Conformance: AWS-capacity-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_registers_teaches_the_memory_of_its_type() {
    let world = World::new().await;
    let memory = async || {
        let class = world.aws.stores.class("default").unwrap();
        let types = world.aws.provider.types_of(&class).await.unwrap();
        let t = types.iter().find(|t| t.name == "m5.large").unwrap();
        t.capacity.get("memory") >> 20
    };
    assert_eq!(memory().await, 7577, "a guess");
    world.joined("a").await;
    world
        .until("what the node has", async || {
            (memory().await == 7 * 1024).then_some(())
        })
        .await;
}

/// Conformance: AWS-instance-06
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_of_broken_nodes_have_their_time() {
    let world = World::still().await;
    let policies: Vec<_> = world
        .aws
        .provider
        .profile()
        .repair_policies
        .iter()
        .cloned()
        .map(|p| {
            let minutes = p.toleration.as_mins();
            (p.condition_type, p.condition_status, minutes)
        })
        .collect();
    let expected = [
        ("Ready", "False", 30),
        ("Ready", "Unknown", 30),
        ("AcceleratedHardwareReady", "False", 10),
        ("StorageReady", "False", 30),
        ("NetworkingReady", "False", 30),
        ("KernelReady", "False", 30),
        ("ContainerRuntimeReady", "False", 30),
    ]
    .map(|(condition, status, minutes)| (condition.to_owned(), status.to_owned(), minutes));
    assert_eq!(policies, expected);
}

/// Conformance: AWS-launch-14
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_class_is_missing_or_deleted_is_reported_and_deleted() {
    let world = World::new().await;
    let attempt = async |name: &str, class: &str| {
        let mut manifest = World::manifest(name, &[(TYPE, &["m5.large"])]);
        manifest.spec.node_class_ref.name = class.into();
        let error = world.aws.provider.create(&manifest).await.unwrap_err();
        assert!(error.is_insufficient_capacity(), "{error}");
        let observed = world.event_message("NodeClaim", name, "FailedResolvingNodeClass");
        assert_eq!(observed.await, "Failed resolving NodeClass");
    };
    attempt("a", "nowhere").await;
    world.class("leaving", json!({})).await;
    let finalizers = json!({ "metadata": { "finalizers": ["test/keep"] } });
    world.patch::<EC2NodeClass>("leaving", finalizers).await;
    let classes = world.api::<EC2NodeClass>();
    classes
        .delete("leaving", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the deletion", async || {
            let class = world.aws.stores.class("leaving")?;
            class.is_deleting().then_some(())
        })
        .await;
    attempt("b", "leaving").await;
    assert!(world.fake.instances().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_on_a_pool_says_that_its_class_is_missing() {
    let world = World::new().await;
    world.pool("lost", "nowhere", json!([])).await;
    let pool = world
        .until("the pool", async || world.aws.stores.pool("lost"))
        .await;
    world.aws.provider.instance_types(&pool).await.unwrap_err();
    let message = world.event_message("NodePool", "lost", "FailedResolvingNodeClass");
    assert_eq!(message.await, "Failed resolving NodeClass");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_free_addresses_of_the_subnets_of_a_class_are_known_without_a_call() {
    let world = World::with_fake(
        |b| b,
        |fake| fake.set_free_addresses("subnet-00000000000000001", 40),
        |_| {},
    )
    .await;
    let asked = world.calls("DescribeSubnets");
    let addresses = world.aws.provider.subnet_addresses().unwrap();
    let addresses: Vec<(&str, &str, bool)> = addresses
        .iter()
        .filter(|it| it.node_class == "default")
        .map(|it| (it.subnet.as_str(), it.zone.as_str(), it.free == 40))
        .collect();
    assert_eq!(
        addresses,
        [
            ("subnet-00000000000000002", "us-west-2b", false),
            ("subnet-00000000000000001", "us-west-2a", true),
        ]
    );
    assert_eq!(world.calls("DescribeSubnets"), asked);
}
