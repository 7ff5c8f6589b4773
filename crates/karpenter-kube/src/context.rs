//! The context that all controllers share.

mod buffers;
mod static_capacity;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::{NodeClaim, NodeClassReference, NodePool};
use karpenter_core::provider::CloudProvider;
use kube::Api;
use parking_lot::Mutex;

use crate::client::Clients;
use crate::client::patch::Lock;
use crate::client::writes::Writes;
use crate::clock::Clock;
use crate::error::{Doing, ReconcileError};
use crate::events::Recorder;
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::model::{ModelHandle, Stopped, View};
use crate::options::Options;

pub use buffers::Buffers;
pub use static_capacity::StaticCapacity;

/// When this replica began to act as leader. A standby reports no metrics of the cluster, even if its model is warm: sums
/// over replicas would count every object twice.
#[derive(Debug, Default)]
pub struct Acting(Mutex<Option<Timestamp>>);

impl Acting {
    /// Records that the replica acts as leader from now on.
    pub fn begin(&self, now: Timestamp) {
        *self.0.lock() = Some(now);
    }

    /// Records that the replica does not act any more.
    pub fn end(&self) {
        *self.0.lock() = None;
    }

    /// Returns since when the replica acts as leader, or `None` if it is a standby.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        *self.0.lock()
    }
}

/// Shared state of the controllers.
pub struct Context {
    /// Clients of the API server.
    pub clients: Clients,
    /// Source of the current time and of delays.
    pub clock: Clock,
    /// Options of the operator.
    pub options: Options,
    /// The cloud provider, with overlays applied if the feature gate is on.
    pub provider: Arc<dyn CloudProvider>,
    /// Publishes events.
    pub recorder: Recorder,
    /// All metrics of the operator.
    pub metrics: Metrics,
    /// Since when this replica acts as leader.
    pub acting: Acting,
    /// Notified of what passes decided.
    pub listener: Option<Arc<dyn Listener>>,
    /// Reads and updates the model of the cluster.
    pub model: ModelHandle,
    /// The latest NodeClaims written by this process.
    pub claim_writes: Writes<NodeClaim>,
    /// The latest Nodes written by this process.
    pub node_writes: Writes<Node>,
    /// The latest NodePools written by this process.
    pub pool_writes: Writes<NodePool>,
    /// Capacity that is reserved for pods that do not exist yet.
    pub buffers: Buffers,
    /// The process of static NodePools.
    pub static_capacity: StaticCapacity,
    /// Held while NodeClaims of NodePools with limits are created: whether a request was not answered, so that the model may lack one.
    pub limited: tokio::sync::Mutex<bool>,
    /// Whether the permission to nominate pods to nodes is missing (feature gate `PodNomination`).
    pub pod_nomination_forbidden: AtomicBool,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("provider", &self.provider.profile().name)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Returns the latest view of the cluster.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.model.view()
    }

    /// Returns the API of all NodeClaims.
    #[must_use]
    pub fn node_claims(&self) -> Api<NodeClaim> {
        Api::all(self.clients.api.clone())
    }

    /// Returns the API of all Nodes.
    #[must_use]
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.clients.api.clone())
    }

    /// Returns the NodeClaim of this name, from the model or from our own latest write.
    #[must_use]
    pub fn node_claim(&self, view: &View, name: &str) -> Option<Arc<NodeClaim>> {
        let seen = view.node_claim(name)?;
        Some(self.claim_writes.latest(seen))
    }

    /// Returns the NodeClaim as [`Context::node_claim`] does, if the provider supports its kind of NodeClass.
    #[must_use]
    pub fn managed_claim(&self, view: &View, name: &str) -> Option<Arc<NodeClaim>> {
        self.node_claim(view, name)
            .filter(|claim| self.is_managed(&claim.spec.node_class_ref))
    }

    /// Returns the NodeClaims of a Node, from the model or from our own latest writes.
    #[must_use]
    pub fn node_claims_of(&self, view: &View, node: &Node) -> Vec<Arc<NodeClaim>> {
        let seen = view.node_claims_of(node);
        if seen.is_empty() {
            return self.owner_of(view, node).into_iter().collect();
        }
        let latest = seen.iter().map(|seen| self.claim_writes.latest(seen));
        latest.collect()
    }

    /// Returns the NodeClaim that a Node names as its owner, if the model lacks its provider id and our own latest write has it.
    fn owner_of(&self, view: &View, node: &Node) -> Option<Arc<NodeClaim>> {
        let id = node.spec.as_ref()?.provider_id.as_deref()?;
        let mut owners = node.metadata.owner_references.iter().flatten();
        let claim = owners.find_map(|owner| {
            let claim = view.node_claim(&owner.name)?;
            (claim.uid() == owner.uid).then(|| self.claim_writes.latest(claim))
        })?;
        let has_its_id = claim.status.provider_id.as_deref() == Some(id);
        has_its_id.then_some(claim)
    }

    /// Returns the Nodes with this provider id, from the model or from our own latest writes.
    #[must_use]
    pub fn nodes_of(&self, view: &View, provider_id: &str) -> Vec<Arc<Node>> {
        let seen = view.nodes_by_provider_id(provider_id);
        let latest = seen.iter().map(|seen| self.node_writes.latest(seen));
        latest.collect()
    }

    /// Protects the nodes that pods will be bound to from disruption, for the nomination window.
    ///
    /// # Errors
    /// If the model has stopped.
    pub async fn nominate(&self, nodes: BTreeSet<String>) -> Result<(), Stopped> {
        if nodes.is_empty() {
            return Ok(());
        }
        let window = SignedDuration::try_from(self.options.batch_window().nomination())
            .unwrap_or(SignedDuration::from_secs(20));
        let until = self.clock.now().saturating_add(window);
        let until = until.unwrap_or(Timestamp::MAX);
        self.model
            .nominate(nodes.into_iter().collect(), until)
            .await
    }

    /// Writes the status of a NodeClaim that was computed from the version `before`.
    ///
    /// # Errors
    /// The API server's; a conflict if another writer changed the NodeClaim since.
    pub async fn write_claim_status(
        &self,
        before: &NodeClaim,
        after: &NodeClaim,
    ) -> Result<(), ReconcileError> {
        self.claim_writes
            .patch_status(self.node_claims(), before, after, Lock::Optimistic)
            .await
            .doing("updating nodeclaim status")?;
        Ok(())
    }

    /// Applies `change` to the latest known status of a NodeClaim and writes it; for conditions and fields of which the caller is
    /// the only writer. Returns the NodeClaim as written.
    ///
    /// # Errors
    /// The API server's; a conflict if another process wrote in between.
    pub async fn change_claim_status(
        &self,
        claim: &NodeClaim,
        change: impl FnOnce(&mut NodeClaim),
    ) -> Result<Arc<NodeClaim>, ReconcileError> {
        self.claim_writes
            .change_status(self.node_claims(), claim, change)
            .await
            .doing("updating nodeclaim status")
    }

    /// Returns whether the provider supports the kind of NodeClass.
    #[must_use]
    pub fn is_managed(&self, class: &NodeClassReference) -> bool {
        self.provider
            .profile()
            .node_classes
            .iter()
            .any(|kind| kind.group == class.group && kind.kind == class.kind)
    }
}
