//! The state of a rehearsal, and its loop over events.

mod binding;
mod churn;
mod cloud;
mod disruption;
mod drain;
mod evictions;
mod launch;
mod provisioning;
mod queue;
mod report;
mod static_pools;
mod timing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::disruption::{DisruptionRequest, Planner};
use karpenter_core::lifecycle::conditions::expires_at;
use karpenter_core::lifecycle::disruption::{Disruption, Settings as ProcessSettings};
use karpenter_core::lifecycle::pod_events::{event_node, recorded};
use karpenter_core::lifecycle::provisioning::{BatchWindow, PlacedBuffers, Provisioning};
use karpenter_core::lifecycle::static_pools::StaticPools;
use karpenter_core::pod::Pod;
use karpenter_core::schedule::{Cancel, Policy, Solver};
use rustc_hash::FxHashMap;

use super::changes::Intended;
use super::churn::{Churn, Churning};
use super::plan::{EndedBy, Launch};
use super::request::PlanRequest;
use super::workloads::Workloads;
use super::{MAX_EVENTS, MAX_RUNS, Settings};
use binding::Bindings;
use cloud::Cloud;
use evictions::Guards;
use queue::{Event, Queue};
pub(super) use report::Outcome;
use report::Report;
use timing::Timing;

/// The state of a rehearsal.
pub(super) struct Stepper {
    pub(super) cluster: Cluster,
    pub(super) now: Timestamp,
    end: Timestamp,
    pub(super) queue: Queue,
    pub(super) scheduling: Policy,
    pub(super) disruption: DisruptionRequest,
    pub(super) window: BatchWindow,
    pub(super) provisioning: Provisioning,
    /// The cluster as the last scheduling pass compiled it: the next one shares the nodes that did not change.
    pub(super) solver: Option<Solver>,
    /// Whether an event is queued for the end of a batch.
    pub(super) awaits_batch: bool,
    pub(super) cancel: Option<Cancel>,
    /// The pods to bind once their node is initialized, by NodeClaim.
    pub(super) awaited: BTreeMap<String, BTreeSet<(String, String)>>,
    cloud: Cloud,
    pub(super) disrupting: Disruption,
    planner: Planner,
    /// The latest pass: what was planned on, and how.
    last_pass: Option<(Snapshot, DisruptionRequest)>,
    /// The launches of the command that is starting.
    pub(super) replacements: Vec<Launch>,
    pub(super) next_pass: Option<Timestamp>,
    pub(super) drift_checked: Option<Timestamp>,
    /// NodeClaims whose conditions are up to date, by their address, until they change or until a time.
    pub(super) settled: FxHashMap<usize, (Arc<NodeClaim>, Option<Timestamp>)>,
    pub(super) guards: Guards,
    pub(super) buffers: PlacedBuffers,
    pub(super) bindings: Bindings,
    pub(super) timing: Timing,
    pub(super) static_pools: StaticPools,
    /// When an event is queued for static NodePools.
    pub(super) static_pools_at: Option<Timestamp>,
    churning: Option<Churning>,
    report: Report,
    pub(super) pending: usize,
    pub(super) successors: usize,
    runs: usize,
    events: usize,
}

impl Stepper {
    /// Prepares a rehearsal of `length` from `start`, with changes or without.
    pub(super) fn new(
        snapshot: &Snapshot,
        settings: &Settings,
        request: &PlanRequest,
        start: Timestamp,
        length: SignedDuration,
        intended: Option<Intended>,
    ) -> Self {
        let of_changes = intended.as_ref();
        let changed = of_changes.map_or(snapshot, |intended| &intended.snapshot);
        let disruption = of_changes.map_or(&settings.disruption, |intended| &intended.disruption);
        // Checked with the request.
        let boot = request.assume.boot().ok().flatten();
        let drain = request.assume.drain().ok().flatten();
        let mut disruption = disruption.clone();
        disruption.stopwatch = None;
        // Reasons are reported for the last pass alone.
        disruption.finds_reasons = false;
        disruption.query.cancel.clone_from(&settings.cancel);
        disruption.multi_node.cancel.clone_from(&settings.cancel);
        disruption.single_node_cancel.clone_from(&settings.cancel);
        let mut process = ProcessSettings {
            removes_stale_taints: false,
            waits_for_validation: disruption.policy.behavior.passes_wait_for_validation,
            ..ProcessSettings::default()
        };
        let window = BatchWindow {
            idle: settings.batch_idle,
            max: settings.batch_max,
        };
        let mut batch = window;
        if length.is_zero() {
            // A rehearsal of one moment does not wait.
            process.validation = Duration::ZERO;
            (batch.idle, batch.max) = (Duration::ZERO, Duration::ZERO);
        }
        let mut stepper = Self {
            cluster: Cluster::from(changed.fork()),
            now: start,
            end: start.saturating_add(length).unwrap_or(Timestamp::MAX),
            queue: Queue::default(),
            scheduling: settings.scheduling.clone(),
            window,
            provisioning: Provisioning::new(batch, start),
            solver: None,
            awaits_batch: false,
            cancel: settings.cancel.clone(),
            awaited: BTreeMap::new(),
            cloud: Cloud::new(request.assume.launch),
            disrupting: Disruption::new(process, start)
                .with_unseen_pools(disruption.unseen_pools.clone()),
            planner: Planner::default(),
            last_pass: None,
            replacements: Vec::new(),
            next_pass: None,
            drift_checked: None,
            settled: FxHashMap::default(),
            guards: Guards::of(changed),
            buffers: match disruption.query.buffer_pods.is_empty() {
                true => PlacedBuffers::default(),
                false => PlacedBuffers::new(disruption.surroundings.buffer_pods.clone()),
            },
            bindings: Bindings::of(changed),
            timing: Timing::of(snapshot, boot, drain),
            static_pools: StaticPools::new(settings.gates.static_pools),
            static_pools_at: None,
            churning: None,
            report: Report::of(snapshot, start),
            pending: 0,
            successors: 0,
            runs: 0,
            events: 0,
            disruption,
        };
        stepper.begin(snapshot, intended);
        let churn = request.churn.as_deref().map(Churn::parse);
        if let Some(Ok(churn)) = churn {
            stepper.begin_churn(churn);
        }
        stepper
    }

    /// Returns what is approximate in any rehearsal of this cluster.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.timing.notes();
        let overhead = self.scheduling.node_overhead_price;
        if overhead > 0.0 {
            notes.push(format!("Prices are those of instances; the cheapest nodes for pending pods are chosen as if each cost ${overhead} per hour more (--node-overhead-price)."));
        }
        notes.push("A pod with room on an existing node is bound to the least allocated one; other scores of kube-scheduler are not computed.".into());
        notes.push("Not predicted: new pods, autoscaled workloads, spot interruptions, node repair, and launches that the cloud refuses.".into());
        notes
    }

    /// Continues what is under way in the cluster, and begins the changes.
    fn begin(&mut self, before: &Snapshot, intended: Option<Intended>) {
        let snapshot = self.cluster.snapshot();
        let mut unbound: Vec<&Arc<Pod>> = before.unbound_pods().collect();
        unbound.sort_by(|a, b| a.key.cmp(&b.key));
        self.pending = unbound.iter().filter(|pod| is_waiting(pod)).count();
        self.report.begin(&snapshot, self.pending);
        // kube-scheduler tries each pod within moments.
        for pod in unbound {
            let tried = !pod.unschedulable
                && !pod.gated
                && pod.scheduler_name.is_none()
                && is_waiting(pod)
                && !pod.is_owned_by_daemon_set();
            if tried {
                let mut pod = Pod::clone(pod);
                pod.unschedulable = true;
                self.put_pod(pod);
            }
        }
        let mut claims: Vec<Arc<NodeClaim>> = snapshot.node_claims().cloned().collect();
        claims.sort_by(|a, b| a.name().cmp(b.name()));
        for claim in &claims {
            self.resume(&snapshot, claim);
        }
        self.disrupting.resume(&snapshot, self.now);
        self.check_commands();
        if let Some(intended) = intended {
            for namespace in &intended.budgets {
                self.guards.touch_namespace(namespace);
            }
            self.change_pods(intended.workloads);
            for claim in &intended.deleted_claims {
                self.report.delete(self.now, &snapshot, claim, "Deleted");
                self.delete_claim(claim);
            }
        }
        self.begin_static_pools();
        let snapshot = self.cluster.snapshot();
        if snapshot.pending_pods().next().is_some()
            || snapshot.pods_of_deleting_nodes().next().is_some()
            || !self.disruption.query.buffer_pods.is_empty()
        {
            self.trigger("begin");
        }
        self.pass_at(self.now);
    }

    /// Continues the launch, the deletion and the expiry of a NodeClaim.
    fn resume(&mut self, snapshot: &Snapshot, claim: &Arc<NodeClaim>) {
        let name = claim.name().to_owned();
        if claim.is_deleting() {
            self.queue.add(self.now, Event::Finalize(name));
            return;
        }
        self.resume_launch(snapshot, claim);
        if let Some(at) = expires_at(claim) {
            self.queue
                .add(at.max(self.now), Event::Expire(name.clone()));
        }
        if self
            .disruption
            .surroundings
            .recent_replacements
            .contains(&name)
        {
            let created = claim.metadata.creation_timestamp.as_ref();
            let created = created.map_or(self.now, |created| created.0);
            self.disrupting.protect(claim, created);
        }
    }

    fn change_pods(&mut self, workloads: Workloads) {
        for key in &workloads.removed {
            if !workloads.added.contains_key(key) {
                self.end_pod(&key.0, &key.1);
            }
        }
        if !workloads.added.is_empty() {
            self.trigger("added pods");
        }
        let keys: Vec<(String, String)> = workloads.added.keys().cloned().collect();
        for pod in workloads.added.into_values() {
            self.bindings.add(&pod);
            self.put_pod(pod);
        }
        self.bind_with_room(&keys);
    }

    /// Requests a plan for an object, at the end of the batch window.
    pub(super) fn trigger(&mut self, uid: &str) {
        self.provisioning.trigger(uid, self.now);
        self.await_batch();
    }

    /// Comes back when the open batch closes.
    pub(super) fn await_batch(&mut self) {
        if let Some(closes) = self
            .provisioning
            .closes(self.now)
            .filter(|_| !self.awaits_batch)
        {
            self.awaits_batch = true;
            self.queue.add(closes, Event::Provision);
        }
    }

    /// Makes a disruption pass at a time, unless one is due before.
    pub(super) fn pass_at(&mut self, at: Timestamp) {
        if self.next_pass.is_none_or(|next| at < next) {
            self.next_pass = Some(at);
            self.queue.add(at, Event::Disrupt);
        }
    }

    /// Counts a run of the engine; returns whether it may be made.
    pub(super) fn may_run(&mut self) -> bool {
        if self.is_cancelled() {
            self.report.end_early(EndedBy::Timeout);
        } else if self.runs >= MAX_RUNS {
            self.report.end_early(EndedBy::Runs);
        } else {
            self.runs += 1;
            return true;
        }
        false
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel())
    }

    /// Adds or replaces a pod.
    pub(super) fn put_pod(&mut self, pod: Pod) {
        let (namespace, name) = (pod.key.namespace.clone(), pod.key.name.clone());
        let delta = self.cluster.insert_pod(pod);
        let (before, now) = (delta.before.as_deref(), delta.after.as_deref());
        let waits = |pod: Option<&Pod>| usize::from(pod.is_some_and(is_waiting));
        self.pending = self.pending + waits(now) - waits(before).min(self.pending + waits(now));
        for node in [before, now]
            .into_iter()
            .flatten()
            .filter_map(|pod| pod.node_name.as_deref())
        {
            self.bindings.touch(node);
        }
        if let Some(node) = event_node(before, now) {
            let node = node.to_owned();
            self.pod_event(&node);
        }
        self.guards.touch(&namespace, &name, true);
    }

    pub(super) fn remove_pod(&mut self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let before = self.cluster.remove_pod(namespace, name).before?;
        if is_waiting(&before) {
            self.pending = self.pending.saturating_sub(1);
        }
        if let Some(node) = &before.node_name {
            self.bindings.touch(node);
        }
        self.provisioning.forget(&before.key.uid);
        self.guards.touch(namespace, name, false);
        Some(before)
    }

    /// Writes the time of the last pod event of a node.
    fn pod_event(&mut self, node: &str) {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node(node).and_then(|node| node.claim.as_ref());
        if let Some(claim) = claim.and_then(|claim| recorded(claim, self.now)) {
            self.cluster.apply_node_claim(&claim);
        }
    }

    /// Lets the events happen, until the end or until the work is used up.
    pub(super) fn run(mut self) -> Outcome {
        while let Some((at, event)) = self.queue.pop() {
            if at > self.end {
                break;
            }
            self.events += 1;
            if self.events > MAX_EVENTS {
                self.report.end_early(EndedBy::Events);
            } else if self.is_cancelled() {
                self.report.end_early(EndedBy::Timeout);
            }
            if self.report.ends_early() {
                break;
            }
            self.now = at;
            self.happen(event);
            self.await_static_pools();
            self.report.sample(self.now, self.pending);
        }
        if !self.report.ends_early() {
            self.now = self.end;
        }
        self.find_reasons();
        let snapshot = self.cluster.snapshot();
        self.report.finish(self.now, &snapshot, self.pending)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Provision => self.provision(),
            Event::Disrupt => self.disrupt(),
            Event::StaticPools => self.check_static_pools(),
            Event::Join(claim) => self.join(&claim),
            Event::Registered(claim) => self.registered(&claim),
            Event::Ready(claim) => self.ready(&claim),
            Event::Finalize(claim) => self.finalize(&claim),
            Event::Bind => self.bind_arrived(),
            Event::Churn => self.churn(),
            Event::Expire(claim) => self.expire(&claim),
            Event::PodGone(namespace, name) => self.pod_gone(&namespace, &name),
            Event::PodReady(namespace, name) => self.pod_ready(&namespace, &name),
        }
    }
}

/// Reports whether a pod waits for a node.
pub(super) fn is_waiting(pod: &Pod) -> bool {
    pod.node_name.is_none() && pod.is_active()
}
