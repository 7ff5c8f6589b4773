//! `karpenter.sh/v1alpha5`: Provisioner and Machine.
//!
//! Provisioner has a CustomResourceDefinition here and is projected into a NodePool. Machine is only read from documents and
//! converted into a NodeClaim.
//!
//! UPSTREAM: pkg/apis/v1alpha5/provisioner.go, machine.go (up to v0.32)

use std::collections::BTreeMap;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use karpenter_api::ResourceList;
use karpenter_api::conditions::{ConditionTypes, HasConditions, types};
use karpenter_api::crd::fields;
use karpenter_api::v1::NodeSelectorRequirement;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::kubelet;

/// Condition types of Provisioner and AWSNodeTemplate. `Ready` is their root.
pub mod condition_types {
    /// The object has been projected; the message names the projected object.
    pub const CONVERTED: &str = "Converted";
    /// The projected object is ready.
    pub const PROJECTION_READY: &str = "ProjectionReady";
    /// Every field of the object has an equivalent. Not part of Ready; the message names fields without one, and the fix.
    pub const LOSSLESS: &str = "Lossless";
}

karpenter_api::resource! {
    /// Provisioner defines a set of nodes, as NodePool does since v1beta1.
    Provisioner {
        group: "karpenter.sh", version: "v1alpha5", plural: "provisioners", scope: ClusterResourceScope,
        spec: ProvisionerSpec, status: ProvisionerStatus
    }
}

impl HasConditions for Provisioner {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[
            condition_types::CONVERTED,
            condition_types::PROJECTION_READY,
        ],
    };

    fn conditions(&self) -> &[Condition] {
        &self.status.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.conditions
    }
}

/// The desired state of a Provisioner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerSpec {
    /// Annotations of the nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Requirements on the labels of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// Taints of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::taints")]
    pub taints: Vec<Taint>,
    /// Taints that nodes start with and that another component removes soon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::taints")]
    pub startup_taints: Vec<Taint>,
    /// Kubelet settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_configuration: Option<KubeletConfiguration>,
    /// Inline settings of AWS. Deprecated: excludes providerRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "open_object")]
    pub provider: Option<Value>,
    /// The AWSNodeTemplate with the settings of AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_ref: Option<ProviderRef>,
    /// Bounds on the total resources of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The consolidation of nodes. Excludes ttlSecondsAfterEmpty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consolidation: Option<Consolidation>,
    /// How many seconds after it becomes empty a node is terminated. Without it empty nodes are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_empty: Option<i64>,
    /// The age in seconds at which a node is terminated. Without it nodes do not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_until_expired: Option<i64>,
    /// The priority in scheduling: higher weights are tried first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: Option<i32>,
}

/// A reference to an AWSNodeTemplate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderRef {
    /// `karpenter.k8s.aws/v1alpha1`, or absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// `AWSNodeTemplate`, or absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name of the AWSNodeTemplate.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub name: String,
}

/// Bounds on the total resources of nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// The bounds, by resource.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "fields::resource_list")]
    pub resources: ResourceList,
}

/// The consolidation of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Consolidation {
    /// Whether consolidation is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Kubelet settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfiguration {
    /// The settings that later generations have, too.
    #[serde(flatten)]
    pub settings: kubelet::KubeletConfiguration,
    /// `dockerd` or `containerd`. Without effect: images come with containerd only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_runtime: Option<String>,
}

/// The observed state of a Provisioner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerStatus {
    /// The total resources of its nodes.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "fields::resource_list")]
    pub resources: ResourceList,
    /// The NodePool into which it is projected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_pool: Option<String>,
    /// The EC2NodeClass of its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class: Option<String>,
    /// Conditions of the projection, including fields without an equivalent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::atomic_conditions")]
    pub conditions: Vec<Condition>,
}

fn open_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

karpenter_api::resource! {
    /// Machine is the request for one node, as NodeClaim is since v1beta1.
    Machine {
        group: "karpenter.sh", version: "v1alpha5", plural: "machines", scope: ClusterResourceScope,
        spec: MachineSpec, status: MachineStatus
    }
}

/// The desired state of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineSpec {
    /// Taints of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::taints")]
    pub taints: Vec<Taint>,
    /// Taints the node started with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "fields::taints")]
    pub startup_taints: Vec<Taint>,
    /// Requirements on the labels of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<NodeSelectorRequirement>,
    /// The resources that the node must offer.
    #[serde(default, skip_serializing_if = "MachineResources::is_empty")]
    pub resources: MachineResources,
    /// Kubelet settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletConfiguration>,
    /// The AWSNodeTemplate with the settings of AWS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_template_ref: Option<ProviderRef>,
}

/// The resources that the node of a Machine must offer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineResources {
    /// The minimum that the node must offer, by resource.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    #[schemars(schema_with = "fields::resource_list")]
    pub requests: ResourceList,
}

impl MachineResources {
    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// The observed state of a Machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachineStatus {
    /// The name of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The provider's id of the instance.
    #[serde(
        default,
        rename = "providerID",
        skip_serializing_if = "Option::is_none"
    )]
    pub provider_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provisioner_is_serialized_and_deserialized_without_loss() {
        let text = serde_json::json!({
            "apiVersion": "karpenter.sh/v1alpha5", "kind": "Provisioner", "metadata": { "name": "default" },
            "spec": {
                "labels": { "a": "b" }, "annotations": { "c": "d" },
                "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"] }],
                "taints": [{ "key": "a", "effect": "NoSchedule" }], "startupTaints": [{ "key": "b", "effect": "NoExecute" }],
                "kubeletConfiguration": {
                    "clusterDNS": ["10.0.0.1"], "containerRuntime": "containerd", "maxPods": 20, "podsPerCore": 2,
                    "systemReserved": { "cpu": "100m" }, "kubeReserved": { "memory": "1Gi" }, "evictionHard": { "memory.available": "5%" },
                    "evictionSoft": { "memory.available": "10%" }, "evictionSoftGracePeriod": { "memory.available": "1m" },
                    "evictionMaxPodGracePeriod": 3, "imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 70, "cpuCFSQuota": false,
                },
                "providerRef": { "name": "default" }, "limits": { "resources": { "cpu": "1000" } },
                "consolidation": { "enabled": true }, "ttlSecondsUntilExpired": 60, "weight": 3,
            },
        });
        let provisioner: Provisioner = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&provisioner).unwrap(), text);
    }
}
