//! What a claim can request: all devices, alike devices, alternatives, shares and partitions.

use karpenter_core::dra::Failure;
use serde_json::{Value, json};

use super::{DRIVER, FIRST, Pass, Stage, gpus, node, one_gpu, slice_spec};

/// Returns whether node `n` has devices for each of the claims in turn, which are allocated.
fn taken<const N: usize>(pass: &mut Pass<'_>, claims: [&str; N]) -> [bool; N] {
    claims.map(|claim| pass.takes(&node("n"), claim))
}

fn all() -> Value {
    gpus(json!({"deviceClassName": "gpu", "allocationMode": "All"}))
}

#[test]
fn mode_all_allocates_every_match_and_fails_if_one_is_allocated() {
    let stage = Stage::new()
        .on_node(json!([{"name": "a"}, {"name": "b"}]))
        .claims(&["all", "all-too"], &all())
        .claim("one", one_gpu());
    assert_eq!(taken(&mut stage.pass(), ["all", "one"]), [true, false]);
    assert_eq!(taken(&mut stage.pass(), ["one", "all-too"]), [true, false]);
}

/// Conformance: SCH-249
#[test]
fn an_incomplete_pool_satisfies_neither_an_exact_count_nor_mode_all() {
    let pool = json!({"pool": {"name": "half", "generation": 1, "resourceSliceCount": 2}});
    let stage = Stage::new()
        .publish("half", pool, json!([{"name": "a"}]))
        .publish("whole", json!({}), json!([{"name": "b"}]))
        .claim("one", one_gpu())
        .claim("two", gpus(json!({"deviceClassName": "gpu", "count": 2})))
        .claim("all", all());
    let fits = |claim| stage.pass().fits(&node("n"), claim);
    assert_eq!(["one", "two", "all"].map(fits), [true, false, false]);
}

#[test]
fn matched_attributes_agree_across_requests() {
    let with =
        |name: &str, root: &str| json!({"name": name, "attributes": {"root": {"string": root}}});
    let devices = json!([with("a", "r0"), with("b", "r1"), with("c", "r1"), {"name": "d"}]);
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "gpu"}});
    let pair = |attribute: &str| {
        json!({
            "requests": [request("x"), request("y")],
            "constraints": [{"matchAttribute": format!("{DRIVER}/{attribute}")}],
        })
    };
    let stage = Stage::new()
        .on_node(devices)
        .claim("pair", pair("root"))
        .claim("single", one_gpu())
        .claim("absent", pair("absent"));
    // b and c are allocated: a is left, and no other device has its attribute.
    let claims = ["pair", "single", "absent"];
    assert_eq!(taken(&mut stage.pass(), claims), [true, true, false]);
}

fn model(name: &str, model: &str) -> Value {
    json!({"name": name, "attributes": {"model": {"string": model}}})
}

fn selecting(model: &str) -> Value {
    let expression = format!("device.attributes['{DRIVER}'].model == '{model}'");
    json!([{"cel": {"expression": expression}}])
}

/// Conformance: SCH-279
#[test]
fn a_device_that_a_later_request_needs_is_left_to_it() {
    let only = selecting("h100");
    let devices = json!({"requests": [
        {"name": "any", "exactly": {"deviceClassName": "gpu"}},
        {"name": "best", "exactly": {"deviceClassName": "gpu", "selectors": only}},
    ]});
    let stage = Stage::new()
        .on_node(json!([model("a", "h100"), model("b", "k80")]))
        .claim("c", devices);
    assert!(stage.pass().takes(&node("n"), "c"));
}

/// Conformance: SCH-280
#[test]
fn admin_access_and_taints_of_devices_are_ignored() {
    let taint = json!({"key": "broken", "value": "yes", "effect": "NoExecute"});
    let admin = json!({"deviceClassName": "gpu", "adminAccess": true});
    let stage = Stage::new()
        .on_node(json!([{"name": "a", "taints": [taint]}]))
        .claim("admin", gpus(admin))
        .claim("user", one_gpu());
    let mut pass = stage.pass();
    assert!(pass.takes(&node("n"), "admin"));
    assert_eq!(
        pass.place(&node("n"), "user"),
        Err(Failure::NoDevices),
        "access by an administrator takes the device as any other request does"
    );
}

/// Returns a request of this much memory of a device.
fn share(memory: &str) -> Value {
    let capacity = json!({"requests": {"memory": memory}});
    gpus(json!({"deviceClassName": "gpu", "capacity": capacity}))
}

#[test]
fn devices_that_draw_the_largest_amounts_exhaust_a_counter() {
    let amount = json!({"memory": {"value": "1e29"}});
    let draws = json!([{"counterSet": "gpu", "counters": amount}]);
    let devices = ["x", "y", "z"].map(|name| json!({"name": name, "consumesCounters": draws}));
    let counters = json!({"sharedCounters": [{"name": "gpu", "counters": amount}]});
    let stage = Stage::new().claims(&["a", "b"], &one_gpu());
    let own = slice_spec("node", counters, json!(devices));
    let mut pass = stage.pass().with_type(&[own]);
    let first = ["a", "b"].map(|claim| pass.takes(&FIRST, claim));
    assert_eq!(first, [true, false]);
}

#[test]
fn a_device_with_the_largest_amount_is_used_up_by_one_share_of_it() {
    let range = json!({"validRange": {"min": "-1e29", "max": "1e29", "step": "1e29"}});
    let memory = json!({"memory": {"value": "1e29", "requestPolicy": range}});
    let device = json!({"name": "gpu-0", "allowMultipleAllocations": true, "capacity": memory});
    let stage = Stage::new()
        .on_node(json!([device]))
        .claim("a", share("1e29"))
        .claim("b", share("1"));
    assert_eq!(taken(&mut stage.pass(), ["a", "b"]), [true, false]);
    // The sum of two shares is more than any number of units.
    let held = json!({"driver": DRIVER, "pool": "pool", "device": "gpu-0", "request": "gpu", "consumedCapacity": {"memory": "1e29"}});
    let status = json!({"allocation": {"devices": {"results": [held, held]}}});
    let stage = stage.claim_with("allocated", share("1e29"), status);
    assert_eq!(taken(&mut stage.pass(), ["a", "b"]), [false; 2]);
}
