//! Search for an order in which kube-scheduler binds all pods of a plan.
//!
//! All pods of a node fit there in any order or in none, so only topology spread, affinity and anti-affinity make the order matter.
//! Pods that none of these connects are searched apart; within the others the search tries every order, up to a number of
//! states, but for those that make no difference:
//! - Pods that are equal but for their name, on nodes that are equal to the constraints, are interchangeable.
//! - A pod that counts for no constraint of another is bound as soon as it can be.
//! - If a pod that waits can be bound in no state that follows, the search goes back. Such a pod is tried earlier from then on:
//!   mostly it has to be bound before the others. Later starts weigh this with random numbers: an early mistake is not
//!   corrected within a start.
//! - Every other start goes backward: with all pods bound, it takes away one that can be bound last, and so on. Some mistakes show late
//!   in one direction and at once in the other.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels::HOSTNAME;

use super::{Cluster, PodInfo, Spread, Waiting, least, mixed};
use crate::pod;

/// How often the search starts again in each direction, mostly with the pods first for which it went back most often.
const MAX_STARTS: u64 = 200;
/// How many of the first starts in a direction weigh the pods by these numbers alone.
const NUMBERED_STARTS: u64 = 25;
/// How many states it visits from each start.
const MAX_STATES: usize = 200;

impl Cluster {
    /// Returns the pods in an order in which all can be bound, if the search finds one; else in one in which most can be.
    pub(super) fn search(&self, pods: &[Waiting]) -> Vec<Waiting> {
        let mut order = Vec::new();
        let mut left = Vec::new();
        for connected in self.connected(pods) {
            let mut search = Search::of(self, &connected);
            search.start();
            let bound: BTreeSet<usize> = search.best.iter().copied().collect();
            order.extend(search.best.iter().map(|step| connected[*step]));
            let steps = connected.iter().enumerate();
            left.extend(steps.filter_map(|(step, pod)| (!bound.contains(&step)).then_some(*pod)));
        }
        left.extend(pods.iter().filter(|(_, node)| node.is_none()));
        order.extend(left);
        order
    }

    /// Splits the pods into those that constraints connect, directly or by others. Pods whose node was not launched are left out.
    fn connected(&self, pods: &[Waiting]) -> Vec<Vec<Waiting>> {
        let mut parts: Vec<Vec<Waiting>> = Vec::new();
        for waiting in pods.iter().filter(|(_, node)| node.is_some()) {
            let connects = |part: &Vec<Waiting>| {
                let own = &self.pods[waiting.0];
                let mut others = part.iter().map(|(pod, _)| &self.pods[*pod]);
                others.any(|other| own.constrains(other) || other.constrains(own))
            };
            let (joined, apart): (Vec<_>, Vec<_>) = parts.into_iter().partition(connects);
            parts = apart;
            let mut part: Vec<Waiting> = joined.into_iter().flatten().collect();
            part.push(*waiting);
            parts.push(part);
        }
        parts
    }
}

impl PodInfo {
    /// Reports whether a constraint of this pod counts another.
    pub(super) fn constrains(&self, other: &Self) -> bool {
        let mut terms = self.affinity.iter().chain(&self.anti_affinity);
        let mut spreads = self.spread.iter();
        terms.any(|term| term.matches(other))
            || spreads.any(|spread| spread.count(&self.id.namespace, [other].into_iter()) > 0)
    }

    fn is_constrained_by_name(&self) -> bool {
        let mut terms = self.affinity.iter().chain(&self.anti_affinity);
        terms.any(|term| term.key == HOSTNAME) || self.spread.iter().any(|s| s.key == HOSTNAME)
    }
}

struct Search {
    /// The cluster in the state that the search has reached.
    cluster: Cluster,
    /// The cluster before any of the pods is bound.
    first: Cluster,
    /// The cluster with all pods bound.
    last: Cluster,
    steps: Vec<Waiting>,
    /// For each step the first one that is interchangeable.
    classes: Vec<usize>,
    /// For each step the first one whose pod is equal but for its name.
    workloads: Vec<usize>,
    /// For each step whether its pod counts for no constraint of another.
    harmless: Vec<bool>,
    /// The steps done since the start: pods bound, or taken away.
    done: Vec<usize>,
    /// Whether the search starts with all pods bound and takes them away.
    backward: bool,
    /// The steps of the longest order found.
    best: Vec<usize>,
    /// The states visited since the last start: how many steps of each class were done.
    seen: BTreeSet<Vec<usize>>,
    /// For each class how often the search went back for it in this direction, and in the other.
    missed: Vec<usize>,
    missed_in_other: Vec<usize>,
    /// The number of the start in this direction.
    number: u64,
}

impl Search {
    fn of(cluster: &Cluster, steps: &[Waiting]) -> Self {
        let mut last = cluster.clone();
        for (pod, node) in steps {
            let node = node.unwrap_or_default();
            last.nodes[node].pods.push(*pod);
        }
        let info = |pod: usize| &cluster.pods[pod];
        let by_name = (steps.iter()).any(|(pod, _)| info(*pod).is_constrained_by_name());
        let mut first: BTreeMap<String, usize> = BTreeMap::new();
        let unnamed = |pod: usize| {
            let mut own = info(pod).clone();
            own.id.name.clear();
            format!("{own:?}")
        };
        let class = |(step, (pod, node)): (usize, &Waiting)| {
            let own = unnamed(*pod);
            let node = &cluster.nodes[node.unwrap_or_default()];
            let mut labels = node.labels.clone();
            if !by_name {
                labels.remove(HOSTNAME);
            }
            let description = format!("{own} {labels:?} {:?}", node.taints);
            *first.entry(description).or_insert(step)
        };
        let classes = steps.iter().enumerate().map(class).collect();
        let mut alike: BTreeMap<String, usize> = BTreeMap::new();
        let pods = steps.iter().enumerate();
        let workloads = pods
            .map(|(step, (pod, _))| *alike.entry(unnamed(*pod)).or_insert(step))
            .collect();
        let harmless = |(pod, _): &Waiting| {
            let own = info(*pod);
            let mut others = steps.iter().filter(|(other, _)| other != pod);
            !others.any(|(other, _)| {
                let keeps_away = || own.anti_affinity.iter().any(|t| t.matches(info(*other)));
                info(*other).constrains(own) || keeps_away()
            })
        };
        Self {
            harmless: steps.iter().map(harmless).collect(),
            cluster: cluster.clone(),
            first: cluster.clone(),
            last,
            steps: steps.to_vec(),
            classes,
            workloads,
            done: Vec::new(),
            backward: false,
            best: Vec::new(),
            seen: BTreeSet::new(),
            missed: vec![0; steps.len()],
            missed_in_other: vec![0; steps.len()],
            number: 0,
        }
    }

    fn start(&mut self) {
        for number in 0..MAX_STARTS {
            for backward in [false, true] {
                self.number = number;
                self.turn(backward);
                // With fewer states there is no order.
                if self.go() || self.seen.len() < MAX_STATES {
                    return;
                }
            }
        }
    }

    /// Starts again in a direction.
    fn turn(&mut self, backward: bool) {
        if self.backward != backward {
            self.backward = backward;
            std::mem::swap(&mut self.missed, &mut self.missed_in_other);
            let start = if backward { &self.last } else { &self.first };
            self.cluster = start.clone();
        }
        self.seen.clear();
    }

    /// Binds the pod of a step, or takes it away.
    fn change(&mut self, step: usize, bound: bool) {
        let (pod, node) = self.steps[step];
        let there = &mut self.cluster.nodes[node.unwrap_or_default()].pods;
        if bound {
            there.push(pod);
        } else {
            there.retain(|other| *other != pod);
        }
    }

    fn take(&mut self, step: usize) {
        self.change(step, !self.backward);
        self.done.push(step);
    }

    fn go_back_to(&mut self, length: usize) {
        for step in self.done.split_off(length) {
            self.change(step, self.backward);
        }
    }

    /// Returns the steps that are not done, one of each class.
    fn waiting(&self) -> Vec<usize> {
        let mut known = BTreeSet::new();
        let steps = (0..self.steps.len()).filter(|step| !self.done.contains(step));
        steps
            .filter(|step| known.insert(self.classes[*step]))
            .collect()
    }

    /// Reports whether the pod of a step can be bound in this state, or could be bound last to reach it.
    fn may(&mut self, step: usize) -> bool {
        let (pod, node) = self.steps[step];
        if self.backward {
            self.change(step, false);
        }
        let may = (self.cluster.constraint(pod, node.unwrap_or_default())).is_none();
        if self.backward {
            self.change(step, true);
        }
        may
    }

    /// Searches on from this state; reports whether all pods were bound.
    fn go(&mut self) -> bool {
        let before = self.done.len();
        let next = |search: &mut Self| {
            let mut waiting = search.waiting();
            waiting.retain(|step| search.harmless[*step]);
            waiting.into_iter().find(|step| search.may(*step))
        };
        while let Some(step) = next(self) {
            self.take(step);
        }
        let all = self.done.len() == self.steps.len();
        if all || (!self.backward && self.done.len() > self.best.len()) {
            self.best.clone_from(&self.done);
            if self.backward {
                self.best.reverse();
            }
        }
        let all = all || self.branch();
        if !all {
            self.go_back_to(before);
        }
        all
    }

    fn branch(&mut self) -> bool {
        let mut state = vec![0; self.steps.len()];
        for step in &self.done {
            state[self.classes[*step]] += 1;
        }
        if self.seen.len() >= MAX_STATES || !self.seen.insert(state) {
            return false;
        }
        let mut waiting = self.waiting();
        let mut missed: Vec<usize> = waiting.clone();
        missed.retain(|step| self.is_dead(*step));
        if !self.backward {
            missed.extend(self.without_company(&waiting));
        }
        if missed.is_empty() && !waiting.iter().any(|step| self.may(*step)) {
            missed.clone_from(&waiting);
        }
        if !missed.is_empty() {
            for step in missed {
                self.missed[self.classes[step]] += 1;
            }
            return false;
        }
        // In the same order each start would repeat the mistake of the one before, once the numbers hardly change.
        waiting.sort_by_cached_key(|step| {
            let class = self.classes[*step];
            let drawn = match self.number {
                0..NUMBERED_STARTS => 1,
                number => mixed((number << 32) ^ class as u64) % 1024,
            };
            Reverse((self.missed[class] as u64 + 1) * drawn)
        });
        for step in waiting {
            if self.may(step) {
                let before = self.done.len();
                self.take(step);
                if self.go() {
                    return true;
                }
                self.go_back_to(before);
            }
        }
        false
    }

    /// Reports whether a pod can be bound in no state that follows; backward, whether it can be bound last in no state before. Counts only
    /// rise from the earlier state to the later one, and the last pod of its workload in a domain comes after the others.
    fn is_dead(&self, step: usize) -> bool {
        let (pod, node) = self.steps[step];
        let node = node.unwrap_or_default();
        let (info, there) = (&self.cluster.pods[pod], &self.cluster.nodes[node]);
        let (earlier, later) = match self.backward {
            false => (&self.cluster, &self.last),
            true => (&self.first, &self.cluster),
        };
        let exceeds = |constraint: &Spread| {
            let counts = earlier.counts(info, constraint);
            let least = least(&later.counts(info, constraint), constraint);
            let domain = there.labels.get(&constraint.key);
            let own = if pod::selects(constraint.selector.as_ref(), &info.labels) {
                self.waiting_in(step, &constraint.key)
            } else {
                0
            };
            let here = domain.and_then(|domain| counts.get(domain.as_str()).copied());
            here.unwrap_or(0) + own - least > constraint.max_skew
        };
        if self.backward {
            return info.spread.iter().any(exceeds);
        }
        match self.cluster.inter_pod_affinity(info, there) {
            None | Some("InterPodAffinity (affinity)") => info.spread.iter().any(exceeds),
            Some(_) => true,
        }
    }

    /// Returns the pods that their affinity refuses in every state that follows: they cannot start their group any more, and no pod
    /// that they could join can be bound before them. Pods that only wait for each other are among them.
    fn without_company(&self, waiting: &[usize]) -> Vec<usize> {
        let refused = |cluster: &Cluster, step: usize| {
            let (pod, node) = self.steps[step];
            let (info, there) = (&cluster.pods[pod], &cluster.nodes[node.unwrap_or_default()]);
            cluster.affinity(info, there).is_some()
        };
        let waiting = waiting.iter().copied();
        let (mut left, mut joined): (Vec<usize>, Vec<usize>) =
            waiting.partition(|step| refused(&self.cluster, *step));
        if left.is_empty() {
            return left;
        }
        let mut reached = self.cluster.clone();
        while !left.is_empty() && !joined.is_empty() {
            for step in joined {
                let (pod, node) = self.steps[step];
                reached.nodes[node.unwrap_or_default()].pods.push(pod);
            }
            (left, joined) = left.into_iter().partition(|step| refused(&reached, *step));
        }
        left
    }

    /// Returns how many pods of a step's workload in its domain are not done.
    fn waiting_in(&self, step: usize, key: &str) -> i64 {
        let domain = |step: usize| {
            let node = self.steps[step].1.unwrap_or_default();
            self.cluster.nodes[node].labels.get(key)
        };
        let waiting = (0..self.steps.len()).filter(|other| {
            self.workloads[*other] == self.workloads[step]
                && domain(*other) == domain(step)
                && !self.done.contains(other)
        });
        waiting.count() as i64
    }
}
