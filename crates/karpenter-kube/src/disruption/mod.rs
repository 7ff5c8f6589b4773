//! The disruption controller: asks the engine which machines to give back, and has it done.
//!
//! 1. Marks that belong to no command are taken back: what an earlier process left.
//! 2. [`plan`] decides on a snapshot, on other threads. Drift is started at once; emptiness and consolidation are proposals.
//! 3. A proposal must still hold a while later on a fresh snapshot; the loop goes on meanwhile.
//! 4. A command is executed: see `execution`. Several are at a time; the loop waits for none of them.
//!
//! UPSTREAM: pkg/controllers/disruption/controller.go. DIFFERS: neither the second look nor the wait for replacements holds
//! up the loop; a pool whose replacements fail rests alone.

mod execution;
mod marks;
mod report;
mod settling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{
    Blocked, Budgets, Candidate, Command, CommandId, DisruptionPlan, DisruptionRequest, Method,
    MultiNodeSearch, Verdict, VerdictKind, plan, validate,
};
use karpenter_core::pod::protected_until;
use karpenter_core::schedule::{Cancel, ScheduleRequest};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::context::Context;
use crate::controller::{Backoff, Periodic, ReconcileError, compute};
use crate::model::View;
use crate::provisioning;
use crate::resting::Resting;
use execution::{Ended, Marked};
use settling::{PEACE, Settling};

/// How long the loop rests when there is nothing to do.
const IDLE: Duration = Duration::from_secs(10);
/// How long the loop waits for the model.
const UNSYNCED: Duration = Duration::from_secs(1);
/// How long until what machines show wrongly is looked at again.
const UNHEALED: Duration = Duration::from_secs(1);
/// How long a proposal must hold: pods may be on their way.
const VALIDATION: Duration = Duration::from_secs(15);
/// How long the search for a set of machines may take.
const MULTI_NODE_LIMIT: Duration = Duration::from_secs(60);
/// How long looking at machines one by one may take.
const SINGLE_NODE_LIMIT: Duration = Duration::from_secs(180);
/// How long nobody looks again when there was nothing to do and nothing has changed.
const CONSOLIDATED: Duration = Duration::from_secs(300);
/// How long drift leaves a pool alone whose replacements failed.
const REST: Backoff = Backoff {
    base: Duration::from_secs(60),
    max: Duration::from_secs(600),
};

/// Gives machines back.
pub struct Disruption {
    cx: Arc<Context>,
    proposals: Vec<Proposal>,
    /// The NodeClaims of commands that are being executed.
    executing: BTreeMap<CommandId, Vec<String>>,
    running: JoinSet<Ended>,
    /// Machines that may still show a command that was taken back.
    shown: Vec<Marked>,
    resting: Resting,
    settling: Settling,
    unseen_pools: BTreeSet<String>,
    fruitless: Option<Fruitless>,
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

/// A pass that found nothing: another would find nothing either while all of this stays so.
struct Fruitless {
    /// The epoch of the cluster.
    epoch: u64,
    /// What was left of the budgets: theirs are the only schedules that open with time alone.
    budgets: BTreeMap<String, Budgets>,
    /// Until when it is believed.
    until: Instant,
}

fn claims(command: &Command) -> Vec<String> {
    let names = command.candidates.iter().map(Candidate::claim_name);
    names.map(str::to_owned).collect()
}

/// Says stop when `limit` has passed since it was first asked, or when nobody waits for the answer any more.
fn time_limit(cx: &Context, limit: Duration, stop: &CancellationToken) -> Cancel {
    let (limit, stop) = (cx.clock.real_duration(limit), stop.clone());
    let first = OnceLock::new();
    Arc::new(move || {
        let now = Instant::now();
        stop.is_cancelled() || now.duration_since(*first.get_or_init(|| now)) >= limit
    })
}

impl Disruption {
    /// The controller.
    #[must_use]
    pub fn new(cx: Arc<Context>) -> Self {
        Self {
            cx,
            proposals: Vec::new(),
            executing: BTreeMap::new(),
            running: JoinSet::new(),
            shown: Vec::new(),
            resting: Resting::new(REST),
            settling: Settling::default(),
            unseen_pools: BTreeSet::new(),
            fruitless: None,
            next_plan: Instant::now(),
        }
    }

    /// The NodeClaims of commands that are being executed.
    fn held(&self) -> BTreeSet<String> {
        self.executing.values().flatten().cloned().collect()
    }

    /// Lets go of commands that have ended.
    fn settle(&mut self) {
        while let Some(ended) = self.running.try_join_next() {
            match ended {
                Ok(ended) => self.ended(ended),
                Err(error) => tracing::error!(error = %error, "a disruption command failed"),
            }
        }
        if self.running.is_empty() {
            // Also those whose task did not live to tell.
            self.executing.clear();
        }
    }

    fn ended(&mut self, ended: Ended) {
        self.executing.remove(&ended.id);
        self.shown.extend(ended.shown);
        if ended.method.is_eventual() {
            for pool in &ended.pools {
                if ended.succeeded {
                    self.resting.succeeded(pool);
                } else {
                    self.rest(pool);
                }
            }
        }
    }

    fn rest(&mut self, pool: &str) {
        let clock = self.cx.clock;
        self.resting
            .failed(pool, |duration| clock.instant_after(duration));
    }

    /// Starts a command; whether it could be.
    async fn start(&mut self, command: &Command) -> Result<bool, ReconcileError> {
        let queued = self.executing.values().map(Vec::len).sum();
        let begun = execution::start(&self.cx, command, queued).await?;
        let mut execution = match begun {
            Ok(execution) => execution,
            Err(not_begun) => {
                self.shown.extend(not_begun.shown);
                if command.method.is_eventual() {
                    for candidate in &command.candidates {
                        self.rest(candidate.pool_name());
                    }
                }
                return Ok(false);
            }
        };
        self.shown.extend(execution.take_shown());
        if matches!(command.method, Method::MultiNode | Method::SingleNode) {
            let until = self.cx.clock.instant_after(PEACE);
            for replacement in execution.replacements() {
                self.settling.bought(replacement, until);
            }
        }
        self.executing.insert(execution.id(), execution.claims());
        self.running.spawn(execution.finish(Arc::clone(&self.cx)));
        Ok(true)
    }

    /// Takes back what machines show of commands that are none; whether there was nothing to take back, as far as is known.
    ///
    /// Until it is taken back, such a machine is disrupted as much as one of a command: nothing else is, or budgets would be
    /// exceeded.
    async fn heal(&mut self, view: &View) -> Result<bool, ReconcileError> {
        for Marked { node, claim } in std::mem::take(&mut self.shown) {
            if marks::unmark(&self.cx, Some(&node), &claim).await.is_err() {
                self.shown.push(Marked { node, claim });
            }
        }
        Ok(marks::heal(&self.cx, view, &self.held()).await? && self.shown.is_empty())
    }

    fn request(&self, in_flight: BTreeSet<String>) -> (DisruptionRequest, DropGuard) {
        let cx = &self.cx;
        let stop = CancellationToken::new();
        let abandoned = stop.clone();
        let mut request = DisruptionRequest::at(cx.clock.now());
        request.schedule = ScheduleRequest {
            cancel: Some(Arc::new(move || abandoned.is_cancelled())),
            // A node that only holds a buffer does not go without another place for the buffer.
            buffer_pods: cx.buffers.pods(),
            ..provisioning::request(cx)
        };
        request.surroundings.in_flight = in_flight;
        request.surroundings.buffer_pods = cx.buffers.on_nodes(&cx.view().snapshot);
        request.surroundings.settling = self.settling.claims();
        request.spot_to_spot = cx.options.feature_gates.spot_to_spot_consolidation;
        request.multi_node = MultiNodeSearch {
            cancel: Some(time_limit(cx, MULTI_NODE_LIMIT, &stop)),
            max_replacements: cx.options.consolidation_max_replacements,
        };
        request.single_node_cancel = Some(time_limit(cx, SINGLE_NODE_LIMIT, &stop));
        request.unseen_pools = self.unseen_pools.clone();
        request.resting_pools = self.resting.now(Instant::now());
        request.static_room = cx.static_capacity.drift_room(&cx.model);
        let started = Instant::now();
        request.stopwatch = Some(Arc::new(move || started.elapsed()));
        request.threads = cx.options.cores();
        (request, stop.drop_guard())
    }

    /// Executes the proposals whose time has come, as far as they still hold; whether any was started.
    async fn execute_due(&mut self) -> Result<bool, ReconcileError> {
        let now = Instant::now();
        let (due, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.proposals)
            .into_iter()
            .partition(|p| p.due <= now);
        self.proposals = waiting;
        let mut started = false;
        for proposal in due {
            // Machines may still show a command that failed, which no budget counts: this one waits until they do not.
            if !self.shown.is_empty() {
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
                Err(why) => report::rejected(&self.cx, &view, &command, &why),
            }
        }
        Ok(started)
    }

    /// Decides, starts what needs no second look and proposes the rest; whether there was anything.
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
        // A consolidation that waits for its second look changes what the next would find.
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
        let snapshot = view.snapshot.fork();
        let plan = compute("the disruption planner", move || plan(&snapshot, &request)).await?;
        report::planned(&self.cx, view, &plan, consolidate);
        if consolidate {
            self.unseen_pools = plan.unseen_pools.clone();
            let rests = !self.resting.now(Instant::now()).is_empty();
            let believed = self.cx.clock.instant_after(CONSOLIDATED);
            let until = self
                .settling
                .first_end()
                .map_or(believed, |end| end.min(believed));
            let now = self.cx.clock.now();
            let until = next_chance(&plan, &view.snapshot).map_or(until, |chance| {
                let wait = Duration::try_from(chance.duration_since(now)).unwrap_or_default();
                until.min(self.cx.clock.instant_after(wait))
            });
            self.fruitless = (is_fruitless(&plan) && !rests).then(|| Fruitless {
                epoch,
                budgets: plan.budgets.clone(),
                until,
            });
        }
        let mut found = false;
        for command in plan.commands {
            if !self.shown.is_empty() {
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

    /// How long until there is something to do, in the clock's time.
    fn until_next(&self) -> Duration {
        let due = self.proposals.iter().map(|p| p.due);
        let next = due.fold(self.next_plan, Instant::min);
        let real = next.saturating_duration_since(Instant::now());
        let second = self.cx.clock.real_duration(Duration::from_secs(1));
        Duration::try_from_secs_f64(real.as_secs_f64() / second.as_secs_f64()).unwrap_or(IDLE)
    }
}

/// Whether only a change of the cluster or of the budgets can give another pass something to do, until [`next_chance`].
fn is_fruitless(plan: &DisruptionPlan) -> bool {
    let in_flight = |verdict: &Verdict| verdict.kind == VerdictKind::Blocked(Blocked::InFlight);
    plan.commands.is_empty() && plan.timed_out.is_empty() && !plan.verdicts.iter().any(in_flight)
}

/// When time alone ends what keeps the first of the machines: a nomination, or the protection of a pod for a while. What
/// keeps a machine for ever, or until a pod has started, ends with a change of the cluster.
fn next_chance(plan: &DisruptionPlan, snapshot: &Snapshot) -> Option<Timestamp> {
    let ends = plan.verdicts.iter().filter_map(|verdict| {
        let VerdictKind::Blocked(why) = &verdict.kind else {
            return None;
        };
        match why {
            Blocked::Nominated => verdict.machine.nominated_until,
            Blocked::PodDoNotDisrupt { pod } => {
                protected_until(snapshot.pod(&pod.namespace, &pod.name)?)
            }
            _ => None,
        }
    });
    ends.min()
}

impl Periodic for Disruption {
    fn name(&self) -> &'static str {
        "disruption"
    }

    async fn pass(&mut self) -> Result<Duration, ReconcileError> {
        if !self.cx.view().is_synced() {
            return Ok(UNSYNCED);
        }
        self.settle();
        self.settling.look(&self.cx.view(), Instant::now());
        // After a restart with nothing pending, nobody else has asked for them yet.
        provisioning::refresh_instance_types(&self.cx).await?;
        if !self.heal(&self.cx.view()).await? {
            return Ok(UNHEALED);
        }
        let mut again = self.execute_due().await?;
        if !self.shown.is_empty() {
            return Ok(UNHEALED);
        }
        if again || self.next_plan <= Instant::now() {
            let view = self.cx.view();
            again = self.plan(&view).await?;
            let rest = if again { Duration::ZERO } else { IDLE };
            self.next_plan = self.cx.clock.instant_after(rest);
        }
        Ok(self.until_next())
    }
}
