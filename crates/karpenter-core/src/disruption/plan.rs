//! One pass over a snapshot.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    Budgets,
    candidate::{Blocked, Candidate, Candidates, Surroundings, Unconsolidatable},
    command::{Command, Decision, Method, Verdict, VerdictKind},
    consolidation::{Move, Rules},
    methods::{self, Found},
    prices::PriceLists,
    simulation::Simulator,
};
use crate::{
    cluster::{Cluster, Snapshot},
    schedule::{Cancel, ScheduleRequest},
};

/// How multi-node consolidation searches.
#[derive(Clone, Default)]
pub struct MultiNodeSearch {
    /// Asked now and then; once it says yes, the best set found so far is the answer.
    pub cancel: Option<Cancel>,
    /// How many machines may be launched for a set; 0 and 1 mean one, as upstream.
    pub max_replacements: usize,
}

/// Says how much time has passed since some moment, whichever.
pub type Stopwatch = Arc<dyn Fn() -> Duration + Send + Sync>;

/// One pass.
#[derive(Clone)]
pub struct DisruptionRequest {
    /// The scheduler's settings, and the time of the pass.
    pub schedule: ScheduleRequest,
    /// Commands in flight and buffers.
    pub surroundings: Surroundings,
    /// Spot machines may be exchanged for spot machines (feature gate).
    pub spot_to_spot: bool,
    /// Multi-node consolidation.
    pub multi_node: MultiNodeSearch,
    /// Ends the single-node search early; candidates not looked at come first next time.
    pub single_node_cancel: Option<Cancel>,
    /// NodePools whose candidates the last pass did not get to.
    pub unseen_pools: BTreeSet<String>,
    /// NodePools that drift leaves alone for now, as their replacements fail.
    pub resting_pools: BTreeSet<String>,
    /// Machines of static pools that may be replaced now, by pool: what `replicas` and `limits.nodes` leave room for.
    pub static_room: BTreeMap<String, u32>,
    /// How many commands a pass may end in.
    pub max_commands: usize,
    /// Asked before and after each method; [`DisruptionPlan::took`] is empty without it.
    pub stopwatch: Option<Stopwatch>,
    /// Worker threads; the plan does not depend on it.
    pub threads: usize,
}

impl DisruptionRequest {
    /// A pass at `now` with upstream's defaults.
    pub fn at(now: Timestamp) -> Self {
        Self {
            schedule: ScheduleRequest::at(now),
            surroundings: Surroundings::default(),
            spot_to_spot: false,
            multi_node: MultiNodeSearch::default(),
            single_node_cancel: None,
            unseen_pools: BTreeSet::new(),
            resting_pools: BTreeSet::new(),
            static_room: BTreeMap::new(),
            max_commands: 16,
            stopwatch: None,
            threads: 1,
        }
    }

    /// The time of the pass.
    pub fn now(&self) -> Timestamp {
        self.schedule.now
    }

    pub(super) fn rules(&self, method: Method) -> Rules {
        let max_replacements = match method {
            Method::MultiNode => self.multi_node.max_replacements.max(1),
            _ => 1,
        };
        Rules {
            spot_to_spot: self.spot_to_spot,
            max_replacements,
        }
    }
}

/// What a pass came to.
#[derive(Clone, Debug, Default)]
pub struct DisruptionPlan {
    /// Commands to start, in this order.
    pub commands: Vec<Command>,
    /// What became of every machine, by name.
    pub verdicts: Vec<Verdict>,
    /// The budgets the pass began with.
    pub budgets: BTreeMap<String, Budgets>,
    /// How many candidates each method had.
    pub eligible: BTreeMap<Method, usize>,
    /// Pools that single-node consolidation did not get to.
    pub unseen_pools: BTreeSet<String>,
    /// Methods that were cut short.
    pub timed_out: BTreeSet<Method>,
    /// How long each method took, by [`DisruptionRequest::stopwatch`].
    pub took: BTreeMap<Method, Duration>,
    /// A budget was in the way of something: once [`Budgets::by_reason`] says otherwise than [`Self::budgets`], a pass may
    /// find more without any change in the cluster.
    pub budget_blocked: bool,
}

/// Decides what to do about a snapshot.
///
/// ```
/// use jiff::Timestamp;
/// use karpenter_core::cluster::{Cluster, ClusterConfig};
/// use karpenter_core::disruption::{DisruptionRequest, VerdictKind, plan};
/// use karpenter_core::instance_type::InstanceType;
/// use karpenter_core::offering::Offering;
/// use karpenter_core::resources::Resources;
/// use serde_json::{Value, json};
///
/// let capacity = || Resources::new().with("cpu", 4000).with("memory", 8 << 30).with("pods", 20);
/// let place = [("topology.kubernetes.io/zone", "a"), ("karpenter.sh/capacity-type", "on-demand")];
/// let labels = [("node.kubernetes.io/instance-type", "four"), ("topology.kubernetes.io/zone", "a")];
/// let mut four = InstanceType::new("four", labels.into_iter().collect(), capacity());
/// four.offerings.push(Offering::new(place.into_iter().collect(), 0.2));
///
/// let mut cluster = Cluster::new(ClusterConfig::default());
/// let class = json!({ "group": "example.com", "kind": "Rack", "name": "any" });
/// let is_true = |name: &str| json!({
///     "type": name, "status": "True", "reason": name, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
/// });
/// cluster.apply_node_pool(&serde_json::from_value(json!({
///     "metadata": { "name": "default" },
///     "spec": {
///         "template": { "spec": { "requirements": [], "nodeClassRef": class } },
///         "disruption": { "consolidateAfter": "0s", "budgets": [{ "nodes": "100%" }] },
///     },
///     "status": { "conditions": [is_true("Ready")] },
/// }))?);
/// cluster.set_instance_types("default", Ok([four].into()));
///
/// // Two machines that run; a pod is on one of them.
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
/// let mut pod: Value = json!({
///     "metadata": { "name": "web", "namespace": "default", "uid": "web" },
///     "spec": { "nodeName": "busy", "containers": [{ "name": "main", "resources": { "requests": { "cpu": "3" } } }] },
///     "status": { "phase": "Running" },
/// });
/// cluster.apply_pod(&serde_json::from_value(pod.take())?);
///
/// let now: Timestamp = "2026-01-02T00:00:00Z".parse()?;
/// let plan = plan(&cluster.snapshot(), &DisruptionRequest::at(now));
/// let gone: Vec<&str> = plan.commands.iter().flat_map(|command| &command.candidates).map(|c| c.name()).collect();
/// assert_eq!(gone, ["idle"]);
/// // Each machine has a verdict; this one says why the busy one stays.
/// let busy = plan.verdicts.iter().find(|verdict| verdict.machine.name() == "busy");
/// assert!(busy.is_some_and(|verdict| matches!(verdict.kind, VerdictKind::Kept(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn plan(snapshot: &Snapshot, request: &DisruptionRequest) -> DisruptionPlan {
    let now = request.now();
    let all = Candidates::new(snapshot, &request.surroundings, now);
    let mut plan = DisruptionPlan {
        budgets: Budgets::by_reason(snapshot, now),
        ..DisruptionPlan::default()
    };
    let (mut kept, mut stuck) = (BTreeMap::new(), BTreeMap::new());
    let mut alone = Alone::new();
    let methods = [
        Method::Emptiness,
        Method::StaticDrift,
        Method::Drift,
        Method::MultiNode,
        Method::SingleNode,
    ];
    for method in methods {
        let mut pass = Pass {
            request,
            method,
            snapshot: snapshot.fork(),
            candidates: eligible(&all, method),
            budgets: plan
                .budgets
                .get(method.reason().as_str())
                .cloned()
                .unwrap_or_default(),
            prices: all.prices.clone(),
            drafted: 0,
            alone: std::mem::take(&mut alone),
        };
        plan.eligible.insert(method, pass.candidates.len());
        let started = request.stopwatch.as_ref().map(|passed| passed());
        let found = methods::run(&mut pass);
        if let Some((passed, started)) = request.stopwatch.as_ref().zip(started) {
            let took = passed().saturating_sub(started);
            plan.took.insert(method, took);
        }
        alone = pass.alone;
        plan.budget_blocked |= found.budget_blocked;
        plan.unseen_pools.extend(found.unseen_pools);
        if found.timed_out {
            plan.timed_out.insert(method);
        }
        kept.extend(found.kept);
        stuck.extend(found.blocked);
        if !found.commands.is_empty() {
            plan.commands = found.commands;
            break;
        }
    }
    plan.verdicts = verdicts(&all, &plan.commands, &kept, &stuck);
    plan
}

/// The candidates of a method, in order: those that are one only at the end of a grace period concern drift alone.
fn eligible(all: &Candidates, method: Method) -> Vec<Candidate> {
    let may = |candidate: &&Candidate| {
        (method.is_eventual() || !candidate.eventual_only)
            && match method {
                Method::Emptiness => candidate.not_empty().is_none(),
                Method::StaticDrift => {
                    candidate.node_pool.is_static() && candidate.drifted_at().is_some()
                }
                Method::Drift => {
                    !candidate.node_pool.is_static() && candidate.drifted_at().is_some()
                }
                Method::MultiNode | Method::SingleNode => candidate.unconsolidatable().is_none(),
            }
    };
    all.candidates.iter().filter(may).cloned().collect()
}

/// One method's work: the snapshot with what it has already decided, its candidates, what is left of the budgets.
pub(super) struct Pass<'a> {
    pub(super) request: &'a DisruptionRequest,
    pub(super) method: Method,
    pub(super) snapshot: Snapshot,
    pub(super) candidates: Vec<Candidate>,
    pub(super) budgets: Budgets,
    pub(super) prices: Arc<PriceLists>,
    drafted: usize,
    /// What is known of candidates that go alone, by name.
    pub(super) alone: Alone,
}

/// What comes of removing one machine alone, by its name.
pub(super) type Alone = BTreeMap<String, Result<Move, Unconsolidatable>>;

impl Pass<'_> {
    /// A simulator of the snapshot as it is now.
    pub(super) fn simulator(&self) -> Simulator {
        Simulator::new(&self.snapshot, &self.request.schedule, &self.prices)
    }

    /// Reckons with a command from now on: its machines are on their way out, its replacements are on their way in.
    pub(super) fn adopt(&mut self, command: &Command) {
        let mut cluster = Cluster::from(self.snapshot.fork());
        let ids: Vec<&str> = command
            .candidates
            .iter()
            .filter_map(|candidate| candidate.machine.provider_id())
            .collect();
        cluster.mark_for_deletion(&ids);
        for draft in &command.replacements {
            let mut claim = draft.claim.clone();
            // No NodeClaim can be called that.
            claim.metadata.name = Some(format!("planned/{}", self.drafted));
            self.drafted += 1;
            cluster.apply_node_claim(&claim);
        }
        self.snapshot = cluster.snapshot();
        self.alone.clear();
        for candidate in &command.candidates {
            self.budgets.take(candidate.pool_name());
        }
    }
}

/// What became of every machine. What keeps one that has drifted says more than what kept it from being consolidated.
fn verdicts(
    all: &Candidates,
    commands: &[Command],
    kept: &Kept,
    stuck: &BTreeMap<String, Blocked>,
) -> Vec<Verdict> {
    let mut verdicts = BTreeMap::new();
    for (machine, blocked) in &all.blocked {
        let kind = VerdictKind::Blocked(blocked.clone());
        verdicts.insert(
            machine.name().to_owned(),
            Verdict {
                machine: machine.clone(),
                kind,
            },
        );
    }
    for candidate in all
        .candidates
        .iter()
        .filter(|candidate| !candidate.eventual_only)
    {
        let reason = kept
            .get(candidate.name())
            .cloned()
            .or_else(|| candidate.unconsolidatable());
        let kind = VerdictKind::Kept(reason.unwrap_or(Unconsolidatable::NotEvaluated));
        let verdict = Verdict {
            machine: candidate.machine.clone(),
            kind,
        };
        verdicts.insert(candidate.name().to_owned(), verdict);
    }
    let drifted = all.candidates.iter().filter_map(|candidate| {
        let why = stuck.get(candidate.name())?.clone();
        Some((candidate, why))
    });
    for (candidate, why) in drifted {
        let verdict = Verdict {
            machine: candidate.machine.clone(),
            kind: VerdictKind::Blocked(why),
        };
        verdicts.insert(candidate.name().to_owned(), verdict);
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
            let verdict = Verdict {
                machine: candidate.machine.clone(),
                kind,
            };
            verdicts.insert(candidate.name().to_owned(), verdict);
        }
    }
    verdicts.into_values().collect()
}

/// Why machines stay, by name.
pub(super) type Kept = BTreeMap<String, Unconsolidatable>;

impl Found {
    /// Keeps a machine for a reason.
    pub(super) fn keep(&mut self, candidate: &Candidate, why: Unconsolidatable) {
        self.kept.insert(candidate.name().to_owned(), why);
    }

    /// Keeps a machine as its pool's budget is used up.
    pub(super) fn keep_for_budget(&mut self, candidate: &Candidate) {
        self.budget_blocked = true;
        self.keep(
            candidate,
            Unconsolidatable::Budget {
                node_pool: candidate.pool_name().to_owned(),
            },
        );
    }
}
