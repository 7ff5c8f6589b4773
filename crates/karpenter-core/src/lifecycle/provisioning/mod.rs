//! The provisioning process: which pending pods are planned when, and what becomes of a plan.
//!
//! 1. Triggers are collected into a batch ([`BatchWindow`]). One that arrives while a batch is planned opens the next: none is lost.
//! 2. Once the batch has closed, pending pods without a nomination, and pods of nodes that are being deleted, are planned; near the
//!    memory limit some of them at a time. Pods that kube-scheduler is behind with are planned, too: a burst is planned as a whole.
//! 3. The nodes of placed pods are nominated, NodeClaims are created, and their nodes are nominated, too: nominated nodes are not
//!    disrupted.
//! 4. The planned Nodes are written to the pods for kube-scheduler, if the feature gate `PodNomination` is on: see [`PodNomination`].
//! 5. While pods are pending, this is repeated every ten seconds, as upstream's triggers do. Nominated pods keep their place
//!    meanwhile: see [`nominations`].
//!
//! The caller gives events and executes effects; an effect's documentation names the event that answers it. Passes never overlap.
//!
//! ```
//! use std::time::Duration;
//!
//! use jiff::Timestamp;
//! use karpenter_core::cluster::{Cluster, ClusterConfig};
//! use karpenter_core::lifecycle::provisioning::{BatchWindow, Event, Provisioning};
//!
//! let (cluster, now) = (Cluster::new(ClusterConfig::default()), Timestamp::UNIX_EPOCH);
//! let window = BatchWindow { idle: Duration::from_secs(1), max: Duration::from_secs(10) };
//! let mut provisioning = Provisioning::new(window, now);
//! provisioning.trigger("uid of a pod", now);
//! let closes = provisioning.closes(now).unwrap();
//! assert_eq!(closes.as_second(), 1);
//! let closed = Event::Closed { memory: None, buffer_pods: Vec::new() };
//! let effects = provisioning.on(closed, &cluster.snapshot(), closes);
//! assert!(provisioning.closes(closes).is_none(), "{effects:?}");
//! ```
//!
//! UPSTREAM: pkg/controllers/provisioning/provisioner.go

mod admission;
mod batch;
mod buffers;
mod nominated_nodes;
pub mod nominations;
mod observe;
mod slices;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

pub use admission::{NotAdmitted, admit, has_limits};
pub use batch::BatchWindow;
pub use buffers::PlacedBuffers;
pub use nominated_nodes::PodNomination;
pub use observe::Change;
pub use slices::Memory;

use super::{after, has_passed};
use crate::cluster::Snapshot;
use crate::cluster::pdb::leaving_pods;
use crate::pod::Pod;
use crate::schedule::{Plan, Query};
use batch::Batch;
use nominated_nodes::NominatedNodes;
use nominations::{Bound, Nominations, Standing};
use slices::Slices;

/// Interval between plans for pending pods.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Delay of a check after kube-scheduler has bound a pod elsewhere than planned, or removed a nominated node: more of them follow.
const RECHECK_DELAY: Duration = Duration::from_secs(1);

/// Age from which a pod is planned although kube-scheduler has not tried it yet. An idle kube-scheduler tries a pod within
/// milliseconds; in a burst, every failed attempt is a write, and the last pods are tried tens of seconds after the first.
const UNTRIED_AGE: Duration = Duration::from_secs(2);

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// A check of the pending pods is due: see [`Provisioning::checks`].
    Check,
    /// A batch has closed: see [`Provisioning::closes`].
    Closed {
        /// Memory of the process, if it has a limit.
        memory: Option<Memory>,
        /// The pods of capacity buffers.
        buffer_pods: Vec<Arc<Pod>>,
    },
    /// Answers [`Effect::Plan`].
    Planned(Arc<Plan>),
    /// Answers [`Effect::Plan`]: the engine failed or was interrupted. The batch is planned again.
    Unanswered,
    /// Answers [`Effect::Launch`] with the name of the NodeClaim of each planned node that was created.
    Launched(Vec<Option<String>>),
    /// The taint `karpenter.sh/unregistered` is about to be removed from the Node of a NodeClaim: kube-scheduler may bind pods then.
    Registering {
        /// Name of the NodeClaim.
        claim: String,
        /// Name of the Node.
        node: String,
    },
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Effect {
    /// Plan.
    Plan(Arc<Question>),
    /// Protect nodes from disruption, because pods are nominated to them.
    Nominate(BTreeSet<String>),
    /// Create the NodeClaims of the planned nodes: see [`admit`].
    Launch(Arc<Question>, Arc<Plan>),
    /// Write `status.nominatedNodeName` of pods, in this order, if they are still pending. A write that fails is repeated later.
    NominatePods(Vec<PodNomination>),
    /// Report that no pod is pending.
    ReportIdle,
}

/// What is planned.
pub struct Question {
    /// The cluster: nominated pods use their resources, and pods that take no part are left out.
    pub snapshot: Snapshot,
    /// Pending pods and pods of capacity buffers.
    pub query: Query,
    /// All pending pods.
    pub standing: Standing,
    /// Pods of nodes that are being deleted.
    pub leaving: Vec<Arc<Pod>>,
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question")
            .field("unplaced", &self.standing.unplaced.len())
            .field("leaving", &self.leaving.len())
            .field("buffer_pods", &self.query.buffer_pods.len())
            .finish_non_exhaustive()
    }
}

/// The provisioning process.
#[derive(Clone, Debug)]
pub struct Provisioning {
    window: BatchWindow,
    batch: Option<Batch>,
    nominations: Nominations,
    slices: Slices,
    pass: Option<Pass>,
    next_check: Timestamp,
    /// `None` if the feature gate `PodNomination` is off.
    nominated_nodes: Option<NominatedNodes>,
}

/// A batch that is being planned.
#[derive(Clone, Debug)]
struct Pass {
    question: Arc<Question>,
    plan: Option<Arc<Plan>>,
    /// Whether the next slice of the pods is planned afterwards.
    goes_on: bool,
}

impl Provisioning {
    /// Returns the process.
    pub fn new(window: BatchWindow, now: Timestamp) -> Self {
        Self {
            window,
            batch: None,
            nominations: Nominations::default(),
            slices: Slices::default(),
            pass: None,
            next_check: after(now, CHECK_INTERVAL),
            nominated_nodes: None,
        }
    }

    /// Turns the feature gate `PodNomination` on or off. Names that were written before stay.
    #[must_use]
    pub fn with_pod_nomination(mut self, enabled: bool) -> Self {
        self.nominated_nodes = enabled.then(NominatedNodes::default);
        self
    }

    /// Writes no more nominated nodes, because the permission is missing.
    pub fn end_pod_nomination(&mut self) {
        self.nominated_nodes = None;
    }

    /// Requests a plan for an object by its uid. The same uid again within a batch changes nothing.
    pub fn trigger(&mut self, uid: &str, now: Timestamp) {
        let window = self.window;
        let batch = self.batch.get_or_insert_with(|| Batch::open(window, now));
        batch.add(uid, window, now);
    }

    /// Removes the nomination of a pod that is bound, deleted or whose requirements have changed.
    pub fn forget(&mut self, uid: &str) {
        self.nominations.forget(uid);
        if let Some(nodes) = &mut self.nominated_nodes {
            nodes.forget(uid);
        }
    }

    /// Takes note of a pod that kube-scheduler bound. If it was planned elsewhere, the pods that were planned onto this node may have
    /// lost their places: that is checked soon, instead of with the next interval. Returns how the place compares with the plan.
    pub fn bound(&mut self, pod: &Pod, snapshot: &Snapshot, now: Timestamp) -> Option<Bound> {
        let node = pod
            .node_name
            .as_deref()
            .and_then(|name| snapshot.node(name));
        let bound = node.and_then(|node| self.nominations.bound(&pod.key.uid, node));
        if bound.is_some_and(|bound| !bound.as_planned) {
            self.check_soon(now);
        }
        self.forget(&pod.key.uid);
        bound
    }

    /// Takes note of a pod whose nominated node kube-scheduler has removed.
    pub fn denominated(&mut self, now: Timestamp) {
        if self.nominated_nodes.is_some() {
            self.check_soon(now);
        }
    }

    /// Reports whether NodeClaims are being created: which pods their nodes are for is known afterwards.
    pub fn is_launching(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.plan.is_some())
    }

    fn check_soon(&mut self, now: Timestamp) {
        self.next_check = self.next_check.min(after(now, RECHECK_DELAY));
    }

    /// Removes the nominations to a NodeClaim that is deleted before its node could run a pod: its pods are planned again at once.
    pub fn release(&mut self, claim: &str) {
        self.nominations.release(claim);
    }

    /// Returns when the open batch closes, `now` if it has; `None` without one, or while another is planned.
    pub fn closes(&self, now: Timestamp) -> Option<Timestamp> {
        let batch = self.batch.as_ref().filter(|_| self.pass.is_none())?;
        Some(batch.closes(self.window, now))
    }

    /// Returns when the pending pods are to be checked, `now` if they are.
    pub fn checks(&self, now: Timestamp) -> Timestamp {
        match has_passed(self.next_check, now, CHECK_INTERVAL) {
            true => now,
            false => self.next_check,
        }
    }

    /// Gives up the pass that has begun, if any: its batch is planned again.
    pub fn abandon(&mut self, now: Timestamp) {
        if self.pass.take().is_some() {
            self.trigger("unanswered", now);
            self.end(now);
        }
    }

    /// Takes an event; returns what is to be done. `snapshot` is the state after the event.
    pub fn on(&mut self, event: Event, snapshot: &Snapshot, now: Timestamp) -> Vec<Effect> {
        match event {
            Event::Check => self.check(snapshot, now),
            Event::Closed {
                memory,
                buffer_pods,
            } => self.closed(memory, buffer_pods, snapshot, now),
            Event::Planned(plan) => self.planned(plan, now),
            Event::Unanswered => {
                self.abandon(now);
                Vec::new()
            }
            Event::Launched(claims) => self.launched(&claims, snapshot, now),
            Event::Registering { claim, node } => self.registering(&claim, &node, snapshot, now),
        }
    }

    fn check(&mut self, snapshot: &Snapshot, now: Timestamp) -> Vec<Effect> {
        let snapshot = &snapshot.with_untried(now.saturating_sub(UNTRIED_AGE).unwrap_or(now));
        let standing = self.nominations.standing(snapshot, now);
        let mut effects = Vec::new();
        if !standing.unplaced.is_empty() || !leaving_pods(snapshot, now).is_empty() {
            self.trigger("again", now);
        } else if snapshot.pending_pods().next().is_none() {
            effects.push(Effect::ReportIdle);
        }
        let latest = after(now, CHECK_INTERVAL);
        self.next_check = standing.next.map_or(latest, |next| next.clamp(now, latest));
        effects.extend(nominate(targets(&standing)));
        effects.extend(self.nominate_pods(snapshot, now));
        effects
    }

    fn registering(
        &mut self,
        claim: &str,
        node: &str,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Vec<Effect> {
        let Some(nodes) = &mut self.nominated_nodes else {
            return Vec::new();
        };
        let pods = nodes.registering(claim, node, &self.nominations, snapshot, now);
        let effect = (!pods.is_empty()).then_some(Effect::NominatePods(pods));
        effect.into_iter().collect()
    }

    fn nominate_pods(&mut self, snapshot: &Snapshot, now: Timestamp) -> Option<Effect> {
        let nodes = self.nominated_nodes.as_mut()?;
        let (pods, next) = nodes.due(&self.nominations, snapshot, now);
        if let Some(next) = next {
            self.next_check = self.next_check.min(next);
        }
        (!pods.is_empty()).then_some(Effect::NominatePods(pods))
    }

    fn closed(
        &mut self,
        memory: Option<Memory>,
        buffer_pods: Vec<Arc<Pod>>,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Vec<Effect> {
        if self.pass.is_some() {
            return Vec::new();
        }
        self.batch = None;
        let snapshot = &snapshot.with_untried(now.saturating_sub(UNTRIED_AGE).unwrap_or(now));
        let mut standing = self.nominations.standing(snapshot, now);
        let goes_on = self.slices.cut(memory, &mut standing);
        let leaving = leaving_pods(snapshot, now);
        if standing.unplaced.is_empty() && leaving.is_empty() && buffer_pods.is_empty() {
            let is_idle = snapshot.pending_pods().next().is_none();
            return is_idle.then_some(Effect::ReportIdle).into_iter().collect();
        }
        let (asked, query) = standing.question(snapshot);
        let question = Arc::new(Question {
            snapshot: asked,
            query: query.with_buffer_pods(buffer_pods),
            standing,
            leaving,
        });
        self.pass = Some(Pass {
            question: Arc::clone(&question),
            plan: None,
            goes_on,
        });
        vec![Effect::Plan(question)]
    }

    fn planned(&mut self, plan: Arc<Plan>, now: Timestamp) -> Vec<Effect> {
        let Some(pass) = &mut self.pass else {
            return Vec::new();
        };
        pass.plan = Some(Arc::clone(&plan));
        let question = Arc::clone(&pass.question);
        if !plan.undecided.is_empty() {
            self.trigger("undecided", now);
        }
        // Launching takes time: nominate first.
        let existing = plan.existing.iter().filter(|it| !it.buffer);
        let existing = existing.map(|it| it.node.clone());
        let nodes = targets(&question.standing).chain(existing);
        let mut effects: Vec<Effect> = nominate(nodes).into_iter().collect();
        effects.push(Effect::Launch(question, plan));
        effects
    }

    fn launched(
        &mut self,
        claims: &[Option<String>],
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Vec<Effect> {
        let Some(Pass {
            plan: Some(plan),
            goes_on,
            ..
        }) = self.pass.take()
        else {
            return Vec::new();
        };
        let names = || claims.iter().map(Option::as_deref);
        self.nominations
            .nominate_planned(snapshot, &plan, names(), now);
        if goes_on {
            self.trigger("deferred", now);
        }
        self.end(now);
        let with_pods = plan.new_node_claims.iter().zip(names());
        let with_pods = with_pods.filter(|(planned, _)| !planned.pods.is_empty());
        let launched = with_pods.filter_map(|(_, name)| name.map(str::to_owned));
        let nodes = nominate(launched);
        nodes
            .into_iter()
            .chain(self.nominate_pods(snapshot, now))
            .collect()
    }

    /// Ends a pass. What was triggered meanwhile is collected for the whole window, together with what the pass itself causes.
    fn end(&mut self, now: Timestamp) {
        if let Some(batch) = &mut self.batch {
            batch.restart(self.window, now);
        }
        self.next_check = after(now, CHECK_INTERVAL);
    }
}

/// Returns the nodes that pods are nominated to.
fn targets(standing: &Standing) -> impl Iterator<Item = String> {
    standing.nominated.iter().map(|(_, target)| target.clone())
}

fn nominate(nodes: impl Iterator<Item = String>) -> Option<Effect> {
    let nodes: BTreeSet<String> = nodes.collect();
    (!nodes.is_empty()).then_some(Effect::Nominate(nodes))
}
