//! The checker reports resource claims that cannot be satisfied where a solution places their pods.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::{BTreeMap, BTreeSet};

use karpenter_spec::{PodId, Solution, SolveSettings, World, check};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns a world of two nodes, `a` with `devices` devices of 16 GiB and `b` without, and a class that selects all of them.
fn world(devices: usize) -> World {
    let amounts = json!({ "cpu": "4", "memory": "4Gi", "pods": "10" });
    let node = |name: &str| {
        object(json!({
            "metadata": { "name": name, "uid": name, "labels": { "kubernetes.io/hostname": name } },
            "status": { "capacity": amounts, "allocatable": amounts },
        }))
    };
    let devices: Vec<Value> = (0..devices)
        .map(|index| json!({ "name": format!("gpu-{index}"), "capacity": { "memory": { "value": "16Gi" } } }))
        .collect();
    World {
        nodes: vec![node("a"), node("b")],
        device_classes: vec![object(json!({
            "metadata": { "name": "gpu" },
            "spec": { "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] },
        }))],
        resource_slices: vec![object(json!({
            "metadata": { "name": "a", "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "a", "uid": "a" }] },
            "spec": {
                "driver": DRIVER, "nodeName": "a", "devices": devices,
                "pool": { "name": "a", "generation": 1, "resourceSliceCount": 1 },
            },
        }))],
        ..World::default()
    }
}

/// Adds a pod with its own claim.
fn add(world: &mut World, name: &str, request: Value) {
    let mut exactly = json!({ "deviceClassName": "gpu" });
    for (key, value) in request.as_object().into_iter().flatten() {
        exactly[key] = value.clone();
    }
    world.resource_claims.push(object(json!({
        "metadata": { "namespace": "default", "name": name, "uid": name },
        "spec": { "devices": { "requests": [{ "name": "r", "exactly": exactly }] } },
    })));
    world.pods.push(object(json!({
        "metadata": { "namespace": "default", "name": name, "uid": name },
        "spec": { "containers": [{ "name": "c" }], "resourceClaims": [{ "name": "gpu", "resourceClaimName": name }] },
        "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
    })));
}

fn rules(world: &World, places: &[(&str, &str)]) -> Vec<String> {
    let id = |name: &str| PodId {
        namespace: "default".into(),
        name: name.into(),
    };
    let solution = Solution {
        existing: places
            .iter()
            .map(|(pod, node)| (id(pod), (*node).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        claims: vec![],
        unplaced: BTreeSet::new(),
    };
    let violations = check(world, SolveSettings::default(), &solution);
    violations
        .into_iter()
        .map(|violation| violation.rule)
        .collect()
}

const UNSATISFIED: &str = "no devices satisfy all resource claims";

#[test]
fn a_device_satisfies_one_claim_and_only_on_its_node() {
    let mut world = world(1);
    add(&mut world, "p", json!({}));
    assert_eq!(rules(&world, &[("p", "a")]), [""; 0]);
    assert_eq!(rules(&world, &[("p", "b")]), [UNSATISFIED]);
    add(&mut world, "q", json!({}));
    assert_eq!(rules(&world, &[("p", "a"), ("q", "a")]), [UNSATISFIED]);
}

#[test]
fn counts_capacities_and_allocation_mode_all_are_checked() {
    let alone = |devices: usize, request: Value| {
        let mut world = world(devices);
        add(&mut world, "p", request);
        rules(&world, &[("p", "a")])
    };
    let memory = |amount: &str| json!({ "capacity": { "requests": { "memory": amount } } });
    assert_eq!(alone(2, json!({ "count": 2 })), [""; 0]);
    assert_eq!(alone(2, json!({ "count": 3 })), [UNSATISFIED]);
    assert_eq!(alone(1, memory("16Gi")), [""; 0]);
    assert_eq!(alone(1, memory("17Gi")), [UNSATISFIED]);
    assert_eq!(alone(0, json!({ "allocationMode": "All" })), [UNSATISFIED]);
    let mut world = world(2);
    add(&mut world, "p", json!({ "allocationMode": "All" }));
    add(&mut world, "q", json!({}));
    assert_eq!(rules(&world, &[("p", "a"), ("q", "a")]), [UNSATISFIED]);
}

#[test]
fn a_claim_must_exist_and_an_allocated_one_stays_on_its_node() {
    let mut world = world(1);
    add(&mut world, "p", json!({}));
    world.resource_claims[0].status = object(json!({
        "allocation": {
            "devices": { "results": [{ "request": "r", "driver": DRIVER, "pool": "a", "device": "gpu-0" }] },
            "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": ["a"] },
            ] }] },
        },
        "reservedFor": [{ "resource": "pods", "name": "other", "uid": "other" }],
    }));
    assert_eq!(rules(&world, &[("p", "a")]), [""; 0]);
    assert_eq!(
        rules(&world, &[("p", "b")]),
        [r#"p uses ("default", "p"), which is not accessible there"#]
    );
    world.resource_claims.clear();
    assert_eq!(
        rules(&world, &[("p", "a")]),
        [r#"p uses ("default", "p"), which does not exist"#]
    );
}
