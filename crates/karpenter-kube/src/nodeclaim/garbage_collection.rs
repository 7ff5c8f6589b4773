//! Garbage collection of NodeClaims without an instance and instances without a NodeClaim.
//!
//! 1. A registered NodeClaim whose instance the provider no longer lists, and whose Node is missing or not Ready, is deleted.
//!    Liveness deletes NodeClaims that have not registered.
//! 2. An instance that has had no NodeClaim for a grace period is terminated, and its Node deleted. An instance without a provider id
//!    is one of the NodeClaim whose name it has.
//!    So a crash between launching an instance and recording it loses nothing (invariant I7): either the NodeClaim launches
//!    again and gets the instance, or there is no NodeClaim and the instance is terminated.
//!
//! For the first check the provider is asked after the model is read, for the second the API server after the provider:
//! objects that are created in between are not collected.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/garbagecollection/controller.go, and the AWS provider's controller of that name

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use kube::Api;
use kube::api::ListParams;

use super::removal::disrupt;
use crate::client::delete::delete_object;
use crate::context::Context;
use crate::controller::{Doing, Periodic, ReconcileError};
use crate::logging;
use crate::model::View;

/// Interval between passes after the quick ones.
const INTERVAL: Duration = Duration::from_secs(2 * 60);
/// Interval between the first passes: orphans of an earlier process are found soon.
const QUICK_INTERVAL: Duration = Duration::from_secs(10);
/// Number of quick passes.
const QUICK_PASSES: u32 = 20;
/// How long an instance may exist without a NodeClaim.
const GRACE: Duration = Duration::from_secs(30);
/// How long to wait for the model.
const SYNC_RETRY: Duration = Duration::from_secs(1);
const PARALLEL: usize = 100;

/// Deletes NodeClaims without instances and instances without NodeClaims.
#[derive(Debug)]
pub struct GarbageCollection {
    cx: Arc<Context>,
    passes: u32,
    /// Since when an instance has had no NodeClaim, by [`key`].
    orphans: BTreeMap<String, Timestamp>,
}

impl GarbageCollection {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            passes: 0,
            orphans: BTreeMap::new(),
        }
    }

    async fn collect_claims(
        &self,
        view: &View,
        instances: &[Arc<NodeClaim>],
    ) -> Vec<ReconcileError> {
        let existing: BTreeSet<&str> = instances
            .iter()
            .filter(|m| !m.is_deleting())
            .filter_map(|m| provider_id(m))
            .collect();
        let lost: Vec<&Arc<NodeClaim>> = view
            .snapshot
            .node_claims()
            .filter(|c| self.cx.is_managed(&c.spec.node_class_ref) && !c.is_deleting())
            .filter(|c| c.is_true(types::REGISTERED))
            .filter(|c| provider_id(c).is_some_and(|id| !existing.contains(id)))
            .filter(|c| !has_ready_node(view, c))
            .collect();
        let removals: Vec<_> = lost
            .into_iter()
            .map(|claim| self.collect_claim(claim))
            .collect();
        errors(removals).await
    }

    async fn collect_claim(&self, claim: &Arc<NodeClaim>) -> Result<(), ReconcileError> {
        let claim = &self.cx.claim_writes.latest(claim);
        if disrupt(&self.cx, claim, "garbage_collected").await? {
            tracing::info!(
                NodeClaim = logging::object(None, claim.name()),
                nodeclaim = claim.name(),
                "provider-id" = provider_id(claim).unwrap_or_default(),
                "garbage collecting nodeclaim with no cloudprovider representation"
            );
        }
        Ok(())
    }

    async fn collect_instances(
        &mut self,
        instances: Vec<Arc<NodeClaim>>,
    ) -> Result<Vec<ReconcileError>, ReconcileError> {
        let known = |view: &View, instance: &NodeClaim| match provider_id(instance) {
            Some(id) => !view.node_claims_by_provider_id(id).is_empty(),
            None => view.node_claim(instance.name()).is_some(),
        };
        let view = self.cx.view();
        let unclaimed: Vec<Arc<NodeClaim>> = instances
            .into_iter()
            .filter(|m| !m.is_deleting())
            .filter(|m| !known(&view, m))
            .collect();
        let now = self.cx.clock.now();
        let seen: BTreeSet<&str> = unclaimed.iter().map(|m| key(m)).collect();
        self.orphans.retain(|id, _| seen.contains(id.as_str()));
        let mut due = Vec::new();
        for instance in &unclaimed {
            let launched = instance.metadata.creation_timestamp.as_ref().map(|t| t.0);
            let since = *self
                .orphans
                .entry(key(instance).to_owned())
                .or_insert(launched.unwrap_or(now));
            if self.cx.clock.since(since) >= GRACE {
                due.push(instance);
            }
        }
        if due.is_empty() {
            return Ok(Vec::new());
        }
        // The model may lag behind; the API server does not.
        let claims = self
            .cx
            .node_claims()
            .list(&ListParams::default())
            .await
            .doing("listing nodeclaims")?;
        let claimed: BTreeSet<&str> = claims.items.iter().filter_map(provider_id).collect();
        // A NodeClaim without an instance may be about to get this one.
        let launching: BTreeSet<&str> = claims
            .items
            .iter()
            .filter(|c| provider_id(c).is_none())
            .map(NodeClaim::name)
            .collect();
        let names: BTreeSet<&str> = claims.items.iter().map(NodeClaim::name).collect();
        due.retain(|m| match provider_id(m) {
            Some(id) => !claimed.contains(id) && !launching.contains(m.name()),
            None => !names.contains(m.name()),
        });
        let removals: Vec<_> = due
            .into_iter()
            .map(|instance| self.collect_instance(&view, instance))
            .collect();
        Ok(errors(removals).await)
    }

    async fn collect_instance(
        &self,
        view: &View,
        instance: &NodeClaim,
    ) -> Result<(), ReconcileError> {
        let id = provider_id(instance).unwrap_or_default();
        match self.cx.provider.delete(instance).await {
            Ok(()) => tracing::info!(
                NodeClaim = logging::object(None, instance.name()),
                "provider-id" = id,
                "garbage collected cloudprovider instance"
            ),
            Err(error) if error.is_node_claim_not_found() => {}
            Err(error) => return Err(error).doing("terminating instance"),
        }
        let api: Api<Node> = Api::all(self.cx.clients.api.clone());
        for node in view.nodes_by_provider_id(id) {
            if delete_object(&api, &node).await.doing("deleting node")? {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                tracing::info!(Node = logging::object(None, name), "garbage collected node");
            }
        }
        Ok(())
    }
}

async fn errors<F>(removals: Vec<F>) -> Vec<ReconcileError>
where
    F: Future<Output = Result<(), ReconcileError>>,
{
    let outcomes: Vec<_> = futures::stream::iter(removals)
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    outcomes.into_iter().filter_map(Result::err).collect()
}

fn provider_id(claim: &NodeClaim) -> Option<&str> {
    let id = claim.status.provider_id.as_deref();
    id.filter(|id| !id.is_empty())
}

/// Returns the provider id, or the name of an instance without one.
fn key(instance: &NodeClaim) -> &str {
    provider_id(instance).unwrap_or_else(|| instance.name())
}

fn has_ready_node(view: &View, claim: &NodeClaim) -> bool {
    let ready = |node: &Arc<Node>| {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    provider_id(claim).is_some_and(|id| view.nodes_by_provider_id(id).iter().any(ready))
}

impl Periodic for GarbageCollection {
    const NAME: &'static str = "nodeclaim.garbagecollection";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Ok(SYNC_RETRY);
        }
        let instances = self
            .cx
            .provider
            .list()
            .await
            .doing("listing cloudprovider machines")?;
        let mut errors = self.collect_claims(&view, &instances).await;
        errors.extend(self.collect_instances(instances).await?);
        ReconcileError::collect(errors)?;
        self.passes = self.passes.saturating_add(1);
        Ok(if self.passes <= QUICK_PASSES {
            QUICK_INTERVAL
        } else {
            INTERVAL
        })
    }
}
