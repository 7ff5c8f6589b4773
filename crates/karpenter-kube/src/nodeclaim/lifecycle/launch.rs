//! Launches the instance of a NodeClaim exactly once, as far as the provider allows.
//!
//! The finalizer is on the NodeClaim before the provider is called, and `create` is idempotent per NodeClaim, so a crash at
//! any point leaves either nothing or an instance that the next attempt finds again. The provider's answer is also kept in
//! memory for an hour, because the status write that records it may fail.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/launch.go

use std::time::Duration;

use karpenter_api::conditions::{HasConditions, Status, reasons, types};
use karpenter_api::v1::NodeClaim;
use karpenter_api::{events, labels};
use karpenter_core::provider::CloudProviderError;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::client::patch::Lock;
use crate::controller::{Doing, ReconcileError};
use crate::events::{Event, reference};
use crate::logging;
use crate::nodeclaim::lifecycle::{Lifecycle, Step};
use crate::nodeclaim::removal::count_disrupted;

/// Answers of the provider, by uid of the NodeClaim.
#[derive(Debug, Default)]
pub struct Launches {
    answers: Mutex<FxHashMap<String, (Instant, NodeClaim)>>,
}

impl Launches {
    const KEPT: Duration = Duration::from_secs(3600);

    fn get(&self, uid: &str) -> Option<NodeClaim> {
        self.answers.lock().get(uid).map(|(_, claim)| claim.clone())
    }

    fn put(&self, uid: &str, claim: NodeClaim) {
        let now = Instant::now();
        let mut answers = self.answers.lock();
        answers.retain(|_, (at, _)| now.duration_since(*at) < Self::KEPT);
        answers.insert(uid.to_owned(), (now, claim));
    }

    /// Removes the answer for a NodeClaim whose launch is recorded.
    pub fn forget(&self, uid: &str) {
        self.answers.lock().remove(uid);
    }
}

/// Longest error text in a condition.
const MAX_ERROR_LENGTH: usize = 300;

impl Lifecycle {
    /// Launches the instance while the condition Launched is unknown.
    pub(super) async fn launch(&self, claim: &mut NodeClaim) -> Step {
        if claim.condition_status(types::LAUNCHED) != Status::Unknown {
            self.launches.forget(claim.uid());
            return Step::Continue;
        }
        let answer = match self.launches.get(claim.uid()) {
            Some(answer) => Ok(answer),
            None => self.create(claim).await,
        };
        let now = self.cx.clock.now();
        match answer {
            Ok(answer) => {
                self.launches.put(claim.uid(), answer.clone());
                record_launch(claim, &answer);
                claim.set_true(types::LAUNCHED, now);
                Step::Continue
            }
            Err(error @ CloudProviderError::InsufficientCapacity(_)) => {
                let message = format!(
                    "NodeClaim {} event: {}",
                    claim.name(),
                    shorten(&error.to_string())
                );
                self.cx.recorder.publish(
                    Event::warning(
                        reference(claim),
                        events::INSUFFICIENT_CAPACITY_ERROR,
                        message,
                    )
                    .dedupe_by_message(),
                );
                tracing::error!(NodeClaim = logging::object(None, claim.name()), nodeclaim = claim.name(), error = %error, "failed launching nodeclaim");
                self.delete_failed(claim, "insufficient_capacity").await
            }
            Err(error @ CloudProviderError::NodeClassNotReady(_)) => {
                tracing::error!(NodeClaim = logging::object(None, claim.name()), nodeclaim = claim.name(), error = %error, "failed launching nodeclaim");
                self.delete_failed(claim, "nodeclass_not_ready").await
            }
            Err(error) => {
                let (reason, message) = match &error {
                    CloudProviderError::Create {
                        reason, message, ..
                    } => (reason.as_str(), shorten(message)),
                    other => (reasons::LAUNCH_FAILED, shorten(&other.to_string())),
                };
                claim.set_unknown_with_reason(types::LAUNCHED, reason, &message, now);
                Step::Failed(ReconcileError::Provider {
                    action: "launching nodeclaim",
                    source: error,
                })
            }
        }
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

    /// Deletes a NodeClaim that cannot become a node; the provisioner creates a new one for its pods.
    pub(super) async fn delete_failed(&self, claim: &NodeClaim, reason: &'static str) -> Step {
        let (api, writes) = (self.cx.node_claims(), &self.cx.claim_writes);
        let deleted = writes.delete(api, claim, Lock::None).await;
        match deleted.doing("deleting nodeclaim") {
            Ok(true) => {
                count_disrupted(&self.cx, claim, reason);
                Step::Stop
            }
            Ok(false) => Step::Stop,
            Err(error) => Step::Failed(error),
        }
    }
}

/// Copies the provider's answer: its labels unless the NodeClaim has them, its annotations over the NodeClaim's.
fn record_launch(claim: &mut NodeClaim, answer: &NodeClaim) {
    let own = claim.metadata.labels.take().unwrap_or_default();
    let mut merged = answer.metadata.labels.clone().unwrap_or_default();
    merged.extend(own);
    claim.metadata.labels = Some(merged);
    claim
        .metadata
        .annotations
        .get_or_insert_default()
        .extend(answer.metadata.annotations.clone().unwrap_or_default());
    claim
        .status
        .provider_id
        .clone_from(&answer.status.provider_id);
    claim.status.image_id.clone_from(&answer.status.image_id);
    claim.status.capacity.clone_from(&answer.status.capacity);
    claim
        .status
        .allocatable
        .clone_from(&answer.status.allocatable);
}

fn shorten(text: &str) -> String {
    if text.len() <= MAX_ERROR_LENGTH {
        return text.to_owned();
    }
    let cut = (0..=MAX_ERROR_LENGTH)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}...", &text[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-077
    #[test]
    fn the_claims_labels_win_over_the_providers_and_its_annotations_lose() {
        let mut claim = NodeClaim::new("a", Default::default());
        claim.metadata.labels = Some([("x".to_owned(), "claim".to_owned())].into());
        claim.metadata.annotations = Some([("x".to_owned(), "claim".to_owned())].into());
        let mut answer = claim.clone();
        answer.metadata.labels = Some(
            [("x", "provider"), ("y", "provider")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
        );
        answer.metadata.annotations = Some([("x".to_owned(), "provider".to_owned())].into());
        answer.status.provider_id = Some("kwok://a".into());
        record_launch(&mut claim, &answer);
        assert_eq!(claim.label("x"), Some("claim"));
        assert_eq!(claim.label("y"), Some("provider"));
        assert_eq!(claim.annotation("x"), Some("provider"));
        assert_eq!(claim.status.provider_id.as_deref(), Some("kwok://a"));
    }

    /// Conformance: API-196
    #[tokio::test(start_paused = true)]
    async fn an_answer_is_kept_for_an_hour_or_until_it_is_recorded() {
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

    /// Conformance: API-200
    #[test]
    fn long_errors_are_cut_at_300_bytes() {
        assert_eq!(shorten("short"), "short");
        let long = "é".repeat(200);
        assert_eq!(shorten(&long), format!("{}...", "é".repeat(150)));
    }
}
