//! The state of a rehearsal, and its loop over events.

mod binding;
mod buffers;
mod disruption;
mod drain;
mod evictions;
mod launch;
mod provisioning;
mod queue;
mod timing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use karpenter_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use karpenter_api::v1::NodeClaim;
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::disruption::{DisruptionPlan, DisruptionRequest};
use karpenter_core::instance_type::InstanceType;
use karpenter_core::lifecycle::after;
use karpenter_core::lifecycle::conditions::expires_at;
use karpenter_core::lifecycle::disruption::{Disruption, Settings as ProcessSettings};
use karpenter_core::lifecycle::pod_events::event_node;
use karpenter_core::lifecycle::provisioning::{BatchWindow, Provisioning};
use karpenter_core::pod::Pod;
use karpenter_core::schedule::{Cancel, Policy};

use super::changes::Intended;
use super::plan::{Action, Blocked, BudgetUse, Evictions, Launch, Peak, Sample, Step, Totals};
use super::request::{LaunchChoice, PlanRequest};
use super::workloads::Workloads;
use super::{Gates, MAX_EVENTS, MAX_RUNS, Settings};
use crate::prices::{Prices, micro_dollars};
use crate::workload::Workload;
use binding::Bindings;
use buffers::Buffers;
use disruption::Adopted;
use evictions::Guards;
use launch::Chosen;
use queue::{Event, Queue};
use timing::Timing;

/// How often the time of the last pod event of a node is written.
const POD_EVENTS: Duration = Duration::from_secs(10);

/// Returns an amount of millionths of a dollar in dollars.
pub(super) fn dollars(micro: i64) -> f64 {
    micro as f64 / 1e6
}

/// What a rehearsal came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) before: Totals,
    pub(super) after: Totals,
    pub(super) peak: Peak,
    pub(super) steps: Vec<Step>,
    pub(super) evictions: Evictions,
    pub(super) blocked: Vec<Blocked>,
    pub(super) budgets: Vec<BudgetUse>,
    pub(super) curve: Vec<Sample>,
    pub(super) micro_dollars: i64,
    pub(super) truncated: bool,
}

/// The state of a rehearsal.
pub(super) struct Stepper {
    pub(super) cluster: Cluster,
    pub(super) now: Timestamp,
    start: Timestamp,
    end: Timestamp,
    pub(super) queue: Queue,
    pub(super) scheduling: Policy,
    pub(super) disruption: DisruptionRequest,
    pub(super) window: BatchWindow,
    pub(super) provisioning: Provisioning,
    /// Whether an event is queued for the end of a batch.
    pub(super) awaits_batch: bool,
    pub(super) cancel: Option<Cancel>,
    /// The pods to bind once their node is initialized, by NodeClaim.
    pub(super) awaited: BTreeMap<String, BTreeSet<(String, String)>>,
    pub(super) launching: BTreeMap<String, Chosen>,
    pub(super) numbers: BTreeMap<String, usize>,
    pub(super) offered: BTreeMap<String, Arc<[InstanceType]>>,
    pub(super) disrupting: Disruption,
    pub(super) adopted: Vec<Adopted>,
    /// The launches of the command that is starting.
    pub(super) replacements: Vec<Launch>,
    pub(super) next_pass: Option<Timestamp>,
    pub(super) drift_checked: Option<Timestamp>,
    pub(super) last_plan: Option<Arc<DisruptionPlan>>,
    pub(super) guards: Guards,
    pub(super) buffers: Buffers,
    pub(super) bindings: Bindings,
    pub(super) timing: Timing,
    pub(super) launch: LaunchChoice,
    pub(super) gates: Gates,
    /// The price of each instance in millionths of a dollar, by NodeClaim, else by Node.
    instances: BTreeMap<String, i64>,
    micro_dollars: i64,
    pub(super) pending: usize,
    pub(super) successors: usize,
    pub(super) evicted: BTreeMap<String, usize>,
    pub(super) budget_blocked: BTreeSet<String>,
    budget_blocked_since: Timestamp,
    budget_use: BTreeMap<String, i64>,
    outcome: Outcome,
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
        disruption.query.cancel.clone_from(&settings.cancel);
        disruption.multi_node.cancel.clone_from(&settings.cancel);
        disruption.single_node_cancel.clone_from(&settings.cancel);
        let mut process = ProcessSettings {
            removes_stale_taints: false,
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
            start,
            end: start.saturating_add(length).unwrap_or(Timestamp::MAX),
            queue: Queue::default(),
            scheduling: settings.scheduling.clone(),
            window,
            provisioning: Provisioning::new(batch, start),
            awaits_batch: false,
            cancel: settings.cancel.clone(),
            awaited: BTreeMap::new(),
            launching: BTreeMap::new(),
            numbers: BTreeMap::new(),
            offered: BTreeMap::new(),
            disrupting: Disruption::new(process, start)
                .with_unseen_pools(disruption.unseen_pools.clone()),
            adopted: Vec::new(),
            replacements: Vec::new(),
            next_pass: None,
            drift_checked: None,
            last_plan: None,
            guards: Guards::of(changed),
            buffers: Buffers::of(&disruption),
            bindings: Bindings::of(changed),
            timing: Timing::of(snapshot, boot, drain),
            launch: request.assume.launch,
            gates: settings.gates,
            instances: BTreeMap::new(),
            micro_dollars: 0,
            pending: 0,
            successors: 0,
            evicted: BTreeMap::new(),
            budget_blocked: BTreeSet::new(),
            budget_blocked_since: start,
            budget_use: BTreeMap::new(),
            outcome: Outcome::default(),
            runs: 0,
            events: 0,
            disruption,
        };
        stepper.count_instances(snapshot);
        stepper.begin(snapshot, intended);
        stepper
    }

    /// Returns what is approximate in any rehearsal of this cluster.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.timing.notes();
        notes.push("A pod with room on an existing node is bound to the least allocated one; other scores of kube-scheduler are not computed.".into());
        notes.push("Not predicted: new pods, autoscaled workloads, spot interruptions, node repair, and launches that the cloud refuses.".into());
        notes
    }

    fn count_instances(&mut self, snapshot: &Snapshot) {
        let prices = Prices::new(snapshot);
        for node in snapshot.nodes() {
            if node.is_launching() {
                continue;
            }
            let key = node.claim_name().unwrap_or_else(|| node.name());
            let price = micro_dollars(prices.of(node));
            self.micro_dollars += price;
            self.instances.insert(key.to_owned(), price);
        }
    }

    /// Adds an instance, which is paid from now on.
    pub(super) fn add_instance(&mut self, key: &str, price: i64) {
        self.micro_dollars += price;
        self.instances.insert(key.to_owned(), price);
        self.sample();
    }

    pub(super) fn remove_instance(&mut self, key: &str) {
        if let Some(price) = self.instances.remove(key) {
            self.micro_dollars -= price;
            self.sample();
        }
    }

    /// Returns the price of the cluster in dollars per hour.
    pub(super) fn price(&self) -> f64 {
        dollars(self.micro_dollars)
    }

    /// Returns the price of a node by its NodeClaim, else by its name.
    fn price_of(&self, key: &str) -> i64 {
        self.instances.get(key).copied().unwrap_or_default()
    }

    /// Continues what is under way in the cluster, and begins the changes.
    fn begin(&mut self, before: &Snapshot, intended: Option<Intended>) {
        let snapshot = self.cluster.snapshot();
        let mut unbound: Vec<&Arc<Pod>> = before.unbound_pods().collect();
        unbound.sort_by(|a, b| a.key.cmp(&b.key));
        self.pending = unbound.iter().filter(|pod| is_waiting(pod)).count();
        self.outcome.before = self.totals();
        self.sample();
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
        self.resume_commands(&snapshot);
        if let Some(intended) = intended {
            for namespace in &intended.budgets {
                self.guards.touch_namespace(namespace);
            }
            self.change_pods(intended.workloads);
            for claim in &intended.deleted_claims {
                self.record_deletion(claim, "Deleted");
                self.delete_claim(claim);
            }
        }
        let snapshot = self.cluster.snapshot();
        if snapshot.pending_pods().next().is_some()
            || snapshot.pods_of_deleting_nodes().next().is_some()
            || !self.buffers.is_empty()
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
        let cancelled = self.is_cancelled();
        if cancelled || self.runs >= MAX_RUNS {
            self.outcome.truncated = true;
            return false;
        }
        self.runs += 1;
        true
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel())
    }

    /// Notes that a run of the engine was cut short.
    pub(super) fn cut_short(&mut self) {
        self.outcome.truncated = true;
    }

    /// Adds or replaces a pod.
    pub(super) fn put_pod(&mut self, pod: Pod) {
        let (namespace, name) = (pod.key.namespace.clone(), pod.key.name.clone());
        let delta = self.cluster.insert_pod(pod);
        let (before, now) = (delta.before.as_deref(), delta.after.as_deref());
        let waits = |pod: Option<&Pod>| usize::from(pod.is_some_and(is_waiting));
        self.pending = self.pending + waits(now) - waits(before).min(self.pending + waits(now));
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
        self.provisioning.forget(&before.key.uid);
        self.guards.touch(namespace, name, false);
        Some(before)
    }

    /// Writes the time of the last pod event of a node.
    fn pod_event(&mut self, node: &str) {
        let snapshot = self.cluster.snapshot();
        let claim = snapshot.node(node).and_then(|node| node.claim.clone());
        let Some(claim) = claim else { return };
        let known = claim.status.last_pod_event_time.as_ref().map(|at| at.0);
        if known.is_some_and(|known| self.now < after(known, POD_EVENTS)) {
            return;
        }
        let mut claim = NodeClaim::clone(&claim);
        claim.status.last_pod_event_time = Some(Time(self.now));
        self.cluster.apply_node_claim(&claim);
    }

    /// Records what is done.
    pub(super) fn record(&mut self, step: Step) {
        self.outcome.steps.push(step);
    }

    /// Records that a node is deleted without a replacement.
    pub(super) fn record_deletion(&mut self, claim: &str, reason: &str) {
        let snapshot = self.cluster.snapshot();
        let node = snapshot.node(claim);
        let name = node.map_or(claim, |node| node.name());
        let pods = snapshot.pods_on(name).iter();
        let step = Step {
            after: self.seconds(),
            action: Action::Delete,
            reason: reason.to_owned(),
            nodes: vec![name.to_owned()],
            launches: Vec::new(),
            pods: pods.filter(|pod| pod.is_reschedulable()).count(),
            savings_per_hour: Some(dollars(self.price_of(claim))),
            price_per_hour: self.price(),
        };
        self.record(step);
    }

    /// Returns the seconds since the start.
    pub(super) fn seconds(&self) -> i64 {
        self.now.duration_since(self.start).as_secs()
    }

    fn totals(&self) -> Totals {
        let snapshot = self.cluster.snapshot();
        let counts = |pod: &&Arc<Pod>| pod.is_active() && !pod.is_owned_by_daemon_set();
        Totals {
            nodes: self.instances.len(),
            price_per_hour: self.price(),
            pods: snapshot.pods().filter(counts).count(),
            pending: self.pending,
        }
    }

    /// Adds the current state to the curve.
    pub(super) fn sample(&mut self) {
        let sample = Sample {
            after: self.seconds(),
            nodes: self.instances.len(),
            price_per_hour: self.price(),
            pending: self.pending,
        };
        let peak = &mut self.outcome.peak;
        if self.outcome.curve.is_empty() || sample.price_per_hour > peak.price_per_hour {
            *peak = Peak {
                after: sample.after,
                nodes: sample.nodes,
                price_per_hour: sample.price_per_hour,
            };
        }
        let curve = &mut self.outcome.curve;
        match curve.last_mut() {
            Some(last) if last.after == sample.after => *last = sample,
            Some(last)
                if (last.nodes, last.price_per_hour, last.pending)
                    == (sample.nodes, sample.price_per_hour, sample.pending) => {}
            _ => curve.push(sample),
        }
    }

    /// Counts the time since the last pass in which budgets blocked nodes.
    pub(super) fn count_budgets(&mut self) {
        let passed = self.now.duration_since(self.budget_blocked_since).as_secs();
        for pool in &self.budget_blocked {
            *self.budget_use.entry(pool.clone()).or_default() += passed;
        }
        self.budget_blocked_since = self.now;
    }

    /// Lets the events happen, until the end or until the work is used up.
    pub(super) fn run(mut self) -> Outcome {
        while let Some((at, event)) = self.queue.pop() {
            if at > self.end {
                break;
            }
            self.events += 1;
            if self.events > MAX_EVENTS || self.is_cancelled() {
                self.outcome.truncated = true;
            }
            if self.outcome.truncated {
                break;
            }
            self.now = at;
            self.happen(event);
            self.sample();
        }
        if !self.outcome.truncated {
            self.now = self.end;
        }
        self.finish()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Provision => self.provision(),
            Event::Disrupt => self.disrupt(),
            Event::Join(claim) => self.join(&claim),
            Event::Registered(claim) => self.registered(&claim),
            Event::Ready(claim) => self.ready(&claim),
            Event::Finalize(claim) => self.finalize(&claim),
            Event::Bind => self.bind_arrived(),
            Event::Expire(claim) => self.expire(&claim),
            Event::PodGone(namespace, name) => self.pod_gone(&namespace, &name),
            Event::PodReady(namespace, name) => self.pod_ready(&namespace, &name),
        }
    }

    fn finish(mut self) -> Outcome {
        self.count_budgets();
        self.outcome.after = self.totals();
        self.outcome.micro_dollars = self.micro_dollars;
        let mut pods: BTreeMap<String, usize> = BTreeMap::new();
        for pod in self.cluster.snapshot().pods().filter(|pod| pod.is_active()) {
            let workload = Workload::of(pod).to_string();
            if self.evicted.contains_key(&workload) {
                *pods.entry(workload).or_default() += 1;
            }
        }
        self.outcome.evictions = Evictions::of(&self.evicted, &pods);
        self.outcome.blocked = self.blocked();
        let budgets = self.budget_use.iter().filter(|(_, seconds)| **seconds > 0);
        self.outcome.budgets = budgets
            .map(|(pool, seconds)| BudgetUse {
                node_pool: pool.clone(),
                seconds: *seconds,
            })
            .collect();
        self.outcome
    }

    /// Returns the nodes that the last disruption pass did not disrupt, by reason, the most expensive first.
    fn blocked(&self) -> Vec<Blocked> {
        let mut by_reason: BTreeMap<&'static str, (usize, i64, Vec<String>)> = BTreeMap::new();
        for verdict in self.last_plan.iter().flat_map(|plan| &plan.verdicts) {
            let Some(reason) = crate::what_if::reason(&verdict.kind) else {
                continue;
            };
            let key = verdict
                .node
                .claim_name()
                .unwrap_or_else(|| verdict.node.name());
            // Nodes that have ended since.
            let Some(price) = self.instances.get(key) else {
                continue;
            };
            let (nodes, sum, names) = by_reason.entry(reason.id()).or_default();
            *nodes += 1;
            *sum += price;
            if names.len() < 3 {
                names.push(verdict.node.name().to_owned());
            }
        }
        let mut blocked: Vec<Blocked> = by_reason
            .into_iter()
            .map(|(reason, (nodes, price, names))| Blocked {
                reason: reason.to_owned(),
                nodes,
                price_per_hour: dollars(price),
                names,
            })
            .collect();
        blocked.sort_by(|a, b| {
            let price = b.price_per_hour.total_cmp(&a.price_per_hour);
            price.then_with(|| a.reason.cmp(&b.reason))
        });
        blocked
    }
}

/// Reports whether a pod waits for a node.
pub(super) fn is_waiting(pod: &Pod) -> bool {
    pod.node_name.is_none() && pod.is_active()
}
