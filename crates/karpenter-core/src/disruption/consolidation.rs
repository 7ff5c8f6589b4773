//! Whether giving machines back pays: the price rules.

use std::collections::BTreeMap;

use karpenter_api::labels;

use super::{
    candidate::{Candidate, Unconsolidatable},
    prices::PriceLists,
    replacement::Replacement,
    simulation::{Outcome, Simulator},
};
use crate::schedule::{ClaimDraft, Placement};

/// How many cheaper spot types there must be before one spot machine is exchanged for another.
///
/// With fewer, machines would climb down the price list one by one while the interruption rate climbs up.
pub const SPOT_TO_SPOT_TYPES: usize = 15;

/// A move that pays.
#[derive(Clone, Debug)]
pub struct Move {
    /// What to launch.
    pub replacements: Vec<ClaimDraft>,
    /// Where pods go that find room.
    pub placements: Vec<Placement>,
    /// Dollars an hour saved.
    pub savings: f64,
}

/// The rules of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Spot machines may be exchanged for spot machines.
    pub spot_to_spot: bool,
    /// How many machines may be launched for the ones given back. Upstream launches one at most.
    pub max_replacements: usize,
}

/// Simulates the candidates' removal and judges it.
pub fn evaluate(
    simulator: &Simulator,
    candidates: &[&Candidate],
    rules: Rules,
) -> Result<Move, Unconsolidatable> {
    judge(
        simulator.prices(),
        simulator.remove(candidates, true),
        candidates,
        rules,
    )
}

/// Whether what the scheduler answered pays.
pub fn judge(
    prices: &PriceLists,
    outcome: Outcome,
    candidates: &[&Candidate],
    rules: Rules,
) -> Result<Move, Unconsolidatable> {
    if !outcome.stuck.is_empty() {
        return Err(Unconsolidatable::PodsStay {
            pods: outcome.stuck,
        });
    }
    let price: f64 = candidates.iter().map(|candidate| candidate.price).sum();
    let placements = outcome.placements;
    match outcome.new_claims.as_slice() {
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
        drafts => Err(Unconsolidatable::SeveralReplacements {
            count: drafts.len(),
        }),
    }
}

/// Several replacements share the price of what goes: each may cost its part of the plan's price.
fn several(
    prices: &PriceLists,
    drafts: &[ClaimDraft],
    placements: Vec<Placement>,
    candidates: &[&Candidate],
    rules: Rules,
) -> Result<Move, Unconsolidatable> {
    let price: f64 = candidates.iter().map(|candidate| candidate.price).sum();
    let planned: f64 = drafts.iter().map(|draft| draft.hourly_price).sum();
    if planned >= price || planned <= 0.0 {
        return Err(Unconsolidatable::NotCheaper);
    }
    let share = price / planned;
    let replacements: Vec<ClaimDraft> = drafts
        .iter()
        .map(|draft| cheaper(prices, draft, candidates, draft.hourly_price * share, rules))
        .collect::<Result<_, _>>()?;
    let bought: f64 = replacements.iter().map(|draft| draft.hourly_price).sum();
    Ok(Move {
        replacements,
        placements,
        savings: price - bought,
    })
}

/// The draft with only what is cheaper than `price`, even in the worst case.
fn cheaper(
    prices: &PriceLists,
    draft: &ClaimDraft,
    candidates: &[&Candidate],
    price: f64,
    rules: Rules,
) -> Result<ClaimDraft, Unconsolidatable> {
    let Some(list) = prices.of(&draft.node_pool) else {
        return Err(Unconsolidatable::NotCheaper);
    };
    let mut replacement = Replacement::new(draft, list);
    let all_spot = candidates
        .iter()
        .all(|c| c.capacity_type() == Some(labels::CAPACITY_TYPE_SPOT));
    let spot_to_spot = all_spot && replacement.admits(labels::CAPACITY_TYPE_SPOT);
    if spot_to_spot {
        if !rules.spot_to_spot {
            return Err(Unconsolidatable::SpotToSpotDisabled);
        }
        replacement.pin(labels::CAPACITY_TYPE_SPOT);
    }
    filter(&mut replacement, price)?;
    if spot_to_spot {
        if candidates.len() > 1 {
            not_the_same(&mut replacement, candidates)?;
        } else {
            if replacement.len() < SPOT_TO_SPOT_TYPES {
                let (needed, found) = (SPOT_TO_SPOT_TYPES, replacement.len());
                return Err(Unconsolidatable::SpotToSpotFlexibility { needed, found });
            }
            replacement.truncate(SPOT_TO_SPOT_TYPES);
        }
    } else {
        if candidates.len() > 1 {
            not_the_same(&mut replacement, candidates)?;
        }
        if replacement.admits(labels::CAPACITY_TYPE_SPOT)
            && replacement.admits(labels::CAPACITY_TYPE_ON_DEMAND)
        {
            // Spot or nothing: if spot has no capacity, on-demand would cost more than what is there.
            replacement.pin(labels::CAPACITY_TYPE_SPOT);
        }
    }
    if replacement.len() == 0 {
        return Err(Unconsolidatable::NotCheaper);
    }
    Ok(replacement.into_draft())
}

fn filter(replacement: &mut Replacement<'_>, price: f64) -> Result<(), Unconsolidatable> {
    replacement
        .cheaper_than(price)
        .map_err(|reason| Unconsolidatable::MinValues { reason })?;
    if replacement.len() == 0 {
        Err(Unconsolidatable::NotCheaper)
    } else {
        Ok(())
    }
}

/// Several machines are not exchanged for one of the same type: dropping all but that one would do the same.
fn not_the_same(
    replacement: &mut Replacement<'_>,
    candidates: &[&Candidate],
) -> Result<(), Unconsolidatable> {
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
