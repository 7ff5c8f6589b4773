//! Decisions on a bundle's snapshot: their digests, and how to make them again.
//!
//! The digest of a plan is that of its parts as JSON: names as text, maps sorted, prices by their bits, reasons as values. Durations
//! are not among them. Equal plans have equal digests on each host, with any number of threads.

use std::collections::BTreeMap;

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
    /// The digest of the plan.
    pub digest: String,
    /// Whether the pass ended early, so that it cannot be compared.
    pub truncated: bool,
    /// Its parts by number: nodes planned, pods without a place, commands, …
    pub counts: BTreeMap<String, usize>,
}

/// The plan of a pass.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PassResult {
    Provisioning(Plan),
    Disruption(Box<DisruptionPlan>),
}

/// Makes a pass over `snapshot` with a number of threads; `cancel` ends it early.
#[must_use]
pub fn run_pass(
    pass: Replayed,
    snapshot: &Snapshot,
    settings: &Settings,
    threads: usize,
    cancel: Option<&Cancel>,
) -> PassResult {
    match pass {
        Replayed::Provisioning => {
            let mut query =
                Query::new(PodSet::Waiting).with_buffer_pods(settings.buffer_pods().to_vec());
            query.cancel = cancel.cloned();
            PassResult::Provisioning(schedule::schedule(snapshot, settings.policy(), &query))
        }
        Replayed::Disruption => {
            let mut request: DisruptionRequest = settings.request().with_threads(threads);
            request.query.cancel = cancel.cloned();
            request.multi_node.cancel = cancel.cloned();
            request.single_node_cancel = cancel.cloned();
            PassResult::Disruption(Box::new(disruption::plan(snapshot, &request)))
        }
    }
}

impl PassResult {
    /// Returns the record of the decision in a bundle. `cancelled` is whether its end was asked for.
    #[must_use]
    pub fn decision(&self, pass: Replayed, cancelled: bool) -> Decision {
        let ended_early = match self {
            Self::Provisioning(plan) => !plan.undecided.is_empty(),
            Self::Disruption(plan) => !plan.timed_out.is_empty(),
        };
        self.record(pass.as_str().to_owned(), cancelled || ended_early)
    }

    pub(super) fn record(&self, id: String, truncated: bool) -> Decision {
        match self {
            Self::Provisioning(plan) => Decision::of_plan(id, plan, truncated),
            Self::Disruption(plan) => Decision::of_disruption(id, plan, truncated),
        }
    }
}

impl Decision {
    pub(super) fn of_plan(id: String, plan: &Plan, truncated: bool) -> Self {
        let unplaced = plan.unplaced.iter().map(|it| {
            let why = (pod_reason(&it.why), it.why.to_string());
            (&it.pod, it.buffer, why)
        });
        let ignored = plan.ignored.iter();
        let ignored = ignored.map(|it| (&it.pod, format!("{:?}", it.why)));
        let pools = plan.pools.iter();
        let pools = pools.map(|pool| (&pool.node_pool, Reason::from(pool)));
        let zones = plan.pending_by_zone.iter();
        let zones = zones.map(|(zone, count)| (zone.to_string(), count));
        let canonical = (
            planned(&plan.new_node_claims),
            placements(&plan.existing),
            unplaced.collect::<Vec<_>>(),
            &plan.undecided,
            ignored.collect::<Vec<_>>(),
            pools.collect::<Vec<_>>(),
            zones.collect::<Vec<_>>(),
            plan.bound_pods,
        );
        let counts = [
            ("planned", plan.new_node_claims.len()),
            ("existing", plan.existing.len()),
            ("unplaced", plan.unplaced.len()),
        ];
        Self {
            id,
            pass: Replayed::Provisioning,
            digest: Digest::of(&canonical).to_string(),
            truncated,
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
        }
    }

    pub(super) fn of_disruption(id: String, plan: &DisruptionPlan, truncated: bool) -> Self {
        let commands = plan.commands.iter().map(command);
        let verdicts = plan.verdicts.iter();
        let verdicts = verdicts.map(|it| (it.node.name(), verdict(&it.kind)));
        let budgets = plan.budgets.iter().map(|(reason, budgets)| {
            let of_pools = budgets.iter().map(|(pool, budget)| {
                let numbers = [
                    budget.nodes,
                    budget.consuming,
                    budget.allowed,
                    budget.remaining,
                ];
                (pool, numbers)
            });
            (reason, of_pools.collect::<Vec<_>>())
        });
        let eligible = plan.eligible.iter();
        let eligible = eligible.map(|(method, count)| (format!("{method:?}"), count));
        let canonical = (
            commands.collect::<Vec<_>>(),
            verdicts.collect::<Vec<_>>(),
            budgets.collect::<Vec<_>>(),
            eligible.collect::<Vec<_>>(),
            &plan.unseen_pools,
            plan.budget_blocked,
        );
        let counts = [
            ("commands", plan.commands.len()),
            ("verdicts", plan.verdicts.len()),
        ];
        Self {
            id,
            pass: Replayed::Disruption,
            digest: Digest::of(&canonical).to_string(),
            truncated,
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
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

fn planned(claims: &[PlannedNodeClaim]) -> Vec<impl Serialize> {
    let of = |claim: &PlannedNodeClaim| {
        (
            claim.node_pool.clone(),
            claim.instance_types.to_vec(),
            (claim.pods.clone(), claim.buffer_pods.clone()),
            claim.hourly_price.to_bits(),
            claim.reservations.clone(),
            claim.to_node_claim(),
        )
    };
    claims.iter().map(of).collect()
}

fn placements(placements: &[schedule::Placement]) -> Vec<(&PodKey, &str, bool)> {
    let all = placements.iter();
    all.map(|it| (&it.pod, it.node.as_str(), it.buffer))
        .collect()
}

fn command(command: &Command) -> impl Serialize {
    let nodes = command.candidates.iter().map(|node| node.name());
    let scores = command.scores.iter();
    let scores = scores.map(|score| (&score.node_pool, score.score.to_bits()));
    (
        format!("{:?}", command.method),
        nodes.collect::<Vec<_>>(),
        planned(&command.replacements),
        placements(&command.placements),
        command.savings.to_bits(),
        scores.collect::<Vec<_>>(),
    )
}

/// Returns what is known of a verdict: a reason, or the name of the variant with savings, pods moved and instance types.
fn verdict(kind: &VerdictKind) -> impl Serialize {
    match kind {
        VerdictKind::NotDisruptable(why) => (Some(Reason::from(why)), "NotDisruptable".to_owned()),
        VerdictKind::Kept(why) => (Some(Reason::from(why)), "Kept".to_owned()),
        other => (None, format!("{other:?}")),
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
    let again = (!recorded.truncated).then(|| {
        run_pass(recorded.pass, snapshot, settings, threads, None).decision(recorded.pass, false)
    });
    recorded.compared(again)
}
