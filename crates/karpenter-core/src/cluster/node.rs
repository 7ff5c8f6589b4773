//! A node as the cluster shows it: a Node, its NodeClaim, or both.
//!
//! UPSTREAM: pkg/controllers/state/statenode.go

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::k8s_openapi::api::core::v1 as corev1;
use karpenter_api::labels;
use karpenter_api::v1::NodeClaim;

use super::config::is_ephemeral;
use super::string_map::StringMap;
use crate::resources::Resources;
use crate::taints::Taint;

/// A Kubernetes Node, parsed: the fields that decisions depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Uid.
    pub uid: String,
    /// `spec.providerID`.
    pub provider_id: Option<String>,
    /// Labels.
    pub labels: StringMap,
    /// Annotations.
    pub annotations: StringMap,
    /// Taints.
    pub taints: Vec<corev1::Taint>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Total resources.
    pub capacity: Resources,
    /// Resources available to pods.
    pub allocatable: Resources,
    /// Whether condition Ready is True.
    pub ready: bool,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// When its deletion was requested.
    pub deleted_at: Option<Timestamp>,
}

impl Node {
    /// Parses a Kubernetes Node.
    pub fn parse(node: &corev1::Node) -> Self {
        let meta = &node.metadata;
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let list = |list: Option<&BTreeMap<_, _>>| {
            list.and_then(|list| Resources::allocatable_from(list).ok())
                .unwrap_or_default()
        };
        Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            provider_id: spec
                .and_then(|spec| spec.provider_id.clone())
                .filter(|id| !id.is_empty()),
            labels: meta.labels.as_ref().into(),
            annotations: meta.annotations.as_ref().into(),
            taints: spec
                .and_then(|spec| spec.taints.clone())
                .unwrap_or_default(),
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            capacity: list(status.and_then(|status| status.capacity.as_ref())),
            allocatable: list(status.and_then(|status| status.allocatable.as_ref())),
            ready: status
                .and_then(|status| status.conditions.as_ref())
                .into_iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            created_at: meta.creation_timestamp.as_ref().map(|time| time.0),
            deleted_at: meta.deletion_timestamp.as_ref().map(|time| time.0),
        }
    }
}

/// The merged state of a Node and its NodeClaim.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// The Node, once there is one.
    pub node: Option<Arc<Node>>,
    /// The NodeClaim, for nodes launched by Karpenter.
    pub claim: Option<Arc<NodeClaim>>,
    /// Whether a disruption command is about to delete it.
    pub marked_for_deletion: bool,
    /// The time until which pods are nominated to it; it is not disrupted before.
    pub nominated_until: Option<Timestamp>,
    /// Whether it belongs to Karpenter: it has a NodeClaim, or a label of a managed NodeClass kind.
    pub managed: bool,
    /// Labels and annotations: those of the NodeClaim until the Node is registered.
    labels: StringMap,
    annotations: StringMap,
    /// Taints of the provider that a new node loses.
    ephemeral: Arc<[corev1::Taint]>,
    /// Derived from the other fields, which the model sets once.
    facts: Facts,
}

/// What a pass asks about every node. Without it a pass reads the Node, the NodeClaim and their maps of labels and annotations at
/// many places in memory, which is most of its time in a large cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    registered: bool,
    initialized: bool,
    deleting: bool,
    /// The Node has condition Ready.
    pub(crate) ready: bool,
    /// The NodeClaim has condition InstanceTerminating.
    pub(crate) instance_terminating: bool,
    /// The NodeClaim has condition Consolidatable.
    pub(crate) consolidatable: bool,
    /// The NodeClaim has condition Drifted.
    pub(crate) drifted: bool,
    /// When pods were last added or removed, else when it was initialized; `None` before.
    pub(crate) changed_at: Option<Timestamp>,
    /// It has annotation `karpenter.sh/do-not-disrupt`.
    pub(crate) refuses_disruption: bool,
    /// It has the `do-not-consolidate` annotation of releases up to v0.32.
    pub(crate) refuses_consolidation: bool,
    pub(crate) node_pool: Option<Arc<str>>,
    pub(crate) instance_type: Option<Arc<str>>,
    pub(crate) capacity_type: Option<Arc<str>>,
    pub(crate) zone: Option<Arc<str>>,
}

impl NodeState {
    /// Merges a Node and a NodeClaim. `share` returns one copy of a value that labels of many nodes have.
    pub(super) fn new(
        node: Option<Arc<Node>>,
        claim: Option<Arc<NodeClaim>>,
        managed: bool,
        ephemeral: &Arc<[corev1::Taint]>,
        marks: Option<&Self>,
        mut share: impl FnMut(&str) -> Arc<str>,
    ) -> Self {
        let mut state = Self {
            node,
            claim,
            managed,
            marked_for_deletion: marks.is_some_and(|marks| marks.marked_for_deletion),
            nominated_until: marks.and_then(|marks| marks.nominated_until),
            labels: StringMap::default(),
            annotations: StringMap::default(),
            ephemeral: Arc::clone(ephemeral),
            facts: Facts::default(),
        };
        let registered = state.has_node_label_or_is_unmanaged(labels::REGISTERED);
        (state.labels, state.annotations) = match (&state.node, &state.claim) {
            (Some(node), claim) if claim.is_none() || registered => {
                (node.labels.clone(), node.annotations.clone())
            }
            (_, Some(claim)) => {
                let meta = &claim.metadata;
                (
                    meta.labels.as_ref().into(),
                    meta.annotations.as_ref().into(),
                )
            }
            (_, None) => <(StringMap, StringMap)>::default(),
        };
        let has = |key: &str| state.annotations.get(key) == Some("true");
        let is_true = |condition: &str| {
            let claim = state.claim.as_ref();
            claim.is_some_and(|claim| claim.is_true(condition))
        };
        let mut label = |key: &str| state.labels.get(key).map(&mut share);
        let facts = Facts {
            node_pool: label(labels::NODE_POOL),
            instance_type: label(labels::INSTANCE_TYPE),
            capacity_type: label(labels::CAPACITY_TYPE),
            zone: label(labels::ZONE),
            registered,
            initialized: state.has_node_label_or_is_unmanaged(labels::INITIALIZED),
            deleting: state.has_deletion(),
            ready: state.node.as_ref().is_some_and(|node| node.ready),
            instance_terminating: is_true(types::INSTANCE_TERMINATING),
            consolidatable: is_true(types::CONSOLIDATABLE),
            drifted: is_true(types::DRIFTED),
            changed_at: state.claim.as_deref().and_then(changed_at),
            refuses_disruption: has(labels::annotations::DO_NOT_DISRUPT),
            refuses_consolidation: has(labels::annotations::DO_NOT_CONSOLIDATE),
        };
        state.facts = facts;
        state
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns the name of the Node, or of the NodeClaim while there is no Node.
    pub fn name(&self) -> &str {
        match (&self.node, &self.claim) {
            (Some(node), _) => &node.name,
            (None, Some(claim)) => claim.metadata.name.as_deref().unwrap_or_default(),
            (None, None) => "",
        }
    }

    /// Returns the name of the NodeClaim, if it has one.
    pub fn claim_name(&self) -> Option<&str> {
        self.claim
            .as_ref()
            .and_then(|claim| claim.metadata.name.as_deref())
    }

    /// Returns the provider id of the instance.
    pub fn provider_id(&self) -> Option<&str> {
        let of_node = self
            .node
            .as_ref()
            .and_then(|node| node.provider_id.as_deref());
        of_node
            .or_else(|| {
                self.claim
                    .as_ref()
                    .and_then(|claim| claim.status.provider_id.as_deref())
            })
            .filter(|id| !id.is_empty())
    }

    /// Returns the name of the NodePool.
    pub fn node_pool(&self) -> Option<&str> {
        self.facts.node_pool.as_deref()
    }

    /// Reports whether the Node is registered; always true for a Node that Karpenter does not manage.
    pub fn is_registered(&self) -> bool {
        self.facts.registered
    }

    /// Reports whether the Node is initialized; always true for a Node that Karpenter does not manage.
    pub fn is_initialized(&self) -> bool {
        self.facts.initialized
    }

    fn has_node_label_or_is_unmanaged(&self, label: &str) -> bool {
        if self.claim.is_none() && !self.managed {
            return true;
        }
        self.node
            .as_ref()
            .is_some_and(|node| node.labels.get(label) == Some("true"))
    }

    /// Returns the labels: those of the NodeClaim until the Node is registered.
    pub fn labels(&self) -> &StringMap {
        &self.labels
    }

    /// Returns the value of a label.
    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        let facts = &self.facts;
        match key {
            labels::ZONE => facts.zone.as_deref(),
            labels::NODE_POOL => facts.node_pool.as_deref(),
            labels::CAPACITY_TYPE => facts.capacity_type.as_deref(),
            labels::INSTANCE_TYPE => facts.instance_type.as_deref(),
            _ => self.labels.get(key),
        }
    }

    /// Returns the annotations: those of the NodeClaim until the Node is registered.
    pub fn annotations(&self) -> &StringMap {
        &self.annotations
    }

    /// Returns the value of label `kubernetes.io/hostname`, or the name.
    pub fn hostname(&self) -> &str {
        self.labels
            .get(labels::HOSTNAME)
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| self.name())
    }

    /// Returns the taints that a new pod must tolerate. Until a node of Karpenter is initialized, its startup taints and the taints
    /// that every new node has are left out.
    pub fn taints(&self) -> Vec<Taint> {
        let taints: Cow<'_, [corev1::Taint]> = match (&self.node, &self.claim) {
            (Some(node), None) => Cow::Borrowed(&node.taints),
            (Some(node), Some(_)) if self.is_registered() => Cow::Borrowed(&node.taints),
            (_, Some(claim)) => Cow::Borrowed(&claim.spec.taints),
            (None, None) => Cow::Borrowed(&[]),
        };
        let starting = !self.is_initialized() && self.managed;
        let startup = self
            .claim
            .as_ref()
            .map(|claim| claim.spec.startup_taints.as_slice())
            .unwrap_or_default();
        taints
            .iter()
            .filter(|taint| {
                !starting
                    || !(is_ephemeral(taint, &self.ephemeral)
                        || startup
                            .iter()
                            .any(|other| labels::taints::same(other, taint)))
            })
            .map(Taint::parse)
            .collect()
    }

    /// Returns the total resources. Until the Node is initialized, values that the kubelet has not reported come from the NodeClaim.
    pub fn capacity(&self) -> Resources {
        self.resources(|node| &node.capacity, |claim| &claim.status.capacity)
    }

    /// Returns the resources available to pods. Until the Node is initialized, values that the kubelet has not reported come from
    /// the NodeClaim.
    pub fn allocatable(&self) -> Resources {
        if self.is_launching()
            && let Some(claim) = &self.claim
        {
            return Resources::allocatable_from(&claim.spec.resources.requests).unwrap_or_default();
        }
        self.resources(|node| &node.allocatable, |claim| &claim.status.allocatable)
    }

    fn resources(
        &self,
        of_node: impl Fn(&Node) -> &Resources,
        of_claim: impl Fn(&NodeClaim) -> &karpenter_api::ResourceList,
    ) -> Resources {
        let Some(claim) = &self.claim else {
            return self
                .node
                .as_ref()
                .map(|node| of_node(node).clone())
                .unwrap_or_default();
        };
        match &self.node {
            Some(node) if self.is_initialized() => of_node(node).clone(),
            node => {
                let mut resources = node
                    .as_ref()
                    .map(|node| of_node(node).clone())
                    .unwrap_or_default();
                for (name, value) in Resources::allocatable_from(of_claim(claim))
                    .unwrap_or_default()
                    .iter()
                {
                    if resources.get(name) == 0 {
                        resources.set(name, value);
                    }
                }
                resources
            }
        }
    }

    /// Reports whether it is a NodeClaim without an instance. It counts as a node with the requested resources.
    pub fn is_launching(&self) -> bool {
        self.node.is_none() && self.provider_id().is_none()
    }

    /// Reports whether it is being deleted or marked for deletion.
    pub fn is_deleting(&self) -> bool {
        self.marked_for_deletion || self.facts.deleting
    }

    fn has_deletion(&self) -> bool {
        match (&self.claim, &self.node) {
            (Some(claim), _) => {
                claim.metadata.deletion_timestamp.is_some()
                    || claim.status.conditions.iter().any(|condition| {
                        condition.type_ == "InstanceTerminating" && condition.status == "True"
                    })
            }
            (None, Some(node)) => node.deleted_at.is_some(),
            (None, None) => true,
        }
    }

    /// Reports whether pods are nominated to it at `now`.
    pub fn is_nominated(&self, now: Timestamp) -> bool {
        self.nominated_until.is_some_and(|until| now < until)
    }
}

/// Returns when pods were last added or removed, else when the node was initialized; `None` before.
fn changed_at(claim: &NodeClaim) -> Option<Timestamp> {
    let initialized = claim.condition(types::INITIALIZED);
    let initialized = initialized.filter(|condition| condition.status == "True")?;
    let last = claim.status.last_pod_event_time.as_ref();
    Some(last.unwrap_or(&initialized.last_transition_time).0)
}
