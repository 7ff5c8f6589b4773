//! Controllers of NodeClaims in capacity reservations: relabeling of instances that left their reservation, and
//! deletion before a capacity block expires.
//!
//! UPSTREAM: pkg/controllers/capacityreservation

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::client::patch::Lock;
use karpenter_kube::client::writes::Writes;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError, is_not_found};
use karpenter_kube::logging;
use karpenter_kube::model::View;
use karpenter_kube::nodeclaim::removal::disrupt;
use kube::Api;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{CapacityReservationSelectorTerm, ReservationState, labels};
use crate::providers::capacity_reservation::Reservations;
use crate::providers::instance::{Freshness, Instances, instance_id};

const INTERVAL: Duration = Duration::from_secs(60);
/// Delay of a pass while the model is not synced.
const SYNC_RETRY: Duration = Duration::from_secs(1);

fn is_reserved<K: kube::Resource>(object: &K) -> bool {
    let found = object.meta().labels.as_ref();
    let found = found.and_then(|l| l.get(core_labels::CAPACITY_TYPE));
    found.is_some_and(|value| value == core_labels::CAPACITY_TYPE_RESERVED)
}

/// Iterates over managed NodeClaims that are not being deleted, with their instance IDs.
fn launched_claims<'a>(
    cx: &'a Context,
    view: &'a View,
) -> impl Iterator<Item = (&'a str, &'a Arc<NodeClaim>)> {
    view.snapshot.node_claims().filter_map(|claim| {
        let managed = cx.is_managed(&claim.spec.node_class_ref) && !claim.is_deleting();
        let id = instance_id(claim.status.provider_id.as_deref()?)?;
        managed.then_some((id, claim))
    })
}

/// Labels NodeClaims and nodes as on-demand when their instance has left its reservation.
#[derive(Debug)]
pub struct CapacityType {
    cx: Arc<Context>,
    instances: Arc<Instances>,
}

impl CapacityType {
    #[must_use]
    pub fn new(cx: Arc<Context>, instances: Arc<Instances>) -> Self {
        Self { cx, instances }
    }

    async fn check(
        &self,
        id: &str,
        claim: &Arc<NodeClaim>,
        view: &View,
    ) -> Result<(), ReconcileError> {
        let instance = match self.instances.get(id, Freshness::Fresh).await {
            Ok(instance) => instance,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(CloudProviderError::other(error)).doing("getting instance"),
        };
        if instance.capacity_type != core_labels::CAPACITY_TYPE_ON_DEMAND {
            return Ok(());
        }
        if relabel(self.cx.node_claims(), &self.cx.claim_writes, claim).await? {
            tracing::debug!(
                NodeClaim = logging::object(None, claim.name()),
                "updated capacity type for nodeclaim"
            );
        }
        for node in registered_nodes(view, claim) {
            if relabel(self.cx.nodes(), &self.cx.node_writes, &node).await? {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                tracing::debug!(
                    Node = logging::object(None, name),
                    "updated capacity type for node"
                );
            }
        }
        Ok(())
    }
}

fn registered_nodes(view: &View, claim: &NodeClaim) -> impl Iterator<Item = Arc<Node>> + use<> {
    let id = claim.status.provider_id.as_deref().unwrap_or_default();
    view.nodes_by_provider_id(id).into_iter().filter(|node| {
        let registered = node.metadata.labels.as_ref();
        registered.is_some_and(|l| l.contains_key(core_labels::REGISTERED))
    })
}

/// Labels an object as on-demand if it is labeled as reserved. Returns whether it was written.
async fn relabel<K>(api: Api<K>, writes: &Writes<K>, seen: &Arc<K>) -> Result<bool, ReconcileError>
where
    K: kube::Resource + Serialize + DeserializeOwned + Clone + PartialEq + Debug,
{
    let before = writes.latest(seen);
    if !is_reserved(&*before) {
        return Ok(false);
    }
    let mut after = K::clone(&before);
    let all = after.meta_mut().labels.get_or_insert_default();
    // DIFFERS: upstream keeps the label `capacity-reservation-interruptible`.
    for key in [
        labels::CAPACITY_RESERVATION_ID,
        labels::CAPACITY_RESERVATION_TYPE,
        labels::CAPACITY_RESERVATION_INTERRUPTIBLE,
    ] {
        all.remove(key);
    }
    all.insert(
        core_labels::CAPACITY_TYPE.to_owned(),
        core_labels::CAPACITY_TYPE_ON_DEMAND.to_owned(),
    );
    // No other controller writes these labels after the registration.
    match writes.patch_object(api, &before, &after, Lock::None).await {
        Ok(written) => Ok(written.is_some()),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(error).doing("labeling as on-demand"),
    }
}

impl Periodic for CapacityType {
    const NAME: &'static str = "capacityreservation.capacitytype";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Ok(SYNC_RETRY);
        }
        // An earlier pass may have labeled the NodeClaim and failed to label the node.
        let reserved = launched_claims(&self.cx, &view).filter(|(_, claim)| {
            is_reserved(&***claim) || registered_nodes(&view, claim).any(|node| is_reserved(&*node))
        });
        let checks = reserved.map(|(id, claim)| self.check(id, claim, &view));
        let outcomes = join_all(checks).await;
        ReconcileError::collect(outcomes.into_iter().filter_map(Result::err).collect())?;
        Ok(INTERVAL)
    }
}

/// Deletes NodeClaims whose capacity block is about to expire, before EC2 terminates the instances.
#[derive(Debug)]
pub struct Expiration {
    cx: Arc<Context>,
    reservations: Reservations,
}

impl Expiration {
    #[must_use]
    pub fn new(cx: Arc<Context>, reservations: Reservations) -> Self {
        Self { cx, reservations }
    }
}

impl Periodic for Expiration {
    const NAME: &'static str = "capacityreservation.expiration";

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Ok(SYNC_RETRY);
        }
        let reservation = |claim: &NodeClaim| {
            let id = claim.label(labels::CAPACITY_RESERVATION_ID);
            id.map(str::to_owned).filter(|id| !id.is_empty())
        };
        let ids: BTreeSet<String> = launched_claims(&self.cx, &view)
            .filter_map(|(_, claim)| reservation(claim))
            .collect();
        if ids.is_empty() {
            return Ok(INTERVAL);
        }
        let terms: Vec<CapacityReservationSelectorTerm> = ids
            .into_iter()
            .map(|id| CapacityReservationSelectorTerm {
                id: Some(id),
                ..CapacityReservationSelectorTerm::default()
            })
            .collect();
        let found = self.reservations.list(&terms, self.cx.clock.now()).await;
        let found = found
            .map_err(CloudProviderError::other)
            .doing("getting capacity reservations")?;
        let expiring: BTreeSet<String> = found
            .into_iter()
            .filter(|r| r.state == ReservationState::Expiring)
            .map(|r| r.id)
            .collect();
        let ending = launched_claims(&self.cx, &view)
            .filter(|(_, claim)| reservation(claim).is_some_and(|id| expiring.contains(&id)));
        let deletions = ending.map(|(_, claim)| async {
            if disrupt(&self.cx, claim, "capacity_block_expiring").await? {
                tracing::info!(
                    NodeClaim = logging::object(None, claim.name()),
                    "capacity-reservation-id" = reservation(claim),
                    "initiating delete for capacity block expiration"
                );
            }
            Ok(())
        });
        let outcomes: Vec<Result<(), ReconcileError>> = join_all(deletions).await;
        ReconcileError::collect(outcomes.into_iter().filter_map(Result::err).collect())?;
        Ok(INTERVAL)
    }
}
