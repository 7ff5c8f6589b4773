//! Deletes empty nodes in one command, as far as budgets allow.

use crate::disruption::candidate::Candidate;
use crate::disruption::consolidation::Move;
use crate::disruption::pass::{Found, Pass, command};

pub(super) fn run(pass: &mut Pass<'_>) -> Found {
    let mut found = Found::default();
    let mut empty: Vec<Candidate> = Vec::new();
    for candidate in std::mem::take(&mut pass.candidates) {
        if pass.budgets.take(candidate.pool_name()) {
            empty.push(candidate.clone());
        } else {
            found.keep_for_budget(candidate, &pass.budgets);
        }
    }
    if !empty.is_empty() {
        let savings = empty.iter().map(|candidate| candidate.price).sum();
        let moved = Move {
            replacements: vec![],
            placements: vec![],
            savings,
        };
        found
            .commands
            .push(command(pass.method, empty, moved, None));
    }
    found
}
