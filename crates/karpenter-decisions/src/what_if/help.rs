//! What would help against a blocker, and when it ends by itself.

use jiff::Timestamp;
use karpenter_api::budget;
use karpenter_api::cron::Schedule;
use karpenter_api::labels::annotations;
use karpenter_api::v1::{ConsolidationPolicy, DisruptionReason, NodePool};
use karpenter_core::cluster::NodeState;
use karpenter_core::disruption::{
    Assessor, Budgets, NotConsolidatable, NotDisruptable, VerdictKind,
};
use karpenter_core::pod::protected_until;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Savings, WhatIf, WouldBe, distinct};
use crate::blocking::Patch;
use crate::change::{self, Change};
use crate::pdb::{self, PdbState};
use crate::workload::Workload;

/// The annotations that keep a node from being disrupted or consolidated.
pub(super) const REFUSALS: [&str; 2] =
    [annotations::DO_NOT_DISRUPT, annotations::DO_NOT_CONSOLIDATE];

/// Ends of budgets' windows that are tried.
const MAX_WINDOWS: usize = 16;

/// A change that helps against a blocker.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Help {
    pub text: String,
    /// The change as a patch, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<Patch>,
    /// What deleting or replacing the node would then save, the other blockers released; absent if the node would be kept, or
    /// this was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub savings_per_hour: Option<Savings>,
    /// It was run through the engine in this form, the other blockers released.
    pub exact: bool,
}

/// Returns what would help against a blocker. `all` releases all blockers.
pub(super) fn help(
    asked: &WhatIf,
    node: &NodeState,
    why: &VerdictKind,
    pdb: Option<&PdbState>,
    all: &[Change],
) -> Vec<Help> {
    let released = super::releases(node, why);
    let others: Vec<Change> = distinct(all.iter().filter(|change| !released.contains(change)));
    let advice = advice(asked, node, why, pdb).into_iter();
    let help = advice.map(
        |Advice {
             text,
             patch,
             simulated,
         }| {
            let run = simulated.and_then(|change| run(asked, node, &others, change));
            Help {
                text,
                patch,
                exact: run.is_some(),
                savings_per_hour: run.flatten(),
            }
        },
    );
    help.collect()
}

/// Returns what the node's command would save after a change; `None` if it was not run.
fn run(
    asked: &WhatIf,
    node: &NodeState,
    others: &[Change],
    change: Change,
) -> Option<Option<Savings>> {
    let changes = [others, &[change]].concat();
    let changed = change::apply(&changes, &asked.snapshot, &asked.request).ok()?;
    if asked.is_cancelled() || changed.places {
        return None;
    }
    let after = asked.of(changed);
    let assessed = Assessor::new(after.simulator, &after.request).assess(node.name())?;
    if asked.is_cancelled() {
        return None;
    }
    let command = assessed.ok();
    Some(command.map(|command| WouldBe::of(&command).savings_per_hour))
}

/// Applies a JSON merge patch to the fields of an object.
fn merge(object: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().into_iter().flatten() {
        object[key.as_str()] = value.clone();
    }
}

struct Advice {
    text: String,
    patch: Option<Patch>,
    /// The change that is run; without one, the advice concerns pods that do not exist yet.
    simulated: Option<Change>,
}

impl Advice {
    fn new(text: String, patch: Option<Patch>, simulated: Option<Change>) -> Self {
        Self {
            text,
            patch,
            simulated,
        }
    }
}

fn advice(
    asked: &WhatIf,
    node: &NodeState,
    why: &VerdictKind,
    pdb: Option<&PdbState>,
) -> Vec<Advice> {
    let by_change = |text: String, patch: Option<Patch>| {
        let change = super::releases(node, why).into_iter().next();
        vec![Advice::new(text, patch, change)]
    };
    let without = |target: String, key: &str| {
        Patch::merge(
            target,
            json!({ "metadata": { "annotations": { key: null } } }),
        )
    };
    let pool = node.node_pool().unwrap_or_default();
    match why {
        VerdictKind::NotDisruptable(NotDisruptable::Pdb { pod, budget }) => {
            let pod = asked.snapshot.pod(&pod.namespace, &pod.name);
            let owner = pod.map(|pod| Workload::of(pod));
            pdb.map(|pdb| of_pdb(asked, pdb, budget, owner))
                .unwrap_or_default()
        }
        VerdictKind::NotDisruptable(NotDisruptable::SeveralPdbs { pod, budgets }) => {
            let text = format!(
                "namespace {}: one PodDisruptionBudget instead of {}",
                pod.namespace,
                budgets.join(", ")
            );
            vec![Advice::new(text, None, None)]
        }
        VerdictKind::NotDisruptable(NotDisruptable::PodDoNotDisrupt { pod }) => {
            let found = asked.snapshot.pod(&pod.namespace, &pod.name);
            let key = match found {
                Some(pod) if pod.annotations.contains_key(annotations::DO_NOT_DISRUPT) => {
                    annotations::DO_NOT_DISRUPT
                }
                _ => annotations::DO_NOT_EVICT,
            };
            let text = format!("pod {pod}: remove annotation {key}");
            let target = format!("Pod/{}/{}", pod.namespace, pod.name);
            by_change(text, Some(without(target, key)))
        }
        VerdictKind::NotDisruptable(NotDisruptable::NodeDoNotDisrupt)
        | VerdictKind::Kept(NotConsolidatable::NodeDoNotConsolidate) => {
            let key = match why {
                VerdictKind::Kept(_) => annotations::DO_NOT_CONSOLIDATE,
                _ => annotations::DO_NOT_DISRUPT,
            };
            let text = format!("node {}: remove annotation {key}", node.name());
            by_change(text, Some(without(format!("Node/{}", node.name()), key)))
        }
        VerdictKind::Kept(NotConsolidatable::Paused { .. }) => {
            let text = format!("NodePool {pool}: kubectl karpenter resume {pool}");
            let target = format!("NodePool/{pool}");
            by_change(text, Some(without(target, annotations::PAUSED)))
        }
        VerdictKind::Kept(
            NotConsolidatable::WhenEmpty { .. } | NotConsolidatable::Score { .. },
        ) => {
            let policy = ConsolidationPolicy::WhenEmptyOrUnderutilized;
            let value = json!({ "spec": { "disruption": { "consolidationPolicy": policy } } });
            by_change(
                format!("NodePool {pool}: consolidationPolicy {policy}"),
                Some(Patch::of_pool(pool, "merge", value)),
            )
        }
        VerdictKind::Kept(NotConsolidatable::Budget { .. }) => {
            budget_edit(asked, node).into_iter().collect()
        }
        VerdictKind::Kept(NotConsolidatable::SpotToSpotDisabled) => by_change(
            "Karpenter: feature gate SpotToSpotConsolidation=true".to_owned(),
            None,
        ),
        _ => Vec::new(),
    }
}

fn of_pdb(asked: &WhatIf, state: &PdbState, name: &str, owner: Option<Workload>) -> Vec<Advice> {
    let of = format!("PodDisruptionBudget {}/{name}", state.namespace);
    // With this specification it allows one eviction.
    let with = |spec: &Value| {
        let budget = pdb::find(&asked.snapshot, &state.namespace, name)?;
        let mut value = serde_json::to_value(budget).ok()?;
        merge(&mut value["spec"], spec);
        value["status"]["disruptionsAllowed"] = json!(1);
        let budget = serde_json::from_value(value).ok()?;
        Some(Change::Pdb(Box::new(budget)))
    };
    if !state.impossible {
        let (healthy, all) = (state.desired.saturating_add(1), state.expected);
        let text = format!("wait until {healthy} of {all} pods of {of} are healthy");
        return vec![Advice::new(text, None, with(&json!({})))];
    }
    let mut advice = Vec::new();
    let scalable = owner.and_then(|owner| Some((owner.target()?, owner)));
    if let (Some(replicas), Some((target, owner))) = (state.replicas_needed(), scalable) {
        let text = format!("{owner}: replicas {} -> {replicas}", state.expected);
        let patch = Patch::merge(target, json!({ "spec": { "replicas": replicas } }));
        advice.push(Advice::new(text, Some(patch), None));
    }
    let spec = json!({ "minAvailable": null, "maxUnavailable": 1 });
    let change = with(&spec);
    let target = format!("PodDisruptionBudget/{}/{name}", state.namespace);
    let patch = Patch::merge(target, json!({ "spec": spec }));
    advice.push(Advice::new(
        format!("{of}: maxUnavailable 1"),
        Some(patch),
        change,
    ));
    advice
}

fn budget_reason(asked: &WhatIf, node: &NodeState) -> DisruptionReason {
    use karpenter_api::conditions::{HasConditions, types};
    let drifted = node
        .claim
        .as_ref()
        .is_some_and(|claim| claim.is_true(types::DRIFTED));
    let mut pods = asked.snapshot.pods_on(node.name()).iter();
    if drifted {
        DisruptionReason::Drifted
    } else if pods.any(|pod| pod.is_reschedulable()) {
        DisruptionReason::Underutilized
    } else {
        DisruptionReason::Empty
    }
}

/// Returns the NodePool with the budgets that bind now raised so that they allow one more node.
fn budget_edit(asked: &WhatIf, node: &NodeState) -> Option<Advice> {
    let name = node.node_pool()?;
    let mut pool = NodePool::clone(asked.snapshot.node_pool(name)?);
    let (reason, now) = (budget_reason(asked, node), asked.request.now());
    let budget = Budgets::new(&asked.snapshot, &reason, now).of(name);
    let needed = budget.consuming.saturating_add(1);
    let mut operations = Vec::new();
    let mut before = Vec::new();
    for (index, limit) in pool.spec.disruption.budgets.iter_mut().enumerate() {
        let binds = limit.covers(&reason)
            && limit.is_active(now).unwrap_or(true)
            && limit.value(budget.nodes).unwrap_or(0) < needed;
        if binds {
            before.push(std::mem::replace(&mut limit.nodes, needed.to_string()));
            let path = format!("/spec/disruption/budgets/{index}/nodes");
            operations.push(json!({ "op": "replace", "path": path, "value": needed.to_string() }));
        }
    }
    let text = format!(
        "NodePool {name}: budget for {reason} {} -> {needed} nodes",
        before.join(", ")
    );
    let patch = Patch::of_pool(name, "json", json!(operations));
    (!before.is_empty()).then(|| Advice::new(text, Some(patch), Some(Change::Pool(Box::new(pool)))))
}

/// Returns when a blocker ends by itself, if time alone ends it.
pub(super) fn until(asked: &WhatIf, node: &NodeState, why: &VerdictKind) -> Option<Timestamp> {
    match why {
        VerdictKind::NotDisruptable(NotDisruptable::Nominated) => node.nominated_until,
        VerdictKind::NotDisruptable(NotDisruptable::PodDoNotDisrupt { pod }) => {
            protected_until(asked.snapshot.pod(&pod.namespace, &pod.name)?)
        }
        VerdictKind::Kept(NotConsolidatable::Paused { pause, .. }) => Some(pause.until),
        VerdictKind::Kept(NotConsolidatable::Budget { .. }) => opens(asked, node),
        _ => None,
    }
}

/// Returns when the schedules of the budgets allow another node, if nothing else changes.
fn opens(asked: &WhatIf, node: &NodeState) -> Option<Timestamp> {
    let pool = asked.snapshot.node_pool(node.node_pool()?)?;
    let reason = budget_reason(asked, node);
    let state = Budgets::new(&asked.snapshot, &reason, asked.request.now()).of(pool.name());
    let mut at = asked.request.now();
    for _ in 0..MAX_WINDOWS {
        let budgets = pool.spec.disruption.budgets.iter();
        let ends = budgets
            .filter(|budget| budget.covers(&reason) && budget.is_active(at).unwrap_or(false))
            .filter_map(|budget| {
                let duration = budget.duration.as_ref()?.value();
                let schedule: Schedule = budget.schedule.as_deref()?.parse().ok()?;
                let began = schedule.next(at.checked_sub(duration).ok()?)?;
                began.checked_add(duration).ok()
            });
        at = ends.filter(|end| *end > at).min()?;
        let allowed = budget::allowed(pool, &reason, state.nodes, at);
        if budget::remaining(allowed, state.consuming) > 0 {
            return Some(at);
        }
    }
    None
}
