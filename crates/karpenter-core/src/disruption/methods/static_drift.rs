//! Drifted machines of static pools are replaced one for one, as far as the pool's limit leaves room for both.

use karpenter_api::validation::WellKnown;

use super::{Found, command};
use crate::{
    disruption::{
        candidate::{Candidate, Unconsolidatable},
        consolidation::Move,
        plan::Pass,
    },
    schedule::ClaimDraft,
    static_capacity::draft,
};

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let mut room = pass.request.static_room.clone();
    let mut candidates = std::mem::take(&mut pass.candidates);
    candidates.sort_by(|a, b| {
        a.drifted_at()
            .cmp(&b.drifted_at())
            .then_with(|| a.name().cmp(b.name()))
    });
    for candidate in candidates {
        let left = room.get(candidate.pool_name()).copied().unwrap_or_default();
        if left == 0 || found.commands.len() >= pass.request.max_commands {
            found.keep(&candidate, Unconsolidatable::NotEvaluated);
            continue;
        }
        if !pass.budgets.take(candidate.pool_name()) {
            found.keep_for_budget(&candidate);
            continue;
        }
        room.insert(candidate.pool_name().to_owned(), left - 1);
        let replacements = vec![like(&candidate, &pass.snapshot.config().well_known)];
        let moved = Move {
            replacements,
            placements: vec![],
            savings: 0.0,
        };
        found
            .commands
            .push(command(pass.method, vec![candidate], moved, None));
    }
    found
}

/// A machine as the pool's template describes it: the provider chooses its type.
fn like(candidate: &Candidate, names: &WellKnown) -> ClaimDraft {
    ClaimDraft {
        hourly_price: candidate.price,
        ..draft(&candidate.node_pool, names)
    }
}
