//! Pods with resource claims: which instance types and nodes they get for their devices.

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

fn plain(name: &str, cores: i64, price: f64) -> InstanceType {
    with_devices(name, cores, price, json!({}), json!([]))
}

fn gpus(count: usize) -> Value {
    (0..count)
        .map(|index| json!({ "name": format!("gpu-{index}") }))
        .collect()
}

/// Returns a world with a class `gpu` and a NodePool of these types, in which claims are served.
fn world(types: Vec<InstanceType>) -> World {
    let mut world = World::empty()
        .with_types(types.into())
        .with_pool(node_pool("default"));
    world.policy.ignore_dra_requests = false;
    world.cluster.apply_device_class(&read(json!({
        "metadata": { "name": "gpu" },
        "spec": { "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] },
    })));
    world
}

/// Returns an instance type without devices and a more expensive one with `count` devices.
fn with_gpus(count: usize) -> World {
    world(vec![
        plain("plain", 8, 0.1),
        with_devices("gpu", 8, 1.0, json!({}), gpus(count)),
    ])
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
fn with_the_flag_pods_with_claims_fail_and_daemons_with_claims_do_not_count() {
    // The API server admits only containers that name claims of the pod. So it does not matter which container uses the claim.
    let claims = |user: &str| match user {
        "pod" => using("p", "c"),
        user => using("p", "c").set(
            &format!("/spec/{user}"),
            json!([{ "name": "x", "resources": { "claims": [{ "name": "gpu" }] } }]),
        ),
    };
    for user in ["pod", "initContainers", "containers"] {
        let mut ignoring = with_gpus(1).claim("c", one()).with([claims(user)]);
        ignoring.policy.ignore_dra_requests = true;
        assert_eq!(
            why(&ignoring.plan(), "p"),
            "pod has Dynamic Resource Allocation requirements, which are not simulated",
            "{user}"
        );
    }
    let overhead = |ignore: bool| {
        let mut world = with_gpus(1).with([pod("p").cpu("1")]);
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
fn a_resource_claim_selects_a_type_with_the_device_and_the_node_claim_names_its_driver() {
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

/// Conformance: SCH-170
#[test]
fn a_pod_waits_for_missing_resource_claims_classes_and_devices() {
    let without_claim = || with_gpus(1).with([using("p", "c")]);
    assert_eq!(
        why(&without_claim().plan(), "p"),
        "resource claim `c` does not exist"
    );
    assert!(all_placed(&without_claim().claim("c", one()).plan()));
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
    assert!(all_placed(&world.plan()));
    let no_device = with_gpus(0).claim("c", one()).with([using("p", "c")]);
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
        with_gpus(1).claim("made", one()).with([pod]).plan()
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
    let world = world.claim("e", one()).with([using("r", "e")]);
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

/// Conformance: SCH-173
#[test]
fn a_published_device_of_a_node_is_used_before_a_new_node() {
    let on_node = |owner: &str, initialized: &str| {
        with_gpus(1)
            .with([running_node("n").set(
                "/metadata/labels/karpenter.sh~1initialized",
                json!(initialized),
            )])
            .slice("n", Some(owner), json!({ "nodeName": "n" }), gpus(1))
            .claim("c", one())
            .with([using("p", "c")])
            .plan()
    };
    assert_eq!(on_node("n", "true").existing.len(), 1);
    for (owner, initialized) in [("n", "false"), ("gone", "true")] {
        let plan = on_node(owner, initialized);
        assert_eq!(planned(&plan), ["p on gpu"], "{owner} {initialized}");
    }
}

/// Conformance: SCH-174
#[test]
fn a_zonal_device_decides_the_zone_of_the_node_and_a_shared_claim_is_allocated_once() {
    let in_zone = |zone: &str| json!({ "nodeSelector": { "nodeSelectorTerms": [term(&[(ZONE, "In", &[zone])])] } });
    let zoned = || {
        world(vec![plain("plain", 8, 0.1)])
            .slice("one", None, in_zone(Z1), json!([{ "name": "a" }]))
            .slice("two", None, in_zone(Z2), json!([{ "name": "b" }]))
            .claim("any", one())
            .claim(
                "all",
                exactly(json!({ "deviceClassName": "gpu", "count": 2 })),
            )
    };
    let plan = zoned().with([using("p", "any")]).plan();
    assert_eq!(values(&plan.new_node_claims[0], ZONE), [Z1]);
    let plan = zoned().with([using("p", "any").select(ZONE, Z2)]).plan();
    assert_eq!(
        values(&plan.new_node_claims[0], ZONE),
        [Z2],
        "the device that is accessible in the zone of the pod"
    );
    assert!(!all_placed(&zoned().with([using("p", "all")]).plan()));
    // Two pods of one claim: its device is local to a planned node, so both are placed there.
    let shared = with_gpus(1)
        .claim("c", one())
        .with([using("p", "c"), using("q", "c")]);
    assert_eq!(planned(&shared.plan()), ["p q on gpu"]);
    let apart = |name: &str| {
        using(name, "c")
            .label("app", "x")
            .anti_affinity(HOSTNAME, ("app", "x"))
    };
    let stuck = with_gpus(1)
        .claim("c", one())
        .with([apart("p"), apart("q")]);
    assert_eq!(stuck.plan().unplaced.len(), 1);
    // A device accessible from all nodes is allocated once, for pods on different nodes.
    let cluster_wide = world(vec![plain("plain", 8, 0.1)])
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
        let mut world = world(vec![plain("plain", 8, 0.1)])
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

/// Conformance: SCH-176
#[test]
fn shares_of_a_device_fill_planned_nodes() {
    let policy = json!({ "default": "4Gi", "validRange": { "min": "1Gi", "max": "12Gi" } });
    let device = json!([{
        "name": "gpu-0", "allowMultipleAllocations": true,
        "capacity": { "memory": { "value": "16Gi", "requestPolicy": policy } },
    }]);
    let share = |dimension: &str, amount: &str| {
        exactly(
            json!({ "deviceClassName": "gpu", "capacity": { "requests": { dimension: amount } } }),
        )
    };
    let serve = |claims: &[(&str, Value)]| {
        let mut world = world(vec![with_devices("gpu", 8, 1.0, json!({}), device.clone())]);
        for (index, (name, devices)) in claims.iter().enumerate() {
            // Larger pods are placed first: the claims are served in this order.
            let cpu = format!("{}m", 900 - 100 * index);
            world = world
                .claim(name, devices.clone())
                .with([using(name, name).cpu(&cpu)]);
        }
        planned(&world.plan())
    };
    let four = || share("memory", "4Gi");
    let three = [("a", four()), ("b", four()), ("c", four())];
    assert_eq!(serve(&three), ["a b c on gpu"]);
    let [a, b, c] = three;
    assert_eq!(
        serve(&[a, b, c, ("large", share("memory", "8Gi"))]),
        ["a b c on gpu", "large on gpu"]
    );
    assert_eq!(
        serve(&[
            ("a", share("memory", "8Gi")),
            ("default", one()),
            ("b", four())
        ]),
        ["a b default on gpu"]
    );
    for (dimension, amount) in [("memory", "17Gi"), ("memory", "13Gi"), ("cores", "1")] {
        assert!(
            serve(&[("x", share(dimension, amount))]).is_empty(),
            "{dimension} {amount}"
        );
    }
}

/// Conformance: SCH-177
#[test]
fn partitions_draw_from_shared_counters() {
    let parts = |all: &str, set: &str, amounts: &[&str]| {
        let devices: Vec<Value> = (amounts.iter().enumerate())
            .map(|(index, amount)| json!({
                "name": format!("part-{index}"),
                "consumesCounters": [{ "counterSet": set, "counters": { "memory": { "value": amount } } }],
            }))
            .collect();
        let counters = json!({ "sharedCounters": [{ "name": "gpu", "counters": { "memory": { "value": all } } }] });
        with_devices("gpu", 8, 1.0, counters, json!(devices))
    };
    let serve = |instance_type: InstanceType, count: usize| {
        let mut world = world(vec![instance_type]);
        for name in ["a", "b", "c"].iter().take(count) {
            world = world.claim(name, one()).with([using(name, name)]);
        }
        planned(&world.plan())
    };
    let halves = parts("80Gi", "gpu", &["40Gi", "40Gi", "40Gi"]);
    assert_eq!(serve(halves, 3), ["a b on gpu", "c on gpu"]);
    let large = parts("100Gi", "gpu", &["60Gi", "60Gi"]);
    assert_eq!(serve(large, 2), ["a on gpu", "b on gpu"]);
    let dangling = parts("80Gi", "other", &["40Gi"]);
    assert!(serve(dangling, 1).is_empty());
}

/// Conformance: SCH-172
#[test]
fn all_matching_devices_agreeing_attributes_and_the_first_alternative() {
    let model = |name: &str, model: &str| json!({ "name": name, "attributes": { "model": { "string": model } } });
    let serve = |devices: Value, claim: Value| {
        let world = world(vec![with_devices("gpu", 8, 1.0, json!({}), devices)]);
        let world = world.claim("a", claim).claim("b", one());
        planned(
            &world
                .with([using("a", "a").cpu("200m"), using("b", "b")])
                .plan(),
        )
    };
    let all = exactly(json!({ "deviceClassName": "gpu", "allocationMode": "All" }));
    assert_eq!(
        serve(gpus(3), all),
        ["a on gpu", "b on gpu"],
        "no device is left on the node whose devices are all allocated"
    );
    let pair = json!({
        "requests": [
            { "name": "x", "exactly": { "deviceClassName": "gpu" } },
            { "name": "y", "exactly": { "deviceClassName": "gpu" } },
        ],
        "constraints": [{ "matchAttribute": format!("{DRIVER}/model") }],
    });
    let alike = json!([model("a", "m"), model("b", "n"), model("c", "m")]);
    assert_eq!(serve(alike, pair.clone()), ["a b on gpu"]);
    let unlike = json!([model("a", "m"), model("b", "n")]);
    assert_eq!(serve(unlike, pair), ["b on gpu"]);
    let of_model = |name: &str, model: &str| {
        let expression = format!("device.attributes['{DRIVER}'].model == '{model}'");
        json!({ "name": name, "deviceClassName": "gpu", "selectors": [{ "cel": { "expression": expression } }] })
    };
    // `best` would have to match the attribute of `y`, which no other device has; the constraint does not cover `good`.
    let devices = json!([model("a", "m"), model("b", "n"), model("c", "m")]);
    let only = |wanted: &str| {
        exactly(json!({ "deviceClassName": "gpu", "selectors": of_model("", wanted)["selectors"] }))
    };
    let pair = |covered: &str| {
        let y = only("m")["requests"][0]["exactly"].clone();
        json!({
            "requests": [
                { "name": "x", "firstAvailable": [of_model("best", "n"), of_model("good", "m")] },
                { "name": "y", "exactly": y },
            ],
            "constraints": [{ "matchAttribute": format!("{DRIVER}/model"), "requests": [covered, "y"] }],
        })
    };
    let beside = |claim: Value| {
        let world = world(vec![with_devices(
            "gpu",
            8,
            1.0,
            json!({}),
            devices.clone(),
        )]);
        let world = world.claim("a", claim).claim("b", only("n"));
        planned(
            &world
                .with([using("a", "a").cpu("200m"), using("b", "b")])
                .plan(),
        )
    };
    assert_eq!(beside(pair("x/best")), ["a b on gpu"], "`n` is left");
    assert_eq!(
        beside(pair("x/good")),
        ["a on gpu", "b on gpu"],
        "`n` is preferred"
    );
}

/// Conformance: SCH-178
#[test]
fn the_devices_of_a_type_that_is_ruled_out_are_freed() {
    let of_kind = |name: &str, kind: &str| json!({ "name": name, "attributes": { "kind": { "string": kind } } });
    let wanting = |name: &str, kind: &str| {
        let expression = format!("device.attributes['{DRIVER}'].kind == '{kind}'");
        json!({ "name": name, "deviceClassName": "gpu", "selectors": [{ "cel": { "expression": expression } }] })
    };
    let net = || {
        let mut net = wanting("", "net");
        net.as_object_mut().unwrap().remove("name");
        net
    };
    let sized = |mut request: Value, gib: &str| {
        request["capacity"] = json!({ "requests": { "memory": gib } });
        request
    };
    let whole = |name: &str, further: Value| {
        let mut device = of_kind(name, "net");
        for (key, value) in further.as_object().into_iter().flatten() {
            device[key] = value.clone();
        }
        device
    };
    // A large node for `a` has a local device; a small one uses the device accessible from all nodes.
    let serve = |further: &Value, devices: &Value, a: &Value, b: &Value, filled: bool| {
        let types = vec![
            plain("plain", 8, 0.1),
            with_devices(
                "large",
                16,
                1.0,
                json!({}),
                json!([of_kind("own", "local")]),
            ),
        ];
        let mut everywhere = further.clone();
        everywhere["allNodes"] = json!(true);
        let mut world = world(types)
            .slice("net", None, everywhere, devices.clone())
            .claim("a", a.clone())
            .claim("b", b.clone())
            .with([
                using("a", "a").cpu("7500m").label("app", "x"),
                using("b", "b").select(INSTANCE_TYPE, "plain"),
            ]);
        if filled {
            // Only a large node has room for both.
            world.add(pod("filler").cpu("4").affinity(HOSTNAME, ("app", "x")));
        }
        let mut lines = planned(&world.plan());
        lines.sort();
        lines
    };
    let either = json!({ "requests": [{
        "name": "x", "firstAvailable": [wanting("local", "local"), wanting("net", "net")],
    }] });
    // Of the shared device the small node holds 12 GiB, the large one 4.
    let shares = json!({ "requests": [
        { "name": "x", "firstAvailable": [wanting("local", "local"), sized(wanting("net", "net"), "8Gi")] },
        { "name": "y", "exactly": sized(net(), "4Gi") },
    ] });
    let shared =
        json!({ "allowMultipleAllocations": true, "capacity": { "memory": { "value": "16Gi" } } });
    let draws = json!({ "consumesCounters": [{ "counterSet": "all", "counters": { "slots": { "value": "1" } } }] });
    let counters =
        json!({ "sharedCounters": [{ "name": "all", "counters": { "slots": { "value": "1" } } }] });
    for (further, devices, a, b) in [
        (
            json!({}),
            json!([whole("net-0", json!({}))]),
            &either,
            exactly(net()),
        ),
        (
            json!({}),
            json!([whole("net-0", shared)]),
            &shares,
            exactly(sized(net(), "8Gi")),
        ),
        (
            counters,
            json!([whole("net-0", draws.clone()), whole("net-1", draws)]),
            &either,
            exactly(net()),
        ),
    ] {
        let open = serve(&further, &devices, a, &b, false);
        assert_eq!(open, ["a on plain large"], "{devices}");
        let narrowed = serve(&further, &devices, a, &b, true);
        assert_eq!(narrowed, ["a filler on large", "b on plain"], "{devices}");
    }
}
