//! NodePool v1beta1. UPSTREAM: pkg/apis/v1beta1/nodepool.go

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::Taint;
use karpenter_api::ResourceList;
use karpenter_api::crd::{fields, rules};
use karpenter_api::duration::NillableDuration;
use karpenter_api::v1::{
    Budget, NodePoolStatus, NodeSelectorRequirementWithMinValues, TemplateMetadata,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::kubelet::KubeletConfiguration;

karpenter_api::resource! {
    /// NodePool defines a set of nodes that Karpenter may launch, and how it may disrupt them.
    NodePool {
        group: "karpenter.sh", version: "v1beta1", plural: "nodepools", scope: ClusterResourceScope,
        spec: NodePoolSpec, status: NodePoolStatus
    }
}

/// The desired state of a NodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodePoolSpec {
    /// The template of the NodeClaims launched for this pool.
    pub template: NodeClaimTemplate,
    /// When nodes of this pool may be disrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "x-default" = { "consolidationPolicy": "WhenUnderutilized", "expireAfter": "720h" },
        "x-kubernetes-validations" = disruption_rules()
    ))]
    pub disruption: Option<Disruption>,
    /// Bounds on the total resources of the pool's nodes, by resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::resource_list")]
    pub limits: Option<ResourceList>,
    /// The priority of the pool in scheduling: higher weights are tried first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: Option<i32>,
}

/// The template of a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeClaimTemplate {
    /// Labels and annotations of the nodes.
    #[serde(default, skip_serializing_if = "TemplateMetadata::is_empty")]
    pub metadata: TemplateMetadata,
    /// The specification of the NodeClaims.
    pub spec: NodeClaimTemplateSpec,
}

/// The specification of the NodeClaims launched from a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplateSpec {
    /// Taints of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub taints: Option<Vec<Taint>>,
    /// Taints that nodes start with and that another component removes soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub startup_taints: Option<Vec<Taint>>,
    /// Requirements on the labels of the nodes.
    #[serde(default)]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::requirements(), "x-required" = true))]
    pub requirements: Vec<NodeSelectorRequirementWithMinValues>,
    /// Kubelet settings. v1 has them in the EC2NodeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletConfiguration>,
    /// A reference to the NodeClass, which holds the settings of the provider.
    pub node_class_ref: NodeClassReference,
}

/// A reference to a NodeClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClassReference {
    /// The group and version of the NodeClass; `karpenter.k8s.aws/v1beta1` if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// The kind of the NodeClass; EC2NodeClass if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name of the NodeClass.
    pub name: String,
}

/// Which nodes consolidation may disrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ConsolidationPolicy {
    /// Only nodes without pods to reschedule.
    WhenEmpty,
    /// Also nodes whose pods fit on other nodes or on a cheaper node.
    WhenUnderutilized,
}

/// When nodes may be disrupted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// How long a node must have been empty, or `Never`. Only with consolidationPolicy WhenEmpty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consolidate_after: Option<NillableDuration>,
    /// Which nodes consolidation may disrupt: WhenEmpty or WhenUnderutilized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "policy")]
    pub consolidation_policy: Option<ConsolidationPolicy>,
    /// The age at which a node is terminated, or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "720h"))]
    pub expire_after: Option<NillableDuration>,
    /// Limits on the number of nodes that may be disrupted at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("x-default" = [{ "nodes": "10%" }], "x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::budgets()))]
    pub budgets: Option<Vec<Budget>>,
}

fn policy(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string", "enum": ["WhenEmpty", "WhenUnderutilized"], "x-default": "WhenUnderutilized",
    })
}

fn disruption_rules() -> Value {
    json!([
        {
            "message": "consolidateAfter cannot be combined with consolidationPolicy=WhenUnderutilized",
            "rule": "has(self.consolidateAfter) ? self.consolidationPolicy != 'WhenUnderutilized' || self.consolidateAfter == 'Never' : true",
        },
        {
            "message": "consolidateAfter must be specified with consolidationPolicy=WhenEmpty",
            "rule": "self.consolidationPolicy == 'WhenEmpty' ? has(self.consolidateAfter) : true",
        },
    ])
}
