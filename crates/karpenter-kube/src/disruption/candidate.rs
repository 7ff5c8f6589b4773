//! Which machines may be disrupted at all, how many, and what that would cost their pods.
//!
//! UPSTREAM: pkg/controllers/disruption/{types,helpers}.go, pkg/utils/disruption/disruption.go

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use karpenter_api::budget;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::events;
use karpenter_api::labels::{self, annotations};
use karpenter_api::v1::{DisruptionReason, NodeClaim, NodePool};
use karpenter_core::cluster::NodeState;
use karpenter_core::pod::{DoNotDisrupt, LabelSelector, Pod, do_not_disrupt};

use crate::context::Context;
use crate::events::{Event, reference};
use crate::model::View;

/// A machine that may be disrupted.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The machine.
    pub machine: Arc<NodeState>,
    /// Its Node, as the API server has it.
    pub node: Arc<Node>,
    /// Its NodeClaim.
    pub claim: Arc<NodeClaim>,
    /// Its NodePool.
    pub pool: Arc<NodePool>,
    /// The pods that would have to go elsewhere.
    pub reschedulable: Vec<Arc<Pod>>,
    /// 1, and what moving its pods costs.
    pub reschedule_cost: f64,
}

impl Candidate {
    /// The Node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.machine.name()
    }

    /// Whether nothing would have to move, or nothing that minds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reschedule_cost <= 1.0
    }
}

/// Why a machine may not be disrupted.
#[derive(Debug, Clone)]
pub struct Refusal {
    node: Option<Arc<Node>>,
    claim: Arc<NodeClaim>,
    why: String,
}

impl Refusal {
    /// The reason, as a sentence without a capital.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Tells users on the Node and the NodeClaim.
    pub fn publish(&self, cx: &Context) {
        let message = capitalised(&self.why);
        let event = |about| {
            Event::normal(about, events::DISRUPTION_BLOCKED, message.clone()).dedupe_by_message()
        };
        if let Some(node) = &self.node {
            cx.recorder.publish(event(reference(&**node)));
        }
        cx.recorder.publish(event(reference(&*self.claim)));
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}

/// Every machine of Karpenter, as a candidate or with the first reason why not.
pub fn candidates(view: &View, now: Timestamp) -> Vec<Result<Candidate, Refusal>> {
    let budgets = PodBudgets::new(view);
    view.snapshot
        .nodes()
        .filter_map(|machine| candidate(view, machine, &budgets, now))
        .collect()
}

/// `None` for machines that nothing needs to be said about.
fn candidate(
    view: &View,
    machine: &Arc<NodeState>,
    budgets: &PodBudgets,
    now: Timestamp,
) -> Option<Result<Candidate, Refusal>> {
    let claim = machine.claim.clone()?;
    let refuse = |node: Option<&Arc<Node>>, why: String| {
        Some(Err(Refusal {
            node: node.cloned(),
            claim: Arc::clone(&claim),
            why,
        }))
    };
    let Some(node) = machine.node.as_ref().and_then(|n| view.node(&n.name)) else {
        return refuse(None, "nodeclaim does not have an associated node".into());
    };
    if !machine.is_initialized() {
        return refuse(Some(node), "node isn't initialized".into());
    }
    if machine.is_deleting() {
        return refuse(Some(node), "node is deleting or marked for deletion".into());
    }
    if machine.is_nominated(now) {
        return refuse(Some(node), "node is nominated for a pending pod".into());
    }
    let protected = machine
        .annotations()
        .get(annotations::DO_NOT_DISRUPT)
        .is_some_and(|v| v == "true");
    if protected {
        return refuse(
            Some(node),
            format!(
                "disruption is blocked through the \"{}\" annotation",
                annotations::DO_NOT_DISRUPT
            ),
        );
    }
    let Some(name) = machine.node_pool() else {
        return refuse(
            Some(node),
            format!(
                "node doesn't have required label, label={}",
                labels::NODE_POOL
            ),
        );
    };
    let types_known =
        matches!(view.snapshot.instance_types(name), Some(Ok(types)) if !types.is_empty());
    let Some(pool) = view.node_pool(name).filter(|_| types_known) else {
        return refuse(Some(node), format!("NodePool not found (NodePool={name})"));
    };
    let pods = view.pods_on(machine.name());
    if let Some(pod) = pods
        .iter()
        .find(|p| p.is_active() && do_not_disrupt(p, now) == DoNotDisrupt::Yes)
    {
        return refuse(
            Some(node),
            format!(
                "pod has \"{}\" annotation (Pod={})",
                annotations::DO_NOT_DISRUPT,
                pod.key
            ),
        );
    }
    for pod in pods.iter().filter(|p| p.is_active() && !p.is_mirror()) {
        match budgets.of(pod).as_slice() {
            [] => {}
            [budget] if budgets.allows(budget, pod) => {}
            [budget] => {
                let budget = format!(
                    "{}/{}",
                    pod.key.namespace,
                    budget.metadata.name.as_deref().unwrap_or_default()
                );
                return refuse(
                    Some(node),
                    format!("pdb prevents pod evictions (PodDisruptionBudget={budget})"),
                );
            }
            _ => {
                return refuse(
                    Some(node),
                    format!("eviction does not support multiple PDBs (Pod={})", pod.key),
                );
            }
        }
    }
    let reschedulable: Vec<_> = pods
        .iter()
        .filter(|p| p.is_reschedulable())
        .cloned()
        .collect();
    let reschedule_cost = 1.0
        + reschedulable
            .iter()
            .map(|p| eviction_cost(p).max(0.0))
            .sum::<f64>();
    let candidate = Candidate {
        machine: Arc::clone(machine),
        node: Arc::clone(node),
        claim: Arc::clone(&claim),
        pool: Arc::clone(pool),
        reschedulable,
        reschedule_cost,
    };
    Some(Ok(candidate))
}

/// What evicting a pod costs: one, more for deletion cost and priority, less for negative ones.
#[must_use]
pub(super) fn eviction_cost(pod: &Pod) -> f64 {
    let deletion_cost = pod
        .annotations
        .get("controller.kubernetes.io/pod-deletion-cost")
        .and_then(|v| v.parse::<i32>().ok())
        .unwrap_or(0);
    let cost = 1.0
        + f64::from(deletion_cost) / 2f64.powi(27)
        + f64::from(pod.shape.priority) / 2f64.powi(25);
    cost.clamp(-10.0, 10.0)
}

/// The cluster's PodDisruptionBudgets, by namespace.
struct PodBudgets {
    by_namespace: BTreeMap<String, Vec<(LabelSelector, Arc<PodDisruptionBudget>)>>,
}

impl PodBudgets {
    fn new(view: &View) -> Self {
        let mut by_namespace: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for budget in view.snapshot.pdbs() {
            let selector =
                LabelSelector::parse(budget.spec.as_ref().and_then(|s| s.selector.as_ref()));
            let namespace = budget.metadata.namespace.clone().unwrap_or_default();
            by_namespace
                .entry(namespace)
                .or_default()
                .push((selector, Arc::clone(budget)));
        }
        Self { by_namespace }
    }

    fn of(&self, pod: &Pod) -> Vec<&Arc<PodDisruptionBudget>> {
        let budgets = self
            .by_namespace
            .get(&pod.key.namespace)
            .into_iter()
            .flatten();
        budgets
            .filter(|(selector, _)| selector.matches(&pod.shape.labels))
            .map(|(_, budget)| budget)
            .collect()
    }

    fn allows(&self, budget: &PodDisruptionBudget, pod: &Pod) -> bool {
        let always = budget
            .spec
            .as_ref()
            .and_then(|s| s.unhealthy_pod_eviction_policy.as_deref())
            == Some("AlwaysAllow");
        (always && !pod.ready)
            || budget
                .status
                .as_ref()
                .is_some_and(|s| s.disruptions_allowed.unwrap_or(0) > 0)
    }
}

/// How many more machines of each NodePool may be disrupted for a reason.
#[derive(Debug, Default)]
pub struct Budgets {
    left: BTreeMap<String, u32>,
    /// Whether something was not proposed because of a budget.
    pub blocked: bool,
}

impl Budgets {
    /// Counts what the budgets of every pool allow now.
    #[must_use]
    pub fn new(cx: &Context, view: &View, reason: &DisruptionReason) -> Self {
        let now = cx.clock.now();
        let mut left = BTreeMap::new();
        for pool in view.snapshot.node_pools() {
            let (total, consuming) = consumption(view, pool.name());
            let allowed = budget::allowed(pool, reason, total, now);
            let remaining = budget::remaining(allowed, consuming);
            let labels = [pool.name(), reason.as_str()];
            cx.metrics
                .nodepools_allowed_disruptions
                .set(&labels, f64::from(allowed));
            cx.metrics
                .nodepools_nodes_consuming_budgets
                .set(&labels, f64::from(consuming));
            if total > 0 && allowed == 0 {
                let message = format!(
                    "No allowed disruptions for disruption reason {} due to blocking budget",
                    reason.as_str()
                );
                let event = Event::normal(reference(&**pool), events::DISRUPTION_BLOCKED, message);
                cx.recorder.publish(
                    event
                        .dedupe_by_message()
                        .every(std::time::Duration::from_secs(60)),
                );
            }
            left.insert(pool.name().to_owned(), remaining);
        }
        Self {
            left,
            blocked: false,
        }
    }

    /// Takes one disruption of a pool, if there is one left.
    pub fn take(&mut self, pool: &str) -> bool {
        match self.left.get_mut(pool) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => {
                self.blocked = true;
                false
            }
        }
    }
}

/// How many machines of a pool count, and how many of them are not ready or on their way out.
fn consumption(view: &View, pool: &str) -> (u32, u32) {
    let mut counts = (0, 0);
    for machine in view
        .snapshot
        .nodes()
        .filter(|m| m.node_pool() == Some(pool) && m.is_initialized())
    {
        let Some(claim) = machine
            .claim
            .as_ref()
            .filter(|c| !c.is_true(types::INSTANCE_TERMINATING))
        else {
            continue;
        };
        counts.0 += 1;
        let ready = machine.node.as_ref().is_some_and(|n| n.is_ready());
        if !ready || machine.is_deleting() || claim.is_deleting() {
            counts.1 += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cost(deletion_cost: &str, priority: i32) -> f64 {
        let pod = json!({"metadata": {"name": "p", "annotations": {"controller.kubernetes.io/pod-deletion-cost": deletion_cost}},
            "spec": {"containers": [], "priority": priority}});
        eviction_cost(&Pod::parse(&serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn eviction_costs_follow_deletion_cost_and_priority_within_bounds() {
        assert_eq!(cost("0", 0), 1.0);
        assert_eq!(cost("134217728", 0), 2.0);
        assert_eq!(cost("-134217728", 0), 0.0);
        assert_eq!(cost("0", 1_000_000_000), 10.0);
        assert_eq!(cost("0", -2_000_000_000), -10.0);
        assert_eq!(cost("many", 0), 1.0);
    }

    #[test]
    fn a_budget_is_used_up() {
        let mut budgets = Budgets {
            left: [("a".to_owned(), 1)].into(),
            blocked: false,
        };
        assert!(budgets.take("a") && !budgets.blocked);
        assert!(!budgets.take("a") && budgets.blocked);
        assert!(!budgets.take("unknown"));
    }

    #[test]
    fn refusals_read_as_sentences() {
        assert_eq!(
            capitalised("node isn't initialized"),
            "Node isn't initialized"
        );
        assert_eq!(capitalised(""), "");
    }
}
