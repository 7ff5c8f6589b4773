//! Where the pods of a claim can run.

use karpenter_core::dra::{Failure, Host};
use serde_json::{Value, json};

use super::{DRIVER, FIRST, SECOND, Stage, ZONE, node, one_gpu, slice_spec};

/// Returns a node selector whose terms are alternatives, one for each zone.
fn in_zones(zones: &[&str]) -> Value {
    let term =
        |zone| json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]});
    json!({"nodeSelectorTerms": zones.iter().map(term).collect::<Vec<_>>()})
}

/// Conformance: SCH-278
#[test]
fn a_slice_is_reached_from_all_nodes_from_one_or_from_those_it_selects() {
    let reached = |access: Value| {
        let stage = Stage::new()
            .publish("pool", access, json!([{"name": "a"}]))
            .claim("c", one_gpu());
        let from = |host: Host, zone: &str| {
            let mut pass = stage.pass().with_type(&[]);
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

/// Conformance: SCH-253
#[test]
fn a_claim_allocated_on_a_planned_node_stays_on_it() {
    let stage = Stage::new().claims(&["c", "d"], &one_gpu());
    let own = slice_spec("node", json!({}), json!([{"name": "a"}, {"name": "b"}]));
    let mut pass = stage.pass().with_type(&[own]);
    for claim in ["c", "d", "c"] {
        assert!(pass.takes(&FIRST, claim));
    }
    assert!(pass.allocate(&FIRST, &["c", "d"]).is_ok());
    let claim = "c".to_owned();
    assert_eq!(pass.place(&SECOND, "c"), Err(Failure::Elsewhere { claim }));
}

fn held_by(uid: &str) -> Value {
    json!({
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": "pool", "device": "gpu-0"}]}},
        "reservedFor": [{"resource": "pods", "name": uid, "uid": uid}],
    })
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
