//! Machines on which nothing runs go, all at once, as far as budgets allow.

use super::{Found, command};
use crate::disruption::{candidate::Candidate, consolidation::Move, plan::Pass};

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let mut going: Vec<Candidate> = Vec::new();
    for candidate in std::mem::take(&mut pass.candidates) {
        if pass.budgets.take(candidate.pool_name()) {
            going.push(candidate);
        } else {
            found.keep_for_budget(&candidate);
        }
    }
    if !going.is_empty() {
        let savings = going.iter().map(|candidate| candidate.price).sum();
        let gone = Move {
            replacements: vec![],
            placements: vec![],
            savings,
        };
        found.commands.push(command(pass.method, going, gone, None));
    }
    found
}
