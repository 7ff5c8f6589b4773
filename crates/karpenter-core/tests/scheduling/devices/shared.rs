//! Devices that several claims share: by capacity, and as partitions that draw from shared counters.

use karpenter_core::instance_type::InstanceType;
use serde_json::{Value, json};

use super::{Devices, exactly, gpu_type, one, planned, using, with_devices, world};

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
        let mut world = world(gpu_type(device.clone()));
        for (index, (name, devices)) in claims.iter().enumerate() {
            // Larger pods are placed first: the claims are served in this order.
            let cpu = format!("{}m", 900 - 100 * index);
            world = world
                .claim(name, devices.clone())
                .with(using(name, name).cpu(&cpu));
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
        let mut world = world(instance_type);
        for name in ["a", "b", "c"].iter().take(count) {
            world = world.claim(name, one()).with(using(name, name));
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
