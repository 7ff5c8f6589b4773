//! NodeClaim v1beta1. UPSTREAM: pkg/apis/v1beta1/nodeclaim.go

use k8s_openapi::{ClusterResourceScope, api::core::v1::Taint};
use karpenter_api::{
    crd::{fields, rules},
    v1::{NodeClaimStatus, NodeSelectorRequirementWithMinValues, ResourceRequirements},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NodeClassReference;
use crate::kubelet::KubeletConfiguration;

karpenter_api::resource! {
    /// NodeClaim is the request for one node, and what became of it.
    NodeClaim {
        group: "karpenter.sh", version: "v1beta1", plural: "nodeclaims", scope: ClusterResourceScope,
        spec: NodeClaimSpec, status: NodeClaimStatus
    }
}

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimSpec {
    /// Taints of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub taints: Option<Vec<Taint>>,
    /// Taints that the node starts with and that something else removes soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub startup_taints: Option<Vec<Taint>>,
    /// What the labels of the node must satisfy.
    #[serde(default)]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::requirements(), "x-required" = true))]
    pub requirements: Vec<NodeSelectorRequirementWithMinValues>,
    /// What the node must have room for.
    #[serde(default, skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Settings of the kubelet. v1 has them in the EC2NodeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletConfiguration>,
    /// The object that holds what is particular to the provider.
    pub node_class_ref: NodeClassReference,
}
