//! Decisions on a bundle's snapshot: their canonical form, their digests, and how to make them again.
//!
//! The canonical form of a plan is its JSON: names as text, maps sorted, prices by their bits, reasons as values. Durations are not
//! part of it. Equal plans have equal digests on each host, with any number of threads.

use std::collections::BTreeMap;

use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{self, Command, DisruptionPlan, DisruptionRequest, VerdictKind};
use karpenter_core::pod::PodKey;
use karpenter_core::reason::{Reason, pod_reason};
use karpenter_core::schedule::{self, Cancel, Plan, PlannedNodeClaim, PodSet, Query};
use serde::{Deserialize, Serialize};

use super::Settings;
use crate::digest::Digest;

/// A pass that can be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Replayed {
    /// Where the pending pods go.
    Provisioning,
    /// Which nodes are disrupted.
    Disruption,
}

impl Replayed {
    pub const ALL: [Self; 2] = [Self::Provisioning, Self::Disruption];

    /// Returns the name, which is also the id of the decision in a bundle.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "Provisioning",
            Self::Disruption => "Disruption",
        }
    }
}

/// A decision that was made on the snapshot of a bundle when it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Decision {
    /// Identifies it in the bundle.
    pub id: String,
    pub pass: Replayed,
    /// The digest of the canonical form.
    pub digest: String,
    /// Whether the pass ended early, so that it cannot be compared.
    pub truncated: bool,
    /// Its parts by number: nodes planned, pods without a place, commands, …
    pub counts: BTreeMap<String, usize>,
}

/// The plan of a pass.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Made {
    Provisioning(Plan),
    Disruption(Box<DisruptionPlan>),
}

/// Makes a decision on `snapshot` with a number of threads; `cancel` ends it early.
#[must_use]
pub fn make(
    pass: Replayed,
    snapshot: &Snapshot,
    settings: &Settings,
    threads: usize,
    cancel: Option<&Cancel>,
) -> Made {
    match pass {
        Replayed::Provisioning => {
            let mut query =
                Query::new(PodSet::Waiting).with_buffer_pods(settings.buffer_pods().to_vec());
            query.cancel = cancel.cloned();
            Made::Provisioning(schedule::schedule(snapshot, settings.policy(), &query))
        }
        Replayed::Disruption => {
            let mut request: DisruptionRequest = settings.request().with_threads(threads);
            request.query.cancel = cancel.cloned();
            request.multi_node.cancel = cancel.cloned();
            request.single_node_cancel = cancel.cloned();
            Made::Disruption(Box::new(disruption::plan(snapshot, &request)))
        }
    }
}

impl Made {
    #[must_use]
    pub fn canonical(&self) -> Canonical {
        match self {
            Self::Provisioning(plan) => Canonical::of_plan(plan),
            Self::Disruption(plan) => Canonical::of_disruption(plan),
        }
    }

    /// Returns the record of the decision in a bundle. `cancelled` is whether its end was asked for.
    #[must_use]
    pub fn decision(&self, pass: Replayed, cancelled: bool) -> Decision {
        let canonical = self.canonical();
        let truncated = cancelled
            || match self {
                Self::Provisioning(plan) => !plan.undecided.is_empty(),
                Self::Disruption(plan) => !plan.timed_out.is_empty(),
            };
        Decision::of(pass.as_str().to_owned(), pass, &canonical, truncated)
    }
}

impl Decision {
    pub(super) fn of(id: String, pass: Replayed, canonical: &Canonical, truncated: bool) -> Self {
        Self {
            id,
            pass,
            digest: Digest::of(canonical).to_string(),
            truncated,
            counts: canonical.counts(),
        }
    }

    /// Compares it with the same decision made again; `None` if that was not made, because this one ended early.
    pub(super) fn compared(&self, again: Option<Self>) -> Comparison {
        let (replayed, counts) = again.map(|made| (made.digest, made.counts)).unzip();
        Comparison {
            id: self.id.clone(),
            pass: self.pass,
            recorded: self.digest.clone(),
            replayed,
            recorded_counts: self.counts.clone(),
            replayed_counts: counts.unwrap_or_default(),
        }
    }
}

/// A plan in its canonical form.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Canonical {
    Provisioning {
        planned: Vec<Planned>,
        existing: Vec<(String, String, bool)>,
        unplaced: Vec<(String, bool, Reason, String)>,
        undecided: Vec<String>,
        ignored: Vec<(String, String)>,
        pools: Vec<(String, Reason)>,
        zones: BTreeMap<String, usize>,
        bound_pods: usize,
    },
    Disruption {
        commands: Vec<CanonicalCommand>,
        verdicts: Vec<(String, CanonicalVerdict)>,
        budgets: BTreeMap<String, BTreeMap<String, [u32; 4]>>,
        eligible: BTreeMap<String, usize>,
        unseen_pools: Vec<String>,
        budget_blocked: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    pub pool: String,
    pub types: Vec<String>,
    pub pods: Vec<String>,
    pub buffer_pods: Vec<String>,
    pub price: u64,
    pub reservations: Vec<String>,
    pub claim: NodeClaim,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CanonicalCommand {
    pub method: String,
    pub nodes: Vec<String>,
    pub replacements: Vec<Planned>,
    pub placements: Vec<(String, String, bool)>,
    pub savings: u64,
    pub scores: Vec<(String, u64)>,
}

/// The verdict about a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum CanonicalVerdict {
    NotDisruptable(Reason),
    Kept(Reason),
    Deleted(u64, usize),
    Replaced(u64, usize, Vec<String>),
    Other(String),
}

fn text(pod: &PodKey) -> String {
    format!("{}/{}/{}", pod.namespace, pod.name, pod.uid)
}

fn texts<'a>(pods: impl IntoIterator<Item = &'a PodKey>) -> Vec<String> {
    pods.into_iter().map(text).collect()
}

impl Planned {
    fn of(planned: &PlannedNodeClaim) -> Self {
        Self {
            pool: planned.node_pool.clone(),
            types: planned.instance_types.to_vec(),
            pods: texts(&planned.pods),
            buffer_pods: texts(&planned.buffer_pods),
            price: planned.hourly_price.to_bits(),
            reservations: planned.reservations.clone(),
            claim: planned.to_node_claim(),
        }
    }
}

impl Canonical {
    pub(super) fn of_plan(plan: &Plan) -> Self {
        Self::Provisioning {
            planned: plan.new_node_claims.iter().map(Planned::of).collect(),
            existing: placements(&plan.existing),
            unplaced: plan
                .unplaced
                .iter()
                .map(|pod| {
                    let why = (pod_reason(&pod.why), pod.why.to_string());
                    (text(&pod.pod), pod.buffer, why.0, why.1)
                })
                .collect(),
            undecided: texts(&plan.undecided),
            ignored: plan
                .ignored
                .iter()
                .map(|pod| (text(&pod.pod), format!("{:?}", pod.why)))
                .collect(),
            pools: plan
                .pools
                .iter()
                .map(|pool| (pool.node_pool.clone(), Reason::from(pool)))
                .collect(),
            zones: plan
                .pending_by_zone
                .iter()
                .map(|(zone, count)| (zone.to_string(), *count))
                .collect(),
            bound_pods: plan.bound_pods,
        }
    }

    pub(super) fn of_disruption(plan: &DisruptionPlan) -> Self {
        let budgets = plan.budgets.iter().map(|(reason, budgets)| {
            let of_pools = budgets.iter().map(|(pool, budget)| {
                let numbers = [
                    budget.nodes,
                    budget.consuming,
                    budget.allowed,
                    budget.remaining,
                ];
                (pool.to_owned(), numbers)
            });
            (reason.clone(), of_pools.collect())
        });
        let (eligible, verdicts) = (plan.eligible.iter(), plan.verdicts.iter());
        Self::Disruption {
            commands: plan.commands.iter().map(CanonicalCommand::of).collect(),
            verdicts: verdicts
                .map(|it| (it.node.name().to_owned(), CanonicalVerdict::of(&it.kind)))
                .collect(),
            budgets: budgets.collect(),
            eligible: eligible
                .map(|(method, count)| (format!("{method:?}"), *count))
                .collect(),
            unseen_pools: plan.unseen_pools.iter().cloned().collect(),
            budget_blocked: plan.budget_blocked,
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<String, usize> {
        let counts: &[(&str, usize)] = match self {
            Self::Provisioning {
                planned,
                existing,
                unplaced,
                ..
            } => &[
                ("planned", planned.len()),
                ("existing", existing.len()),
                ("unplaced", unplaced.len()),
            ],
            Self::Disruption {
                commands, verdicts, ..
            } => &[("commands", commands.len()), ("verdicts", verdicts.len())],
        };
        counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }
}

fn placements(placements: &[schedule::Placement]) -> Vec<(String, String, bool)> {
    placements
        .iter()
        .map(|placed| (text(&placed.pod), placed.node.clone(), placed.buffer))
        .collect()
}

impl CanonicalCommand {
    fn of(command: &Command) -> Self {
        Self {
            method: format!("{:?}", command.method),
            nodes: command
                .candidates
                .iter()
                .map(|node| node.name().to_owned())
                .collect(),
            replacements: command.replacements.iter().map(Planned::of).collect(),
            placements: placements(&command.placements),
            savings: command.savings.to_bits(),
            scores: command
                .scores
                .iter()
                .map(|score| (score.node_pool.clone(), score.score.to_bits()))
                .collect(),
        }
    }
}

impl CanonicalVerdict {
    fn of(kind: &VerdictKind) -> Self {
        match kind {
            VerdictKind::NotDisruptable(why) => Self::NotDisruptable(why.into()),
            VerdictKind::Kept(why) => Self::Kept(why.into()),
            VerdictKind::Deleted {
                savings,
                pods_moved,
            } => Self::Deleted(savings.to_bits(), *pods_moved),
            VerdictKind::Replaced {
                savings,
                pods_moved,
                with,
            } => Self::Replaced(savings.to_bits(), *pods_moved, with.clone()),
            other => Self::Other(format!("{other:?}")),
        }
    }
}

/// A decision made again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// The id of the decision.
    pub id: String,
    pub pass: Replayed,
    /// The digest in the bundle.
    pub recorded: String,
    /// The digest of the new decision; `None` if it was not made, because the recorded one ended early.
    pub replayed: Option<String>,
    /// The parts of the recorded decision by number.
    pub recorded_counts: BTreeMap<String, usize>,
    /// The parts of the new decision by number.
    pub replayed_counts: BTreeMap<String, usize>,
}

impl Comparison {
    /// Reports whether the new decision differs.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.replayed
            .as_ref()
            .is_some_and(|digest| *digest != self.recorded)
    }
}

/// Makes a recorded decision again and compares both.
#[must_use]
pub fn replay(
    recorded: &Decision,
    snapshot: &Snapshot,
    settings: &Settings,
    threads: usize,
) -> Comparison {
    let made = (!recorded.truncated).then(|| {
        make(recorded.pass, snapshot, settings, threads, None).decision(recorded.pass, false)
    });
    recorded.compared(made)
}
