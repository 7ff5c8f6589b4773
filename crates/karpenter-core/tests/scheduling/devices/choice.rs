//! Which of several devices a claim gets, and when it gives them up.

use serde_json::{Value, json};

use super::{
    DRIVER, Devices, exactly, gpu_type, gpus, one, plain, planned, using, with_devices, world,
};
use crate::fixture::*;

/// Conformance: SCH-172
#[test]
fn all_matching_devices_agreeing_attributes_and_the_first_alternative() {
    let model = |name: &str, model: &str| json!({ "name": name, "attributes": { "model": { "string": model } } });
    let serve = |devices: Value, claim: Value| {
        let world = world(gpu_type(devices));
        let world = world.claim("a", claim).claim("b", one());
        let plan = world
            .with([using("a", "a").cpu("200m"), using("b", "b")])
            .plan();
        planned(&plan)
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
        let world = world(gpu_type(devices.clone()));
        let world = world.claim("a", claim).claim("b", only("n"));
        let plan = world
            .with([using("a", "a").cpu("200m"), using("b", "b")])
            .plan();
        planned(&plan)
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
            world.add(pod("filler").cpu("4").affinity(HOSTNAME, APP));
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
