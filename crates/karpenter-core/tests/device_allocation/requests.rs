//! What a claim can request: all devices, alike devices, alternatives, shares and partitions.

use karpenter_core::dra::{Failure, Host};
use karpenter_core::requirements::Requirements;
use serde_json::{Value, json};

use crate::{
    DRIVER, allocate, claim, claim_with, fresh, gpus, inventory, node, one_gpu, place, publish,
    slice_spec, template,
};

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

/// Conformance: SCH-279
#[test]
fn a_device_that_a_later_request_needs_is_left_to_it() {
    let mut inventory = inventory();
    let model =
        |name: &str, model: &str| json!({"name": name, "attributes": {"model": {"string": model}}});
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!([model("a", "h100"), model("b", "k80")]),
    );
    let expression = format!("device.attributes['{DRIVER}'].model == 'h100'");
    let only = json!([{"cel": {"expression": expression}}]);
    let devices = json!({"requests": [
        {"name": "any", "exactly": {"deviceClassName": "gpu"}},
        {"name": "best", "exactly": {"deviceClassName": "gpu", "selectors": only}},
    ]});
    claim(&mut inventory, "c", devices);
    let mut allocator = fresh(&inventory);
    let none = Requirements::new();
    assert!(place(&mut allocator, &node("n"), &none, &[], &["c"]).is_ok());
}

/// Conformance: SCH-280
#[test]
fn admin_access_and_taints_of_devices_are_ignored() {
    let mut inventory = inventory();
    let tainted =
        json!({"name": "a", "taints": [{"key": "broken", "value": "yes", "effect": "NoExecute"}]});
    let on_node = json!({"nodeName": "n"});
    publish(&mut inventory, "pool", on_node, json!([tainted]));
    let admin = gpus(json!({"deviceClassName": "gpu", "adminAccess": true}));
    claim(&mut inventory, "admin", admin);
    claim(&mut inventory, "user", one_gpu());
    let mut allocator = fresh(&inventory);
    let none = Requirements::new();
    assert!(place(&mut allocator, &node("n"), &none, &[], &["admin"]).is_ok());
    assert_eq!(
        place(&mut allocator, &node("n"), &none, &[], &["user"]),
        Err(Failure::NoDevices),
        "access by an administrator takes the device as any other request does"
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

#[test]
fn a_device_with_the_largest_amount_is_used_up_by_one_share_of_it() {
    let mut inventory = inventory();
    let range = json!({"validRange": {"min": "-1e29", "max": "1e29", "step": "1e29"}});
    let device = json!({
        "name": "gpu-0",
        "allowMultipleAllocations": true,
        "capacity": {"memory": {"value": "1e29", "requestPolicy": range}},
    });
    publish(
        &mut inventory,
        "pool",
        json!({"nodeName": "n"}),
        json!([device]),
    );
    let all = |memory: &str| {
        gpus(json!({"deviceClassName": "gpu", "capacity": {"requests": {"memory": memory}}}))
    };
    claim(&mut inventory, "a", all("1e29"));
    claim(&mut inventory, "b", all("1"));
    let held = json!({"driver": DRIVER, "pool": "pool", "device": "gpu-0", "request": "gpu", "consumedCapacity": {"memory": "1e29"}});
    let status = json!({"allocation": {"devices": {"results": [held, held]}}});
    claim_with(&mut inventory, "allocated", all("1e29"), status);
    let none = Requirements::new();
    let mut allocator = fresh(&inventory);
    for name in ["a", "b"] {
        assert_eq!(
            place(&mut allocator, &node("n"), &none, &[], &[name]),
            Err(Failure::NoDevices),
            "the sum of both shares is more than any number of units"
        );
    }
    inventory
        .claims
        .remove(&("default".to_owned(), "allocated".to_owned()));
    let mut allocator = fresh(&inventory);
    assert!(place(&mut allocator, &node("n"), &none, &[], &["a"]).is_ok());
    assert!(place(&mut allocator, &node("n"), &none, &[], &["b"]).is_err());
}

#[test]
fn devices_that_draw_the_largest_amounts_exhaust_a_counter() {
    let mut inventory = inventory();
    let draws = |name: &str| json!({"name": name, "consumesCounters": [{"counterSet": "gpu", "counters": {"memory": {"value": "1e29"}}}]});
    let counters =
        json!({"sharedCounters": [{"name": "gpu", "counters": {"memory": {"value": "1e29"}}}]});
    let spec = slice_spec(
        "node",
        counters,
        json!([draws("mig-0"), draws("mig-1"), draws("mig-2")]),
    );
    for name in ["a", "b"] {
        claim(&mut inventory, name, one_gpu());
    }
    let mut allocator = fresh(&inventory);
    allocator.expect(0, &[template(&spec)]);
    let (none, first) = (Requirements::new(), Host::Planned(0));
    assert!(place(&mut allocator, &first, &none, &[0], &["a"]).is_ok());
    assert!(place(&mut allocator, &first, &none, &[0], &["b"]).is_err());
}
