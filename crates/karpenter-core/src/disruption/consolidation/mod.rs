//! The price rules of consolidation.

pub mod balanced;
pub mod prices;
pub(super) mod replacement;

use std::collections::BTreeMap;

use karpenter_api::labels;

use super::candidate::{Candidate, NotConsolidatable};
use super::simulation::{Outcome, Simulator};
use crate::schedule::{Placement, PlannedNodeClaim};
use prices::PriceLists;
use replacement::Replacement;

/// The number of cheaper spot instance types required to replace one spot node by another.
///
/// With fewer, repeated consolidation would move to ever cheaper instance types, which are interrupted more often.
pub const SPOT_TO_SPOT_TYPES: usize = 15;

/// A consolidation that saves money.
#[derive(Clone, Debug)]
pub struct Move {
    /// NodeClaims to launch.
    pub replacements: Vec<PlannedNodeClaim>,
    /// Placements of pods that fit on existing nodes.
    pub placements: Vec<Placement>,
    /// Savings in dollars per hour.
    pub savings: f64,
}

/// The consolidation rules of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Whether spot nodes may be replaced by spot nodes.
    pub spot_to_spot: bool,
    /// The maximum number of replacements of a command. Upstream launches one at most.
    pub max_replacements: usize,
    /// Dollars per hour that each node costs beside its instance. More nodes than before must save that, too: provisioning may have
    /// launched few nodes for its sake.
    pub node_overhead_price: f64,
}

/// Simulates deleting the candidates and applies the price rules.
pub fn evaluate(
    simulator: &Simulator,
    candidates: &[&Candidate],
    rules: Rules,
) -> Result<Move, NotConsolidatable> {
    judge(
        simulator.prices(),
        simulator.remove(candidates, true),
        candidates,
        rules,
    )
}

/// Applies the price rules to the result of a simulation.
pub fn judge(
    prices: &PriceLists,
    outcome: Outcome,
    candidates: &[&Candidate],
    rules: Rules,
) -> Result<Move, NotConsolidatable> {
    if !outcome.stuck.is_empty() {
        return Err(NotConsolidatable::PodsStay {
            pods: outcome.stuck,
        });
    }
    let price: f64 = candidates.iter().map(|candidate| candidate.price).sum();
    let placements = outcome.placements;
    match outcome.new_node_claims.as_slice() {
        [] => Ok(Move {
            replacements: vec![],
            placements,
            savings: price,
        }),
        [draft] => {
            let replacement = cheaper(prices, draft, candidates, price, rules)?;
            let savings = price - replacement.hourly_price;
            Ok(Move {
                replacements: vec![replacement],
                placements,
                savings,
            })
        }
        drafts if drafts.len() <= rules.max_replacements => {
            several(prices, drafts, placements, candidates, rules)
        }
        drafts => Err(NotConsolidatable::SeveralReplacements {
            count: drafts.len(),
        }),
    }
}

/// Applies the price rules to several replacements: each may cost its share of the candidates' price.
fn several(
    prices: &PriceLists,
    drafts: &[PlannedNodeClaim],
    placements: Vec<Placement>,
    candidates: &[&Candidate],
    rules: Rules,
) -> Result<Move, NotConsolidatable> {
    let price: f64 = candidates.iter().map(|candidate| candidate.price).sum();
    let planned: f64 = drafts.iter().map(|draft| draft.hourly_price).sum();
    let more_nodes = drafts.len().saturating_sub(candidates.len());
    let most = price - rules.node_overhead_price * more_nodes as f64;
    if planned >= most || planned <= 0.0 {
        return Err(NotConsolidatable::NotCheaper);
    }
    let share = most / planned;
    let replacements: Vec<PlannedNodeClaim> = drafts
        .iter()
        .map(|draft| cheaper(prices, draft, candidates, draft.hourly_price * share, rules))
        .collect::<Result<_, _>>()?;
    let replacement_price: f64 = replacements.iter().map(|draft| draft.hourly_price).sum();
    Ok(Move {
        replacements,
        placements,
        savings: price - replacement_price,
    })
}

/// Returns the draft with only the instance types whose worst-case price is below `price`.
fn cheaper(
    prices: &PriceLists,
    draft: &PlannedNodeClaim,
    candidates: &[&Candidate],
    price: f64,
    rules: Rules,
) -> Result<PlannedNodeClaim, NotConsolidatable> {
    let Some(list) = prices.of(&draft.node_pool) else {
        return Err(NotConsolidatable::NotCheaper);
    };
    let mut replacement = Replacement::new(draft, list);
    let all_spot = candidates
        .iter()
        .all(|c| c.capacity_type() == Some(labels::CAPACITY_TYPE_SPOT));
    let spot_to_spot = all_spot && replacement.admits(labels::CAPACITY_TYPE_SPOT);
    if spot_to_spot {
        if !rules.spot_to_spot {
            return Err(NotConsolidatable::SpotToSpotDisabled);
        }
        replacement.pin(labels::CAPACITY_TYPE_SPOT);
    }
    filter(&mut replacement, price)?;
    if candidates.len() > 1 {
        require_cheaper_than_same_type(&mut replacement, candidates)?;
    } else if spot_to_spot {
        if replacement.len() < SPOT_TO_SPOT_TYPES {
            let (needed, found) = (SPOT_TO_SPOT_TYPES, replacement.len());
            return Err(NotConsolidatable::SpotToSpotFlexibility { needed, found });
        }
        replacement.truncate(SPOT_TO_SPOT_TYPES);
    }
    if replacement.admits(labels::CAPACITY_TYPE_SPOT)
        && replacement.admits(labels::CAPACITY_TYPE_ON_DEMAND)
    {
        // Only spot: without spot capacity, an on-demand instance could cost more than the candidates.
        replacement.pin(labels::CAPACITY_TYPE_SPOT);
    }
    if replacement.len() == 0 {
        return Err(NotConsolidatable::NotCheaper);
    }
    Ok(replacement.into_draft())
}

fn filter(replacement: &mut Replacement<'_>, price: f64) -> Result<(), NotConsolidatable> {
    replacement
        .cheaper_than(price)
        .map_err(NotConsolidatable::MinValues)?;
    if replacement.len() == 0 {
        Err(NotConsolidatable::NotCheaper)
    } else {
        Ok(())
    }
}

/// Keeps only instance types cheaper than the candidates of a type that the replacement could have: deleting all candidates but
/// one of that type would have the same result.
fn require_cheaper_than_same_type(
    replacement: &mut Replacement<'_>,
    candidates: &[&Candidate],
) -> Result<(), NotConsolidatable> {
    let mut removed: BTreeMap<&str, f64> = BTreeMap::new();
    for candidate in candidates {
        if let Some(name) = candidate.instance_type_name() {
            let price = removed.entry(name).or_insert(f64::MAX);
            *price = price.min(candidate.price);
        }
    }
    let same = replacement
        .names()
        .filter_map(|name| removed.get(name).copied());
    match same.min_by(f64::total_cmp) {
        Some(limit) => filter(replacement, limit),
        None => Ok(()),
    }
}
