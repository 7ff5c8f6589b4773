//! The report of a rehearsal: its steps, and what the cluster costs over time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use karpenter_core::cluster::Snapshot;
use karpenter_core::disruption::{
    Command, Decision, DisruptionPlan, NotConsolidatable, VerdictKind,
};
use karpenter_core::pod::Pod;
use karpenter_core::schedule::Objective;

use crate::prices::{Prices, dollars, micro_dollars};
use crate::rehearse::plan::{
    Action, Blocked, BudgetUse, EndedBy, Evictions, Launch, Launched, Peak, Sample, Step, Totals,
};
use crate::workload::Workload;

/// What a rehearsal came to.
#[derive(Clone, Debug, Default)]
pub(in crate::rehearse) struct Outcome {
    pub(in crate::rehearse) before: Totals,
    pub(in crate::rehearse) after: Totals,
    pub(in crate::rehearse) peak: Peak,
    pub(in crate::rehearse) launched: Option<Launched>,
    pub(in crate::rehearse) steps: Vec<Step>,
    pub(in crate::rehearse) evictions: Evictions,
    pub(in crate::rehearse) blocked: Vec<Blocked>,
    pub(in crate::rehearse) budgets: Vec<BudgetUse>,
    pub(in crate::rehearse) curve: Vec<Sample>,
    pub(in crate::rehearse) micro_dollars: i64,
    pub(in crate::rehearse) ended_by: Option<EndedBy>,
}

/// What has happened so far.
#[derive(Default)]
pub(super) struct Report {
    start: Timestamp,
    /// The price of each instance in millionths of a dollar, by NodeClaim, else by Node.
    instances: BTreeMap<String, i64>,
    micro_dollars: i64,
    /// Numbers of evicted pods, by workload.
    evicted: BTreeMap<String, usize>,
    /// The latest disruption plan.
    plan: Option<Arc<DisruptionPlan>>,
    /// The NodePools whose budgets blocked nodes in the latest disruption plan, and since when.
    budget_blocked: (BTreeSet<String>, Timestamp),
    /// For how many seconds the budgets of each NodePool blocked nodes.
    budget_use: BTreeMap<String, i64>,
    outcome: Outcome,
}

impl Report {
    /// Begins with the instances of a cluster.
    pub(super) fn of(snapshot: &Snapshot, start: Timestamp) -> Self {
        let prices = Prices::new(snapshot);
        let instances = snapshot.nodes().filter(|node| !node.is_launching());
        let instances = instances.map(|node| {
            let key = node.claim_name().unwrap_or_else(|| node.name());
            (key.to_owned(), micro_dollars(prices.of(node)))
        });
        let instances: BTreeMap<String, i64> = instances.collect();
        Self {
            start,
            micro_dollars: instances.values().sum(),
            instances,
            budget_blocked: (BTreeSet::new(), start),
            ..Self::default()
        }
    }

    /// Notes the state before the first change.
    pub(super) fn begin(&mut self, snapshot: &Snapshot, pending: usize) {
        self.outcome.before = self.totals(snapshot, pending);
        self.sample(self.start, pending);
    }

    /// Adds an instance, which is paid from now on.
    pub(super) fn add_instance(&mut self, key: &str, price: i64) {
        self.micro_dollars += price;
        self.instances.insert(key.to_owned(), price);
    }

    pub(super) fn remove_instance(&mut self, key: &str) {
        self.micro_dollars -= self.instances.remove(key).unwrap_or_default();
    }

    /// Notes that the rehearsal ends before its time, because its work is used up.
    pub(super) fn end_early(&mut self, by: EndedBy) {
        self.outcome.ended_by.get_or_insert(by);
    }

    pub(super) fn ends_early(&self) -> bool {
        self.outcome.ended_by.is_some()
    }

    /// Counts a pod that is evicted.
    pub(super) fn evict(&mut self, pod: &Pod) {
        let workload = Workload::of(pod).to_string();
        *self.evicted.entry(workload).or_default() += 1;
    }

    /// Records the launch of nodes, those of one kind together.
    pub(super) fn launch(
        &mut self,
        now: Timestamp,
        launches: Vec<Launch>,
        pods: usize,
        reason: &str,
    ) {
        let launches = grouped(launches);
        if launches.is_empty() {
            return;
        }
        self.outcome.steps.push(Step {
            after: self.seconds(now),
            action: Action::Launch,
            reason: reason.to_owned(),
            nodes: Vec::new(),
            launches,
            pods,
            savings_per_hour: None,
            price_per_hour: dollars(self.micro_dollars),
        });
    }

    /// Adds what the planned nodes of a batch cost.
    pub(super) fn add_objective(&mut self, objective: Objective) {
        let launched = self.outcome.launched.get_or_insert_default();
        let sum = |before: f64, more: f64| dollars(micro_dollars(before) + micro_dollars(more));
        launched.price_per_hour = sum(launched.price_per_hour, objective.price);
        launched.lowest_price_per_hour = sum(launched.lowest_price_per_hour, objective.lowest);
    }

    /// Records that a node is deleted without a replacement.
    pub(super) fn delete(
        &mut self,
        now: Timestamp,
        snapshot: &Snapshot,
        claim: &str,
        reason: &str,
    ) {
        let node = snapshot.node(claim);
        let name = node.map_or(claim, |node| node.name());
        let pods = snapshot.pods_on(name).iter();
        let price = self.instances.get(claim).copied().unwrap_or_default();
        self.outcome.steps.push(Step {
            after: self.seconds(now),
            action: Action::Delete,
            reason: reason.to_owned(),
            nodes: vec![name.to_owned()],
            launches: Vec::new(),
            pods: pods.filter(|pod| pod.is_reschedulable()).count(),
            savings_per_hour: Some(dollars(price)),
            price_per_hour: dollars(self.micro_dollars),
        });
    }

    /// Records that a command starts, with the launches of its replacements.
    pub(super) fn disrupt(&mut self, now: Timestamp, command: &Command, launches: Vec<Launch>) {
        let nodes = command.candidates.iter();
        self.outcome.steps.push(Step {
            after: self.seconds(now),
            action: match command.decision() {
                Decision::Delete => Action::Delete,
                Decision::Replace => Action::Replace,
            },
            reason: command.method.reason().as_str().to_owned(),
            nodes: nodes.map(|it| it.name().to_owned()).collect(),
            launches: grouped(launches),
            pods: command.pods().count(),
            savings_per_hour: Some(dollars(micro_dollars(command.savings))),
            price_per_hour: dollars(self.micro_dollars),
        });
    }

    /// Returns the seconds since the start.
    fn seconds(&self, now: Timestamp) -> i64 {
        now.duration_since(self.start).as_secs()
    }

    fn totals(&self, snapshot: &Snapshot, pending: usize) -> Totals {
        let counts = |pod: &&Arc<Pod>| pod.is_active() && !pod.is_owned_by_daemon_set();
        Totals {
            nodes: self.instances.len(),
            price_per_hour: dollars(self.micro_dollars),
            pods: snapshot.pods().filter(counts).count(),
            pending,
        }
    }

    /// Adds the current state to the curve.
    pub(super) fn sample(&mut self, now: Timestamp, pending: usize) {
        let sample = Sample {
            after: self.seconds(now),
            nodes: self.instances.len(),
            price_per_hour: dollars(self.micro_dollars),
            pending,
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

    /// Notes a disruption plan, and counts the time since the one before in which budgets blocked nodes.
    pub(super) fn planned(&mut self, now: Timestamp, plan: Arc<DisruptionPlan>) {
        self.count_budgets(now);
        let blocked = plan
            .verdicts
            .iter()
            .filter_map(|verdict| match &verdict.kind {
                VerdictKind::Kept(
                    NotConsolidatable::Budget { node_pool }
                    | NotConsolidatable::Paused { node_pool, .. },
                ) => Some(node_pool.clone()),
                _ => None,
            });
        self.budget_blocked.0 = blocked.collect();
        self.plan = Some(plan);
    }

    /// Takes the last plan with all of its reasons.
    pub(super) fn explained(&mut self, plan: DisruptionPlan) {
        self.plan = Some(Arc::new(plan));
    }

    fn count_budgets(&mut self, now: Timestamp) {
        let (blocked, since) = &mut self.budget_blocked;
        for pool in &*blocked {
            *self.budget_use.entry(pool.clone()).or_default() +=
                now.duration_since(*since).as_secs();
        }
        *since = now;
    }

    /// Ends the report.
    pub(super) fn finish(mut self, now: Timestamp, snapshot: &Snapshot, pending: usize) -> Outcome {
        self.count_budgets(now);
        self.outcome.after = self.totals(snapshot, pending);
        self.outcome.micro_dollars = self.micro_dollars;
        let mut pods: BTreeMap<String, usize> = BTreeMap::new();
        for pod in snapshot.pods().filter(|pod| pod.is_active()) {
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
        for verdict in self.plan.iter().flat_map(|plan| &plan.verdicts) {
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

/// Returns launches with those of one kind together.
fn grouped(launches: Vec<Launch>) -> Vec<Launch> {
    let mut groups: Vec<Launch> = Vec::new();
    for launch in launches {
        let same = groups.iter_mut().find(|group| {
            group.node_pool == launch.node_pool
                && group.instance_type == launch.instance_type
                && group.capacity_type == launch.capacity_type
                && group.price_per_hour == launch.price_per_hour
        });
        match same {
            Some(group) => {
                group.count += launch.count;
                if group.zone != launch.zone {
                    group.zone.clear();
                }
            }
            None => groups.push(launch),
        }
    }
    groups
}
