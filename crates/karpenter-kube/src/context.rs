//! What every controller works with.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::v1::{NodeClaim, NodeClassReference, NodePool};
use karpenter_core::provider::CloudProvider;
use kube::Api;

use crate::capacity_buffer::Buffers;
use crate::client::Clients;
use crate::clock::Clock;
use crate::events::Recorder;
use crate::metrics::Metrics;
use crate::model::{ModelHandle, View};
use crate::options::Options;
use crate::static_capacity::StaticCapacity;
use crate::writes::Writes;

/// Since when this replica acts. One that only stands by shows and counts nothing of the cluster, even if its model is warm:
/// sums over replicas would count everything twice.
#[derive(Debug, Default)]
pub struct Acting(Mutex<Option<Timestamp>>);

impl Acting {
    /// It acts from now on.
    pub fn begin(&self, now: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// It does not act any more.
    pub fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Since when it acts, if it does.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shared equipment of the controllers.
pub struct Context {
    /// The API server.
    pub clients: Clients,
    /// The time.
    pub clock: Clock,
    /// The operator's options.
    pub options: Options,
    /// The cloud.
    pub provider: Arc<dyn CloudProvider>,
    /// Where events go.
    pub recorder: Recorder,
    /// What is counted.
    pub metrics: Metrics,
    /// Since when this replica acts.
    pub acting: Acting,
    /// The cluster model.
    pub model: ModelHandle,
    /// What we wrote to NodeClaims.
    pub claim_writes: Writes<NodeClaim>,
    /// What we wrote to Nodes.
    pub node_writes: Writes<Node>,
    /// What we wrote to NodePools.
    pub pool_writes: Writes<NodePool>,
    /// Room kept for pods that do not exist yet.
    pub buffers: Buffers,
    /// Machines of static NodePools that are about to be made.
    pub static_capacity: StaticCapacity,
    /// Held by whoever makes machines of NodePools with limits.
    pub limited: tokio::sync::Mutex<()>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("provider", &self.provider.name())
            .finish_non_exhaustive()
    }
}

impl Context {
    /// The latest view of the cluster.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.model.view()
    }

    /// The NodeClaims of the cluster.
    #[must_use]
    pub fn node_claims(&self) -> Api<NodeClaim> {
        Api::all(self.clients.api.clone())
    }

    /// The Nodes of the cluster.
    #[must_use]
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.clients.api.clone())
    }

    /// The NodeClaim of this name, as the model has it or as we have written it since.
    #[must_use]
    pub fn node_claim(&self, view: &View, name: &str) -> Option<Arc<NodeClaim>> {
        let seen = view.node_claim(name)?;
        Some(self.claim_writes.latest(seen))
    }

    /// The NodeClaims of a Node, as the model has them or as we have written them since.
    #[must_use]
    pub fn node_claims_of(&self, view: &View, node: &Node) -> Vec<Arc<NodeClaim>> {
        let seen = view.node_claims_of(node);
        let latest = seen.iter().map(|seen| self.claim_writes.latest(seen));
        latest.collect()
    }

    /// The Nodes with this provider id, as the model has them or as we have written them since.
    #[must_use]
    pub fn nodes_of(&self, view: &View, provider_id: &str) -> Vec<Arc<Node>> {
        let seen = view.nodes_by_provider_id(provider_id);
        let latest = seen.iter().map(|seen| self.node_writes.latest(seen));
        latest.collect()
    }

    /// Whether the provider supports the kind of NodeClass.
    #[must_use]
    pub fn is_managed(&self, class: &NodeClassReference) -> bool {
        self.provider
            .node_classes()
            .iter()
            .any(|kind| kind.group == class.group && kind.kind == class.kind)
    }
}
