//! Allocation of devices to resource claims, without the scheduler.

#![expect(
    clippy::unwrap_used,
    reason = "fixtures of this test are known to parse"
)]

mod places;
mod requests;

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1 as wire;
use karpenter_core::dra::model::{Claim, Slice, parse_class};
use karpenter_core::dra::{
    Allocation, Allocator, Candidate, DeviceTemplate, Failure, Host, Inventory, TypeKey,
};
use karpenter_core::requirements::{AllowUndefined, Requirement, Requirements, Unaliased};
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";
const ZONE: &str = "topology.kubernetes.io/zone";

fn decode<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn slice_spec(pool: &str, extra: Value, devices: Value) -> wire::ResourceSliceSpec {
    let mut spec = json!({
        "driver": DRIVER,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    });
    let extra = extra.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(extra);
    decode(spec)
}

fn one_gpu() -> Value {
    gpus(json!({"deviceClassName": "gpu"}))
}

fn gpus(exactly: Value) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": exactly}]})
}

fn node(name: &str) -> Host {
    Host::Node(name.into())
}

/// The instance type of planned nodes.
const TYPE: TypeKey = 0;
const FIRST: Host = Host::Planned(0);
const SECOND: Host = Host::Planned(1);

/// The devices of a cluster, and the claims for them.
struct Stage(Inventory);

impl Stage {
    /// Creates a stage without devices and with the device class `gpu`.
    fn new() -> Self {
        let mut inventory = Inventory::default();
        let ours =
            json!({"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]});
        let class = parse_class(&decode(ours));
        inventory.classes.insert("gpu".to_owned(), class);
        Self(inventory)
    }

    fn publish(mut self, pool: &str, extra: Value, devices: Value) -> Self {
        let slice = Slice::parse(&slice_spec(pool, extra, devices), None, &Unaliased).unwrap();
        self.0.slices.insert(pool.to_owned(), slice);
        self
    }

    /// Publishes devices of node `n`.
    fn on_node(self, devices: Value) -> Self {
        self.publish("pool", json!({"nodeName": "n"}), devices)
    }

    fn claim(self, name: &str, devices: Value) -> Self {
        self.claim_with(name, devices, json!({}))
    }

    fn claim_with(mut self, name: &str, devices: Value, status: Value) -> Self {
        let object: wire::ResourceClaim = decode(json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"devices": devices},
            "status": status,
        }));
        let key = ("default".to_owned(), name.to_owned());
        self.0.claims.insert(key, Claim::parse(&object, &Unaliased));
        self
    }

    /// Adds claims that request the same.
    fn claims(self, names: &[&str], devices: &Value) -> Self {
        let add = |stage: Self, name: &&str| stage.claim(name, devices.clone());
        names.iter().fold(self, add)
    }

    fn pass(&self) -> Pass<'_> {
        Pass {
            allocator: Allocator::new(&self.0, |_| true, |_| false),
            requirements: Requirements::new(),
        }
    }
}

/// The allocations of one pass to pods on existing and planned nodes.
struct Pass<'a> {
    allocator: Allocator<'a>,
    /// The requirements of the node.
    requirements: Requirements,
}

impl Pass<'_> {
    /// Sets the devices that nodes of the instance type will publish.
    fn with_type(mut self, slices: &[wire::ResourceSliceSpec]) -> Self {
        let template = |spec| DeviceTemplate::parse(spec, &Unaliased).unwrap();
        let templates: Vec<_> = slices.iter().map(template).collect();
        self.allocator.expect(TYPE, &templates);
        self
    }

    fn in_zones(&mut self, values: &[&str]) -> &mut Self {
        let values = values.iter().map(|value| (*value).to_owned());
        let zone = Requirement::new(ZONE, karpenter_core::requirements::Operator::In, values);
        self.requirements = [zone].into_iter().collect();
        self
    }

    fn allocate(&mut self, host: &Host, claims: &[&str]) -> Result<Allocation, Failure> {
        let known = BTreeSet::from([ZONE.to_owned()]);
        let (undefined, types) = match host {
            Host::Planned(_) => (AllowUndefined::Keys(&known), &[TYPE][..]),
            Host::Cluster | Host::Node(_) => (AllowUndefined::Nothing, &[][..]),
        };
        let candidate = Candidate {
            host: host.clone(),
            requirements: &self.requirements,
            undefined,
            types,
        };
        let claims: Vec<String> = claims.iter().map(|name| (*name).to_owned()).collect();
        self.allocator.allocate(&candidate, "default", &claims)
    }

    /// Allocates the claim on the host and commits the allocation.
    fn place(&mut self, host: &Host, claim: &str) -> Result<(), Failure> {
        let allocation = self.allocate(host, &[claim])?;
        self.allocator.commit(host, allocation);
        Ok(())
    }

    /// Returns whether the host has devices for the claim.
    fn fits(&mut self, host: &Host, claim: &str) -> bool {
        self.allocate(host, &[claim]).is_ok()
    }

    /// Returns whether the claim was allocated on the host.
    fn takes(&mut self, host: &Host, claim: &str) -> bool {
        self.place(host, claim).is_ok()
    }
}

/// Conformance: SCH-178
#[test]
fn a_device_is_allocated_once_and_reserved_only_by_a_committed_allocation() {
    let stage = Stage::new()
        .on_node(json!([{"name": "gpu-0"}]))
        .claims(&["a", "b"], &one_gpu());
    let mut pass = stage.pass();
    assert!(pass.fits(&node("n"), "a"));
    assert!(pass.fits(&node("n"), "b"));
    assert_eq!(pass.place(&node("n"), "a"), Ok(()));
    for other in ["n", "other"] {
        assert_eq!(pass.place(&node(other), "b"), Err(Failure::NoDevices));
    }
}

/// Conformance: SCH-251
#[test]
fn failures_name_what_is_missing_or_unusable() {
    let selector = json!([{"cel": {"expression": "device.driver =="}}]);
    let cel = json!({"deviceClassName": "gpu", "selectors": selector});
    let mut distinct = one_gpu();
    distinct["constraints"] = json!([{"distinctAttribute": "gpu.example.com/root"}]);
    let many = json!({"deviceClassName": "gpu", "count": 33});
    let stage = Stage::new()
        .claim("class", gpus(json!({"deviceClassName": "tpu"})))
        .claim("many", gpus(many))
        .claim("cel", gpus(cel))
        .claim("distinct", distinct);
    for (claim, text) in [
        ("nowhere", "resource claim `nowhere` does not exist"),
        ("class", "device class `tpu` does not exist"),
        (
            "many",
            "resource claim `many` requests more than 32 devices",
        ),
        (
            "cel",
            "resource claim `cel` has an invalid device selector `device.driver ==`",
        ),
        (
            "distinct",
            "resource claim `distinct` cannot be used: claim has a constraint other than matchAttribute",
        ),
    ] {
        let failure = stage.pass().place(&node("n"), claim).unwrap_err();
        assert_eq!(failure.to_string(), text);
    }
}

/// Conformance: SCH-255
#[test]
fn a_search_that_takes_too_long_fails() {
    let devices: Vec<Value> = (0..64)
        .map(|i| json!({"name": format!("d{i}"), "attributes": {"n": {"int": i}}}))
        .collect();
    // Thirty devices must match in an attribute that no two share: the search would try every pair.
    let requests: Vec<Value> = (0..30)
        .map(|i| json!({"name": format!("r{i}"), "exactly": {"deviceClassName": "gpu"}}))
        .collect();
    let last = json!([{"matchAttribute": format!("{DRIVER}/n"), "requests": ["r28", "r29"]}]);
    let hard = json!({"requests": requests, "constraints": last});
    let stage = Stage::new().on_node(json!(devices)).claim("hard", hard);
    let failure = stage.pass().place(&node("n"), "hard").unwrap_err();
    assert_eq!(failure, Failure::TooComplex);
}
