//! Several plans for the same pods, of which the best is used.
//!
//! The result of first fit depends on the order of the pods, and each pod joins the first node with room; which strategy suits
//! a cluster is only visible in the plan. So a few [`Strategy`]s are tried, with one round of repacking each; for few pods, also
//! pseudo-random orders of classes, shapes and domains, the same in each pass, and, if some order places more pods than first fit, other
//! choices of domains and nodes with that order. The best is chosen by fixed rules, and its plan is made once
//! more with thorough repacking, which is used if it costs less:
//! 1. It leaves no more pods of any class unplaced than first fit with some choice of domains, ours or upstream's, and no constraint
//!    is interpreted differently: a strategy only decides what the constraints leave open. The same holds for the pods of capacity
//!    buffers and our choice of domains, unless the plan places more of the others than first fit.
//! 2. Of those plans, those with the fewest unplaced pods, then the fewest of buffers; of these, those that leave no more
//!    preferences unmet in total than the plan of the strategy that comes first, or than upstream's strategy. Preferences are not
//!    compared with those of a plan that places fewer pods: a pod without a place has none.
//! 3. Of these the cheapest; of those within a hundredth of the cheapest the one with the fewest nodes, then the cheapest, then
//!    the strategy that comes first in [`STRATEGIES`]. Where nodes have few pods, each node more than first fit has, with
//!    domains by price or by name as in upstream's plan, counts for a fifth of the mean price of first fit's nodes, as in
//!    [`repack`](crate::schedule::repack::dissolve).
//!
//! Pseudo-random orders are not tried if pods have resource claims: which alternative of a request is preferred is not part of
//! the rules.
//!
//! Strategies are tried only where nodes are launched for the lowest price: disruption, which runs thousands of simulations for
//! the fewest nodes ([`Packing::FewestNodes`]), uses first fit alone, and so do plans for more than [`MOST_PODS`] pods, where
//! the additional savings do not justify the time.

use crate::schedule::compile::solver::Solver;
use crate::schedule::pass::{self, Attempt};
use crate::schedule::pods::queue::Outcome;
use crate::schedule::repack::dissolve::{FEW_PODS_OVERHEAD, MANY_PODS_FROM};
use crate::schedule::report::plan::{IgnoredPod, Plan};
use crate::schedule::request::{Packing, PodSet, Query};
use crate::schedule::strategy::{DomainOrder, MOST_PODS, Order, Strategy};

/// For more pods, strategies that compare the price increase of each node are skipped.
const MOST_COMPARED: usize = 600;
/// The most strategies with pseudo-random orders, and the most pods placed by all of them together. They lower the price of plans for up
/// to 40 pods by 8 % on average, and place more pods in one of seven clusters.
const MOST_SHUFFLES: usize = 100;
/// The same for two classes of pods, which have two orders: one class has nothing to shuffle.
const SHUFFLES_OF_TWO_CLASSES: usize = 8;
const MOST_SHUFFLED_PODS: usize = 2_600;
/// The most pseudo-random orders of shapes, if some pods of a shape have classes of their own.
const MOST_SHAPE_SHUFFLES: usize = 8;
/// The most strategies that are added if some order places more pods than first fit: these plans are 3 % cheaper on average with them.
const MOST_VARIATIONS: usize = 12;
/// The factor by which the cost of a plan with fewer nodes may exceed the lowest cost.
const FEWER_NODES_FACTOR: f64 = 1.01;

/// The strategies tried in addition to first fit: upstream's, which is a bound for the others, and two of which each
/// lowers the price over first fit: by 12 and 4 % on average for up to 40 pods, by 1.3 and 2.6 % for hundreds.
const STRATEGIES: [Strategy; 3] = [
    Strategy {
        domains: DomainOrder::Upstream,
        ..Strategy::new(Order::Size)
    },
    Strategy::least_increase(Order::Size),
    Strategy::new(Order::Memory),
];

impl Solver {
    /// Places the pods of `query`. May be called any number of times, from any number of threads.
    pub fn solve(&self, query: &Query) -> Plan {
        let mut plan = best_plan(self, query).unwrap_or_else(|| {
            let solver = Self::prepare_for(&self.snapshot, &self.policy, query);
            best_plan(&solver, query).unwrap_or_default()
        });
        if matches!(query.pods, PodSet::Waiting | PodSet::Unbound) {
            self.list_ignored(&query.pods, &mut plan);
        }
        plan
    }

    /// Lists the pods of the snapshot that are not of this set.
    fn list_ignored(&self, asked: &PodSet, plan: &mut Plan) {
        let mut unbound = 0;
        for pod in self.snapshot.unbound_pods() {
            unbound += 1;
            if !asked.includes(pod)
                && let Some(why) = pod.ignored()
            {
                let pod = pod.key.clone();
                plan.ignored.push(IgnoredPod { pod, why });
            }
        }
        plan.bound_pods = self.snapshot.pod_count().saturating_sub(unbound);
    }
}

/// Returns the best plan; `None` if the solver was not compiled for a resource that a pod of the query requests.
fn best_plan(solver: &Solver, query: &Query) -> Option<Plan> {
    let attempt = |query: &Query, strategy| pass::run(solver, query, strategy);
    let first = attempt(query, Strategy::default())?;
    let cancelled = || query.is_cancelled();
    let pods = pods(&first.plan);
    let is_worth_it = matches!(solver.policy.packing, Packing::LowestCost { .. })
        && !first.plan.new_node_claims.is_empty()
        && (2..=MOST_PODS).contains(&pods);
    if !is_worth_it || cancelled() {
        return Some(first.plan);
    }
    // The progress callback must not see the pass start again.
    let quiet = Query {
        progress: None,
        ..query.clone()
    };
    let useful = match first.classes {
        0 | 1 => 0,
        2 => SHUFFLES_OF_TWO_CLASSES,
        _ => MOST_SHUFFLES,
    };
    let shuffled = (MOST_SHUFFLED_PODS / pods).min(useful);
    let of_shapes = match first.shapes < first.classes {
        true => shuffled.min(MOST_SHAPE_SHUFFLES),
        false => 0,
    };
    let shuffled = (1..=shuffled as u32).map(Strategy::shuffled);
    let shuffled = shuffled.chain(
        (1..=of_shapes as u32)
            .map(|number| Strategy::pseudo_random(Order::ShuffledShapes(number), number)),
    );
    let all = |strategies: Vec<Strategy>| -> Vec<Attempt> {
        let compared = |strategy: &Strategy| !strategy.least_increase || pods <= MOST_COMPARED;
        let strategies = strategies.into_iter().filter(compared);
        let attempts = strategies.filter_map(|strategy| attempt(&quiet, strategy));
        attempts.take_while(|_| !cancelled()).collect()
    };
    let mut attempts = vec![first];
    attempts.extend(all(STRATEGIES.into_iter().chain(shuffled).collect()));
    if useful > 0 && !cancelled() {
        let most = (MOST_SHUFFLED_PODS / pods).min(MOST_VARIATIONS);
        attempts.extend(all(variations(&attempts, most)));
    }
    let best = choose(attempts);
    if best.hasty && !cancelled() {
        let thorough = Strategy {
            thorough: true,
            ..best.strategy
        };
        let again = attempt(&quiet, thorough)?.plan;
        if !cancelled() && again.hourly_price() < best.plan.hourly_price() {
            return Some(again);
        }
    }
    Some(best.plan)
}

/// Returns how many pods of each class some plan of first fit, whatever its choice of domains, leaves out at most. Upstream's choices
/// may place other pods than ours.
fn left_out_by_first_fit(attempts: &[Attempt]) -> Outcome {
    let mut most = Outcome::default();
    let first_fit = |attempt: &&Attempt| attempt.strategy.is_first_fit();
    for attempt in attempts.iter().filter(first_fit) {
        for (class, number) in &attempt.pods.left_out {
            let bound = most.left_out.entry(*class).or_default();
            *bound = (*bound).max(*number);
        }
    }
    most
}

/// Returns the strategies to try in addition if some order places more pods than first fit: few plans may place so many, so that the
/// cheapest of them is not a good one. Each such order is tried with the other choices of domains and of nodes, those of the cheapest
/// plan first.
fn variations(attempts: &[Attempt], most: usize) -> Vec<Strategy> {
    let bound = left_out_by_first_fit(attempts);
    let mut placing: Vec<&Attempt> = attempts
        .iter()
        .filter(|attempt| attempt.pods.leaves_out_no_more_than(&bound))
        .collect();
    let unplaced = |attempt: &Attempt| attempt.pods.unplaced;
    let fewest = placing.iter().map(|attempt| unplaced(attempt)).min();
    if attempts.first().map(unplaced) == fewest {
        return Vec::new();
    }
    placing.retain(|attempt| Some(unplaced(attempt)) == fewest);
    placing.sort_by(|a, b| a.plan.hourly_price().total_cmp(&b.plan.hourly_price()));
    let mut tried: Vec<Strategy> = attempts.iter().map(|attempt| attempt.strategy).collect();
    let mut added = Vec::new();
    for attempt in placing {
        let order = attempt.strategy.order;
        for strategy in [Strategy::new(order), Strategy::by_name(order)] {
            for least_increase in [false, true] {
                let strategy = Strategy {
                    least_increase,
                    ..strategy
                };
                if !tried.contains(&strategy) {
                    tried.push(strategy);
                    added.push(strategy);
                }
            }
        }
    }
    added.truncate(most);
    added
}

/// Returns the number of pods in a plan, with and without a place.
fn pods(plan: &Plan) -> usize {
    on_planned_nodes(plan) + plan.existing.len() + plan.unplaced.len()
}

/// Returns the number of pods on the planned nodes of a plan.
fn on_planned_nodes(plan: &Plan) -> usize {
    let claims = plan.new_node_claims.iter();
    claims
        .map(|claim| claim.pods.len() + claim.buffer_pods.len())
        .sum()
}

/// Returns the best attempt by the rules of the module documentation; the first is first fit's.
fn choose(attempts: Vec<Attempt>) -> Attempt {
    let bound = left_out_by_first_fit(&attempts);
    let mut attempts = attempts.into_iter();
    let Some(first) = attempts.next() else {
        return Attempt::default();
    };
    let mut others: Vec<Attempt> = attempts
        .filter(|attempt| attempt.plan.undecided.is_empty())
        .filter(|attempt| attempt.pods.leaves_out_no_more_than(&bound))
        .collect();
    // A buffer must not keep a pod from its place: buffers are compared only between plans that place as many pods.
    let most = others.iter().map(|attempt| attempt.pods.unplaced).min();
    if most >= Some(first.pods.unplaced) {
        others.retain(|attempt| attempt.buffers.leaves_out_no_more_than(&first.buffers));
    }
    let nodes = first.plan.new_node_claims.len();
    let few = on_planned_nodes(&first.plan) < nodes * MANY_PODS_FROM;
    let mean = first.plan.hourly_price() / nodes.max(1) as f64;
    let node_overhead = if few { mean * FEW_PODS_OVERHEAD } else { 0.0 };
    let by_name = others
        .iter()
        .find(|attempt| attempt.strategy.is_upstreams());
    let by_name = by_name.map_or(0, |attempt| attempt.plan.new_node_claims.len());
    let nodes = nodes.max(by_name);
    let cost = |attempt: &Attempt| {
        let more = attempt.plan.new_node_claims.len().saturating_sub(nodes);
        attempt.plan.hourly_price() + node_overhead * more as f64
    };
    let mut attempts = vec![first];
    attempts.extend(others);
    let left_out = |attempt: &Attempt| (attempt.pods.unplaced, attempt.buffers.unplaced);
    let fewest = attempts.iter().map(left_out).min();
    attempts.retain(|attempt| Some(left_out(attempt)) == fewest);
    let dropped = |attempt: &Attempt| attempt.pods.dropped + attempt.buffers.dropped;
    let upstreams = attempts
        .iter()
        .find(|attempt| attempt.strategy.is_upstreams());
    let most_dropped = attempts.first().map(dropped).max(upstreams.map(dropped));
    attempts.retain(|attempt| Some(dropped(attempt)) <= most_dropped);
    let costs = attempts.iter().map(cost);
    let least = costs.min_by(f64::total_cmp).unwrap_or_default();
    let cheap = attempts
        .into_iter()
        .filter(|attempt| cost(attempt) <= least * FEWER_NODES_FACTOR);
    let nodes = |attempt: &Attempt| attempt.plan.new_node_claims.len();
    let best =
        cheap.min_by(|a, b| (nodes(a).cmp(&nodes(b))).then_with(|| cost(a).total_cmp(&cost(b))));
    best.unwrap_or_default()
}

#[cfg(test)]
mod tests;
