//! The search for a cheap plan: ruin and recreate.
//!
//! First fit gives a plan at once. Each step takes a part of the best plan so far out, the pods of a few planned nodes and those without a
//! place, and places the pods again in another order: the part last or first, its classes in a pseudo-random order, each pod where the
//! price rises least or on the first node with room. Some steps take the whole plan. The new plan is kept if it is better by [`Cost`].
//! Pods are placed by the rules of first fit, so that every plan is as valid as first fit's. Wasteful nodes of each plan are repacked
//! (see [`repack`](crate::schedule::repack)), those of the first and of the best plan in many rounds.
//!
//! The search ends early if no plan is cheaper by the lower bound ([`bound`](crate::schedule::bound)), or if many steps in a row find nothing.
//! The budget is counted in steps and in placed pods, not in time, and the pseudo-random numbers are the same in each pass, so that equal
//! inputs give equal plans. A pass that is cancelled keeps the best plan so far.
//!
//! Schrimpf et al., "Record Breaking Optimization Results Using the Ruin and Recreate Principle", 2000.
//!
//! DIFFERS: upstream keeps the plan of first fit.

use std::collections::VecDeque;

use index_vec::{IndexVec, index_vec};
use rustc_hash::FxHashSet;

use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::ids::{ClassId, PodIdx};
use crate::schedule::compile::solver::Solver;
use crate::schedule::objective::SAME_PRICE;
use crate::schedule::pass::Pass;
use crate::schedule::place::placement::Manner;
use crate::schedule::pods::class::PodState;
use crate::schedule::pods::queue::QueuedPod;
use crate::schedule::random::Random;
use crate::schedule::report::plan::{IgnoredPod, Plan};
use crate::schedule::request::{Packing, PodSet, Query};

/// The most steps.
const MOST_STEPS: usize = 100;
/// The number of steps in a row that find nothing better, after which the search ends.
const MOST_FAILURES: usize = 50;
/// The most pods that all steps place together: a plan for more pods is that of first fit, repacked.
const MOST_PLACED: usize = 4_000;
/// The most planned nodes that a step takes out.
const MOST_TAKEN: usize = 3;
/// Of a hundred steps, how many take the whole plan out, and place pods where the price rises least.
const WHOLE: usize = 30;
const CHEAPEST: usize = 75;

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
    let mut pass = Pass::new(solver, query)?;
    match query.packing(&solver.policy) {
        Packing::FewestNodes => pass.place_first(false),
        Packing::LowestCost { .. } => improve(&mut pass),
    }
    Some(pass.into_plan())
}

/// Places the pods first fit, and improves the plan step by step.
fn improve(pass: &mut Pass<'_>) {
    let pods = pass.queue.pods.len();
    let steps = MOST_STEPS.min(MOST_PLACED / pods.max(1));
    if pods < 2 || steps == 0 || !pass.may_be_reordered() {
        pass.place_first(false);
    } else {
        pass.place_first(true);
        let is_placed = |queued: &QueuedPod| matches!(queued.state, PodState::Placed(_));
        let are_placed = pass.queue.pods.iter().all(is_placed);
        // On existing nodes alone, nothing can be cheaper.
        if !are_placed || !pass.state.planned.all().is_empty() {
            search(pass, steps);
        }
    }
    if !pass.query.is_cancelled() {
        pass.repack(true);
    }
}

/// Improves first fit's plan by so many steps.
fn search(pass: &mut Pass<'_>, steps: usize) {
    let query = pass.query;
    let first_fit: Vec<PodIdx> = pass.queue.pods.indices().collect();
    let mut acceptable = pass.cost();
    pass.repack(true);
    let mut best = pass.cost();
    let mut most_unmet = best.unmet();
    let mut order = first_fit.clone();
    let mut random = Random::new(1);
    // If nodes are planned for all pods, no plan is cheaper.
    let lowest = pass.are_all_on_planned_nodes().then(|| pass.lowest_price());
    let mut seen: FxHashSet<(Vec<ClassId>, Manner)> = FxHashSet::default();
    let mut in_vain = 0;
    for step in 0..steps {
        let is_cheapest = lowest.is_some_and(|lowest| best.price <= lowest + SAME_PRICE);
        let is_over = in_vain > MOST_FAILURES || (is_cheapest && best.unmet() == 0);
        if is_over || query.is_cancelled() {
            break;
        }
        in_vain += 1;
        let (tried, manner) = match step {
            0 => (first_fit.clone(), Manner::Upstream),
            _ => recreate(pass, &order, &mut random),
        };
        // Pods of a class are placed by age, so that the order of classes decides.
        let classes = tried.iter().map(|pod| pass.queue.pods[*pod].class);
        if !seen.insert((classes.collect(), manner)) {
            continue;
        }
        pass.place_again(tried.clone(), manner);
        if query.is_cancelled() {
            pass.take_back();
            break;
        }
        if step == 0 {
            // What first fit leaves out, and which preferences it drops, depends on the domains.
            let upstreams = pass.cost();
            acceptable.pods.admit(&upstreams.pods);
            if upstreams.unplaced() == best.unplaced() {
                most_unmet = most_unmet.max(upstreams.unmet());
                acceptable.instances = acceptable.instances.min(upstreams.instances);
            }
        }
        pass.repack(false);
        let found = pass.cost();
        if found.is_admissible(&acceptable) && found.improves(&best, most_unmet) {
            if found.unplaced() != best.unplaced() {
                most_unmet = found.unmet();
            }
            (best, order, in_vain) = (found, tried, 0);
        } else {
            pass.take_back();
        }
    }
}

/// Takes a part of the plan out. Returns the order in which all pods are placed again, and the manner.
fn recreate(pass: &Pass<'_>, order: &[PodIdx], random: &mut Random) -> (Vec<PodIdx>, Manner) {
    let mut chance = |percent: usize| random.below(100) < percent;
    let (cheapest, whole, last) = (chance(CHEAPEST), chance(WHOLE), chance(50));
    let manner = match cheapest {
        true => Manner::Cheapest,
        false => Manner::FirstFit,
    };
    let mut part: Bits<PodIdx> = Bits::default();
    let nodes = pass.state.planned.all();
    for _ in 0..1 + random.below(MOST_TAKEN) {
        let taken = nodes.raw.get(random.below(nodes.len()));
        let pods = taken.into_iter().flat_map(|node| &node.pods);
        pods.for_each(|pod| part.insert(*pod));
    }
    let queued = |pod: PodIdx| &pass.queue.pods[pod];
    let is_taken = |pod: &PodIdx| {
        whole || part.contains(*pod) || !matches!(queued(*pod).state, PodState::Placed(_))
    };
    let (mut taken, kept): (Vec<PodIdx>, Vec<PodIdx>) = order.iter().copied().partition(is_taken);
    let rank = random.next();
    taken.sort_by_cached_key(|pod| {
        let class = queued(*pod).class;
        (Random::rank(rank, u64::from(class.0)), *pod)
    });
    let order = match last {
        true => [kept, taken].concat(),
        false => [taken, kept].concat(),
    };
    (oldest_first(pass, &order), manner)
}

/// Returns an order with the same classes, where pods of a class come by age: they are interchangeable, and if not all have a place, the
/// oldest have.
fn oldest_first(pass: &Pass<'_>, order: &[PodIdx]) -> Vec<PodIdx> {
    let class = |pod: PodIdx| pass.queue.pods[pod].class;
    let mut pods: IndexVec<ClassId, VecDeque<PodIdx>> =
        index_vec![VecDeque::new(); pass.queue.classes.len()];
    for pod in pass.queue.pods.indices() {
        pods[class(pod)].push_back(pod);
    }
    let next = |pod: &PodIdx| pods[class(*pod)].pop_front();
    order.iter().filter_map(next).collect()
}

#[cfg(test)]
mod tests;
