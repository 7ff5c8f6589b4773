//! The disruption controller: asks the engine which nodes to disrupt, and executes its commands.
//!
//! 1. Taints that belong to no command are removed: an earlier process left them.
//! 2. [`Planner::plan`] decides on a snapshot, on other threads; a node that no change since the last pass can have altered is not
//!    evaluated again. Drift commands start at once; emptiness and consolidation are proposals.
//! 3. A proposal is validated a while later on a fresh snapshot; the loop continues meanwhile.
//! 4. A command is executed: see `execution`. Several commands run in parallel; the loop does not wait for them.
//!
//! UPSTREAM: pkg/controllers/disruption/controller.go. DIFFERS: neither validation nor the wait for replacements blocks the
//! loop; a NodePool whose replacements failed is in cool-down alone.

mod execution;
mod pauses;
mod report;
mod taints;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use karpenter_core::disruption::{
    Budgets, Candidate, Command, CommandId, DisruptionRequest, Method, MultiNodeSearch, Planner,
    validate,
};
use karpenter_core::lifecycle::passes::{
    CONSOLIDATED, IDLE, VALIDATION, is_fruitless, next_chance,
};
use karpenter_core::lifecycle::recent_replacements::{PROTECTION, RecentReplacements};
use karpenter_core::schedule::Cancel;
use karpenter_decisions::record::CommandState;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::context::Context;
use crate::controller::{Backoff, Periodic, ReconcileError, compute};
use crate::cooldown::Cooldowns;
use crate::decisions::Made;
use crate::model::View;
use crate::provisioning;
use execution::{Ended, Tainted};
use pauses::Pauses;

/// How long a pass waits for the model to be in sync.
const UNSYNCED: Duration = Duration::from_secs(1);
/// How long until the removal of stale taints is retried.
const STALE_TAINTS_RETRY: Duration = Duration::from_secs(1);
/// Time limit of the search for a set of nodes.
const MULTI_NODE_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of the consolidation of single nodes.
const SINGLE_NODE_LIMIT: Duration = Duration::from_secs(180);
/// Cool-down of drift in a NodePool whose replacements failed.
const COOLDOWN: Backoff = Backoff {
    base: Duration::from_secs(60),
    max: Duration::from_secs(600),
};

/// Disrupts nodes: drift, emptiness and consolidation.
pub struct Disruption {
    cx: Arc<Context>,
    proposals: Vec<Proposal>,
    executing: BTreeMap<CommandId, Vec<String>>,
    running: JoinSet<Ended>,
    /// Nodes that may still be tainted by a command that was rolled back.
    still_tainted: Vec<Tainted>,
    cooldowns: Cooldowns,
    recent_replacements: RecentReplacements<Instant>,
    pauses: Pauses,
    unseen_pools: BTreeSet<String>,
    fruitless: Option<Fruitless>,
    /// Carries evaluations of nodes over from pass to pass.
    planner: Planner,
    next_plan: Instant,
}

impl std::fmt::Debug for Disruption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disruption")
            .field("proposals", &self.proposals.len())
            .field("executing", &self.executing.len())
            .finish_non_exhaustive()
    }
}

struct Proposal {
    command: Command,
    due: Instant,
}

/// A pass that found nothing: another finds nothing either while all of this is unchanged.
struct Fruitless {
    /// Epoch of the cluster.
    epoch: u64,
    /// Remaining disruption budgets: their schedules are the only ones that open with time.
    budgets: BTreeMap<String, Budgets>,
    /// When another pass is made at the latest.
    until: Instant,
}

fn claims(command: &Command) -> Vec<String> {
    let names = command.candidates.iter().map(Candidate::claim_name);
    names.map(str::to_owned).collect()
}

/// Cancels when `limit` has passed since the first check, or when `stop` is cancelled.
fn time_limit(limit: Duration, stop: &CancellationToken) -> Cancel {
    let stop = stop.clone();
    let first = OnceLock::new();
    Arc::new(move || {
        let now = Instant::now();
        stop.is_cancelled() || now.duration_since(*first.get_or_init(|| now)) >= limit
    })
}

impl Disruption {
    /// Creates the controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            proposals: Vec::new(),
            executing: BTreeMap::new(),
            running: JoinSet::new(),
            still_tainted: Vec::new(),
            cooldowns: Cooldowns::default(),
            recent_replacements: RecentReplacements::default(),
            pauses: Pauses::default(),
            unseen_pools: BTreeSet::new(),
            fruitless: None,
            planner: Planner::default(),
            next_plan: Instant::now(),
        }
    }

    fn held(&self) -> BTreeSet<String> {
        self.executing.values().flatten().cloned().collect()
    }

    /// Removes commands that have ended.
    fn collect_ended(&mut self) {
        while let Some(ended) = self.running.try_join_next() {
            match ended {
                Ok(ended) => self.ended(ended),
                Err(error) => tracing::error!(error = %error, "disruption command panicked"),
            }
        }
        if self.running.is_empty() {
            // Also commands whose task panicked.
            self.executing.clear();
        }
    }

    fn ended(&mut self, ended: Ended) {
        self.executing.remove(&ended.id);
        if let Some(decisions) = &self.cx.decisions {
            decisions.ended(&self.cx, &ended.id, ended.state, ended.why);
        }
        self.still_tainted.extend(ended.still_tainted);
        if ended.method.is_eventual() {
            for pool in &ended.pools {
                if ended.succeeded {
                    self.cooldowns.succeeded(pool);
                } else {
                    self.cool_down(pool);
                }
            }
        }
    }

    fn cool_down(&self, pool: &str) {
        let clock = self.cx.clock;
        self.cooldowns
            .failed(pool, COOLDOWN, |duration| clock.instant_after(duration));
    }

    /// Starts a command; returns whether it was started.
    async fn start(&mut self, command: &Command) -> Result<bool, ReconcileError> {
        let queued = self.executing.values().map(Vec::len).sum();
        let started = execution::start(&self.cx, command, queued).await?;
        let mut execution = match started {
            Ok(execution) => execution,
            Err(not_started) => {
                if let Some(decisions) = &self.cx.decisions {
                    decisions.ended(&self.cx, &command.id(), CommandState::NotStarted, None);
                }
                self.still_tainted.extend(not_started.still_tainted);
                if command.method.is_eventual() {
                    for candidate in &command.candidates {
                        self.cool_down(candidate.pool_name());
                    }
                }
                return Ok(false);
            }
        };
        self.still_tainted.extend(execution.take_still_tainted());
        if matches!(command.method, Method::MultiNode | Method::SingleNode) {
            let until = self.cx.clock.instant_after(PROTECTION);
            for replacement in execution.replacements() {
                self.recent_replacements.add(replacement, until);
            }
        }
        self.executing.insert(execution.id(), execution.claims());
        self.running.spawn(execution.finish(Arc::clone(&self.cx)));
        Ok(true)
    }

    /// Removes taints that belong to no command; returns whether there were none left, as far as is known.
    ///
    /// Until its taint is removed, such a node is disrupted like one of a command: no other command starts meanwhile, because
    /// budgets would be exceeded.
    async fn remove_stale_taints(&mut self, view: &View) -> Result<bool, ReconcileError> {
        for Tainted { node, claim } in std::mem::take(&mut self.still_tainted) {
            if taints::untaint(&self.cx, Some(&node), &claim)
                .await
                .is_err()
            {
                self.still_tainted.push(Tainted { node, claim });
            }
        }
        Ok(taints::remove_stale(&self.cx, view, &self.held()).await?
            && self.still_tainted.is_empty())
    }

    fn request(&self, in_flight: BTreeSet<String>) -> (DisruptionRequest, DropGuard) {
        let cx = &self.cx;
        let stop = CancellationToken::new();
        let abandoned = stop.clone();
        let mut request = DisruptionRequest::at(cx.clock.now());
        request.policy = provisioning::policy(cx);
        request.query.cancel = Some(Arc::new(move || abandoned.is_cancelled()));
        // A node that only holds buffer pods is not disrupted unless there is another place for them.
        request.query.buffer_pods = cx.buffers.pods();
        request.surroundings.in_flight = in_flight;
        request.surroundings.buffer_pods = cx.buffers.on_nodes(&cx.view().snapshot);
        request.surroundings.recent_replacements = self.recent_replacements.claims();
        request.spot_to_spot = cx.options.feature_gates.spot_to_spot_consolidation;
        request.multi_node = MultiNodeSearch {
            cancel: Some(time_limit(cx.clock.real_duration(MULTI_NODE_LIMIT), &stop)),
            max_replacements: cx.options.consolidation_max_replacements,
        };
        request.single_node_cancel =
            Some(time_limit(cx.clock.real_duration(SINGLE_NODE_LIMIT), &stop));
        request.unseen_pools = self.unseen_pools.clone();
        request.cooling_down_pools = self.cooldowns.active(Instant::now());
        request.static_headroom = cx.static_capacity.drift_headroom(&cx.model);
        let started = Instant::now();
        request.stopwatch = Some(Arc::new(move || started.elapsed()));
        request.threads = cx.options.cores();
        (request, stop.drop_guard())
    }

    /// Executes the proposals that are due, as far as they are still valid; returns whether any was started.
    async fn execute_due(&mut self) -> Result<bool, ReconcileError> {
        let now = Instant::now();
        let (due, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.proposals)
            .into_iter()
            .partition(|p| p.due <= now);
        self.proposals = waiting;
        let mut started = false;
        for proposal in due {
            // Nodes of a failed command may still be tainted, and no budget counts them: this proposal waits until they are not.
            if !self.still_tainted.is_empty() {
                self.proposals.push(proposal);
                continue;
            }
            let command = proposal.command;
            let view = self.cx.view();
            let (request, _guard) = self.request(self.held());
            let (snapshot, proposed) = (view.snapshot.fork(), command.clone());
            let checked = compute("the disruption planner", move || {
                validate(&proposed, &snapshot, &request)
            })
            .await?;
            match checked {
                Ok(checked) => {
                    let lost = command.candidates.len() - checked.candidates.len();
                    report::dropped(&self.cx, command.method, lost);
                    started |= self.start(&checked).await?;
                }
                Err(why) => {
                    report::rejected(&self.cx, &view, &command, &why);
                    if let Some(decisions) = &self.cx.decisions {
                        let made = Made {
                            view: &view,
                            policy: &provisioning::policy(&self.cx),
                            took: now.elapsed(),
                        };
                        decisions.rejected(&self.cx, made, &command, &why);
                    }
                }
            }
        }
        Ok(started)
    }

    /// Plans, starts commands that need no validation and proposes the others; returns whether there was any.
    async fn plan(&mut self, view: &View) -> Result<bool, ReconcileError> {
        let epoch = view.snapshot.epoch();
        let same = |fruitless: &Fruitless| {
            fruitless.epoch == epoch
                && Instant::now() < fruitless.until
                && fruitless.budgets == Budgets::by_reason(&view.snapshot, self.cx.clock.now())
        };
        if self.fruitless.as_ref().is_some_and(same) {
            return Ok(false);
        }
        // A consolidation that waits for its validation changes what the next would find.
        let consolidate = !self
            .proposals
            .iter()
            .any(|p| p.command.method != Method::Emptiness);

        let mut in_flight = self.held();
        in_flight.extend(self.proposals.iter().flat_map(|p| claims(&p.command)));
        let (mut request, _guard) = self.request(in_flight);
        if !consolidate {
            request.multi_node.cancel = Some(Arc::new(|| true));
            request.single_node_cancel = Some(Arc::new(|| true));
        }
        let (snapshot, asked) = (view.snapshot.fork(), request.clone());
        let started = Instant::now();
        // A pass that is abandoned loses what it would carry over; the next one starts from nothing.
        let mut planner = std::mem::take(&mut self.planner);
        let pass = move || (planner.plan(&snapshot, &request), planner);
        let (plan, planner) = compute("the disruption planner", pass).await?;
        self.planner = planner;
        tracing::debug!(
            "carried-over" = plan.carried_over,
            evaluated = plan.evaluated,
            "planned disruption"
        );
        report::planned(&self.cx, view, &plan, consolidate);
        if let Some(decisions) = &self.cx.decisions {
            let made = Made {
                view,
                policy: &asked.policy,
                took: started.elapsed(),
            };
            decisions.disrupted(&self.cx, made, &asked, &plan);
            decisions.keep(|recorder| {
                recorder.disrupted(&view.snapshot, &asked, consolidate, &plan);
            });
        }
        if consolidate {
            self.unseen_pools = plan.unseen_pools.clone();
            let cooling_down = !self.cooldowns.active(Instant::now()).is_empty();
            let believed = self.cx.clock.instant_after(CONSOLIDATED);
            let until = self
                .recent_replacements
                .first_expiry()
                .map_or(believed, |end| end.min(believed));
            let now = self.cx.clock.now();
            let until = next_chance(&plan, &view.snapshot).map_or(until, |chance| {
                let wait = Duration::try_from(chance.duration_since(now)).unwrap_or_default();
                until.min(self.cx.clock.instant_after(wait))
            });
            self.fruitless = (is_fruitless(&plan) && !cooling_down).then(|| Fruitless {
                epoch,
                budgets: plan.budgets.clone(),
                until,
            });
        }
        let mut found = false;
        for command in plan.commands {
            if !self.still_tainted.is_empty() {
                break;
            }
            if command.method.is_validated() {
                report::proposed(&self.cx, view, &command);
                let due = self.cx.clock.instant_after(VALIDATION);
                self.proposals.push(Proposal { command, due });
                found = true;
            } else {
                found |= self.start(&command).await?;
            }
        }
        Ok(found)
    }

    /// Returns the clock's time until the next pass.
    fn until_next(&self) -> Duration {
        let due = self.proposals.iter().map(|p| p.due);
        self.cx.clock.until(due.fold(self.next_plan, Instant::min))
    }
}

impl Periodic for Disruption {
    fn name(&self) -> &'static str {
        "disruption"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.cx.view().is_synced() {
            return Ok(UNSYNCED);
        }
        self.collect_ended();
        self.recent_replacements
            .prune(&self.cx.view().snapshot, Instant::now());
        self.pauses.report(&self.cx, &self.cx.view());
        // After a restart without pending pods, no other controller has asked for them yet.
        provisioning::refresh_instance_types(&self.cx).await?;
        if !self.remove_stale_taints(&self.cx.view()).await? {
            return Ok(STALE_TAINTS_RETRY);
        }
        let mut again = self.execute_due().await?;
        if !self.still_tainted.is_empty() {
            return Ok(STALE_TAINTS_RETRY);
        }
        if again || self.next_plan <= Instant::now() {
            let view = self.cx.view();
            again = self.plan(&view).await?;
            let delay = if again { Duration::ZERO } else { IDLE };
            self.next_plan = self.cx.clock.instant_after(delay);
        }
        Ok(self.until_next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_search_ends_when_its_time_is_up_or_its_pass_is_abandoned() {
        let (kept, abandoned) = (CancellationToken::new(), CancellationToken::new());
        let limit = Duration::from_secs(60);
        let searches = [&kept, &abandoned].map(|stop| time_limit(limit, stop));
        let ended = || searches.each_ref().map(|is_cancelled| is_cancelled());
        assert_eq!(ended(), [false, false]);
        abandoned.cancel();
        assert_eq!(ended(), [false, true]);
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(ended(), [false, true]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ended(), [true, true]);
    }
}
