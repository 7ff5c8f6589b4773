//! Compatibility of instance types with a class.
//!
//! UPSTREAM: pkg/providers/instancetype/compatibility

use super::{InstanceTypeInfo, Shape};
use crate::api::AmiFamily;

/// Returns whether instances of the type can be launched with the settings of the class.
pub(super) fn is_compatible(info: &InstanceTypeInfo, shape: &Shape) -> bool {
    family(info, shape)
        && interfaces(info, shape)
        && (!shape.nested_virtualization || info.nested_virtualization)
        && (!shape.connection_tracking || info.hypervisor.as_deref() == Some("nitro"))
        && placement(info, shape)
}

/// Graviton1 cannot boot Amazon Linux 2023.
fn family(info: &InstanceTypeInfo, shape: &Shape) -> bool {
    shape.family != AmiFamily::Al2023 || !info.name.starts_with("a1.")
}

fn interfaces(info: &InstanceTypeInfo, shape: &Shape) -> bool {
    if shape.interfaces.is_empty() {
        return true;
    }
    let fits = |card: i32, device: i32| {
        let card = u32::try_from(card)
            .ok()
            .and_then(|card| info.network.card(card));
        let device = u32::try_from(device).ok();
        card.zip(device)
            .is_some_and(|(card, device)| device < card.max_interfaces)
    };
    info.network.ena
        && shape.efa_only() <= info.network.max_efa
        && shape
            .interfaces
            .iter()
            .all(|interface| fits(interface.network_card_index, interface.device_index))
}

fn placement(info: &InstanceTypeInfo, shape: &Shape) -> bool {
    let group = shape.placement_group.as_ref();
    group.is_none_or(|group| info.placement_strategies.contains(&group.strategy))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::EC2NodeClass;
    use crate::providers::instance_type::PlacementGroup;
    use crate::providers::instance_type::tests::sample;

    fn shape(spec: Value) -> Shape {
        let class = EC2NodeClass::new("a", serde_json::from_value(spec).unwrap());
        Shape::of(&class, None).unwrap()
    }

    /// Conformance: AWS-types-08
    #[test]
    fn the_first_graviton_cannot_boot_al2023() {
        let mut a1 = sample("c6g.large");
        a1.name = "a1.large".to_owned();
        for (family, expected) in [("AL2023", false), ("Bottlerocket", true), ("Custom", true)] {
            assert_eq!(
                is_compatible(&a1, &shape(json!({ "amiFamily": family }))),
                expected,
                "{family}"
            );
        }
        assert!(is_compatible(
            &sample("c6g.large"),
            &shape(json!({ "amiFamily": "AL2023" }))
        ));
    }

    /// Conformance: AWS-types-09
    #[test]
    fn interfaces_need_their_card_device_and_adapters() {
        let with = |card: i32, device: i32, kind: &str| {
            shape(json!({ "networkInterfaces": [
                { "networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface" },
                { "networkCardIndex": card, "deviceIndex": device, "interfaceType": kind },
            ] }))
        };
        let big = sample("m6idn.32xlarge");
        let small = sample("m5.large");
        assert!(is_compatible(&big, &with(1, 0, "efa-only")));
        assert!(
            !is_compatible(&small, &with(1, 0, "interface")),
            "no such card"
        );
        assert!(is_compatible(&small, &with(0, 1, "interface")));
        assert!(
            !is_compatible(&small, &with(0, 3, "interface")),
            "no such device"
        );
        assert!(
            !is_compatible(&small, &with(0, 1, "efa-only")),
            "no adapters"
        );
        let three = shape(json!({ "networkInterfaces": [
            { "interfaceType": "interface" },
            { "networkCardIndex": 0, "deviceIndex": 1, "interfaceType": "efa-only" },
            { "networkCardIndex": 1, "deviceIndex": 0, "interfaceType": "efa-only" },
            { "networkCardIndex": 1, "deviceIndex": 1, "interfaceType": "efa-only" },
        ] }));
        assert!(!is_compatible(&big, &three), "two adapters at most");
        let mut old = small;
        old.network.ena = false;
        assert!(!is_compatible(&old, &with(0, 1, "interface")));
    }

    /// Conformance: AWS-types-10
    #[test]
    fn only_nitro_tracks_connections_as_asked() {
        let asked = shape(json!({ "connectionTracking": { "udpTimeout": 30 } }));
        assert!(is_compatible(&sample("m5.large"), &asked));
        let mut xen = sample("m5.large");
        xen.hypervisor = Some("xen".to_owned());
        assert!(!is_compatible(&xen, &asked));
        assert!(!is_compatible(&sample("m5.metal"), &asked));
    }

    /// Conformance: AWS-offering-04
    #[test]
    fn nested_virtualisation_and_placement_must_be_supported() {
        let nested = shape(json!({ "cpuOptions": { "nestedVirtualization": "enabled" } }));
        let mut info = sample("m5.large");
        assert!(!is_compatible(&info, &nested));
        info.nested_virtualization = true;
        assert!(is_compatible(&info, &nested));
        assert!(is_compatible(
            &sample("m5.large"),
            &shape(json!({ "cpuOptions": {} }))
        ));

        let mut grouped = shape(json!({}));
        grouped.placement_group = Some(PlacementGroup {
            id: "pg-1".into(),
            name: "group".into(),
            strategy: "cluster".into(),
            partitions: 0,
        });
        assert!(is_compatible(&info, &grouped));
        info.placement_strategies = vec!["spread".into()];
        assert!(!is_compatible(&info, &grouped));
    }
}
