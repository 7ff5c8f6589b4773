//! Allocation of devices to resource claims, without the scheduler.

#![expect(
    clippy::unwrap_used,
    reason = "fixtures of this test are known to parse"
)]

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1 as wire;
use karpenter_core::dra::model::{Claim, Slice, parse_class};
use karpenter_core::dra::{
    Allocation, Allocator, Candidate, DeviceTemplate, Failure, Host, Inventory, TypeKey, claims_of,
};
use karpenter_core::requirements::{AllowUndefined, Requirement, Requirements, Unaliased};
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";
const ZONE: &str = "topology.kubernetes.io/zone";

fn decode<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn inventory() -> Inventory {
    let mut inventory = Inventory::default();
    inventory.classes.insert(
        "gpu".to_owned(),
        parse_class(&decode(
            json!({"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}),
        )),
    );
    inventory
}

fn slice_spec(pool: &str, extra: Value, devices: Value) -> wire::ResourceSliceSpec {
    let mut spec = json!({
        "driver": DRIVER,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    });
    spec.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    decode(spec)
}

fn publish(inventory: &mut Inventory, pool: &str, extra: Value, devices: Value) {
    let slice = Slice::parse(&slice_spec(pool, extra, devices), None, &Unaliased).unwrap();
    inventory.slices.insert(pool.to_owned(), slice);
}

fn claim(inventory: &mut Inventory, name: &str, devices: Value) {
    claim_with(inventory, name, devices, json!({}));
}

fn claim_with(inventory: &mut Inventory, name: &str, devices: Value, status: Value) {
    let object: wire::ResourceClaim = decode(json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": {"devices": devices},
        "status": status,
    }));
    let key = ("default".to_owned(), name.to_owned());
    inventory
        .claims
        .insert(key, Claim::parse(&object, &Unaliased));
}

fn one_gpu() -> Value {
    gpus(json!({"deviceClassName": "gpu"}))
}

fn gpus(exactly: Value) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": exactly}]})
}

fn template(spec: &wire::ResourceSliceSpec) -> DeviceTemplate {
    DeviceTemplate::parse(spec, &Unaliased).unwrap()
}

fn zones(values: &[&str]) -> Requirements {
    let values = values.iter().map(|value| (*value).to_owned());
    let zone = Requirement::new(ZONE, karpenter_core::requirements::Operator::In, values);
    [zone].into_iter().collect()
}

fn allocate(
    allocator: &mut Allocator<'_>,
    host: &Host,
    requirements: &Requirements,
    types: &[TypeKey],
    claims: &[&str],
) -> Result<Allocation, Failure> {
    let known = BTreeSet::from([ZONE.to_owned()]);
    let undefined = match host {
        Host::Planned(_) => AllowUndefined::Keys(&known),
        Host::Cluster | Host::Node(_) => AllowUndefined::Nothing,
    };
    let candidate = Candidate {
        host: host.clone(),
        requirements,
        undefined,
        types,
    };
    let claims: Vec<String> = claims.iter().map(|name| (*name).to_owned()).collect();
    allocator.allocate(&candidate, "default", &claims)
}

/// Allocates the claims on the host and commits the allocation.
fn place(
    allocator: &mut Allocator<'_>,
    host: &Host,
    requirements: &Requirements,
    types: &[TypeKey],
    claims: &[&str],
) -> Result<Vec<TypeKey>, Failure> {
    let allocation = allocate(allocator, host, requirements, types, claims)?;
    let types = allocation.types.clone();
    allocator.commit(host, allocation);
    Ok(types)
}

fn node(name: &str) -> Host {
    Host::Node(name.into())
}

fn fresh(inventory: &Inventory) -> Allocator<'_> {
    Allocator::new(inventory, |_| true, |_| false)
}

#[test]
fn only_types_with_a_matching_device_satisfy_a_claim() {
    let mut inventory = inventory();
    claim(&mut inventory, "c", one_gpu());
    let mut allocator = fresh(&inventory);
    allocator.expect(0, &[]);
    allocator.expect(
        1,
        &[template(&slice_spec(
            "node",
            json!({}),
            json!([{"name": "gpu-0"}]),
        ))],
    );
    let allocation = allocate(
        &mut allocator,
        &Host::Planned(0),
        &Requirements::new(),
        &[0, 1],
        &["c"],
    )
    .unwrap();
    assert_eq!(allocation.types, [1]);
    assert_eq!(allocation.drivers, BTreeSet::from([DRIVER.to_owned()]));
}

#[test]
fn a_device_is_allocated_once() {
    let mut inventory = inventory();
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!([{"name": "gpu-0"}]),
    );
    claim(&mut inventory, "a", one_gpu());
    claim(&mut inventory, "b", one_gpu());
    let mut allocator = fresh(&inventory);
    let none = Requirements::new();
    assert_eq!(
        place(&mut allocator, &node("n"), &none, &[], &["a"]),
        Ok(vec![])
    );
    assert_eq!(
        place(&mut allocator, &node("n"), &none, &[], &["b"]),
        Err(Failure::NoDevices)
    );
    assert_eq!(
        place(&mut allocator, &node("other"), &none, &[], &["b"]),
        Err(Failure::NoDevices)
    );
}

/// Conformance: SCH-178
#[test]
fn an_allocation_that_is_not_committed_reserves_no_devices() {
    let mut inventory = inventory();
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!([{"name": "gpu-0"}]),
    );
    claim(&mut inventory, "a", one_gpu());
    claim(&mut inventory, "b", one_gpu());
    let mut allocator = fresh(&inventory);
    let none = Requirements::new();
    assert!(allocate(&mut allocator, &node("n"), &none, &[], &["a"]).is_ok());
    assert!(allocate(&mut allocator, &node("n"), &none, &[], &["b"]).is_ok());
}

#[test]
fn two_devices_satisfy_two_pods_on_one_planned_node_and_a_third_needs_another() {
    let mut inventory = inventory();
    for name in ["a", "b", "c"] {
        claim(&mut inventory, name, one_gpu());
    }
    let mut allocator = fresh(&inventory);
    let two = slice_spec(
        "node",
        json!({}),
        json!([{"name": "gpu-0"}, {"name": "gpu-1"}]),
    );
    allocator.expect(0, &[template(&two)]);
    let none = Requirements::new();
    let first = Host::Planned(0);
    assert_eq!(
        place(&mut allocator, &first, &none, &[0], &["a"]),
        Ok(vec![0])
    );
    assert_eq!(
        place(&mut allocator, &first, &none, &[0], &["b"]),
        Ok(vec![0])
    );
    assert_eq!(
        place(&mut allocator, &first, &none, &[0], &["c"]),
        Err(Failure::NoDevices)
    );
    assert_eq!(
        place(&mut allocator, &Host::Planned(1), &none, &[0], &["c"]),
        Ok(vec![0])
    );
}

#[test]
fn a_dropped_type_frees_the_devices_that_only_it_held() {
    let mut inventory = inventory();
    publish(
        &mut inventory,
        "net",
        json!({"allNodes": true}),
        json!([{"name": "gpu-0"}]),
    );
    claim(&mut inventory, "a", one_gpu());
    claim(&mut inventory, "b", one_gpu());
    let mut allocator = fresh(&inventory);
    allocator.expect(0, &[]);
    allocator.expect(
        1,
        &[template(&slice_spec(
            "node",
            json!({}),
            json!([{"name": "own"}]),
        ))],
    );
    let none = Requirements::new();
    // Type 0 needs the network device; type 1 uses it too, as existing devices come first.
    assert_eq!(
        place(&mut allocator, &Host::Planned(0), &none, &[0, 1], &["a"]),
        Ok(vec![0, 1])
    );
    assert_eq!(
        place(&mut allocator, &Host::Planned(1), &none, &[0], &["b"]),
        Err(Failure::NoDevices)
    );
    allocator.retain(&Host::Planned(0), |_| false);
    assert_eq!(
        place(&mut allocator, &Host::Planned(1), &none, &[0], &["b"]),
        Ok(vec![0])
    );
}

#[test]
fn mode_all_allocates_every_match_and_fails_if_one_is_allocated() {
    let mut inventory = inventory();
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!([{"name": "a"}, {"name": "b"}]),
    );
    let all = gpus(json!({"deviceClassName": "gpu", "allocationMode": "All"}));
    claim(&mut inventory, "all", all.clone());
    claim(&mut inventory, "one", one_gpu());
    claim(&mut inventory, "all-too", all);
    let none = Requirements::new();
    let mut allocator = fresh(&inventory);
    assert!(place(&mut allocator, &node("n"), &none, &[], &["all"]).is_ok());
    assert_eq!(
        place(&mut allocator, &node("n"), &none, &[], &["one"]),
        Err(Failure::NoDevices)
    );
    let mut allocator = fresh(&inventory);
    assert!(place(&mut allocator, &node("n"), &none, &[], &["one"]).is_ok());
    assert_eq!(
        place(&mut allocator, &node("n"), &none, &[], &["all-too"]),
        Err(Failure::NoDevices)
    );
}

/// Conformance: SCH-249
#[test]
fn an_incomplete_pool_satisfies_neither_an_exact_count_nor_mode_all() {
    let mut inventory = inventory();
    let pool = json!({"pool": {"name": "half", "generation": 1, "resourceSliceCount": 2}});
    publish(&mut inventory, "half", pool, json!([{"name": "a"}]));
    publish(&mut inventory, "whole", json!({}), json!([{"name": "b"}]));
    claim(&mut inventory, "one", one_gpu());
    claim(
        &mut inventory,
        "two",
        gpus(json!({"deviceClassName": "gpu", "count": 2})),
    );
    claim(
        &mut inventory,
        "all",
        gpus(json!({"deviceClassName": "gpu", "allocationMode": "All"})),
    );
    let none = Requirements::new();
    let mut allocator = fresh(&inventory);
    assert!(allocate(&mut allocator, &node("n"), &none, &[], &["one"]).is_ok());
    assert!(allocate(&mut allocator, &node("n"), &none, &[], &["two"]).is_err());
    assert!(allocate(&mut allocator, &node("n"), &none, &[], &["all"]).is_err());
}

#[test]
fn matched_attributes_agree_across_requests() {
    let mut inventory = inventory();
    let on = |root: &str| json!({"attributes": {"root": {"string": root}}});
    let with = |name: &str, extra: Value| {
        let mut device = json!({"name": name});
        device
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        device
    };
    let devices =
        json!([with("a", on("r0")), with("b", on("r1")), with("c", on("r1")), {"name": "d"}]);
    publish(&mut inventory, "pool", json!({"nodeName": "n"}), devices);
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "gpu"}});
    let pair = |attribute: &str| {
        json!({
            "requests": [request("x"), request("y")],
            "constraints": [{"matchAttribute": format!("{DRIVER}/{attribute}")}],
        })
    };
    claim(&mut inventory, "pair", pair("root"));
    claim(&mut inventory, "single", one_gpu());
    claim(&mut inventory, "absent", pair("absent"));
    let none = Requirements::new();
    let mut allocator = fresh(&inventory);
    assert!(place(&mut allocator, &node("n"), &none, &[], &["pair"]).is_ok());
    // b and c are allocated: a is left, and no other device has its attribute.
    assert!(place(&mut allocator, &node("n"), &none, &[], &["single"]).is_ok());
    assert!(allocate(&mut allocator, &node("n"), &none, &[], &["absent"]).is_err());
}

#[test]
fn the_first_alternative_that_can_be_satisfied_is_used() {
    let mut inventory = inventory();
    let model =
        |name: &str, model: &str| json!({"name": name, "attributes": {"model": {"string": model}}});
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!([model("old", "k80"), model("new", "h100")]),
    );
    let wants = |name: &str, model: &str| {
        let expression = format!("device.attributes['{DRIVER}'].model == '{model}'");
        json!({"name": name, "deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]})
    };
    let devices = json!({"requests": [{"name": "gpu", "firstAvailable": [wants("best", "h100"), wants("any", "k80")]}]});
    for name in ["a", "b", "c"] {
        claim(&mut inventory, name, devices.clone());
    }
    claim(&mut inventory, "old", gpus(wants("x", "k80")));
    let none = Requirements::new();
    let mut allocator = fresh(&inventory);
    assert!(place(&mut allocator, &node("n"), &none, &[], &["a"]).is_ok());
    assert!(
        allocate(&mut allocator, &node("n"), &none, &[], &["old"]).is_ok(),
        "h100 was allocated first"
    );
    assert!(place(&mut allocator, &node("n"), &none, &[], &["b"]).is_ok());
    assert!(place(&mut allocator, &node("n"), &none, &[], &["c"]).is_err());
}

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
        "allocated anew"
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

#[test]
fn shares_of_a_device_add_up_to_its_capacity() {
    let mut inventory = inventory();
    let memory = |policy: Value| json!({"memory": {"value": "16Gi", "requestPolicy": policy}});
    let device = json!({
        "name": "gpu-0",
        "allowMultipleAllocations": true,
        "capacity": memory(json!({"default": "4Gi"})),
    });
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!([device]),
    );
    let share = |memory: &str| {
        gpus(json!({"deviceClassName": "gpu", "capacity": {"requests": {"memory": memory}}}))
    };
    for name in ["a", "b", "c"] {
        claim(&mut inventory, name, share("4Gi"));
    }
    claim(&mut inventory, "large", share("8Gi"));
    claim(&mut inventory, "default", one_gpu());
    claim(&mut inventory, "huge", share("17Gi"));
    let odd = gpus(json!({"deviceClassName": "gpu", "capacity": {"requests": {"cores": "1"}}}));
    claim(&mut inventory, "odd", odd);
    let none = Requirements::new();
    let mut allocator = fresh(&inventory);
    for name in ["a", "b", "c"] {
        assert!(
            place(&mut allocator, &node("n"), &none, &[], &[name]).is_ok(),
            "{name}"
        );
    }
    for name in ["large", "huge", "odd"] {
        assert!(
            allocate(&mut allocator, &node("n"), &none, &[], &[name]).is_err(),
            "{name}"
        );
    }
    assert!(place(&mut allocator, &node("n"), &none, &[], &["default"]).is_ok());
    assert!(
        allocate(&mut allocator, &node("n"), &none, &[], &["a", "b"]).is_ok(),
        "these claims keep their devices"
    );
}

#[test]
fn devices_draw_from_shared_counters() {
    let mut inventory = inventory();
    let draws = |name: &str, amount: &str| json!({"name": name, "consumesCounters": [{"counterSet": "gpu", "counters": {"memory": {"value": amount}}}]});
    let counters =
        json!({"sharedCounters": [{"name": "gpu", "counters": {"memory": {"value": "80Gi"}}}]});
    let devices = json!([
        draws("mig-0", "40Gi"),
        draws("mig-1", "40Gi"),
        draws("mig-2", "40Gi")
    ]);
    let spec = slice_spec("node", counters, devices);
    for name in ["a", "b", "c"] {
        claim(&mut inventory, name, one_gpu());
    }
    let mut allocator = fresh(&inventory);
    allocator.expect(0, &[template(&spec)]);
    let none = Requirements::new();
    let first = Host::Planned(0);
    assert!(place(&mut allocator, &first, &none, &[0], &["a"]).is_ok());
    assert!(place(&mut allocator, &first, &none, &[0], &["b"]).is_ok());
    assert!(place(&mut allocator, &first, &none, &[0], &["c"]).is_err());
    assert!(place(&mut allocator, &Host::Planned(1), &none, &[0], &["c"]).is_ok());
}

/// Conformance: SCH-251
#[test]
fn failures_name_what_is_missing_or_unusable() {
    let mut inventory = inventory();
    claim(
        &mut inventory,
        "class",
        gpus(json!({"deviceClassName": "tpu"})),
    );
    claim(
        &mut inventory,
        "many",
        gpus(json!({"deviceClassName": "gpu", "count": 33})),
    );
    let selector = json!([{"cel": {"expression": "device.driver =="}}]);
    claim(
        &mut inventory,
        "cel",
        gpus(json!({"deviceClassName": "gpu", "selectors": selector})),
    );
    let mut distinct = one_gpu();
    distinct["constraints"] = json!([{"distinctAttribute": "gpu.example.com/root"}]);
    claim(&mut inventory, "distinct", distinct);
    let mut allocator = fresh(&inventory);
    let none = Requirements::new();
    let mut said = |name: &str| {
        allocate(&mut allocator, &node("n"), &none, &[], &[name])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(said("nowhere"), "resource claim `nowhere` does not exist");
    assert_eq!(said("class"), "device class `tpu` does not exist");
    assert_eq!(
        said("many"),
        "resource claim `many` requests more than 32 devices"
    );
    assert_eq!(
        said("cel"),
        "resource claim `cel` has an invalid device selector `device.driver ==`"
    );
    assert_eq!(
        said("distinct"),
        "resource claim `distinct` cannot be used: claim has a constraint other than matchAttribute"
    );
}

/// Conformance: SCH-255
#[test]
fn a_search_that_takes_too_long_fails() {
    let mut inventory = inventory();
    let devices: Vec<Value> = (0..64)
        .map(|i| json!({"name": format!("d{i}"), "attributes": {"n": {"int": i}}}))
        .collect();
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!(devices),
    );
    // Thirty devices must match in an attribute that no two share: the search would try every pair.
    let requests: Vec<Value> = (0..30)
        .map(|i| json!({"name": format!("r{i}"), "exactly": {"deviceClassName": "gpu"}}))
        .collect();
    let last = json!([{"matchAttribute": format!("{DRIVER}/n"), "requests": ["r28", "r29"]}]);
    claim(
        &mut inventory,
        "hard",
        json!({"requests": requests, "constraints": last}),
    );
    let none = Requirements::new();
    let failure = allocate(&mut fresh(&inventory), &node("n"), &none, &[], &["hard"]).unwrap_err();
    assert_eq!(failure, Failure::TooComplex);
}

/// Conformance: SCH-256
#[test]
fn a_pod_waits_for_the_claims_of_its_templates() {
    let pod = |status: Value| -> Pod {
        decode(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "shared", "resourceClaimName": "c"},
                {"name": "own", "resourceClaimTemplateName": "t"},
            ]},
            "status": status,
        }))
    };
    let made = |entry: Value| json!({"resourceClaimStatuses": [entry]});
    let waiting = claims_of(&pod(json!({}))).unwrap_err();
    assert!(waiting.is_deferral());
    assert_eq!(
        claims_of(&pod(made(json!({"name": "own"})))).unwrap(),
        ["c"]
    );
    let generated = json!({"name": "own", "resourceClaimName": "p-own-x7"});
    assert_eq!(claims_of(&pod(made(generated))).unwrap(), ["c", "p-own-x7"]);
}
