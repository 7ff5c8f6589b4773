//! The disruption controller: computes the allowed disruptions of PodDisruptionBudgets.
//!
//! UPSTREAM: pkg/controller/disruption

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::Api;
use kube::api::PostParams;
use rustc_hash::FxHashMap;

use super::cache::{Change, Key, PodRecord, api, controller_of};
use super::driver::{Context, Controller, Next, after};
use super::workloads::pods::scaled;
use crate::selector::{Labels, Selector};

/// How long an eviction counts as in progress although the pod is not terminating yet.
const DISRUPTED_FOR: Duration = Duration::from_secs(120);

/// Returns the expected number of pods and how many of them must stay healthy. Pure.
fn expectation(
    budget: &PodDisruptionBudget,
    pods: i32,
    scale: Result<i32, String>,
) -> Result<(i32, i32), String> {
    let spec = budget.spec.clone().unwrap_or_default();
    if let Some(unavailable) = spec.max_unavailable {
        let expected = scale?;
        let desired = (expected - scaled(&unavailable, expected, true)).max(0);
        return Ok((expected, desired));
    }
    match spec.min_available {
        Some(IntOrString::Int(minimum)) => Ok((pods, minimum)),
        Some(percent) => {
            let expected = scale?;
            Ok((expected, scaled(&percent, expected, true)))
        }
        None => Ok((pods, 0)),
    }
}

/// Returns the evictions in progress, and when the oldest of them expires. Pure.
fn evictions_in_progress(
    known: &BTreeMap<String, Time>,
    pods: &[Arc<PodRecord>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<Timestamp>) {
    let mut left = BTreeMap::new();
    let mut next: Option<Timestamp> = None;
    for pod in pods.iter().filter(|p| !p.is_terminating()) {
        let Some(since) = known.get(pod.name()) else {
            continue;
        };
        let at = after(since.0, DISRUPTED_FOR);
        if at > now {
            left.insert(pod.name().to_owned(), since.clone());
            next = Some(next.map_or(at, |n| n.min(at)));
        }
    }
    (left, next)
}

fn condition(
    budget: &PodDisruptionBudget,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Condition {
    let state = if reason == "SufficientPods" {
        "True"
    } else {
        "False"
    };
    let known = budget
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_ref())
        .and_then(|c| c.iter().find(|c| c.type_ == "DisruptionAllowed"));
    let since = match known {
        Some(c) if c.status == state => c.last_transition_time.clone(),
        _ => Time(now),
    };
    Condition {
        type_: "DisruptionAllowed".to_owned(),
        status: state.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: budget.metadata.generation,
        last_transition_time: since,
    }
}

pub(crate) struct Budgets {
    context: Context,
}

impl Budgets {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }

    /// Enqueues the budgets in a workload's namespace.
    fn enqueue_budgets_in_namespace(&self, workload: &Key, keys: &mut Vec<Key>) {
        let budgets = self.context.cache.budgets.in_namespace(&workload.namespace);
        keys.extend(budgets.iter().map(|b| Key::of(&b.metadata)));
    }

    /// Returns the total number of replicas that the controllers of `pods` want.
    fn scale(&self, pods: &[Arc<PodRecord>]) -> Result<i32, String> {
        let cache = &self.context.cache;
        let mut by_controller: FxHashMap<String, i32> = FxHashMap::default();
        for pod in pods {
            let Some(owner) = pod.controller() else {
                return Err(format!("found no controllers for pod \"{}\"", pod.name()));
            };
            let key = Key::new(pod.namespace(), &owner.name);
            let found = match owner.kind.as_str() {
                "ReplicaSet" => cache.replica_sets.get(&key).map(|set| {
                    let deployment = controller_of(&set.metadata)
                        .filter(|o| o.kind == "Deployment")
                        .and_then(|o| cache.deployments.get(&Key::new(pod.namespace(), &o.name)));
                    match deployment {
                        Some(d) => (d.metadata.uid.clone(), d.spec.as_ref().map(|s| s.replicas)),
                        None => (
                            set.metadata.uid.clone(),
                            set.spec.as_ref().map(|s| s.replicas),
                        ),
                    }
                }),
                "StatefulSet" => {
                    let set = cache.stateful_sets.get(&key);
                    set.map(|s| (s.metadata.uid.clone(), s.spec.as_ref().map(|s| s.replicas)))
                }
                kind => return Err(format!("{kind} does not implement the scale subresource")),
            };
            if let Some((uid, replicas)) = found {
                by_controller.insert(uid.unwrap_or_default(), replicas.flatten().unwrap_or(1));
            }
        }
        Ok(by_controller.into_values().sum())
    }

    fn status(
        &self,
        budget: &PodDisruptionBudget,
        pods: &[Arc<PodRecord>],
        now: Timestamp,
    ) -> (PodDisruptionBudgetStatus, Option<Timestamp>) {
        let known = budget.status.clone().unwrap_or_default();
        let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        let (expected, desired) = match expectation(budget, count, self.scale(pods)) {
            Ok(found) => found,
            Err(why) => {
                let failed = PodDisruptionBudgetStatus {
                    disruptions_allowed: Some(0),
                    observed_generation: budget.metadata.generation,
                    conditions: Some(vec![condition(budget, "SyncFailed", &why, now)]),
                    ..known
                };
                return (failed, None);
            }
        };
        let disrupted = known.disrupted_pods.clone().unwrap_or_default();
        let (disrupted, next) = evictions_in_progress(&disrupted, pods, now);
        let healthy = pods
            .iter()
            .filter(|p| p.is_ready() && !p.is_terminating() && !disrupted.contains_key(p.name()))
            .count();
        let healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
        let allowed = if expected <= 0 {
            0
        } else {
            (healthy - desired).max(0)
        };
        let reason = if allowed > 0 {
            "SufficientPods"
        } else {
            "InsufficientPods"
        };
        let status = PodDisruptionBudgetStatus {
            current_healthy: Some(healthy),
            desired_healthy: Some(desired),
            disruptions_allowed: Some(allowed),
            expected_pods: Some(expected),
            disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
            observed_generation: budget.metadata.generation,
            conditions: Some(vec![condition(budget, reason, "", now)]),
        };
        (status, next)
    }
}

fn covers(budget: &PodDisruptionBudget, labels: Option<&Labels>) -> bool {
    let empty = Labels::new();
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    Selector::new(selector).matches(labels.unwrap_or(&empty))
}

impl Controller for Budgets {
    const NAME: &'static str = "disruption";

    fn keys(&self, change: &Change, keys: &mut Vec<Key>) {
        match change {
            Change::PodDisruptionBudget(diff) => keys.push(diff.key()),
            Change::Pod(diff) => {
                let Some(pod) = diff.latest() else {
                    return;
                };
                for budget in self.context.cache.budgets.in_namespace(pod.namespace()) {
                    let either = [&diff.old, &diff.new]
                        .into_iter()
                        .flatten()
                        .any(|p| covers(&budget, p.meta.labels.as_ref()));
                    if either {
                        keys.push(Key::of(&budget.metadata));
                    }
                }
            }
            Change::ReplicaSet(diff) => self.enqueue_budgets_in_namespace(&diff.key(), keys),
            Change::Deployment(diff) => self.enqueue_budgets_in_namespace(&diff.key(), keys),
            Change::StatefulSet(diff) => self.enqueue_budgets_in_namespace(&diff.key(), keys),
            _ => {}
        }
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, kube::Error> {
        let Some(budget) = self.context.cache.budgets.get(key) else {
            return Ok(Next::Wait);
        };
        let now = self.context.clock.now();
        let pods: Vec<_> = self
            .context
            .cache
            .pods_in(&key.namespace)
            .into_iter()
            .filter(|p| !p.is_terminal() && covers(&budget, p.meta.labels.as_ref()))
            .collect();
        let (status, next) = self.status(&budget, &pods, now);
        if budget.status.as_ref() != Some(&status) {
            let budgets: Api<PodDisruptionBudget> = api(&self.context.client(), key);
            let mut changed = (*budget).clone();
            changed.status = Some(status);
            // With the resource version, because the API server counts evictions in the same status.
            budgets
                .replace_status(&key.name, &PostParams::default(), &changed)
                .await?;
        }
        Ok(Next::at(now, next))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn budget(spec: serde_json::Value) -> PodDisruptionBudget {
        serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": spec})).unwrap()
    }

    #[test]
    fn minima_and_maxima_scale_as_upstream() {
        assert_eq!(
            expectation(&budget(json!({"minAvailable": 2})), 5, Err(String::new())),
            Ok((5, 2))
        );
        assert_eq!(
            expectation(&budget(json!({"minAvailable": "50%"})), 3, Ok(7)),
            Ok((7, 4))
        );
        assert_eq!(
            expectation(&budget(json!({"maxUnavailable": 1})), 3, Ok(7)),
            Ok((7, 6))
        );
        assert_eq!(
            expectation(&budget(json!({"maxUnavailable": "30%"})), 3, Ok(7)),
            Ok((7, 4))
        );
        assert_eq!(
            expectation(&budget(json!({"maxUnavailable": 9})), 3, Ok(7)),
            Ok((7, 0))
        );
        assert!(
            expectation(
                &budget(json!({"maxUnavailable": 1})),
                3,
                Err("no".to_owned())
            )
            .is_err()
        );
    }
}
