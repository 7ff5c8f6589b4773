//! An instance, reduced to the fields that are used.
//!
//! UPSTREAM: pkg/providers/instance/types.go

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_ec2::types as ec2;
use jiff::Timestamp;
use karpenter_api::labels as core_labels;

use crate::api::labels;
use crate::sdk::AwsError;

/// States of instances that have not been terminated.
pub(super) const STATES: [&str; 5] = ["pending", "running", "stopping", "stopped", "shutting-down"];

/// The capacity reservation an instance runs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InReservation {
    /// ID of the capacity reservation.
    pub id: String,
    /// Type of the reservation: `default` or `capacity-block`.
    pub type_: &'static str,
    /// Whether instances of the reservation may be interrupted.
    pub interruptible: bool,
}

/// An EC2 instance, reduced to the fields that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub id: String,
    pub type_: String,
    pub image_id: String,
    pub zone: String,
    /// ID of the zone, if EC2 reports it.
    pub zone_id: Option<String>,
    /// ID of the primary interface's subnet.
    pub subnet_id: String,
    pub security_groups: BTreeSet<String>,
    /// Capacity type: `spot`, `on-demand` or `reserved`.
    pub capacity_type: &'static str,
    /// The capacity reservation it runs in; set only if `capacity_type` is `reserved`.
    pub reservation: Option<InReservation>,
    /// Launch time.
    pub launched: Timestamp,
    /// State: `pending`, `running`, …
    pub state: String,
    /// Tenancy: `default` or `dedicated`.
    pub tenancy: String,
    pub placement_group: Option<String>,
    /// Number of the partition within the placement group.
    pub partition: Option<i32>,
    /// Number of attached Elastic Fabric Adapters.
    pub efa: usize,
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// Converts the SDK's instance. `reserved_capacity` is the feature gate ReservedCapacity.
    ///
    /// # Errors
    /// If a field that every instance has is missing.
    pub fn read(raw: &ec2::Instance, reserved_capacity: bool) -> Result<Self, AwsError> {
        let missing = |what: &str| {
            AwsError::unreadable("DescribeInstances", format!("an instance lacks {what}"))
        };
        let id = raw.instance_id().ok_or_else(|| missing("its id"))?;
        let placement = raw.placement();
        let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
        let launched = raw
            .launch_time()
            .and_then(|t| Timestamp::new(t.secs(), t.subsec_nanos().cast_signed()).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH);
        let reservation = reserved_capacity.then(|| in_reservation(raw)).flatten();
        let capacity_type = if raw
            .spot_instance_request_id()
            .is_some_and(|id| !id.is_empty())
        {
            core_labels::CAPACITY_TYPE_SPOT
        } else if reservation.is_some() {
            core_labels::CAPACITY_TYPE_RESERVED
        } else {
            core_labels::CAPACITY_TYPE_ON_DEMAND
        };
        let is_efa = |interface: &&ec2::InstanceNetworkInterface| {
            interface
                .interface_type()
                .is_some_and(|t| t.starts_with("efa"))
        };
        Ok(Self {
            type_: raw
                .instance_type()
                .ok_or_else(|| missing("its type"))?
                .as_str()
                .to_owned(),
            image_id: text(raw.image_id()),
            zone: text(placement.and_then(|p| p.availability_zone())),
            zone_id: placement
                .and_then(|p| p.availability_zone_id())
                .filter(|id| !id.is_empty())
                .map(str::to_owned),
            subnet_id: text(raw.subnet_id()),
            security_groups: raw
                .security_groups()
                .iter()
                .filter_map(|g| g.group_id().map(str::to_owned))
                .collect(),
            capacity_type,
            reservation: reservation
                .filter(|_| capacity_type == core_labels::CAPACITY_TYPE_RESERVED),
            launched,
            state: raw
                .state()
                .and_then(|s| s.name())
                .map(|n| n.as_str().to_owned())
                .unwrap_or_default(),
            tenancy: placement
                .and_then(|p| p.tenancy())
                .map_or(labels::TENANCY_DEFAULT, ec2::Tenancy::as_str)
                .to_owned(),
            placement_group: placement
                .and_then(|p| p.group_id())
                .filter(|id| !id.is_empty())
                .map(str::to_owned),
            partition: placement
                .and_then(|p| p.partition_number())
                .filter(|n| *n > 0),
            efa: raw.network_interfaces().iter().filter(is_efa).count(),
            tags: raw
                .tags()
                .iter()
                .filter_map(|t| {
                    Some((
                        t.key()?.to_owned(),
                        t.value().unwrap_or_default().to_owned(),
                    ))
                })
                .collect(),
            id: id.to_owned(),
        })
    }

    /// Returns the provider ID, `aws:///<zone>/<id>`.
    #[must_use]
    pub fn provider_id(&self) -> String {
        format!("aws:///{}/{}", self.zone, self.id)
    }

    /// Returns whether the instance is shutting down or terminated.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        matches!(self.state.as_str(), "shutting-down" | "terminated")
    }
}

/// Returns the reservation of an instance that was launched with it as a target. An instance in an open reservation
/// that it happens to match counts as on demand.
fn in_reservation(raw: &ec2::Instance) -> Option<InReservation> {
    let id = raw.capacity_reservation_id().filter(|id| !id.is_empty())?;
    let asked = raw.capacity_reservation_specification()?;
    let only = ec2::CapacityReservationPreference::CapacityReservationsOnly;
    let targeted = asked.capacity_reservation_preference() == Some(&only);
    let lifecycle = raw.instance_lifecycle().map(|l| l.as_str());
    targeted.then(|| InReservation {
        id: id.to_owned(),
        type_: if lifecycle == Some("capacity-block") {
            "capacity-block"
        } else {
            "default"
        },
        interruptible: lifecycle == Some("interruptible-capacity-reservation"),
    })
}

/// Returns the instance ID in a provider ID.
#[must_use]
pub fn instance_id(provider_id: &str) -> Option<&str> {
    let (zone, id) = provider_id.strip_prefix("aws:///")?.split_once('/')?;
    let tail = id.strip_prefix("i-")?;
    let well_formed = !tail.is_empty() && tail.bytes().all(|b| b.is_ascii_alphanumeric());
    (!zone.is_empty() && well_formed).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: AWS-labels-07
    #[test]
    fn provider_ids_are_read_strictly() {
        assert_eq!(instance_id("aws:///us-west-2a/i-0abc"), Some("i-0abc"));
        for bad in [
            "aws:///us-west-2a/",
            "aws:////i-0abc",
            "gce:///z/i-1",
            "aws:///z/i-1/x",
            "i-1",
            "",
        ] {
            assert_eq!(instance_id(bad), None, "{bad}");
        }
    }

    fn raw() -> aws_sdk_ec2::types::builders::InstanceBuilder {
        ec2::Instance::builder()
            .instance_id("i-1")
            .instance_type(ec2::InstanceType::from("m5.large"))
    }

    fn reserved(preference: ec2::CapacityReservationPreference) -> ec2::Instance {
        let asked = ec2::CapacityReservationSpecificationResponse::builder()
            .capacity_reservation_preference(preference)
            .build();
        raw()
            .capacity_reservation_id("cr-1")
            .capacity_reservation_specification(asked)
            .build()
    }

    /// Conformance: AWS-instance-04
    #[test]
    fn an_instance_is_reserved_only_in_its_reservation_with_the_gate_on() {
        use ec2::CapacityReservationPreference as P;
        let type_of = |raw: &ec2::Instance, gate| Instance::read(raw, gate).unwrap().capacity_type;
        assert_eq!(
            type_of(&reserved(P::CapacityReservationsOnly), true),
            "reserved"
        );
        assert_eq!(
            type_of(&reserved(P::CapacityReservationsOnly), false),
            "on-demand"
        );
        assert_eq!(type_of(&reserved(P::Open), true), "on-demand");
        assert_eq!(type_of(&reserved(P::Open), false), "on-demand");
        let spot = raw().spot_instance_request_id("sir-1").build();
        assert_eq!(type_of(&spot, true), "spot");
    }
}
