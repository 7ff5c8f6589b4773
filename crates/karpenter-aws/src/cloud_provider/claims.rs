//! Conversion of an instance into a NodeClaim.
//!
//! UPSTREAM: pkg/cloudprovider/cloudprovider.go, instanceToNodeClaim

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::instance_type::InstanceType;
use karpenter_core::resources::Resources;

use crate::api::labels::{resources, tags};
use crate::api::{EC2NodeClass, labels};
use crate::providers::instance::Instance;

/// Labels of reservations and placement groups are taken from the instance, not from the requirements of its type.
const OF_THE_INSTANCE: [&str; 5] = [
    labels::CAPACITY_RESERVATION_ID,
    labels::CAPACITY_RESERVATION_TYPE,
    labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
    labels::PLACEMENT_GROUP_ID,
    labels::PLACEMENT_GROUP_PARTITION,
];

/// Returns the NodeClaim of an instance. Without its type or node class, the fields that depend on them are left out.
#[must_use]
pub fn claim(
    name: &str,
    instance: &Instance,
    instance_type: Option<&InstanceType>,
    class: Option<&EC2NodeClass>,
) -> NodeClaim {
    let mut claim = NodeClaim::new(name, Default::default());
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    if let Some(t) = instance_type {
        for requirement in t.requirements.iter() {
            if let Some(value) = requirement.single()
                && !OF_THE_INSTANCE.contains(&requirement.key())
            {
                found.insert(requirement.key().to_owned(), value.to_owned());
            }
        }
        let keep = |mut amounts: Resources| {
            amounts
                .retain(|name, amount| amount != 0 && (name != resources::EFA || instance.efa > 0));
            amounts.to_quantities()
        };
        claim.status.capacity = keep(t.capacity.clone());
        claim.status.allocatable = keep(t.allocatable());
    }
    let mut put = |key: &str, value: &str| found.insert(key.to_owned(), value.to_owned());
    put(core_labels::INSTANCE_TYPE, &instance.type_);
    put(core_labels::ZONE, &instance.zone);
    let of_class = class.and_then(|c| {
        let subnets = c.status.subnets.iter();
        subnets
            .filter(|s| s.zone == instance.zone)
            .find_map(|s| s.zone_id.as_deref())
    });
    if let Some(id) = of_class.or(instance.zone_id.as_deref()) {
        put(labels::ZONE_ID, id);
    }
    put(core_labels::CAPACITY_TYPE, instance.capacity_type);
    put(labels::INSTANCE_TENANCY, &instance.tenancy);
    if let Some(reservation) = &instance.reservation {
        put(labels::CAPACITY_RESERVATION_ID, &reservation.id);
        put(labels::CAPACITY_RESERVATION_TYPE, reservation.type_);
        let interruptible = reservation.interruptible.to_string();
        put(labels::CAPACITY_RESERVATION_INTERRUPTIBLE, &interruptible);
    }
    if let Some(group) = &instance.placement_group {
        put(labels::PLACEMENT_GROUP_ID, group);
        if let Some(partition) = instance.partition {
            put(labels::PLACEMENT_GROUP_PARTITION, &partition.to_string());
        }
    }
    for key in [tags::NODE_POOL, labels::NODE_CLASS] {
        if let Some(value) = instance.tags.get(key) {
            put(key, value);
        }
    }
    claim.metadata.labels = Some(found);
    claim.metadata.creation_timestamp = Some(Time(instance.launched));
    if instance.is_ending() {
        claim.metadata.deletion_timestamp = Some(Time(instance.launched));
    }
    claim.status.provider_id = Some(instance.provider_id());
    claim.status.image_id = Some(instance.image_id.clone()).filter(|id| !id.is_empty());
    claim
}

#[cfg(test)]
mod tests {
    use karpenter_core::requirements::{Operator, Requirement, Requirements};

    use super::*;
    use crate::providers::instance::InReservation;

    fn instance() -> Instance {
        Instance {
            id: "i-1".into(),
            zone: "us-west-2a".into(),
            zone_id: Some("usw2-az1".into()),
            capacity_type: "on-demand",
            tags: [(tags::NODE_POOL.to_owned(), "pool".to_owned())].into(),
            ..Instance::default()
        }
    }

    fn instance_type() -> InstanceType {
        let mut requirements = Requirements::new();
        requirements.add(Requirement::equal(core_labels::ARCH, "amd64"));
        requirements.add(Requirement::equal(labels::CAPACITY_RESERVATION_ID, "cr-1"));
        requirements.add(Requirement::new(
            core_labels::ZONE,
            Operator::In,
            ["us-west-2a", "us-west-2b"],
        ));
        let capacity = Resources::new()
            .with("cpu", 1000)
            .with(resources::EFA, 4)
            .with("pods", 0);
        InstanceType::new("p4d.24xlarge", requirements, capacity)
    }

    #[test]
    fn adapters_count_only_where_they_are_attached() {
        let of = |efa: usize| {
            let instance = Instance { efa, ..instance() };
            claim("c", &instance, Some(&instance_type()), None)
                .status
                .capacity
        };
        assert!(!of(0).contains_key(resources::EFA));
        assert!(of(4).contains_key(resources::EFA));
        assert!(!of(4).contains_key("pods"), "zero resources are left out");
    }

    /// Conformance: AWS-labels-06, AWS-instance-07
    #[test]
    fn labels_come_from_requirements_with_one_value_or_from_the_instance() {
        let plain = claim("c", &instance(), Some(&instance_type()), None);
        assert_eq!(plain.label(core_labels::ARCH), Some("amd64"));
        assert_eq!(plain.label(core_labels::ZONE), Some("us-west-2a"));
        assert_eq!(plain.label(labels::ZONE_ID), Some("usw2-az1"));
        assert_eq!(plain.label(labels::CAPACITY_RESERVATION_ID), None);
        assert_eq!(plain.node_pool(), Some("pool"));
        assert_eq!(
            plain.status.provider_id.as_deref(),
            Some("aws:///us-west-2a/i-1")
        );
        assert!(!plain.is_deleting());
        let mut reserved = instance();
        reserved.capacity_type = "reserved";
        reserved.state = "shutting-down".into();
        reserved.reservation = Some(InReservation {
            id: "cr-2".into(),
            type_: "capacity-block",
            interruptible: false,
        });
        let reserved = claim("c", &reserved, Some(&instance_type()), None);
        assert_eq!(
            reserved.label(labels::CAPACITY_RESERVATION_ID),
            Some("cr-2")
        );
        assert_eq!(
            reserved.label(labels::CAPACITY_RESERVATION_TYPE),
            Some("capacity-block")
        );
        assert!(reserved.is_deleting());
    }
}
