//! Replaces drifted nodes: nodes without pods first, then the longest drifted.
//!
//! DIFFERS: one pass returns as many commands as budgets allow, each simulated after those before it; a failed replacement puts
//! only its own NodePool in cool-down.

use crate::disruption::candidate::{Candidate, NotConsolidatable, NotDisruptable};
use crate::disruption::consolidation::Move;
use crate::disruption::pass::{Found, Pass, command};

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let mut candidates = std::mem::take(&mut pass.candidates);
    let has_pods = |candidate: &Candidate| candidate.reschedulable().next().is_some();
    candidates.sort_by(|a, b| {
        let key = |c: &Candidate| (has_pods(c), c.drifted_at());
        key(a).cmp(&key(b)).then_with(|| a.name().cmp(b.name()))
    });
    let mut simulator = None;
    for candidate in candidates {
        if found.commands.len() >= pass.request.max_commands_of_single_nodes()
            || pass
                .request
                .cooling_down_pools
                .contains(candidate.pool_name())
        {
            found.keep(candidate, NotConsolidatable::NotEvaluated);
            continue;
        }
        if pass.budgets.of(candidate.pool_name()).remaining == 0 {
            found.keep_for_budget(candidate, &pass.budgets);
            continue;
        }
        let current = simulator.get_or_insert_with(|| pass.simulator());
        let outcome = current.remove(&[candidate], false);
        if !outcome.stuck.is_empty() {
            let pods = outcome.stuck;
            let why = NotDisruptable::PodsStay { pods };
            found.blocked.insert(candidate.id(), why);
            continue;
        }
        let replacement_price: f64 = outcome
            .new_node_claims
            .iter()
            .map(|draft| draft.hourly_price)
            .sum();
        let moved = Move {
            savings: candidate.price - replacement_price,
            replacements: outcome.new_node_claims,
            placements: outcome.placements,
        };
        let command = command(pass.method, vec![candidate.clone()], moved, None);
        pass.adopt(&command);
        simulator = None;
        found.commands.push(command);
    }
    found
}
