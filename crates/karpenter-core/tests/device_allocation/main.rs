//! Allocation of devices to resource claims, without the scheduler.

#![expect(
    clippy::unwrap_used,
    reason = "fixtures of this test are known to parse"
)]

mod places;
mod requests;

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
fn two_devices_satisfy_two_pods_on_one_node_and_a_third_needs_another() {
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
