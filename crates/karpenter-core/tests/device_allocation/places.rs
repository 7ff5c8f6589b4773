//! Where the pods of a claim can run.

use karpenter_core::dra::{Allocator, Failure, Host};
use karpenter_core::requirements::Requirements;
use serde_json::{Value, json};

use crate::{
    DRIVER, ZONE, allocate, claim, claim_with, fresh, gpus, inventory, node, one_gpu, place,
    publish, slice_spec, template, zones,
};

#[test]
fn a_zonal_device_decides_the_zone_of_a_planned_node() {
    let mut inventory = inventory();
    let term = |zone: &str| json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]});
    let zoned = json!({"nodeSelector": {"nodeSelectorTerms": [term("z2")]}});
    publish(&mut inventory, "pool", zoned, json!([{"name": "a"}]));
    let elsewhere = json!({"nodeSelector": {"nodeSelectorTerms": [term("z3")]}});
    publish(&mut inventory, "far", elsewhere, json!([{"name": "b"}]));
    claim(&mut inventory, "one", one_gpu());
    claim(
        &mut inventory,
        "two",
        gpus(json!({"deviceClassName": "gpu", "count": 2})),
    );
    let mut allocator = fresh(&inventory);
    allocator.expect(0, &[]);
    let host = Host::Planned(0);
    let allocation =
        allocate(&mut allocator, &host, &zones(&["z1", "z2"]), &[0], &["one"]).unwrap();
    assert_eq!(allocation.requirements, zones(&["z2"]));
    assert!(allocate(&mut allocator, &host, &zones(&["z1"]), &[0], &["one"]).is_err());
    assert!(allocate(&mut allocator, &host, &zones(&["z2", "z3"]), &[0], &["two"]).is_err());
}

/// Conformance: SCH-278
#[test]
fn a_slice_is_reached_from_all_nodes_from_one_or_from_those_it_selects() {
    let selecting = json!({"nodeSelectorTerms": [
        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z1"]}]},
    ]});
    let reached = |access: Value| {
        let mut inventory = inventory();
        publish(&mut inventory, "pool", access, json!([{"name": "a"}]));
        claim(&mut inventory, "c", one_gpu());
        let from = |host: Host, zone: &str| {
            let mut allocator = fresh(&inventory);
            allocator.expect(0, &[]);
            allocate(&mut allocator, &host, &zones(&[zone]), &[0], &["c"]).is_ok()
        };
        let planned = from(Host::Planned(0), "z1");
        [
            from(node("n"), "z1"),
            from(node("n"), "z2"),
            from(node("m"), "z1"),
            planned,
        ]
    };
    assert_eq!(reached(json!({"allNodes": true})), [true; 4]);
    let named = reached(json!({"nodeName": "n"}));
    assert_eq!(named, [true, true, false, false]);
    let selected = reached(json!({"nodeSelector": selecting}));
    assert_eq!(selected, [true, false, true, true]);
}

#[test]
fn terms_of_a_node_selector_are_alternatives() {
    let mut inventory = inventory();
    let term = |zone: &str| json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]});
    let either = json!({"nodeSelector": {"nodeSelectorTerms": [term("z1"), term("z2")]}});
    publish(&mut inventory, "pool", either, json!([{"name": "a"}]));
    claim(&mut inventory, "one", one_gpu());
    let mut allocator = fresh(&inventory);
    allocator.expect(0, &[]);
    assert!(
        allocate(
            &mut allocator,
            &Host::Planned(0),
            &zones(&["z2"]),
            &[0],
            &["one"]
        )
        .is_ok()
    );
}

#[test]
fn a_claim_shared_by_pods_is_allocated_once() {
    let mut inventory = inventory();
    publish(
        &mut inventory,
        "net",
        json!({"allNodes": true}),
        json!([{"name": "shared"}]),
    );
    claim(&mut inventory, "c", one_gpu());
    let none = Requirements::new();
    let mut allocator = fresh(&inventory);
    assert!(place(&mut allocator, &node("n"), &none, &[], &["c"]).is_ok());
    assert!(
        place(&mut allocator, &node("m"), &none, &[], &["c"]).is_ok(),
        "the device reaches both"
    );
}

/// Conformance: SCH-253
#[test]
fn a_claim_allocated_on_a_planned_node_stays_on_it() {
    let mut inventory = inventory();
    claim(&mut inventory, "c", one_gpu());
    let mut allocator = fresh(&inventory);
    allocator.expect(
        0,
        &[template(&slice_spec(
            "node",
            json!({}),
            json!([{"name": "own"}]),
        ))],
    );
    let none = Requirements::new();
    assert!(place(&mut allocator, &Host::Planned(0), &none, &[0], &["c"]).is_ok());
    assert!(place(&mut allocator, &Host::Planned(0), &none, &[0], &["c"]).is_ok());
    assert_eq!(
        place(&mut allocator, &Host::Planned(1), &none, &[0], &["c"]),
        Err(Failure::Elsewhere {
            claim: "c".to_owned()
        })
    );
}

fn held_by(uid: &str) -> Value {
    json!({
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "pool", "device": "gpu-0"}]}},
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid}],
    })
}

#[test]
fn a_running_pod_keeps_its_device_and_one_that_moves_frees_it() {
    let mut inventory = inventory();
    publish(
        &mut inventory,
        "pool",
        json!({"allNodes": true}),
        json!([{"name": "gpu-0"}]),
    );
    claim_with(&mut inventory, "held", one_gpu(), held_by("pod-1"));
    claim(&mut inventory, "c", one_gpu());
    let none = Requirements::new();
    assert!(allocate(&mut fresh(&inventory), &node("n"), &none, &[], &["c"]).is_err());
    let mut allocator = Allocator::new(&inventory, |_| true, |uid| uid == "pod-1");
    assert!(
        place(&mut allocator, &node("n"), &none, &[], &["held"]).is_ok(),
        "allocated again"
    );
    assert!(allocate(&mut allocator, &node("n"), &none, &[], &["c"]).is_err());
}

/// Conformance: SCH-253
#[test]
fn an_allocated_claim_is_bound_to_the_nodes_of_its_node_selector() {
    let mut inventory = inventory();
    let term = json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["z2"]}]});
    let mut status = held_by("pod-1");
    status["allocation"]["nodeSelector"] = json!({"nodeSelectorTerms": [term]});
    claim_with(&mut inventory, "held", one_gpu(), status);
    let mut allocator = fresh(&inventory);
    assert!(allocate(&mut allocator, &node("n"), &zones(&["z2"]), &[], &["held"]).is_ok());
    assert_eq!(
        allocate(&mut allocator, &node("m"), &zones(&["z1"]), &[], &["held"]).unwrap_err(),
        Failure::Elsewhere {
            claim: "held".to_owned()
        }
    );
}
