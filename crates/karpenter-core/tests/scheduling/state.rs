//! The cluster model: usage, ports, volumes and taints of nodes, whatever order objects arrive in.

use std::sync::Arc;

use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_core::cluster::{Cluster, ClusterConfig, NodeState, StringMap};
use karpenter_core::provider::ProviderProfile;
use serde_json::json;

use crate::fixture::*;

/// Returns a NodeClaim like the node of the fixtures.
fn claim(name: &str, provider_id: &str) -> Object<NodeClaim> {
    claim_of(&node("n").set("/spec/providerID", provider_id))
        .renamed(name)
        .remove("/status/nodeName")
        .remove("/status/conditions")
        .without_label("karpenter.test.sh/testnodeclass")
        .without_label(OS)
}

/// Returns the millicores that the pods of a node request.
fn used(world: &World, node: &str) -> i64 {
    let snapshot = world.cluster.snapshot();
    snapshot
        .node_pods(node)
        .map_or(0, |pods| pods.requests().get("cpu"))
}

fn nodes(world: &World) -> Vec<Arc<NodeState>> {
    world.cluster.snapshot().nodes().cloned().collect()
}

/// Returns the only node.
#[track_caller]
fn only(world: &World) -> Arc<NodeState> {
    let nodes = nodes(world);
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    nodes[0].clone()
}

/// Conformance: DIS-001
#[test]
fn pods_that_are_not_bound_or_have_ended_use_nothing() {
    let mut world = World::new().with((node("n"), pod("p").cpu("1")));
    assert_eq!(used(&world, "n"), 0);
    world.add(pod("p").cpu("1").on("n"));
    assert_eq!(used(&world, "n"), 1000);
    for phase in ["Succeeded", "Failed"] {
        world.add(pod("p").cpu("1").on("n").set("/status/phase", json!(phase)));
        assert_eq!(used(&world, "n"), 0, "{phase}");
    }
}

/// Conformance: DIS-002
#[test]
fn a_node_is_freed_once_when_its_pod_is_deleted_or_recreated() {
    let mut world = World::new().with((node("n"), node("m"), pod("other").cpu("1").on("n")));
    world.add(pod("p").cpu("1").on("n"));
    world.cluster.remove_pod("default", "p");
    world.cluster.remove_pod("default", "p");
    assert_eq!(used(&world, "n"), 1000, "that of the other pod");
    world.add(pod("p").cpu("1").on("n"));
    assert_eq!(used(&world, "n"), 2000);
    // The deletion in between was not seen.
    world.add(
        pod("p")
            .set("/metadata/uid", json!("second"))
            .cpu("1")
            .on("m"),
    );
    assert_eq!((used(&world, "n"), used(&world, "m")), (1000, 1000));
}

/// Conformance: DIS-003
#[test]
fn a_node_and_its_claim_are_one_node_state_which_is_removed_with_both() {
    for claim_first in [true, false] {
        let mut world = World::new();
        if claim_first {
            world.add(claim("n", "fake://n"));
        }
        world.add(node("n"));
        if !claim_first {
            world.add(claim("n", "fake://n"));
        }
        let only = only(&world);
        assert!(only.node.is_some() && only.claim.is_some());
        world.cluster.remove_node("n");
        assert_eq!(nodes(&world).len(), 1, "the claim stays");
        world.cluster.remove_node_claim("n");
        assert_eq!(nodes(&world).len(), 0);
    }
}

/// Conformance: DIS-004
#[test]
fn a_node_that_gets_its_provider_id_later_stays_one_node_state() {
    let mut world = World::new();
    let early = node("n").set("/spec/providerID", "");
    world.add(early.without_label(NODE_POOL));
    assert_eq!(nodes(&world).len(), 1);
    world.add(node("n"));
    assert_eq!(nodes(&world).len(), 1);
    world.add(claim("c", "fake://n"));
    let only = only(&world);
    assert_eq!((only.name(), only.claim_name()), ("n", Some("c")));
}

/// Conformance: DIS-137
#[test]
fn a_node_of_a_pool_counts_once_its_provider_id_says_whose_it_is() {
    let mut world = World::new();
    world.add(claim("c", "fake://n"));
    world.add(node("n").set("/spec/providerID", json!("")));
    let state = only(&world);
    assert_eq!((state.name(), state.node.is_some()), ("c", false));
    world.add(node("n"));
    let state = only(&world);
    assert_eq!((state.name(), state.claim_name()), ("n", Some("c")));
}

/// Conformance: DIS-201
#[test]
fn a_registered_node_counts_before_it_names_its_instance_type() {
    let unlabeled = node("n").without_label(INSTANCE_TYPE);
    let mut world = World::new().with(unlabeled.without_label("karpenter.sh/initialized"));
    world.add(claim("c", "fake://n"));
    let state = only(&world);
    assert_eq!((state.name(), state.node.is_some()), ("n", true));
}

/// Conformance: DIS-138
#[test]
fn labels_and_annotations_are_the_claim_s_until_the_node_is_registered() {
    let registered = |registered: bool| {
        let mut node = node("n")
            .set("/metadata/labels/example.com~1team", json!("of node"))
            .set("/metadata/annotations/example.com~1note", json!("of node"));
        if !registered {
            node = node.without_label(REGISTERED);
        }
        let owner = claim("c", "fake://n")
            .label("example.com/team", "of claim")
            .annotation("example.com/note", "of claim");
        let mut world = World::new().with(node);
        world.add(owner);
        let node = nodes(&world).remove(0);
        let of = |all: &StringMap, key: &str| all.get(key).map(str::to_owned);
        [
            of(node.labels(), "example.com/team"),
            of(node.annotations(), "example.com/note"),
        ]
    };
    let both = |text: &str| [text; 2].map(|text| Some(text.to_owned()));
    assert_eq!(registered(false), both("of claim"));
    assert_eq!(registered(true), both("of node"));
}

/// Returns a node that can attach two volumes, with a pod that uses one of them and a host port.
fn attached() -> World {
    let mut world = World::new().with(node("n"));
    world.add(claim("c", "fake://n"));
    world.add(csi_node("n").driver("ebs.csi.aws.com", 2));
    for name in ["a", "b", "c"] {
        let bound = crate::volumes::bound(name, name).set("/status/phase", "Bound");
        world.add((bound, persistent_volume(name)));
    }
    world.add((storage_class("class"), tenant()));
    world
}

fn tenant() -> Object<Pod> {
    pod("tenant").host_port(8080).volume("a").on("n")
}

fn copy(world: &World) -> World {
    let mut copy = World::new();
    copy.cluster = world.cluster.snapshot().into();
    copy
}

fn assert_usage_is_right(world: &World) {
    let fitting = |pods: &[Object<Pod>]| copy(world).with(pods.to_vec()).plan().existing.len();
    let [one, other] = [pod("p").volume("b"), pod("q").volume("c")];
    assert_eq!(fitting(&[pod("p").host_port(8080)]), 0, "the port is used");
    assert_eq!(fitting(&[pod("p").host_port(8081)]), 1);
    assert_eq!(
        fitting(std::slice::from_ref(&one)),
        1,
        "room for one more volume"
    );
    assert_eq!(fitting(&[one, other]), 1, "and only one");
}

/// Conformance: DIS-005
#[test]
fn an_update_of_claim_or_node_keeps_the_usage_of_the_pods() {
    let mut world = attached();
    assert_usage_is_right(&world);
    world.add(claim("c", "fake://n").label("example.com/team", "a"));
    assert_usage_is_right(&world);
    world.add(node("n").set("/metadata/labels/example.com~1team", json!("a")));
    assert_usage_is_right(&world);
}

/// Conformance: DIS-006
#[test]
fn a_pod_that_is_applied_again_counts_once() {
    let mut world = attached();
    world.add(tenant().label("again", "yes"));
    world.add(tenant());
    assert_usage_is_right(&world);
}

/// Conformance: DIS-007
#[test]
fn anti_affinity_of_a_pod_whose_node_is_deleted_does_not_count() {
    let web = ("app", "web");
    let away = pod("away").label("app", "web").anti_affinity(ZONE, web);
    let mut world = World::new().with((node("n"), away.on("n")));
    let newcomer = pod("p").label("app", "web").select(ZONE, Z1);
    assert!(!copy(&world).places(newcomer.clone()));
    world.cluster.remove_node("n");
    world.add(newcomer);
    assert!(world.is_placed());
}

fn set_d(uid: &str) -> Object<DaemonSet> {
    daemon_set("d").namespace("default").uid(uid)
}

fn daemon(name: &str, cpu: &str, created: &str) -> Object<Pod> {
    pod(name)
        .cpu(cpu)
        .owned_by("apps/v1", "DaemonSet", "d")
        .created(created)
        .on("n")
}

/// Conformance: DIS-011
#[test]
fn the_newest_pod_of_a_daemon_set_represents_it() {
    let mut world = World::new().with(node("n"));
    world.add(set_d("d"));
    let newest = |world: &World| -> Vec<Option<String>> {
        let snapshot = world.cluster.snapshot();
        let pods = snapshot
            .daemon_sets()
            .map(|(_, pod)| pod.map(|pod| pod.key.name.clone()));
        pods.collect()
    };
    assert_eq!(newest(&world), [None]);
    world.add(daemon("first", "100m", "2026-01-01T00:00:00Z"));
    world.add(daemon("second", "200m", "2026-01-02T00:00:00Z"));
    world.add(daemon("late", "300m", "2026-01-01T12:00:00Z"));
    world.add(pod("other").owned_by("apps/v1", "ReplicaSet", "r").on("n"));
    assert_eq!(newest(&world), [Some("second".to_owned())]);
    world.cluster.remove_daemon_set("default", "d");
    assert_eq!(newest(&world), []);
    world.add(set_d("of the same name"));
    assert_eq!(newest(&world), [None], "another DaemonSet");
}

fn keys(world: &World) -> Vec<String> {
    let taints = nodes(world)[0].taints();
    taints.into_iter().map(|taint| taint.key).collect()
}

const TAINTS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoSchedule"),
    ("node.kubernetes.io/unreachable", "NoSchedule"),
    ("karpenter.sh/unregistered", "NoExecute"),
    ("readiness.k8s.io/network", "NoSchedule"),
    ("example.com/starting", "NoSchedule"),
    ("example.com/own", "NoSchedule"),
];

fn tainted(initialized: bool) -> Object<Node> {
    let mut tainted = node("n");
    for (key, effect) in TAINTS {
        tainted = tainted.push("/spec/taints", json!({ "key": key, "effect": effect }));
    }
    if !initialized {
        tainted = tainted.without_label(INITIALIZED);
    }
    tainted
}

fn starting(mut world: World) -> World {
    world.add(claim("c", "fake://n").startup_taint("example.com/starting", "NoSchedule"));
    world
}

/// Conformance: DIS-013
#[test]
fn ephemeral_and_startup_taints_of_an_uninitialized_node_do_not_count() {
    let world = starting(World::new().with(tainted(false)));
    assert_eq!(keys(&world), ["example.com/own"]);
}

#[test]
fn taints_that_the_provider_removes_do_not_count_before_initialization() {
    let own = corev1::Taint {
        key: "example.com/own".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..corev1::Taint::default()
    };
    let profile = ProviderProfile::new("racks", []).with_ephemeral_taints([own]);
    let of = |initialized| {
        let mut world = World::new();
        world.cluster = Cluster::new(ClusterConfig {
            ephemeral_taints: ClusterConfig::of(&profile).ephemeral_taints,
            ..world.cluster.config().clone()
        });
        keys(&starting(world.with(tainted(initialized))))
    };
    assert_eq!(of(false), [""; 0]);
    assert_eq!(of(true).len(), TAINTS.len());
}

/// Conformance: DIS-014
#[test]
fn the_same_taints_count_on_initialized_and_unmanaged_nodes() {
    let all = TAINTS.map(|(key, _)| key);
    assert_eq!(keys(&starting(World::new().with(tainted(true)))), all);
    let foreign = tainted(false)
        .without_label("karpenter.test.sh/testnodeclass")
        .without_label(NODE_POOL);
    assert_eq!(keys(&World::new().with(foreign)), all);
}

/// Conformance: DIS-139
#[test]
fn the_epoch_counts_changes_that_allow_consolidation_and_not_readiness() {
    let since = "2026-01-01T00:00:00Z";
    let ready =
        |status: &str| json!([{ "type": "Ready", "status": status, "lastTransitionTime": since }]);
    let running = |status: &str| {
        pod("p")
            .cpu("1")
            .on("n")
            .set("/status/conditions", ready(status))
    };
    let mut world = World::new().with((node("n"), running("True")));
    let epoch = |world: &World| world.cluster.snapshot().epoch();
    let before = epoch(&world);
    world.add(running("False"));
    world.add(running("False"));
    assert_eq!(epoch(&world), before, "the pod is no longer ready");
    assert!(!world.cluster.snapshot().pods_on("n")[0].ready);
    let scheduled =
        json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": since });
    world.add(running("False").push("/status/conditions", scheduled));
    assert_eq!(epoch(&world), before, "it has a condition PodScheduled");
    world.add(running("False").cpu("500m"));
    assert_eq!(epoch(&world), before + 1, "the pod requests less");
    world.cluster.remove_pod("default", "p");
    world.cluster.remove_pod("default", "p");
    assert_eq!(epoch(&world), before + 2, "the pod is deleted");
    world.cluster.remove_node("n");
    assert_eq!(epoch(&world), before + 3, "the node is deleted");
}

/// Returns the names of the Nodes and NodeClaims with a provider id.
fn with_id(world: &World, id: &str) -> (Vec<String>, Vec<String>) {
    let snapshot = world.cluster.snapshot();
    let nodes = snapshot.node_objects_by_provider_id(id);
    let nodes = nodes.filter_map(|node| node.metadata.name.clone());
    let claims = snapshot.node_claims_by_provider_id(id);
    let claims = claims.map(|claim| claim.name().to_owned());
    (nodes.collect(), claims.collect())
}

/// Returns the names of the NodeClaims of a NodePool.
fn of_pool(world: &World, pool: &str) -> Vec<String> {
    let snapshot = world.cluster.snapshot();
    let claims = snapshot.node_claims_of_pool(pool);
    claims.map(|claim| claim.name().to_owned()).collect()
}

#[test]
fn nodes_and_node_claims_are_found_by_provider_id() {
    let mut world = World::new().with(node("n"));
    for (name, id) in [("b", "fake://n"), ("a", ""), ("c", "fake://other")] {
        world.add(claim(name, id));
    }
    let before = world.cluster.snapshot();
    let found = with_id(&world, "fake://n");
    assert_eq!(found, (vec!["n".to_owned()], vec!["b".to_owned()]));
    assert_eq!(of_pool(&world, "default"), ["a", "b", "c"]);
    assert_eq!(of_pool(&world, "another").len(), 0);

    world.add(claim("b", "fake://other").pool("another"));
    world.cluster.remove_node("n");
    world.cluster.remove_node_claim("a");
    assert_eq!(with_id(&world, "fake://n"), (vec![], vec![]));
    let claims = vec!["b".to_owned(), "c".to_owned()];
    assert_eq!(with_id(&world, "fake://other"), (vec![], claims));
    assert_eq!(of_pool(&world, "default"), ["c"]);
    assert_eq!(of_pool(&world, "another"), ["b"]);
    let earlier = before.node_claims_of_pool("default").count();
    assert_eq!(earlier, 3, "an earlier snapshot stays");
}

#[test]
fn volume_attachments_are_found_by_node() {
    fn attach(world: &mut World, name: &str, node: &str) {
        world.cluster.apply_volume_attachment(&read(json!({
            "metadata": { "name": name },
            "spec": { "attacher": "ebs.csi.aws.com", "nodeName": node, "source": { "persistentVolumeName": name } },
        })));
    }
    let on = |world: &World, node: &str| {
        let snapshot = world.cluster.snapshot();
        let attached = snapshot.volume_attachments_on(node);
        let volumes = attached.filter_map(|attachment| attachment.volume.clone());
        volumes.collect::<Vec<_>>().join(" ")
    };
    let mut world = World::new();
    for (name, node) in [("b", "n"), ("a", "n"), ("c", "m")] {
        attach(&mut world, name, node);
    }
    assert_eq!(
        (on(&world, "n"), on(&world, "m")),
        ("a b".into(), "c".into())
    );
    world.cluster.remove_volume_attachment("a");
    attach(&mut world, "a", "m");
    assert_eq!(
        (on(&world, "n"), on(&world, "m")),
        ("b".into(), "a c".into())
    );
}

#[test]
fn two_nodes_with_one_provider_id_both_have_its_node_claim() {
    for order in [["m", "n"], ["n", "m"]] {
        let mut world = World::new();
        for name in order {
            world.add(node(name).set("/spec/providerID", json!("fake://x")));
        }
        world.add(claim("c", "fake://x"));
        world.add(claim("c", "fake://x").deleted("2026-01-01T00:00:00Z"));
        let all = nodes(&world);
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|node| node.is_deleting()), "{order:?}");
        let snapshot = world.cluster.snapshot();
        let found = snapshot.node_by_provider_id("fake://x");
        assert_eq!(
            found.map(|node| node.name()),
            Some("m"),
            "whatever came first"
        );
        world.cluster.remove_node("m");
        let rest = only(&world);
        assert_eq!((rest.name(), rest.claim_name()), ("n", Some("c")));
    }
}

#[test]
fn a_change_of_a_node_that_no_decision_depends_on_is_not_counted() {
    let mut world = World::new().with(node("n"));
    let epoch = world.cluster.snapshot().epoch();
    let addressed = node("n").set("/status/nodeInfo", json!({
        "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6", "osImage": "", "containerRuntimeVersion": "",
        "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
    }));
    let delta = world.cluster.apply_node(&addressed.build());
    assert!(delta.is_change());
    assert_ne!(delta.before, delta.after);
    let snapshot = world.cluster.snapshot();
    assert_eq!(snapshot.node_object("n"), delta.after.as_ref());
    assert_eq!(snapshot.epoch(), epoch);
}
