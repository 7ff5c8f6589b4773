//! Launches the instance of a NodeClaim exactly once, as far as the provider allows.
//!
//! The finalizer is on the NodeClaim before the provider is called, and `create` is idempotent per NodeClaim, so a crash at
//! any point leaves either nothing or an instance that the next attempt finds again. The provider's answer is also cached
//! for an hour, because the status write that records it may fail.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/launch.go

use std::time::Duration;

use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};
use karpenter_core::lifecycle::node_claim::{Event, LaunchFailure, shorten};
use karpenter_core::provider::CloudProviderError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::controller::ReconcileError;
use crate::events::reference;
use crate::logging;
use crate::nodeclaim::lifecycle::Lifecycle;

/// Answers of the provider, by uid of the NodeClaim.
#[derive(Debug, Default)]
pub struct Launches {
    answers: Mutex<FxHashMap<String, (Instant, NodeClaim)>>,
}

impl Launches {
    const RETENTION: Duration = Duration::from_secs(3600);

    fn get(&self, uid: &str) -> Option<NodeClaim> {
        self.answers.lock().get(uid).map(|(_, claim)| claim.clone())
    }

    fn put(&self, uid: &str, claim: NodeClaim) {
        let now = Instant::now();
        let mut answers = self.answers.lock();
        answers.retain(|_, (at, _)| now.duration_since(*at) < Self::RETENTION);
        answers.insert(uid.to_owned(), (now, claim));
    }

    /// Removes the answer for a NodeClaim whose launch is recorded.
    pub fn forget(&self, uid: &str) {
        self.answers.lock().remove(uid);
    }
}

impl Lifecycle {
    /// Asks the provider for the instance, unless its answer is known; returns the error to retry as well.
    pub(super) async fn launch(&self, claim: &NodeClaim) -> (Event, Option<ReconcileError>) {
        let answer = match self.launches.get(claim.uid()) {
            Some(answer) => Ok(answer),
            None => self.create(claim).await,
        };
        let error = match answer {
            Ok(answer) => {
                self.launches.put(claim.uid(), answer.clone());
                return (Event::Launched(Box::new(answer)), None);
            }
            Err(error) => error,
        };
        let failure = LaunchFailure::from(&error);
        let failed = Event::NotLaunched(failure.clone());
        if let LaunchFailure::Retryable { .. } = failure {
            let action = "launching nodeclaim";
            let source = error;
            return (failed, Some(ReconcileError::Provider { action, source }));
        }
        if error.is_insufficient_capacity() {
            let message = shorten(&error.to_string());
            let message = format!("NodeClaim {} event: {message}", claim.name());
            let reason = events::INSUFFICIENT_CAPACITY_ERROR;
            let event = crate::events::Event::warning(reference(claim), reason, message);
            self.cx.recorder.publish(event.dedupe_by_message());
        }
        tracing::error!(NodeClaim = logging::object(None, claim.name()), nodeclaim = claim.name(), error = %error, "failed launching nodeclaim");
        (failed, None)
    }

    async fn create(&self, claim: &NodeClaim) -> Result<NodeClaim, CloudProviderError> {
        let answer = self.cx.provider.create(claim).await?;
        let label = |key: &str| answer.label(key).unwrap_or_default().to_owned();
        tracing::info!(
            NodeClaim = logging::object(None, claim.name()),
            nodeclaim = claim.name(),
            "provider-id" = answer.status.provider_id.as_deref().unwrap_or_default(),
            "instance-type" = label(labels::INSTANCE_TYPE),
            zone = label(labels::ZONE),
            "capacity-type" = label(labels::CAPACITY_TYPE),
            allocatable = logging::json(&answer.status.allocatable),
            "launched nodeclaim"
        );
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-196
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_cached_for_an_hour_or_until_it_is_recorded() {
        let launches = Launches::default();
        let claim = NodeClaim::new("a", Default::default());
        launches.put("a", claim.clone());
        tokio::time::advance(Duration::from_secs(3599)).await;
        launches.put("b", claim.clone());
        assert!(launches.get("a").is_some(), "within the hour");
        tokio::time::advance(Duration::from_secs(1)).await;
        launches.put("c", claim);
        assert!(launches.get("a").is_none() && launches.get("b").is_some());
        launches.forget("b");
        assert!(launches.get("b").is_none());
    }
}
