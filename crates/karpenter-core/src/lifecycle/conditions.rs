//! When a NodeClaim is consolidatable, and when it expires.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/disruption/consolidation.go, pkg/controllers/nodeclaim/expiration/controller.go

use jiff::{SignedDuration, Timestamp};
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::{NodeClaim, NodePool};

/// Returns how long it takes until a NodeClaim is consolidatable if no pod event occurs on its node: zero if it is. `None` if it
/// is not initialized, its NodePool is static, or `consolidateAfter` is `Never`.
fn consolidatable_in(pool: &NodePool, claim: &NodeClaim, now: Timestamp) -> Option<SignedDuration> {
    let after = pool.spec.disruption.consolidate_after.value()?;
    if pool.is_static() {
        return None;
    }
    let quiet = now.duration_since(quiet_since(claim)?);
    let left = after.max(SignedDuration::ZERO) - quiet.max(SignedDuration::ZERO);
    Some(left.max(SignedDuration::ZERO))
}

/// Sets or removes the condition Consolidatable; returns in how long it is due.
pub fn update_consolidatable(
    pool: &NodePool,
    claim: &mut NodeClaim,
    now: Timestamp,
) -> Option<SignedDuration> {
    let left = consolidatable_in(pool, claim, now);
    if left.is_some_and(|left| left.is_zero()) {
        claim.set_true(types::CONSOLIDATABLE, now);
        return None;
    }
    claim
        .conditions_mut()
        .retain(|condition| condition.type_ != types::CONSOLIDATABLE);
    left
}

/// Sets the condition Drifted with a reason, or removes it.
pub fn update_drifted(claim: &mut NodeClaim, reason: Option<&str>, now: Timestamp) {
    match reason {
        Some(reason) => {
            claim.set_true_with_reason(types::DRIFTED, reason, reason, now);
        }
        None => claim
            .conditions_mut()
            .retain(|condition| condition.type_ != types::DRIFTED),
    }
}

/// Returns since when no pod event occurred on the node: the last pod event, or else the initialization. `None` before that.
pub fn quiet_since(claim: &NodeClaim) -> Option<Timestamp> {
    let initialized = claim
        .condition(types::INITIALIZED)
        .filter(|_| claim.is_true(types::INITIALIZED))?;
    let pods = claim.status.last_pod_event_time.as_ref().map(|t| t.0);
    Some(pods.unwrap_or(initialized.last_transition_time.0))
}

/// Returns when the NodeClaim expires; `None` if it never does.
pub fn expires_at(claim: &NodeClaim) -> Option<Timestamp> {
    let life = claim.spec.expire_after.value()?;
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    created.checked_add(life).ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    /// Conformance: DIS-145
    #[test]
    fn quiet_time_begins_with_the_last_pod_event_or_else_the_initialization() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut claim = NodeClaim::new("a", Default::default());
        claim.status.last_pod_event_time = Some(Time(at(5)));
        assert_eq!(quiet_since(&claim), None, "not initialized");
        claim.set_true(types::INITIALIZED, at(10));
        assert_eq!(quiet_since(&claim), Some(at(5)));
        claim.status.last_pod_event_time = Some(Time(at(20)));
        assert_eq!(quiet_since(&claim), Some(at(20)));
        claim.status.last_pod_event_time = None;
        assert_eq!(quiet_since(&claim), Some(at(10)));
    }

    /// Conformance: DIS-054
    #[test]
    fn a_node_is_consolidatable_once_consolidate_after_has_passed() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut claim = NodeClaim::new("a", Default::default());
        claim.set_true(types::INITIALIZED, at(10));
        let mut pool = NodePool::ready("p", Default::default());
        let left = |pool: &NodePool, second| {
            consolidatable_in(pool, &claim, at(second)).map(|left| left.as_secs())
        };
        pool.spec.disruption.consolidate_after = "30s".parse().unwrap();
        assert_eq!(left(&pool, 15), Some(25));
        assert_eq!(left(&pool, 40), Some(0));
        assert_eq!(left(&pool, 100), Some(0));
        assert_eq!(left(&pool, 5), Some(30), "a clock that is behind");
        pool.spec.replicas = Some(1);
        assert_eq!(left(&pool, 100), None, "static");
        pool.spec.replicas = None;
        pool.spec.disruption.consolidate_after = "Never".parse().unwrap();
        assert_eq!(left(&pool, 100), None);
    }

    /// Conformance: DIS-146
    #[test]
    fn a_claim_expires_by_its_age_or_never() {
        let claim = |expire_after: &str| {
            let claim = karpenter_fixtures::node_claim("a").created("2026-01-01T00:00:00Z");
            claim.expire_after(expire_after).build()
        };
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        assert_eq!(expires_at(&claim("36h")), at("2026-01-02T12:00:00Z"));
        assert_eq!(expires_at(&claim("Never")), None);
    }
}
