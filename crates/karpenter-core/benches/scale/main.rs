//! How cost grows with the cluster: `cargo xtask bench scale`.
//!
//! `scale-full-…` is a disruption pass from nothing in which every node is simulated, priced and kept; `scale-pending-…` schedules
//! 10,000 pods beside as many nodes; `scale-growth-…` doubles one dimension of a cluster at a time; `scale-memory` is what the model's objects take.

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

mod fleet;
mod growth;
mod memory;

use std::sync::Arc;

use karpenter_bench::{Run, Suite, cpu_time};
use karpenter_core::cluster::{Cluster, Snapshot};
use karpenter_core::disruption::{
    DisruptionPlan, DisruptionRequest, Method, NotConsolidatable, VerdictKind, plan,
};
use karpenter_core::schedule::{Plan, Policy, Query, schedule};

use fleet::{Fleet, now, pend};

/// The number of pending pods of `scale-pending-…`.
const PENDING: usize = 10_000;

/// Returns a request without a search for sets of nodes, which has a time limit of its own.
pub fn request() -> DisruptionRequest {
    let mut request = DisruptionRequest::at(now());
    request.spot_to_spot = true;
    request.threads = std::thread::available_parallelism().map_or(1, usize::from);
    request.multi_node.cancel = Some(Arc::new(|| true));
    request
}

/// Measures a workload once, in seconds of processor time too.
pub fn once<T>(run: &mut Run, items: usize, work: impl FnOnce() -> T) -> T {
    let before = cpu_time();
    let result = run.measure_once(items, work);
    if let (Some(before), Some(after)) = (before, cpu_time()) {
        run.record("cpu_seconds", (after - before).as_secs_f64());
    }
    result
}

/// Returns the number of nodes that a pass simulated and kept.
pub fn simulated(plan: &DisruptionPlan) -> usize {
    let unseen = VerdictKind::Kept(NotConsolidatable::NotEvaluated);
    let kept = |kind: &VerdictKind| matches!(kind, VerdictKind::Kept(_)) && *kind != unseen;
    plan.verdicts
        .iter()
        .filter(|verdict| kept(&verdict.kind))
        .count()
}

fn describe(run: &mut Run, fleet: &Fleet) {
    run.parameter("nodes", fleet.nodes);
    run.parameter("pods", fleet.pods());
    run.parameter("pools", fleet.pools);
    run.parameter("types", fleet.types);
}

/// Adds pending pods of the workloads of small pods.
pub fn add_pending(cluster: &mut Cluster, fleet: &Fleet, pods: usize) {
    let templates = fleet.templates();
    for number in 0..pods {
        let template = &templates[number % fleet.workloads];
        pend(cluster, template, fleet.pods() + number);
    }
}

/// Schedules the pending pods, from the snapshot to the plan.
pub fn provision(snapshot: &Snapshot) -> Plan {
    schedule(snapshot, &Policy::at(now()), &Query::default())
}

fn main() {
    let mut suite = Suite::from_args("scale");
    for (nodes, pods) in [
        (1000, 20),
        (5000, 20),
        (10_000, 20),
        (20_000, 10),
        (20_000, 20),
        (50_000, 10),
        (50_000, 20),
        (100_000, 10),
        (100_000, 20),
    ] {
        let fleet = Fleet::of(nodes, pods);
        suite.case(&format!("full-{nodes}-{}", fleet.pods()), |run| {
            let snapshot = fleet.build().snapshot();
            describe(run, &fleet);
            let found = once(run, nodes, || plan(&snapshot, &request()));
            run.record("candidates", found.eligible[&Method::SingleNode]);
            run.record("simulated", simulated(&found));
            run.record("commands", found.commands.len());
        });
    }
    for nodes in [1000, 5000, 10_000, 20_000, 50_000, 100_000] {
        let fleet = Fleet::of(nodes, 10);
        suite.case(&format!("pending-{nodes}"), |run| {
            let mut cluster = fleet.build();
            add_pending(&mut cluster, &fleet, PENDING);
            let snapshot = cluster.snapshot();
            describe(run, &fleet);
            let found = once(run, PENDING, || provision(&snapshot));
            run.record("placed", found.existing.len());
            run.record("planned", found.new_node_claims.len());
        });
    }
    growth::cases(&mut suite);
    memory::cases(&mut suite);
}
