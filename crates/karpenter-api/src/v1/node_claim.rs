//! NodeClaim: the request for one node and its instance, from creation to termination.
//!
//! UPSTREAM: pkg/apis/v1/nodeclaim.go, pkg/apis/v1/nodeclaim_status.go

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::node_pool::default_expire_after;
use crate::conditions::{ConditionTypes, HasConditions, types};
use crate::crd::{fields, rules};
use crate::duration::{Duration, NillableDuration};
use crate::serialization::{default_if_null, none_if_empty};
use crate::v1::{NodeClassReference, NodeSelectorRequirementWithMinValues};
use crate::{ResourceList, labels, resource};

resource! {
    /// NodeClaim is the request for one node, with its status.
    NodeClaim {
        group: "karpenter.sh", version: "v1", plural: "nodeclaims", scope: ClusterResourceScope,
        spec: NodeClaimSpec, status: NodeClaimStatus
    }
}

impl NodeClaim {
    /// Returns the NodePool of the claim, from its label.
    pub fn node_pool(&self) -> Option<&str> {
        self.label(labels::NODE_POOL)
    }

    /// Returns the value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata
            .annotations
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    /// Returns the kubelet settings of the v1beta1 version of the claim or its NodePool, as JSON.
    pub fn kubelet_compatibility(&self) -> Option<&str> {
        self.annotation(labels::annotations::KUBELET_COMPATIBILITY)
    }

    /// Returns whether the claim is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl HasConditions for NodeClaim {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[types::LAUNCHED, types::REGISTERED, types::INITIALIZED],
    };

    fn conditions(&self) -> &[Condition] {
        &self.status.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.conditions
    }
}

/// The desired state of a NodeClaim. It is immutable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = rules::immutable_spec()))]
pub struct NodeClaimSpec {
    /// Taints of the node. Pods need a toleration to be placed on it.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::taints")]
    pub taints: Vec<Taint>,
    /// Taints that the node starts with and that another component removes soon. Pods need no toleration; the node is not
    /// initialized before the taints are gone.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::taints")]
    pub startup_taints: Vec<Taint>,
    /// Requirements on the labels of the node.
    #[serde(default, deserialize_with = "default_if_null")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::requirements(), "x-required" = true))]
    pub requirements: Vec<NodeSelectorRequirementWithMinValues>,
    /// The resources that the node must offer.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "ResourceRequirements::is_empty"
    )]
    pub resources: ResourceRequirements,
    /// A reference to the NodeClass, which holds the settings of the provider.
    pub node_class_ref: NodeClassReference,
    /// How long the termination of the node may take, from the deletion on, before its pods are deleted by force. It overrides
    /// PodDisruptionBudgets, the karpenter.sh/do-not-disrupt annotation and a pod's own terminationGracePeriodSeconds. Without
    /// it the node waits for its pods forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<Duration>,
    /// The age at which the node is terminated, or `Never`.
    #[serde(default = "default_expire_after")]
    #[schemars(extend("x-default" = "720h"))]
    pub expire_after: NillableDuration,
}

impl Default for NodeClaimSpec {
    fn default() -> Self {
        Self {
            taints: Vec::new(),
            startup_taints: Vec::new(),
            requirements: Vec::new(),
            resources: ResourceRequirements::default(),
            node_class_ref: NodeClassReference::default(),
            termination_grace_period: None,
            expire_after: default_expire_after(),
        }
    }
}

/// The resources that a node must offer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequirements {
    /// The minimum that the node must offer, by resource.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    #[schemars(schema_with = "fields::resource_list")]
    pub requests: ResourceList,
}

impl ResourceRequirements {
    /// Returns whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// The observed state of a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimStatus {
    /// The name of the node.
    #[serde(
        default,
        deserialize_with = "none_if_empty",
        skip_serializing_if = "Option::is_none"
    )]
    pub node_name: Option<String>,
    /// The provider's id of the instance.
    #[serde(
        default,
        rename = "providerID",
        deserialize_with = "none_if_empty",
        skip_serializing_if = "Option::is_none"
    )]
    pub provider_id: Option<String>,
    /// The id of the image of the instance.
    #[serde(
        default,
        rename = "imageID",
        deserialize_with = "none_if_empty",
        skip_serializing_if = "Option::is_none"
    )]
    pub image_id: Option<String>,
    /// The estimated capacity of the node.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    #[schemars(schema_with = "fields::resource_list")]
    pub capacity: ResourceList,
    /// The estimated resources of the node that are allocatable to pods.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    #[schemars(schema_with = "fields::resource_list")]
    pub allocatable: ResourceList,
    /// Conditions of health and readiness.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::relaxed_conditions")]
    pub conditions: Vec<Condition>,
    /// When a pod on the node was last bound, terminated or began to terminate. Pods of DaemonSets do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::time")]
    pub last_pod_event_time: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{NodeClaimTemplate, Operator};

    #[test]
    fn a_claim_has_the_kubelet_settings_that_it_is_annotated_with() {
        let mut claim = NodeClaim::new("c", Default::default());
        assert_eq!(claim.kubelet_compatibility(), None);
        let key = labels::annotations::KUBELET_COMPATIBILITY.to_owned();
        claim.metadata.annotations = Some([(key, "{}".to_owned())].into());
        assert_eq!(claim.kubelet_compatibility(), Some("{}"));
    }

    #[test]
    fn a_claim_is_serialized_and_deserialized_without_loss() {
        let text = serde_json::json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": { "name": "default-abcde", "labels": { "karpenter.sh/nodepool": "default" } },
            "spec": {
                "taints": [{ "key": "a", "effect": "NoSchedule" }],
                "requirements": [{ "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"], "minValues": 1 }],
                "resources": { "requests": { "cpu": "100m" } },
                "nodeClassRef": { "group": "g", "kind": "K", "name": "n" },
                "terminationGracePeriod": "48h", "expireAfter": "Never",
            },
            "status": {
                "nodeName": "n1", "providerID": "kwok://n1", "imageID": "ami", "capacity": { "cpu": "4" }, "allocatable": { "cpu": "3900m" },
                "lastPodEventTime": "2026-01-01T00:00:00Z",
                "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            },
        });
        let claim: NodeClaim = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(serde_json::to_value(&claim).unwrap(), text);
        assert_eq!(claim.node_pool(), Some("default"));
    }

    /// Conformance: API-075
    #[test]
    fn an_old_condition_without_reason_and_message_is_read() {
        let claim: NodeClaim = serde_json::from_value(serde_json::json!({
            "spec": { "nodeClassRef": { "group": "g", "kind": "K", "name": "n" }, "requirements": [] },
            "status": { "providerID": "", "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        }))
        .unwrap();
        assert_eq!(claim.status.conditions[0].reason, "");
        assert_eq!(claim.status.provider_id, None);
    }

    #[test]
    fn a_claim_of_a_template_has_all_of_its_fields() {
        let template: NodeClaimTemplate = serde_json::from_value(serde_json::json!({
            "metadata": { "labels": { "team": "a" }, "annotations": { "x": "y" } },
            "spec": {
                "taints": [{ "key": "a", "effect": "NoSchedule" }], "startupTaints": [{ "key": "b", "effect": "NoExecute" }],
                "requirements": [{ "key": "x/y", "operator": "Exists" }],
                "nodeClassRef": { "group": "g", "kind": "K", "name": "n" }, "expireAfter": "1h", "terminationGracePeriod": "0s",
            },
        }))
        .unwrap();
        let claim = template.to_node_claim();
        assert_eq!(claim.label("team"), Some("a"));
        assert_eq!(claim.annotation("x"), Some("y"));
        let spec = &claim.spec;
        assert_eq!((spec.taints.len(), spec.startup_taints.len()), (1, 1));
        assert_eq!(spec.requirements[0].operator, Operator::Exists);
        assert_eq!(spec.expire_after.to_string(), "1h");
        let grace = spec.termination_grace_period.as_ref();
        assert_eq!(grace.unwrap().to_string(), "0s");
        assert_eq!(claim.metadata.name, None);
    }
}
