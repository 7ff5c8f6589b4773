//! How fast the doctor is: `cargo xtask bench doctor`.
//!
//! `fleet-5000` is a cluster of 5,000 nodes in 20 NodePools with 100,000 pods and 2,000 PodDisruptionBudgets, of which a tenth
//! are impossible, 200 protected pods, and 700 instance types.
//!
//! The goal is a second (SURGE-15).

#![expect(clippy::unwrap_used, reason = "what fails here fails the benchmark")]

mod fleet;

use fleet::{NODES, PODS, WORKLOADS, fleet, now};
use karpenter_bench::Suite;
use karpenter_core::cluster::Snapshot;
use karpenter_core::schedule::Policy;
use karpenter_decisions::doctor::{BlockerReport, Examination, Installation, examine};
use karpenter_decisions::explain::Observed;

fn report(snapshot: &Snapshot) -> BlockerReport {
    let examination = Examination {
        snapshot,
        policy: &Policy::at(now()),
        cancel: None,
        spot_to_spot: false,
        installation: &Installation::default(),
    };
    let observed = Observed {
        at: now(),
        epoch: snapshot.epoch(),
        engine: String::new(),
        truncated: false,
    };
    examine(&examination, observed, None)
}

fn main() {
    let mut suite = Suite::from_args("doctor");
    suite.case("fleet-5000", |run| {
        let snapshot = fleet();
        let found = report(&snapshot);
        run.parameter("nodes", NODES);
        run.parameter("pods", NODES * PODS);
        run.parameter("pdbs", WORKLOADS);
        run.parameter("findings", found.checks.len());
        run.measure(NODES, || report(&snapshot));
    });
}
