//! What blocks a pending pod, and what would help: verified by running the scheduler.
//!
//! A pod has constraints of its own, NodePools and other workloads add theirs, and the cloud offers what it has. [`blocking`] finds
//! a smallest set of them that blocks the pod together, and the cheapest changes that would let it be scheduled. Every set and
//! every change is run through the engine in exactly the form in which it is reported.

mod answer;
mod atom;
mod competition;
mod existing;
mod hint;
mod prepared;
mod probe;
mod relax;
mod search;
mod wanted;

use std::sync::Arc;

use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::{Pod, Shape};
use karpenter_core::schedule::{Cancel, PodSet, Policy, Query};

pub use answer::{Amount, Blocking, BlockingSet, Constraint, Effect, NewNode, Patch, Relaxation};
pub use atom::Side;
pub(crate) use atom::{admit_offering, make_available, set_ready, toleration};
pub use competition::{Competition, Taker};
pub use existing::Existing;
pub(crate) use existing::takes;
pub use prepared::Prepared;

use crate::change::{Changed, InvalidChange};
use answer::constraint;
use probe::Probe;
use search::Set;

/// Relaxations of an answer.
const MAX_RELAXATIONS: usize = 5;
/// Pairs of constraints that are tried.
const MAX_PAIRS: usize = 64;

/// Finds what blocks a pending pod alone, and what would help.
///
/// `policy` is that of the pass that left the pod without a place. `cancel` ends the search early; the answer is then marked.
/// Takes at most 256 runs of the engine.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_core::fake;
/// use karpenter_core::schedule::Policy;
/// use karpenter_decisions::blocking::blocking;
/// use serde_json::json;
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// cluster.apply_node_pool(&serde_json::from_value(json!({
///     "metadata": { "name": "default" },
///     "spec": { "template": { "spec": {
///         "requirements": [], "taints": [{ "key": "team", "value": "search", "effect": "NoSchedule" }],
///         "nodeClassRef": { "group": "example.com", "kind": "Rack", "name": "any" },
///     } } },
///     "status": { "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
/// }))?);
/// cluster.set_instance_types("default", Ok(fake::instance_types(4).into()));
/// cluster.apply_pod(&serde_json::from_value(json!({
///     "metadata": { "name": "web", "namespace": "default", "uid": "1" },
///     "spec": { "containers": [{ "name": "main", "resources": { "requests": { "cpu": "100m" } } }] },
///     "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] },
/// }))?);
///
/// let snapshot = cluster.snapshot();
/// let pod = snapshot.pod("default", "web").unwrap();
/// let answer = blocking(&snapshot, &Policy::at(Timestamp::UNIX_EPOCH), None, pod);
/// let ids: Vec<&str> = answer.blocking.atoms.iter().map(|atom| atom.id.as_str()).collect();
/// assert_eq!(ids, ["pod.toleration[team=search:NoSchedule]", "pool[default].taints[0]"]);
/// assert_eq!(answer.relaxations[0].text, "tolerate taint team=search:NoSchedule");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn blocking(
    snapshot: &Snapshot,
    policy: &Policy,
    cancel: Option<Cancel>,
    pod: &Arc<Pod>,
) -> Blocking {
    prepared_for(snapshot, policy, pod).blocking(cancel, pod)
}

fn prepared_for(snapshot: &Snapshot, policy: &Policy, pod: &Arc<Pod>) -> Prepared {
    let query = Query::new(PodSet::Given(vec![pod.clone()]));
    Prepared::for_query(snapshot, policy, &query)
}

impl Prepared {
    /// Finds what blocks a pending pod alone, and what would help; see [`blocking`].
    pub fn blocking(&self, cancel: Option<Cancel>, pod: &Arc<Pod>) -> Blocking {
        let atoms = atom::atoms(self, pod);
        let mut found = find(Probe::new(self, cancel.clone(), pod.clone(), atoms));
        if found.fits_alone {
            let alone = found.effect.as_ref();
            found.competition = competition::competition(self, cancel, pod, alone);
        }
        found
    }

    /// Like [`Self::blocking`], after the changes that concern the pod itself: what it tolerates in addition, and the constraints
    /// that are dropped. `self` is prepared from the changed cluster.
    ///
    /// # Errors
    /// If the pod has no constraint of a dropped id.
    pub fn blocking_after(
        &self,
        changed: &Changed,
        cancel: Option<Cancel>,
        pod: &Arc<Pod>,
    ) -> Result<Blocking, InvalidChange> {
        let mut shape = Shape::clone(&pod.shape);
        shape
            .tolerations
            .extend(changed.tolerations.iter().cloned());
        let pod = Arc::new(Pod {
            shape: Arc::new(shape),
            ..Pod::clone(pod)
        });
        let atoms = atom::atoms(self, &pod);
        let mut probe = Probe::new(self, cancel, pod, atoms);
        let ids: Vec<String> = (0..probe.atoms.len())
            .map(|index| constraint(&probe, index).id)
            .collect();
        for id in &changed.dropped {
            let index = ids.iter().position(|known| known == id);
            let index = index.ok_or_else(|| InvalidChange::NotFound {
                kind: "constraint",
                name: id.chars().take(128).collect(),
            })?;
            probe.dropped.insert(index);
        }
        Ok(find(probe))
    }
}

fn find(mut probe: Probe<'_>) -> Blocking {
    let order: Vec<usize> = (0..probe.atoms.len())
        .filter(|index| !probe.dropped.contains(index))
        .collect();
    let existing = existing::existing(probe.snapshot(), &probe.pod);
    if probe.fits(&Set::new()) == Some(true) {
        let place = probe.verify(&Set::new());
        let place = place.filter(|outcome| outcome.fits);
        return Blocking {
            fits_alone: true,
            delta_per_hour: place.as_ref().map(relax::price),
            effect: place.as_ref().and_then(relax::effect),
            existing,
            truncated: probe.is_exhausted(),
            ..Blocking::default()
        };
    }
    let found = search::core(&order, &mut |relaxed: &Set| probe.fits(relaxed));
    let core = found.unwrap_or_default();
    let sets = search::corrections(
        &order,
        &core.set,
        MAX_RELAXATIONS,
        MAX_PAIRS,
        &mut |relaxed: &Set| probe.fits(relaxed),
    );
    let mut relaxations: Vec<Relaxation> = sets
        .iter()
        .filter_map(|set| relax::relaxation(&mut probe, set))
        .collect();
    relaxations.sort_by(Relaxation::order);
    relaxations.truncate(MAX_RELAXATIONS);
    let atoms = core
        .set
        .iter()
        .map(|index| with_hint(&probe, *index))
        .collect();
    Blocking {
        blocking: BlockingSet {
            exact: core.exact,
            minimal: core.minimal,
            minimum: core.minimum,
            atoms,
        },
        relaxations,
        existing,
        truncated: probe.is_exhausted(),
        ..Blocking::default()
    }
}

/// Lists the constraints of a pod's question, in the order in which they are preferred in an answer.
pub fn constraints(snapshot: &Snapshot, policy: &Policy, pod: &Arc<Pod>) -> Vec<Constraint> {
    let prepared = prepared_for(snapshot, policy, pod);
    let atoms = atom::atoms(&prepared, pod);
    let probe = Probe::new(&prepared, None, pod.clone(), atoms);
    (0..probe.atoms.len())
        .map(|index| with_hint(&probe, index))
        .collect()
}

/// Describes a constraint, with what is conspicuous about it.
fn with_hint(probe: &Probe<'_>, index: usize) -> Constraint {
    Constraint {
        hint: hint::hint(probe, &probe.atoms[index]),
        ..constraint(probe, index)
    }
}
