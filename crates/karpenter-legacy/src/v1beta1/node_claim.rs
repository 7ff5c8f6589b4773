//! NodeClaim v1beta1. UPSTREAM: pkg/apis/v1beta1/nodeclaim.go

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::Taint;
use karpenter_api::crd::{fields, rules};
use karpenter_api::v1::{
    NodeClaimStatus, NodeSelectorRequirementWithMinValues, ResourceRequirements,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NodeClassReference;
use crate::kubelet::KubeletConfiguration;

karpenter_api::resource! {
    /// NodeClaim is the request for one node, with its status.
    NodeClaim {
        group: "karpenter.sh", version: "v1beta1", plural: "nodeclaims", scope: ClusterResourceScope,
        spec: NodeClaimSpec, status: NodeClaimStatus
    }
}

/// The desired state of a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimSpec {
    /// Taints of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub taints: Option<Vec<Taint>>,
    /// Taints that the node starts with and that another component removes soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub startup_taints: Option<Vec<Taint>>,
    /// Requirements on the labels of the node.
    #[serde(default)]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::requirements(), "x-required" = true))]
    pub requirements: Vec<NodeSelectorRequirementWithMinValues>,
    /// The resources that the node must offer.
    #[serde(default, skip_serializing_if = "ResourceRequirements::is_empty")]
    pub resources: ResourceRequirements,
    /// Kubelet settings. v1 has them in the EC2NodeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletConfiguration>,
    /// A reference to the NodeClass, which holds the settings of the provider.
    pub node_class_ref: NodeClassReference,
}
