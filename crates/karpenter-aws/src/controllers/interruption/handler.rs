//! Handling of an interruption or health event of an instance: publishes events, marks pools as unavailable, deletes
//! the NodeClaim.
//!
//! UPSTREAM: pkg/controllers/interruption/controller.go

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use karpenter_api::labels as core_labels;
use karpenter_api::v1::NodeClaim;
use karpenter_kube::context::Context;
use karpenter_kube::controller::{Doing, ReconcileError};
use karpenter_kube::events::{Event, EventType, reference};
use karpenter_kube::logging;
use karpenter_kube::model::View;
use karpenter_kube::nodeclaim::removal::{disrupt, end_grace_period};

use super::kind::{Action, Kind};
use crate::api::{events, labels};
use crate::providers::instance::instance_id;
use crate::providers::instance_type::offered::Offered;
use crate::providers::instance_type::unavailable::{CapacityType, Pool};

/// How often a NodeClaim is read again after a write conflict.
const ATTEMPTS: usize = 5;

/// Handles interruption and health events of the instances of NodeClaims.
#[derive(Clone, Debug)]
pub struct Handler {
    cx: Arc<Context>,
    offered: Arc<Offered>,
}

/// Returns the managed NodeClaims of these instances, by instance ID.
#[must_use]
pub fn claims_of(
    cx: &Context,
    view: &View,
    instances: &BTreeSet<&str>,
) -> BTreeMap<String, Vec<Arc<NodeClaim>>> {
    let mut found: BTreeMap<String, Vec<Arc<NodeClaim>>> = BTreeMap::new();
    if instances.is_empty() {
        return found;
    }
    for claim in view.snapshot.node_claims() {
        let provider_id = claim.status.provider_id.as_deref().unwrap_or_default();
        if let Some(id) = instance_id(provider_id)
            && instances.contains(id)
            && cx.is_managed(&claim.spec.node_class_ref)
        {
            found
                .entry(id.to_owned())
                .or_default()
                .push(Arc::clone(claim));
        }
    }
    found
}

impl Handler {
    /// Creates a handler that marks unavailable pools in `offered`.
    #[must_use]
    pub fn new(cx: Arc<Context>, offered: Arc<Offered>) -> Self {
        Self { cx, offered }
    }

    /// Handles an event of a NodeClaim's instance.
    ///
    /// # Errors
    /// If the API server refuses; the call can be repeated.
    pub async fn handle(&self, kind: Kind, claim: &NodeClaim) -> Result<(), ReconcileError> {
        if let Some(notification) = kind.notification() {
            let event = (notification.type_, notification.reason);
            self.publish(claim, event, notification.message, notification.message);
        }
        self.mark_unavailable(kind, claim);
        if kind.action() == Action::None {
            return Ok(());
        }
        if self.remove(kind, claim).await? {
            tracing::info!(
                NodeClaim = logging::object(None, claim.name()),
                action = "CordonAndDrain",
                "message-kind" = kind.as_str(),
                "initiating delete from interruption message"
            );
            self.publish(
                claim,
                (EventType::Warning, events::TERMINATING_ON_INTERRUPTION),
                "Interruption triggered termination for the NodeClaim",
                "Interruption triggered termination for the Node",
            );
        }
        Ok(())
    }

    /// Publishes an event about the NodeClaim and its node.
    fn publish(
        &self,
        claim: &NodeClaim,
        (type_, reason): (EventType, &str),
        of_claim: &str,
        of_node: &str,
    ) {
        let event = |about, message: &str| Event {
            type_,
            ..Event::normal(about, reason, message)
        };
        let recorder = &self.cx.recorder;
        recorder.publish(event(reference(claim), of_claim));
        let provider_id = claim.status.provider_id.as_deref().unwrap_or_default();
        for node in self.cx.view().nodes_by_provider_id(provider_id) {
            recorder.publish(event(reference(&*node), of_node));
        }
    }

    /// Marks the pool or reservation of an interrupted instance as unavailable.
    fn mark_unavailable(&self, kind: Kind, claim: &NodeClaim) {
        match kind {
            Kind::SpotInterrupted => {
                let label = |key| claim.label(key).filter(|v| !v.is_empty());
                let Some((type_, zone)) =
                    label(core_labels::INSTANCE_TYPE).zip(label(core_labels::ZONE))
                else {
                    return;
                };
                let pool = Pool {
                    capacity_type: CapacityType::Spot,
                    instance_type: type_.to_owned(),
                    zone: zone.to_owned(),
                    placement: None,
                };
                let unavailable = self.offered.unavailable();
                let now = self.cx.clock.now();
                unavailable.lock().report(pool, kind.as_str(), None, now);
            }
            Kind::CapacityReservationInterrupted => {
                if let Some(id) = claim.label(labels::CAPACITY_RESERVATION_ID) {
                    self.offered.counts().exhausted(id);
                }
            }
            _ => {}
        }
    }

    /// Deletes the NodeClaim, with retries on conflicts. Returns whether this call deleted it.
    async fn remove(&self, kind: Kind, claim: &NodeClaim) -> Result<bool, ReconcileError> {
        let mut latest = claim.clone();
        for _ in 0..ATTEMPTS {
            match self.try_remove(kind, &latest).await {
                Err(error) if error.is_conflict() => {}
                other => return other,
            }
            let found = self.cx.node_claims().get_opt(claim.name()).await;
            match found.doing("getting nodeclaim")? {
                Some(found) if found.metadata.uid == claim.metadata.uid => latest = found,
                _ => return Ok(false),
            }
        }
        Err(ReconcileError::Refused(format!(
            "cannot delete nodeclaim `{}`, it is modified concurrently",
            claim.name()
        )))
    }

    async fn try_remove(&self, kind: Kind, claim: &NodeClaim) -> Result<bool, ReconcileError> {
        let ended;
        let claim = match kind.action() {
            Action::Force => {
                ended = end_grace_period(&self.cx, claim).await?;
                &ended
            }
            Action::Drain | Action::None => claim,
        };
        if claim.is_deleting() {
            return Ok(false);
        }
        disrupt(&self.cx, claim, kind.as_str()).await
    }
}
