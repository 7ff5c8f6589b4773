//! Controllers of NodeClaims in capacity reservations: relabeling of instances that left their reservation, and
//! deletion before a capacity block expires.
//!
//! UPSTREAM: pkg/controllers/capacityreservation

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_core::provider::CloudProviderError;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Doing, Periodic, ReconcileError, is_not_found};
use karpenter_kube::logging;
use karpenter_kube::model::View;
use karpenter_kube::nodeclaim::removal::disrupt;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::api::{CapacityReservationSelectorTerm, ReservationState, labels};
use crate::providers::capacity_reservation::Reservations;
use crate::providers::instance::{Freshness, Instances, instance_id};

const INTERVAL: Duration = Duration::from_secs(60);
/// Delay of a pass while the model is not synced.
const UNSYNCED: Duration = Duration::from_secs(1);

fn is_reserved<K: kube::Resource>(object: &K) -> bool {
    let found = object.meta().labels.as_ref();
    let found = found.and_then(|l| l.get(core_labels::CAPACITY_TYPE));
    found.is_some_and(|value| value == core_labels::CAPACITY_TYPE_RESERVED)
}

/// Iterates over managed NodeClaims that are not being deleted, with their instance IDs.
fn launched_claims<'a>(
    cx: &'a Context,
    view: &'a View,
) -> impl Iterator<Item = (&'a str, &'a NodeClaim)> {
    view.snapshot.node_claims().filter_map(|claim| {
        let managed = cx.is_managed(&claim.spec.node_class_ref) && !claim.is_deleting();
        let id = instance_id(claim.status.provider_id.as_deref()?)?;
        managed.then_some((id, &**claim))
    })
}

/// Labels NodeClaims and nodes as on-demand when their instance has left its reservation.
#[derive(Debug)]
pub struct CapacityType {
    cx: Arc<Context>,
    instances: Arc<Instances>,
}

impl CapacityType {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>, instances: Arc<Instances>) -> Self {
        Self { cx, instances }
    }

    async fn check(&self, id: &str, claim: &NodeClaim, view: &View) -> Result<(), ReconcileError> {
        let instance = match self.instances.get(id, Freshness::Fresh).await {
            Ok(instance) => instance,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => {
                return Err(CloudProviderError::Other(Box::new(error))).doing("getting instance");
            }
        };
        if instance.capacity_type != core_labels::CAPACITY_TYPE_ON_DEMAND {
            return Ok(());
        }
        if is_reserved(claim) {
            relabel(&self.cx.node_claims(), claim.name()).await?;
            tracing::debug!(
                NodeClaim = logging::object(None, claim.name()),
                "updated capacity type for nodeclaim"
            );
        }
        let nodes: Api<Node> = Api::all(self.cx.clients.api.clone());
        for node in registered_nodes(view, claim).filter(|node| is_reserved(&**node)) {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            relabel(&nodes, name).await?;
            tracing::debug!(
                Node = logging::object(None, name),
                "updated capacity type for node"
            );
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

async fn relabel<K>(api: &Api<K>, name: &str) -> Result<(), ReconcileError>
where
    K: kube::Resource + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    // DIFFERS: upstream keeps the label `capacity-reservation-interruptible`.
    let patch = json!({ "metadata": { "labels": {
        core_labels::CAPACITY_TYPE: core_labels::CAPACITY_TYPE_ON_DEMAND,
        labels::CAPACITY_RESERVATION_ID: Value::Null,
        labels::CAPACITY_RESERVATION_TYPE: Value::Null,
        labels::CAPACITY_RESERVATION_INTERRUPTIBLE: Value::Null,
    } } });
    let patched = api
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Err(error) if !is_not_found(&error) => Err(error).doing("labeling as on-demand"),
        _ => Ok(()),
    }
}

impl Periodic for CapacityType {
    fn name(&self) -> &'static str {
        "capacityreservation.capacitytype"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Ok(UNSYNCED);
        }
        // An earlier pass may have labeled the NodeClaim and failed to label the node.
        let reserved = launched_claims(&self.cx, &view).filter(|(_, claim)| {
            is_reserved(*claim) || registered_nodes(&view, claim).any(|node| is_reserved(&*node))
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
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>, reservations: Reservations) -> Self {
        Self { cx, reservations }
    }
}

impl Periodic for Expiration {
    fn name(&self) -> &'static str {
        "capacityreservation.expiration"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let view = self.cx.view();
        if !view.is_synced() {
            return Ok(UNSYNCED);
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
            .map_err(|error| CloudProviderError::Other(Box::new(error)))
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
