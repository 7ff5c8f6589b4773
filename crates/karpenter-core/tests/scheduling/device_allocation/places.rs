//! Where the pods of a claim can run.

use karpenter_core::dra::{Failure, Host};
use serde_json::{Value, json};

use super::{DRIVER, FIRST, SECOND, Stage, ZONE, gpus, node, one_gpu, slice_spec, zones};

/// Returns a node selector whose terms are alternatives, one for each zone.
fn in_zones(zones: &[&str]) -> Value {
    let term =
        |zone| json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]});
    json!({"nodeSelectorTerms": zones.iter().map(term).collect::<Vec<_>>()})
}

#[test]
fn a_zonal_device_decides_the_zone_of_a_planned_node() {
    let stage = Stage::new()
        .publish(
            "pool",
            json!({"nodeSelector": in_zones(&["z2"])}),
            json!([{"name": "a"}]),
        )
        .publish(
            "far",
            json!({"nodeSelector": in_zones(&["z3"])}),
            json!([{"name": "b"}]),
        )
        .claim("one", one_gpu())
        .claim("two", gpus(json!({"deviceClassName": "gpu", "count": 2})));
    let mut pass = stage.pass().with_types([&[]]);
    let allocation = pass.in_zones(&["z1", "z2"]).allocate(&FIRST, &["one"]);
    assert_eq!(allocation.unwrap().requirements, zones(&["z2"]));
    assert!(!pass.in_zones(&["z1"]).fits(&FIRST, "one"));
    assert!(!pass.in_zones(&["z2", "z3"]).fits(&FIRST, "two"));
}

/// Conformance: SCH-278
#[test]
fn a_slice_is_reached_from_all_nodes_from_one_or_from_those_it_selects() {
    let reached = |access: Value| {
        let stage = Stage::new()
            .publish("pool", access, json!([{"name": "a"}]))
            .claim("c", one_gpu());
        let from = |host: Host, zone: &str| {
            let mut pass = stage.pass().with_types([&[]]);
            pass.in_zones(&[zone]).fits(&host, "c")
        };
        [
            from(node("n"), "z1"),
            from(node("n"), "z2"),
            from(node("m"), "z1"),
            from(FIRST, "z1"),
            from(FIRST, "z2"),
        ]
    };
    assert_eq!(reached(json!({"allNodes": true})), [true; 5]);
    let named = reached(json!({"nodeName": "n"}));
    assert_eq!(named, [true, true, false, false, false]);
    let selected = reached(json!({"nodeSelector": in_zones(&["z1"])}));
    assert_eq!(selected, [true, false, true, true, false]);
    let alternatives = reached(json!({"nodeSelector": in_zones(&["z1", "z2"])}));
    assert_eq!(alternatives, [true; 5]);
}

#[test]
fn a_claim_shared_by_pods_is_allocated_once() {
    let stage = Stage::new()
        .on_all_nodes(json!([{"name": "shared"}]))
        .claim("c", one_gpu());
    let mut pass = stage.pass();
    assert!(pass.takes(&node("n"), "c"));
    assert!(pass.takes(&node("m"), "c"), "the device reaches both");
}

/// Conformance: SCH-253
#[test]
fn a_claim_allocated_on_a_planned_node_stays_on_it() {
    let stage = Stage::new().claim("c", one_gpu());
    let own = slice_spec("node", json!({}), json!([{"name": "own"}]));
    let mut pass = stage.pass().with_types([&[own]]);
    assert!(pass.takes(&FIRST, "c"));
    assert!(pass.takes(&FIRST, "c"));
    let claim = "c".to_owned();
    assert_eq!(pass.place(&SECOND, "c"), Err(Failure::Elsewhere { claim }));
}

fn held_by(uid: &str) -> Value {
    json!({
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "pool", "device": "gpu-0"}]}},
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid}],
    })
}

#[test]
fn a_running_pod_keeps_its_device_and_one_that_moves_frees_it() {
    let stage = Stage::new()
        .on_all_nodes(json!([{"name": "gpu-0"}]))
        .claim_with("held", one_gpu(), held_by("pod-1"))
        .claim("c", one_gpu());
    assert!(!stage.pass().fits(&node("n"), "c"));
    let mut pass = stage.pass_without("pod-1");
    assert!(pass.takes(&node("n"), "held"), "allocated again");
    assert!(!pass.fits(&node("n"), "c"));
}

/// Conformance: SCH-253
#[test]
fn an_allocated_claim_is_bound_to_the_nodes_of_its_node_selector() {
    let mut status = held_by("pod-1");
    status["allocation"]["nodeSelector"] = in_zones(&["z2"]);
    let stage = Stage::new().claim_with("held", one_gpu(), status);
    let mut pass = stage.pass();
    assert!(pass.in_zones(&["z2"]).fits(&node("n"), "held"));
    let elsewhere = pass.in_zones(&["z1"]).place(&node("m"), "held");
    let claim = "held".to_owned();
    assert_eq!(elsewhere, Err(Failure::Elsewhere { claim }));
}
