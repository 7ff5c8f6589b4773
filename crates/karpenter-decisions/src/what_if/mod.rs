//! What would be done with a kept node if what blocks it were gone.
//!
//! Every answer is run through the engine: the changes are made to a copy of the snapshot, and [`Assessor`] decides about the node
//! alone with the methods of a disruption pass. A snapshot is compiled once; changes of policies (PodDisruptionBudgets,
//! annotations, budgets, pauses) need no other compilation.
//!
//! Multi-node consolidation takes no part: a node that is kept alone may still be deleted together with others.

mod help;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::duration::NillableDuration;
use karpenter_api::v1::{ConsolidationPolicy, NodePool};
use karpenter_core::cluster::{Cluster, NodeState, Snapshot};
use karpenter_core::disruption::consolidation::prices::PriceLists;
use karpenter_core::disruption::simulation::Simulator;
use karpenter_core::disruption::{
    Assessor, Command, DisruptionRequest, NotConsolidatable, NotDisruptable, VerdictKind,
};
use karpenter_core::pod::{DoNotDisrupt, PodKey, do_not_disrupt};
use karpenter_core::reason::Reason;
use serde::Serialize;

pub use help::Help;

use crate::blocking::{NewNode, Prepared};
use crate::change::{self, Change, Changed, InvalidChange, without_annotation};
use crate::explain::CurrentReason;
use crate::passes::disruption_reason;
use crate::pdb::PdbState;
use crate::prices::finite;
use crate::workload::Workload;

/// Blockers that are run alone: with more of them, only the case without all is.
const MAX_SINGLE_BLOCKERS: usize = 8;
/// Reasons that are listed in advance.
const MAX_LADDER: usize = 4;
/// How often what a release uncovers is released as well.
const MAX_ROUNDS: usize = 8;

/// Savings in dollars per hour.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Savings {
    /// By list prices, without discounts.
    pub list: f64,
    /// By list prices less what commitments pay anyway; the same as `list` while no commitment is known.
    pub marginal: f64,
}

/// A command that would be started.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WouldBe {
    /// `empty`, `drifted` or `underutilized`.
    pub reason: &'static str,
    /// `delete` or `replace`.
    pub decision: &'static str,
    /// The number of pods that would move.
    pub pods_moved: usize,
    /// The number of existing nodes that would take them.
    pub nodes: usize,
    /// The nodes that would be launched.
    pub replacements: Vec<NewNode>,
    /// What the command would save; negative if it costs.
    pub savings_per_hour: Savings,
}

impl WouldBe {
    fn of(command: &Command) -> Self {
        let moved: BTreeSet<&PodKey> = command.pods().collect();
        let placements = command.placements.iter();
        let targets: BTreeSet<&str> = placements
            .filter(|placement| moved.contains(&placement.pod))
            .map(|placement| placement.node.as_str())
            .collect();
        let savings = finite(command.savings);
        Self {
            reason: disruption_reason(command.method),
            decision: command.decision().as_str(),
            pods_moved: moved.len(),
            nodes: targets.len(),
            replacements: command.replacements.iter().map(NewNode::of).collect(),
            savings_per_hour: Savings {
                list: savings,
                marginal: savings,
            },
        }
    }
}

/// What would be done with a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The changes, each as it is written for `--if`.
    pub changes: Vec<String>,
    /// The command that would be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<WouldBe>,
    /// Why the node would be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<CurrentReason>,
}

impl Outcome {
    /// Returns the savings; `None` if the node would be kept.
    pub fn savings(&self) -> Option<Savings> {
        self.command
            .as_ref()
            .map(|command| command.savings_per_hour)
    }

    fn of(changes: &[Change], assessed: &Result<Command, VerdictKind>) -> Self {
        Self {
            changes: changes.iter().map(ToString::to_string).collect(),
            command: assessed.as_ref().ok().map(WouldBe::of),
            reason: assessed.as_ref().err().and_then(current_reason),
        }
    }
}

/// Something that blocks the disruption of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    #[serde(flatten)]
    pub reason: CurrentReason,
    /// The owner of the pod that blocks, as `Kind namespace/name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The PodDisruptionBudget that blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pdb: Option<PdbState>,
    /// When it ends by itself, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The changes that release it, each as it is written for `--if`; empty if none does.
    pub changes: Vec<String>,
    /// What would be done if only this were gone; absent if it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone: Option<Outcome>,
    /// What would help against it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub help: Vec<Help>,
}

/// What blocks a node, and what would be done without that.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeWhatIf {
    /// Everything that blocks it now, as far as it is known without a simulation.
    pub blockers: Vec<Blocker>,
    /// What would be done with the node if all that can be released were gone; absent if it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what_if: Option<Outcome>,
    /// What would keep the node next, if each reason were released in turn.
    pub ladder: Vec<CurrentReason>,
    /// The search ended early.
    #[serde(skip)]
    pub truncated: bool,
}

/// Answers what would be done with the nodes of a snapshot.
pub struct WhatIf {
    snapshot: Snapshot,
    request: DisruptionRequest,
    simulator: Simulator,
}

impl std::fmt::Debug for WhatIf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WhatIf").finish_non_exhaustive()
    }
}

impl WhatIf {
    /// Compiles a snapshot. `request` is that of the last disruption pass; the `cancel` of its query ends answers early.
    pub fn new(snapshot: &Snapshot, request: DisruptionRequest) -> Self {
        let prices = Arc::new(PriceLists::new(snapshot));
        Self {
            simulator: Simulator::new(snapshot, &request.policy, &request.query, &prices),
            snapshot: snapshot.fork(),
            request: of_one_node(request),
        }
    }

    /// Like [`Self::new`], of a snapshot that was prepared for questions about its pods; nodes and pods are not compiled again.
    pub fn sharing(prepared: &Prepared, request: DisruptionRequest) -> Self {
        let snapshot = prepared.snapshot();
        let prices = Arc::new(PriceLists::new(snapshot));
        let (policy, query) = (&request.policy, &request.query);
        Self {
            simulator: Simulator::sharing(prepared.solver(), snapshot, policy, query, &prices),
            snapshot: snapshot.fork(),
            request: of_one_node(request),
        }
    }

    /// Returns the same for another request; `None` if its policy differs in more than the time, so that the snapshot has to be
    /// compiled again.
    pub fn again(&self, request: DisruptionRequest) -> Option<Self> {
        Some(Self {
            simulator: self.simulator.again(&request.policy, &request.query)?,
            snapshot: self.snapshot.fork(),
            request: of_one_node(request),
        })
    }

    /// Returns the same after changes of its snapshot and its request. It is compiled again only if they decide where pods fit.
    #[must_use]
    pub fn of(&self, changed: Changed) -> Self {
        if changed.places {
            return Self::new(&changed.snapshot, changed.request);
        }
        Self {
            simulator: self.simulator.with_policies_of(&changed.snapshot),
            snapshot: changed.snapshot,
            request: of_one_node(changed.request),
        }
    }

    fn is_cancelled(&self) -> bool {
        let cancel = self.request.query.cancel.as_ref();
        cancel.is_some_and(|cancel| cancel())
    }

    /// Returns what would be done with a node (Node or NodeClaim name) after changes; `None` if the node does not exist, or the
    /// answer was cut short.
    ///
    /// # Errors
    /// If a change cannot be made.
    pub fn after(&self, node: &str, changes: &[Change]) -> Result<Option<Outcome>, InvalidChange> {
        let assessed = self.assess(node, changes)?;
        Ok(assessed.map(|assessed| Outcome::of(changes, &assessed)))
    }

    fn assess(
        &self,
        node: &str,
        changes: &[Change],
    ) -> Result<Option<Result<Command, VerdictKind>>, InvalidChange> {
        let changed = change::apply(changes, &self.snapshot, &self.request)?;
        if self.is_cancelled() {
            return Ok(None);
        }
        let after = self.of(changed);
        let assessed = Assessor::new(after.simulator, &after.request).assess(node);
        // A simulation that was cancelled leaves pods undecided.
        Ok(assessed.filter(|_| !self.is_cancelled()))
    }

    /// Returns what blocks a node (Node or NodeClaim name), and what would be done without that; `None` if it does not exist.
    pub fn node(&self, name: &str) -> Option<NodeWhatIf> {
        let node = self.snapshot.node(name)?;
        let found = Assessor::new(self.simulator.clone(), &self.request).blockers(name);
        let releases: Vec<Vec<Change>> = found.iter().map(|why| releases(node, why)).collect();
        let all = distinct(releases.iter().flatten());
        let mut answer = NodeWhatIf {
            what_if: self.released(name, node, all.clone()),
            ..NodeWhatIf::default()
        };
        let kinds: BTreeSet<Vec<String>> = releases.iter().map(|set| texts(set)).collect();
        let mut runs: BTreeMap<Vec<String>, Option<Outcome>> = BTreeMap::new();
        for (why, changes) in found.iter().zip(&releases) {
            let run = !changes.is_empty() && kinds.len() <= MAX_SINGLE_BLOCKERS;
            let alone = run.then(|| {
                let known = runs.entry(texts(changes));
                known.or_insert_with(|| self.run(name, changes)).clone()
            });
            answer
                .blockers
                .extend(self.blocker(node, why, changes, alone.flatten(), &all));
        }
        answer.ladder = self.ladder(name, node);
        answer.truncated = self.is_cancelled();
        Some(answer)
    }

    /// Like [`Self::after`] with changes that are known to be possible.
    fn run(&self, name: &str, changes: &[Change]) -> Option<Outcome> {
        self.after(name, changes).ok().flatten()
    }

    /// Releases what blocks the node, and what that uncovers, until a command is found or nothing can be released.
    fn released(&self, name: &str, node: &NodeState, mut changes: Vec<Change>) -> Option<Outcome> {
        for _ in 0..MAX_ROUNDS {
            let assessed = self.assess(name, &changes).ok().flatten()?;
            let more = assessed.as_ref().err().map(|why| releases(node, why));
            let more = more.unwrap_or_default();
            let before = changes.len();
            changes = distinct(changes.iter().chain(&more));
            if changes.len() == before {
                return Some(Outcome::of(&changes, &assessed));
            }
        }
        self.run(name, &changes)
    }

    /// Returns what keeps the node once what keeps it now is released, and so on.
    fn ladder(&self, name: &str, node: &NodeState) -> Vec<CurrentReason> {
        let (mut changes, mut ladder) = (Vec::new(), Vec::new());
        while ladder.len() <= MAX_LADDER {
            let Some(Err(why)) = self.assess(name, &changes).ok().flatten() else {
                break;
            };
            ladder.extend(current_reason(&why));
            let before = changes.len();
            changes = distinct(changes.iter().chain(&releases(node, &why)));
            if changes.len() == before {
                break;
            }
        }
        // The first is what keeps it now.
        ladder.into_iter().skip(1).collect()
    }

    fn blocker(
        &self,
        node: &NodeState,
        why: &VerdictKind,
        changes: &[Change],
        alone: Option<Outcome>,
        all: &[Change],
    ) -> Option<Blocker> {
        let pod = pod_of(why).and_then(|key| self.snapshot.pod(&key.namespace, &key.name));
        let pdb = match why {
            VerdictKind::NotDisruptable(NotDisruptable::Pdb { pod, budget }) => {
                PdbState::of(&self.snapshot, &pod.namespace, budget)
            }
            _ => None,
        };
        Some(Blocker {
            reason: current_reason(why)?,
            owner: pod.map(|pod| Workload::of(pod).to_string()),
            until: help::until(self, node, why),
            help: help::help(self, node, why, pdb.as_ref(), all),
            pdb,
            changes: texts(changes),
            alone,
        })
    }

    /// Returns what deleting or replacing each of the nodes alone would save once no policy blocks it: no PodDisruptionBudget,
    /// annotation, nomination, budget or pause. Nodes that would be kept all the same are left out. Also returns whether all nodes
    /// were run: a cancelled search leaves out the last ones.
    pub fn releasable<'n>(
        &self,
        nodes: impl IntoIterator<Item = &'n str>,
    ) -> (BTreeMap<String, Savings>, bool) {
        let names: Vec<&str> = nodes.into_iter().collect();
        let copy = self.without_policies(&names);
        let simulator = self.simulator.with_policies_of(&copy);
        let assessor = Assessor::new(simulator, &self.request);
        let mut found = BTreeMap::new();
        for name in names {
            let assessed = assessor.assess(name);
            if self.is_cancelled() {
                return (found, false);
            }
            if let Some(Ok(command)) = assessed {
                let savings = WouldBe::of(&command).savings_per_hour;
                found.insert(name.to_owned(), savings);
            }
        }
        (found, true)
    }

    /// Returns a copy of the snapshot without the policies that block the nodes.
    fn without_policies(&self, names: &[&str]) -> Snapshot {
        let mut cluster = Cluster::from(self.snapshot.fork());
        let name_of = |meta: &Option<String>| meta.clone().unwrap_or_default();
        for budget in self.snapshot.pdbs() {
            let meta = &budget.metadata;
            cluster.remove_pdb(&name_of(&meta.namespace), &name_of(&meta.name));
        }
        for pool in self.snapshot.node_pools() {
            let mut pool = NodePool::clone(pool);
            pool.spec.disruption.budgets.clear();
            let all = pool.metadata.annotations.get_or_insert_default();
            all.remove(karpenter_api::labels::annotations::PAUSED);
            cluster.apply_node_pool(&pool);
        }
        let now = self.request.now();
        for name in names {
            let refusing = self.snapshot.pods_on(name).iter();
            for pod in refusing.filter(|pod| do_not_disrupt(pod, now) == DoNotDisrupt::Yes) {
                cluster.insert_pod(without_annotation(pod));
            }
            let Some(node) = self.snapshot.node(name) else {
                continue;
            };
            if node.is_nominated(now) {
                cluster.nominate(name, Timestamp::MIN);
            }
            let refuses = help::REFUSALS
                .iter()
                .any(|key| node.annotations().contains_key(key));
            if let Some(object) = self.snapshot.node_object(node.name()).filter(|_| refuses) {
                let mut object = object.as_ref().clone();
                let all = object.metadata.annotations.get_or_insert_default();
                all.retain(|key, _| !help::REFUSALS.contains(&key.as_str()));
                cluster.apply_node(&object);
            }
        }
        cluster.snapshot()
    }
}

/// Returns the request of a disruption pass as one about a single node.
fn of_one_node(mut request: DisruptionRequest) -> DisruptionRequest {
    request.max_commands = 1;
    request.single_node_cancel = None;
    request.stopwatch = None;
    request.threads = 1;
    request
}

/// Returns the reason of a verdict that keeps a node.
pub(crate) fn reason(why: &VerdictKind) -> Option<Reason> {
    match why {
        VerdictKind::NotDisruptable(why) => Some(Reason::from(why)),
        VerdictKind::Kept(why) => Some(Reason::from(why)),
        _ => None,
    }
}

fn current_reason(why: &VerdictKind) -> Option<CurrentReason> {
    reason(why).as_ref().map(CurrentReason::of)
}

fn pod_of(why: &VerdictKind) -> Option<&PodKey> {
    match why {
        VerdictKind::NotDisruptable(
            NotDisruptable::PodDoNotDisrupt { pod }
            | NotDisruptable::SeveralPdbs { pod, .. }
            | NotDisruptable::Pdb { pod, .. },
        ) => Some(pod),
        _ => None,
    }
}

fn texts(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

fn distinct<'c>(changes: impl Iterator<Item = &'c Change>) -> Vec<Change> {
    let mut all: Vec<Change> = Vec::new();
    for change in changes {
        if !all.contains(change) {
            all.push(change.clone());
        }
    }
    all
}

/// Returns the changes that release what keeps a node; empty if nothing short of other nodes or pods does.
fn releases(node: &NodeState, why: &VerdictKind) -> Vec<Change> {
    let name = || node.name().to_owned();
    let pool = || node.node_pool().unwrap_or_default().to_owned();
    match why {
        VerdictKind::NotDisruptable(why) => match why {
            NotDisruptable::PodDoNotDisrupt { pod } => vec![Change::WithoutPodAnnotation(
                pod.namespace.clone(),
                pod.name.clone(),
            )],
            NotDisruptable::NodeDoNotDisrupt => vec![Change::WithoutNodeAnnotation(name())],
            NotDisruptable::Nominated => vec![Change::WithoutNomination(name())],
            NotDisruptable::Pdb { pod, budget } => {
                vec![Change::WithoutPdb(pod.namespace.clone(), budget.clone())]
            }
            NotDisruptable::SeveralPdbs { pod, budgets } => budgets
                .iter()
                .map(|budget| Change::WithoutPdb(pod.namespace.clone(), budget.clone()))
                .collect(),
            _ => Vec::new(),
        },
        VerdictKind::Kept(why) => match why {
            NotConsolidatable::NodeDoNotConsolidate => vec![Change::WithoutNodeAnnotation(name())],
            NotConsolidatable::Disabled { node_pool } => {
                let now = NillableDuration::after(jiff::SignedDuration::ZERO);
                vec![Change::ConsolidateAfter(node_pool.clone(), now)]
            }
            NotConsolidatable::WhenEmpty { .. } | NotConsolidatable::Score { .. } => {
                let policy = ConsolidationPolicy::WhenEmptyOrUnderutilized;
                vec![Change::Policy(pool(), policy)]
            }
            NotConsolidatable::TooRecent => vec![Change::Consolidatable(name())],
            NotConsolidatable::Budget { node_pool } => {
                vec![Change::Budget(node_pool.clone(), "100%".to_owned())]
            }
            NotConsolidatable::Paused { node_pool, .. } => {
                vec![Change::WithoutPause(node_pool.clone())]
            }
            NotConsolidatable::SpotToSpotDisabled => vec![Change::SpotToSpot],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
