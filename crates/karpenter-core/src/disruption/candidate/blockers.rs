//! What blocks the disruption of a node: all blockers, in the order of upstream's checks, of which a pass uses the first.

use std::sync::Arc;

use jiff::Timestamp;

use crate::cluster::pdb::{PdbBlock, PdbLimits};
use crate::cluster::{NodeState, Snapshot};
use crate::disruption::candidate::{NotDisruptable, Surroundings};
use crate::pod::{DoNotDisrupt, Pod, do_not_disrupt};

/// Returns everything that blocks the disruption of a node, not only the first blocker: each gate of the node, and each pod with
/// its annotation or its PodDisruptionBudgets. Empty for a candidate.
///
/// Meant for questions about single nodes; a pass stops at the first blocker. Without a NodeClaim, a Node or a NodePool, nothing
/// else is checked.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_core::disruption::{NotDisruptable, Surroundings, blockers};
/// use serde_json::json;
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// cluster.apply_node(&serde_json::from_value(json!({ "metadata": { "name": "by-hand" } }))?);
/// let snapshot = cluster.snapshot();
/// let found = snapshot.node("by-hand").map(|node| blockers(&snapshot, node, &Surroundings::default(), Timestamp::UNIX_EPOCH));
/// assert_eq!(found, Some(vec![NotDisruptable::NotManaged]));
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn blockers(
    snapshot: &Snapshot,
    node: &NodeState,
    surroundings: &Surroundings,
    now: Timestamp,
) -> Vec<NotDisruptable> {
    all(snapshot, node, surroundings, &PdbLimits::new(snapshot), now)
}

/// Like [`blockers`], for many nodes of one snapshot.
pub(in crate::disruption) fn all(
    snapshot: &Snapshot,
    node: &NodeState,
    surroundings: &Surroundings,
    pdbs: &PdbLimits,
    now: Timestamp,
) -> Vec<NotDisruptable> {
    let has_types = |pool: &str| {
        let types = snapshot.instance_types(pool);
        types.is_some_and(|types| types.as_ref().is_ok_and(|types| !types.is_empty()))
    };
    let mut all: Vec<NotDisruptable> =
        of_node(snapshot, node, surroundings, has_types, now).collect();
    if let Some(node) = &node.node {
        all.extend(of_pods(snapshot.pods_on(&node.name), pdbs, now));
    }
    all
}

/// Returns what blocks a node apart from its pods. `has_types` reports whether the instance types of a NodePool are known.
pub(in crate::disruption) fn of_node(
    snapshot: &Snapshot,
    state: &NodeState,
    surroundings: &Surroundings,
    has_types: impl Fn(&str) -> bool,
    now: Timestamp,
) -> impl Iterator<Item = NotDisruptable> {
    let in_flight = !surroundings.in_flight.is_empty()
        && state
            .claim_name()
            .is_some_and(|name| surroundings.in_flight.contains(name));
    let (managed, joined) = (state.claim.is_some(), state.node.is_some());
    let no_pool = || match state.node_pool() {
        None => Some(NotDisruptable::NoNodePoolLabel),
        Some(pool) => {
            let usable = snapshot.node_pool(pool).is_some() && has_types(pool);
            (!usable).then(|| NotDisruptable::NoNodePool {
                node_pool: pool.to_owned(),
            })
        }
    };
    let blocks = |blocks: bool, why: NotDisruptable| blocks.then_some(why);
    let joined_and = |further: bool| managed && joined && further;
    [
        blocks(in_flight, NotDisruptable::InFlight),
        blocks(!managed, NotDisruptable::NotManaged),
        blocks(managed && !joined, NotDisruptable::NoNode),
        blocks(
            joined_and(!state.is_initialized()),
            NotDisruptable::NotInitialized,
        ),
        blocks(joined_and(state.is_deleting()), NotDisruptable::Deleting),
        blocks(
            joined_and(state.is_nominated(now)),
            NotDisruptable::Nominated,
        ),
        blocks(
            joined_and(state.facts().refuses_disruption),
            NotDisruptable::NodeDoNotDisrupt,
        ),
        joined_and(true).then(no_pool).flatten(),
    ]
    .into_iter()
    .flatten()
}

/// Returns what blocks the eviction of pods: annotations first, then pods that several PodDisruptionBudgets cover, then pods
/// whose budget allows no eviction.
pub(in crate::disruption) fn of_pods<'a>(
    pods: &'a [Arc<Pod>],
    pdbs: &'a PdbLimits,
    now: Timestamp,
) -> impl Iterator<Item = NotDisruptable> + 'a {
    let refuses =
        move |pod: &&Arc<Pod>| pod.is_active() && do_not_disrupt(pod, now) == DoNotDisrupt::Yes;
    let refusing = pods
        .iter()
        .filter(refuses)
        .map(|pod| NotDisruptable::PodDoNotDisrupt {
            pod: pod.key.clone(),
        });
    // Budgets are matched only if no annotation blocks the node already.
    let by_budgets = std::iter::once_with(move || {
        let (mut several, mut single) = (Vec::new(), Vec::new());
        for pod in pods {
            let key = || pod.key.clone();
            match pdbs.blocks(pod, now) {
                None => {}
                Some(PdbBlock::Several { budgets }) => {
                    several.push(NotDisruptable::SeveralPdbs {
                        pod: key(),
                        budgets,
                    });
                }
                Some(PdbBlock::Prevents { budget }) => {
                    single.push(NotDisruptable::Pdb { pod: key(), budget });
                }
            }
        }
        several.into_iter().chain(single)
    });
    refusing.chain(by_budgets.flatten())
}
