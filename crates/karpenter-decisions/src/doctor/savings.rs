//! What a finding costs: the savings of the consolidation that becomes possible once it is fixed.
//!
//! All PodDisruptionBudgets and annotations that keep a node are removed in a copy of the cluster, which is compiled once. A node
//! counts for a finding if nothing else keeps it. Its nodes are then taken one after the other, as long as all of them together
//! can be deleted or replaced at a profit: so no place for a pod is counted twice.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::labels::annotations;
use karpenter_api::v1::{ConsolidationPolicy, DisruptionReason};
use karpenter_core::cluster::Cluster;
use karpenter_core::disruption::consolidation::balanced::{THRESHOLD, Totals};
use karpenter_core::disruption::consolidation::{Rules, evaluate};
use karpenter_core::disruption::simulation::Simulator;
use karpenter_core::disruption::{Candidate, Candidates, Surroundings};
use karpenter_core::schedule::Query;

use super::finding::{Draft, Release};
use super::scan::{Blocker, Examination, Scan};
use crate::change::without_annotation;
use crate::prices::{Prices, finite};

/// Simulations of one report.
const SIMULATIONS: usize = 256;
/// Nodes of one finding that are simulated.
const NODES: usize = 16;

/// Savings in dollars per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amount {
    pub(super) per_hour: f64,
    pub(super) at_least: bool,
    /// Nodes that something else keeps as well.
    pub(super) also_blocked: usize,
}

pub(super) struct Savings<'a> {
    examination: &'a Examination<'a>,
    blockers: BTreeMap<String, BTreeSet<Blocker>>,
    /// The findings that keep a NodePool from disrupting nodes.
    closed: BTreeMap<String, Vec<(usize, Vec<DisruptionReason>)>>,
    released: Option<Released>,
    left: usize,
}

/// The cluster in which nothing keeps a node from being drained.
struct Released {
    simulator: Simulator,
    candidates: Candidates,
    totals: Totals,
    /// The place of each candidate, by node.
    places: BTreeMap<String, usize>,
}

impl<'a> Savings<'a> {
    pub(super) fn new(examination: &'a Examination<'a>, scan: &Scan<'_>, drafts: &[Draft]) -> Self {
        let mut closed: BTreeMap<String, Vec<(usize, Vec<DisruptionReason>)>> = BTreeMap::new();
        for (number, draft) in drafts.iter().enumerate() {
            if let Release::Pool { pool, reasons, .. } = &draft.release {
                let of = closed.entry(pool.clone()).or_default();
                of.push((number, reasons.clone()));
            }
        }
        let blockers = scan.blockers().iter();
        Self {
            examination,
            blockers: blockers
                .map(|(node, blockers)| ((*node).to_owned(), blockers.clone()))
                .collect(),
            closed,
            released: None,
            left: SIMULATIONS,
        }
    }

    /// Returns what a finding costs; `None` if it keeps no node, or if the savings are unknown.
    pub(super) fn of(&mut self, number: usize, draft: &Draft) -> Option<Amount> {
        match &draft.release {
            Release::Nothing | Release::Unknown => None,
            Release::Deleted => {
                let snapshot = self.examination.snapshot;
                let nodes = draft.nodes.iter();
                let nodes = nodes.filter_map(|name| snapshot.node(name));
                let prices = nodes.map(|node| finite(Prices::of_one(snapshot, node)));
                Some(Amount {
                    per_hour: prices.fold(0.0, |sum, price| sum + price),
                    ..Amount::default()
                })
            }
            Release::Eviction(_) | Release::Pool { .. } => Some(self.consolidated(number, draft)),
        }
    }

    /// Reports whether a fix of the finding lets the node be disrupted for a reason.
    fn frees(
        &self,
        number: usize,
        release: &Release,
        candidate: &Candidate,
        reason: &DisruptionReason,
    ) -> bool {
        let blockers = self.blockers.get(candidate.name());
        let (blocked, policy) = match release {
            Release::Eviction(blocker) => {
                let others = blockers.is_some_and(|all| all.iter().any(|it| it != blocker));
                (others, false)
            }
            Release::Pool {
                reasons, is_policy, ..
            } => {
                let others = blockers.is_some_and(|all| !all.is_empty());
                (others || !reasons.contains(reason), *is_policy)
            }
            _ => return false,
        };
        let closed = self.closed.get(candidate.pool_name());
        let is_closed = closed
            .into_iter()
            .flatten()
            .any(|(by, reasons)| *by != number && reasons.contains(reason));
        !blocked && !is_closed && consolidates(candidate, policy)
    }

    fn consolidated(&mut self, number: usize, draft: &Draft) -> Amount {
        let released = match self.released.take() {
            Some(released) => released,
            None => Released::new(self.examination, &self.blockers),
        };
        let amount = self.with(&released, number, draft);
        self.released = Some(released);
        amount
    }

    fn with(&mut self, released: &Released, number: usize, draft: &Draft) -> Amount {
        let mut amount = Amount::default();
        let places = draft.nodes.iter();
        let mut places: Vec<usize> = places
            .filter_map(|node| released.places.get(node))
            .copied()
            .collect();
        // The most expensive nodes per disrupted pod first, as consolidation takes them.
        places.sort_unstable();
        let mut empty = Vec::new();
        let mut busy = Vec::new();
        for place in places {
            let candidate = &released.candidates.candidates[place];
            let reason = match candidate.is_empty() {
                true => DisruptionReason::Empty,
                false => DisruptionReason::Underutilized,
            };
            match self.frees(number, &draft.release, candidate, &reason) {
                false => {
                    let blockers = self.blockers.get(candidate.name());
                    amount.also_blocked += usize::from(blockers.is_some_and(|all| {
                        let own = |it: &Blocker| draft.release == Release::Eviction(it.clone());
                        all.iter().any(|it| !own(it))
                    }));
                }
                true if candidate.is_empty() => empty.push(candidate),
                true => busy.push(candidate),
            }
        }
        // An empty node is deleted whatever the others do.
        let prices = empty.iter().map(|candidate| candidate.price);
        amount.per_hour = prices.fold(0.0, |sum, price| sum + price);
        amount.at_least = busy.len() > NODES;
        busy.truncate(NODES);
        let mut taken: Vec<&Candidate> = empty;
        let mut saved = amount.per_hour;
        let mut replaced = 0;
        for candidate in busy {
            let cancel = self.examination.cancel.as_ref();
            if self.left == 0 || cancel.is_some_and(|cancel| cancel()) {
                amount.at_least = true;
                break;
            }
            self.left -= 1;
            let mut together = taken.clone();
            together.push(candidate);
            let rules = Rules {
                spot_to_spot: self.examination.spot_to_spot,
                max_replacements: replaced + 1,
                node_overhead_price: self.examination.policy.node_overhead_price,
            };
            let Ok(moved) = evaluate(&released.simulator, &together, rules) else {
                continue;
            };
            let gained = finite(moved.savings) - saved;
            let score = released.totals.score(&[candidate], gained);
            if gained > 0.0 && score.is_none_or(|score| score >= THRESHOLD) {
                (saved, replaced, taken) = (saved + gained, moved.replacements.len(), together);
            }
        }
        amount.per_hour = saved;
        amount
    }
}

impl Released {
    fn new(examination: &Examination<'_>, blockers: &BTreeMap<String, BTreeSet<Blocker>>) -> Self {
        let snapshot = examination.snapshot;
        let mut cluster = Cluster::from(snapshot.fork());
        for pdb in snapshot.pdbs() {
            let meta = &pdb.metadata;
            let namespace = meta.namespace.as_deref().unwrap_or_default();
            cluster.remove_pdb(namespace, meta.name.as_deref().unwrap_or_default());
        }
        for (node, all) in blockers {
            if all.iter().any(|it| matches!(it, Blocker::Protected(..))) {
                for pod in snapshot.pods_on(node) {
                    let released = without_annotation(pod);
                    if released.annotations.len() < pod.annotations.len() {
                        cluster.insert_pod(released);
                    }
                }
            }
            if let (true, Some(object)) = (
                all.contains(&Blocker::ProtectedNode),
                snapshot.node_object(node),
            ) {
                let mut object = object.as_ref().clone();
                if let Some(all) = &mut object.metadata.annotations {
                    all.remove(annotations::DO_NOT_DISRUPT);
                }
                cluster.apply_node(&object);
            }
        }
        let released = cluster.snapshot();
        let now = examination.policy.now;
        let candidates = Candidates::new(&released, &Surroundings::default(), now);
        let totals = Totals::new(&released, &candidates.candidates, &candidates.prices);
        let mut query = Query::default();
        query.cancel.clone_from(&examination.cancel);
        let simulator = Simulator::new(&released, examination.policy, &query, &candidates.prices);
        let all = candidates.candidates.iter().enumerate();
        let places = all
            .map(|(place, candidate)| (candidate.name().to_owned(), place))
            .collect();
        Self {
            simulator,
            candidates,
            totals,
            places,
        }
    }
}

/// Reports whether consolidation would consider a node, however recently its pods changed. `despite_never` ignores
/// `consolidateAfter: Never`.
fn consolidates(candidate: &Candidate, despite_never: bool) -> bool {
    let disruption = &candidate.node_pool.spec.disruption;
    let only_empty = disruption.consolidation_policy == ConsolidationPolicy::WhenEmpty;
    let refuses = candidate
        .node
        .annotations()
        .get(annotations::DO_NOT_CONSOLIDATE);
    !candidate.node_pool.is_static()
        && candidate.instance_type.is_some()
        && candidate.capacity_type().is_some()
        && candidate.zone().is_some()
        && refuses.is_none_or(|value| value != "true")
        && (despite_never || disruption.consolidate_after.value().is_some())
        && (candidate.is_empty() || !only_empty)
}
