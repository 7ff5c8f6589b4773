//! Instances in capacity reservations.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool, Operator};
use karpenter_aws::api::{EC2NodeClass, ReservationType};
use karpenter_aws_fake::CapacityReservation;
use karpenter_core::provider::CloudProvider;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::world::{World, WorldOptions, ZONE};

const PLAIN: &str = "cr-00000000000000001";
const BLOCK: &str = "cr-00000000000000002";
const OF_RESERVATIONS: [&str; 3] = [
    "karpenter.k8s.aws/capacity-reservation-id",
    "karpenter.k8s.aws/capacity-reservation-type",
    "karpenter.k8s.aws/capacity-reservation-interruptible",
];

/// Creates a world with reservations for m5.large (plain) and p4d.24xlarge (a block), which end after this time, and a
/// class that selects them.
async fn world(ends: Duration) -> World {
    let world = World::with_fake(
        |b| b,
        |fake| {
            let end = Some(fake.clock().now() + ends);
            fake.add_capacity_reservation(CapacityReservation {
                end,
                ..CapacityReservation::new(PLAIN, "m5.large", ZONE, 10)
            });
            fake.add_capacity_reservation(CapacityReservation {
                end,
                block: true,
                ..CapacityReservation::new(BLOCK, "p4d.24xlarge", ZONE, 10)
            });
        },
        // Interruption warnings about the block's end concern another controller.
        |s| s.interruption_queue = None,
    )
    .await;
    let terms = json!([{ "id": PLAIN }, { "id": BLOCK }]);
    let spec = json!({ "capacityReservationSelectorTerms": terms });
    world.class("reserved", spec).await;
    let class = world.aws.stores.class("reserved").unwrap();
    let found = &class.status.capacity_reservations;
    assert_eq!(found[1].reservation_type, ReservationType::CapacityBlock);
    world
}

async fn launched(world: &World, name: &str, instance_type: &str) -> (NodeClaim, String) {
    let mut manifest = World::manifest(
        name,
        &[
            ("node.kubernetes.io/instance-type", &[instance_type]),
            ("karpenter.sh/capacity-type", &["reserved"]),
        ],
    );
    manifest.spec.node_class_ref.name = "reserved".into();
    let (claim, id) = world.launch(manifest).await;
    let labels = claim.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["karpenter.sh/capacity-type"], "reserved");
    (claim, id)
}

fn labels<K: kube::Resource>(object: &K) -> std::collections::BTreeMap<String, String> {
    object.meta().labels.clone().unwrap_or_default()
}

fn is_on_demand<K: kube::Resource>(object: &K) -> bool {
    let labels = labels(object);
    labels["karpenter.sh/capacity-type"] == "on-demand"
        && OF_RESERVATIONS.iter().all(|key| !labels.contains_key(*key))
}

/// Conformance: AWS-cr-03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_a_block_but_not_of_a_reservation_are_deleted_before_its_end() {
    let world = world(Duration::from_secs(46 * 60)).await;
    launched(&world, "plain", "m5.large").await;
    let (_, id) = launched(&world, "block", "p4d.24xlarge").await;
    assert_eq!(
        world.instance(&id).capacity_reservation.as_deref(),
        Some(BLOCK)
    );
    let end = world.fake.capacity_reservation(BLOCK).unwrap().end.unwrap();
    world.leaves("block").await;
    let left = end.duration_since(world.fake.clock().now());
    assert!((35..=40).contains(&left.as_mins()), "{left}");
    world.more_calls("DescribeInstances", 2).await;
    assert!(!world.is_leaving("plain").await);
}

/// Conformance: AWS-cr-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_left_their_reservation_are_labeled_on_demand() {
    let world = world(Duration::from_secs(86_400)).await;
    let (claim, _) = launched(&world, "a", "m5.large").await;
    let before = labels(&claim);
    let node = world.join(&claim).await;
    assert_eq!(labels(&node)["karpenter.sh/capacity-type"], "reserved");
    let name = node.metadata.name.clone().unwrap();
    world.more_calls("DescribeInstances", 2).await;
    assert!(!is_on_demand(&world.get::<NodeClaim>("a").await.unwrap()));

    world.fake.cancel_capacity_reservation(PLAIN);
    let relabeled = async || {
        let claim = world.get::<NodeClaim>("a").await?;
        let node = world.get::<Node>(&name).await?;
        (is_on_demand(&claim) && is_on_demand(&node)).then_some(())
    };
    world.until("both to be labeled", relabeled).await;
    // The other controllers of this process compute their patches from the labels as they were written, which are kept once the
    // API server has answered.
    let cx = world.cx.as_ref().unwrap();
    let (node, claim) = (Arc::new(node), Arc::new(claim));
    let kept = async || {
        let known = is_on_demand(&*cx.node_writes.latest(&node))
            && is_on_demand(&*cx.claim_writes.latest(&claim));
        known.then_some(())
    };
    world.until("both writes to be kept", kept).await;

    // The node still has the label, as if the controller had stopped between the two writes.
    let old: Value = OF_RESERVATIONS
        .iter()
        .chain(&["karpenter.sh/capacity-type"])
        .map(|key| ((*key).to_owned(), json!(before[*key])))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let patch = json!({ "metadata": { "labels": old } });
    world.patch::<Node>(&name, patch).await;
    assert!(!is_on_demand(&world.get::<Node>(&name).await.unwrap()));
    world.until("the node to be labeled", relabeled).await;
    world.nothing_beyond_the_policy();
}

/// Creates a pod that kube-scheduler could not schedule, large enough to need its own m5.large.
async fn waiting_pod(world: &World, name: &str) {
    let pods: Api<Pod> = Api::namespaced(world.client.clone(), "default");
    let pod = json!({
        "metadata": { "name": name },
        "spec": {
            "nodeSelector": { "karpenter.sh/nodepool": "reserved" },
            "containers": [{ "name": "c", "image": "pause", "resources": { "requests": { "cpu": "1500m" } } }],
        },
    });
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let unschedulable =
        json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" });
    let patch = json!({ "status": { "phase": "Pending", "conditions": [unschedulable] } });
    pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .unwrap();
}

/// Returns the values that a NodeClaim requires for this key.
fn asked<'a>(claim: &'a NodeClaim, key: &str) -> Vec<&'a str> {
    let all = claim.spec.requirements.iter();
    let mut own = all.filter(|r| r.key == key && r.operator == Operator::In);
    let values = own.next().map(|r| &r.values[..]).unwrap_or_default();
    values.iter().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_nodes_are_planned_for_a_reservation_than_it_has_instances_left() {
    let world = World::with_fake(
        |b| b,
        |fake| {
            fake.add_capacity_reservation(CapacityReservation::new(PLAIN, "m5.large", ZONE, 2));
        },
        |_| {},
    )
    .await;
    let terms = json!({ "capacityReservationSelectorTerms": [{ "id": PLAIN }] });
    world.class("reserved", terms).await;
    let one =
        |key: &str, values: &[&str]| json!({ "key": key, "operator": "In", "values": values });
    let requirements = json!([
        one("node.kubernetes.io/instance-type", &["m5.large"]),
        one("karpenter.sh/capacity-type", &["reserved", "on-demand"]),
    ]);
    world.pool("reserved", "reserved", requirements).await;
    world
        .until("a pool that is ready", async || {
            let pool = world.get::<NodePool>("reserved").await?;
            pool.is_true(types::READY).then_some(())
        })
        .await;
    for name in ["a", "b", "c"] {
        waiting_pod(&world, name).await;
    }
    let claims = world
        .until("three instances", async || {
            let claims = world.api::<NodeClaim>().list(&ListParams::default()).await;
            let claims = claims.unwrap().items;
            let launched = claims.iter().filter(|c| c.is_true(types::LAUNCHED));
            (launched.count() == 3).then_some(claims)
        })
        .await;
    let kind = "karpenter.sh/capacity-type";
    let (reserved, others): (Vec<_>, Vec<_>) = claims
        .iter()
        .partition(|claim| asked(claim, OF_RESERVATIONS[0]) == [PLAIN]);
    assert_eq!((reserved.len(), others.len()), (2, 1), "{claims:#?}");
    for claim in reserved {
        assert_eq!(asked(claim, kind), ["reserved"]);
        assert_eq!(labels(claim)[kind], "reserved");
    }
    assert_eq!(asked(others[0], kind), ["on-demand"]);
    assert!(is_on_demand(others[0]));
    let created = world.metric_sum("karpenter_nodeclaims_created_total");
    assert!(
        (created - 3.0).abs() < 0.01,
        "{created} claims for three instances"
    );
    world.nothing_beyond_the_policy();
}

/// Conformance: DIS-061
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_reservation_is_gone_still_has_a_known_instance_type() {
    let world = World::start(
        |b| b,
        |fake| {
            fake.add_capacity_reservation(CapacityReservation::new(PLAIN, "m5.large", ZONE, 2));
        },
        |_| {},
        // An instance without a NodeClaim is terminated after half a minute.
        WorldOptions {
            speed: 1.0,
            ..WorldOptions::default()
        },
    )
    .await;
    let terms = json!({ "capacityReservationSelectorTerms": [{ "id": PLAIN }] });
    world.class("reserved", terms).await;
    world.pool("reserved", "reserved", json!([])).await;
    let mut manifest = World::manifest(
        "a",
        &[
            ("node.kubernetes.io/instance-type", &["m5.large"]),
            ("karpenter.sh/capacity-type", &["reserved"]),
        ],
    );
    manifest.spec.node_class_ref.name = "reserved".into();
    let own = manifest.metadata.labels.get_or_insert_default();
    own.insert("karpenter.sh/nodepool".into(), "reserved".into());
    let created_claim = world.aws.provider.create(&manifest).await.unwrap();
    assert_eq!(
        labels(&created_claim)["karpenter.sh/capacity-type"],
        "reserved"
    );

    let none = json!({ "spec": { "capacityReservationSelectorTerms": null } });
    world.patch::<EC2NodeClass>("reserved", none).await;
    let pool = world.get::<NodePool>("reserved").await.unwrap();
    world
        .until("the reservation to be offered no longer", async || {
            let types = world.aws.provider.instance_types(&pool).await.unwrap();
            let mut offerings = types.iter().flat_map(|t| t.offerings.iter());
            let gone = offerings.all(|o| o.capacity_type() != Some("reserved"));
            (gone && types.iter().any(|t| t.name == "m5.large")).then_some(())
        })
        .await;

    // The node as it is two hours after the launch.
    let at = (jiff::Timestamp::now() - jiff::SignedDuration::from_hours(2)).to_string();
    let mut all = labels(&manifest);
    all.extend(labels(&created_claim));
    let is_true = |kind: &str| {
        json!({
            "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at,
            "observedGeneration": 1,
        })
    };
    let mut status = json!(created_claim.status);
    status["conditions"] = ["Launched", "Registered", "Initialized", "Ready"]
        .map(is_true)
        .into();
    world.load(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": "a", "uid": "uid-a", "creationTimestamp": at, "labels": all,
            "annotations": created_claim.metadata.annotations, "finalizers": ["karpenter.sh/termination"],
        },
        "spec": manifest.spec, "status": status,
    }));
    let reason = world
        .until("a verdict on the node", async || {
            let claim = world.get::<NodeClaim>("a").await?;
            let drifted = claim.condition(types::DRIFTED)?;
            (drifted.status == "True").then(|| drifted.reason.clone())
        })
        .await;
    // The class no longer selects the reservation; the provider decides whether that is drift, and checks whether the
    // instance has left the reservation.
    assert_eq!(reason, "CapacityReservationDrift");
}
