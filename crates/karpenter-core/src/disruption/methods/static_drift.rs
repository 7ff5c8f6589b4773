//! Replaces drifted nodes of static NodePools one for one, as far as the NodePool's node limit has headroom for both.

use karpenter_api::validation::WellKnown;

use crate::disruption::candidate::{Candidate, NotConsolidatable};
use crate::disruption::consolidation::Move;
use crate::disruption::pass::{Found, Pass, command};
use crate::schedule::PlannedNodeClaim;

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let mut headroom = pass.request.static_headroom.clone();
    let mut candidates = std::mem::take(&mut pass.candidates);
    candidates.sort_by(|a, b| {
        a.drifted_at()
            .cmp(&b.drifted_at())
            .then_with(|| a.name().cmp(b.name()))
    });
    for candidate in candidates {
        let left = headroom
            .get(candidate.pool_name())
            .copied()
            .unwrap_or_default();
        if left == 0 || found.commands.len() >= pass.request.max_commands {
            found.keep(candidate, NotConsolidatable::NotEvaluated);
            continue;
        }
        if !pass.budgets.take(candidate.pool_name()) {
            found.keep_for_budget(candidate, &pass.budgets);
            continue;
        }
        headroom.insert(candidate.pool_name().to_owned(), left - 1);
        let replacements = vec![like(candidate, &pass.snapshot.config().well_known)];
        let moved = Move {
            replacements,
            placements: vec![],
            savings: 0.0,
        };
        found
            .commands
            .push(command(pass.method, vec![candidate.clone()], moved, None));
    }
    found
}

/// Returns a replacement as the NodePool's template describes it: the provider chooses its instance type.
fn like(candidate: &Candidate, names: &WellKnown) -> PlannedNodeClaim {
    let mut replacement = PlannedNodeClaim::from_template(&candidate.node_pool, names);
    replacement.hourly_price = candidate.price;
    replacement
}
