//! What a decision depends on beside the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::Policy;
use serde::{Deserialize, Serialize};

/// The settings of the passes.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    policy: Policy,
    request: DisruptionRequest,
    pub gates: BTreeMap<String, bool>,
    /// Options that decisions depend on, by name.
    pub options: BTreeMap<String, String>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("policy", &self.policy)
            .field("surroundings", &self.request.surroundings)
            .field("gates", &self.gates)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Returns upstream's defaults at a time.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self::new(Policy::at(now), DisruptionRequest::at(now))
    }

    /// Returns the settings of a scheduling and a disruption pass. Stopwatch and cancellation of the request are dropped.
    #[must_use]
    pub fn new(policy: Policy, mut request: DisruptionRequest) -> Self {
        request.stopwatch = None;
        request.single_node_cancel = None;
        request.multi_node.cancel = None;
        request.query.cancel = None;
        request.query.progress = None;
        request.policy.now = policy.now;
        Self {
            policy,
            request,
            gates: BTreeMap::new(),
            options: BTreeMap::new(),
        }
    }

    /// Returns the policy of provisioning.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the request of disruption.
    #[must_use]
    pub fn request(&self) -> DisruptionRequest {
        self.request.clone()
    }

    /// Returns the pods of capacity buffers.
    #[must_use]
    pub fn buffer_pods(&self) -> &[Arc<Pod>] {
        &self.request.query.buffer_pods
    }
}

/// Which names of a bundle are replaced by pseudonyms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Redaction {
    #[default]
    None,
    /// Names of namespaces, pods, nodes, NodeClaims, owners and other objects, and the keys and values of users' labels.
    Names,
    /// Those, and names of NodePools, NodeClasses, zones and regions.
    All,
}
