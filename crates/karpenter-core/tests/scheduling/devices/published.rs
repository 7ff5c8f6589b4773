//! Devices that exist: published by the driver of a node, or accessible from several nodes.

use serde_json::json;

use super::{
    Devices, exactly, gpus, held, one, plain, planned, running_node, using, with_gpus, world,
};
use crate::fixture::*;

/// Conformance: SCH-173
#[test]
fn a_published_device_of_a_node_is_used_before_a_new_node() {
    let on_node = |owner: &str, initialized: &str| {
        with_gpus(1)
            .with(running_node("n").label(INITIALIZED, initialized))
            .slice("n", Some(owner), json!({ "nodeName": "n" }), gpus(1))
            .claim("c", one())
            .with(using("p", "c"))
            .plan()
    };
    assert_eq!(on_node("n", "true").existing.len(), 1);
    for (owner, initialized) in [("n", "false"), ("gone", "true")] {
        let plan = on_node(owner, initialized);
        assert_eq!(planned(&plan), ["p on gpu"], "{owner} {initialized}");
    }
}

#[test]
fn a_device_of_a_node_is_used_once() {
    let plan = with_gpus(1)
        .with(running_node("n"))
        .slice("n", Some("n"), json!({ "nodeName": "n" }), gpus(1))
        .claim("c", one())
        .claim("d", one())
        .with([using("p", "c"), using("q", "d")])
        .plan();
    assert_eq!((plan.existing.len(), planned(&plan).len()), (1, 1));
}

#[test]
fn until_a_node_is_initialized_it_has_the_devices_of_its_instance_type() {
    let placed = |instance_type: &str, initialized: &str| {
        let node = running_node("n")
            .label(INSTANCE_TYPE, instance_type)
            .label("karpenter.sh/initialized", initialized);
        let world = with_gpus(1).with(node).claim("c", one());
        world.with(using("p", "c")).plan().existing.len()
    };
    assert_eq!(placed("gpu", "false"), 1);
    assert_eq!(placed("plain", "false"), 0);
    assert_eq!(placed("gpu", "true"), 0);
}

/// Conformance: SCH-174
#[test]
fn a_zonal_device_decides_the_zone_and_a_shared_claim_is_allocated_once() {
    let in_zone = |zone: &str| json!({ "nodeSelector": { "nodeSelectorTerms": [term(&[(ZONE, "In", &[zone])])] } });
    let zoned = || {
        world(plain("plain", 8, 0.1))
            .slice("one", None, in_zone(Z1), json!([{ "name": "a" }]))
            .slice("two", None, in_zone(Z2), json!([{ "name": "b" }]))
            .claim("any", one())
            .claim(
                "all",
                exactly(json!({ "deviceClassName": "gpu", "count": 2 })),
            )
    };
    let plan = zoned().with(using("p", "any")).plan();
    assert_eq!(first_values(&plan, ZONE), [Z1]);
    let plan = zoned().with(using("p", "any").select(ZONE, Z2)).plan();
    assert_eq!(
        first_values(&plan, ZONE),
        [Z2],
        "the device that is accessible in the zone of the pod"
    );
    assert!(!zoned().places(using("p", "all")));
    // Two pods of one claim: its device is local to a planned node, so both are placed there.
    let shared = with_gpus(1)
        .claim("c", one())
        .with([using("p", "c"), using("q", "c")]);
    assert_eq!(planned(&shared.plan()), ["p q on gpu"]);
    let apart = |name: &str| {
        using(name, "c")
            .label("app", "x")
            .anti_affinity(HOSTNAME, APP)
    };
    let stuck = with_gpus(1)
        .claim("c", one())
        .with([apart("p"), apart("q")]);
    assert_eq!(stuck.plan().unplaced.len(), 1);
    // A device accessible from all nodes is allocated once, for pods on different nodes.
    let cluster_wide = world(plain("plain", 8, 0.1))
        .slice("net", None, json!({ "allNodes": true }), gpus(1))
        .claim("c", one())
        .with([apart("p"), apart("q")]);
    assert_eq!(cluster_wide.plan().new_node_claims.len(), 2);
}

/// Conformance: SCH-175
#[test]
fn a_running_pod_keeps_its_device_and_a_pod_of_a_deleting_node_frees_it() {
    let capacity = json!({ "memory": { "value": "16Gi" } });
    let device =
        json!([{ "name": "gpu-0", "allowMultipleAllocations": true, "capacity": capacity }]);
    let share = |gib: &str| {
        exactly(json!({ "deviceClassName": "gpu", "capacity": { "requests": { "memory": gib } } }))
    };
    let mut consumed = held("net", "gpu-0", "h");
    consumed["allocation"]["devices"]["results"][0]["shareID"] = json!("share");
    consumed["allocation"]["devices"]["results"][0]["consumedCapacity"] =
        json!({ "memory": "12Gi" });
    let plan = |deleting: bool, whole: bool| {
        let (devices, claims, status) = if whole {
            (gpus(1), one(), held("net", "gpu-0", "h"))
        } else {
            (device.clone(), share("12Gi"), consumed.clone())
        };
        let mut world = world(plain("plain", 8, 0.1))
            .slice("net", None, json!({ "allNodes": true }), devices)
            .claim_held("h", claims.clone(), status)
            .claim("c", claims)
            .with((
                running_node("n"),
                using("h", "h").on("n"),
                using("p", "c").cpu("200m"),
            ));
        if deleting {
            world.cluster.mark_for_deletion(&["fake://n"]);
        }
        world.plan()
    };
    for whole in [true, false] {
        assert!(!all_placed(&plan(false, whole)), "{whole}");
        // The larger pod takes the device that the pod of the deleting node frees; that pod is then unplaced.
        let freed = plan(true, whole);
        assert_eq!(planned(&freed), ["p on plain"], "{whole}");
    }
}
