//! NodePool: which nodes may be launched, and how they may be disrupted.
//!
//! Absent and empty differ for `disruption.budgets` (absent: 10 %, empty: unbounded), for a budget's `reasons`, and for
//! the template's labels, annotations and taints (the static hash differs).
//!
//! UPSTREAM: pkg/apis/v1/nodepool.go, pkg/apis/v1/nodepool_status.go

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{ConditionTypes, HasConditions, types};
use crate::crd::{fields, rules};
use crate::duration::{Duration, NillableDuration};
use crate::labels::annotations;
use crate::serialization::{default_if_null, open_enum};
use crate::v1::{
    NodeClaim, NodeClaimSpec, NodeClassReference, NodeSelectorRequirementWithMinValues, Operator,
};
use crate::{ResourceList, resource};

resource! {
    /// NodePool defines a set of nodes that Karpenter may launch, and how it may disrupt them.
    NodePool {
        group: "karpenter.sh", version: "v1", plural: "nodepools", scope: ClusterResourceScope,
        spec: NodePoolSpec, status: NodePoolStatus
    }
}

impl NodePool {
    /// Returns a NodePool that is ready to launch nodes of a node class, for programs without an API server: elsewhere the
    /// controllers maintain the condition Ready. Its time is 1970.
    ///
    /// ```
    /// use karpenter_api::v1::{NodeClassReference, NodePool};
    ///
    /// let class = NodeClassReference {
    ///     group: "example.com".to_owned(),
    ///     kind: "Rack".to_owned(),
    ///     name: "any".to_owned(),
    /// };
    /// let pool = NodePool::ready("halls", class)
    ///     .with_requirement("kubernetes.io/arch", "In", ["amd64"])
    ///     .with_limit("cpu", "100");
    /// assert_eq!(pool.spec.limits["cpu"].0, "100");
    /// ```
    pub fn ready(name: &str, node_class: NodeClassReference) -> Self {
        let mut pool = Self::new(name, NodePoolSpec::default());
        pool.spec.template.spec.node_class_ref = node_class;
        for condition in Self::TYPES.dependents {
            pool.set_true(condition, Timestamp::UNIX_EPOCH);
        }
        pool.set_true(types::READY, Timestamp::UNIX_EPOCH);
        pool
    }

    /// Adds a requirement on the nodes; `operator` is one of Kubernetes (`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`).
    #[must_use]
    pub fn with_requirement<'a>(
        mut self,
        key: &str,
        operator: &str,
        values: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let requirement = NodeSelectorRequirementWithMinValues {
            key: key.to_owned(),
            operator: Operator::from(operator),
            values: values.into_iter().map(str::to_owned).collect(),
            min_values: None,
        };
        self.spec.template.spec.requirements.push(requirement);
        self
    }

    /// Sets the limit on a resource that the nodes may have together, as a quantity (`100`, `400Gi`).
    #[must_use]
    pub fn with_limit(mut self, resource: &str, quantity: &str) -> Self {
        let quantity = Quantity(quantity.to_owned());
        self.spec.limits.insert(resource.to_owned(), quantity);
        self
    }

    /// Sets the weight: NodePools with a higher weight are tried first.
    #[must_use]
    pub fn with_weight(mut self, weight: i32) -> Self {
        self.spec.weight = Some(weight);
        self
    }

    /// Returns `weight`; an absent one is 0.
    pub fn weight(&self) -> i32 {
        self.spec.weight.unwrap_or(0)
    }

    /// Returns whether the pool keeps a fixed number of nodes instead of provisioning for pods.
    pub fn is_static(&self) -> bool {
        self.spec.replicas.is_some()
    }

    /// Returns whether the pool is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the kubelet settings of its v1beta1 version, as JSON.
    pub fn kubelet_compatibility(&self) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        let kubelet = annotations.get(annotations::KUBELET_COMPATIBILITY)?;
        Some(kubelet)
    }

    /// Compares pools in the order in which they are tried: weight descending, ties by name descending.
    ///
    /// UPSTREAM: pkg/utils/nodepool/nodepool.go, OrderByWeight
    pub fn scheduling_order(a: &Self, b: &Self) -> std::cmp::Ordering {
        b.weight()
            .cmp(&a.weight())
            .then_with(|| b.name().cmp(a.name()))
    }
}

impl HasConditions for NodePool {
    const TYPES: ConditionTypes = ConditionTypes {
        root: types::READY,
        dependents: &[types::VALIDATION_SUCCEEDED, types::NODE_CLASS_READY],
    };

    fn conditions(&self) -> &[Condition] {
        &self.status.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.status.conditions
    }
}

/// The desired state of a NodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = rules::node_pool_spec()))]
pub struct NodePoolSpec {
    /// The template of the NodeClaims launched for this pool. Scheduling may constrain them further.
    pub template: NodeClaimTemplate,
    /// When and how fast nodes of this pool may be disrupted.
    #[serde(default, deserialize_with = "default_if_null")]
    #[schemars(extend("x-default" = { "consolidateAfter": "0s" }))]
    pub disruption: Disruption,
    /// Bounds on the total resources of the pool's nodes, by resource; `nodes` bounds their number.
    /// Only `nodes` is supported when replicas is set.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    #[schemars(schema_with = "fields::resource_list")]
    pub limits: ResourceList,
    /// The priority of the pool in scheduling: higher weights are tried first. A pool without a weight has weight 0.
    /// Not supported when replicas is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub weight: Option<i32>,
    /// The fixed number of nodes that the pool keeps, independent of pods. When set, consolidateAfter and consolidationPolicy
    /// are ignored, and weight and limits other than `nodes` are not supported.
    /// This field is alpha and may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i64>,
}

/// The template of a NodeClaim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeClaimTemplate {
    /// Labels and annotations of the nodes.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "TemplateMetadata::is_empty"
    )]
    pub metadata: TemplateMetadata,
    /// The specification of the NodeClaims.
    pub spec: NodeClaimTemplateSpec,
}

impl NodeClaimTemplate {
    /// Returns a NodeClaim with the fields of the template only.
    pub fn to_node_claim(&self) -> NodeClaim {
        let spec = &self.spec;
        let mut claim = NodeClaim::new(
            "",
            NodeClaimSpec {
                taints: spec.taints.clone().unwrap_or_default(),
                startup_taints: spec.startup_taints.clone().unwrap_or_default(),
                requirements: spec.requirements.clone(),
                resources: Default::default(),
                node_class_ref: spec.node_class_ref.clone(),
                termination_grace_period: spec.termination_grace_period.clone(),
                expire_after: spec.expire_after.clone(),
            },
        );
        claim.metadata.name = None;
        claim.metadata.labels.clone_from(&self.metadata.labels);
        claim
            .metadata
            .annotations
            .clone_from(&self.metadata.annotations);
        claim
    }
}

/// Labels and annotations of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::template_labels")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-map-type" = "granular"))]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl TemplateMetadata {
    /// Returns whether labels and annotations are both absent; empty ones are present.
    pub fn is_empty(&self) -> bool {
        self.labels.is_none() && self.annotations.is_none()
    }
}

/// The specification of the NodeClaims launched from a template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplateSpec {
    /// Taints of the nodes. Pods need a toleration to be placed on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub taints: Option<Vec<Taint>>,
    /// Taints that nodes start with and that another component, usually a DaemonSet, removes soon. Pods need no toleration to
    /// have nodes launched for them; the nodes are not initialized before the taints are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::taints")]
    pub startup_taints: Option<Vec<Taint>>,
    /// Requirements on the labels of the nodes.
    #[serde(default, deserialize_with = "default_if_null")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::requirements(), "x-required" = true))]
    pub requirements: Vec<NodeSelectorRequirementWithMinValues>,
    /// A reference to the NodeClass, which holds the settings of the provider.
    #[schemars(extend("x-kubernetes-validations" = rules::node_class_ref_immutable()))]
    pub node_class_ref: NodeClassReference,
    /// How long the termination of a node may take, from the deletion on, before its pods are deleted by force. It overrides
    /// PodDisruptionBudgets, the karpenter.sh/do-not-disrupt annotation and a pod's own terminationGracePeriodSeconds: pods are
    /// deleted early enough to get their grace period before the node's ends. Without it a node waits for its pods forever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<Duration>,
    /// The age at which a node is terminated, or `Never`. Disruption budgets do not apply to expiration.
    #[serde(default = "default_expire_after")]
    #[schemars(extend("x-default" = "720h"))]
    pub expire_after: NillableDuration,
}

impl Default for NodeClaimTemplateSpec {
    fn default() -> Self {
        Self {
            taints: None,
            startup_taints: None,
            requirements: Vec::new(),
            node_class_ref: NodeClassReference::default(),
            termination_grace_period: None,
            expire_after: default_expire_after(),
        }
    }
}

/// Returns `720h`, the default of the CRD.
pub(super) fn default_expire_after() -> NillableDuration {
    "720h"
        .parse()
        .unwrap_or_else(|_| NillableDuration::after(SignedDuration::from_hours(720)))
}

open_enum! {
    /// Which nodes consolidation may disrupt.
    ConsolidationPolicy {
        /// Only nodes without pods to reschedule.
        WhenEmpty,
        /// Also nodes whose pods fit on other nodes or on a cheaper node.
        WhenEmptyOrUnderutilized,
        /// The same nodes, if the savings outweigh the disruption.
        Balanced,
    }
}

open_enum! {
    /// The reason for a voluntary disruption; budgets may apply to some reasons only.
    DisruptionReason {
        /// The pods of the node fit on other nodes or on a cheaper node.
        Underutilized,
        /// The node has no pods to reschedule.
        Empty,
        /// The node no longer matches its NodePool or NodeClass.
        Drifted,
    }
}

/// When and how fast nodes may be disrupted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// How long a node must be without pod events before it is considered for consolidation, or `Never`.
    /// Ignored when replicas is set.
    #[serde(default = "zero")]
    #[schemars(extend("x-default" = "0s"))]
    pub consolidate_after: NillableDuration,
    /// Which nodes consolidation may disrupt: WhenEmpty, WhenEmptyOrUnderutilized or Balanced.
    /// Ignored when replicas is set.
    #[serde(default = "default_policy")]
    #[schemars(extend("x-default" = "WhenEmptyOrUnderutilized"))]
    pub consolidation_policy: ConsolidationPolicy,
    /// Limits on the number of nodes that may be disrupted at a time. The strictest active budget applies; an empty
    /// list means no limit.
    #[serde(default = "default_budgets")]
    #[schemars(length(max = 50), extend("x-default" = [{ "nodes": "10%" }], "x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = rules::budgets()))]
    pub budgets: Vec<Budget>,
}

impl Default for Disruption {
    fn default() -> Self {
        Self {
            consolidate_after: zero(),
            consolidation_policy: default_policy(),
            budgets: default_budgets(),
        }
    }
}

fn zero() -> NillableDuration {
    NillableDuration::after(SignedDuration::ZERO)
}

fn default_policy() -> ConsolidationPolicy {
    ConsolidationPolicy::WhenEmptyOrUnderutilized
}

fn default_budgets() -> Vec<Budget> {
    vec![Budget::default()]
}

fn default_nodes() -> String {
    "10%".to_owned()
}

/// A limit on the number of nodes that may be disrupted at a time, for some reasons, at some times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("required" = ["nodes"]))]
pub struct Budget {
    /// The reasons the budget covers: Underutilized, Empty, Drifted. Without the field it covers every reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 50), extend("x-kubernetes-list-type" = "set"))]
    pub reasons: Option<Vec<DisruptionReason>>,
    /// How many nodes of the pool may be disrupted at a time: a number, or a percentage that is rounded up.
    #[serde(default = "default_nodes")]
    #[schemars(regex(pattern = r"^((100|[0-9]{1,2})%|[0-9]+)$"), extend("x-default" = "10%"))]
    pub nodes: String,
    /// When the budget becomes active: a cron expression of five fields, in UTC, or a macro like @daily. Without it and
    /// duration the budget is always active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(
        pattern = r"^(@(annually|yearly|monthly|weekly|daily|midnight|hourly))|((.+)\s(.+)\s(.+)\s(.+)\s(.+))$"
    ))]
    pub schedule: Option<String>,
    /// How long the budget is active from each time of the schedule on, in hours and minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "fields::budget_duration")]
    pub duration: Option<Duration>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            reasons: None,
            nodes: default_nodes(),
            schedule: None,
            duration: None,
        }
    }
}

/// The observed state of a NodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// The total resources of the pool's nodes, by resource; `nodes` is their number.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "ResourceList::is_empty"
    )]
    #[schemars(schema_with = "fields::resource_list")]
    pub resources: ResourceList,
    /// The number of nodes of the pool.
    #[serde(default)]
    #[schemars(extend("x-default" = 0))]
    pub nodes: i64,
    /// The generation of the NodeClass that NodeRegistrationHealthy was last reset for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class_observed_generation: Option<i64>,
    /// Conditions of health and readiness.
    #[serde(
        default,
        deserialize_with = "default_if_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "fields::conditions")]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal() -> NodePool {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "default" },
            "spec": { "template": { "spec": {
                "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default" },
                "requirements": [],
            } } },
        }))
        .unwrap()
    }

    #[test]
    fn a_ready_pool_has_its_name_its_class_and_true_conditions() {
        let class = minimal().spec.template.spec.node_class_ref;
        let pool = NodePool::ready("halls", class.clone());
        assert_eq!(pool.metadata.name.as_deref(), Some("halls"));
        assert_eq!(pool.spec.template.spec.node_class_ref, class);
        let mut conditions = NodePool::TYPES.dependents.iter();
        assert!(conditions.all(|condition| pool.is_true(condition)));
        assert!(pool.is_true(types::READY));
    }

    #[test]
    fn a_pool_is_deleting_from_its_deletion_timestamp_on() {
        let mut pool = minimal();
        assert!(!pool.is_deleting());
        pool.metadata.deletion_timestamp =
            Some(serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap());
        assert!(pool.is_deleting());
    }

    /// Conformance: API-021, API-022, API-023, API-020
    #[test]
    fn an_absent_field_has_the_default_of_the_crd() {
        let pool = minimal();
        assert_eq!(pool.spec.disruption.consolidate_after.to_string(), "0s");
        assert_eq!(
            pool.spec.disruption.consolidation_policy,
            ConsolidationPolicy::WhenEmptyOrUnderutilized
        );
        assert_eq!(
            pool.spec.disruption.budgets,
            [Budget {
                nodes: "10%".into(),
                reasons: None,
                schedule: None,
                duration: None
            }]
        );
        assert_eq!(pool.spec.template.spec.expire_after.to_string(), "720h");
        assert_eq!(pool.spec.template.spec.termination_grace_period, None);
        assert_eq!(pool.weight(), 0);
    }

    /// Conformance: API-024
    #[test]
    fn empty_and_absent_budgets_and_reasons_stay_distinct() {
        let mut written = serde_json::to_value(minimal()).unwrap();
        written["spec"]["disruption"] = serde_json::json!({ "budgets": [] });
        let unbounded: NodePool = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(unbounded.spec.disruption.budgets, []);
        assert_eq!(
            serde_json::to_value(&unbounded).unwrap()["spec"]["disruption"]["budgets"],
            serde_json::json!([])
        );

        written["spec"]["disruption"] =
            serde_json::json!({ "budgets": [{ "nodes": "1", "reasons": [] }] });
        let budget: NodePool = serde_json::from_value(written).unwrap();
        assert_eq!(budget.spec.disruption.budgets[0].reasons, Some(vec![]));
    }

    /// Conformance: API-060
    #[test]
    fn pools_are_tried_by_weight_and_then_by_name_both_descending() {
        let pool = |name: &str, weight| {
            let mut pool = NodePool::new(name, NodePoolSpec::default());
            pool.spec.weight = weight;
            pool
        };
        let mut pools = [
            pool("a", None),
            pool("b", None),
            pool("c", Some(5)),
            pool("d", Some(100)),
        ];
        pools.sort_by(NodePool::scheduling_order);
        assert_eq!(
            pools.each_ref().map(|pool| pool.name().to_owned()),
            ["d", "c", "b", "a"]
        );
    }
}
