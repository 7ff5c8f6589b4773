//! Runs the scheduler on a pod alone while constraints are relaxed.
//!
//! A pod alone fits if it fits on an existing node, or on a new node of some NodePool, and no NodePool's constraints matter to
//! another's nodes. So the cluster is asked once with the constraints that concern all places relaxed, which the prepared solver
//! answers as it is, and then only those NodePools by themselves whose constraints are relaxed as well; answers are cached by the
//! constraints that concern them. A spread constraint counts the domains of all places, so a pod with one is asked of the whole
//! cluster. Every result is run once more on the whole cluster, by [`Probe::verify`].

use std::collections::BTreeSet;
use std::sync::Arc;

use karpenter_api::labels;
use karpenter_api::v1::NodePool;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::pod::{Pod, Shape};
use karpenter_core::schedule::{Cancel, Plan, PlannedNodeClaim, PodSet, Policy, Query, Solver};
use rustc_hash::FxHashMap;

use super::atom::{Atom, Side, relax_cluster, relaxed_pod, relaxed_pool, relaxed_types};
use super::prepared::Prepared;
use super::search::Set;

/// Runs of the engine that one answer may need.
pub(super) const MAX_RUNS: usize = 256;

/// NodePools that are asked one by one before the others are asked together.
const MAX_SINGLE_POOLS: usize = 2;

/// What is asked by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// New nodes of the NodePool with this number.
    Pool(usize),
    /// Existing nodes, and new nodes of all NodePools.
    Cluster,
}

/// Runs the scheduler on one pod.
pub(super) struct Probe<'a> {
    prepared: &'a Prepared,
    cancel: Option<Cancel>,
    pub(super) pod: Arc<Pod>,
    pub(super) atoms: Vec<Atom>,
    /// Constraints that are relaxed in every run.
    pub(super) dropped: Set,
    pools: Vec<Arc<NodePool>>,
    answers: FxHashMap<(Place, Vec<usize>), bool>,
    /// Solvers by place and the relaxed constraints that are not the pod's own.
    solvers: FxHashMap<(Place, Vec<usize>), Arc<Solver>>,
    /// Solvers of the cluster by the relaxed constraints of other workloads: the others differ from them in NodePools only.
    bases: FxHashMap<Vec<usize>, Arc<Solver>>,
    runs: usize,
}

impl<'a> Probe<'a> {
    pub(super) fn new(
        prepared: &'a Prepared,
        cancel: Option<Cancel>,
        pod: Arc<Pod>,
        atoms: Vec<Atom>,
    ) -> Self {
        Self {
            prepared,
            cancel,
            pod,
            atoms,
            dropped: Set::new(),
            pools: prepared.snapshot.node_pools().cloned().collect(),
            answers: FxHashMap::default(),
            solvers: FxHashMap::default(),
            bases: FxHashMap::default(),
            runs: 0,
        }
    }

    /// Returns the cluster as it is.
    pub(super) fn snapshot(&self) -> &'a Snapshot {
        &self.prepared.snapshot
    }

    /// Reports whether the answer had to do with fewer runs than it asked for.
    pub(super) fn is_exhausted(&self) -> bool {
        self.runs >= MAX_RUNS || self.is_cancelled()
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel())
    }

    fn relaxed<'b>(&'b self, set: &'b Set) -> impl Iterator<Item = &'b Atom> {
        set.iter().map(|index| &self.atoms[*index])
    }

    /// Reports whether the pod fits while constraints are relaxed; `None` once the bound on runs is reached.
    pub(super) fn fits(&mut self, relaxed: &Set) -> Option<bool> {
        let relaxed = &relaxed.union(&self.dropped).copied().collect();
        if self.counts_domains(relaxed) {
            return self.fits_in(Place::Cluster, relaxed);
        }
        let (shared, of_pools): (Set, Set) = relaxed
            .iter()
            .partition(|index| self.atoms[**index].pool().is_none());
        if self.fits_in(Place::Cluster, &shared)? {
            return Some(true);
        }
        // No place fits as it is; that leaves the NodePools that are changed.
        let changed: BTreeSet<&str> = self.relaxed(&of_pools).filter_map(Atom::pool).collect();
        let changed: Vec<usize> = (0..self.pools.len())
            .filter(|index| changed.contains(self.pools[*index].name()))
            .collect();
        let is_known = |probe: &Self, pool: usize| {
            let key = probe.key(Place::Pool(pool), relaxed);
            probe.answers.contains_key(&(Place::Pool(pool), key))
        };
        let (known, open): (Vec<usize>, Vec<usize>) =
            changed.into_iter().partition(|pool| is_known(self, *pool));
        let (alone, together) = open.split_at(open.len().min(MAX_SINGLE_POOLS));
        for pool in known.iter().chain(alone) {
            if self.fits_in(Place::Pool(*pool), relaxed)? {
                return Some(true);
            }
        }
        // Compiling many NodePools at once takes less than each by itself.
        if together.len() < MAX_SINGLE_POOLS {
            for pool in together {
                if self.fits_in(Place::Pool(*pool), relaxed)? {
                    return Some(true);
                }
            }
            return Some(false);
        }
        if self.fits_in(Place::Cluster, relaxed)? {
            return Some(true);
        }
        for pool in together {
            let key = self.key(Place::Pool(*pool), relaxed);
            self.answers.insert((Place::Pool(*pool), key), false);
        }
        Some(false)
    }

    /// Reports whether a spread constraint is left whose domains are not the nodes themselves.
    fn counts_domains(&self, relaxed: &Set) -> bool {
        let kept = |atom: &Atom| match atom {
            Atom::Spread(index) => self.pod.shape.spread[*index].topology_key != labels::HOSTNAME,
            Atom::DefaultSpread => true,
            _ => false,
        };
        (self.atoms.iter().enumerate()).any(|(index, atom)| kept(atom) && !relaxed.contains(&index))
    }

    /// Returns the relaxed constraints that concern a place.
    fn key(&self, place: Place, relaxed: &Set) -> Vec<usize> {
        let pool = match place {
            Place::Pool(index) => Some(self.pools[index].name()),
            Place::Cluster => None,
        };
        let concerns = |index: &&usize| {
            let of = self.atoms[**index].pool();
            place == Place::Cluster || of.is_none_or(|of| Some(of) == pool)
        };
        relaxed.iter().filter(concerns).copied().collect()
    }

    fn fits_in(&mut self, place: Place, relaxed: &Set) -> Option<bool> {
        let key = self.key(place, relaxed);
        if let Some(answer) = self.answers.get(&(place, key.clone())) {
            return Some(*answer);
        }
        if self.is_exhausted() {
            return None;
        }
        let solver = self.solver(place, &key);
        let pod = relaxed_pod(&self.pod, key.iter().map(|index| &self.atoms[*index]));
        let plan = solver.solve(&self.query(pod));
        self.runs += 1;
        let answer = places_all(&plan)?;
        self.answers.insert((place, key), answer);
        Some(answer)
    }

    fn query(&self, pod: Arc<Pod>) -> Query {
        let mut query = Query::new(PodSet::Given(vec![pod]));
        query.cancel.clone_from(&self.cancel);
        query
    }

    fn policy<'b>(&self, mut relaxed: impl Iterator<Item = &'b Atom>) -> Policy {
        let mut policy = self.prepared.policy.clone();
        if relaxed.any(|atom| *atom == Atom::DefaultSpread) {
            policy.default_spread.clear();
        }
        policy
    }

    fn solver(&mut self, place: Place, relaxed: &[usize]) -> Arc<Solver> {
        let shared: Vec<usize> = relaxed
            .iter()
            .filter(|index| !self.atoms[**index].is_of_pod())
            .copied()
            .collect();
        if place == Place::Cluster && shared.is_empty() {
            return self.prepared.solver.clone();
        }
        if let Some(solver) = self.solvers.get(&(place, shared.clone())) {
            return solver.clone();
        }
        let set: Set = shared.iter().copied().collect();
        let pools: Vec<usize> = match place {
            Place::Pool(index) => vec![index],
            Place::Cluster => (0..self.pools.len()).collect(),
        };
        let snapshot = self.cluster(&pools, &set);
        let policy = self.policy(self.relaxed(&set));
        let base = self.base(&set);
        let solver = Arc::new(base.with_node_pools_of(&snapshot, &policy));
        self.solvers.insert((place, shared), solver.clone());
        solver
    }

    /// Returns the solver of the whole cluster in which the relaxed constraints of other workloads do not hold.
    fn base(&mut self, relaxed: &Set) -> Arc<Solver> {
        let of_others = |index: &&usize| self.atoms[**index].side() == Side::Cluster;
        let key: Vec<usize> = relaxed.iter().filter(of_others).copied().collect();
        if key.is_empty() {
            return self.prepared.solver.clone();
        }
        if let Some(solver) = self.bases.get(&key) {
            return solver.clone();
        }
        let snapshot = self.snapshot();
        let mut cluster = Cluster::from(snapshot.fork());
        let set: Set = key.iter().copied().collect();
        relax_cluster(&mut cluster, snapshot, self.relaxed(&set));
        // The resources that the pod requests are dimensions of the solver.
        let policy = self.policy(self.relaxed(&set));
        let query = self.query(self.pod.clone());
        let solver = Solver::prepare_for(&cluster.snapshot(), &policy, &query);
        let solver = Arc::new(solver);
        self.bases.insert(key, solver.clone());
        solver
    }

    /// Returns the cluster with some of its NodePools, and relaxed constraints.
    fn cluster(&self, pools: &[usize], relaxed: &Set) -> Snapshot {
        let snapshot = self.snapshot();
        let mut cluster = Cluster::from(snapshot.fork());
        for (index, pool) in self.pools.iter().enumerate() {
            if !pools.contains(&index) {
                cluster.remove_node_pool(pool.name());
                continue;
            }
            let of_pool = |atom: &&Atom| atom.pool() == Some(pool.name());
            if !self.relaxed(relaxed).any(|atom| of_pool(&atom)) {
                continue;
            }
            let changed = relaxed_pool(pool, self.relaxed(relaxed).filter(of_pool));
            cluster.apply_node_pool(&changed);
            let offered: BTreeSet<(&str, &str)> = self
                .relaxed(relaxed)
                .filter(of_pool)
                .filter_map(|atom| match atom {
                    Atom::Unavailable(_, capacity_type, zone) => {
                        Some((capacity_type.as_str(), zone.as_str()))
                    }
                    _ => None,
                })
                .collect();
            if !offered.is_empty()
                && let Some(Ok(types)) = snapshot.instance_types(pool.name())
            {
                cluster.set_instance_types(pool.name(), Ok(relaxed_types(types, &offered).into()));
            }
        }
        relax_cluster(&mut cluster, snapshot, self.relaxed(relaxed));
        cluster.snapshot()
    }

    /// Runs the pod on the whole cluster with relaxed constraints.
    pub(super) fn verify(&mut self, relaxed: &Set) -> Option<Outcome> {
        self.run(relaxed, None, None)
    }

    /// Runs the pod with another shape on the whole cluster.
    pub(super) fn with_shape(&mut self, shape: Shape) -> Option<Outcome> {
        self.run(&Set::new(), Some(shape), None)
    }

    /// Runs the pod on the whole cluster with a changed NodePool.
    pub(super) fn with_pool(&mut self, pool: &NodePool) -> Option<Outcome> {
        self.run(&Set::new(), None, Some(pool))
    }

    fn run(
        &mut self,
        relaxed: &Set,
        shape: Option<Shape>,
        pool: Option<&NodePool>,
    ) -> Option<Outcome> {
        if self.is_exhausted() {
            return None;
        }
        let relaxed: &Set = &relaxed.union(&self.dropped).copied().collect();
        let mut pod = relaxed_pod(&self.pod, self.relaxed(relaxed));
        if let Some(shape) = shape {
            pod = Arc::new(Pod {
                shape: Arc::new(shape),
                ..Pod::clone(&pod)
            });
        }
        let of_pod = |index: &usize| self.atoms[*index].is_of_pod();
        let plan = if pool.is_none() && relaxed.iter().all(of_pod) {
            self.prepared.solver.solve(&self.query(pod))
        } else {
            let all: Vec<usize> = (0..self.pools.len()).collect();
            let mut cluster = Cluster::from(self.cluster(&all, relaxed));
            if let Some(pool) = pool {
                cluster.apply_node_pool(pool);
            }
            let policy = self.policy(self.relaxed(relaxed));
            let base = self.base(relaxed);
            base.with_node_pools_of(&cluster.snapshot(), &policy)
                .solve(&self.query(pod))
        };
        self.runs += 1;
        places_all(&plan).map(|fits| Outcome { fits, plan })
    }

    pub(super) fn pool(&self, name: &str) -> Option<&Arc<NodePool>> {
        self.pools.iter().find(|pool| pool.name() == name)
    }
}

/// What a run on the whole cluster came to.
pub(super) struct Outcome {
    pub(super) fits: bool,
    pub(super) plan: Plan,
}

impl Outcome {
    /// Returns the node that would be launched, if it is one of this NodePool.
    pub(super) fn planned_for(&self, pool: &str) -> Option<&PlannedNodeClaim> {
        let claim = self.plan.new_node_claims.first();
        claim.filter(|claim| claim.node_pool == pool)
    }
}

/// Reports whether the plan places its pod; `None` if the run was cancelled.
fn places_all(plan: &Plan) -> Option<bool> {
    plan.undecided
        .is_empty()
        .then_some(plan.unplaced.is_empty())
}
