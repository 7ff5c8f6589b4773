//! PodDisruptionBudgets as their pods change: what they allow, and who takes it.

use std::collections::{BTreeMap, BTreeSet};

use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::pod::{LabelSelector, Pod};

use crate::pdb::PdbState;

/// The namespaces with PodDisruptionBudgets, and the pods in them.
#[derive(Clone, Debug, Default)]
pub(in crate::rehearse) struct Guards {
    pods: BTreeMap<String, BTreeSet<String>>,
    changed: BTreeSet<String>,
}

impl Guards {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut guards = Self::default();
        for budget in snapshot.pdbs() {
            let namespace = budget.metadata.namespace.clone().unwrap_or_default();
            guards.pods.entry(namespace).or_default();
        }
        for pod in snapshot.pods() {
            if let Some(pods) = guards.pods.get_mut(&pod.key.namespace) {
                pods.insert(pod.key.name.clone());
            }
        }
        guards
    }

    /// Notes that a pod was added, changed or removed.
    pub(super) fn touch(&mut self, namespace: &str, name: &str, exists: bool) {
        let Some(pods) = self.pods.get_mut(namespace) else {
            return;
        };
        if exists {
            pods.insert(name.to_owned());
        } else {
            pods.remove(name);
        }
        self.changed.insert(namespace.to_owned());
    }

    /// Notes that a budget of a namespace changed.
    pub(super) fn touch_namespace(&mut self, namespace: &str) {
        if self.pods.contains_key(namespace) {
            self.changed.insert(namespace.to_owned());
        }
    }

    /// Recomputes the status of the budgets whose pods have changed.
    pub(super) fn refresh(&mut self, cluster: &mut Cluster) {
        for namespace in std::mem::take(&mut self.changed) {
            let snapshot = cluster.snapshot();
            let names = self.pods.get(&namespace).into_iter().flatten();
            let pods: Vec<&Pod> = names
                .filter_map(|name| snapshot.pod(&namespace, name))
                .map(AsRef::as_ref)
                .filter(|pod| pod.is_active())
                .collect();
            for budget in snapshot.pdbs_of(&namespace) {
                cluster.apply_pdb(&counted(budget, &namespace, &pods));
            }
        }
    }
}

/// Returns a budget whose status counts these pods.
fn counted(budget: &PodDisruptionBudget, namespace: &str, pods: &[&Pod]) -> PodDisruptionBudget {
    let mut budget = budget.clone();
    let mut status = budget.status.take().unwrap_or_default();
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = LabelSelector::parse(selector);
    let selected = || {
        pods.iter()
            .filter(|pod| selector.matches(&pod.shape.labels))
    };
    let healthy = selected().filter(|pod| pod.ready).count();
    let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let state = PdbState::with_pods(&budget, namespace, || selected().count());
    status.expected_pods = Some(state.expected);
    status.current_healthy = Some(healthy);
    status.desired_healthy = Some(state.desired);
    status.disruptions_allowed = Some(healthy.saturating_sub(state.desired).max(0));
    status.observed_generation = budget.metadata.generation;
    budget.status = Some(status);
    budget
}

/// Returns whether budgets allow the eviction of a pod now; if they do, it is counted.
pub(super) fn take(cluster: &mut Cluster, pod: &Pod) -> bool {
    let snapshot = cluster.snapshot();
    let covering: Vec<_> = snapshot
        .pdbs_of(&pod.key.namespace)
        .filter(|budget| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            LabelSelector::parse(selector).matches(&pod.shape.labels)
        })
        .collect();
    match covering.as_slice() {
        [] => true,
        [budget] => {
            let status = budget.status.as_ref();
            let allowed = status.and_then(|status| status.disruptions_allowed);
            let allowed = allowed.unwrap_or_default();
            // A pod that is not ready does not count as available.
            if !pod.ready {
                let healthy = status.and_then(|status| status.current_healthy);
                let desired = status.and_then(|status| status.desired_healthy);
                let spec = budget.spec.as_ref();
                let always = spec.and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref())
                    == Some("AlwaysAllow");
                return always || healthy.unwrap_or_default() >= desired.unwrap_or_default();
            }
            if allowed <= 0 {
                return false;
            }
            let mut taken = PodDisruptionBudget::clone(budget);
            if let Some(status) = &mut taken.status {
                status.disruptions_allowed = Some(allowed - 1);
                let healthy = status.current_healthy.unwrap_or_default();
                status.current_healthy = Some(healthy.saturating_sub(1));
            }
            cluster.apply_pdb(&taken);
            true
        }
        // The eviction API refuses a pod with several.
        _ => false,
    }
}
