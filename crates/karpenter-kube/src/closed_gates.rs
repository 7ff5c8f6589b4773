//! Warns about objects that have no effect because their feature gate is off.
//!
//! DIFFERS: upstream ignores NodeOverlays and CapacityBuffers without a word while their gate is off.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use karpenter_api::autoscaling::CapacityBuffer;
use karpenter_api::events;
use karpenter_api::v1alpha1::NodeOverlay;
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::controller::{Doing, Periodic, ReconcileError, is_not_found};
use crate::events::{Event, reference};
use crate::logging;

/// Interval between passes. Only metadata is listed, so that it costs little in clusters that have none of these objects.
const INTERVAL: Duration = Duration::from_secs(60);
/// How many objects of a kind are reported at most.
const REPORTED: u32 = 100;
/// How often the event about an object is repeated.
const REPEAT: Duration = Duration::from_secs(24 * 60 * 60);

/// Publishes a Warning for each object whose feature gate is off, and logs it once.
#[derive(Debug)]
pub struct ClosedGates {
    cx: Arc<Context>,
    /// The uids of objects that have been logged.
    logged: BTreeSet<String>,
}

impl ClosedGates {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            logged: BTreeSet::new(),
        }
    }

    async fn warn<K>(&mut self, gate: &str) -> Result<(), ReconcileError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.cx.clients.api.clone());
        let listed = api
            .list_metadata(&ListParams::default().limit(REPORTED))
            .await;
        let objects = match listed {
            // Clusters without the CRD have no objects of the kind.
            Err(error) if is_not_found(&error) => return Ok(()),
            listed => listed.doing("listing objects of a closed feature gate")?,
        };
        for object in objects {
            let kind = K::kind(&());
            let message = format!("{kind} has no effect, because the feature gate {gate} is off");
            let event = Event::warning(
                reference(&object),
                events::FEATURE_GATE_CLOSED,
                message.clone(),
            );
            self.cx.recorder.publish(event.every(REPEAT));
            let uid = object.metadata.uid.clone().unwrap_or_default();
            if self.logged.insert(uid) {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                tracing::warn!(
                    object.kind = %kind,
                    object = logging::object(object.metadata.namespace.as_deref(), name),
                    feature_gate = gate,
                    "ignoring an object whose feature gate is off"
                );
            }
        }
        Ok(())
    }
}

impl Periodic for ClosedGates {
    fn name(&self) -> &'static str {
        "featuregate.closed"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        let gates = self.cx.options.feature_gates;
        if !gates.node_overlay {
            self.warn::<NodeOverlay>("NodeOverlay").await?;
        }
        if !gates.capacity_buffer {
            self.warn::<CapacityBuffer>("CapacityBuffer").await?;
        }
        Ok(INTERVAL)
    }
}
