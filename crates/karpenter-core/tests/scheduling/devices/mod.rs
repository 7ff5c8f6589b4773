//! Pods with resource claims: which instance types and nodes they get for their devices.

mod choice;
mod published;
mod shared;

use karpenter_core::dra::DeviceTemplate;
use karpenter_core::fake;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::requirements::Unaliased;
use karpenter_core::schedule::Plan;
use serde_json::{Value, json};

use crate::fixture::*;

const DRIVER: &str = "gpu.example.com";
const DRIVERS: &str = "karpenter.sh/requested-dra-drivers";

fn slice_spec(pool: &str, further: Value, devices: Value) -> Value {
    let mut spec = json!({
        "driver": DRIVER, "pool": { "name": pool, "generation": 1, "resourceSliceCount": 1 }, "devices": devices,
    });
    for (key, value) in further.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    spec
}

/// Returns an instance type whose nodes publish devices.
fn with_devices(
    name: &str,
    cores: i64,
    price: f64,
    further: Value,
    devices: Value,
) -> InstanceType {
    let mut instance_type = fake::instance_type(name)
        .cpu(cores)
        .gib(64)
        .pods(50)
        .price(price)
        .build();
    let spec = read(slice_spec("node", further, devices));
    instance_type.devices = vec![DeviceTemplate::parse(&spec, &Unaliased).unwrap()];
    instance_type
}

/// Returns an instance type whose nodes publish these devices.
fn gpu_type(devices: Value) -> InstanceType {
    with_devices("gpu", 8, 1.0, json!({}), devices)
}

fn plain(name: &str, cores: i64, price: f64) -> InstanceType {
    with_devices(name, cores, price, json!({}), json!([]))
}

fn gpus(count: usize) -> Value {
    (0..count)
        .map(|index| json!({ "name": format!("gpu-{index}") }))
        .collect()
}

/// Returns a world with a class `gpu` and a NodePool of these types, in which claims are served.
fn world(types: impl Types) -> World {
    let mut world = World::new().with_types(types);
    world.policy.ignore_dra_requests = false;
    world.cluster.apply_device_class(&read(json!({
        "metadata": { "name": "gpu" },
        "spec": { "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] },
    })));
    world
}

/// Returns an instance type without devices and a more expensive one with `count` devices.
fn with_gpus(count: usize) -> World {
    world([plain("plain", 8, 0.1), gpu_type(gpus(count))])
}

fn one() -> Value {
    exactly(json!({ "deviceClassName": "gpu" }))
}

fn exactly(request: Value) -> Value {
    json!({ "requests": [{ "name": "gpu", "exactly": request }] })
}

trait Devices: Sized {
    fn claim(self, name: &str, devices: Value) -> Self;
    fn claim_held(self, name: &str, devices: Value, status: Value) -> Self;
    fn slice(self, name: &str, owner: Option<&str>, further: Value, devices: Value) -> Self;
}

impl Devices for World {
    fn claim(self, name: &str, devices: Value) -> Self {
        self.claim_held(name, devices, json!({}))
    }

    fn claim_held(mut self, name: &str, devices: Value, status: Value) -> Self {
        self.cluster.apply_resource_claim(&read(json!({
            "metadata": { "name": name, "namespace": "default", "uid": name },
            "spec": { "devices": devices }, "status": status,
        })));
        self
    }

    fn slice(mut self, name: &str, owner: Option<&str>, further: Value, devices: Value) -> Self {
        let mut slice =
            json!({ "metadata": { "name": name }, "spec": slice_spec(name, further, devices) });
        if let Some(node) = owner {
            slice["metadata"]["ownerReferences"] =
                json!([{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node }]);
        }
        self.cluster.apply_resource_slice(&read(slice));
        self
    }
}

/// Returns a pod that uses a claim.
fn using(name: &str, claim: &str) -> Object<Pod> {
    pod(name).cpu("100m").push(
        "/spec/resourceClaims",
        json!({ "name": "gpu", "resourceClaimName": claim }),
    )
}

/// Returns one line per planned node: its pods and instance types.
fn planned(plan: &Plan) -> Vec<String> {
    plan.new_node_claims
        .iter()
        .map(|draft| {
            let mut pods: Vec<&str> = draft.pods.iter().map(|pod| pod.name.as_str()).collect();
            pods.sort_unstable();
            format!("{} on {}", pods.join(" "), draft.instance_types.join(" "))
        })
        .collect()
}

/// Conformance: SCH-168
#[test]
fn with_the_flag_pods_with_claims_fail_and_daemons_do_not_count() {
    // The API server admits only containers that name claims of the pod. So it does not matter which container uses the claim.
    let claims = |user: &str| match user {
        "pod" => using("p", "c"),
        user => using("p", "c").set(
            &format!("/spec/{user}"),
            json!([{ "name": "x", "resources": { "claims": [{ "name": "gpu" }] } }]),
        ),
    };
    for user in ["pod", "initContainers", "containers"] {
        let mut ignoring = with_gpus(1).claim("c", one()).with(claims(user));
        ignoring.policy.ignore_dra_requests = true;
        assert_eq!(
            why(&ignoring.plan(), "p"),
            "pod has Dynamic Resource Allocation requirements, which are not simulated",
            "{user}"
        );
    }
    let overhead = |ignore: bool| {
        let mut world = with_gpus(1).with(pod("p").cpu("1"));
        world.policy.ignore_dra_requests = ignore;
        world.cluster.apply_daemon_set(&read(json!({
            "metadata": { "name": "agent", "namespace": "default", "uid": "agent" },
            "spec": { "selector": {}, "template": { "metadata": {}, "spec": {
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": "1" } } }],
                "resourceClaims": [{ "name": "gpu", "resourceClaimName": "c" }],
            } } },
        })));
        world.plan().new_node_claims[0].requests.get("cpu")
    };
    assert_eq!((overhead(true), overhead(false)), (1000, 2000));
}

/// Conformance: SCH-169
#[test]
fn a_resource_claim_selects_a_type_with_the_device_and_its_driver() {
    let world = with_gpus(1)
        .claim("c", one())
        .with([using("p", "c"), pod("q").cpu("7850m")]);
    let plan = world.plan();
    assert!(all_placed(&plan));
    let mut lines = planned(&plan);
    lines.sort();
    assert_eq!(lines, ["p on gpu", "q on plain gpu"]);
    for draft in &plan.new_node_claims {
        let claim = draft.to_node_claim();
        let drivers = claim.metadata.annotations.unwrap().remove(DRIVERS);
        let expected = (draft.pods[0].name == "p").then_some(DRIVER);
        assert_eq!(drivers.as_deref(), expected);
    }
}

/// Conformance: SCH-170, SCH-256
#[test]
fn a_pod_waits_for_missing_resource_claims_classes_and_devices() {
    let without_claim = || with_gpus(1).with(using("p", "c"));
    assert_eq!(
        why(&without_claim().plan(), "p"),
        "resource claim `c` does not exist"
    );
    assert!(without_claim().claim("c", one()).is_placed());
    let other = || exactly(json!({ "deviceClassName": "other" }));
    let mut world = without_claim().claim("c", other());
    assert!(
        why(&world.plan(), "p").ends_with("device class `other` does not exist"),
        "{}",
        why(&world.plan(), "p")
    );
    world.cluster.apply_device_class(&read(
        json!({ "metadata": { "name": "other" }, "spec": {} }),
    ));
    assert!(world.is_placed());
    let no_device = with_gpus(0).claim("c", one()).with(using("p", "c"));
    assert!(
        why(&no_device.plan(), "p").ends_with("no devices left that satisfy the resource claims")
    );
    // The resource claim controller creates the claim of a template.
    let from_template = |status: Value| {
        let pod = pod("p")
            .cpu("100m")
            .push(
                "/spec/resourceClaims",
                json!({ "name": "gpu", "resourceClaimTemplateName": "t" }),
            )
            .set("/status/resourceClaimStatuses", status);
        with_gpus(1).claim("made", one()).with(pod).plan()
    };
    assert_eq!(
        why(&from_template(json!([])), "p"),
        "resource claim of template entry `gpu` has not been created yet"
    );
    let made = from_template(json!([{ "name": "gpu", "resourceClaimName": "made" }]));
    assert_eq!(planned(&made), ["p on gpu"]);
    let needless = from_template(json!([{ "name": "gpu" }]));
    assert_eq!(planned(&needless), ["p on plain gpu"]);
}

/// Conformance: SCH-171
#[test]
fn each_device_is_allocated_once() {
    let pods = || [using("p", "c"), using("q", "d")];
    let two = with_gpus(2)
        .claim("c", one())
        .claim("d", one())
        .with(pods());
    assert_eq!(planned(&two.plan()), ["p q on gpu"]);
    let mut single = with_gpus(1)
        .claim("c", one())
        .claim("d", one())
        .with(pods());
    let plan = single.launch_and_bind();
    assert_eq!(plan.new_node_claims.len(), 2, "{:?}", planned(&plan));
    // The nodes run, their drivers have published the devices, and the claims hold them.
    let nodes: Vec<String> = (single.cluster.snapshot().nodes())
        .map(|node| node.name().to_owned())
        .collect();
    let mut world = single;
    for (node, claim, uid) in [(&nodes[0], "c", "p"), (&nodes[1], "d", "q")] {
        world = world
            .slice(node, Some(node), json!({ "nodeName": node }), gpus(1))
            .claim_held(claim, one(), held(node, "gpu-0", uid));
    }
    let world = world.claim("e", one()).with(using("r", "e"));
    assert_eq!(planned(&world.plan()), ["r on gpu"]);
}

fn held(pool: &str, device: &str, uid: &str) -> Value {
    json!({
        "allocation": { "devices": { "results": [{ "request": "gpu", "driver": DRIVER, "pool": pool, "device": device }] } },
        "reservedFor": [{ "resource": "pods", "name": uid, "uid": uid }],
    })
}

/// Returns a node of the pool that is ready for pods, with room.
fn running_node(name: &str) -> Object<Node> {
    node(name).cpu("8").memory("64Gi").pods("50")
}
