//! Pods, volumes, and objects that do not terminate.

use serde_json::{Value, json};

use crate::doctor::fixture::{DO_NOT_DISRUPT, World, blocks, pod, read, says, with};

fn annotated(pod: Value, value: &str) -> Value {
    with(
        pod,
        &[("/metadata/annotations", json!({ DO_NOT_DISRUPT: value }))],
    )
}

fn owned_by_job(pod: Value, created: &str) -> Value {
    let job = json!([{ "apiVersion": "batch/v1", "kind": "Job", "name": "report", "uid": "report", "controller": true }]);
    with(
        pod,
        &[
            ("/metadata/ownerReferences", job),
            ("/metadata/creationTimestamp", json!(created)),
        ],
    )
}

/// Conformance: SURGE-12
#[test]
fn a_protection_without_an_end_blocks_and_one_with_a_duration_does_not() {
    let world =
        |value: &str| World::new().node("a", "m-4", vec![annotated(pod("p0", "web", "1"), value)]);
    let found = world("true").one_about(
        "DoNotDisruptWithoutEnd",
        "1 pod of Deployment shop/web must not be disrupted, without an end",
    );
    assert!(blocks(&found));
    assert_eq!(
        (found.owner.as_str(), found.node_count),
        ("Deployment shop/web", 1)
    );
    world("480h").none("DoNotDisruptWithoutEnd");
}

/// Conformance: SURGE-12
#[test]
fn a_job_may_protect_its_pod_for_a_day() {
    let world = |created: &str| {
        let pod = owned_by_job(annotated(pod("p0", "web", "1"), "true"), created);
        World::new().node("a", "m-4", vec![pod])
    };
    world("2026-01-09T12:00:00Z").none("DoNotDisruptWithoutEnd");
    assert_eq!(
        world("2026-01-08T12:00:00Z")
            .one("DoNotDisruptWithoutEnd")
            .owner,
        "Job shop/report"
    );
}

/// Conformance: SURGE-12
#[test]
fn the_annotation_of_a_node_protects_it_without_an_end() {
    let world = |value: &str| {
        let annotation = [("/metadata/annotations", json!({ DO_NOT_DISRUPT: value }))];
        World::new().node_with("a", "m-4", vec![], &annotation, &annotation)
    };
    let found = world("true").one("DoNotDisruptWithoutEnd");
    assert_eq!(
        found.fix,
        "kubectl annotate node a karpenter.sh/do-not-disrupt-"
    );
    world("false").none("DoNotDisruptWithoutEnd");
}

/// Conformance: SURGE-12
#[test]
fn a_pod_without_a_controller_is_lost_with_its_node() {
    let bare = with(
        pod("debug", "debug", "1"),
        &[("/metadata/ownerReferences", json!([]))],
    );
    let found = World::new()
        .node("a", "m-4", vec![bare.clone()])
        .one_about("BarePods", "1 pod in namespace shop without a controller");
    assert!(!blocks(&found));
    // A pod that has ended is not lost, and neither is one with a controller.
    let ended = with(bare, &[("/status/phase", json!("Succeeded"))]);
    World::new()
        .node("a", "m-4", vec![ended, pod("p0", "web", "1")])
        .none("BarePods");
}

/// Conformance: SURGE-12
#[test]
fn a_pod_is_stuck_15_minutes_after_the_end_of_its_grace_period() {
    let world = |end: &str| {
        let pod = with(
            pod("p0", "web", "1"),
            &[("/metadata/deletionTimestamp", json!(end))],
        );
        World::new().node("a", "m-4", vec![pod])
    };
    world("2026-01-09T23:44:00Z").one_about(
        "StuckTerminating",
        "1 pod in namespace shop stuck terminating, the oldest for 16m",
    );
    world("2026-01-09T23:46:00Z").none("StuckTerminating");
}

/// Conformance: SURGE-12
#[test]
fn a_node_is_stuck_15_minutes_after_its_deletion_and_is_paid_for() {
    let world = |deleted: &str| {
        let fields = [
            ("/metadata/deletionTimestamp", json!(deleted)),
            ("/metadata/finalizers", json!(["karpenter.sh/termination"])),
        ];
        World::new().node_with("a", "m-4", vec![pod("p0", "web", "1")], &fields, &fields)
    };
    let found = world("2026-01-09T23:44:00Z")
        .one_about("StuckTerminating", "node a stuck terminating for 16m");
    assert!(blocks(&found));
    assert_eq!(
        found.evidence.text,
        "It was deleted but still exists, and is still paid for; 1 pod on it would have to be moved; finalizers: karpenter.sh/termination."
    );
    assert!(
        (found.cost_per_day.unwrap() - 0.2 * 24.0).abs() < 1e-9,
        "{found:?}"
    );
    world("2026-01-09T23:46:00Z").none("StuckTerminating");
}

/// A pod with a volume, which is local or in a zone.
fn stateful(zone: Option<&str>) -> (Value, Value, Value) {
    let volumes = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    let pod = with(pod("db-0", "db", "1"), &[("/spec/volumes", volumes)]);
    let claim = json!({ "metadata": { "name": "data", "namespace": "shop" }, "spec": { "volumeName": "pv" } });
    let terms = |key: &str, value: &str| json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": key, "operator": "In", "values": [value] }] }] } });
    let volume = match zone {
        Some(zone) => json!({
            "metadata": { "name": "pv" },
            "spec": { "csi": { "driver": "ebs", "volumeHandle": "v" }, "nodeAffinity": terms("topology.kubernetes.io/zone", zone) },
        }),
        None => json!({
            "metadata": { "name": "pv" },
            "spec": { "local": { "path": "/data" }, "nodeAffinity": terms("kubernetes.io/hostname", "a") },
        }),
    };
    (pod, claim, volume)
}

fn with_volume(world: World, zone: Option<&str>) -> World {
    let (pod, claim, volume) = stateful(zone);
    let mut world = world.node("a", "m-4", vec![pod]);
    world.cluster.apply_volume_claim(&read(claim));
    world.cluster.apply_volume(&read(volume));
    world
}

fn zones(zones: &[&str]) -> (&'static str, Value) {
    let zones =
        json!([{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": zones }]);
    ("/spec/template/spec/requirements", zones)
}

/// Conformance: SURGE-12
#[test]
fn a_volume_in_a_zone_without_node_pools_ties_its_pods_to_their_nodes() {
    let world = |of_pool: &[&str], of_volume: &str| {
        let world = World::empty().pool("default", &[zones(of_pool)]);
        with_volume(world, Some(of_volume))
    };
    let found = world(&["test-zone-2", "test-zone-3"], "test-zone-1").one_about(
        "ZoneLockedVolume",
        "volumes of Deployment shop/db are in test-zone-1, where no NodePool launches nodes",
    );
    assert!(blocks(&found));
    assert_eq!(found.cost_per_day, None);
    world(&["test-zone-1", "test-zone-2"], "test-zone-1").none("ZoneLockedVolume");
}

/// Conformance: SURGE-12
#[test]
fn volumes_in_the_only_zone_of_all_node_pools_have_no_second_choice() {
    let world = |of_pool: &[&str]| {
        let world = World::empty().pool("default", &[zones(of_pool)]);
        with_volume(world, Some("test-zone-1"))
    };
    let found = world(&["test-zone-1"]).one_about(
        "ZoneLockedVolume",
        "all NodePools together launch nodes in test-zone-1 only, and 1 workload has volumes there",
    );
    assert!(!blocks(&found));
    world(&["test-zone-1", "test-zone-2"]).none("ZoneLockedVolume");
}

/// Conformance: SURGE-12
#[test]
fn a_volume_on_the_disk_of_a_node_is_lost_with_it() {
    with_volume(World::new(), None).one_about(
        "LocalVolume",
        "Deployment shop/db keeps data on the disk of a node",
    );
    with_volume(World::new(), Some("test-zone-1")).none("LocalVolume");
}

/// Conformance: SURGE-12
#[test]
fn pods_without_a_memory_limit_are_reported_by_namespace() {
    let request = (
        "/spec/containers/0/resources",
        json!({ "requests": { "memory": "1Gi" } }),
    );
    let unlimited = with(pod("p0", "web", "1"), &[request]);
    World::new().node("a", "m-4", vec![unlimited]).one_about(
        "NoMemoryLimit",
        "1 workload in namespace shop without a memory limit",
    );
    World::new()
        .node("a", "m-4", vec![pod("p0", "web", "1")])
        .none("NoMemoryLimit");
}

/// Conformance: SURGE-12
#[test]
fn an_annotation_that_cannot_be_read_counts_as_absent_and_is_reported() {
    let of_pod =
        |value: &str| World::new().node("a", "m-4", vec![annotated(pod("p0", "web", "1"), value)]);
    let found = of_pod("yes").one_about(
        "UnreadableKnob",
        "annotation karpenter.sh/do-not-disrupt of Deployment shop/web cannot be read",
    );
    says(&found, "\"yes\" counts as absent");
    of_pod("4h").none("UnreadableKnob");
    of_pod("false").none("UnreadableKnob");

    let of_pool = |value: &str| {
        let annotations = json!({ "operations.karpenter.sh/paused": value });
        World::empty().pool("default", &[("/metadata/annotations", annotations)])
    };
    let found = of_pool("until=tomorrow").one("UnreadableKnob");
    says(&found, "invalid time `tomorrow`");
    of_pool("until=2026-01-11T00:00:00Z").none("UnreadableKnob");
}
