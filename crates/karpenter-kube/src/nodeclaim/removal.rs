//! Deletes NodeClaims for a reason of Karpenter's own, counted once.

use karpenter_api::labels;
use karpenter_api::labels::annotations;
use karpenter_api::v1::NodeClaim;

use crate::client::patch::Lock;
use crate::context::Context;
use crate::controller::{Doing, ReconcileError};

/// Deletes the NodeClaim in the version that was read; returns false if it does not exist any more.
///
/// # Errors
/// A conflict if the NodeClaim has changed since: the caller must read it again, so that nothing is counted twice.
pub async fn delete(cx: &Context, claim: &NodeClaim) -> Result<bool, ReconcileError> {
    cx.claim_writes
        .delete(cx.node_claims(), claim, Lock::Optimistic)
        .await
        .doing("deleting nodeclaim")
}

/// Deletes like [`delete`], and counts the NodeClaim as disrupted for `reason`.
///
/// # Errors
/// Those of [`delete`].
pub async fn disrupt(
    cx: &Context,
    claim: &NodeClaim,
    reason: &str,
) -> Result<bool, ReconcileError> {
    let deleted = delete(cx, claim).await?;
    if deleted {
        count_disrupted(cx, claim, reason);
    }
    Ok(deleted)
}

/// Counts a NodeClaim that was just deleted for `reason`, and its reschedulable pods.
pub(super) fn count_disrupted(cx: &Context, claim: &NodeClaim, reason: &str) {
    let label = |key: &str| claim.label(key).unwrap_or_default();
    let series = [
        reason,
        label(labels::NODE_POOL),
        label(labels::CAPACITY_TYPE),
        "",
        termination_mode(claim),
    ];
    let view = cx.view();
    let pods = claim.status.node_name.as_deref().map(|n| view.pods_on(n));
    let pods = pods.into_iter().flatten();
    let rescheduled = pods.filter(|pod| pod.is_reschedulable()).count();
    cx.metrics.nodeclaims_disrupted_total.inc(&series);
    cx.metrics
        .pods_disruption_initiated_total
        .add(&series, rescheduled as f64);
}

/// Returns how the NodeClaim is terminated: without a limit, within one, or at once. A label of the disruption metrics.
pub(crate) fn termination_mode(claim: &NodeClaim) -> &'static str {
    match &claim.spec.termination_grace_period {
        None => "graceful",
        Some(grace) if grace.value().is_positive() => "eventual",
        Some(_) => "forceful",
    }
}

/// Sets the NodeClaim's termination deadline to now, unless it has passed already: its pods are deleted, its volumes not
/// waited for. Returns the NodeClaim as written.
///
/// # Errors
/// A conflict if the claim has changed since it was read.
pub async fn end_grace_period(
    cx: &Context,
    claim: &NodeClaim,
) -> Result<NodeClaim, ReconcileError> {
    let now = cx.clock.now();
    let deadline = claim.annotation(annotations::TERMINATION_TIMESTAMP);
    let passed = deadline
        .and_then(|text| text.parse::<jiff::Timestamp>().ok())
        .is_some_and(|deadline| deadline <= now);
    if passed {
        return Ok(claim.clone());
    }
    let mut after = claim.clone();
    let text = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let present = after.metadata.annotations.get_or_insert_default();
    present.insert(annotations::TERMINATION_TIMESTAMP.to_owned(), text);
    let written = cx
        .claim_writes
        .patch_object(cx.node_claims(), claim, &after, Lock::Optimistic)
        .await
        .doing("annotating nodeclaim")?;
    Ok(written.unwrap_or(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conformance: API-173
    #[test]
    fn the_mode_of_a_termination_follows_the_grace_period() {
        let mode = |grace: Option<&str>| {
            let mut claim = NodeClaim::new("a", Default::default());
            claim.spec.termination_grace_period = grace.map(|text| text.parse().unwrap());
            termination_mode(&claim)
        };
        assert_eq!(mode(None), "graceful");
        assert_eq!(mode(Some("1s")), "eventual");
        assert_eq!(mode(Some("0s")), "forceful");
    }
}
