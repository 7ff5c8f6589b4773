//! Emptiness: machines that nothing needs, given back without replacement.
//!
//! UPSTREAM: pkg/controllers/disruption/emptiness.go

use std::time::Duration;

use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::DisruptionReason;

use super::{Budgets, Candidate, Command, Method};

/// How long a node must still be empty before it goes: pods may be on their way.
const VALIDATION: Duration = Duration::from_secs(15);

/// Gives empty machines back.
#[derive(Debug, Clone, Copy)]
pub struct Emptiness;

impl Emptiness {
    /// The candidates that budgets allow, cheapest to disrupt first, as one command.
    fn within(
        candidates: impl Iterator<Item = Candidate>,
        budgets: &mut Budgets,
    ) -> Option<Command> {
        let mut taken: Vec<Candidate> = candidates.collect();
        taken.sort_by(|a, b| {
            a.reschedule_cost
                .total_cmp(&b.reschedule_cost)
                .then_with(|| a.name().cmp(b.name()))
        });
        taken.retain(|candidate| budgets.take(candidate.pool.name()));
        (!taken.is_empty()).then(|| Command::delete(DisruptionReason::Empty, "empty", taken))
    }
}

impl Method for Emptiness {
    fn reason(&self) -> DisruptionReason {
        DisruptionReason::Empty
    }

    fn consolidation_type(&self) -> &'static str {
        "empty"
    }

    fn validation_delay(&self) -> Duration {
        VALIDATION
    }

    fn accepts(&self, candidate: &Candidate) -> bool {
        let pool = &candidate.pool;
        !pool.is_static()
            && pool.spec.disruption.consolidate_after.value().is_some()
            && candidate.is_empty()
            && candidate.claim.is_true(types::CONSOLIDATABLE)
    }

    fn propose(&self, candidates: Vec<Candidate>, budgets: &mut Budgets) -> Vec<Command> {
        Self::within(candidates.into_iter(), budgets)
            .into_iter()
            .collect()
    }

    fn validate(
        &self,
        proposal: &Command,
        candidates: Vec<Candidate>,
        budgets: &mut Budgets,
    ) -> Option<Command> {
        let still = candidates.into_iter().filter(|c| {
            proposal
                .candidates
                .iter()
                .any(|p| p.claim.uid() == c.claim.uid())
        });
        Self::within(still, budgets)
    }
}
