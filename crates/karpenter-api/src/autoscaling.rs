//! `autoscaling.x-k8s.io/v1beta1`: CapacityBuffer, spare capacity kept for pods that do not exist yet.
//!
//! UPSTREAM: pkg/apis/autoscaling/v1beta1/capacitybuffer.go

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::crd::{fields, rules};
use crate::serialization::default_if_null;
use crate::{ResourceList, resource};

/// The default provisioning strategy, and the only one.
pub const ACTIVE_CAPACITY: &str = "buffer.x-k8s.io/active-capacity";

resource! {
    /// CapacityBuffer keeps spare capacity for pods of a template or of a workload, in chunks the size of one pod.
    CapacityBuffer {
        group: "autoscaling.x-k8s.io", version: "v1beta1", plural: "capacitybuffers", scope: NamespaceResourceScope,
        spec: CapacityBufferSpec, status: CapacityBufferStatus
    }
}

/// The desired state of a CapacityBuffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::capacity_buffer_spec()))]
pub struct CapacityBufferSpec {
    /// The provisioning strategy of the buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = ACTIVE_CAPACITY))]
    pub provisioning_strategy: Option<String>,
    /// The PodTemplate in the same namespace that defines a chunk. Set this or scalableRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalObjectRef>,
    /// The workload in the same namespace whose pods define a chunk. Set this or podTemplateRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalable_ref: Option<ScalableRef>,
    /// The number of chunks. With percentage, the larger of the two counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// The number of chunks as a percentage of the workload's replicas, rounded up, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub percentage: Option<i32>,
    /// The upper bound on the sum of the chunks, by resource. Without replicas and percentage, as many chunks as fit are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::resource_list")]
    pub limits: Option<ResourceList>,
}

/// The name of an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalObjectRef {
    /// The object's name.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// A workload with replicas, in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScalableRef {
    /// The API group of the workload.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    /// The kind of the workload: Deployment, StatefulSet or ReplicaSet.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// The name of the workload.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// The observed state of a CapacityBuffer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityBufferStatus {
    /// The PodTemplate of the chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_ref: Option<LocalObjectRef>,
    /// The number of chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The generation of the PodTemplate of the chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_generation: Option<i64>,
    /// Conditions of health and readiness.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::conditions")]
    pub conditions: Vec<Condition>,
    /// The provisioning strategy in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_strategy: Option<String>,
}

/// Types and reasons of a CapacityBuffer's conditions. There is no root condition.
pub mod conditions {
    /// The chunks and their number are known.
    pub const READY_FOR_PROVISIONING: &str = "ReadyForProvisioning";
    /// The capacity of the buffer exists or is being provisioned.
    pub const PROVISIONING: &str = "Provisioning";

    /// ReadyForProvisioning=True.
    pub const RESOLVED: &str = "Resolved";
    /// ReadyForProvisioning=False: the PodTemplate does not exist.
    pub const POD_TEMPLATE_NOT_FOUND: &str = "PodTemplateNotFound";
    /// ReadyForProvisioning=False: the workload does not exist.
    pub const SCALABLE_REF_NOT_FOUND: &str = "ScalableRefNotFound";
    /// ReadyForProvisioning=False: any other reason.
    pub const RESOLUTION_FAILED: &str = "ResolutionFailed";
    /// Provisioning=True.
    pub const FITS_EXISTING_CAPACITY: &str = "FitsExistingCapacity";
    /// Provisioning=False: nodes have to be launched.
    pub const REQUIRES_NEW_CAPACITY: &str = "RequiresNewCapacity";
    /// Provisioning=False: the buffer has no chunks.
    pub const BUFFER_EMPTY: &str = "BufferEmpty";
    /// Provisioning=False: the buffer is not ready.
    pub const NOT_READY_FOR_PROVISIONING: &str = "NotReadyForProvisioning";
}
