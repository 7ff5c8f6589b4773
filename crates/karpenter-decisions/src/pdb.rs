//! Whether a PodDisruptionBudget blocks for now, or can never allow an eviction.

use karpenter_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use karpenter_core::cluster::Snapshot;
use karpenter_core::pod::LabelSelector;
use serde::Serialize;

/// What a PodDisruptionBudget demands, and what its pods allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PdbState {
    pub namespace: String,
    pub name: String,
    /// `minAvailable`, if it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available: Option<String>,
    /// `maxUnavailable`, if it is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<String>,
    /// The number of evictions allowed now.
    pub allowed: i32,
    /// The number of pods that the budget expects.
    pub expected: i32,
    /// The number of healthy pods.
    pub healthy: i32,
    /// The number of pods that must be healthy.
    pub desired: i32,
    /// No eviction is ever allowed, even with all expected pods healthy.
    pub impossible: bool,
}

impl PdbState {
    /// Reads a PodDisruptionBudget; `None` if it does not exist.
    pub fn of(snapshot: &Snapshot, namespace: &str, name: &str) -> Option<Self> {
        let budget = find(snapshot, namespace, name)?;
        let counted = || {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selector = LabelSelector::parse(selector);
            let covered = snapshot.pods().filter(|pod| {
                pod.key.namespace == namespace
                    && pod.is_active()
                    && selector.matches(&pod.shape.labels)
            });
            covered.count()
        };
        Some(Self::with_pods(budget, namespace, counted))
    }

    /// Reads a PodDisruptionBudget of a namespace. `selected` counts the active pods that it selects; it is called if the status
    /// does not have the number of expected pods.
    pub(crate) fn with_pods(
        budget: &PodDisruptionBudget,
        namespace: &str,
        selected: impl FnOnce() -> usize,
    ) -> Self {
        let (spec, status) = (budget.spec.as_ref(), budget.status.as_ref());
        let status = status.filter(|_| is_current(budget));
        // The pods that their controllers want, of which some may not exist.
        let expected = status.and_then(|status| status.expected_pods);
        let expected = expected
            .filter(|pods| *pods > 0)
            .unwrap_or_else(|| i32::try_from(selected()).unwrap_or(i32::MAX));
        let min_available = spec.and_then(|spec| spec.min_available.as_ref());
        let max_unavailable = spec.and_then(|spec| spec.max_unavailable.as_ref());
        let desired = match (min_available, max_unavailable) {
            (Some(min), _) => scaled(min, expected),
            (None, Some(max)) => {
                let left = |max: i32| expected.saturating_sub(max).max(0);
                scaled(max, expected).map(left)
            }
            (None, None) => None,
        };
        // The API server admits no other values.
        let desired = desired.unwrap_or_default();
        Self {
            namespace: namespace.to_owned(),
            name: budget.metadata.name.clone().unwrap_or_default(),
            min_available: min_available.map(text),
            max_unavailable: max_unavailable.map(text),
            allowed: status
                .and_then(|status| status.disruptions_allowed)
                .unwrap_or_default(),
            healthy: status
                .and_then(|status| status.current_healthy)
                .unwrap_or_default(),
            expected,
            desired,
            impossible: expected <= desired,
        }
    }

    /// Returns what it demands: `minAvailable 1`.
    pub fn rule(&self) -> String {
        match (&self.min_available, &self.max_unavailable) {
            (Some(min), _) => format!("minAvailable {min}"),
            (None, Some(max)) => format!("maxUnavailable {max}"),
            (None, None) => "no demand".to_owned(),
        }
    }

    /// Returns the smallest number of replicas with which an eviction is allowed once all are healthy; `None` if none is.
    pub fn replicas_needed(&self) -> Option<i32> {
        let demand = self.min_available.as_deref()?;
        let Some(percent) = demand.strip_suffix('%') else {
            return demand.parse::<i32>().ok()?.checked_add(1);
        };
        let percent: i32 = percent.parse().ok().filter(|percent| *percent < 100)?;
        let allows = |pods: &i32| *pods > share(percent, *pods);
        (self.expected.max(1)..=200).find(allows)
    }
}

impl std::fmt::Display for PdbState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            namespace,
            name,
            allowed,
            expected,
            healthy,
            ..
        } = self;
        write!(
            f,
            "PodDisruptionBudget {namespace}/{name} allows {allowed} ({}",
            self.rule()
        )?;
        let pods = if *expected == 1 { "pod" } else { "pods" };
        write!(f, " of {expected} {pods}, {healthy} healthy")?;
        if self.impossible {
            f.write_str(": can never allow one")?;
        }
        f.write_str(")")
    }
}

/// Reports whether the status is that of the present specification.
pub(crate) fn is_current(budget: &PodDisruptionBudget) -> bool {
    let observed = budget.status.as_ref();
    let observed = observed.and_then(|status| status.observed_generation);
    match budget.metadata.generation {
        None => budget.status.is_some(),
        Some(generation) => observed.is_some_and(|observed| observed >= generation),
    }
}

pub(crate) fn find<'a>(
    snapshot: &'a Snapshot,
    namespace: &str,
    name: &str,
) -> Option<&'a PodDisruptionBudget> {
    let mut budgets = snapshot.pdbs_of(namespace);
    let budget = budgets.find(|budget| budget.metadata.name.as_deref() == Some(name));
    budget.map(AsRef::as_ref)
}

fn text(value: &IntOrString) -> String {
    match value {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(text) => text.clone(),
    }
}

fn share(percent: i32, of: i32) -> i32 {
    let share = (i64::from(percent) * i64::from(of) + 99).div_euclid(100);
    i32::try_from(share).unwrap_or(i32::MAX)
}

/// Returns a number of pods; a percentage is rounded up, as the disruption controller does.
fn scaled(value: &IntOrString, of: i32) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%')?.parse().ok()?;
            Some(share(percent, of))
        }
    }
}
