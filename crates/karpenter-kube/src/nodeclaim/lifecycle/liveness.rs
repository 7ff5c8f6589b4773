//! Liveness: a NodeClaim that does not become a node in time is deleted.
//!
//! Five minutes for the launch, fifteen for the registration, both counted from the last transition of the condition, which
//! is the NodeClaim's creation in practice. Initialization has no limit.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/liveness.go

use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::v1::NodeClaim;

use crate::logging;
use crate::nodeclaim::lifecycle::{Lifecycle, Step};

const LAUNCH: Duration = Duration::from_secs(5 * 60);
const REGISTRATION: Duration = Duration::from_secs(15 * 60);

/// A condition that a NodeClaim must reach in time.
struct Limit {
    condition: &'static str,
    time: Duration,
    reason: &'static str,
}

/// Returns the condition that the NodeClaim has yet to reach, and since when its time counts; `None` once it is registered.
fn deadline(claim: &NodeClaim) -> Option<(Timestamp, Limit)> {
    if claim.is_true(types::REGISTERED) {
        return None;
    }
    let limit = if claim.is_true(types::LAUNCHED) {
        Limit {
            condition: types::REGISTERED,
            time: REGISTRATION,
            reason: "registration_timeout",
        }
    } else {
        Limit {
            condition: types::LAUNCHED,
            time: LAUNCH,
            reason: "launch_timeout",
        }
    };
    let since = claim.condition(limit.condition)?.last_transition_time.0;
    Some((since, limit))
}

impl Lifecycle {
    pub(super) async fn keep_alive(&self, claim: &mut NodeClaim) -> Step {
        let Some((
            since,
            Limit {
                condition,
                time,
                reason,
            },
        )) = deadline(claim)
        else {
            return Step::Continue;
        };
        let passed = self.cx.clock.since(since);
        if passed < time {
            return Step::ContinueAfter(time - passed);
        }
        let (why, message) = match claim
            .condition(types::LAUNCHED)
            .filter(|_| condition == types::LAUNCHED)
        {
            Some(launched) => (launched.reason.clone(), launched.message.clone()),
            None => (
                reasons::REGISTRATION_FAILED.to_owned(),
                "Failed to register node".to_owned(),
            ),
        };
        self.record_failure(claim, &why, &message);
        tracing::info!(NodeClaim = logging::object(None, claim.name()), nodeclaim = claim.name(), timeout = ?time, reason, "terminating due to timeout");
        self.delete_failed(claim, reason).await
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Conformance: DIS-030
    #[test]
    fn time_runs_from_the_conditions_last_transition_not_from_the_creation() {
        let mut claim = NodeClaim::new("a", Default::default());
        claim.metadata.creation_timestamp = Some(Time(at(0)));
        claim.set_unknown_with_reason(types::LAUNCHED, "LaunchFailed", "no", at(100));
        let runs = |claim: &NodeClaim| {
            deadline(claim).map(|(since, limit)| (since, limit.time, limit.reason))
        };
        assert_eq!(
            runs(&claim),
            Some((at(0), LAUNCH, "launch_timeout")),
            "since it was created"
        );
        for condition in claim
            .conditions_mut()
            .iter_mut()
            .filter(|c| c.type_ == types::LAUNCHED)
        {
            condition.last_transition_time = Time(at(5000));
        }
        assert_eq!(
            runs(&claim),
            Some((at(5000), LAUNCH, "launch_timeout")),
            "the transition was later"
        );
        claim.set_true(types::LAUNCHED, at(5100));
        assert_eq!(
            runs(&claim),
            Some((at(0), REGISTRATION, "registration_timeout"))
        );
        claim.set_true(types::REGISTERED, at(5200));
        assert_eq!(runs(&claim), None);
    }
}
