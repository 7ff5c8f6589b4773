//! Liveness: a claim that does not become a node in time is given up.
//!
//! Five minutes for the launch, fifteen for the registration, both counted from when the condition became what it is,
//! which is the claim's creation in practice. Initialisation has no limit.
//!
//! UPSTREAM: pkg/controllers/nodeclaim/lifecycle/liveness.go

use std::time::Duration;

use karpenter_api::conditions::{HasConditions, reasons, types};
use karpenter_api::v1::NodeClaim;

use super::lifecycle::{Lifecycle, Step};
use crate::logging;

const LAUNCH: Duration = Duration::from_secs(5 * 60);
const REGISTRATION: Duration = Duration::from_secs(15 * 60);

impl Lifecycle {
    pub(super) async fn keep_alive(&self, claim: &mut NodeClaim) -> Step {
        if claim.is_true(types::REGISTERED) {
            return Step::Continue;
        }
        let (condition, limit, reason) = if claim.is_true(types::LAUNCHED) {
            (types::REGISTERED, REGISTRATION, "registration_timeout")
        } else {
            (types::LAUNCHED, LAUNCH, "launch_timeout")
        };
        let Some(since) = claim.condition(condition).map(|c| c.last_transition_time.0) else {
            return Step::Continue;
        };
        let passed = self.cx.clock.since(since);
        if passed < limit {
            return Step::ContinueAfter(limit - passed);
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
        tracing::info!(NodeClaim = logging::object(None, claim.name()), nodeclaim = claim.name(), timeout = ?limit, reason, "terminating due to timeout");
        self.give_up(claim, reason).await
    }
}
