//! PodDisruptionBudgets: which evictions they allow.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_api::labels;

use super::Snapshot;
use crate::pod::{DoNotDisrupt, LabelSelector, Pod, do_not_disrupt};
use crate::taints::{Effect, Taint};

/// The parts of one PodDisruptionBudget that decide evictions.
#[derive(Clone, Debug)]
struct Limit {
    name: String,
    selector: LabelSelector,
    allowed: i32,
    /// The specification allows no eviction at all, whatever the status says.
    fully_blocking: bool,
    /// Pods that are not ready may be evicted anyway.
    always_allow_unhealthy: bool,
}

impl Limit {
    fn parse(budget: &PodDisruptionBudget) -> Self {
        let spec = budget.spec.as_ref();
        let is = |value: Option<&IntOrString>, blocking: &[&str]| {
            value.is_some_and(|value| match value {
                IntOrString::Int(number) => blocking.contains(&number.to_string().as_str()),
                IntOrString::String(text) => blocking.contains(&text.as_str()),
            })
        };
        let max_unavailable = spec.and_then(|spec| spec.max_unavailable.as_ref());
        let min_available = spec.and_then(|spec| spec.min_available.as_ref());
        let policy = spec.and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
        Self {
            name: budget.metadata.name.clone().unwrap_or_default(),
            selector: LabelSelector::parse(spec.and_then(|spec| spec.selector.as_ref())),
            allowed: budget
                .status
                .as_ref()
                .and_then(|status| status.disruptions_allowed)
                .unwrap_or_default(),
            fully_blocking: is(max_unavailable, &["0", "0%"]) || is(min_available, &["100%"]),
            always_allow_unhealthy: policy == Some("AlwaysAllow"),
        }
    }

    fn covers(&self, pod: &Pod) -> bool {
        (pod.ready || !self.always_allow_unhealthy) && self.selector.matches(&pod.shape.labels)
    }
}

/// Why PodDisruptionBudgets block the eviction of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PdbBlock {
    /// The budget allows no disruption now.
    Prevents {
        /// Name of the budget.
        budget: String,
    },
    /// Several budgets cover the pod, which the eviction API rejects.
    Several {
        /// Names of the budgets.
        budgets: Vec<String>,
    },
}

/// Returns why the eviction API is certain to reject a pod, by the status of the budgets. For a pod that is not ready, which
/// some policies allow to evict, and for an outdated status, returns `None`: the API server decides.
pub fn refuses(snapshot: &Snapshot, pod: &Pod) -> Option<PdbBlock> {
    if !pod.ready {
        return None;
    }
    let selects = |budget: &&Arc<PodDisruptionBudget>| {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        LabelSelector::parse(selector).matches(&pod.shape.labels)
    };
    let budgets = snapshot.pdbs_of(&pod.key.namespace);
    let covering: Vec<_> = budgets.filter(selects).collect();
    let name = |budget: &PodDisruptionBudget| budget.metadata.name.clone().unwrap_or_default();
    match covering.as_slice() {
        [] => None,
        [budget] => {
            let status = budget.status.as_ref()?;
            let current = status.observed_generation >= budget.metadata.generation;
            (current && status.disruptions_allowed.unwrap_or_default() <= 0).then(|| {
                PdbBlock::Prevents {
                    budget: name(budget),
                }
            })
        }
        several => Some(PdbBlock::Several {
            budgets: several.iter().map(|budget| name(budget)).collect(),
        }),
    }
}

/// Returns the pods that leave deleting nodes: all but those that cannot be evicted, for which no node is provisioned.
pub fn leaving_pods(snapshot: &Snapshot, now: Timestamp) -> Vec<Arc<Pod>> {
    let mut pods: Vec<Arc<Pod>> = snapshot.pods_of_deleting_nodes().cloned().collect();
    if !pods.is_empty() {
        let budgets = PdbLimits::new(snapshot);
        pods.retain(|pod| !budgets.never_moves(pod, now));
    }
    pods
}

/// All PodDisruptionBudgets of a snapshot, by namespace.
#[derive(Clone, Debug, Default)]
pub struct PdbLimits {
    by_namespace: BTreeMap<String, Vec<Limit>>,
    disrupted: Option<Taint>,
}

impl PdbLimits {
    /// Parses the PodDisruptionBudgets of a snapshot.
    pub fn new(snapshot: &Snapshot) -> Self {
        let mut by_namespace: BTreeMap<String, Vec<Limit>> = BTreeMap::new();
        for budget in snapshot.pdbs() {
            let namespace = budget.metadata.namespace.clone().unwrap_or_default();
            by_namespace
                .entry(namespace)
                .or_default()
                .push(Limit::parse(budget));
        }
        let disrupted = Taint {
            key: labels::taints::DISRUPTED.to_owned(),
            value: String::new(),
            effect: Some(Effect::NoSchedule),
        };
        Self {
            by_namespace,
            disrupted: Some(disrupted),
        }
    }

    /// Reports whether there are no PodDisruptionBudgets.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_namespace.is_empty()
    }

    fn covering<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Limit> {
        let limits = self
            .by_namespace
            .get(&pod.key.namespace)
            .into_iter()
            .flatten();
        limits.filter(|limit| limit.covers(pod))
    }

    /// Reports whether the pod would be evicted when its node is drained: it is active, does not tolerate the disruption taint, is
    /// not static, and has no `do-not-disrupt` annotation.
    pub fn is_evictable(&self, pod: &Pod, now: Timestamp) -> bool {
        let tolerates = |taint: &Taint| taint.is_tolerated_by(&pod.shape.tolerations);
        pod.is_active()
            && !pod.is_mirror()
            && !self.disrupted.as_ref().is_some_and(tolerates)
            && do_not_disrupt(pod, now) != DoNotDisrupt::Yes
    }

    /// Returns why budgets block the eviction of an evictable pod.
    pub fn blocks(&self, pod: &Pod, now: Timestamp) -> Option<PdbBlock> {
        if self.by_namespace.is_empty() || !self.is_evictable(pod, now) {
            return None;
        }
        let covering: Vec<&Limit> = self.covering(pod).collect();
        match covering.as_slice() {
            [] => None,
            [limit] => (limit.allowed <= 0).then(|| PdbBlock::Prevents {
                budget: limit.name.clone(),
            }),
            several => {
                let budgets = several.iter().map(|limit| limit.name.clone()).collect();
                Some(PdbBlock::Several { budgets })
            }
        }
    }

    /// Reports whether the pod cannot be evicted for the foreseeable future, so that no node is provisioned for it.
    pub fn never_moves(&self, pod: &Pod, now: Timestamp) -> bool {
        if do_not_disrupt(pod, now) == DoNotDisrupt::Yes {
            return true;
        }
        let mut count = 0;
        self.covering(pod).any(|limit| {
            count += 1;
            limit.fully_blocking || count > 1
        })
    }
}
