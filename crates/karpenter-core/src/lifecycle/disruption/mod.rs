//! The disruption process: when a pass is made, and what becomes of its commands.
//!
//! 1. A pass begins with the removal of taints that belong to no command: an earlier process left them, or a roll-back failed.
//! 2. Proposals that are due are validated; what is still valid is started.
//! 3. A plan is made. Drift commands start at once; emptiness and consolidation are proposals, which are validated a while later
//!    ([`Settings::validation`]).
//! 4. A command starts, if nothing that changed since the plan or the validation forbids it: headroom for the replacements of static
//!    NodePools is reserved; its nodes are tainted; its replacements are created; only then its nodes are marked for deletion in the
//!    model, because the provisioner would launch nodes for their pods, too.
//! 5. Once every replacement is initialized, the NodeClaims are deleted. If a replacement is deleted, or the command times out, it is
//!    rolled back; replacements that joined are ordinary empty nodes. Commands wait beside passes, not in them.
//! 6. A NodePool whose replacements failed is in cool-down for drift.
//!
//! The caller gives events and executes effects; an effect's documentation names the event that answers it.
//!
//! ```
//! use jiff::Timestamp;
//! use karpenter_core::cluster::{Cluster, ClusterConfig};
//! use karpenter_core::disruption::{DisruptionRequest, plan};
//! use karpenter_core::lifecycle::disruption::{Disruption, Effect, Event, Settings};
//!
//! let (cluster, now) = (Cluster::new(ClusterConfig::default()), Timestamp::UNIX_EPOCH);
//! let mut disruption = Disruption::new(Settings::default(), now);
//! let mut events = vec![Event::Due];
//! while let Some(event) = events.pop() {
//!     let snapshot = cluster.snapshot();
//!     for effect in disruption.on(event, &snapshot, now) {
//!         if let Effect::Plan(inputs) = effect {
//!             let mut request = DisruptionRequest::at(now);
//!             inputs.complete(&mut request);
//!             events.push(Event::Planned(plan(&snapshot, &request).into()));
//!         }
//!     }
//! }
//! assert_eq!(disruption.next().as_second(), 10, "nothing to do: the next pass is in ten seconds");
//! ```
//!
//! UPSTREAM: pkg/controllers/disruption/{controller,queue}.go. DIFFERS: neither validation nor the wait for replacements blocks
//! passes; a NodePool whose replacements failed is in cool-down alone.

mod effects;
mod execution;
mod passes;
mod recent_replacements;
mod start;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use karpenter_api::conditions::{HasConditions, types};
use karpenter_api::labels::taints;
use karpenter_api::v1::NodeClaim;

pub use effects::{CommandEnd, Effect, Event, Inputs, Report, TaintedNode};

use super::backoff::Backoff;
use super::{after, has_passed};
use crate::cluster::Snapshot;
use crate::disruption::{
    Budgets, Candidate, Command, CommandInvalidated, DisruptionPlan, Method, startable,
};
use execution::Execution;
use passes::{FRUITLESS_PAUSE, INTERVAL, VALIDATION_DELAY, is_fruitless, next_chance};
use recent_replacements::{PROTECTION, RecentReplacements};
use start::Starting;

/// How long until the removal of taints is retried.
const UNTAINT_RETRY: Duration = Duration::from_secs(1);
/// Cool-down of drift in a NodePool whose replacements failed.
const COOLDOWN: Backoff = Backoff {
    base: Duration::from_secs(60),
    max: Duration::from_secs(600),
};

/// How the process runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long until a proposal is validated: pods may be about to be bound.
    pub validation: Duration,
    /// Whether taints that belong to no command are removed.
    pub removes_stale_taints: bool,
    /// Whether a command is checked again when it starts. A shadow does not: that the other controller has started the same command
    /// meanwhile is no reason against it.
    pub checks_starts: bool,
    /// Whether nothing is planned while a proposal waits for its validation; see
    /// [`Behavior`](crate::behavior::Behavior::passes_wait_for_validation).
    pub waits_for_validation: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            validation: VALIDATION_DELAY,
            removes_stale_taints: true,
            checks_starts: true,
            waits_for_validation: false,
        }
    }
}

/// The disruption process.
#[derive(Clone, Debug)]
pub struct Disruption {
    settings: Settings,
    proposals: Vec<Proposal>,
    pass: Option<Pass>,
    starting: Option<Starting>,
    executions: Vec<Execution>,
    /// Nodes that may still be tainted though their command was rolled back. No command starts until they are not: budgets do
    /// not count them.
    still_tainted: Vec<TaintedNode>,
    /// Number of [`Effect::Untaint`] that are not answered.
    untainting: usize,
    cooldowns: BTreeMap<String, Cooldown>,
    recent_replacements: RecentReplacements,
    unseen_pools: BTreeSet<String>,
    /// Number of pods of capacity buffers on each node.
    buffer_pods: BTreeMap<String, usize>,
    fruitless: Option<Fruitless>,
    next_plan: Timestamp,
    /// When taints are removed again; no pass is made before.
    untaint_at: Option<Timestamp>,
    effects: Vec<Effect>,
}

#[derive(Clone, Debug)]
struct Proposal {
    command: Command,
    due: Timestamp,
}

/// A pass: one step after the other.
#[derive(Clone, Debug, Default)]
struct Pass {
    to_validate: VecDeque<Proposal>,
    to_start: VecDeque<Command>,
    /// What the engine was asked, and on which epoch.
    asked: Option<(Inputs, u64)>,
    has_planned: bool,
    /// The method of the command that is validated.
    validating: Option<Method>,
    /// The method whose command was invalid, if passes wait for validation: the next one is tried.
    invalid: Option<Method>,
    /// Whether a command was started or proposed: another pass follows at once.
    found: bool,
}

#[derive(Clone, Debug)]
struct Cooldown {
    /// Number of consecutive failures.
    failures: u32,
    until: Timestamp,
}

/// A pass that found nothing: another finds nothing either while all of this is unchanged.
#[derive(Clone, Debug)]
struct Fruitless {
    epoch: u64,
    /// Remaining disruption budgets: their schedules are the only ones that open with time.
    budgets: BTreeMap<String, Budgets>,
    /// When another pass is made at the latest.
    until: Timestamp,
}

impl Disruption {
    /// Returns the process; its first pass is due `now`.
    pub fn new(settings: Settings, now: Timestamp) -> Self {
        Self {
            settings,
            proposals: Vec::new(),
            pass: None,
            starting: None,
            executions: Vec::new(),
            still_tainted: Vec::new(),
            untainting: 0,
            cooldowns: BTreeMap::new(),
            recent_replacements: RecentReplacements::default(),
            unseen_pools: BTreeSet::new(),
            buffer_pods: BTreeMap::new(),
            fruitless: None,
            next_plan: now,
            untaint_at: None,
            effects: Vec::new(),
        }
    }

    /// Continues with what another process knows: the NodePools that its last pass did not reach.
    #[must_use]
    pub fn with_unseen_pools(mut self, pools: BTreeSet<String>) -> Self {
        self.unseen_pools = pools;
        self
    }

    /// Protects a NodeClaim that consolidation launched at `launched` from consolidation.
    pub fn protect(&mut self, claim: &NodeClaim, launched: Timestamp) {
        self.recent_replacements
            .add(claim, after(launched, PROTECTION));
    }

    /// Continues what another process has started, as far as its marks in the model show it: its method is not known, nor which
    /// command a replacement belongs to.
    pub fn resume(&mut self, snapshot: &Snapshot, now: Timestamp) {
        self.executions.extend(Execution::of_marks(snapshot, now));
    }

    /// Sets how many pods of capacity buffers are on each node, which the snapshot does not tell. The next pass plans if that has
    /// changed.
    pub fn set_buffer_pods(&mut self, on_nodes: BTreeMap<String, usize>) {
        if self.buffer_pods != on_nodes {
            self.buffer_pods = on_nodes;
            self.fruitless = None;
        }
    }

    /// Returns when the next pass is due.
    pub fn next(&self) -> Timestamp {
        let due = self.proposals.iter().map(|proposal| proposal.due);
        let next = || due.fold(self.next_plan, Timestamp::min);
        self.untaint_at.unwrap_or_else(next)
    }

    /// Reports whether a pass is due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        if let Some(at) = self.untaint_at {
            return has_passed(at, now, UNTAINT_RETRY);
        }
        let mut proposals = self.proposals.iter();
        has_passed(self.next_plan, now, INTERVAL)
            || proposals.any(|it| has_passed(it.due, now, self.settings.validation))
    }

    /// Reports whether a pass waits for an answer.
    pub fn is_passing(&self) -> bool {
        self.pass.is_some() || self.untainting > 0
    }

    /// Reports whether a command was started that has not ended.
    pub fn is_executing(&self) -> bool {
        !self.executions.is_empty()
    }

    /// Returns the commands that wait for their validation.
    pub fn proposals(&self) -> impl Iterator<Item = &Command> {
        self.proposals.iter().map(|proposal| &proposal.command)
    }

    /// Returns until when passes find nothing while this snapshot does not change, apart from budgets.
    pub fn quiet_until(&self, snapshot: &Snapshot) -> Option<Timestamp> {
        let fruitless = self.fruitless.as_ref()?;
        let is_quiet = self.proposals.is_empty()
            && self.executions.is_empty()
            && snapshot.epoch() == fruitless.epoch;
        is_quiet.then_some(fruitless.until)
    }

    /// Forgets all commands, as a restart of the process does, if an effect will never be answered. The next pass removes the
    /// taints.
    pub fn restart(&mut self, now: Timestamp) -> Vec<Effect> {
        let executed = self.executions.iter().flat_map(|it| &it.command.candidates);
        let starting = self.starting.iter().flat_map(|it| &it.command.candidates);
        let mut effects = vec![Effect::Mark(provider_ids(executed.chain(starting)), false)];
        let reserved = self.starting.take().map(|starting| starting.reserved);
        effects.extend(reserved.map(Effect::Release));
        *self = Self::new(self.settings, now);
        effects
    }

    /// Takes an event; returns what is to be done. `snapshot` is the state after the event.
    pub fn on(&mut self, event: Event, snapshot: &Snapshot, now: Timestamp) -> Vec<Effect> {
        match event {
            Event::Due => self.begin(snapshot, now),
            Event::Changed => self.check(snapshot, now),
            Event::Validated(checked) => self.validated(checked),
            Event::Planned(plan) => self.planned(&plan, snapshot, now),
            Event::Unanswered => {
                if let Some(pass) = &mut self.pass {
                    pass.asked = None;
                }
            }
            Event::Reserved(true) => self.taint(),
            Event::Reserved(false) => {
                if let Some(starting) = &mut self.starting {
                    starting.reserved.clear();
                }
                self.not_started(true, now);
            }
            Event::Tainted { failed } => self.tainted(&failed, now),
            Event::Refused => self.not_started(false, now),
            Event::Launched(claims) => self.launched(claims, now),
            Event::Marked => self.marked(snapshot, now),
            Event::Untainted(left) => {
                self.untainting = self.untainting.saturating_sub(1);
                if !left.is_empty() {
                    self.still_tainted.extend(left);
                    self.untaint_at = Some(after(now, UNTAINT_RETRY));
                }
            }
            Event::Deleted {
                command,
                claim,
                deleted,
            } => {
                let ended = |it: &mut Execution, effects: &mut Vec<Effect>| {
                    let is_its = it.command.id() == command;
                    is_its.then(|| it.deleted(&claim, deleted, effects))?
                };
                self.each_execution(ended, now);
            }
        }
        self.proceed(snapshot, now);
        std::mem::take(&mut self.effects)
    }

    fn begin(&mut self, snapshot: &Snapshot, now: Timestamp) {
        if self.is_passing() {
            return;
        }
        self.recent_replacements.prune(snapshot, now);
        let mut tainted = std::mem::take(&mut self.still_tainted);
        let stale = self.stale(snapshot);
        let new: Vec<_> = stale.filter(|it| !tainted.contains(it)).collect();
        tainted.extend(new);
        if !tainted.is_empty() {
            self.untaint(tainted);
            // The model learns of it meanwhile.
            self.untaint_at = Some(after(now, UNTAINT_RETRY));
            return;
        }
        self.untaint_at = None;
        let validation = self.settings.validation;
        let (due, waiting) = std::mem::take(&mut self.proposals)
            .into_iter()
            .partition::<Vec<_>, _>(|it| has_passed(it.due, now, validation));
        self.proposals = waiting;
        self.pass = Some(Pass {
            to_validate: due.into(),
            ..Pass::default()
        });
    }

    /// Takes the next step of the pass, unless the last one is not answered.
    fn proceed(&mut self, snapshot: &Snapshot, now: Timestamp) {
        if self.starting.is_some() || self.untainting > 0 {
            return;
        }
        let Some(mut pass) = self.pass.take_if(|pass| pass.asked.is_none()) else {
            return;
        };
        if !self.still_tainted.is_empty() {
            self.proposals.extend(pass.to_validate);
        } else if let Some(command) = self.next_to_start(&mut pass, snapshot, now) {
            self.start(command);
            self.pass = Some(pass);
        } else if let Some(proposal) = pass.to_validate.pop_front() {
            let inputs = self.inputs(self.claims(), now);
            pass.asked = Some((inputs.clone(), snapshot.epoch()));
            pass.validating = Some(proposal.command.method);
            self.effects
                .push(Effect::Validate(proposal.command, inputs));
            self.pass = Some(pass);
        } else if let Some(due) = self.blocked_until() {
            self.next_plan = due;
        } else if !pass.has_planned && (pass.found || has_passed(self.next_plan, now, INTERVAL)) {
            (pass.has_planned, pass.found) = (true, false);
            self.next_plan = after(now, INTERVAL);
            let invalid = pass.invalid.take();
            if invalid == Some(Method::SingleNode) || self.is_unchanged(snapshot, now) {
                return;
            }
            let mut in_flight = self.claims();
            in_flight.extend(self.proposals().flat_map(claims));
            let mut inputs = self.inputs(in_flight, now);
            inputs.after = invalid;
            pass.asked = Some((inputs.clone(), snapshot.epoch()));
            self.effects.push(Effect::Plan(inputs));
            self.pass = Some(pass);
        } else if pass.has_planned {
            let wait = if pass.found { Duration::ZERO } else { INTERVAL };
            self.next_plan = after(now, wait);
        }
    }

    /// Returns when the first proposal is validated, if nothing is planned before.
    fn blocked_until(&self) -> Option<Timestamp> {
        let due = self.proposals.iter().map(|proposal| proposal.due);
        due.min().filter(|_| self.settings.waits_for_validation)
    }

    /// Returns the next command to start. The plan and the validation are answers to older snapshots, and the commands before it took
    /// time: what has changed since may forbid it.
    fn next_to_start(
        &self,
        pass: &mut Pass,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Option<Command> {
        if !self.settings.checks_starts {
            return pass.to_start.pop_front();
        }
        let (in_flight, cooling) = (self.claims(), self.cooling_down_pools(now));
        let is_cooling = |command: &Command| {
            let mut candidates = command.candidates.iter();
            command.method.is_eventual() && candidates.any(|it| cooling.contains(it.pool_name()))
        };
        let planned = std::iter::from_fn(|| pass.to_start.pop_front());
        let mut planned = planned.filter(|it| !is_cooling(it));
        planned.find_map(|command| startable(command, snapshot, &in_flight, now))
    }

    fn cooling_down_pools(&self, now: Timestamp) -> BTreeSet<String> {
        let cooling = self.cooldowns.iter();
        let cooling = cooling.filter(|(_, it)| !has_passed(it.until, now, COOLDOWN.max));
        cooling.map(|(pool, _)| pool.clone()).collect()
    }

    /// Returns the NodeClaims of commands.
    fn claims(&self) -> BTreeSet<String> {
        let executed = self.executions.iter().map(|it| &it.command);
        let starting = self.starting.iter().map(|it| &it.command);
        executed
            .chain(starting)
            .flat_map(|command| claims(command))
            .collect()
    }

    fn inputs(&self, in_flight: BTreeSet<String>, now: Timestamp) -> Inputs {
        let mut proposed = self.proposals();
        Inputs {
            in_flight,
            recent_replacements: self.recent_replacements.claims(),
            unseen_pools: self.unseen_pools.clone(),
            cooling_down_pools: self.cooling_down_pools(now),
            consolidates: proposed.all(|it| it.method == Method::Emptiness),
            after: None,
        }
    }

    /// Reports whether a plan would find as little as the last one.
    fn is_unchanged(&self, snapshot: &Snapshot, now: Timestamp) -> bool {
        self.fruitless.as_ref().is_some_and(|fruitless| {
            fruitless.epoch == snapshot.epoch()
                && !has_passed(fruitless.until, now, FRUITLESS_PAUSE)
                && fruitless.budgets == Budgets::by_reason(snapshot, now)
        })
    }

    fn validated(&mut self, checked: Result<Command, CommandInvalidated>) {
        if let Some(pass) = &mut self.pass {
            pass.asked = None;
            let method = pass.validating.take();
            match checked {
                Ok(command) => pass.to_start.push_back(command),
                Err(_) if self.settings.waits_for_validation => pass.invalid = method,
                Err(_) => {}
            }
        }
    }

    fn planned(&mut self, plan: &DisruptionPlan, snapshot: &Snapshot, now: Timestamp) {
        let Some(pass) = &mut self.pass else { return };
        let Some((inputs, epoch)) = pass.asked.take() else {
            return;
        };
        if inputs.consolidates && inputs.after.is_none() {
            self.unseen_pools.clone_from(&plan.unseen_pools);
            let ends = [
                self.recent_replacements.first_expiry(),
                next_chance(plan, snapshot),
            ];
            let ends = ends.into_iter().flatten();
            let until = ends.fold(after(now, FRUITLESS_PAUSE), Timestamp::min);
            let is_fruitless = is_fruitless(plan) && inputs.cooling_down_pools.is_empty();
            self.fruitless = is_fruitless.then(|| Fruitless {
                epoch,
                budgets: plan.budgets.clone(),
                until,
            });
        }
        for command in &plan.commands {
            if command.method.is_validated() {
                let report = Report::Proposed(command.clone());
                self.effects.push(Effect::Report(report));
                self.proposals.push(Proposal {
                    command: command.clone(),
                    due: after(now, self.settings.validation),
                });
                pass.found = true;
            } else {
                pass.to_start.push_back(command.clone());
            }
        }
    }

    fn check(&mut self, snapshot: &Snapshot, now: Timestamp) {
        self.each_execution(|it, effects| it.check(snapshot, now, effects), now);
    }

    /// Lets each command do something, and ends those for which it returns how.
    fn each_execution(
        &mut self,
        mut act: impl FnMut(&mut Execution, &mut Vec<Effect>) -> Option<CommandEnd>,
        now: Timestamp,
    ) {
        let mut ended = Vec::new();
        let effects = &mut self.effects;
        self.executions.retain_mut(|execution| {
            let Some(end) = act(execution, effects) else {
                return true;
            };
            let nodes = execution.rolled_back(&end);
            ended.push((Arc::clone(&execution.command), nodes, end));
            false
        });
        for (command, nodes, end) in ended {
            self.ended(command, end, now);
            if !nodes.is_empty() {
                self.untaint(nodes.iter().map(TaintedNode::of).collect());
                self.effects.push(Effect::Mark(provider_ids(&nodes), false));
            }
        }
    }

    fn ended(&mut self, command: Arc<Command>, end: CommandEnd, now: Timestamp) {
        if command.method.is_eventual() {
            let pools: BTreeSet<&str> = command
                .candidates
                .iter()
                .map(Candidate::pool_name)
                .collect();
            for pool in pools {
                if end == CommandEnd::Succeeded {
                    self.cooldowns.remove(pool);
                } else {
                    let failures = self.cooldowns.get(pool).map_or(0, |it| it.failures) + 1;
                    let until = after(now, COOLDOWN.of(pool, failures));
                    self.cooldowns
                        .insert(pool.to_owned(), Cooldown { failures, until });
                }
            }
        }
        self.effects
            .push(Effect::Report(Report::Ended(command, end)));
    }

    fn untaint(&mut self, nodes: Vec<TaintedNode>) {
        self.untainting += 1;
        self.effects.push(Effect::Untaint(nodes));
    }

    /// Returns the nodes that are tainted for disruption without being part of a command.
    fn stale<'a>(&self, snapshot: &'a Snapshot) -> impl Iterator<Item = TaintedNode> + 'a {
        let in_flight = self.claims();
        let removes = self.settings.removes_stale_taints;
        let nodes = snapshot.nodes().filter(move |_| removes);
        nodes.filter_map(move |state| {
            let claim = state.claim.as_ref()?;
            let mut present = state.node.iter().flat_map(|node| &node.taints);
            let is_tainted = present.any(|taint| taint.key == taints::DISRUPTED)
                || claim.condition(types::DISRUPTION_REASON).is_some();
            let is_stale = is_tainted
                && !state.is_deleting()
                && !claim.is_deleting()
                && !in_flight.contains(claim.name());
            is_stale.then(|| TaintedNode {
                node: state.node.as_ref().map(|node| node.name.clone()),
                claim: claim.name().to_owned(),
            })
        })
    }
}

fn claims(command: &Command) -> impl Iterator<Item = String> {
    let names = command.candidates.iter().map(Candidate::claim_name);
    names.map(str::to_owned)
}

fn provider_ids<'a>(candidates: impl IntoIterator<Item = &'a Candidate>) -> Vec<String> {
    let ids = candidates.into_iter().map(|it| it.node.provider_id());
    ids.flatten().map(str::to_owned).collect()
}
