//! Launches as the provider makes them: from a NodeClaim to a NodeClaim.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_aws_fake::{CapacityReservation, Fault, InstanceState, Shortage};
use karpenter_core::provider::{CloudProvider, CloudProviderError};
use serde_json::{Value, json};

use crate::world::{World, ZONE};

const TYPE: &str = "node.kubernetes.io/instance-type";
const KIND: &str = "karpenter.sh/capacity-type";
const WHERE: &str = "topology.kubernetes.io/zone";
const EFA: &str = "vpc.amazonaws.com/efa";

async fn create(
    world: &World,
    name: &str,
    requirements: &[(&str, &[&str])],
) -> Result<NodeClaim, CloudProviderError> {
    let wish = World::wish(name, requirements);
    world.parts.provider.create(&wish).await
}

fn label(claim: &NodeClaim, key: &str) -> String {
    claim.metadata.labels.as_ref().unwrap()[key].clone()
}

/// The instance types of the last CreateFleet.
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
async fn spot_goes_before_on_demand_while_there_is_some() {
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
async fn where_nobody_asks_for_more_the_pools_requirement_decides() {
    let world = World::still().await;
    // What a NodePool with the usual requirement passes on to claims of pods that ask for nothing.
    let claim = create(&world, "a", &[(KIND, &["on-demand"])]).await;
    assert_eq!(label(&claim.unwrap(), KIND), "on-demand");
}

/// Conformance: AWS-launch-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_types_are_asked_for_as_are_to_be_kept_open() {
    let world = World::still().await;
    let mut wish = World::wish(
        "a",
        &[
            (TYPE, &["m5.large", "m5.xlarge", "m5.metal"]),
            (KIND, &["spot", "on-demand"]),
        ],
    );
    wish.spec.requirements[0].min_values = Some(2);
    world.parts.provider.create(&wish).await.unwrap();
    assert!(asked(&world).len() >= 2, "{:?}", asked(&world));
}

/// Conformance: AWS-launch-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_of_the_cheapest_types_are_as_good_as_none() {
    let world = World::still().await;
    let mut wish = World::wish("a", &[(KIND, &["on-demand"])]);
    let families = json!({ "key": "karpenter.k8s.aws/instance-family", "operator": "Exists", "minValues": 50 });
    let families = serde_json::from_value(families).unwrap();
    wish.spec.requirements.push(families);
    let error = world.parts.provider.create(&wish).await.unwrap_err();
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
async fn tags_that_are_ours_are_not_the_users() {
    let world = World::still().await;
    let tags = json!({ "tags": { "karpenter.sh/nodepool": "mine" } });
    world.class("tagged", tags).await;
    let mut wish = World::wish("a", &[(TYPE, &["m5.large"])]);
    wish.spec.node_class_ref.name = "tagged".into();
    let refused = world.parts.provider.create(&wish).await.unwrap_err();
    assert!(
        matches!(&refused, CloudProviderError::NodeClassNotReady(why) if why.contains("karpenter.sh/nodepool")),
        "{refused}"
    );
    assert_eq!(world.calls("CreateFleet"), 0);
}

/// Conformance: AWS-launch-09
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_type_that_can_be_launched_there_is_no_capacity() {
    let world = World::still().await;
    let error = create(&world, "a", &[(TYPE, &["m5.nothing"])]).await;
    assert!(error.unwrap_err().is_insufficient_capacity());
    assert_eq!(world.calls("CreateFleet"), 0);
}

/// Conformance: AWS-launch-11
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_says_what_its_class_was_like() {
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
        let mut wish = World::wish(name, &[(TYPE, &["c5n.18xlarge"])]);
        wish.spec.node_class_ref.name = class.into();
        if requested {
            let one = serde_json::from_value(json!("1")).unwrap();
            wish.spec.resources.requests.insert(EFA.to_owned(), one);
        }
        let claim = world.parts.provider.create(&wish).await.unwrap();
        claim.status.capacity.contains_key(EFA)
    };
    assert!(reports("a", "default", true).await);
    assert!(reports("b", "fabric", false).await);
    assert!(!reports("c", "default", false).await);
    assert!(!reports("d", "plain", false).await);
}

/// A reservation of ten machines that the default class uses.
async fn reserve(world: &World) {
    let id = "cr-00000000000000001";
    let reservation = CapacityReservation::new(id, "m5.large", ZONE, 10);
    world.fake.add_capacity_reservation(reservation);
    let terms = serde_json::from_value::<Vec<_>>(json!([{ "id": id }])).unwrap();
    let now = world.fake.clock().now();
    let found = world.parts.reservations.list(&terms, now).await.unwrap();
    world
        .change_class("default", |class| {
            class.status.capacity_reservations.clone_from(&found);
        })
        .await;
    assert_eq!(world.parts.offered.counts().left(id), 10);
}

/// Conformance: AWS-launch-13
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_is_counted_down_at_the_launch_and_up_when_the_machine_is_gone() {
    let world = World::still().await;
    reserve(&world).await;
    let left = || world.parts.offered.counts().left("cr-00000000000000001");
    let claim = create(&world, "a", &[(KIND, &["reserved"])]).await.unwrap();
    assert_eq!(label(&claim, KIND), "reserved");
    assert_eq!(left(), 9);
    let provider = &world.parts.provider;
    provider.delete(&claim).await.unwrap();
    assert_eq!(left(), 9, "it is on its way out");
    world
        .until("the end", async || {
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
async fn what_ran_out_is_left_alone_until_its_time_is_over() {
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
    let unavailable = world.parts.offered.unavailable();
    unavailable
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .expire(later);
    let again = create(&world, "d", &narrow).await.unwrap();
    assert_eq!(
        (label(&again, TYPE), label(&again, WHERE)),
        ("m5.large".into(), ZONE.into())
    );
}

/// Conformance: AWS-ice-05
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttling_says_nothing_about_a_reservation() {
    let world = World::still().await;
    reserve(&world).await;
    let fault = Fault::error("CreateFleet", "RequestLimitExceeded").always();
    world.fake.add_fault(fault);
    let error = create(&world, "a", &[(KIND, &["reserved"])]).await;
    let Err(CloudProviderError::Create { reason, .. }) = error else {
        unreachable!("it was throttled");
    };
    assert_eq!(reason, "RequestLimitExceeded");
    let counts = world.parts.offered.counts();
    assert_eq!(counts.left("cr-00000000000000001"), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_wants_spot_is_told_that_the_role_for_it_is_missing() {
    let world = World::new().await;
    world.fake.set(|s| s.spot_role = false);
    let mut wish = World::wish("a", &[(TYPE, &["m5.large"]), (KIND, &["spot"])]);
    wish.metadata.uid = Some("uid-a".into());
    world.parts.provider.create(&wish).await.unwrap_err();
    let told = world
        .told("NodeClaim", "a", "SpotServiceLinkedRoleCreationFailure")
        .await;
    assert_eq!(
        told,
        r#"Attempted to launch a spot instance but failed due to "AuthFailure.ServiceLinkedRoleCreationNotPermitted""#
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_whose_class_is_missing_is_told() {
    let world = World::new().await;
    world.pool("lost", "nowhere", json!([])).await;
    let pool = world
        .until("the pool", async || world.parts.stores.pool("lost"))
        .await;
    world
        .parts
        .provider
        .instance_types(&pool)
        .await
        .unwrap_err();
    let told = world.told("NodePool", "lost", "FailedResolvingNodeClass");
    assert_eq!(told.await, "Failed resolving NodeClass");
}
