//! Shadow (`--shadow`): decides beside another Karpenter on the states of its cluster, writes nothing, and compares.
//!
//! The controllers that act are not started: [`Provisioning`] and [`Disruption`] run in their stead, hand their plans to
//! [`karpenter_decisions::shadow::Comparison`], and record them as the ring of decisions does. [`refusal`] is the second line of
//! defense: clients and provider refuse whatever would change something, and count it.
//!
//! There is no lease, no event, no webhook. The comparison lives in memory, and begins again after a restart.

mod disruption;
mod provisioning;

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::DisruptionRequest;
use karpenter_decisions::change::{self, Change as Hypothesis};
use karpenter_decisions::shadow::{Comparison, ShadowReport};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

pub use crate::client::refusal::{self, Refusals};
pub use disruption::Disruption;
pub use provisioning::Provisioning;

use crate::clock::Clock;
use crate::context::Context;
use crate::decisions::Decisions;
use crate::model::{Change, View};
use crate::options::Options;
use crate::provisioning::Triggers;

/// How many earlier states are stored: a node is decided on in the last one in which it was not disrupted.
const MAX_STATES: usize = 8;
/// How many nodes may wait for a decision on the state before the other Karpenter disrupted them.
const MAX_QUEUED: usize = 256;

/// A node that the other Karpenter began to disrupt, and the state before.
#[derive(Debug)]
struct Taken {
    claim: String,
    state: Snapshot,
    at: Timestamp,
}

/// What the observers of a shadow share with its passes, and the comparison.
#[derive(Debug)]
pub struct Shadow {
    comparison: Mutex<Comparison>,
    /// The latest states, newest last.
    states: Mutex<VecDeque<Snapshot>>,
    taken: Mutex<VecDeque<Taken>>,
    took: Notify,
    triggers: Triggers,
    refusals: Refusals,
    changes: Vec<Hypothesis>,
    decisions: Arc<Decisions>,
}

impl Shadow {
    /// Creates the state of a shadow.
    #[must_use]
    pub fn new(
        options: &Options,
        clock: Clock,
        refusals: Refusals,
        decisions: Arc<Decisions>,
    ) -> Self {
        Self {
            comparison: Mutex::new(Comparison::new(Timestamp::UNIX_EPOCH)),
            states: Mutex::default(),
            taken: Mutex::default(),
            took: Notify::new(),
            triggers: Triggers::new(options, clock),
            refusals,
            changes: options.shadow_if.clone(),
            decisions,
        }
    }

    /// Begins the comparison.
    pub fn begin(&self, now: Timestamp) {
        *self.comparison() = Comparison::new(now);
    }

    /// Returns the report of what was compared since `since`.
    pub fn report(&self, since: Option<Timestamp>, now: Timestamp) -> ShadowReport {
        let mut comparison = self.comparison();
        comparison.advance(now);
        let mut report = comparison.report(since, now);
        report.refused = self.refusals.total();
        report.changes = self.changes.iter().map(ToString::to_string).collect();
        report
    }

    fn comparison(&self) -> MutexGuard<'_, Comparison> {
        self.comparison.lock()
    }

    /// Returns a snapshot with the changes of `--shadow-if`. A change that cannot be made, because its object does not exist, is
    /// left out and logged.
    fn changed(&self, snapshot: Snapshot, request: &mut DisruptionRequest) -> Snapshot {
        let mut changed = snapshot;
        for hypothesis in &self.changes {
            match change::apply(std::slice::from_ref(hypothesis), &changed, request) {
                Ok(made) => {
                    changed = made.snapshot;
                    *request = made.request;
                }
                Err(error) => {
                    tracing::info!(logger = "shadow", %error, "leaving out a change of --shadow-if");
                }
            }
        }
        changed
    }

    /// Observes a change of the model. Runs on the model's task.
    pub fn observe(&self, cx: &Context, change: &Change, view: &View) {
        if cx.acting.since().is_none() || !view.is_synced() {
            return;
        }
        let now = cx.clock.now();
        self.triggers.observe(change, &view.snapshot, false);
        match change {
            Change::Pod { before, after } => {
                let uid = after.as_ref().map(|pod| &pod.key.uid);
                let mut comparison = self.comparison();
                if let Some(deleted) = before.as_ref().filter(|pod| Some(&pod.key.uid) != uid) {
                    comparison.pod_left(&deleted.key.uid);
                }
                let Some(pod) = after else { return };
                if pod.is_provisionable() {
                    comparison.pod_waits(&pod.key, now);
                } else if pod.node_name.is_some() {
                    let was_bound = before.as_ref().is_some_and(|it| it.node_name.is_some());
                    if !was_bound {
                        comparison.pod_left(&pod.key.uid);
                    }
                }
            }
            Change::NodeClaim {
                name,
                before,
                after,
            } => {
                let (before, after) = (before.as_deref(), after.as_deref());
                let mut comparison = self.comparison();
                comparison.claim_changed(name, before, after, &view.snapshot, now);
                if is_taken(after) && !is_taken(before) && !comparison.is_ours(name) {
                    drop(comparison);
                    self.take(name, now);
                }
            }
            _ => {}
        }
        self.remember(&view.snapshot);
    }

    /// Stores the latest states that differ for consolidation.
    fn remember(&self, snapshot: &Snapshot) {
        let mut states = self.states.lock();
        let known = states.back().map(Snapshot::epoch);
        if known == Some(snapshot.epoch()) {
            states.pop_back();
        }
        states.push_back(snapshot.fork());
        while states.len() > MAX_STATES {
            states.pop_front();
        }
    }

    /// Asks for a decision on the state before the other Karpenter began to disrupt a node.
    fn take(&self, claim: &str, at: Timestamp) {
        let states = self.states.lock();
        let before = states.iter().rev().find(|snapshot| {
            let state = snapshot.node(claim);
            state.is_some_and(|state| !karpenter_decisions::shadow::comparison::is_disrupted(state))
        });
        let Some(state) = before.map(Snapshot::fork) else {
            return;
        };
        drop(states);
        let mut taken = self.taken.lock();
        if taken.len() < MAX_QUEUED {
            taken.push_back(Taken {
                claim: claim.to_owned(),
                state,
                at,
            });
            self.took.notify_one();
        }
    }
}

fn is_taken(claim: Option<&NodeClaim>) -> bool {
    claim.is_some_and(|claim| claim.is_true(types::DISRUPTION_REASON))
}

/// Registers the metrics of a shadow.
pub fn register(cx: &Arc<Context>, shadow: &Arc<Shadow>) {
    let (clock, shadow) = (cx.clock, Arc::clone(shadow));
    cx.metrics.registry.live(
        "karpenter_shadow_agreement_ratio",
        "How far this Karpenter agrees with the one that runs the cluster, from 0 to 1.",
        &["decisions"],
        move |emit| {
            let report = shadow.report(None, clock.now());
            emit.set(&["provisioning"], report.provisioning.agreement);
            emit.set(&["disruption"], report.disruption.agreement);
        },
    );
}
