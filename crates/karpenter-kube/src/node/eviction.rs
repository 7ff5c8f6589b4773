//! The eviction queue: evicts pods one request at a time each, with back-off.
//!
//! 1. A pod is identified by namespace, name and uid: a later pod of the same name is not evicted for it.
//! 2. The earliest deadline counts; it can become earlier, never later.
//! 3. An eviction that a known PodDisruptionBudget refuses is not requested from the API server.
//! 4. A pod whose eviction was accepted is not evicted again: it stays in the queue until the model has it terminating.
//! 5. Past the deadline (less the pod's own grace period) the pod is deleted; before, it is evicted, if it allows that.
//!
//! UPSTREAM: pkg/controllers/node/termination/terminator/eviction.go

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod as CorePod};
use k8s_openapi::api::policy::v1::Eviction;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, ObjectMeta, Preconditions};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::events;
use karpenter_core::cluster::pdb::PdbBlock;
use karpenter_core::lifecycle::drain::{self, Eviction as Step, forced_grace, needs_force};
use karpenter_core::pod::{Pod, PodKey};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::core::Status;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::protection::pod_reference;
use crate::client::delete::only_uid;
use crate::context::Context;
use crate::controller::{Backoff, Controller, Doing, Next, Queue, ReconcileError, is_not_found};
use crate::events::{Event, reference};
use crate::model::{Change, View};
use crate::options::Options;

/// A pod to be evicted.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EvictionKey(Arc<PodKey>);

impl fmt::Debug for EvictionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.namespace, self.0.name)
    }
}

/// Evicts pods.
#[derive(Debug)]
pub struct EvictionQueue {
    cx: Arc<Context>,
    queue: Queue<EvictionKey>,
    deadlines: Mutex<FxHashMap<EvictionKey, Option<Timestamp>>>,
}

/// Reason of evictions for which the NodeClaim has no reason: a user or another controller deleted the NodeClaim or the Node.
const FORCEFUL: &str = "Forceful Termination";

/// How long the model may lack an accepted eviction before the pod is evicted again.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(30);

/// Message about a pod with several PodDisruptionBudgets.
const MULTIPLE_PDBS: &str = "eviction does not support multiple PDBs";

/// The API server's answer to an eviction.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Accepted,
    NotFound,
    Refused(String),
}

impl EvictionQueue {
    /// Creates the controller of this queue.
    #[must_use]
    pub fn new(cx: Arc<Context>, queue: Queue<EvictionKey>) -> Self {
        Self {
            cx,
            queue,
            deadlines: Mutex::default(),
        }
    }

    /// Queues pods for eviction, and for deletion in time for `deadline`.
    pub fn add(&self, pods: &[Arc<Pod>], deadline: Option<Timestamp>) {
        let mut fresh = Vec::new();
        let mut deadlines = self.deadlines.lock();
        for pod in pods {
            let key = EvictionKey(Arc::new(pod.key.clone()));
            let tightened = match deadlines.get(&key) {
                None => Some(deadline),
                Some(known) => {
                    let earliest = [*known, deadline].into_iter().flatten().min();
                    (earliest != *known).then_some(earliest)
                }
            };
            if let Some(deadline) = tightened {
                deadlines.insert(key.clone(), deadline);
                fresh.push(key);
            } else if needs_force(pod, deadline, self.cx.clock.now()) {
                // The deadline has passed while the pod waits for its next attempt.
                fresh.push(key);
            }
        }
        drop(deadlines);
        fresh.into_iter().for_each(|key| self.queue.add(key));
    }

    fn forget(&self, key: &EvictionKey) -> Next {
        self.deadlines.lock().remove(key);
        Next::Wait
    }

    async fn evict(&self, pod: &Pod) -> Result<Answer, kube::Error> {
        let eviction = Eviction {
            metadata: ObjectMeta {
                name: Some(pod.key.name.clone()),
                namespace: Some(pod.key.namespace.clone()),
                ..ObjectMeta::default()
            },
            delete_options: Some(DeleteOptions {
                preconditions: Some(Preconditions {
                    uid: Some(pod.key.uid.clone()),
                    resource_version: None,
                }),
                ..DeleteOptions::default()
            }),
        };
        // This client does not retry: a refusal is an answer.
        let api: Api<CorePod> =
            Api::namespaced(self.cx.clients.no_retry.clone(), &pod.key.namespace);
        let answer: Result<Status, kube::Error> = api
            .create_subresource("eviction", &pod.key.name, &PostParams::default(), &eviction)
            .await;
        let code = |code: u16| {
            self.cx
                .metrics
                .pods_eviction_requests_total
                .inc(&[&code.to_string()])
        };
        match answer {
            Ok(_) => {
                code(200);
                Ok(Answer::Accepted)
            }
            Err(kube::Error::Api(status)) => {
                code(status.code);
                classify(status.code, &status.message).ok_or(kube::Error::Api(status))
            }
            Err(error) => {
                code(500);
                Err(error)
            }
        }
    }

    async fn delete(&self, pod: &Pod, deadline: Timestamp) -> Result<(), ReconcileError> {
        let now = self.cx.clock.now();
        let grace = forced_grace(deadline, now);
        let api: Api<CorePod> = Api::namespaced(self.cx.clients.api.clone(), &pod.key.namespace);
        let params = DeleteParams {
            grace_period_seconds: Some(u32::try_from(grace.as_secs()).unwrap_or(u32::MAX)),
            ..only_uid(Some(pod.key.uid.clone()))
        };
        match api.delete(&pod.key.name, &params).await {
            Ok(_) => {
                let message = format!(
                    "Deleted the pod to accommodate the terminationTime {deadline} of the node. The pod was granted {} seconds of grace-period of its {:?} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the do-not-disrupt annotation.",
                    grace.as_secs(),
                    pod.termination_grace_seconds.unwrap_or(30)
                );
                self.cx.recorder.publish(Event::normal(
                    pod_reference(pod),
                    events::DISRUPTED,
                    message,
                ));
                self.cx.metrics.pods_drained_total.inc(&[FORCEFUL]);
                Ok(())
            }
            Err(error) if is_not_found(&error) => Ok(()),
            // A new pod has this name now.
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(()),
            Err(error) => Err(error).doing("deleting pod"),
        }
    }

    /// Returns the disruption reason of the pod's NodeClaim; a default if the NodeClaim is ambiguous.
    fn reason(&self, view: &View, pod: &Pod) -> String {
        let node = pod.node_name.as_deref().and_then(|name| view.node(name));
        let claims = node.map(|node| view.node_claims_of(node));
        let Some([claim]) = claims.as_deref() else {
            return String::new();
        };
        let condition = claim.condition(types::DISRUPTION_REASON);
        let reason = condition.filter(|_| claim.is_true(types::DISRUPTION_REASON));
        reason.map_or_else(|| FORCEFUL.to_owned(), |condition| condition.reason.clone())
    }

    fn blocked(&self, view: &View, pod: &Pod, why: &str) {
        if let Some(node) = pod.node_name.as_deref().and_then(|name| view.node(name)) {
            let message = format!(
                "Failed to drain node, evicting pod {}/{}, {why}",
                pod.key.namespace, pod.key.name
            );
            let about = reference::<Node>(node);
            let mut event = Event::warning(about, events::FAILED_DRAINING, message);
            // Which budget blocks matters more than the number of remaining pods, and than which of them it is.
            event.dedupe.push(why.to_owned());
            self.cx.recorder.publish(event);
        }
    }
}

/// Classifies an error; `None` is an error to retry.
fn classify(code: u16, message: &str) -> Option<Answer> {
    match code {
        // 409: the uid differs, so the pod was deleted and another has its name.
        404 | 409 => Some(Answer::NotFound),
        429 => Some(Answer::Refused(message.to_owned())),
        500 if message.contains("more than one PodDisruptionBudget") => {
            Some(Answer::Refused(MULTIPLE_PDBS.into()))
        }
        _ => None,
    }
}

/// Returns the message of a budget's refusal as the eviction API words it.
fn refusal_message(block: &PdbBlock) -> String {
    match block {
        PdbBlock::Prevents { budget } => format!(
            "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget {budget} allows no disruption now."
        ),
        PdbBlock::Several { .. } => MULTIPLE_PDBS.to_owned(),
    }
}

impl Controller for EvictionQueue {
    type Key = EvictionKey;
    const NAME: &'static str = "eviction-queue";
    const KIND: &'static str = "Pod";

    fn concurrency(&self, options: &Options) -> usize {
        options.concurrency(100, 5000)
    }

    fn backoff(&self) -> Backoff {
        drain::RETRY
    }

    fn triggered_by(&self, change: &Change, _: &View, _: &Queue<EvictionKey>) {
        // The queue must not keep a deleted pod.
        if let Change::Pod {
            before: Some(before),
            after,
        } = change
            && after
                .as_ref()
                .is_none_or(|after| after.key.uid != before.key.uid)
        {
            self.deadlines
                .lock()
                .remove(&EvictionKey(Arc::new(before.key.clone())));
        }
    }

    async fn reconcile(&self, key: EvictionKey) -> Result<Next, ReconcileError> {
        let deadline = self.deadlines.lock().get(&key).copied();
        let Some(deadline) = deadline else {
            return Ok(Next::Wait);
        };
        let view = self.cx.view();
        let pod = view
            .snapshot
            .pod(&key.0.namespace, &key.0.name)
            .filter(|pod| pod.key.uid == key.0.uid);
        let Some(pod) = pod else {
            return Ok(self.forget(&key));
        };
        let answer = match drain::eviction(&view.snapshot, pod, deadline, self.cx.clock.now()) {
            Step::Delete(deadline) => {
                self.delete(pod, deadline).await?;
                return Ok(self.forget(&key));
            }
            Step::Done => return Ok(self.forget(&key)),
            Step::NotAllowed => {
                let why = "the pod does not allow eviction".to_owned();
                return Err(ReconcileError::Refused(why));
            }
            Step::Refused(block) => Answer::Refused(refusal_message(&block)),
            Step::Request => self.evict(pod).await.doing("evicting pod")?,
        };
        match answer {
            // It stays in the queue until the model has it, too: otherwise the pod would be evicted again in vain.
            Answer::Accepted => {
                let reason = self.reason(&view, pod);
                self.cx.recorder.publish(Event::normal(
                    pod_reference(pod),
                    events::EVICTED,
                    format!("Evicted pod: {reason}"),
                ));
                self.cx.metrics.pods_drained_total.inc(&[&reason]);
                Ok(Next::After(OBSERVE_TIMEOUT))
            }
            Answer::NotFound => Ok(Next::After(OBSERVE_TIMEOUT)),
            Answer::Refused(why) => {
                self.blocked(&view, pod, &why);
                Err(ReconcileError::Refused(why))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: DIS-078
    #[test]
    fn a_deleted_pod_is_done_and_several_budgets_are_a_refusal() {
        assert_eq!(classify(404, ""), Some(Answer::NotFound));
        assert_eq!(classify(409, ""), Some(Answer::NotFound));
        assert_eq!(
            classify(429, "budget"),
            Some(Answer::Refused("budget".into()))
        );
        let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        assert!(matches!(classify(500, several), Some(Answer::Refused(_))));
        assert_eq!(classify(500, "etcd"), None);
    }
}
