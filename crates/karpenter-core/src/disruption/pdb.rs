//! What PodDisruptionBudgets allow.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::policy::v1::PodDisruptionBudget, apimachinery::pkg::util::intstr::IntOrString,
};
use karpenter_api::labels;

use crate::{
    cluster::Snapshot,
    pod::{DoNotDisrupt, LabelSelector, Pod, do_not_disrupt},
    taints::{Effect, Taint},
};

/// One budget, as far as evictions ask.
#[derive(Clone, Debug)]
struct Limit {
    name: String,
    selector: LabelSelector,
    allowed: i32,
    /// No pod may ever be evicted, whatever the status says.
    fully_blocking: bool,
    /// Pods that are not ready may go anyway.
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

/// Why a budget keeps a pod where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PdbBlock {
    /// It allows no disruption now.
    Prevents {
        /// Name of the budget.
        budget: String,
    },
    /// Two budgets cover the pod, which the eviction API refuses.
    Several {
        /// Names of the budgets.
        budgets: Vec<String>,
    },
}

/// Why the eviction API is sure to refuse a pod, as far as the budgets' status tells. A pod that is not ready may go under
/// some policies, and a status that lags behind its budget says nothing: those are for the API to decide.
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

/// Pods of machines that are going away, but for those that are sure to stay there: no machine is bought for them.
pub fn leaving_pods(snapshot: &Snapshot, now: Timestamp) -> Vec<Arc<Pod>> {
    let mut pods: Vec<Arc<Pod>> = snapshot.pods_of_deleting_nodes().cloned().collect();
    if !pods.is_empty() {
        let budgets = PdbLimits::new(snapshot);
        pods.retain(|pod| !budgets.never_moves(pod, now));
    }
    pods
}

/// All budgets of a snapshot, by namespace.
#[derive(Clone, Debug, Default)]
pub struct PdbLimits {
    by_namespace: BTreeMap<String, Vec<Limit>>,
    disrupted: Option<Taint>,
}

impl PdbLimits {
    /// The budgets of a snapshot.
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

    fn covering<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Limit> {
        let limits = self
            .by_namespace
            .get(&pod.key.namespace)
            .into_iter()
            .flatten();
        limits.filter(|limit| limit.covers(pod))
    }

    /// Whether the pod would be evicted when its machine is drained: it is active, does not tolerate the disruption, is not
    /// static, and does not refuse.
    pub fn is_evictable(&self, pod: &Pod, now: Timestamp) -> bool {
        let tolerates = |taint: &Taint| taint.is_tolerated_by(&pod.shape.tolerations);
        pod.is_active()
            && !pod.is_mirror()
            && !self.disrupted.as_ref().is_some_and(tolerates)
            && do_not_disrupt(pod, now) != DoNotDisrupt::Yes
    }

    /// What keeps an evictable pod where it is.
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

    /// Whether the pod cannot be moved in the foreseeable future, so that no machine needs to be bought for it.
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
