//! Several plans for the same pods, of which the best is kept.
//!
//! First fit depends on who comes first and joins the first node with room; which way of choosing suits a cluster is only seen
//! from the plan. So a few [`Strategy`]s are tried, with one round of repacking each. The one that is kept is chosen by a stated
//! rule, and its plan is made once more with thorough repacking, which counts if it costs less:
//!
//! 1. Of each class of pods it leaves out no more than first fit, its pods drop no more preferences in sum, and no rule is read
//!    differently: a strategy only decides what the rules leave open.
//! 2. Of those plans, the one that leaves out fewest pods; of these the cheapest; of those within a hundredth of the cheapest the
//!    one of fewest nodes, then the cheapest, then the strategy that stands first in [`STRATEGIES`]. Where nodes have few pods,
//!    each one more than first fit takes counts for a fifth of what first fit's cost on the mean, as in
//!    [`repack`](super::repack).
//!
//! Strategies are tried only where new nodes are provisioned for their price: disruption, which asks thousands of questions for
//! the fewest nodes ([`Packing::FewestMachines`]), gets first fit's plan alone, and so do plans for more than [`MOST_PODS`] pods,
//! in which repacking leaves less to be won than the time is worth.

use std::collections::BTreeMap;

use super::{
    plan::Plan,
    prepare::Solver,
    repack::{BESIDE_FEW, MANY_PODS},
    request::{Packing, ScheduleRequest},
    run::Run,
};

/// Plans for more pods are made once.
pub(super) const MOST_PODS: usize = 1_500;
/// Plans for more pods are not made by comparing what joining each node costs.
const MOST_COMPARED: usize = 600;
/// A plan of fewer nodes may have this much higher a price.
const FEWER_IF: f64 = 1.01;

/// Who comes first. Buffers' pods come last whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Order {
    /// Those that ask for most cpu, then memory: upstream's.
    #[default]
    Size,
    /// Those that ask for most memory, then cpu.
    Memory,
    /// Those that ask for the same of a node one after the other.
    Alike,
}

/// What a strategy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Strategy {
    pub(super) order: Order,
    /// Joins the planned node that becomes dearer by least, or opens one if that costs less; else joins the first that has room.
    pub(super) least_increase: bool,
    /// Of domains that are as good for a topology constraint the first by name is taken, as upstream does, else the cheapest for the
    /// pod: what is cheapest for the first pod may be dear for those that follow it.
    pub(super) domains_by_name: bool,
    /// Looks long for cheaper packings of wasteful nodes. Done once, for the strategy that is best without: what it wins differs
    /// little between strategies, and it takes most of the time.
    pub(super) thorough: bool,
}

impl Strategy {
    const fn new(order: Order) -> Self {
        Self {
            order,
            least_increase: false,
            domains_by_name: false,
            thorough: false,
        }
    }

    const fn least_increase(order: Order) -> Self {
        Self {
            least_increase: true,
            ..Self::new(order)
        }
    }
}

/// What is tried beside first fit.
const STRATEGIES: [Strategy; 6] = [
    Strategy {
        domains_by_name: true,
        ..Strategy::new(Order::Size)
    },
    Strategy::least_increase(Order::Size),
    Strategy::new(Order::Memory),
    Strategy::new(Order::Alike),
    Strategy::least_increase(Order::Memory),
    Strategy::least_increase(Order::Alike),
];

/// A plan, and what it is judged by beside its price.
#[derive(Default)]
pub(super) struct Attempt {
    pub(super) plan: Plan,
    pub(super) strategy: Strategy,
    /// How many of their preferences its pods dropped.
    pub(super) dropped: usize,
    /// How many pods of each class it leaves out, buffers' apart. Pods of a class stand in for each other.
    pub(super) left_out: BTreeMap<(usize, bool), usize>,
    /// Wasteful nodes were packed again, but not thoroughly.
    pub(super) hasty: bool,
}

/// Makes the plan of a request.
pub(super) fn solve(solver: &Solver, request: &ScheduleRequest) -> Plan {
    let attempt = |request: &ScheduleRequest, strategy| Run::new(solver, request, strategy).solve();
    let first = attempt(request, Strategy::default());
    let cancelled = || request.cancel.as_ref().is_some_and(|cancel| cancel());
    let pods = pods(&first.plan);
    let is_worth_it = matches!(request.packing, Packing::LowestCost { .. })
        && !first.plan.new_claims.is_empty()
        && (2..=MOST_PODS).contains(&pods);
    if !is_worth_it || cancelled() {
        return first.plan;
    }
    // Who wants to know how far the run is does not want to see it begin again.
    let quiet = ScheduleRequest {
        progress: None,
        ..request.clone()
    };
    let mut attempts = vec![first];
    for strategy in STRATEGIES {
        if strategy.least_increase && pods > MOST_COMPARED {
            continue;
        }
        let attempt = attempt(&quiet, strategy);
        if cancelled() {
            break;
        }
        attempts.push(attempt);
    }
    let best = choose(attempts);
    if best.hasty && !cancelled() {
        let thorough = true;
        let again = attempt(
            &quiet,
            Strategy {
                thorough,
                ..best.strategy
            },
        );
        if again.plan.hourly_price() < best.plan.hourly_price() && !cancelled() {
            return again.plan;
        }
    }
    best.plan
}

/// How many pods a plan is about.
fn pods(plan: &Plan) -> usize {
    let on_claims = plan.new_claims.iter();
    let on_claims: usize = on_claims
        .map(|draft| draft.pods.len() + draft.buffer_pods.len())
        .sum();
    on_claims + plan.existing.len() + plan.unplaced.len()
}

/// The best of plans, of which the first is first fit's. See the module documentation.
fn choose(attempts: Vec<Attempt>) -> Attempt {
    let mut attempts = attempts.into_iter();
    let Some(first) = attempts.next() else {
        return Attempt::default();
    };
    let may_replace = |attempt: &Attempt| {
        let mut left_out = attempt.left_out.iter();
        attempt.dropped <= first.dropped
            && attempt.plan.undecided.is_empty()
            && left_out.all(|(class, number)| first.left_out.get(class).copied() >= Some(*number))
    };
    let others: Vec<Attempt> = attempts.filter(may_replace).collect();
    let nodes = first.plan.new_claims.len();
    let few = pods(&first.plan) < nodes * MANY_PODS;
    let mean = first.plan.hourly_price() / nodes.max(1) as f64;
    let beside = if few { mean * BESIDE_FEW } else { 0.0 };
    let cost = |attempt: &Attempt| {
        let more = attempt.plan.new_claims.len().saturating_sub(nodes);
        attempt.plan.hourly_price() + beside * more as f64
    };
    let mut attempts = vec![first];
    attempts.extend(others);
    let left_out = |attempt: &Attempt| attempt.plan.unplaced.len();
    let fewest = attempts.iter().map(left_out).min();
    attempts.retain(|attempt| Some(left_out(attempt)) == fewest);
    let costs = attempts.iter().map(cost);
    let least = costs.min_by(f64::total_cmp).unwrap_or_default();
    let cheap = attempts
        .into_iter()
        .filter(|attempt| cost(attempt) <= least * FEWER_IF);
    let nodes = |attempt: &Attempt| attempt.plan.new_claims.len();
    let best =
        cheap.min_by(|a, b| (nodes(a).cmp(&nodes(b))).then_with(|| cost(a).total_cmp(&cost(b))));
    best.unwrap_or_default()
}
