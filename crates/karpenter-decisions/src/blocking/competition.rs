//! The pods that take the place of a pod that would fit alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use karpenter_core::pod::{Pod, PodKey};
use karpenter_core::resources::{Resources, plain};
use karpenter_core::schedule::{Cancel, Plan, PodSet, Query, schedule};
use serde::Serialize;

use super::answer::Effect;
use super::prepared::Prepared;
use crate::workload::Workload;

/// Workloads that are named.
const NAMED: usize = 3;

/// The pods that were placed before a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Competition {
    /// The workloads with the largest requests, the largest first.
    pub takers: Vec<Taker>,
    /// The number of further workloads.
    pub more: usize,
    /// Without the pods of the named workloads the pod is scheduled: the whole batch was run once more.
    pub exact: bool,
}

/// A workload whose pods were placed before a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taker {
    /// The owner, as `Kind namespace/name`.
    pub owner: String,
    pub pods: usize,
    /// Their requests, as quantities.
    pub requests: BTreeMap<String, String>,
}

/// Schedules the whole batch and names the pods that take the place of `pod`; `alone` is where it would go alone. `None` if the
/// batch places the pod as well, or the search was cut short.
pub(super) fn competition(
    prepared: &Prepared,
    cancel: Option<Cancel>,
    pod: &Arc<Pod>,
    alone: Option<&Effect>,
) -> Option<Competition> {
    let snapshot = &prepared.snapshot;
    let mut query = Query::new(PodSet::Waiting);
    query.cancel = cancel;
    let plan = decided(prepared.solver.solve(&query))?;
    if is_placed(&plan, &pod.key) {
        return None;
    }
    let mut placed: Vec<&PodKey> = match alone {
        Some(Effect::Node(node)) => {
            let on_node = plan.existing.iter().filter(|place| place.node == *node);
            on_node.map(|place| &place.pod).collect()
        }
        Some(Effect::NewNode(new)) => {
            let of_pool = plan.new_node_claims.iter();
            let of_pool = of_pool.filter(|claim| claim.node_pool == new.node_pool);
            of_pool.flat_map(|claim| &claim.pods).collect()
        }
        None => Vec::new(),
    };
    if placed.is_empty() {
        let existing = plan.existing.iter().map(|place| &place.pod);
        let new = plan.new_node_claims.iter().flat_map(|claim| &claim.pods);
        placed = existing.chain(new).collect();
    }
    let mut takers: BTreeMap<Workload, (Resources, Vec<Arc<Pod>>)> = BTreeMap::new();
    for key in placed {
        if let Some(pod) = snapshot.pod(&key.namespace, &key.name) {
            let (requests, pods) = takers.entry(Workload::of(pod)).or_default();
            requests.add_assign(&pod.shape.requests);
            pods.push(pod.clone());
        }
    }
    let mut takers: Vec<_> = takers.into_iter().collect();
    let size = |requests: &Resources| (requests.get("cpu"), requests.get("memory"));
    takers.sort_by_key(|(_, (requests, _))| std::cmp::Reverse(size(requests)));
    let more = takers.len().saturating_sub(NAMED);
    takers.truncate(NAMED);
    let taken: Vec<Arc<Pod>> = takers
        .iter()
        .flat_map(|(_, (_, pods))| pods.iter().cloned())
        .filter(|other| other.key != pod.key)
        .collect();
    let others = snapshot.without_pods(&taken);
    let without = decided(schedule(&others, &prepared.policy, &query))?;
    let named = takers.iter().map(|(owner, (requests, pods))| Taker {
        owner: owner.to_string(),
        pods: pods.len(),
        requests: requests
            .iter()
            .filter(|(name, _)| *name != "pods")
            .map(|(name, amount)| (name.to_owned(), plain(name, amount)))
            .collect(),
    });
    Some(Competition {
        takers: named.collect(),
        more,
        exact: is_placed(&without, &pod.key),
    })
}

/// Returns the plan unless the search was cut short.
fn decided(plan: Plan) -> Option<Plan> {
    plan.undecided.is_empty().then_some(plan)
}

fn is_placed(plan: &Plan, pod: &PodKey) -> bool {
    let new = plan.new_node_claims.iter().flat_map(|claim| &claim.pods);
    new.chain(plan.existing.iter().map(|place| &place.pod))
        .any(|placed| placed == pod)
}
