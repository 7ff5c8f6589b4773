//! What was observed for an EC2NodeClass.
//!
//! UPSTREAM: pkg/apis/v1/ec2nodeclass_status.go

use k8s_openapi::{
    api::core::v1::NodeSelectorRequirement,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use karpenter_api::{
    conditions::{ConditionTypes, HasConditions, types},
    crd::fields,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EC2NodeClass;

/// Types of an EC2NodeClass' conditions.
pub mod condition_types {
    /// Machine images were found.
    pub const AMIS_READY: &str = "AMIsReady";
    /// Subnets were found.
    pub const SUBNETS_READY: &str = "SubnetsReady";
    /// Security groups were found.
    pub const SECURITY_GROUPS_READY: &str = "SecurityGroupsReady";
    /// There is an instance profile to launch with.
    pub const INSTANCE_PROFILE_READY: &str = "InstanceProfileReady";
    /// What admission cannot check is in order, and AWS would let us launch.
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    /// The placement group was found, or none is asked for.
    pub const PLACEMENT_GROUP_READY: &str = "PlacementGroupReady";
    /// Capacity reservations were looked for.
    // DIFFERS: it is there without the feature gate ReservedCapacity, too, and then True without looking.
    pub const CAPACITY_RESERVATIONS_READY: &str = "CapacityReservationsReady";
}

/// What Karpenter has observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EC2NodeClassStatus {
    /// Subnets that were found, those with the most free addresses first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<Subnet>,
    /// Security groups that were found, ordered by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroup>,
    /// Capacity reservations that were found, ordered by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capacity_reservations: Vec<CapacityReservation>,
    /// Machine images that were found, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub amis: Vec<Ami>,
    /// The instance profile that machines are launched with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_profile: Option<String>,
    /// Signals of health and readiness.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::relaxed_conditions")]
    pub conditions: Vec<Condition>,
}

/// A subnet machines may be launched in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Subnet {
    /// Its id.
    pub id: String,
    /// Its zone.
    pub zone: String,
    /// The id of its zone, the same for all accounts.
    #[serde(rename = "zoneID", default, skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<String>,
}

/// A security group machines are launched with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct SecurityGroup {
    /// Its id.
    pub id: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A machine image, and the instance types it is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ami {
    /// Its id.
    pub id: String,
    /// Whether its publisher advises against it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deprecated: bool,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What an instance type must be like to run it.
    #[serde(default)]
    #[schemars(schema_with = "requirements")]
    pub requirements: Vec<NodeSelectorRequirement>,
}

/// Capacity bought in advance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityReservation {
    /// Its zone.
    pub availability_zone: String,
    /// When it ends; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::time")]
    pub end_time: Option<Time>,
    /// Its id.
    #[schemars(extend("pattern" = "^cr-[0-9a-z]+$"))]
    pub id: String,
    /// `open` or `targeted`.
    #[schemars(extend("enum" = ["open", "targeted"]))]
    pub instance_match_criteria: String,
    /// The type of its instances.
    pub instance_type: String,
    /// The account that owns it.
    #[serde(rename = "ownerID")]
    #[schemars(extend("pattern" = "^[0-9]{12}$"))]
    pub owner_id: String,
    /// How it was bought.
    #[serde(default)]
    #[schemars(schema_with = "reservation_type")]
    pub reservation_type: ReservationType,
    /// Whether its owner may take instances back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub interruptible: bool,
    /// Whether it is about to end.
    #[serde(default)]
    #[schemars(schema_with = "reservation_state")]
    pub state: ReservationState,
}

/// How a capacity reservation was bought.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReservationType {
    /// On demand.
    #[default]
    Default,
    /// For a span of time.
    CapacityBlock,
}

impl ReservationType {
    /// The value of the label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::CapacityBlock => "capacity-block",
        }
    }
}

/// Whether a capacity reservation is about to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReservationState {
    /// It can be launched into.
    #[default]
    Active,
    /// Its instances are about to be taken back.
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
