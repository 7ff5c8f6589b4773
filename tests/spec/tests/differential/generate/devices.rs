//! Devices and resource claims.

use karpenter_api::labels;
use karpenter_core::dra::DeviceTemplate;
use karpenter_core::requirements::Unaliased;
use karpenter_spec::World;
use serde_json::{Value, json};

use super::objects::{Workload, object};

const DRIVER: &str = "gpu.example.com";
const CLASS: &str = "gpu";

/// The devices of the nodes of an instance type, alternating between models a and b.
#[derive(Clone, Copy)]
pub(super) struct Devices {
    pub(super) count: usize,
    /// Whether several claims may hold one.
    pub(super) shared: bool,
}

impl Devices {
    fn objects(self) -> Vec<Value> {
        let device = |index: usize| {
            let model = ["a", "b"][index % 2];
            let mut device = json!({
                "name": format!("gpu-{index}"),
                "attributes": { "model": { "string": model } },
                "capacity": { "memory": { "value": "16Gi" } },
            });
            if self.shared {
                device["allowMultipleAllocations"] = json!(true);
            }
            device
        };
        (0..self.count).map(device).collect()
    }

    /// Returns what nodes of the instance type publish.
    pub(super) fn template(self) -> Vec<DeviceTemplate> {
        if self.count == 0 {
            return vec![];
        }
        let spec = slice("node", json!({}), self.objects());
        DeviceTemplate::parse(&object(spec), &Unaliased)
            .into_iter()
            .collect()
    }

    /// Publishes the devices of a node, if it has any.
    pub(super) fn publish(self, world: &mut World, node: &str) {
        if self.count == 0 {
            return;
        }
        let spec = slice(node, json!({ "nodeName": node }), self.objects());
        let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node });
        world.resource_slices.push(object(json!({
            "metadata": { "name": node, "ownerReferences": [owner] }, "spec": spec,
        })));
    }
}

fn slice(pool: &str, reach: Value, devices: Vec<Value>) -> Value {
    let mut spec = json!({
        "driver": DRIVER, "devices": devices,
        "pool": { "name": pool, "generation": 1, "resourceSliceCount": 1 },
    });
    for (key, value) in reach.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

/// Adds the device class and devices accessible from many nodes: none, one or two everywhere, or one in zone 2.
pub(super) fn add_class(world: &mut World, wide: usize) {
    world.device_classes.push(object(json!({
        "metadata": { "name": CLASS },
        "spec": { "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] },
    })));
    let term = json!({ "matchExpressions": [{ "key": labels::ZONE, "operator": "In", "values": ["z2"] }] });
    let (reach, count) = match wide {
        0 => return,
        3 => (
            json!({ "nodeSelector": { "nodeSelectorTerms": [term] } }),
            1,
        ),
        count => (json!({ "allNodes": true }), count),
    };
    world.resource_slices.push(object(json!({
        "metadata": { "name": "wide" }, "spec": slice("wide", reach, Devices { count, shared: false }.objects()),
    })));
}

/// Returns the devices that a workload's claims request.
fn wishes(claim: usize) -> Value {
    let one = |further: Value| {
        let mut request = json!({ "deviceClassName": CLASS });
        for (key, value) in further.as_object().into_iter().flatten() {
            request[key] = value.clone();
        }
        request
    };
    let of_model = |model: &str| {
        let expression = format!("device.attributes['{DRIVER}'].model == '{model}'");
        json!({ "selectors": [{ "cel": { "expression": expression } }] })
    };
    let named = |name: &str, mut request: Value| {
        request["name"] = json!(name);
        request
    };
    let exactly =
        |further: Value| json!({ "requests": [{ "name": "r", "exactly": one(further) }] });
    match claim {
        1 | 2 => exactly(json!({})),
        3 => exactly(json!({ "count": 2 })),
        4 => exactly(of_model("a")),
        5 => exactly(json!({ "allocationMode": "All" })),
        6 => json!({ "requests": [{ "name": "r", "firstAvailable": [
            named("b", one(of_model("b"))), named("any", one(json!({ "count": 2 }))),
        ] }] }),
        7 => json!({
            "requests": [{ "name": "r", "exactly": one(json!({})) }, { "name": "s", "exactly": one(json!({})) }],
            "constraints": [{ "matchAttribute": format!("{DRIVER}/model") }],
        }),
        8 => exactly(json!({ "capacity": { "requests": { "memory": "6Gi" } } })),
        _ => exactly(json!({ "capacity": { "requests": { "memory": "17Gi" } } })),
    }
}

/// Adds the claim of a pod: its own or one for all pods of its workload. The claim of a running pod holds devices of its node;
/// if none is free, the pod has no claim.
pub(super) fn claim(world: &mut World, pod: &mut Value, index: usize, workload: &Workload) {
    if workload.claim == 0 {
        return;
    }
    let name = pod["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let of_all = workload.one_claim.then(|| format!("claim-of-{index}"));
    let claim = of_all.clone().unwrap_or_else(|| format!("{name}-gpu"));
    let known = |claim: &str, world: &World| {
        let mut claims = world.resource_claims.iter();
        claims.any(|known| known.metadata.name.as_deref() == Some(claim))
    };
    let mut object_of_claim = json!({
        "metadata": { "namespace": "default", "name": claim, "uid": claim }, "spec": { "devices": wishes(workload.claim) },
    });
    if let Some(node) = pod["spec"]["nodeName"].as_str() {
        // A claim of the workload that is pending or held by a pod on another node cannot be used by this pod.
        if known(&claim, world) {
            return;
        }
        let Some(device) = free_device(world, node) else {
            return;
        };
        let term = json!({ "matchExpressions": [{ "key": labels::HOSTNAME, "operator": "In", "values": [node] }] });
        object_of_claim["status"] = json!({
            "allocation": {
                "devices": { "results": [{ "request": "r", "driver": DRIVER, "pool": node, "device": device }] },
                "nodeSelector": { "nodeSelectorTerms": [term] },
            },
            "reservedFor": [{ "resource": "pods", "name": name, "uid": name }],
        });
    }
    if !known(&claim, world) {
        world.resource_claims.push(object(object_of_claim));
    }
    pod["spec"]["resourceClaims"] = match of_all {
        Some(claim) => json!([{ "name": "gpu", "resourceClaimName": claim }]),
        None => {
            pod["status"]["resourceClaimStatuses"] =
                json!([{ "name": "gpu", "resourceClaimName": claim }]);
            json!([{ "name": "gpu", "resourceClaimTemplateName": "gpu" }])
        }
    };
}

/// Returns a device of a node that no claim holds and that is not shared.
fn free_device(world: &World, node: &str) -> Option<String> {
    let mut slices = world.resource_slices.iter();
    let slice = slices.find(|slice| slice.metadata.name.as_deref() == Some(node))?;
    let held = |device: &str| {
        let allocations = world.resource_claims.iter();
        let allocations =
            allocations.filter_map(|claim| claim.status.as_ref()?.allocation.as_ref());
        let results = allocations.filter_map(|held| held.devices.as_ref()?.results.as_ref());
        let mut results = results.flatten();
        results.any(|result| result.pool == node && result.device == device)
    };
    let devices = slice.spec.devices.iter().flatten();
    let mut free =
        devices.filter(|device| device.allow_multiple_allocations.is_none() && !held(&device.name));
    free.next().map(|device| device.name.clone())
}
