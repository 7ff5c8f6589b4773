//! How controllers read the model, and the updates that they may send.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use karpenter_api::v1::NodeClaim;
use karpenter_core::instance_type::InstanceType;
use tokio::sync::{SetOnce, mpsc, oneshot, watch};

use super::update::{Message, Update};
use super::view::View;
use crate::error::ReconcileError;

/// Reads views and sends updates. Cheap to clone.
#[derive(Clone)]
pub struct ModelHandle {
    pub(super) updates: mpsc::Sender<Message>,
    pub(super) view: Arc<ArcSwap<View>>,
    pub(super) version: watch::Receiver<u64>,
    pub(super) synced: Arc<SetOnce<()>>,
}

impl fmt::Debug for ModelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelHandle")
    }
}

/// The model did not apply an update because the operator is stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the model has stopped")]
pub struct Stopped;

impl From<Stopped> for ReconcileError {
    fn from(_: Stopped) -> Self {
        Self::Stopping
    }
}

impl ModelHandle {
    /// Returns the latest view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Returns a receiver of view versions; its first wait returns at once.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }

    /// Waits until every kind has been listed; forever, if the model stops before.
    ///
    /// Waiters are woken in the order of their calls: a `watch` wakes them in any order, and simulations would not repeat.
    pub async fn synced(&self) {
        self.synced.wait().await;
    }

    /// Queues an update; waits while the queue is full.
    pub(super) async fn queue(&self, update: Update) -> Result<(), Stopped> {
        self.send(update, None, None).await
    }

    /// Queues an update and waits until it is applied, not until it is in a view.
    pub(super) async fn apply(&self, update: Update) -> Result<(), Stopped> {
        let (done, applied) = oneshot::channel();
        self.send(update, Some(done), None).await?;
        applied.await.map_err(|_| Stopped)
    }

    /// Queues an update and waits until a view with it is published.
    pub(super) async fn update(&self, update: Update) -> Result<(), Stopped> {
        let (done, published) = oneshot::channel();
        self.send(update, None, Some(done)).await?;
        published.await.map_err(|_| Stopped)
    }

    async fn send(
        &self,
        update: Update,
        applied: Option<oneshot::Sender<()>>,
        published: Option<oneshot::Sender<()>>,
    ) -> Result<(), Stopped> {
        let message = Message {
            update,
            applied,
            published,
        };
        self.updates.send(message).await.map_err(|_| Stopped)
    }

    /// Protects nodes that pods were nominated to from disruption.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn nominate(&self, nodes: Vec<String>, until: Timestamp) -> Result<(), Stopped> {
        self.update(Update::Nominate { nodes, until }).await
    }

    /// Marks or unmarks nodes that a command is about to delete.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn mark_for_deletion(
        &self,
        provider_ids: Vec<String>,
        mark: bool,
    ) -> Result<(), Stopped> {
        self.update(Update::MarkForDeletion { provider_ids, mark })
            .await
    }

    /// Adds a NodeClaim that was just created to the model, so that the next plan counts it.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn created_node_claim(&self, claim: NodeClaim) -> Result<(), Stopped> {
        self.update(Update::CreatedNodeClaim(Arc::new(claim))).await
    }

    /// Removes a NodeClaim that the API server does not have, unless it is launched or another one by now.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn missing_node_claim(&self, name: Arc<str>, uid: String) -> Result<(), Stopped> {
        self.update(Update::MissingNodeClaim { name, uid }).await
    }

    /// Sets the instance types that the provider offers for a NodePool.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn set_instance_types(
        &self,
        pool: String,
        types: Result<Arc<[InstanceType]>, String>,
    ) -> Result<(), Stopped> {
        self.update(Update::SetInstanceTypes { pool, types }).await
    }

    /// Removes the instance types of a NodePool: they are not known yet.
    ///
    /// # Errors
    /// When the model has stopped.
    pub async fn forget_instance_types(&self, pool: String) -> Result<(), Stopped> {
        self.update(Update::ForgetInstanceTypes { pool }).await
    }
}
