//! Where the pods of consolidated nodes may go, and which of their constraints prevent a consolidation.

use serde_json::json;

use crate::fixture::{Z1, Z2, now, pod};
use crate::fleet::{Fleet, node, on_demand_pool, running, verdict, world as fresh};

/// Conformance: DIS-106
#[test]
fn a_node_whose_pods_fit_an_unmanaged_node_is_deleted() {
    let mut world = fresh()
        .run([node("a", "small")])
        .with(running("p", "a", "1"));
    world.add(
        crate::fixture::node("foreign")
            .set("/metadata/labels", json!({ "kubernetes.io/arch": "amd64" })),
    );
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
}

/// Conformance: DIS-107
#[test]
fn pods_are_not_moved_to_an_uninitialized_node() {
    let starting = node("b", "huge").uninitialized();
    let world = fresh()
        .run([node("a", "small"), starting])
        .with(running("p", "a", "1"));
    let plan = world.decide_with(|_| ());
    assert_eq!(
        verdict(&plan, "a"),
        "Not all pods would schedule, default/p => would schedule against uninitialized node \"b\""
    );
    let ready = fresh()
        .run([node("a", "small"), node("c", "huge")])
        .run([node("b", "huge").uninitialized()])
        .with([running("p", "a", "1"), running("q", "c", "14")]);
    assert_eq!(
        ready.decide(),
        ["delete a (saves 0.20)"],
        "initialized nodes come first"
    );
}

/// Conformance: DIS-108
#[test]
fn nodes_within_consolidate_after_receive_no_pods_from_consolidation() {
    let with = |after: &str, instance_type: &str| {
        let pool = on_demand_pool("target").consolidate_after(after);
        let recently = (now() - jiff::SignedDuration::from_mins(1)).to_string();
        let target = node("b", "huge")
            .pool("target")
            .without("Consolidatable")
            .claim("/status/lastPodEventTime", json!(recently));
        let world = fresh()
            .with_pool(pool)
            .run([node("a", instance_type), target]);
        world
            .with([running("p", "a", "1"), running("q", "b", "14")])
            .decide()
    };
    assert_eq!(with("5m", "small"), Vec::<String>::new());
    assert_eq!(with("30s", "small"), ["delete a (saves 0.20)"]);
    assert_eq!(with("Never", "small"), ["delete a (saves 0.20)"]);
    assert_eq!(
        with("5m", "medium"),
        ["replace a with small on-demand (saves 0.20)"],
        "a planned node may hold them"
    );
}

/// Conformance: DIS-109
#[test]
fn a_pod_that_fits_nowhere_blocks_only_if_the_move_is_the_cause() {
    let unschedulable = pod("unschedulable").cpu("1000");
    let world = fresh().run([node("a", "small"), node("b", "huge")]);
    let world = world.with([
        running("p", "a", "1"),
        running("q", "b", "14"),
        unschedulable,
    ]);
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
    // Only `b` has the label that its pod selects.
    let labeled = node("b", "large").label("team", "x");
    let world = fresh().run([labeled, node("c", "huge")]);
    let world = world.with([
        running("p", "b", "1").select("team", "x"),
        running("q", "c", "8"),
    ]);
    let plan = world.decide_with(|_| ());
    assert!(
        verdict(&plan, "b").starts_with("Not all pods would schedule, default/p => "),
        "{}",
        verdict(&plan, "b")
    );
}

/// Conformance: DIS-110
#[test]
fn a_pending_pod_that_fits_only_a_large_node_blocks_its_replacement() {
    let world = fresh()
        .run([node("a", "huge")])
        .with([running("p", "a", "1"), pod("huge").cpu("14")]);
    assert_eq!(world.decide(), Vec::<String>::new());
}

/// Conformance: DIS-114
#[test]
fn consolidation_keeps_constraints_but_not_the_host_of_a_local_volume() {
    let spread = |name: &str, node: &str| {
        running(name, node, "1").label("app", "x").spread(
            "topology.kubernetes.io/zone",
            1,
            ("app", "x"),
        )
    };
    let in_zone =
        |name: &str, zone: &str| node(name, "small").label("topology.kubernetes.io/zone", zone);
    let world = fresh()
        .run([
            in_zone("a", Z1),
            in_zone("b", Z2),
            in_zone("c", crate::fixture::Z3),
        ])
        .with([spread("p", "a"), spread("q", "b"), spread("r", "c")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    let apart = |name: &str, node: &str| {
        running(name, node, "100m")
            .label("app", "y")
            .anti_affinity(crate::fixture::HOSTNAME, ("app", "y"))
    };
    let world = fresh()
        .run([node("a", "small"), node("b", "small")])
        .with([apart("p", "a"), apart("q", "b")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    let mut world = fresh().run([node("a", "small"), node("b", "large")]).with([
        running("p", "a", "100m").volume("c"),
        running("q", "b", "6"),
    ]);
    let on_host = json!([{ "matchExpressions": [
        { "key": crate::fixture::HOSTNAME, "operator": "In", "values": ["a"] },
    ] }]);
    world.cluster.apply_volume(&crate::fixture::read(json!({
        "metadata": { "name": "v" },
        "spec": { "local": { "path": "/data" }, "nodeAffinity": { "required": { "nodeSelectorTerms": on_host } } },
    })));
    world.cluster.apply_volume_claim(&crate::fixture::read(json!({
        "metadata": {
            "name": "c", "namespace": "default", "uid": "c", "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
        },
        "spec": { "volumeName": "v", "storageClassName": "local" }, "status": { "phase": "Bound" },
    })));
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
}

/// Conformance: DIS-115
#[test]
fn preferences_block_consolidation_unless_they_are_ignored() {
    use karpenter_core::schedule::PreferencePolicy;
    let apart = |name: &str, node: &str| {
        running(name, node, "100m")
            .label("app", "y")
            .prefer_anti_affinity(1, crate::fixture::HOSTNAME, ("app", "y"))
    };
    let mut world = fresh()
        .run([node("a", "small"), node("b", "small")])
        .with([apart("p", "a"), apart("q", "b")]);
    assert_eq!(world.decide(), Vec::<String>::new());
    world.policy.preference_policy = PreferencePolicy::Ignore;
    assert_eq!(world.decide().len(), 1);
}

/// Conformance: DIS-129
#[test]
fn pods_of_deleting_nodes_may_wait_for_an_uninitialized_node() {
    // `b` has room for the pod of `a`; the pod of the deleting node `c` fits only on the uninitialized one.
    let starting = node("d", "huge").uninitialized();
    let mut world = fresh()
        .run([
            node("a", "small"),
            node("b", "huge"),
            node("c", "huge"),
            starting,
        ])
        .with([
            running("p", "a", "1"),
            running("q", "b", "14"),
            running("r", "c", "12"),
        ]);
    world.cluster.mark_for_deletion(&["fake://c"]);
    assert_eq!(world.decide(), ["delete a (saves 0.20)"]);
}

/// Conformance: DIS-180
#[test]
fn a_pod_with_a_device_moves_if_another_node_has_a_matching_device() {
    const DRIVER: &str = "gpu.example.com";
    let decide = |elsewhere: bool| {
        let mut world = fresh().run([node("a", "small"), node("b", "huge")]);
        world.policy.ignore_dra_requests = false;
        let cluster = &mut world.cluster;
        cluster.apply_device_class(&crate::fixture::read(json!({
            "metadata": { "name": "gpu" },
            "spec": { "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] },
        })));
        for node in ["a", "b"].iter().take(1 + usize::from(elsewhere)) {
            cluster.apply_resource_slice(&crate::fixture::read(json!({
                "metadata": { "name": node, "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node }] },
                "spec": {
                    "driver": DRIVER, "nodeName": node, "devices": [{ "name": "gpu-0" }],
                    "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
                },
            })));
        }
        cluster.apply_resource_claim(&crate::fixture::read(json!({
            "metadata": { "name": "c", "namespace": "default", "uid": "c" },
            "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "gpu" } }] } },
            "status": {
                "allocation": {
                    "devices": { "results": [{ "request": "gpu", "driver": DRIVER, "pool": "a", "device": "gpu-0" }] },
                    "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["a"] }] }] },
                },
                "reservedFor": [{ "resource": "pods", "name": "p", "uid": "p" }],
            },
        })));
        let using = running("p", "a", "1").push(
            "/spec/resourceClaims",
            json!({ "name": "gpu", "resourceClaimName": "c" }),
        );
        world.with([using, running("q", "b", "14")]).decide()
    };
    assert_eq!(decide(true), ["delete a (saves 0.20)"]);
    assert_eq!(decide(false), Vec::<String>::new());
}

#[test]
fn a_node_receives_pods_again_as_soon_as_consolidate_after_has_passed() {
    let decide = |changed: &str| {
        let changed = node("b", "huge")
            .pool("target")
            .without("Consolidatable")
            .claim("/status/lastPodEventTime", json!(changed));
        fresh()
            .with_pool(on_demand_pool("target").consolidate_after("5m"))
            .run([node("a", "small"), changed])
            .with([running("p", "a", "1"), running("q", "b", "14")])
            .decide()
    };
    assert_eq!(decide("2025-12-31T23:55:01Z"), [""; 0]);
    assert_eq!(decide("2025-12-31T23:55:00Z"), ["delete a (saves 0.20)"]);
}
