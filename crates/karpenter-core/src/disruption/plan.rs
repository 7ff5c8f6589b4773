//! A disruption pass over a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::candidate::{Candidate, Candidates, NodeId, NotConsolidatable, NotDisruptable};
use super::command::{Command, Decision, Method, Verdict, VerdictKind};
use super::pass::{Alone, Kept, Pass};
use super::request::DisruptionRequest;
use super::validate::{CommandInvalidated, validate_after};
use super::{Budgets, methods};
use crate::behavior::Behavior;
use crate::cluster::{NodeState, Snapshot};
use crate::disruption::simulation::Simulator;

/// The result of a disruption pass.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DisruptionPlan {
    /// Commands to start, in this order.
    pub commands: Vec<Command>,
    /// The verdict for every node, by name.
    pub verdicts: Vec<Verdict>,
    /// The budgets at the start of the pass, by reason.
    pub budgets: BTreeMap<String, Budgets>,
    /// The number of candidates of each method.
    pub eligible: BTreeMap<Method, usize>,
    /// NodePools that single-node consolidation did not reach.
    pub unseen_pools: BTreeSet<String>,
    /// Methods that ended early.
    pub timed_out: BTreeSet<Method>,
    /// The duration of each method, by [`DisruptionRequest::stopwatch`].
    pub took: BTreeMap<Method, Duration>,
    /// Whether a budget blocked a candidate: once [`Budgets::by_reason`] differs from [`Self::budgets`], a pass may find more
    /// without a change in the cluster.
    pub budget_blocked: bool,
    /// The number of nodes whose consolidation alone was evaluated.
    pub evaluated: usize,
}

/// Decides which nodes of a snapshot to delete, and which replacements to launch.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_core::disruption::{DisruptionRequest, VerdictKind, plan};
/// use karpenter_core::instance_type::InstanceType;
/// use karpenter_core::offering::{Offering, Price};
/// use karpenter_core::pod::Pod;
/// use karpenter_core::resources::Resources;
/// use karpenter_api::v1::{NodeClassReference, NodePool};
/// use serde_json::json;
///
/// let capacity = || Resources::new().with("cpu", 4000).with("memory", 8 << 30).with("pods", 20);
/// let four = InstanceType::linux("four", "amd64", capacity()).with_offering(Offering::on_demand("a", Price::per_hour(0.2)));
/// let class = NodeClassReference { group: "example.com".into(), kind: "Rack".into(), name: "any".into() };
/// let mut pool = NodePool::ready("default", class.clone());
/// pool.spec.disruption = serde_json::from_value(json!({ "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] }))?;
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// cluster.apply_node_pool(&pool);
/// cluster.set_instance_types("default", Ok([four].into()));
///
/// // Two initialized nodes; a pod runs on one of them.
/// let is_true = |name: &str| json!({
///     "type": name, "status": "True", "reason": name, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
/// });
/// for name in ["busy", "idle"] {
///     let labels = json!({
///         "karpenter.sh/nodepool": "default", "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true",
///         "karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "a",
///         "node.kubernetes.io/instance-type": "four", "example.com/rack": "any",
///     });
///     let amounts = capacity().to_quantities();
///     let id = format!("rack:///{name}");
///     cluster.apply_node_claim(&serde_json::from_value(json!({
///         "metadata": { "name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z" },
///         "spec": { "requirements": [], "nodeClassRef": class },
///         "status": { "providerID": id, "capacity": amounts, "allocatable": amounts, "conditions": [is_true("Initialized"), is_true("Consolidatable")] },
///     }))?);
///     cluster.apply_node(&serde_json::from_value(json!({
///         "metadata": { "name": name, "uid": name, "labels": labels },
///         "spec": { "providerID": id },
///         "status": { "capacity": amounts, "allocatable": amounts, "conditions": [is_true("Ready")] },
///     }))?);
/// }
/// let mut pod = Pod::pending("default", "web", Resources::new().with("cpu", 3000));
/// pod.node_name = Some("busy".into());
/// cluster.insert_pod(pod);
///
/// let now: Timestamp = "2026-01-02T00:00:00Z".parse()?;
/// let plan = plan(&cluster.snapshot(), &DisruptionRequest::at(now));
/// let deleted: Vec<&str> = plan.commands.iter().flat_map(|command| &command.candidates).map(|c| c.name()).collect();
/// assert_eq!(deleted, ["idle"]);
/// // Each node has a verdict; this one says why the busy node is kept.
/// let busy = plan.verdicts.iter().find(|verdict| verdict.node.name() == "busy");
/// assert!(busy.is_some_and(|verdict| matches!(verdict.kind, VerdictKind::Kept(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(snapshot: &Snapshot, request: &DisruptionRequest) -> DisruptionPlan {
    Planner::default().plan(snapshot, request)
}

/// Makes passes over a cluster as it changes: each shares what it compiled with the next one. The results are those of [`plan`] and
/// [`validate`](super::validate).
#[derive(Debug, Default)]
pub struct Planner {
    /// The simulator of the last pass that needed one.
    last: Option<Simulator>,
}

impl Planner {
    /// Does what [`plan`] does.
    pub fn plan(&mut self, snapshot: &Snapshot, request: &DisruptionRequest) -> DisruptionPlan {
        let mut start = None;
        let plan = plan_after(self.last.as_ref(), snapshot, request, &mut start);
        self.last = start.or(self.last.take());
        plan
    }

    /// Does what [`validate`](super::validate) does.
    ///
    /// # Errors
    /// If the command is no longer valid.
    pub fn validate(
        &mut self,
        command: &Command,
        snapshot: &Snapshot,
        request: &DisruptionRequest,
    ) -> Result<Command, CommandInvalidated> {
        let mut used = None;
        let valid = validate_after(self.last.as_ref(), command, snapshot, request, &mut used);
        self.last = used.or(self.last.take());
        valid
    }
}

fn plan_after(
    earlier: Option<&Simulator>,
    snapshot: &Snapshot,
    request: &DisruptionRequest,
    start: &mut Option<Simulator>,
) -> DisruptionPlan {
    let now = request.now();
    let all = Candidates::new(snapshot, &request.surroundings, now);
    let mut plan = DisruptionPlan {
        budgets: Budgets::by_reason(snapshot, now),
        ..DisruptionPlan::default()
    };
    // The same for both methods of consolidation.
    let behavior = request.policy.behavior;
    let consolidatable = eligible(&all, Method::SingleNode, behavior);
    let (mut kept, mut stuck) = (Kept::default(), FxHashMap::default());
    let mut alone = Alone::default();
    let mut methods = [
        Method::Emptiness,
        Method::StaticDrift,
        Method::Drift,
        Method::MultiNode,
        Method::SingleNode,
    ];
    if !behavior.emptiness_before_drift {
        methods[..3].rotate_left(1);
    }
    let before = |method: &Method| request.after.is_some_and(|after| *method != after);
    let skipped = methods.iter().take_while(|method| before(method)).count();
    let skipped = skipped + usize::from(request.after.is_some());
    for method in methods.into_iter().skip(skipped) {
        let mut pass = Pass {
            request,
            method,
            snapshot: snapshot.fork(),
            candidates: match method {
                Method::MultiNode | Method::SingleNode => consolidatable.clone(),
                _ => eligible(&all, method, behavior),
            },
            budgets: plan
                .budgets
                .get(method.reason().as_str())
                .cloned()
                .unwrap_or_default(),
            prices: all.prices.clone(),
            drafted: 0,
            alone: std::mem::take(&mut alone),
            start: start.take(),
            earlier,
            evaluated: 0,
            is_changed: false,
            shared: None,
        };
        plan.eligible.insert(method, pass.candidates.len());
        let started = request.stopwatch.as_ref().map(|passed| passed());
        let found = methods::run(&mut pass);
        if let Some((passed, started)) = request.stopwatch.as_ref().zip(started) {
            let took = passed().saturating_sub(started);
            plan.took.insert(method, took);
        }
        plan.evaluated += pass.evaluated;
        (alone, *start) = (pass.alone, pass.start);
        plan.budget_blocked |= found.budget_blocked;
        plan.unseen_pools.extend(found.unseen_pools);
        if found.timed_out {
            plan.timed_out.insert(method);
        }
        // The reason of the later method counts.
        let earlier = std::mem::replace(&mut kept, found.kept);
        for (node, why) in earlier {
            kept.entry(node).or_insert(why);
        }
        stuck.extend(found.blocked);
        if !found.commands.is_empty() {
            plan.commands = found.commands;
            break;
        }
    }
    plan.verdicts = verdicts(&all, &plan.commands, &kept, &stuck);
    plan
}

/// Returns the candidates of a method, in order; those with `eventual_only` are candidates of the drift methods alone.
fn eligible(all: &Candidates, method: Method, behavior: Behavior) -> Vec<&Candidate> {
    let candidates = all.candidates.iter();
    let mut candidates: Vec<&Candidate> = candidates
        .filter(|candidate| method.may_take(candidate))
        .collect();
    if !behavior.candidates_by_savings {
        candidates.sort_by(|a, b| a.disruption_cost.total_cmp(&b.disruption_cost));
    }
    candidates
}

/// Returns the verdict for every node. For a drifted node, the reason that blocks drift replaces that against consolidation.
fn verdicts(
    all: &Candidates,
    commands: &[Command],
    kept: &Kept,
    stuck: &FxHashMap<NodeId, NotDisruptable>,
) -> Vec<Verdict> {
    let mut decided: FxHashMap<NodeId, VerdictKind> = FxHashMap::default();
    for (node, why) in stuck {
        decided.insert(*node, VerdictKind::NotDisruptable(why.clone()));
    }
    for command in commands {
        let with: Vec<String> = command
            .replacements
            .iter()
            .flat_map(|draft| draft.instance_types.iter().cloned())
            .collect();
        for candidate in &command.candidates {
            let (savings, pods_moved) = (command.savings, candidate.reschedulable().count());
            let kind = match command.decision() {
                Decision::Delete => VerdictKind::Deleted {
                    savings,
                    pods_moved,
                },
                Decision::Replace => VerdictKind::Replaced {
                    savings,
                    pods_moved,
                    with: with.clone(),
                },
            };
            decided.insert(candidate.id(), kind);
        }
    }
    let verdict = |node: &Arc<NodeState>, or: &dyn Fn() -> VerdictKind| Verdict {
        kind: decided.get(&NodeId::of(node)).cloned().unwrap_or_else(or),
        node: node.clone(),
    };
    // Each with whether the node is a candidate.
    let mut in_order: Vec<Option<(Verdict, bool)>> = vec![None; all.len()];
    for ((node, blocked), place) in all.blocked_with_places() {
        let reason = || VerdictKind::NotDisruptable(blocked.clone());
        in_order[place] = Some((verdict(node, &reason), false));
    }
    let whole = all.candidates_with_places();
    for (candidate, place) in whole.filter(|(candidate, _)| !candidate.eventual_only) {
        let reason = || {
            let kept = kept.get(&candidate.id()).cloned();
            let reason = kept.or_else(|| candidate.unconsolidatable());
            VerdictKind::Kept(reason.unwrap_or(NotConsolidatable::NotEvaluated))
        };
        in_order[place] = Some((verdict(&candidate.node, &reason), true));
    }
    by_name(in_order.into_iter().flatten().collect())
}

/// Sorts verdicts of Nodes, which come by name, and then of NodeClaims, which come by name. Of a Node and a NodeClaim with one name
/// the NodeClaim's verdict is kept, unless the Node is a candidate.
fn by_name(mut nodes: Vec<(Verdict, bool)>) -> Vec<Verdict> {
    let claims = nodes.partition_point(|(verdict, _)| verdict.node.node.is_some());
    let claims = nodes.split_off(claims);
    let place = |claim: &Verdict| {
        let name = claim.node.name();
        nodes.partition_point(|(node, _)| node.node.name() < name)
    };
    let claims = claims.into_iter().map(|(claim, _)| claim);
    let claims: Vec<(usize, Verdict)> = claims.map(|claim| (place(&claim), claim)).collect();
    let mut sorted = Vec::with_capacity(nodes.len() + claims.len());
    let mut claims = claims.into_iter().peekable();
    for (index, (node, is_candidate)) in nodes.into_iter().enumerate() {
        let mut is_kept = true;
        while let Some((_, claim)) = claims.next_if(|(place, _)| *place == index) {
            let has_same_name = claim.node.name() == node.node.name();
            if !has_same_name || !is_candidate {
                sorted.push(claim);
            }
            is_kept &= !has_same_name || is_candidate;
        }
        if is_kept {
            sorted.push(node);
        }
    }
    sorted.extend(claims.map(|(_, claim)| claim));
    sorted
}
