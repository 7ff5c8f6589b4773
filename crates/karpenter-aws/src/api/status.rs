//! The status of EC2NodeClass.
//!
//! UPSTREAM: pkg/apis/v1/ec2nodeclass_status.go

use k8s_openapi::api::core::v1::NodeSelectorRequirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use karpenter_api::conditions::{ConditionTypes, HasConditions, types};
use karpenter_api::crd::fields;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EC2NodeClass;

/// Condition types of EC2NodeClass.
pub mod condition_types {
    /// AMIs were found.
    pub const AMIS_READY: &str = "AMIsReady";
    /// Subnets were found.
    pub const SUBNETS_READY: &str = "SubnetsReady";
    /// Security groups were found.
    pub const SECURITY_GROUPS_READY: &str = "SecurityGroupsReady";
    /// An instance profile to launch instances with exists.
    pub const INSTANCE_PROFILE_READY: &str = "InstanceProfileReady";
    /// The validation that admission cannot do succeeded, and so did the dry-run calls to EC2.
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    /// The placement group was found, or the spec selects none.
    pub const PLACEMENT_GROUP_READY: &str = "PlacementGroupReady";
    /// Capacity reservations were resolved.
    // DIFFERS: the condition also exists without the feature gate ReservedCapacity, and is then True without a call to
    // EC2.
    pub const CAPACITY_RESERVATIONS_READY: &str = "CapacityReservationsReady";
}

/// The observed state of an EC2NodeClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EC2NodeClassStatus {
    /// Selected subnets, those with the most free IP addresses first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
    /// Selected security groups, ordered by ID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroup>,
    /// Selected capacity reservations, ordered by ID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capacity_reservations: Vec<CapacityReservation>,
    /// Selected AMIs, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub amis: Vec<Ami>,
    /// The instance profile that instances are launched with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_profile: Option<String>,
    /// Conditions of readiness and validation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::atomic_conditions")]
    pub conditions: Vec<Condition>,
}

/// A subnet that instances may be launched in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Subnet {
    /// The ID of the subnet.
    pub id: String,
    /// The name of the subnet's zone.
    pub zone: String,
    /// The ID of the subnet's zone, equal in all accounts.
    #[serde(rename = "zoneID", default, skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<String>,
}

/// A security group that instances are launched with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SecurityGroup {
    /// The ID of the security group.
    pub id: String,
    /// The name of the security group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An AMI, and the instance types that can boot it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ami {
    /// The ID of the AMI.
    pub id: String,
    /// Whether its owner has deprecated the AMI.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deprecated: bool,
    /// The name of the AMI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Requirements that an instance type must satisfy to boot the AMI.
    #[serde(default)]
    #[schemars(schema_with = "requirements")]
    pub requirements: Vec<NodeSelectorRequirement>,
}

/// A capacity reservation that instances may be launched into.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityReservation {
    /// The zone of the capacity reservation.
    pub availability_zone: String,
    /// When the capacity reservation ends; absent if it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::time")]
    pub end_time: Option<Time>,
    /// The ID of the capacity reservation.
    #[schemars(extend("pattern" = "^cr-[0-9a-z]+$"))]
    pub id: String,
    /// Which instances the reservation accepts: `open` or `targeted`.
    #[schemars(extend("enum" = ["open", "targeted"]))]
    pub instance_match_criteria: String,
    /// The instance type of the capacity reservation.
    pub instance_type: String,
    /// The ID of the account that owns the capacity reservation.
    #[serde(rename = "ownerID")]
    #[schemars(extend("pattern" = "^[0-9]{12}$"))]
    pub owner_id: String,
    /// The type of the capacity reservation.
    #[serde(default)]
    #[schemars(schema_with = "reservation_type")]
    pub reservation_type: ReservationType,
    /// Whether the owner of the reservation may reclaim its instances.
    #[serde(default, skip_serializing_if = "is_false")]
    pub interruptible: bool,
    /// Whether the capacity reservation is expiring.
    #[serde(default)]
    #[schemars(schema_with = "reservation_state")]
    pub state: ReservationState,
}

/// The type of a capacity reservation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationType {
    /// An on-demand capacity reservation.
    #[default]
    Default,
    /// A capacity block, reserved for a fixed period.
    CapacityBlock,
}

impl ReservationType {
    /// Returns the value of the label [`CAPACITY_RESERVATION_TYPE`](super::labels::CAPACITY_RESERVATION_TYPE).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::CapacityBlock => "capacity-block",
        }
    }
}

/// The state of a capacity reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReservationState {
    /// Instances can be launched into the reservation.
    #[default]
    Active,
    /// EC2 is about to terminate the instances of the reservation.
    Expiring,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn reservation_type(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["default", "capacity-block"], "x-default": "default" })
}

fn reservation_state(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "string", "enum": ["active", "expiring"], "x-default": "active" })
}

fn requirements(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "x-required": true,
        "items": {
            "type": "object",
            "required": ["key", "operator"],
            "properties": {
                "key": { "description": "The label key.", "type": "string" },
                "operator": { "description": "How the label relates to the values.", "type": "string" },
                "values": {
                    "description": "The values.", "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "atomic",
                },
            },
        },
    })
}

impl HasConditions for EC2NodeClass {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[
            condition_types::AMIS_READY,
            condition_types::SUBNETS_READY,
            condition_types::SECURITY_GROUPS_READY,
            condition_types::INSTANCE_PROFILE_READY,
            condition_types::VALIDATION_SUCCEEDED,
            condition_types::PLACEMENT_GROUP_READY,
            condition_types::CAPACITY_RESERVATIONS_READY,
        ],
    };

    fn conditions(&self) -> &[Condition] {
        &self.status.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.conditions
    }
}
