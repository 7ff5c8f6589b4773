//! Capacity and overhead of instance types, per family and kubelet setting.

use serde_json::{Value, json};

use super::*;
use crate::api::{AmiFamily, EC2NodeClass};
use crate::providers::instance_type::tests::sample;

fn shape(family: AmiFamily, spec: Value) -> Shape {
    let mut class = EC2NodeClass::new("a", serde_json::from_value(spec).unwrap());
    class.spec.ami_family = Some(family.as_str().to_owned());
    Shape::of(&class, None).unwrap()
}

const SETTINGS: SizeSettings = SizeSettings {
    vm_memory_overhead_percent: 0.075,
    reserved_enis: 0,
};

fn sized(name: &str, shape: &Shape, settings: SizeSettings) -> Size {
    let kubelet = Evaluator::new(&shape.kubelet, true).ok().unwrap();
    let (size, problems) = size(&sample(name), shape, &kubelet, settings).unwrap();
    assert!(problems.is_empty());
    size
}

fn of(name: &str, family: AmiFamily, spec: Value) -> Size {
    sized(name, &shape(family, spec), SETTINGS)
}

/// Returns the maximum number of pods, and kube-reserved memory in MiB.
fn pods_and_memory(size: &Size) -> (i64, i64) {
    (
        size.capacity.get(PODS),
        size.overhead.kube_reserved.get(MEMORY) / MIB,
    )
}

use AmiFamily::{Al2, Al2023, Bottlerocket, Custom, Windows2019, Windows2022};

/// Conformance: AWS-capacity-01
#[test]
fn pods_follow_the_network_interfaces() {
    for family in [Al2, Al2023, Custom] {
        assert_eq!(
            pods_and_memory(&of("t3.large", family, json!({}))),
            (35, 640),
            "{family}"
        );
    }
}

/// Conformance: AWS-capacity-02
#[test]
fn memory_follows_the_network_interfaces_on_some_families() {
    let spec = json!({ "kubelet": { "maxPods": 10 } });
    for (family, memory) in [
        (Al2, 640),
        (Al2023, 640),
        (Custom, 640),
        (Bottlerocket, 365),
        (Windows2019, 365),
        (Windows2022, 365),
    ] {
        let size = of("t3.large", family, spec.clone());
        assert_eq!(pods_and_memory(&size), (10, memory), "{family}");
    }
}

/// Conformance: AWS-capacity-03, AWS-capacity-04
#[test]
fn reserved_interfaces_reduce_the_number_of_pods() {
    let with = |family, reserved_enis| {
        let settings = SizeSettings {
            reserved_enis,
            ..SETTINGS
        };
        pods_and_memory(&sized("t3.large", &shape(family, json!({})), settings))
    };
    assert_eq!(with(Al2, 1), (24, 640));
    assert_eq!(with(Al2023, 1), (24, 640));
    assert_eq!(with(Bottlerocket, 1), (24, 519));
    assert_eq!(with(Windows2022, 1), (110, 1465));
    assert_eq!(with(Al2023, 1_000_000).0, 0);
}

/// Conformance: AWS-capacity-05
#[test]
fn pods_per_core_is_an_upper_bound() {
    let of = |family, kubelet: Value| {
        of("m5.xlarge", family, json!({ "kubelet": kubelet }))
            .capacity
            .get(PODS)
    };
    assert_eq!(of(Al2023, json!({ "podsPerCore": 2 })), 8);
    assert_eq!(of(Al2023, json!({ "podsPerCore": 2, "maxPods": 5 })), 5);
    assert_eq!(of(Al2023, json!({ "podsPerCore": 20, "maxPods": 50 })), 50);
    assert_eq!(of(Bottlerocket, json!({ "podsPerCore": 2 })), 58);
    assert_eq!(of(Al2023, json!({ "podsPerCore": 0 })), 58);
    assert_eq!(of(Windows2022, json!({ "podsPerCore": 2 })), 8);
}

/// Conformance: AWS-capacity-06
#[test]
fn efa_only_interfaces_on_the_default_card_reduce_the_number_of_pods() {
    let with = |card: u32, device: u32| {
        let interfaces = json!([
            { "networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface" },
            { "networkCardIndex": card, "deviceIndex": device, "interfaceType": "efa-only" },
        ]);
        of(
            "m6idn.32xlarge",
            Al2023,
            json!({ "networkInterfaces": interfaces }),
        )
    };
    assert_eq!(with(1, 0).capacity.get(PODS), 394);
    assert_eq!(with(0, 1).capacity.get(PODS), 345);
    assert_eq!(with(0, 1).capacity.get(resources::EFA), 1);
    let none = of("m6idn.32xlarge", Al2023, json!({}));
    assert_eq!(none.capacity.get(resources::EFA), 2);
}

/// Conformance: AWS-capacity-17
#[test]
fn the_hypervisor_keeps_a_share_of_the_memory_and_arm64_64_mib_besides() {
    for (name, mib) in [("m5.large", 7577), ("c6g.large", 3729)] {
        let size = of(name, Al2023, json!({}));
        assert_eq!(size.capacity.get(MEMORY) / MIB, mib, "{name}");
    }
    let none = SizeSettings {
        vm_memory_overhead_percent: 0.0,
        ..SETTINGS
    };
    for (name, mib) in [("m5.large", 8192), ("c6g.large", 4032)] {
        let size = sized(name, &shape(Al2023, json!({})), none);
        assert_eq!(size.capacity.get(MEMORY) / MIB, mib, "{name}");
    }
}

/// Conformance: AWS-capacity-20
#[test]
fn devices_are_counted_by_their_makers() {
    let counts = |info: &InstanceTypeInfo| {
        let size = capacity(info, &shape(Al2023, json!({})), 0, 0, 0);
        [
            "nvidia.com/gpu",
            "amd.com/gpu",
            "habana.ai/gaudi",
            "aws.amazon.com/neuron",
            "aws.amazon.com/neuroncore",
            "vpc.amazonaws.com/efa",
        ]
        .map(|name| size.get(name))
    };
    for (name, expected) in [
        ("g5.12xlarge", [4, 0, 0, 0, 0, 1]),
        ("g4ad.16xlarge", [0, 4, 0, 0, 0, 0]),
        ("inf2.24xlarge", [0, 0, 0, 6, 12, 0]),
        ("trn1.2xlarge", [0, 0, 0, 1, 2, 0]),
        ("p5.48xlarge", [8, 0, 0, 0, 0, 32]),
        ("m5.large", [0; 6]),
    ] {
        assert_eq!(counts(&sample(name)), expected, "{name}");
    }
    let mut mixed = sample("g5.12xlarge");
    for (manufacturer, count) in [("NVIDIA", 2), ("Habana", 8), ("Habana", 1), ("Other", 5)] {
        let mut gpu = mixed.gpus[0].clone();
        (gpu.manufacturer, gpu.count) = (manufacturer.to_owned(), count);
        mixed.gpus.push(gpu);
    }
    assert_eq!(counts(&mixed), [6, 0, 9, 0, 0, 1], "summed up");
}

/// Conformance: AWS-capacity-21
#[test]
fn each_band_of_cores_keeps_its_share_cut_to_millicores() {
    for (vcpus, millis) in [
        (1, 60),
        (2, 70),
        (3, 75),
        (4, 80),
        (5, 82),
        (8, 90),
        (96, 310),
    ] {
        assert_eq!(
            default_kube_reserved(vcpus, 0).get(CPU),
            millis,
            "{vcpus} cores"
        );
    }
}

/// Conformance: AWS-capacity-07, AWS-capacity-23
#[test]
fn kube_reserved_follows_the_number_of_cores_and_pods() {
    let size = of("m5.xlarge", Al2023, json!({}));
    let kept = &size.overhead.kube_reserved;
    assert_eq!(
        (
            kept.get(CPU),
            kept.get(MEMORY) / MIB,
            kept.get(EPHEMERAL_STORAGE)
        ),
        (80, 893, GIB)
    );
    assert!(size.overhead.system_reserved.is_zero());
    let user = of(
        "m5.xlarge",
        Al2023,
        json!({ "kubelet": { "kubeReserved": { "cpu": "1", "pid": "100" }, "systemReserved": { "memory": "1Gi" } } }),
    );
    assert_eq!(user.overhead.kube_reserved.get(CPU), 1000);
    assert_eq!(user.overhead.kube_reserved.get(MEMORY) / MIB, 893);
    assert!(!user.overhead.kube_reserved.contains("pid"));
    assert_eq!(user.overhead.system_reserved.get(MEMORY), GIB);
}

/// Conformance: AWS-capacity-08, AWS-capacity-09, AWS-capacity-10
#[test]
fn hard_eviction_thresholds_are_overhead_and_soft_ones_are_not() {
    let of = |family, kubelet: Value| of("m5.xlarge", family, json!({ "kubelet": kubelet }));
    let hard = |threshold: &str| {
        let size = of(
            Al2023,
            json!({ "evictionHard": { "memory.available": threshold } }),
        );
        (
            size.overhead.eviction_threshold.get(MEMORY),
            size.capacity.get(MEMORY),
        )
    };
    assert_eq!(hard("500Mi").0, 500 * MIB);
    let (tenth, memory) = hard("10%");
    assert_eq!(tenth, (memory + 9) / 10);
    assert_eq!(hard("100%").0, 0);
    let soft = of(
        Al2023,
        json!({ "evictionSoft": { "memory.available": "3Gi" } }),
    );
    assert_eq!(soft.overhead.eviction_threshold.get(MEMORY), 100 * MIB);
    let bottlerocket = of(
        Bottlerocket,
        json!({ "evictionHard": { "memory.available": "1Gi" } }),
    );
    assert_eq!(bottlerocket.overhead.eviction_threshold.get(MEMORY), GIB);
    let disk = of(
        Al2023,
        json!({ "evictionHard": { "nodefs.available": "1Gi" } }),
    );
    assert_eq!(disk.overhead.eviction_threshold.get(EPHEMERAL_STORAGE), GIB);
}

/// Conformance: AWS-capacity-11
#[test]
fn a_volume_without_a_size_counts_as_20_gib() {
    for (family, device) in [
        (Custom, "/dev/xvda"),
        (Al2, "/dev/xvda"),
        (Al2023, "/dev/xvda"),
        (Bottlerocket, "/dev/xvdb"),
    ] {
        let spec = json!({ "blockDeviceMappings": [{ "deviceName": device, "ebs": { "snapshotID": "snap-1" } }] });
        let size = of("m5.xlarge", family, spec);
        assert_eq!(size.capacity.get(EPHEMERAL_STORAGE), 20 * GIB, "{family}");
    }
    let nothing = json!({ "blockDeviceMappings": [{}] });
    assert_eq!(
        of("m5.xlarge", Al2023, nothing)
            .capacity
            .get(EPHEMERAL_STORAGE),
        20 * GIB
    );
}

/// Conformance: AWS-capacity-12
#[test]
fn joined_local_disks_are_the_ephemeral_storage() {
    let mapping = json!([{ "deviceName": "/dev/xvda", "ebs": { "volumeSize": "20Gi" } }]);
    let joined = json!({ "instanceStorePolicy": "RAID0", "blockDeviceMappings": mapping });
    let apart = json!({ "blockDeviceMappings": mapping });
    let storage = |name: &str, spec: &Value| {
        of(name, Al2023, spec.clone())
            .capacity
            .get(EPHEMERAL_STORAGE)
    };
    assert_eq!(storage("g4dn.8xlarge", &joined), 900_000_000_000);
    assert_eq!(storage("g4dn.8xlarge", &apart), 20 * GIB);
    assert_eq!(storage("m5.xlarge", &joined), 20 * GIB);
}

/// Conformance: AWS-capacity-13
#[test]
fn the_root_volume_takes_precedence_over_the_family_s_device() {
    let spec = json!({ "blockDeviceMappings": [
            { "deviceName": "/dev/xvda", "ebs": { "volumeSize": "30Gi" } },
            { "deviceName": "/dev/sdz", "rootVolume": true, "ebs": { "volumeSize": "40G" } },
        ] });
    let storage = |family, spec: &Value| {
        of("m5.xlarge", family, spec.clone())
            .capacity
            .get(EPHEMERAL_STORAGE)
    };
    assert_eq!(storage(Al2023, &spec), 40_000_000_000);
    let mut plain = spec;
    plain["blockDeviceMappings"][1]["rootVolume"] = false.into();
    assert_eq!(storage(Al2023, &plain), 30 * GIB);
    assert_eq!(storage(Custom, &plain), 40_000_000_000);
    assert_eq!(storage(Bottlerocket, &plain), 20 * GIB);
    assert_eq!(storage(Windows2022, &json!({})), 50 * GIB);
}

/// Conformance: AWS-capacity-19
#[test]
fn a_mapping_without_a_size_keeps_the_family_s_default() {
    let storage = |family, spec: Value| {
        of("m5.xlarge", family, spec)
            .capacity
            .get(EPHEMERAL_STORAGE)
    };
    let windows = json!({ "blockDeviceMappings": [{ "deviceName": "/dev/sda1", "ebs": { "encrypted": true } }] });
    assert_eq!(storage(Windows2022, windows), 50 * GIB);
    let root = json!({ "blockDeviceMappings": [
            { "deviceName": "/dev/sdz", "rootVolume": true, "ebs": { "encrypted": true } },
            { "deviceName": "/dev/xvda", "ebs": { "volumeSize": "30Gi" } },
        ] });
    assert_eq!(
        storage(Al2023, root),
        30 * GIB,
        "the family's own device is next"
    );
}

/// Conformance: AWS-cel-08
#[test]
fn reserved_expressions_see_the_resolved_number_of_pods() {
    let kubelet = json!({ "maxPods": "max_pods / 2", "kubeReserved": { "cpu": "max_pods * 10" } });
    let size = of("m5.xlarge", Al2023, json!({ "kubelet": kubelet }));
    assert_eq!(size.kubelet.max_pods, 29);
    assert_eq!(size.kubelet.kube_reserved["cpu"], "290m");
    assert_eq!(size.overhead.kube_reserved.get(CPU), 290);
}

/// Conformance: AWS-types-02, AWS-capacity-24
#[test]
fn windows_pods_need_types_with_known_addresses() {
    let windows = of("m5.xlarge", Windows2022, json!({}));
    assert_eq!(windows.capacity.get(resources::PRIVATE_IPV4_ADDRESS), 14);
    assert!(
        !of("m5.xlarge", Al2023, json!({}))
            .capacity
            .contains(resources::PRIVATE_IPV4_ADDRESS)
    );
    let mut unknown = sample("m5.xlarge");
    unknown.name = "z99.huge".to_owned();
    let shape = shape(Windows2022, json!({}));
    let kubelet = Evaluator::new(&shape.kubelet, false).ok().unwrap();
    let (size, _) = size(&unknown, &shape, &kubelet, SETTINGS).unwrap();
    assert!(!size.capacity.contains(resources::PRIVATE_IPV4_ADDRESS));
}

/// Conformance: AWS-types-01, AWS-capacity-24
#[test]
fn types_without_trunking_carry_no_pods_with_security_groups() {
    assert!(
        !of("t3.large", Al2023, json!({}))
            .capacity
            .contains(resources::AWS_POD_ENI)
    );
    assert_eq!(
        of("m5.large", Al2023, json!({}))
            .capacity
            .get(resources::AWS_POD_ENI),
        9
    );
}
