//! Resolves the pods of a buffer and their number.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use karpenter_api::autoscaling::{CapacityBuffer, LocalObjectRef, conditions};
use karpenter_core::capacity_buffer::{MAX_PODS, MAX_PODS_OF_ALL, Source, chunks};
use kube::Api;

use super::stores::Missing;
use super::{Buffers, Stores};
use crate::client::patch::{Lock, patch_status};
use crate::context::Context;
use crate::controller::{Controller, Doing, Next, ObjectKey, Queue, ReconcileError};
use crate::model::{Change, View};
use crate::observability::Following;
use crate::options::Options;
use crate::provisioning::Triggers;

/// Interval between reconciliations of a buffer, even if nothing changes.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);

/// Maintains the status of buffers and their in-memory pods.
#[derive(Debug)]
pub struct Resolution {
    cx: Arc<Context>,
    stores: Stores,
    provisioner: Arc<Triggers>,
    following: Option<Following<CapacityBuffer>>,
}

/// Why a buffer has no pods: reason and message.
type Problem = (&'static str, String);

impl Resolution {
    /// Creates the controller; its queue is [`Resolution::queue`]. `following` observes each change of a buffer.
    #[must_use]
    pub fn new(
        cx: Arc<Context>,
        stores: Stores,
        provisioner: Arc<Triggers>,
        following: Option<Following<CapacityBuffer>>,
    ) -> Self {
        Self {
            cx,
            stores,
            provisioner,
            following,
        }
    }

    /// Creates the queue for changes of buffers.
    #[must_use]
    pub fn queue(buffers: &Buffers) -> Queue<ObjectKey> {
        buffers.changed.clone()
    }

    /// Resolves the reference of the buffer and records the PodTemplate in its status.
    fn source(&self, buffer: &mut CapacityBuffer) -> Result<Source, Problem> {
        let namespace = buffer.metadata.namespace.clone().unwrap_or_default();
        let status = &mut buffer.status;
        status.pod_template_ref = None;
        status.pod_template_generation = None;
        if let Some(LocalObjectRef { name }) = &buffer.spec.pod_template_ref {
            let not_found = || {
                let message = format!("PodTemplate \"{name}\" not found");
                (conditions::POD_TEMPLATE_NOT_FOUND, message)
            };
            let found = self.stores.template(&namespace, name);
            let (generation, source) = found.ok_or_else(not_found)?;
            status.pod_template_ref = Some(LocalObjectRef { name: name.clone() });
            status.pod_template_generation = generation;
            return Ok(source);
        }
        let Some(target) = &buffer.spec.scalable_ref else {
            let message = "either podTemplateRef or scalableRef must be set".to_owned();
            return Err((conditions::RESOLUTION_FAILED, message));
        };
        let (kind, name) = (&target.kind, &target.name);
        self.stores
            .workload(&namespace, target)
            .map_err(|missing| match missing {
                Missing::NotFound => (
                    conditions::SCALABLE_REF_NOT_FOUND,
                    format!("{kind} \"{name}\" not found"),
                ),
                Missing::Unsupported => (
                    conditions::RESOLUTION_FAILED,
                    format!("unsupported scalableRef \"{}/{kind}\"", target.api_group),
                ),
            })
    }

    /// Updates the in-memory pods of the buffer; returns their number, and a sentence if the buffer asks for more.
    fn resolve(
        &self,
        key: &ObjectKey,
        buffer: &mut CapacityBuffer,
    ) -> Result<(u32, String), Problem> {
        let failed = |message: String| (conditions::RESOLUTION_FAILED, message);
        let source = self.source(buffer)?;
        let chunk = source.chunk(buffer);
        if let Some(problem) = &chunk.shape.problem {
            return Err(failed(problem.clone()));
        }
        let count = chunks(&buffer.spec, source.scale, &chunk.shape.requests)
            .map_err(|error| failed(error.to_string()))?;
        let (changed, kept) = self.cx.buffers.set(key, &chunk, count);
        if changed || kept > 0 {
            self.provisioner.trigger(buffer.uid());
        }
        let capped = (kept < count).then(|| {
            format!("keeps {kept} of {count} chunks: a buffer has at most {MAX_PODS}, and all buffers together {MAX_PODS_OF_ALL}")
        });
        Ok((kept, capped.unwrap_or_default()))
    }
}

/// Sets a condition; buffers have no root condition.
fn set(
    buffer: &mut CapacityBuffer,
    condition_type: &str,
    holds: bool,
    (reason, message): (&str, &str),
    now: Timestamp,
) {
    let status = if holds { "True" } else { "False" };
    let generation = buffer.metadata.generation;
    let all = &mut buffer.status.conditions;
    let since = all
        .iter()
        .find(|c| c.type_ == condition_type && c.status == status)
        .map(|c| c.last_transition_time.clone());
    let condition = Condition {
        type_: condition_type.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        // Kubernetes writes whole seconds; the value read back must equal the value set.
        last_transition_time: since
            .unwrap_or_else(|| Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
    };
    match all.iter_mut().find(|c| c.type_ == condition_type) {
        Some(present) => *present = condition,
        None => all.push(condition),
    }
}

impl Controller for Resolution {
    type Key = ObjectKey;
    const NAME: &'static str = "capacitybuffer";
    const KIND: &'static str = CapacityBuffer::KIND;

    fn concurrency(&self, _: &Options) -> usize {
        10
    }

    fn triggered_by(&self, _: &Change, _: &View, _: &Queue<ObjectKey>) {
        // The watches of this controller fill the queue.
    }

    async fn reconcile(&self, key: ObjectKey) -> Result<Next, ReconcileError> {
        let current = self.stores.buffer(&key);
        if let Some(following) = &self.following {
            following.observe(&key.to_string(), current.clone());
        }
        let Some(before) = current.filter(|buffer| buffer.metadata.deletion_timestamp.is_none())
        else {
            self.cx.buffers.forget(&key);
            return Ok(Next::Wait);
        };
        let mut after = CapacityBuffer::clone(&before);
        after
            .status
            .provisioning_strategy
            .clone_from(&before.spec.provisioning_strategy);
        let outcome = self.resolve(&key, &mut after);
        let now = self.cx.clock.now();
        let (ready, provisioning) = (conditions::READY_FOR_PROVISIONING, conditions::PROVISIONING);
        match outcome {
            Err((reason, message)) => {
                self.cx.buffers.forget(&key);
                after.status.replicas = None;
                set(&mut after, ready, false, (reason, &message), now);
                let why = (conditions::NOT_READY_FOR_PROVISIONING, "");
                set(&mut after, provisioning, false, why, now);
            }
            Ok((count, capped)) => {
                after.status.replicas = Some(i32::try_from(count).unwrap_or(i32::MAX));
                set(
                    &mut after,
                    ready,
                    true,
                    (conditions::RESOLVED, &capped),
                    now,
                );
                let state = match (count, self.cx.buffers.fits(&key)) {
                    (0, _) => Some((false, conditions::BUFFER_EMPTY)),
                    (_, Some(true)) => Some((true, conditions::FITS_EXISTING_CAPACITY)),
                    (_, Some(false)) => Some((false, conditions::REQUIRES_NEW_CAPACITY)),
                    // The next plan decides.
                    (_, None) => None,
                };
                if let Some((holds, reason)) = state {
                    set(&mut after, provisioning, holds, (reason, ""), now);
                }
            }
        }
        let api: Api<CapacityBuffer> = Api::namespaced(self.cx.clients.api.clone(), &key.namespace);
        patch_status(&api, &before, &after, Lock::Optimistic)
            .await
            .doing("updating capacitybuffer status")?;
        Ok(Next::After(RESYNC_INTERVAL))
    }
}
